"""Measure how far apart two of a run's checkpoints are: in their weights and in their predictions.

With θ* before and θ after: ‖θ − θ*‖, ‖θ − θ*‖ / ‖θ*‖, cos(θ, θ*), max |θ − θ*|, the stable rank of each matrix's
change, and the functional drift KL(p* ‖ p), the mean over the labels of a fixed set of held-out text. Distances in
weights alone mislead: before a normalisation the scale of a layer has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from everlearn.errors import RecipeError, did_you_mean
from everlearn.evaluation import METRICS, resample, text_cell
from everlearn.evaluation.build import BASE
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.held_out_rows import DOCUMENT
from everlearn.evaluation.statistics import FEW, Floats
from everlearn.evaluation.task import Conditions
from everlearn.model.depth import places
from everlearn.model.objectives import IGNORE
from everlearn.model.structure import architecture_of
from everlearn.model.weight_movement import LoadedWeights, Moved, movement, stable_ranks, together, total_movement
from everlearn.predictors import Checkpoint, Predictor
from everlearn.predictors.predictor import at_rest, models_of
from everlearn.tasks.held_out import HeldOutText

INTERVALS = (
    "In brackets: 95 % intervals over the documents of the held-out text (a bootstrap, or Student's t for fewer than "
    f"{FEW})."
)
"""Caption that explains the brackets in tables."""

if TYPE_CHECKING:
    from everlearn.learner import ContinualLearner
    from everlearn.run.scoring import Scorer

_PROBABILITIES = 2**24
"""Maximum number of probabilities that are held at once for each model."""


@dataclass(frozen=True)
class Pair:
    """Two stages of a run by their numbers, the earlier one first; 0 is the base model."""

    since: int
    until: int

    def labels(self, learner: ContinualLearner) -> tuple[str, str]:
        """Return the labels of both in tables."""
        names = [BASE, *(domain.name for domain in learner.recipe.domains)]
        return names[self.since], names[self.until]


@dataclass(frozen=True)
class Distance:
    """The distance of a checkpoint from an earlier one.

    Attributes:
        since: label of the earlier checkpoint.
        until: label of the later checkpoint.
        parts: distance of each part of each layer; None if the model grew.
        ranks: matrix → stable rank of its change.
        layers: layer → mean stable rank of its matrices.
        drift: held-out set → KL(p* ‖ p) in nats per label, where p* is the earlier checkpoint's.
    """

    since: str
    until: str
    parts: list[Moved] | None
    ranks: Mapping[str, float]
    layers: Mapping[str, float]
    drift: Mapping[str, Estimate]

    def to_json(self) -> dict[str, Any]:
        """Return the distance as JSON data."""
        moved = None if self.parts is None else [*together(self.parts).values(), total_movement(self.parts)]
        return {
            **vars(self),
            "parts": None if self.parts is None else [asdict(part) for part in self.parts],
            "layers": [
                {"layer": each.layer or "all", "relative": each.relative, "cosine": each.cosine}
                | {"change": each.change, "largest": each.largest, "stable_rank": self.layers.get(each.layer)}
                for each in moved or ()
            ],
            "drift": {name: asdict(drift) for name, drift in self.drift.items()},
        }


def stage_number(learner: ContinualLearner, option: str, name: str) -> int:
    """Return the number of a stage by its domain's name, or 0 for `base`.

    Raises:
        RecipeError: there is no such stage.
        RunError: the stage is not learnt yet.
    """
    names = [BASE, *(domain.name for domain in learner.recipe.domains)]
    if name not in names:
        raise RecipeError(
            f"`{option}` is '{name}', which is not a stage of {learner.folder.path}.{did_you_mean(name, names)}"
        )
    number = names.index(name)
    if number:
        learner.must_be_learnt(number, name)
    return number


def pair_of(learner: ContinualLearner, since: str | None, until: str | None) -> Pair:
    """Return two stages by name; by default the last one that has weights, and the stage before it.

    Raises:
        RecipeError: there is no such stage, or `since` does not come before `until`.
        RunError: a stage is not learnt yet.
    """
    there = [index for index in range(len(learner.recipe.domains) + 1) if learner.has_weights(index)]
    last = stage_number(learner, "--to", until) if until is not None else there[-1]
    before = [index for index in there if index < last]
    first = stage_number(learner, "--from", since) if since is not None else (before or [last])[-1]
    if first >= last:
        names = Pair(first, last).labels(learner)
        raise RecipeError(
            f"`--from` is '{names[0]}' and `--to` is '{names[1]}', but a stage is compared with an earlier one whose "
            "weights are there. Name an earlier stage in `--from`, or `base`."
        )
    return Pair(first, last)


def pairs_of(learner: ContinualLearner, since: str | None, until: str | None) -> list[Pair]:
    """Return the named pair; by default every stage with the base model, and every stage with the last one."""
    main = pair_of(learner, since, until)
    if since is not None or until is not None:
        return [main]
    stages = [index for index in range(1, main.until + 1) if learner.has_weights(index)]
    return [*(Pair(0, index) for index in stages), *(Pair(index, main.until) for index in stages[:-1])]


def distances(learner: ContinualLearner, pairs: Sequence[Pair], blocks: int) -> list[Distance]:
    """Measure each pair, with the drift on `blocks` blocks of every held-out set, a fixed seeded sample.

    Raises:
        ModelError: a stage's weights were removed, or a method's predictor gives no probabilities.
    """
    scorer, measured = learner.scorer(), []
    sets = [limited(scorer, name, blocks) for name in scorer.names()]
    models: dict[int, nn.Module] = {}
    for pair in pairs:
        since, until = pair.labels(learner)
        models = {index: model for index, model in models.items() if index in (pair.since, pair.until)}
        for index in (pair.since, pair.until):
            models[index] = models.get(index) or learner.model_after(index).to(scorer.device)
        before, after = (LoadedWeights(dict(models[index].named_parameters())) for index in (pair.since, pair.until))
        architecture = architecture_of(models[pair.until])
        ranks, place = stable_ranks(before, after), places(after.shapes(), architecture)
        layers: dict[str, list[float]] = {}
        for name, rank in ranks.items():
            layers.setdefault(place[name][0], []).append(rank)
        with learner.reporter.activity(f"From {since} to {until}", len(sets)) as done:
            drift = {}
            for number, task in enumerate(sets, 1):
                before_predictor, now = (
                    teller(scorer, index, task, models[index]) for index in (pair.since, pair.until)
                )
                drift[task.name] = functional_drift(before_predictor, now, task, scorer.conditions(pair.until))
                done(number)
        measured.append(
            Distance(
                since,
                until,
                movement(before, after, architecture),
                ranks,
                {layer: sum(own) / len(own) for layer, own in layers.items()},
                drift,
            )
        )
    return measured


def limited(scorer: Scorer, name: str, blocks: int) -> HeldOutText:
    """Return a held-out set of a run, limited to a number of blocks."""
    task = scorer.held_out(name)
    return HeldOutText(task.path, task.domain, most=blocks)


def teller(scorer: Scorer, row: int, task: HeldOutText, model: nn.Module) -> Predictor:
    """Return the predictor after `row` domains: the loaded model, or the methods' own predictor if they have one."""
    if all(method.tested_as_saved for method in scorer.recipe.methods()):
        return Checkpoint(model, scorer.conditions(row).objective)
    return scorer.text_predictor(row, task.name)


