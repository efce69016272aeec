"""Draw what each domain gained when it was learnt, and what is left at the end: the main figure of a single run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from everlearn.comparison import formatting as fmt
from everlearn.report.drawing import FAINT, SIZE, WIDTH, Drawing, Scale, px, spread, width_of
from everlearn.report.figures.registry import Plate, figure, plate

_WIDE = 560
_NAMED = 40
"""Maximum number of domains with a row and a name; more are drawn side by side along the stream."""


@dataclass(frozen=True)
class DomainBalance:
    """One domain against the base model: right after its stage, and at the end of the stream."""

    name: str
    learnt: float | None
    left: float | None


@dataclass(frozen=True)
class Balance:
    """The domains of a run in the order in which they were learnt."""

    domains: tuple[DomainBalance, ...]
    unit: str


@figure("balance", data=Balance, section="top")
def balance(changes: Balance) -> Iterator[Plate]:
    """Draw an arrow for each domain, from its gain right after its stage to what is left at the end."""
    domains = [domain for domain in changes.domains if domain.learnt is not None]
    if not domains:
        return
    low, high = spread(value for domain in domains for value in (domain.learnt, domain.left))
    draw = _rows if len(domains) <= _NAMED else _stream
    wide, narrow = (draw(domains, low, high, changes.unit, width) for width in (_WIDE, WIDTH))
    caption = (
        "Each domain against the base model, in the order in which they were learnt: what it had gained right after "
        "its own stage (ring), and what is left of it at the end of the stream (dot)."
    )
    numbers = "; ".join(f"{d.name} {fmt.fixed(d.learnt, 3, True)}, then {fmt.fixed(d.left, 3, True)}" for d in domains)
    yield plate(wide, caption, f"{numbers}.", narrow)


def _rows(domains: list[DomainBalance], low: float, high: float, unit: str, width: float) -> Drawing:
    step = 24 if len(domains) <= 15 else 17
    names = [fmt.shorten(domain.name, 26 if width > WIDTH else 16) for domain in domains]
    left = max(map(width_of, names)) + 14
    top, bottom = 30, 36 + step * len(domains)
    drawing = Drawing(width, bottom + 3.2 * SIZE)
    x = Scale(low, high, left, width - 20)
    _wash(drawing, left, top, x(0) - left, bottom - top)
    drawing.x_axis(x, bottom, f"better than the base model{f' ({unit})' if unit else ''}", grid=top)
    drawing.text(width - 20, 18, "better →", "end", bold=True)
    _legend(drawing, left if width > WIDTH else 2)
    for row, (domain, name) in enumerate(zip(domains, names, strict=True)):
        y = top + step * (row + 0.75)
        drawing.text(left - 10, y + 0.35 * SIZE, name, "end")
        ends = [(x(value), y) for value in (domain.learnt, domain.left) if value is not None]
        _arrow(drawing, ends, _tooltips(domain, unit))
    return drawing


def _stream(domains: list[DomainBalance], low: float, high: float, unit: str, width: float) -> Drawing:
    left, top, bottom = 64, 34, 330
    drawing = Drawing(width, bottom + 3.2 * SIZE)
    y, x = Scale(low, high, bottom, top), Scale(0.5, len(domains) + 0.5, left, width - 12)
    _wash(drawing, left, y(0), width - 12 - left, bottom - y(0))
    drawing.y_axis(y, left, f"better than the base model{f' ({unit})' if unit else ''}", grid=width - 12)
    drawing.x_axis(x, bottom, "domain, by its place in the stream")
    drawing.text(width - 12, 18, "better ↑", "end", bold=True)
    _legend(drawing, width - 290)
    for place, domain in enumerate(domains, 1):
        ends = [(x(place), y(value)) for value in (domain.learnt, domain.left) if value is not None]
        _arrow(drawing, ends, _tooltips(domain, unit), 0.5)
    return drawing


def _legend(drawing: Drawing, x: float) -> None:
    drawing.add(f'<circle cx="{x + 5:.1f}" cy="14" r="4.5" class="ring"/>')
    drawing.text(x + 15, 18, "just learnt")
    drawing.add(f'<circle cx="{x + 105:.1f}" cy="14" r="4.5" class="dot"/>')
    drawing.text(x + 115, 18, "at the end")


def _wash(drawing: Drawing, x: float, y: float, width: float, height: float) -> None:
    """Shade the area in which a domain is worse than in the base model."""
    if width > 0 and height > 0:
        drawing.path(f"M{x:.1f},{y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z", fill="rgb(var(--loss) / 0.1)")
        if width > 110 and height > 24:
            drawing.text(x + 8, y + height - 8, "worse than the base model", fill=FAINT)


def _tooltips(domain: DomainBalance, unit: str) -> tuple[str, str]:
    """Return the tooltips of a domain's two ends."""
    moments = ("just learnt", domain.learnt), ("at the end", domain.left)
    first, last = (f"{domain.name}, {when}: {fmt.fixed(value, 4, True)} {unit}".strip() for when, value in moments)
    return first, last


def _arrow(drawing: Drawing, ends: list[tuple[float, float]], tooltips: tuple[str, str], size: float = 1.0) -> None:
    """Draw a line from just learnt to the end, in the colour of a loss or of a gain."""
    (x1, y1), (x2, y2) = ends[0], ends[-1]
    lost = x2 < x1 or y2 > y1
    drawing.line(x1, y1, x2, y2, f"rgb(var(--{'loss' if lost else 'gain'}))", 3 * size)
    for (x, y), title, kind in zip(ends, tooltips, ("ring", "dot"), strict=False):
        place = f'cx="{px(x)}" cy="{px(y)}" r="{4.5 * size:g}"'
        drawing.add(f'<circle {place} class="{kind}"><title>{escape(title)}</title></circle>')
