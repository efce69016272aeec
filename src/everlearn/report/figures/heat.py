"""A table of numbers as colours: with the numbers while they can be read, as one small picture when there are many."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from everlearn.comparison import formatting as fmt
from everlearn.report.drawing import INK, SIZE, px, width_of
from everlearn.report.figures.registry import Plate, figure
from everlearn.report.png import LEVELS, data_url, level

READABLE = 400
"""Cells that are written out; a bigger table is a picture, whose size is some hundredths of that."""
_WIDTH = 720
"""About how wide a picture is on a large screen: how many names of columns stand under it."""


@dataclass(frozen=True)
class Shade:
    """One cell: how much worse than what it is compared with (below 0: better; None: unknown), and what it says."""

    change: float | None
    text: str = ""
    explanation: str = ""
    own: bool = False
    """Outlined: a domain's own stage."""


@dataclass(frozen=True)
class Heat:
    """A table of shades.

    Attributes:
        title: of the table.
        corner: what the rows are.
        columns: their names.
        rows: names and cells.
        scale: the change with the strongest colour; when None the largest one, in a picture the 95th percentile.
        note: where the numbers are when there are too many to be written out.
        column_rules: places of columns before which a line stands, where groups of them begin.
        row_rules: the same of rows.
    """

    title: str
    corner: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Shade]]]
    scale: float | None = None
    note: str = ""
    column_rules: Collection[int] = ()
    row_rules: Collection[int] = ()

    @property
    def readable(self) -> bool:
        """Whether the numbers are written out."""
        return len(self.rows) * len(self.columns) <= READABLE


@figure("heat", title="A table as colours", data=Heat)
def heat(found: Heat) -> Iterator[Plate]:
    """The table with its numbers, or a picture of it."""
    if not found.rows or not found.columns:
        return
    known = sorted(abs(shade.change) for _, row in found.rows for shade in row if shade.change is not None)
    # In a picture one wild column must not make all others pale: the strongest colour is what 5 % of the cells reach.
    strongest = len(known) - 1 if found.readable else int(0.95 * (len(known) - 1))
    scale = found.scale or (known[strongest] if known else 0.0)
    yield _table(found, scale) if found.readable else _picture(found, scale)


def _table(found: Heat, scale: float) -> Plate:
    title = escape(found.title)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in (found.corner, *found.columns))
    lines = [
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">\n<table class="heat">',
        f"<caption>{title}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>",
    ]
    for i, (name, row) in enumerate(found.rows):
        cells = "".join(
            _cell(shade, scale, j in found.column_rules, i in found.row_rules) for j, shade in enumerate(row)
        )
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    return Plate(Markup("\n".join([*lines, "</tbody>\n</table>\n</div>"])), "")


def _cell(shade: Shade, scale: float, left: bool, above: bool) -> str:
    step = level(shade.change, scale)
    side = "" if step < 2 else f"loss s{step - 1}" if step <= 1 + LEVELS else f"gain s{step - 1 - LEVELS}"
    marks = [side, *(name for name, on in (("own", shade.own), ("left", left), ("above", above)) if on)]
    names = " ".join(filter(None, marks))
    classed = f' class="{names}"' if names else ""
    told = f' title="{escape(shade.explanation)}"' if shade.explanation else ""
    return f"<td{classed}{told}>{escape(shade.text)}</td>"


def _picture(found: Heat, scale: float) -> Plate:
    """Paint the cells into one small image, which is as wide as the screen, with names whose size stays the same."""
    rows, columns = len(found.rows), len(found.columns)
    high = min(max(600 / rows, 2.0), 16.0)
    height = high * rows
    url = data_url([[level(shade.change, scale) for shade in row] for _, row in found.rows])
    own = "".join(
        f"M{j},{i}h1v1h-1z" for i, (_, row) in enumerate(found.rows) for j, shade in enumerate(row) if shade.own
    )
    rules = "".join([f"M{j},0V{rows}" for j in found.column_rules] + [f"M0,{i}H{columns}" for i in found.row_rules])
    names = [fmt.shorten(name, 16) for name, _ in found.rows]
    left = max(map(width_of, names)) + 10
    texts = [
        f'<text x="-6" y="{px(high * (i + 0.5) + 0.35 * SIZE)}" style="text-anchor:end">{escape(names[i])}</text>'
        for i in _sparse(rows, height)
    ]
    for place, j in enumerate(_sparse(columns, _WIDTH - left)):
        # Of the columns' names a phone has room for every third.
        screen = ' class="wide"' if place % 3 else ""
        texts.append(
            f'<svg x="{100 * (j + 0.5) / columns:.2f}%" y="{px(height + 14)}" overflow="visible"{screen}>'
            '<text transform="rotate(-40)" style="text-anchor:end">'
            f"{escape(fmt.shorten(found.columns[j], 14))}</text></svg>"
        )
    strongest = f"The strongest colour is a change of {fmt.fixed(scale, 3)} or more."
    caption = f"{found.title}: {rows} × {columns}. {strongest} {found.note}".strip()
    size = f"margin-left:{px(left)}px;width:calc(100% - {px(left)}px);max-width:{24 * columns}px"
    parts = [
        f'<svg role="img" aria-label="{escape(caption)}" class="picture" height="{px(height + 90)}" style="{size}">',
        f'<svg width="100%" height="{px(height)}" viewBox="0 0 {columns} {rows}" preserveAspectRatio="none">',
        f'<image href="{url}" width="{columns}" height="{rows}" preserveAspectRatio="none" '
        'style="image-rendering:pixelated"/>',
        _outline(own if high >= 5 else "", 0.7),
        _outline(rules, 0.8),
        "</svg>",
        *texts,
        "</svg>",
    ]
    return Plate(Markup("\n".join(filter(None, parts))), caption)


def _outline(data: str, width: float) -> str:
    """Return lines that are as thin in a stretched picture as they are elsewhere."""
    style = f"fill:none;stroke:{INK};stroke-width:{width}px;vector-effect:non-scaling-stroke"
    return f'<path d="{data}" style="{style}"/>' if data else ""


def _sparse(count: int, length: float) -> list[int]:
    """Which of `count` names fit in `length` pixels: every n-th."""
    every = max(1, -(-int(count * 1.25 * SIZE) // max(int(length), 1)))
    return list(range(0, count, every))
