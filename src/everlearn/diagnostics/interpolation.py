"""Where does it forget? A later checkpoint's weights are put back to an earlier one's, and held-out text is read again.

A blend takes each tensor as θ = θ_old + α (θ_new − θ_old). *Restoring a layer* is α = 0 for that layer and 1 elsewhere;
*merging back* (WiSE-FT, arXiv 2109.01903) is one α for all. Of a held-out set with the loss L,

    back = L(θ_new) − L(θ)                                   bits per byte that return
    way = (L(θ_new) − L(θ)) / (L(θ_new) − L(θ_old))           of the way back: 0 as θ_new is, 1 as θ_old was

Of what was known before, `back` above 0 is forgetting undone; of what was learnt in between, below 0 is learning lost.
Layers act together, so what single layers bring back does not add up to what all of them do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from everlearn.diagnostics.checkpoint_distance import Pair, limited
from everlearn.errors import MethodError, ModelError
from everlearn.evaluation import METRICS, Cell, resample
from everlearn.evaluation.cell_cache import SharedCells
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.quantities import estimate
from everlearn.evaluation.resampling import Resampled
from everlearn.evaluation.statistics import Floats
from everlearn.evaluation.task import Conditions
from everlearn.model.architectures import architecture_of
from everlearn.model.depth import places
from everlearn.model.head import config_of
from everlearn.predictors import Checkpoint
from everlearn.tasks.held_out import HeldOutText

if TYPE_CHECKING:
    from everlearn.learner import ContinualLearner

BEFORE, LEARNT, COMING, GENERAL = "known before", "learnt in between", "still to come", "general"
"""What a held-out set is to a pair of stages."""
POINTS = tuple(step / 10 for step in range(11))
"""α of :func:`merged_back`."""


@dataclass(frozen=True)
class Hybrid:
    """Weights between two checkpoints.

    Attributes:
        label: as tables write it.
        share: tensor → α, its part of the later checkpoint.
    """

    label: str
    share: Callable[[str], float]


@dataclass(frozen=True)
class Returned:
    """A blend on one held-out set.

    Attributes:
        score: bits per byte.
        back: bits per byte better than the later checkpoint.
        way: share of the way back to the earlier checkpoint; unknown where the two cannot be told apart.
    """

    score: Estimate
    back: Estimate
    way: Estimate


@dataclass(frozen=True)
class GoingBack:
    """What blends of two checkpoints do to every held-out set.

    Attributes:
        title: what was blended.
        since: the earlier checkpoint.
        until: the later one.
        blends: their labels, in order.
        roles: held-out set, and the mean over those of a role where there are several → what it is to the pair.
        found: held-out set, or mean → a number for each blend.
        ends: held-out set, or mean → score of the earlier and of the later checkpoint.
    """

    title: str
    since: str
    until: str
    blends: tuple[str, ...]
    roles: dict[str, str] = field(default_factory=dict)
    found: dict[str, list[Returned]] = field(default_factory=dict)
    ends: dict[str, tuple[Estimate, Estimate]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For another program."""
        return asdict(self)


def restored(learner: ContinualLearner, pair: Pair, blocks: int) -> GoingBack:
    """Put back one layer at a time: embeddings, each layer, what is behind them.

    Args:
        learner: of a run whose two stages have their weights.
        pair: the stages.
        blocks: of each held-out set.

    Raises:
        MethodError: a method reads texts with more than the checkpoint.
        ModelError: the model grew, or a stage's weights are not there.
    """
    return _measured(learner, pair, blocks, "Layers put back", _layers)


def merged_back(learner: ContinualLearner, pair: Pair, blocks: int, points: Sequence[float] = POINTS) -> GoingBack:
    """Go back on a straight line; the arguments are those of :func:`restored`, and α at each of some points."""
    title = "On the line between them"
    return _measured(learner, pair, blocks, title, lambda _: [everywhere(point) for point in points])


def everywhere(share: float) -> Hybrid:
    """One α for all tensors."""
    return Hybrid(f"{share:g}", lambda name: share)


def _layers(model: nn.Module) -> list[Hybrid]:
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    where = {name: layer for name, (layer, _) in places(shapes, architecture_of(config_of(model).model_type)).items()}

    def without(layer: str) -> Callable[[str], float]:
        return lambda name: float(where[name] != layer)

    return [Hybrid(layer, without(layer)) for layer in dict.fromkeys(where.values())]


def _measured(
    learner: ContinualLearner,
    pair: Pair,
    blocks: int,
    title: str,
    made: Callable[[nn.Module], list[Hybrid]],
) -> GoingBack:
    check_in_weights(learner, "leave out --restore and --merge-back")
    scorer = learner.scorer()
    tasks = [limited(scorer, name, blocks) for name in scorer.names()]
    old, model = ends_of(learner, pair)
    blends = made(model)
    ends = [everywhere(0.0), everywhere(1.0)]
    how, cells = scorer.conditions(pair.until), [list[Cell]() for _ in tasks]
    since, until = pair.labels(learner)
    with learner.reporter.activity(f"{title}, {since} and {until}", len(blends) + 2) as done:
        for number, blended in enumerate(blending(model, old, [*ends, *blends]), 1):
            for own, cell in zip(cells, looked_at_once(scorer.shared_folder(), blended, tasks, how), strict=True):
                own.append(cell)
            done(number)
    found = GoingBack(title, since, until, tuple(blend.label for blend in blends))
    _add(found, {task.name: (_role(learner, pair, task), own) for task, own in zip(tasks, cells, strict=True)})
    return found


