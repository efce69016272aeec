"""Show what returns with an earlier stage's weights: restored layers, or points on the line between two stages."""

from __future__ import annotations

from collections.abc import Sequence

from everlearn.comparison.formatting import decimals, fixed, interval
from everlearn.diagnostics.checkpoint_distance import INTERVALS
from everlearn.diagnostics.interpolation import BEFORE, COMING, GENERAL, LEARNT, GoingBack, Returned
from everlearn.report.drawing import legend_of
from everlearn.report.figures import Plate, draw
from everlearn.report.figures.curves import Curve, Curves
from everlearn.report.figures.heat import Heat, Shade
from everlearn.report.figures.weight_movement import said
from everlearn.report.sections import Section
from everlearn.report.tables import Table, TableCell


def of_going_back(found: GoingBack) -> Section:
    """Make a section with restored layers as a heat map, or points on a line as curves."""
    line = found.blends and all(_number(label) is not None for label in found.blends)
    plates, legend = _curves(found) if line else (_heat(found), ())
    first = "α: part of the later one" if line else "Put back"
    names = found.blends if line else [said(label) for label in found.blends]
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
        (blend, tuple(_cell(found.found[name][place], places) for name in columns)) for place, blend in enumerate(names)
    ]
    ends = [
        (f"{label}, bits per byte", tuple(TableCell(fixed(found.ends[name][end].value, places)) for name in columns))
        for end, label in enumerate((found.since, found.until))
    ]
    header = (first, *(f"{_title(found, name)}, bits/byte back" for name in columns))
    caption = f"In per cent: of the way from {found.until} back to {found.since}. {INTERVALS}"
    return Table(f"{found.title}: {found.since} and {found.until}", header, (*rows, *ends), caption)


def _cell(found: Returned, places: int) -> TableCell:
    way = "" if found.way.value is None else f" · {fixed(100 * found.way.value, 0)} %"
    return TableCell(fixed(found.back.value, places, signed=True), f"{interval(found.back, places, signed=True)}{way}")


def _heat(found: GoingBack) -> list[Plate]:
    columns = list(found.found)

    def shade(each: Returned) -> Shade:
        exact = f"{fixed(each.back.value, 4, signed=True)} {interval(each.back, 4, signed=True)} bits per byte"
        value = None if each.back.value is None else -each.back.value
        return Shade(value, fixed(each.back.value, 3, signed=True), exact)

    rows = [
        (said(blend), [shade(found.found[name][place]) for name in columns]) for place, blend in enumerate(found.blends)
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
