"""Count the compute of training and evaluation in passes, which does not depend on the machine or its load."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from everlearn.comparison.runs import Run
from everlearn.learner import ContinualLearner
from everlearn.methods.base import Cost

ROUNDING = 1e-9
"""Rounding error of a share: a number of steps that is this close to a whole number counts as that."""


@dataclass(frozen=True)
class Effort:
    """The compute of a stream, in units of a row's forward and backward pass; a forward pass counts as a third.

    Attributes:
        plain: R, the rows trained on: the compute of plain training.
        per_step: p, the extra passes over each of them.
        outside: E, the rows outside of the steps: importance, generated text; an upper bound if it can be less.
    """

    plain: int
    per_step: float
    outside: int

    @classmethod
    def of(cls, learner: ContinualLearner, costs: Iterable[Cost]) -> Effort:
        """Return the compute of a run, as its methods declare it (:meth:`everlearn.methods.base.Method.cost`)."""
        names, costs = [domain.name for domain in learner.recipe.domains], list(costs)
        sizes = [learner.prepared(name).train.size for name in names]
        general = learner.recipe.general
        once = sizes[0]
        if general is not None and any(cost.passes_once for cost in costs):
            once = learner.prepared(general.name).train.size
        rows = [learner.steps(name) * learner.rows_per_step(learner.arguments(name)) for name in names]
        # If no row occurs twice, passes that run once over each row are proportional to the steps.
        new = all(size is None or trained <= size for size, trained in zip(sizes, rows, strict=True))
        return cls(
            sum(rows),
            sum(cost.passes_per_step + cost.passes_per_row * new for cost in costs),
            sum(cost.outside_of(sizes, once, [] if new else rows) for cost in costs),
        )

    @property
    def relative(self) -> float:
        """Return (R (1 + p) + E) / R: the compute relative to plain training with the same number of steps."""
        return 1 + self.per_step + self.outside / self.plain

    @property
    def share(self) -> float:
        """Return (R − E) / (R (1 + p)): the share of the steps with plain training's compute; 0 or less for none."""
        return (1 - self.outside / self.plain) / (1 + self.per_step)

    def steps(self, plain: int) -> int:
        """Return the steps, rounded down, with the compute of `plain` steps of plain training; 0 or less for none."""
        return math.floor(plain * self.share + ROUNDING)


def evaluation_share(run: Run) -> float | None:
    """Return the compute of a stream's score matrix as a share of that of its steps: n b / 3 over t / s.

    n texts were scored, each a sample of b rows (`evaluation.blocks`; a text with fewer rows counts as if it had all of
    them), and a row costs a third of a forward and backward pass. t tokens were trained on in rows of s tokens
    (`data.block_size`).

    Returns:
        The share; None if it is unknown: the recipe sets no `evaluation.blocks` or `data.block_size`, the row of the
        table has its own, end tasks were scored too, or domains were not learnt one after another.
    """
    groups = (("recipe.evaluation", "blocks"), ("recipe.data", "block_size"))
    rows, tokens = (run.grid.settings.get(group, {}).get(key) for group, key in groups)
    own = any(key.startswith(("evaluation.", "data.")) for key in run.grid.options)
    table = run.matrices.get("bits_per_byte")
    if table is None or run.grid.order is None or own or run.tasks or not (rows and tokens and run.tokens):
        return None
    return float(len(table.scores) * rows / 3 / (run.tokens / tokens))
