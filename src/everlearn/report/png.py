"""Encode a large table of numbers as a small image: a PNG inside an SVG, with a pixel for each cell.

With a hundred domains there are ten thousand cells: megabytes as a coloured table, a few kilobytes as an image.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

LEVELS = 7
"""Shades of losses, and of gains. With "no change" and "unknown" there are 16 colours, so 4 bits per pixel."""
GAIN, LOSS, UNKNOWN = (0, 134, 145), (201, 106, 16), (128, 128, 128)
"""Colours between the page's colours for light and dark mode; the strength of a shade is its opacity."""


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


def data_url(levels: Sequence[Sequence[int]]) -> str:
    """Return the image as a data URL."""
    return "data:image/png;base64," + base64.b64encode(png(levels)).decode("ascii")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
