"""Alternatives to outputs for ranking rows (named, but not defined, in Table 11 of arXiv 2406.17245)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from everlearn.methods.base import Stage
from everlearn.methods.masks.rows import rows_of
from everlearn.model.sharding import whole
from everlearn.seeding import seed_for

Selector = Literal["magnitude", "random", "weight", "gradient"]


def by_chance(stage: Stage, units: Sequence[str]) -> dict[str, Tensor]:
    """Return random scores, new at each step and the same on all processes."""
    generator = torch.Generator().manual_seed(seed_for(stage.seed, stage.index, "migu", "rows", stage.step))
    return {
        unit: torch.rand(parameter.shape[dim], generator=generator).to(parameter.device)
        for unit in units
        for _, parameter, dim in list(rows_of(stage.model, unit, bias=False))[:1]
    }


def by_weight(stage: Stage, units: Sequence[str]) -> dict[str, Tensor]:
    """Return Σ |w| of each row."""
    return _sums(stage, units, lambda parameter: parameter.detach())


def by_gradient(stage: Stage, units: Sequence[str]) -> dict[str, Tensor]:
    """Return Σ |g| of each row, for the complete gradient of the step."""
    return _sums(stage, units, lambda parameter: parameter.grad)


def _sums(stage: Stage, units: Sequence[str], of: Callable[[nn.Parameter], Tensor | None]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for unit in units:
        for _, parameter, dim in rows_of(stage.model, unit, bias=False):
            values = of(parameter)
            if values is None:
                values = torch.zeros_like(parameter)
            sums = whole(values.abs().sum(1 - dim, dtype=torch.float32))
            found[unit] = found[unit] + sums if unit in found else sums
    return found


SELECTORS: dict[str, Callable[[Stage, Sequence[str]], dict[str, Tensor]]] = {
    "random": by_chance,
    "weight": by_weight,
    "gradient": by_gradient,
}
