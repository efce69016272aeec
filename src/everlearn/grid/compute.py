"""What training and evaluation take, counted in passes: the same on every machine, however busy it is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from everlearn.grid.cells import CellResult
from everlearn.learner import ContinualLearner
from everlearn.methods.base import Cost

ROUNDING = 1e-9
"""Of a share: what is a whole number of steps but for it has that many."""


@dataclass(frozen=True)
class Effort:
    """A stream in units of a row that is run forward and backward; a forward pass alone is a third of that.

    Attributes:
        plain: rows that are learnt from, R: what plain training takes.
        per_step: extra passes over each of them, p.
        outside: rows run outside of the steps, E: importance, text that the model writes; what may be fewer is
            counted whole.
    """

    plain: int
    per_step: float
    outside: int

    @classmethod
    def of(cls, learner: ContinualLearner, costs: Iterable[Cost]) -> Effort:
        """Of a run, with what its methods declare for its model (:meth:`everlearn.methods.base.Method.cost`)."""
        names, costs = [domain.name for domain in learner.recipe.domains], list(costs)
        sizes = [learner.prepared(name).train.size for name in names]
        general = learner.recipe.general
        once = sizes[0]
        if general is not None and any(cost.passes_once for cost in costs):
            once = learner.prepared(general.name).train.size
        rows = [learner.steps(name) * learner.rows_per_step(learner.arguments(name)) for name in names]
        # As long as no row comes twice, what is run once over each grows and shrinks with the steps.
        new = all(size is None or trained <= size for size, trained in zip(sizes, rows, strict=True))
        return cls(
            sum(rows),
            sum(cost.passes_per_step + cost.passes_per_row * new for cost in costs),
            sum(cost.outside_of(sizes, once, [] if new else rows) for cost in costs),
        )

    @property
    def relative(self) -> float:
        """(R (1 + p) + E) / R: against plain training of as many steps."""
        return 1 + self.per_step + self.outside / self.plain

    @property
    def share(self) -> float:
        """(R − E) / (R (1 + p)): of its steps, how many take what all steps of plain training take; 0 or less: none."""
        return (1 - self.outside / self.plain) / (1 + self.per_step)

    def steps(self, plain: int) -> int:
        """Return how many steps, rounded down, take what so many steps of plain training take; 0 or less: none."""
        return math.floor(plain * self.share + ROUNDING)


def evaluation_share(cell: CellResult) -> float | None:
    """What a stream's score matrix takes, as a share of the steps that were learnt in: n b / 3 over t / s.

    n texts were scored, each a sample of b rows (`blocks`; a text that has fewer counts as if it had them all) and
    a third of a pass forward and backward a row; t tokens were learnt from in rows of s (`block_size`).

    Returns:
        None where this cannot be known: the settings say no `blocks` or `block_size`, or the row of the table has its
        own; or end tasks were asked too.
    """
    rows, tokens = (cell.settings.get(key) for key in ("blocks", "block_size"))
    own = any(key.startswith(("evaluation.", "data.")) for key in cell.options)
    asked = cell.tasks or cell.points or cell.accuracies
    if cell.matrix is None or own or asked or not (rows and tokens and cell.tokens):
        return None
    scored = sum(value is not None for values in cell.matrix.values for value in values)
    return float(scored * rows / 3 / (cell.tokens / tokens))
