"""Measure how large each row's outputs are, how similar that is between domains, and which rows of the weights moved.

MIGU (arXiv 2406.17245) assumes that tasks differ in the rows with the largest outputs. This module measures it for any
model and its domains. Each number is shown with two others: for two samples of one domain, and for random rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from everlearn.data.loader import sample_batches
from everlearn.errors import RunError
from everlearn.importance.magnitude import magnitude
from everlearn.methods.masks.migu import MIGU
from everlearn.methods.masks.rows import largest
from everlearn.model.anatomy import anatomy
from everlearn.model.objectives import Objective
from everlearn.model.training_mode import evaluating

if TYPE_CHECKING:
    from everlearn.learner import ContinualLearner

Rows = dict[str, Tensor]
"""Path of a projection → a number for each of its rows, [d_out]."""
ALL = "all projections"


@dataclass(frozen=True)
class Magnitudes:
    """A number for each row of every projection, under several names.

    Attributes:
        title: title in reports.
        components: path → component of the projection.
        halves: name → numbers from two disjoint samples; the same ones twice if there is only one sample.
    """

    title: str
    components: dict[str, str]
    halves: dict[str, tuple[Rows, Rows]]

    def relative(self, name: str, component: str) -> Tensor:
        """Return a name's numbers divided by the mean of their layer, over a component's layers (or :data:`ALL`)."""
        rows = self.halves[name][0]
        return torch.cat([rows[p] / rows[p].mean().clamp(min=1e-30) for p in self.paths(component)])

    def paths(self, component: str) -> list[str]:
        """Return the projections of a component."""
        return [path for path, own in self.components.items() if component in (own, ALL)]

    @property
    def parts(self) -> list[str]:
        """Return the names of all projections together, then of each component."""
        return [ALL, *dict.fromkeys(self.components.values())]


@dataclass(frozen=True)
class Alike:
    """The similarity of rows between several names, by component; means over layers.

    Attributes:
        title: title in reports.
        names: the compared names.
        threshold: share of rows that do not count as the largest.
        overlap: component → share of the largest rows that two names have in common, [names][names]. The diagonal
            compares two samples of one name.
        correlation: the same for Pearson's correlation of the numbers of a layer's rows; None if all rows are equal.
        chance: component → the overlap of rows drawn at random.
    """

    title: str
    names: list[str]
    threshold: float
    overlap: dict[str, list[list[float]]]
    correlation: dict[str, list[list[float | None]]]
    chance: dict[str, float]


def threshold_of(learner: ContinualLearner) -> float:
    """Return the run's share of masked rows, or that of the MIGU paper if the run has none."""
    own = next((each.config.threshold for each in learner.recipe.methods() if isinstance(each, MIGU)), 0.0)
    return float(own or MIGU().config.threshold)


def looked_at(learner: ContinualLearner, blocks: int) -> list[Magnitudes]:
    """Return the outputs of the base model and of the last saved one, and how far rows moved in each stage."""
    last = max(index for index in range(len(learner.recipe.domains) + 1) if learner.has_weights(index))
    models = [output_magnitudes(learner, stage, blocks) for stage in dict.fromkeys((0, last))]
    moved = updated_rows(learner)
    return models if moved is None else [*models, moved]


