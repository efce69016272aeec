"""Find where a run forgets: put weights of an earlier checkpoint into a later one, and score held-out text again.

A blend takes each tensor as θ = θ_old + α (θ_new − θ_old). *Restoring a layer* uses α = 0 for that layer and 1
elsewhere; *merging back* (WiSE-FT, arXiv 2109.01903) uses one α for all. For a held-out set with loss L,

    back = L(θ_new) − L(θ)                                   improvement over θ_new in bits per byte
    way = (L(θ_new) − L(θ)) / (L(θ_new) − L(θ_old))           the same as a share: 0 for θ_new, 1 for θ_old

For domains known before, `back` above 0 is forgetting undone; for domains learnt in between, `back` below 0 is learning
lost. Layers interact, so the gains of single layers do not add up to that of all layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from everlearn.diagnostics.checkpoint_distance import Pair, limited
from everlearn.errors import MethodError, ModelError
from everlearn.evaluation import METRICS, Cell, resample
from everlearn.evaluation.cell_cache import SharedCells
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.resampling import Resampled
from everlearn.evaluation.task import Conditions
from everlearn.model.depth import places
from everlearn.model.structure import architecture_of
from everlearn.predictors import Checkpoint
from everlearn.tasks.held_out import HeldOutText

if TYPE_CHECKING:
    from everlearn.learner import ContinualLearner

BEFORE, LEARNT, COMING, GENERAL = "known before", "learnt in between", "still to come", "general"
"""Roles of a held-out set for a pair of stages."""
POINTS = tuple(step / 10 for step in range(11))
"""Values of α on the line between two checkpoints."""


@dataclass(frozen=True)
class Hybrid:
    """Weights between two checkpoints.

    Attributes:
        label: name in tables.
        share: name of a tensor → α, the share of the later checkpoint.
    """

    label: str
    share: Callable[[str], float]


@dataclass(frozen=True)
class Returned:
    """The scores of a blend on one held-out set.

    Attributes:
        score: bits per byte.
        back: bits per byte better than the later checkpoint.
        way: share of the way back to the earlier checkpoint; unknown if the two do not clearly differ.
    """

    score: Estimate
    back: Estimate
    way: Estimate


@dataclass(frozen=True)
class GoingBack:
    """The scores of blends of two checkpoints on every held-out set.

    Attributes:
        title: title in reports.
        since: label of the earlier checkpoint.
        until: label of the later checkpoint.
        blends: labels of the blends, in order.
        roles: held-out set → its role. If several sets have a role, their mean is an entry too.
        found: held-out set, or mean → scores of each blend.
        ends: held-out set, or mean → score of the earlier and of the later checkpoint.
    """

    title: str
    since: str
    until: str
    blends: tuple[str, ...]
    roles: dict[str, str] = field(default_factory=dict)
    found: dict[str, list[Returned]] = field(default_factory=dict)
    ends: dict[str, tuple[Estimate, Estimate]] = field(default_factory=dict)


def restored(learner: ContinualLearner, pair: Pair, blocks: int) -> GoingBack:
    """Score the model with one layer at a time restored: embeddings, each layer, and what follows the layers.

    Args:
        learner: learner of a run whose two stages have their weights.
        pair: the two stages.
        blocks: number of blocks of each held-out set.

    Raises:
        MethodError: a method evaluates with more than the checkpoint.
        ModelError: the model grew, or a stage's weights were removed.
    """
    return _measured(learner, pair, blocks, "Layers put back", _layers)


def merged_back(learner: ContinualLearner, pair: Pair, blocks: int) -> GoingBack:
    """Score models on the straight line between the checkpoints, at every α of :data:`POINTS`.

    Arguments and errors are those of :func:`restored`.
    """
    title = "On the line between them"
    return _measured(learner, pair, blocks, title, lambda _: [everywhere(point) for point in POINTS])


def everywhere(share: float) -> Hybrid:
    """Return the blend with the same α for all tensors."""
    return Hybrid(f"{share:g}", lambda name: share)


def _layers(model: nn.Module) -> list[Hybrid]:
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    where = {name: layer for name, (layer, _) in places(shapes, architecture_of(model)).items()}

    def without(layer: str) -> Callable[[str], float]:
        return lambda name: float(where[name] != layer)

    return [Hybrid(layer, without(layer)) for layer in dict.fromkeys(where.values())]


def _measured(
    learner: ContinualLearner,
    pair: Pair,
    blocks: int,
    title: str,
    blends_of: Callable[[nn.Module], list[Hybrid]],
) -> GoingBack:
    check_in_weights(learner, "measure `everlearn analyse distance` instead")
    scorer = learner.scorer()
    tasks = [limited(scorer, name, blocks) for name in scorer.names()]
    old, model = ends_of(learner, pair)
    blends = blends_of(model)
    how, cells = scorer.conditions(pair.until), [list[Cell]() for _ in tasks]
    since, until = pair.labels(learner)
    activity = learner.reporter.activity(f"{title}, {since} and {until}", len(blends) + 2)
    with blender(model, old) as put, activity as done:
        for number, blend in enumerate([everywhere(0.0), everywhere(1.0), *blends], 1):
            put(blend)
            for own, cell in zip(cells, looked_at_once(scorer.shared_folder(), model, tasks, how), strict=True):
                own.append(cell)
            done(number)
    result = GoingBack(title, since, until, tuple(blend.label for blend in blends))
    _add(result, {task.name: (_role(learner, pair, task), own) for task, own in zip(tasks, cells, strict=True)})
    return result


def looked_at_once(folder: Path, model: nn.Module, tasks: Sequence[HeldOutText], how: Conditions) -> list[Cell]:
    """Return a model's scores on some held-out sets; `folder` keeps them for the next time."""
    shared = SharedCells(folder, model)
    return [shared.measured(task, how, Checkpoint(model, how.objective)) for task in tasks]


