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
from everlearn.report.figures.weight_movement import said as layer_name
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


def joined_data(found: Iterable[Findings]) -> dict[str, Any]:
    """Return the data of several analyses as one mapping; lists of one name are joined."""
    data: dict[str, Any] = {}
    for each in found:
        for key, value in each.data.items():
            data[key] = [*data[key], *value] if isinstance(data.get(key), list) else value
    return data


def _parts(sections: Sequence[Section]) -> Iterator[RenderableType]:
    for section in sections:
        for table in section.tables:
            yield from (terminal_table(table), Text(""))
        yield from _parts(section.parts)


def of_repair(found: Repair) -> Section:
    """Make a section with the curve of the search, the loss at the step, and what each domain keeps of its gain."""
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


def of_going_back(found: GoingBack) -> Section:
    """Make a section with restored layers as a heat map, or points on a line as curves."""
    line = found.blends and all(_number(label) is not None for label in found.blends)
    plates, legend = _curves(found) if line else (_heat(found), ())
    first = "α: part of the later one" if line else "Put back"
    names = found.blends if line else [layer_name(label) for label in found.blends]
    return Section(
        f"{found.title}: {found.since} and {found.until}",
        _BACK.format(since=found.since, until=found.until),
        plates,
        [_returned(found, first, names, columns) for columns in _tables(found)],
        legend,
    )


_BACK = (
    "The model after {until} with weights of {since}: its gain in bits per byte over {until}, and as a share of the "
    "difference between the two (0 %: like {until}, 100 %: like {since}). For text known before, a gain undoes "
    "forgetting. For text learnt in between, a negative number is lost learning. Layers interact, so the gains of "
    "single layers do not add up to that of all."
)


def _tables(found: GoingBack) -> list[list[str]]:
    """Return the columns of two tables: means (or the only set) of each role, and single sets if there are several."""
    roles = list(found.roles.values())
    lead = [name for name, role in found.roles.items() if name.endswith(", mean") or roles.count(role) == 1]
    ordered = sorted(lead, key=lambda name: (BEFORE, GENERAL, LEARNT, COMING).index(found.roles[name]))
    rest = [name for name in found.roles if name not in lead]
    return [ordered, *([rest] if rest else [])]


def _title(found: GoingBack, name: str) -> str:
    return name if name.startswith(found.roles[name]) else f"{name} ({found.roles[name]})"


def _returned(found: GoingBack, first: str, names: Sequence[str], columns: Sequence[str]) -> Table:
    places = max(3, decimals(each.back.value for name in columns for each in found.found[name]))
    rows = [
        (blend, tuple(_way_cell(found.found[name][place], places) for name in columns))
        for place, blend in enumerate(names)
    ]
    ends = [
        (f"{label}, bits per byte", tuple(TableCell(fixed(found.ends[name][end].value, places)) for name in columns))
        for end, label in enumerate((found.since, found.until))
    ]
    header = (first, *(f"{_title(found, name)}, bits/byte back" for name in columns))
    caption = f"In per cent: of the way from {found.until} back to {found.since}. {INTERVALS}"
    return Table(f"{found.title}: {found.since} and {found.until}", header, (*rows, *ends), caption)


def _way_cell(found: Returned, places: int) -> TableCell:
    way = "" if found.way.value is None else f" · {fixed(100 * found.way.value, 0)} %"
    return TableCell(fixed(found.back.value, places, signed=True), f"{interval(found.back, places, signed=True)}{way}")


def _heat(found: GoingBack) -> list[Plate]:
    columns = list(found.found)

    def shade(each: Returned) -> Shade:
        exact = f"{fixed(each.back.value, 4, signed=True)} {interval(each.back, 4, signed=True)} bits per byte"
        value = None if each.back.value is None else -each.back.value
        return Shade(value, fixed(each.back.value, 3, signed=True), exact)

    rows = [
        (layer_name(blend), [shade(found.found[name][place]) for name in columns])
        for place, blend in enumerate(found.blends)
    ]
    return draw("heat", Heat("Bits per byte that return", "put back", [_title(found, name) for name in columns], rows))


def _curves(found: GoingBack) -> tuple[list[Plate], tuple[tuple[str, str, int], ...]]:
    names = _tables(found)[0]
    x = [float(label) for label in found.blends]
    lines = [Curve.of(rank, x, [each.back for each in found.found[name]], name) for rank, name in enumerate(names)]
    caption = (
        f"α = 0 is the model after {found.since}, 1 the one after {found.until}: bits per byte better than at 1. "
        "Bands: 95 % intervals."
    )
    curves = Curves("bits per byte better", lines, caption, zero=True, x_label="α")
    return draw("curves", curves), tuple(legend_of(names))


def _number(label: str) -> float | None:
    try:
        return float(label)
    except ValueError:
        return None
