"""Draw a table of numbers as a heat map: with the numbers if it is small, as one small image if it is large.

The image is a PNG inside an SVG, with a pixel for each cell: with a hundred domains there are ten thousand cells,
megabytes as a coloured table, a few kilobytes as an image.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from everlearn.comparison import formatting as fmt
from everlearn.report.drawing import INK, SIZE, px, width_of
from everlearn.report.figures.registry import Plate, figure

READABLE = 400
"""Maximum number of cells of a table with numbers; a larger table becomes an image, which is far smaller."""
_WIDTH = 720
"""Approximate width of an image on a large screen, which limits the column names below it."""
LEVELS = 7
"""Shades of losses, and of gains. With "no change" and "unknown" there are 16 colours, so 4 bits per pixel."""
GAIN, LOSS, UNKNOWN = (0, 134, 145), (201, 106, 16), (128, 128, 128)
"""Colours between the page's colours for light and dark mode; the strength of a shade is its opacity."""


@dataclass(frozen=True)
class Shade:
    """One cell: how much worse it is than its reference (below 0: better; None: unknown), its text and tooltip."""

    change: float | None
    text: str = ""
    explanation: str = ""
    own: bool = False
    """Whether to outline it, for a domain's own stage."""


@dataclass(frozen=True)
class Heat:
    """A table of shades.

    Attributes:
        title: title of the table.
        corner: heading of the row names.
        columns: names of the columns.
        rows: names and cells of the rows.
        scale: the change with the strongest colour. Default: the largest one, or in an image the 95th percentile.
        note: where a reader finds the numbers, for tables that are too large to show them.
        column_rules: columns before which a line is drawn, since a group begins there.
        row_rules: the same for rows.
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
        """Return whether the table shows its numbers."""
        return len(self.rows) * len(self.columns) <= READABLE


@figure("heat", data=Heat)
def heat(plot: Heat) -> Iterator[Plate]:
    """Draw the table with its numbers, or an image of it."""
    if not plot.rows or not plot.columns:
        return
    known = sorted(abs(shade.change) for _, row in plot.rows for shade in row if shade.change is not None)
    # In an image one extreme column must not make all others pale, so the strongest colour is reached by 5 % of cells.
    strongest = len(known) - 1 if plot.readable else int(0.95 * (len(known) - 1))
    scale = plot.scale or (known[strongest] if known else 0.0)
    yield _table(plot, scale) if plot.readable else _picture(plot, scale)


def _table(plot: Heat, scale: float) -> Plate:
    title = escape(plot.title)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in (plot.corner, *plot.columns))
    lines = [
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">\n<table class="heat">',
        f"<caption>{title}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>",
    ]
    for i, (name, row) in enumerate(plot.rows):
        cells = "".join(_cell(shade, scale, j in plot.column_rules, i in plot.row_rules) for j, shade in enumerate(row))
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    return Plate(Markup("\n".join([*lines, "</tbody>\n</table>\n</div>"])), "")


def _cell(shade: Shade, scale: float, left: bool, above: bool) -> str:
    step = level(shade.change, scale)
    side = "" if step < 2 else f"loss s{step - 1}" if step <= 1 + LEVELS else f"gain s{step - 1 - LEVELS}"
    marks = [side, *(name for name, on in (("own", shade.own), ("left", left), ("above", above)) if on)]
    names = " ".join(filter(None, marks))
    classed = f' class="{names}"' if names else ""
    tooltip = f' title="{escape(shade.explanation)}"' if shade.explanation else ""
    return f"<td{classed}{tooltip}>{escape(shade.text)}</td>"


def _picture(plot: Heat, scale: float) -> Plate:
    """Draw the cells as one small image that is as wide as the screen, with names of constant size."""
    rows, columns = len(plot.rows), len(plot.columns)
    high = min(max(600 / rows, 2.0), 16.0)
    height = high * rows
    image = base64.b64encode(png([[level(shade.change, scale) for shade in row] for _, row in plot.rows])).decode()
    own = "".join(
        f"M{j},{i}h1v1h-1z" for i, (_, row) in enumerate(plot.rows) for j, shade in enumerate(row) if shade.own
    )
    rules = "".join([f"M{j},0V{rows}" for j in plot.column_rules] + [f"M0,{i}H{columns}" for i in plot.row_rules])
    names = [fmt.shorten(name, 16) for name, _ in plot.rows]
    left = max(map(width_of, names)) + 10
    texts = [
        f'<text x="-6" y="{px(high * (i + 0.5) + 0.35 * SIZE)}" style="text-anchor:end">{escape(names[i])}</text>'
        for i in _sparse(rows, height)
    ]
    for place, j in enumerate(_sparse(columns, _WIDTH - left)):
        # A phone has room for every third column name.
        screen = ' class="wide"' if place % 3 else ""
        texts.append(
            f'<svg x="{100 * (j + 0.5) / columns:.2f}%" y="{px(height + 14)}" overflow="visible"{screen}>'
            '<text transform="rotate(-40)" style="text-anchor:end">'
            f"{escape(fmt.shorten(plot.columns[j], 14))}</text></svg>"
        )
    strongest = f"The strongest colour is a change of {fmt.fixed(scale, 3)} or more."
    caption = f"{plot.title}: {rows} × {columns}. {strongest} {plot.note}".strip()
    size = f"margin-left:{px(left)}px;width:calc(100% - {px(left)}px);max-width:{24 * columns}px"
    parts = [
        f'<svg role="img" aria-label="{escape(caption)}" class="picture" height="{px(height + 90)}" style="{size}">',
        f'<svg width="100%" height="{px(height)}" viewBox="0 0 {columns} {rows}" preserveAspectRatio="none">',
        f'<image href="data:image/png;base64,{image}" width="{columns}" height="{rows}" preserveAspectRatio="none" '
        'style="image-rendering:pixelated"/>',
        _outline(own if high >= 5 else "", 0.7),
        _outline(rules, 0.8),
        "</svg>",
        *texts,
        "</svg>",
    ]
    return Plate(Markup("\n".join(filter(None, parts))), caption)


def _outline(data: str, width: float) -> str:
    """Return lines whose width does not change when the image is stretched."""
    style = f"fill:none;stroke:{INK};stroke-width:{width}px;vector-effect:non-scaling-stroke"
    return f'<path d="{data}" style="{style}"/>' if data else ""


def _sparse(count: int, length: float) -> list[int]:
    """Return which of `count` names fit in `length` pixels: every n-th."""
    every = max(1, -(-int(count * 1.25 * SIZE) // max(int(length), 1)))
    return list(range(0, count, every))


def level(change: float | None, scale: float) -> int:
    """Return the palette index of a change: 0 unknown, 1 no change, then the shades of loss (above 0), then of gain."""
    if change is None:
        return 0
    steps = min(LEVELS, round(LEVELS * abs(change) / scale)) if scale else 0
    return 1 if not steps else 1 + steps + (LEVELS if change < 0 else 0)


def png(levels: Sequence[Sequence[int]]) -> bytes:
    """Encode rows of palette indices (:func:`level`) as a PNG with four bits per pixel (ISO/IEC 15948:2003)."""
    height, width = len(levels), len(levels[0])
    shades = [round(255 * 0.8 * step / LEVELS) for step in range(1, LEVELS + 1)]
    colours = [UNKNOWN, UNKNOWN, *[LOSS] * LEVELS, *[GAIN] * LEVELS]
    alpha = [60, 0, *shades, *shades]
    rows = []
    for row in levels:
        even = [*row, 0] if width % 2 else row
        rows.append(b"\0" + bytes(a << 4 | b for a, b in zip(even[::2], even[1::2], strict=True)))
    return b"".join((
        b"\x89PNG\r\n\x1a\n",
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0)),
        _chunk(b"PLTE", bytes(part for colour in colours for part in colour)),
        _chunk(b"tRNS", bytes(alpha)),
        _chunk(b"IDAT", zlib.compress(b"".join(rows), 9)),
        _chunk(b"IEND", b""),
    ))  # fmt: skip


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