def functional_drift(before: Predictor, after: Predictor, task: HeldOutText, how: Conditions) -> Estimate:
    """Return KL(p* ‖ p) = Σ_v p*(v) (log p*(v) − log p(v)), the mean over a held-out set's labels, in nats.

    Args:
        before: the predictor of p*.
        after: the predictor of p.
        task: the held-out set. Masked models are compared at its masked positions, the same ones each time.
        how: conditions of the evaluation.

    Returns:
        The mean, with the interval of a bootstrap over documents if they are known, and otherwise over blocks.
    """
    sums, items = [], []
    with at_rest([*models_of(before), *models_of(after)], how.device, how.bf16), torch.no_grad():
        for kl, count in _by_block(before, after, task, how):
            sums.append(kl)
            items.append(count)
    above, below = np.concatenate(sums), np.concatenate(items)
    documents = task.held_out.rows.get(DOCUMENT)
    cell = text_cell(above, below, 1.0, given={} if documents is None else {DOCUMENT: documents})
    return resample([cell], [METRICS["loss"]], seed=("drift", task.name))["loss"].of(0)


def _by_block(
    before: Predictor, after: Predictor, task: HeldOutText, how: Conditions
) -> Iterator[tuple[Floats, Floats]]:
    blocks = task.held_out.blocks
    size, start = 1, 0
    while start < len(blocks):
        rows = range(start, min(start + size, len(blocks)))
        start = rows.stop
        batch = {key: x.to(how.device) for key, x in how.objective.collate(blocks.take(rows), rows).items()}
        old, now = before.likely(batch), after.likely(batch)
        labelled = batch["labels"] != IGNORE
        kl = (old.exp() * (old - now)).sum(-1) * labelled
        size = max(1, min(how.batch_size, _PROBABILITIES // (old.numel() // len(rows))))
        yield kl.sum(1).double().cpu().numpy(), labelled.sum(1).double().cpu().numpy()