def check_in_weights(learner: ContinualLearner, otherwise: str) -> None:
    """Refuse runs whose predictions do not depend on the checkpoint's weights alone.

    Raises:
        MethodError: a method evaluates with more than the checkpoint; `otherwise` is the advice in the message.
    """
    for method in learner.recipe.methods():
        if not method.tested_as_saved:
            raise MethodError(
                f"Method '{method.label}' evaluates with more than the checkpoint's weights, so restoring weights "
                f"does not undo what it learnt: {otherwise}."
            )


def ends_of(learner: ContinualLearner, pair: Pair) -> tuple[dict[str, nn.Parameter], nn.Module]:
    """Return the earlier checkpoint's weights, and the later one's model on the run's device.

    Raises:
        ModelError: the model grew, or a stage's weights were removed.
    """
    old = dict(learner.model_after(pair.since).named_parameters())
    model = learner.model_after(pair.until).to(learner.scorer().device)
    new = {name: parameter.shape for name, parameter in model.named_parameters()}
    if new != {name: parameter.shape for name, parameter in old.items()}:
        raise ModelError("The model grew between the two stages: the earlier one lacks weights to restore.")
    return old, model


@contextlib.contextmanager
def blender(model: nn.Module, old: Mapping[str, Tensor]) -> Iterator[Callable[[Hybrid], None]]:
    """Yield a function that puts a blend into the model; at the end the model gets its own weights back.

    Args:
        model: the later checkpoint.
        old: name → tensor of the earlier checkpoint; a tensor that two modules share occurs once.
    """
    new: dict[str, Tensor] = {name: p.detach().cpu().clone() for name, p in model.named_parameters()}

    def put(blend: Hybrid) -> None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # At α = 0 and 1 the bits are those of the checkpoints.
                parameter.copy_(torch.lerp(old[name].detach().cpu(), new[name], blend.share(name)))

    try:
        yield put
    finally:
        put(everywhere(1.0))


def _role(learner: ContinualLearner, pair: Pair, task: HeldOutText) -> str:
    if task.domain is None:
        return GENERAL
    number = [domain.name for domain in learner.recipe.domains].index(task.domain) + 1
    return BEFORE if number <= pair.since else LEARNT if number <= pair.until else COMING


def _add(going_back: GoingBack, cells: dict[str, tuple[str, list[Cell]]]) -> None:
    """Add every set, and the mean over sets of the same role; columns are resampled independently."""
    metric = METRICS["bits_per_byte"]
    by_role: dict[str, list[Resampled]] = {}
    for name, (role, own) in cells.items():
        scores = resample(own, [metric], seed=("going back", name))[metric.name]
        by_role.setdefault(role, []).append(scores)
        _add_column(going_back, name, role, scores)
    for role, several in by_role.items():
        if len(several) > 1:
            values, samples = (np.mean([getattr(each, key) for each in several], axis=0) for key in Resampled._fields)
            _add_column(going_back, f"{role}, mean", role, Resampled(values, samples))


def _add_column(going_back: GoingBack, name: str, role: str, scores: Resampled) -> None:
    """Add a column from scores of [the earlier checkpoint, the later one, blends …]."""
    apart = scores.change().sign not in (0, None)
    going_back.roles[name] = role
    going_back.ends[name] = scores.of(0), scores.of(1)

    def share_returned(place: int) -> Estimate:
        return scores.estimate(lambda u: (u[..., 1] - u[..., place]) / (u[..., 1] - u[..., 0]))

    going_back.found[name] = [
        Returned(scores.of(place), scores.change(1, place), share_returned(place) if apart else Estimate())
        for place in range(2, len(going_back.blends) + 2)
    ]
