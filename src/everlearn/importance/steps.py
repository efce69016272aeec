"""Fisher information from the gradients that training computes anyway: no pass of its own, and an approximation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from everlearn.errors import MethodError
from everlearn.model.sharding import whole


class TrainingFisher:
    """Mean over training steps of n ĝ², with ĝ a step's gradient, the mean over its n rows.

    As EWC for continual machine translation takes it from training itself (the square of each step's gradient; without
    the factor n it is about n times too small). It costs one squaring a step and measures something else than
    :func:`fisher` does: E[n ĝ²] = Var(gₙ) + n E[gₙ]², so it agrees where rows are independent and their mean gradient
    is near 0, at the end of training, and is too large before that; rows are read with dropout and at weights that
    still move. So gather it over the last steps only. What a method adds to the loss is in the gradient unless it is
    taken out before.

    Args:
        squares: sums of earlier steps, by parameter name (:attr:`squares` of another object, from a checkpoint).
        steps: how many steps are in them.

    Attributes:
        squares: Σ over steps of n ĝ², float32, by parameter name; a shard where the gradient is one.
        steps: how many steps were added.
    """

    def __init__(self, squares: Mapping[str, Tensor] | None = None, steps: int = 0) -> None:
        self.squares: dict[str, Tensor] = dict(squares or {})
        self.steps = steps

    def add(self, gradients: Mapping[str, Tensor], rows: int) -> None:
        """Add a step.

        Args:
            gradients: of the mean loss over the step's rows, accumulated and averaged over processes, not clipped.
            rows: n, of all processes and micro-batches together.
        """
        for name, gradient in gradients.items():
            square = gradient.detach().float().square().mul_(rows)
            known = self.squares.get(name)
            self.squares[name] = square if known is None else known.to(square.device).add_(square)
        self.steps += 1

    def result(self) -> dict[str, Tensor]:
        """The Fisher diagonal by parameter name, float32 and whole; every process must call it.

        Raises:
            MethodError: no step was added, or a gradient was not finite.
        """
        if not self.steps:
            raise MethodError("Fisher information cannot be gathered from training without a step.")
        found = {}
        for name, total in self.squares.items():
            found[name] = whole(total) / self.steps
            if not torch.isfinite(found[name]).all():
                raise MethodError(f"The Fisher information of '{name}' is not finite: a step's gradient overflows.")
        return found
