"""Show analyses as a page and as tables for a terminal; sections for a repair and for weights that go back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from everlearn.comparison.formatting import MISSING, decimals, fixed, interval
from everlearn.diagnostics.checkpoint_distance import INTERVALS
from everlearn.diagnostics.interpolation import BEFORE, COMING, GENERAL, LEARNT, GoingBack, Returned
from everlearn.diagnostics.registry import Findings
from everlearn.diagnostics.repair import Remains, Repair
from everlearn.evaluation.estimate import Estimate
from everlearn.files import write_text
from everlearn.report.drawing import GLYPHS, legend_of
from everlearn.report.figures import Plate, draw
from everlearn.report.figures.curves import Curve, Curves
from everlearn.report.figures.heat import Heat, Shade
from everlearn.report.figures.weight_movement import layer_label
from everlearn.report.html import render
from everlearn.report.sections import Section
from everlearn.report.tables import Table, TableCell, estimate_cell, terminal_table
from everlearn.version import __version__
from everlearn.wording import count


def write_page(output: Path, title: str, sections: Sequence[Section]) -> Path:
    """Write the page to a file, atomically; return the file."""
    page = render("analysis.html.jinja", title=title, kicker="Analysis", version=__version__, sections=sections)
    write_text(output, page)
    return output


def terminal(sections: Sequence[Section]) -> RenderableType:
    """Return the tables for a terminal."""
    return Group(*_parts(sections))


def joined_data(findings: Iterable[Findings]) -> dict[str, Any]:
    """Return the data of several analyses as one mapping; lists of one name are joined."""
    data: dict[str, Any] = {}
    for each in findings:
        for key, value in each.data.items():
            data[key] = [*data[key], *value] if isinstance(data.get(key), list) else value
    return data


def _parts(sections: Sequence[Section]) -> Iterator[RenderableType]:
    for section in sections:
        for table in section.tables:
            yield from (terminal_table(table), Text(""))
        yield from _parts(section.parts)


def of_repair(repair: Repair) -> Section:
    """Make a section with the curve of the search, the loss at the step, and what each domain keeps of its gain."""
    steps = [0.0, *sorted(repair.curve)]
    lost = [Estimate(0.0, 0.0, 0.0), *(repair.curve[step] for step in steps[1:])]
    line = Curve.of(0, steps, lost, repair.text)
    budget = Curve(1, [0.0, 1.0], [repair.budget, repair.budget], label="budget")
    caption = (
        f"s = 0 is the model after {repair.since}, 1 the one after {repair.until}; the vertical line is the step that "
        "was found. Calibration half only. Band: 95 % intervals."
    )
    curves = Curves("bits per byte lost", [line, budget], caption, marks=[repair.step], zero=True, x_label="s")
    return Section(
        f"Repair: {repair.since} and {repair.until}",
        sentences(repair),
        draw("curves", curves),
        [_costs(repair), *([_left(repair)] if repair.remains else [])],
        ((repair.text, GLYPHS[0], 0), ("budget", GLYPHS[1], 1)),
    )


def sentences(repair: Repair) -> str:
    """Describe the result in a few sentences."""
    low, high = repair.lost.interval or (repair.lost.value, repair.lost.value)
    surely = repair.kept == (((high if repair.kept else low) or 0.0) <= repair.budget)
    kept = f"The budget is {'' if repair.kept else 'not '}kept there{_CLEARLY[surely]}."
    return (
        f"Of the update from {repair.since} to {repair.until}, {fixed(100 * repair.step, 1)} % is the largest step at "
        f"which '{repair.text}' loses no more than {repair.budget:g} bits per byte{_SURE if repair.sure else ''}, on "
        f"{count(repair.blocks[0], 'block')}. On {repair.blocks[1]:,} others, which the search never saw, it loses "
        f"{fixed(repair.lost.value, 4)} {interval(repair.lost, 4)}, and with the whole update "
        f"{fixed(repair.whole.value, 4)}. {kept}"
    )


_CLEARLY = {True: "", False: ", by less than the margin of error: more held-out text would decide it"}
_SURE = " with 95 % confidence"


def _costs(repair: Repair) -> Table:
    ends = (("at the step", repair.lost), ("the whole update", repair.whole))
    rows = tuple((label, (estimate_cell(e, 4),)) for label, e in ends)
    return Table(
        f"What '{repair.text}' loses", ("", "Bits per byte, on the other half"), rows, "In brackets: 95 % intervals."
    )


def _left(repair: Repair) -> Table:
    places = max(3, decimals(e.value for each in repair.remains.values() for e in (each.learnt, each.left)))
    rows = tuple((f"{name} ({each.role})", _cells(each, places)) for name, each in repair.remains.items())
    header = ("Held-out set", "Gain of the whole update", "Gain at the step", "Share")
    return Table("What remains of the domains", header, rows, "Bits per byte; below zero something is lost.")


def _cells(each: Remains, places: int) -> tuple[TableCell, ...]:
    share = MISSING if each.share.value is None else f"{fixed(100 * each.share.value, 0)} %"
    numbers = (estimate_cell(e, places, signed=True) for e in (each.learnt, each.left))
    return (*numbers, TableCell(share))


def of_going_back(going_back: GoingBack) -> Section:
    """Make a section with restored layers as a heat map, or points on a line as curves."""
    line = going_back.blends and all(_number(label) is not None for label in going_back.blends)
    plates, legend = _curves(going_back) if line else (_heat(going_back), ())
    first = "α: part of the later one" if line else "Put back"
    names = going_back.blends if line else [layer_label(label) for label in going_back.blends]
    return Section(
        f"{going_back.title}: {going_back.since} and {going_back.until}",
        _BACK.format(since=going_back.since, until=going_back.until),
        plates,
        [_returned(going_back, first, names, columns) for columns in _tables(going_back)],
        legend,
    )


_BACK = (
    "The model after {until} with weights of {since}: its gain in bits per byte over {until}, and as a share of the "
    "difference between the two (0 %: like {until}, 100 %: like {since}). For text known before, a gain undoes "
    "forgetting. For text learnt in between, a negative number is lost learning. Layers interact, so the gains of "
    "single layers do not add up to that of all."
)


def _tables(going_back: GoingBack) -> list[list[str]]:
    """Return the columns of two tables: means (or the only set) of each role, and single sets if there are several."""
    roles = list(going_back.roles.values())
    lead = [name for name, role in going_back.roles.items() if name.endswith(", mean") or roles.count(role) == 1]
    ordered = sorted(lead, key=lambda name: (BEFORE, GENERAL, LEARNT, COMING).index(going_back.roles[name]))
    rest = [name for name in going_back.roles if name not in lead]
    return [ordered, *([rest] if rest else [])]


def _title(going_back: GoingBack, name: str) -> str:
    return name if name.startswith(going_back.roles[name]) else f"{name} ({going_back.roles[name]})"


def _returned(going_back: GoingBack, first: str, names: Sequence[str], columns: Sequence[str]) -> Table:
    places = max(3, decimals(each.back.value for name in columns for each in going_back.found[name]))
    rows = [
        (blend, tuple(_returned_cell(going_back.found[name][place], places) for name in columns))
        for place, blend in enumerate(names)
    ]
    ends = [
        (
            f"{label}, bits per byte",
            tuple(TableCell(fixed(going_back.ends[name][end].value, places)) for name in columns),
        )
        for end, label in enumerate((going_back.since, going_back.until))
    ]
    header = (first, *(f"{_title(going_back, name)}, bits/byte back" for name in columns))
    caption = f"In per cent: of the way from {going_back.until} back to {going_back.since}. {INTERVALS}"
    return Table(f"{going_back.title}: {going_back.since} and {going_back.until}", header, (*rows, *ends), caption)


def _returned_cell(returned: Returned, places: int) -> TableCell:
    share = "" if returned.way.value is None else f" · {fixed(100 * returned.way.value, 0)} %"
    return TableCell(
        fixed(returned.back.value, places, signed=True), f"{interval(returned.back, places, signed=True)}{share}"
    )


def _heat(going_back: GoingBack) -> list[Plate]:
    columns = list(going_back.found)

    def shade(each: Returned) -> Shade:
        exact = f"{fixed(each.back.value, 4, signed=True)} {interval(each.back, 4, signed=True)} bits per byte"
        value = None if each.back.value is None else -each.back.value
        return Shade(value, fixed(each.back.value, 3, signed=True), exact)

    rows = [
        (layer_label(blend), [shade(going_back.found[name][place]) for name in columns])
        for place, blend in enumerate(going_back.blends)
    ]
    return draw(
        "heat", Heat("Bits per byte that return", "put back", [_title(going_back, name) for name in columns], rows)
    )


def _curves(going_back: GoingBack) -> tuple[list[Plate], tuple[tuple[str, str, int], ...]]:
    names = _tables(going_back)[0]
    x = [float(label) for label in going_back.blends]
    lines = [Curve.of(rank, x, [each.back for each in going_back.found[name]], name) for rank, name in enumerate(names)]
    caption = (
        f"α = 0 is the model after {going_back.since}, 1 the one after {going_back.until}: bits per byte better than "
        "at 1. Bands: 95 % intervals."
    )
    curves = Curves("bits per byte better", lines, caption, zero=True, x_label="α")
    return draw("curves", curves), tuple(legend_of(names))


def _number(label: str) -> float | None:
    try:
        return float(label)
    except ValueError:
        return None
