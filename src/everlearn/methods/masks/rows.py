"""Rows of linear layers: their parameters, their selection by scores, and scores other than outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from everlearn.methods.base import Stage
from everlearn.model.sharding import full_tensor
from everlearn.seeding import seed_for

Rule = Literal["floor", "quantile"]


def keep_largest(scores: Mapping[str, Tensor], threshold: float, rule: Rule = "floor") -> dict[str, Tensor]:
    """Return what :func:`largest` does, [n] by layer, for scores [n] by layer."""
    by_size: dict[int, list[str]] = {}
    for name, values in scores.items():
        by_size.setdefault(len(values), []).append(name)
    result: dict[str, Tensor] = {}
    for names in by_size.values():
        # One sort for all layers of a size, without device synchronisation.
        factors = largest(torch.stack([scores[name] for name in names]), threshold, rule)
        result.update(zip(names, factors, strict=True))
    return result


def largest(scores: Tensor, threshold: float, rule: Rule = "floor") -> Tensor:
    """Return 1 for the rows to keep, 0 for those with the smallest scores, [layers, n] float32.

    Args:
        scores: [layers, n].
        threshold: share of rows that are masked, in [0, 1).
        rule: `floor` masks exactly floor(threshold · n) rows, the lower index first if tied (arXiv 2406.17245, §3.2);
            `quantile` masks rows below the interpolated quantile, as in the released code.
    """
    if rule == "quantile":
        return (scores >= scores.quantile(threshold, dim=1, keepdim=True)).float()
    masked = scores.argsort(dim=1, stable=True)[:, : share_of(threshold, scores.shape[1])]
    return torch.ones_like(scores, dtype=torch.float32).scatter_(1, masked, 0.0)


def kept_rows(factors: Tensor, threshold: float, rule: Rule = "floor") -> Tensor:
    """Return the indices of the rows to keep, in ascending order, from the factors of :func:`largest`.

    With the rule `floor` their number is known, so that a GPU need not be waited for.
    """
    if rule == "quantile":
        return factors.nonzero().squeeze(1)
    return factors.argsort(descending=True, stable=True)[: len(factors) - share_of(threshold, len(factors))]


def share_of(fraction: float, count: int) -> int:
    """Return floor(fraction · count)."""
    # The small term undoes binary rounding: 0.29 * 100 is 28.999999999999996.
    return math.floor(fraction * count + 1e-9)


def trained(model: nn.Module, paths: Iterable[str]) -> list[str]:
    """Return the linear layers with a trainable weight of their own or of a LoRA adapter."""
    return [path for path in paths if any(True for _ in rows_of(model, path, bias=False))]


def units_of(model: nn.Module, paths: Iterable[str]) -> Iterator[str]:
    """Yield the modules whose rows are ranked: each layer, and the A of each of its LoRA adapters."""
    for path in paths:
        yield path
        yield from (f"{path}.lora_A.{name}" for name in getattr(model.get_submodule(path), "lora_A", ()))


def rows_of(model: nn.Module, path: str, bias: bool) -> Iterator[tuple[str, nn.Parameter, int]]:
    """Yield name, parameter and row dimension of the trainable parameters whose rows are the outputs of a layer.

    `path` may be a plain layer, a layer with LoRA (its B matrices) or the A of one adapter. A tied weight has its name
    in ``model.named_parameters()``.
    """
    module = model.get_submodule(path)
    adapters = getattr(module, "lora_B", None)
    layers: dict[str, Any] = {path: module}
    if isinstance(adapters, nn.ModuleDict):
        layers = {f"{path}.lora_B.{name}": adapter for name, adapter in adapters.items()}
    for name, layer in layers.items():
        if layer.weight.requires_grad:
            yield _known(model, f"{name}.weight", layer.weight), layer.weight, 1 if isinstance(layer, Conv1D) else 0
        if bias and layer.bias is not None and layer.bias.requires_grad:
            yield _known(model, f"{name}.bias", layer.bias), layer.bias, 0


def _known(model: nn.Module, name: str, parameter: nn.Parameter) -> str:
    tied: Any = getattr(model, "all_tied_weights_keys", None) or {}
    if name not in tied:
        return name
    return next(known for known, other in model.named_parameters() if other is parameter)


Selector = Literal["magnitude", "random", "weight", "gradient"]


def by_chance(stage: Stage, units: Sequence[str]) -> dict[str, Tensor]:
    """Return random scores, new at each step and the same on all processes."""
    generator = torch.Generator().manual_seed(seed_for(stage.seed, stage.index, "migu", "rows", stage.step))
    return {
        unit: torch.rand(parameter.shape[dim], generator=generator).to(parameter.device)
        for unit in units
        for _, parameter, dim in list(rows_of(stage.model, unit, bias=False))[:1]
    }


def _sums(stage: Stage, units: Sequence[str], of: Callable[[nn.Parameter], Tensor | None]) -> dict[str, Tensor]:
    """Return Σ |·| of each row, of what `of` returns for a parameter."""
    scores: dict[str, Tensor] = {}
    for unit in units:
        for _, parameter, dim in rows_of(stage.model, unit, bias=False):
            values = of(parameter)
            if values is None:
                values = torch.zeros_like(parameter)
            sums = full_tensor(values.abs().sum(1 - dim, dtype=torch.float32))
            scores[unit] = scores[unit] + sums if unit in scores else sums
    return scores


SELECTORS: dict[str, Callable[[Stage, Sequence[str]], dict[str, Tensor]]] = {
    "random": by_chance,
    "weight": partial(_sums, of=lambda parameter: parameter.detach()),
    "gradient": partial(_sums, of=lambda parameter: parameter.grad),  # the complete gradient of the step
}
