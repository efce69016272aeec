"""Show a repair: the curve of the search, the loss at the step, and what each domain keeps of its gain."""

from __future__ import annotations

from everlearn.comparison.formatting import MISSING, decimals, fixed, interval
from everlearn.diagnostics.repair import Remains, Repair
from everlearn.evaluation.estimate import Estimate
from everlearn.report.drawing import GLYPHS
from everlearn.report.figures import draw
from everlearn.report.figures.curves import Curve, Curves
from everlearn.report.sections import Section
from everlearn.report.tables import Table, TableCell, estimate_cell
from everlearn.wording import count


def of_repair(found: Repair) -> Section:
    """Make a section with the curve and two tables."""
    steps = [0.0, *sorted(found.curve)]
    lost = [Estimate(0.0, 0.0, 0.0), *(found.curve[step] for step in steps[1:])]
    line = Curve.of(0, steps, lost, found.text)
    budget = Curve(1, [0.0, 1.0], [found.budget, found.budget], label="budget")
    caption = (
        f"s = 0 is the model after {found.since}, 1 the one after {found.until}; the vertical line is the step that "
        "was found. Calibration half only. Band: 95 % intervals."
    )
    curves = Curves("bits per byte lost", [line, budget], caption, marks=[found.step], zero=True, x_label="s")
    return Section(
        f"Repair: {found.since} and {found.until}",
        said(found),
        draw("curves", curves),
        [_costs(found), *([_left(found)] if found.remains else [])],
        ((found.text, GLYPHS[0], 0), ("budget", GLYPHS[1], 1)),
    )


def said(found: Repair) -> str:
    """Describe the result in a few sentences."""
    low, high = found.lost.interval or (found.lost.value, found.lost.value)
    surely = found.kept == (((high if found.kept else low) or 0.0) <= found.budget)
    kept = f"The budget is {'' if found.kept else 'not '}kept there{_CLEARLY[surely]}."
    return (
        f"Of the update from {found.since} to {found.until}, {fixed(100 * found.step, 1)} % is the largest step at "
        f"which '{found.text}' loses no more than {found.budget:g} bits per byte{_SURE if found.sure else ''}, on "
        f"{count(found.blocks[0], 'block')}. On {found.blocks[1]:,} others, which the search never saw, it loses "
        f"{fixed(found.lost.value, 4)} {interval(found.lost, 4)}, and with the whole update "
        f"{fixed(found.whole.value, 4)}. {kept}"
    )


_CLEARLY = {True: "", False: ", by less than the margin of error: more held-out text would decide it"}
_SURE = " with 95 % confidence"


def _costs(found: Repair) -> Table:
    ends = (("at the step", found.lost), ("the whole update", found.whole))
    rows = tuple((label, (estimate_cell(e, 4),)) for label, e in ends)
    return Table(
        f"What '{found.text}' loses", ("", "Bits per byte, on the other half"), rows, "In brackets: 95 % intervals."
    )


def _left(found: Repair) -> Table:
    places = max(3, decimals(e.value for each in found.remains.values() for e in (each.learnt, each.left)))
    rows = tuple((f"{name} ({each.role})", _cells(each, places)) for name, each in found.remains.items())
    header = ("Held-out set", "Gain of the whole update", "Gain at the step", "Share")
    return Table("What remains of the domains", header, rows, "Bits per byte; below zero something is lost.")


def _cells(each: Remains, places: int) -> tuple[TableCell, ...]:
    share = MISSING if each.share.value is None else f"{fixed(100 * each.share.value, 0)} %"
    numbers = (estimate_cell(e, places, signed=True) for e in (each.learnt, each.left))
    return (*numbers, TableCell(share))