def output_magnitudes(learner: ContinualLearner, stage: int, blocks: int) -> Magnitudes:
    """Return the mean |y| of each row on every domain of a run, for the model after a stage (0: the base model).

    Args:
        learner: learner of a run, finished or not, whose corpora are available.
        stage: number of the stage.
        blocks: number of blocks of each domain, half of them for each of two samples.

    Raises:
        RunError: a domain has too little text for two samples.
        ModelError: the stage's weights were removed.
    """
    objective, device = learner.setting().objective, learner.scorer().device
    model = learner.model_after(stage).to(device)
    by_domain: dict[str, tuple[Rows, Rows]] = {}
    for domain in learner.recipe.domains:
        with learner.reporter.activity(f"Output magnitudes on {domain.name}", 1) as done:
            batches = list(
                sample_batches(
                    learner.prepared(domain.name).train,
                    objective,
                    blocks=blocks,
                    batch_size=max(1, min(learner.recipe.evaluation.batch_size, blocks // 2)),
                    seed=learner.recipe.run.seed,
                    device=device,
                )
            )
            if len(batches) < 2:
                raise RunError(
                    f"Domain '{domain.name}' gives {len(batches)} batch of text, but two samples are compared "
                    f"(`--blocks` is {blocks}). Set it to 2 or more, or give the domain more text."
                )
            by_domain[domain.name] = (
                mean_magnitudes(model, batches[::2], objective),
                mean_magnitudes(model, batches[1::2], objective),
            )
            done(1)
    title = "the base model" if stage == 0 else f"the model after {learner.recipe.domains[stage - 1].name}"
    return Magnitudes(f"Outputs of {title}", _components(model), by_domain)


def mean_magnitudes(model: nn.Module, batches: Sequence[Mapping[str, Tensor]], objective: Objective) -> Rows:
    """Return the mean |y| over all positions, [d_out] float32 by projection, without dropout.

    Padding is included, as in MIGU.
    """
    sums: Rows = {}
    positions: dict[str, int] = {}

    def counter(path: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def count(_: nn.Module, __: Any, output: Tensor) -> None:
            part = magnitude(output)
            sums[path] = sums[path] + part if path in sums else part
            positions[path] = positions.get(path, 0) + output[..., 0].numel()

        return count

    handles = [model.get_submodule(path).register_forward_hook(counter(path)) for path in anatomy(model).linears]
    try:
        with evaluating(model), torch.no_grad():
            for batch in batches:
                objective.forward(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return {path: (total / positions[path]).cpu() for path, total in sums.items()}


def updated_rows(learner: ContinualLearner) -> Magnitudes | None:
    """Return how far each row moved in each stage, ‖ΔW_row‖₂, for projections that move in every stage.

    None if there are fewer than two such stages: weights were removed, layers grew, or nothing in them moves (prompts).
    """
    moved: dict[str, tuple[Rows, Rows]] = {}
    components: dict[str, str] = {}
    for (_, before), (index, after) in itertools.pairwise(_checkpoints(learner)):
        if before is not None and after is not None:
            components = _components(after)
            own = {path: _change(before, after, path) for path in components.keys() & _components(before).keys()}
            changes = {path: change for path, change in own.items() if change is not None and change.any()}
            if changes:
                moved[learner.recipe.domains[index - 1].name] = changes, changes
    known = {path: of for path, of in components.items() if all(path in rows for rows, _ in moved.values())}
    return Magnitudes("Rows that moved furthest", known, moved) if known and len(moved) > 1 else None


def _checkpoints(learner: ContinualLearner) -> Iterator[tuple[int, nn.Module | None]]:
    for index in range(len(learner.recipe.domains) + 1):
        yield index, learner.model_after(index) if learner.has_weights(index) else None


def _change(before: nn.Module, after: nn.Module, path: str) -> Tensor | None:
    """Return the norm of the change of each row, [d_out] float32; None if the layer grew."""
    new, old = (model.get_submodule(path).get_parameter("weight").detach() for model in (after, before))
    if old.shape != new.shape:
        return None
    return (new - old).norm(dim=0 if isinstance(after.get_submodule(path), Conv1D) else 1).cpu()


def _components(model: nn.Module) -> dict[str, str]:
    return {path: str(each.component) for path, each in anatomy(model).linears.items()}


def alike(magnitudes: Magnitudes, threshold: float) -> Alike:
    """Compare every two names: the first sample of one with the second of the other, and the reverse."""
    names = list(magnitudes.halves)
    pairs = {
        path: [[_pair(magnitudes, path, a, b, threshold) for b in names] for a in names]
        for path in magnitudes.components
    }
    overlap: dict[str, list[list[float]]] = {}
    correlation: dict[str, list[list[float | None]]] = {}
    chance: dict[str, float] = {}
    for part in magnitudes.parts:
        paths = magnitudes.paths(part)
        tables = torch.tensor([pairs[path] for path in paths], dtype=torch.float64).nanmean(0)
        overlap[part] = tables[..., 0].tolist()
        correlation[part] = [[None if math.isnan(x) else x for x in row] for row in tables[..., 1].tolist()]
        chance[part] = sum(_share(magnitudes, path, threshold) for path in paths) / len(paths)
    return Alike(magnitudes.title, names, threshold, overlap, correlation, chance)


def _share(magnitudes: Magnitudes, path: str, threshold: float) -> float:
    values = next(iter(magnitudes.halves.values()))[0][path]
    return float(largest(values[None], threshold).mean())


def _pair(magnitudes: Magnitudes, path: str, a: str, b: str, threshold: float) -> tuple[float, float]:
    """Return the overlap of the largest rows and the correlation of all, averaged over both pairings of the samples."""
    each = []
    for i in (0, 1):
        x, y = magnitudes.halves[a][i][path], magnitudes.halves[b][1 - i][path]
        kept = largest(torch.stack([x, y]), threshold)
        both = torch.corrcoef(torch.stack([x, y]).double())[0, 1]
        each.append((float(kept.prod(0).sum() / kept[0].sum()), float(both)))
    return (each[0][0] + each[1][0]) / 2, (each[0][1] + each[1][1]) / 2
