"""Show which layers moved: the relative change of each layer, in every stage and since the base model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison
from everlearn.model.weight_movement import Moved, Movement, together
from everlearn.report.drawing import SERIES
from everlearn.report.figures.heat import Heat, Shade, heat
from everlearn.report.figures.registry import Plate, figure

_ALL = 0.9995
"""If at least this share of the weights changed, the share is not written."""
END = "at the end, against the base"


@dataclass(frozen=True)
class Change:
    """The change of one layer, the mean over seeds.

    Attributes:
        relative: ‖ΔW‖/‖W‖.
        share: share of its weights that changed.
    """

    relative: float
    share: float


Column = Mapping[str, Change]
"""Layer → change; empty if the model grew, so that nothing can be compared."""


@figure("weight movement", data=Comparison, section="layers")
def moved(comparison: Comparison) -> Iterator[Plate]:
    """Show the change of each layer at the end against the base model for each run; for one run, its stages."""
    pools = [pool for pool in comparison.ranking if _stages(comparison, pool)]
    if not pools:
        return
    if len(comparison.pools) == 1:
        yield from _by_stage(comparison, pools[0])
    else:
        columns = [(comparison.labels[pool], _end(comparison, pool)) for pool in pools]
        yield from _table("Against the base model at the end, ‖ΔW‖/‖W‖", columns)
    for pool in pools:
        yield from _in_words(comparison, pool)


@figure("weight movement by stage", data=Comparison, section="layers by stage")
def moved_by_stage(comparison: Comparison) -> Iterator[Plate]:
    """Show the stages of each of several runs, then the parts of the best run's layers."""
    pools = [pool for pool in comparison.ranking[:SERIES] if _stages(comparison, pool)]
    for pool in pools if len(comparison.pools) > 1 else ():
        yield from _by_stage(comparison, pool)
    for pool in pools[:1]:
        parts = [
            _cells([m.since_base for m in movements], by_layer=False) for movements in _stages(comparison, pool)[-1:]
        ]
        if parts and parts[0]:
            title = f"{comparison.labels[pool]}: the parts of each layer {END}, ‖ΔW‖/‖W‖"
            names = list(dict.fromkeys(name.split(" · ")[1] for name in parts[0]))
            layers = list(dict.fromkeys(name.split(" · ")[0] for name in parts[0]))
            columns = [
                (name, {layer: parts[0][key] for layer in layers if (key := f"{layer} · {name}") in parts[0]})
                for name in names
                if name not in layers
            ]
            yield from _table(title, [(name, cells) for name, cells in columns if cells])


def _by_stage(comparison: Comparison, pool: int) -> Iterator[Plate]:
    stages, domains = _stages(comparison, pool), comparison.pools[pool].runs[0].domains
    columns = [(domains[i], _cells([m.since_before for m in movements])) for i, movements in enumerate(stages)]
    if len(columns) > 1:
        columns.append((END, _end(comparison, pool)))
    yield from _table(f"{comparison.labels[pool]}: while learning each domain, ‖ΔW‖/‖W‖", columns)


def _table(title: str, columns: Sequence[tuple[str, Column]]) -> Iterator[Plate]:
    layers = list(dict.fromkeys(layer for _, cells in columns for layer in cells))
    rows = [(layer_label(layer), [_shade(cells.get(layer), bool(cells)) for _, cells in columns]) for layer in layers]
    if rows:
        yield from heat(Heat(title, "layer", [name for name, _ in columns], rows))


def _shade(cell: Change | None, comparable: bool) -> Shade:
    if cell is None:
        return Shade(None, fmt.MISSING, "" if comparable else "the model grew: there is no such layer to compare with")
    # The page's colours stand for better and worse; movement is neither and gets the calmer one.
    share = "" if cell.share >= _ALL else f" ({fmt.fixed(100 * cell.share, 0)} % of it)"
    exact = f"{fmt.fixed(100 * cell.share, 1)} % of its weights changed"
    return Shade(-cell.relative, f"{fmt.fixed(100 * cell.relative, 1)} %{share}", exact)


def layer_label(layer: str) -> str:
    """Return the name of a layer counted from 1: `layers.0` is layer 1."""
    stack, dot, number = layer.rpartition(".")
    if not dot or not number.isdigit():
        return {"other": "last norm"}.get(layer, layer)
    return f"{'layer' if stack == 'layers' else stack} {int(number) + 1}"


def _in_words(comparison: Comparison, pool: int) -> Iterator[Plate]:
    """Say what colours cannot show: that nothing moved, or that there is nothing to compare."""
    label, stages = comparison.labels[pool], _stages(comparison, pool)
    grew = any(m.since_before is None for movements in stages for m in movements)
    parts = [part for movements in stages for m in movements for part in m.since_before or ()]
    sentences = []
    if parts and not any(part.moved for part in parts):
        sentences.append(
            f"{label}: the base model did not move. What was learnt is in the parts that the method adds, in each "
            "stage's memory/."
        )
    if grew:
        sentences.append(f"{label}: the model grew, so its layers are not those of before and are not compared.")
    for sentence in sentences:
        yield Plate(Markup(f'<p class="aside">{escape(sentence)}</p>'), "")


def _stages(comparison: Comparison, pool: int) -> list[list[Movement]]:
    """Return the movements of each of a pool's runs stage by stage, up to the first missing one."""
    each = [run.movements for run in comparison.pools[pool].runs]
    stages: list[list[Movement]] = []
    while all(len(stages) + 1 in known for known in each):
        stages.append([known[len(stages) + 1] for known in each])
    return stages


def _end(comparison: Comparison, pool: int) -> Column:
    return _cells([movement.since_base for movement in _stages(comparison, pool)[-1]])


def _cells(runs: Sequence[Sequence[Moved] | None], by_layer: bool = True) -> Column:
    """Return the mean over runs of complete layers, or of their parts (`layer · part`)."""
    each = []
    for parts in runs:
        if parts is None:
            return {}
        each.append(together(parts) if by_layer else {f"{part.layer} · {part.part}": part for part in parts})
    cells = {}
    for name in each[0]:
        own_parts = [own[name] for own in each if name in own]
        relative = [part.relative for part in own_parts if part.relative is not None]
        if len(relative) == len(each):
            cells[name] = Change(sum(relative) / len(each), sum(part.share for part in own_parts) / len(each))
    return cells
