"""Fisher information approximated from the gradients of training steps, without a separate pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from everlearn.errors import MethodError
from everlearn.model.sharding import divided_like, full_tensor


@dataclass
class TrainingFisher:
    """Mean over training steps of n ĝ², where ĝ is the gradient of a step, averaged over its n rows.

    EWC for continual machine translation uses the squared gradients of training in this way (without the factor n,
    which makes them about n times too small). It costs one squaring per step and differs from :func:`gradient_moment`:
    E[n ĝ²] = Var(gₙ) + n E[gₙ]². The two agree if rows are independent and their mean gradient is near 0, as at the end
    of training; before that it is too large. Gradients also have dropout, and weights still change. So collect it over
    the last steps only. Terms that a method adds to the loss are part of the gradient unless they are subtracted first.

    Attributes:
        squares: Σ over steps of n ĝ², float32, by parameter name; sharded like the gradient.
        steps: number of steps that were added.
    """

    squares: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0

    def add(self, gradients: Mapping[str, Tensor], rows: int) -> None:
        """Add a step.

        Args:
            gradients: gradients of the mean loss over the rows of the step, accumulated and averaged over processes,
                not clipped.
            rows: n, over all processes and micro-batches.
        """
        for name, gradient in gradients.items():
            square = gradient.detach().float().square().mul_(rows)
            known = self.squares.get(name)
            self.squares[name] = square if known is None else divided_like(known, square).add_(square)
        self.steps += 1

    def result(self) -> dict[str, Tensor]:
        """Return the Fisher diagonal by parameter name, float32 and sharded like the sums; every process must call it.

        Raises:
            MethodError: no step was added, or a gradient was not finite.
        """
        if not self.steps:
            raise MethodError("Fisher information cannot be computed from training without a step.")
        diagonal = {}
        for name, total in self.squares.items():
            diagonal[name] = total / self.steps
            if not torch.isfinite(full_tensor(diagonal[name].sum(dtype=torch.float64))):
                raise MethodError(f"The Fisher information of '{name}' is not finite: a step's gradient overflows.")
        return diagonal
