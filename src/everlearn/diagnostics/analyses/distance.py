"""Distances between the stages of a run, in weights by layer and in predictions."""

from __future__ import annotations

from collections.abc import Sequence

from everlearn.comparison.formatting import MISSING, fixed
from everlearn.diagnostics.checkpoint_distance import INTERVALS, Distance, distances, pairs_of
from everlearn.diagnostics.registry import Blocks, Findings, Since, Until, analysis
from everlearn.evaluation.estimate import Estimate
from everlearn.learner import ContinualLearner
from everlearn.model.weight_movement import Moved, together, total_movement
from everlearn.report.figures.weight_movement import layer_label
from everlearn.report.sections import Section
from everlearn.report.tables import Table, TableCell, estimate_cell


@analysis("distance")
def distance(learner: ContinualLearner, blocks: Blocks = 64, since: Since = None, until: Until = None) -> Findings:
    """Show how far the stages are from each other: in weights by layer, and in predictions on held-out text.

    Each stage is compared with the base model and with the last stage, or `--from` with `--to`.
    """
    stage_distances = distances(learner, pairs_of(learner, since, until), blocks)
    # The page has the layers of the last pair, the JSON those of all.
    section = Section(
        "How far the stages are from each other", _APART, [], [_pairs(stage_distances), _by_layer(stage_distances[-1])]
    )
    return Findings([section], {"distances": [each.to_json() for each in stage_distances]})


_APART = (
    "θ* is the earlier checkpoint, θ the later one. KL(p* ‖ p) is the mean over the labels of a fixed sample of "
    "held-out text, in nats: how much the predictions have changed, which tells more about forgetting than any "
    "distance between weights."
)


def _pairs(stage_distances: Sequence[Distance]) -> Table:
    sets = list(dict.fromkeys(name for each in stage_distances for name in each.drift))
    rows = []
    for each in stage_distances:
        moved = None if each.parts is None else total_movement(each.parts)
        kl = [each.drift.get(name, Estimate()) for name in sets]
        cells = [*_of_weights(moved), *(estimate_cell(x, 4) for x in kl)]
        rows.append((f"{each.since} → {each.until}", tuple(cells)))
    header = ("From → to", *_WEIGHTS, *(f"KL on {name} (nats)" for name in sets))
    return Table("Distances", header, tuple(rows), "A model that grew has no weights to compare: –. " + INTERVALS)


_WEIGHTS = ("‖Δ‖", "‖Δ‖/‖θ*‖", "cos(θ, θ*)", "max |Δ|")


def _of_weights(moved: Moved | None) -> list[TableCell]:
    if moved is None:
        return [TableCell(MISSING)] * len(_WEIGHTS)
    relative = None if moved.relative is None else 100 * moved.relative
    return [
        TableCell(fixed(moved.change, 4)),
        TableCell(MISSING if relative is None else f"{fixed(relative)} %"),
        TableCell(fixed(moved.cosine, 6)),
        TableCell("0" if not moved.largest else f"{moved.largest:.2e}"),
    ]


def _by_layer(stage_distance: Distance) -> Table:
    layers = {} if stage_distance.parts is None else together(stage_distance.parts)
    rows = tuple(
        (layer_label(name), (*_of_weights(moved), TableCell(fixed(stage_distance.layers.get(name), 2))))
        for name, moved in layers.items()
    )
    caption = "Stable rank: ‖Δ‖²_F/‖Δ‖²₂, the mean over the layer's matrices that moved."
    return Table(
        f"{stage_distance.since} → {stage_distance.until}, by layer", ("Layer", *_WEIGHTS, "Stable rank"), rows, caption
    )