def looked_at_once(folder: Path, model: nn.Module, tasks: Sequence[HeldOutText], how: Conditions) -> list[Cell]:
    """A model's cells of some held-out sets; kept in `folder`, so that a second look measures nothing."""
    shared, found = SharedCells(folder, model), []
    for task in tasks:
        cell = shared.find(task, how)
        if cell is None:
            cell = task.measure(Checkpoint(model, how.objective), how)
            shared.keep(task, how, cell)
        found.append(cell)
    return found


def check_in_weights(learner: ContinualLearner, otherwise: str) -> None:
    """Refuse runs whose knowledge is not in the weights that are put back.

    Raises:
        MethodError: a method reads texts with more than the checkpoint; `otherwise` is what to do then.
    """
    for method in learner.recipe.methods():
        if not method.tested_as_saved:
            raise MethodError(
                f"Method '{method.label}' reads texts with what it keeps beside the checkpoint, so putting weights "
                f"back does not take back what it learnt: {otherwise}."
            )


def ends_of(learner: ContinualLearner, pair: Pair) -> tuple[dict[str, nn.Parameter], nn.Module]:
    """The earlier checkpoint's weights, and the later one's model on the run's device.

    Raises:
        ModelError: the model grew, or a stage's weights are not there.
    """
    old = dict(learner.model_after(pair.since).named_parameters())
    model = learner.model_after(pair.until).to(learner.scorer().device)
    new = {name: parameter.shape for name, parameter in model.named_parameters()}
    if new != {name: parameter.shape for name, parameter in old.items()}:
        raise ModelError("The model grew between the two stages: there are no such weights to put back.")
    return old, model


def blending(model: nn.Module, old: Mapping[str, Tensor], blends: Sequence[Hybrid]) -> Iterator[nn.Module]:
    """The model with each blend's weights in turn, at the end its own; the arguments are :func:`blender`'s."""
    with blender(model, old) as put:
        for blend in blends:
            put(blend)
            yield model


@contextlib.contextmanager
def blender(model: nn.Module, old: Mapping[str, Tensor]) -> Iterator[Callable[[Hybrid], None]]:
    """Puts blends into the model, which has its own weights again at the end.

    Args:
        model: the later checkpoint.
        old: tensor → the earlier checkpoint's; a tensor that two modules share is there once.
    """
    new: dict[str, Tensor] = {name: p.detach().cpu().clone() for name, p in model.named_parameters()}

    def put(blend: Hybrid) -> None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # At 0 and 1 bit for bit what the checkpoints have.
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


def _add(found: GoingBack, cells: dict[str, tuple[str, list[Cell]]]) -> None:
    """Every set, and the mean over those of a role where it has several: columns are resampled independently."""
    metric = METRICS["bits_per_byte"]
    by_role: dict[str, list[Resampled]] = {}
    for name, (role, own) in cells.items():
        scores = resample(own, [metric], seed=("going back", name))[metric.name]
        by_role.setdefault(role, []).append(scores)
        _add_column(found, name, role, scores)
    for role, several in by_role.items():
        if len(several) > 1:
            values, samples = (np.mean([getattr(each, key) for each in several], axis=0) for key in Resampled._fields)
            _add_column(found, f"{role}, mean", role, Resampled(values, samples))


def _add_column(found: GoingBack, name: str, role: str, scores: Resampled) -> None:
    """Scores of [the earlier checkpoint, the later one, blends …]."""

    between = _number(scores, lambda u: u[..., 1] - u[..., 0])
    apart = between.sign not in (0, None)
    found.roles[name] = role
    found.ends[name] = _number(scores, lambda u: u[..., 0]), _number(scores, lambda u: u[..., 1])
    found.found[name] = []
    for place in range(2, len(found.blends) + 2):
        here = Resampled(scores.values[[0, 1, place]], scores.samples[:, [0, 1, place]])
        found.found[name].append(_returned(here, apart))


def _returned(scores: Resampled, apart: bool) -> Returned:
    """Scores of [the earlier checkpoint, the later one, a blend]."""
    way = _number(scores, lambda u: (u[..., 1] - u[..., 2]) / (u[..., 1] - u[..., 0])) if apart else Estimate()
    back = _number(scores, lambda u: u[..., 1] - u[..., 2])
    return Returned(_number(scores, lambda u: u[..., 2]), back, way)


def _number(scores: Resampled, of: Callable[[Floats], Floats]) -> Estimate:
    return estimate(of(scores.values), of(scores.samples)) or Estimate()
