"""MIGU: only the rows of a linear layer whose outputs are largest on the current batch are updated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from everlearn.importance import OutputMagnitude
from everlearn.methods.base import (
    ApplyTo,
    Batch,
    Cost,
    Mask,
    Method,
    MethodConfig,
    Needs,
    Setting,
    Stage,
    register,
)
from everlearn.methods.engine.attachment import refuse_frozen_model


@register
class MIGU(Method):
    """Magnitude-based gradient updating (arXiv 2406.17245, §3.2).

    For a linear layer with outputs y, let n_i = Σ |y_i| over every position of the current optimizer step. Of the
    d_out rows of its weight, the floor(T · d_out) with the smallest n_i are held back in this step.

    With LoRA (§3.3) the rows of A are ranked by the outputs of A, and the rows of B by the outputs of the whole layer.
    """

    name = "migu"
    title = "MIGU"
    paper = "https://arxiv.org/abs/2406.17245"
    needs = Needs(anatomy=True)
    identity: ClassVar[dict[str, Any] | None] = {"threshold": 0}

    class Config(MethodConfig):
        """Options of MIGU."""

        threshold: float = Field(0.7, ge=0, lt=1)
        """Share of rows that are held back in each step; 0 is plain training."""
        apply_to: ApplyTo = "update"
        """What the mask acts on. The paper and its code mask gradients; under Adam that still moves masked rows."""
        skip_first_domain: bool = True
        """Train the first domain without a mask, as the released code does (the paper does not say)."""
        mask_bias: bool = False
        """Hold back the biases of masked rows too; the released code leaves biases alone."""

    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._magnitude: OutputMagnitude | None = None
        self._active = False

    def check(self, setting: Setting) -> None:
        """Some linear layer of the model must be trained."""
        super().check(setting)
        refuse_frozen_model(self, setting)

    def cost(self, model: nn.Module) -> Cost:
        """One float per output feature, and the copy of the masked parameters that an update mask restores."""
        if not self.config.threshold:
            return Cost()
        from everlearn.model.anatomy import anatomy

        held = 0
        for path in _trained(model, anatomy(model).linears):
            for name, parameter, _ in _rows(model, path, self.config.mask_bias):
                # Sums and mask: two floats a row. The copy lives during the optimizer step only.
                copied = parameter.numel() * parameter.element_size() if self.config.apply_to == "update" else 0
                held += copied + 8 * (parameter.shape[0] if name.endswith("bias") else max(parameter.shape))
        return Cost(memory_bytes=held)

    def begin_domain(self, stage: Stage) -> None:
        """Decide whether this domain is masked."""
        self._close()
        self._active = self.config.threshold > 0 and not (stage.first and self.config.skip_first_domain)

    def begin_training(self, stage: Stage) -> None:
        """Place the hooks: adapters of any method are in the model by now."""
        if self._active:
            self._magnitude = OutputMagnitude(stage.model, _trained(stage.model, stage.anatomy.linears))

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        """Say how many rows of the coming pass are the batch, so that other methods' views do not count."""
        if self._magnitude is not None:
            self._magnitude.rows = len(batch["labels"])
        return {}

    def mask(self, stage: Stage) -> Mask | None:
        """The rows that this step's outputs were smallest in."""
        if self._magnitude is None:
            return None
        kept = keep_largest(self._magnitude.pop(), self.config.threshold)
        factors: dict[str, Tensor] = {}
        for path, rows in kept.items():
            for name, parameter, dim in _rows(stage.model, path, self.config.mask_bias):
                factors[name] = rows.view([-1 if at == dim else 1 for at in range(parameter.dim())])
        return Mask(factors, self.config.apply_to)

    def detach(self, stage: Stage) -> None:
        """Take the hooks away."""
        self._close()

    def _close(self) -> None:
        if self._magnitude is not None:
            self._magnitude.close()
        self._magnitude = None


def keep_largest(sums: Mapping[str, Tensor], threshold: float) -> dict[str, Tensor]:
    """1 for the rows to update and 0 for the floor(threshold · n) rows with the smallest sums.

    Args:
        sums: layer to summed output magnitude, [n].
        threshold: share of rows that are masked, in [0, 1).

    Returns:
        Layer to factors, [n] float32. Of equal sums the lower index is masked first, so the number is always exact.
    """
    by_size: dict[int, list[str]] = {}
    for name, values in sums.items():
        by_size.setdefault(len(values), []).append(name)
    result: dict[str, Tensor] = {}
    for size, names in by_size.items():
        # One sort for all layers of a size, and nothing is read back to the host.
        stacked = torch.stack([sums[name] for name in names])
        # The small term undoes binary rounding: 0.29 * 100 is 28.999999999999996.
        masked = stacked.argsort(dim=1, stable=True)[:, : math.floor(threshold * size + 1e-9)]
        factors = torch.ones_like(stacked, dtype=torch.float32).scatter_(1, masked, 0.0)
        result.update(zip(names, factors, strict=True))
    return result


def _trained(model: nn.Module, paths: tuple[str, ...]) -> list[str]:
    """The linear layers with a trainable weight of their own or of a LoRA adapter."""
    return [path for path in paths if any(True for _ in _rows(model, path, bias=False))]


def _rows(model: nn.Module, path: str, bias: bool) -> Iterator[tuple[str, nn.Parameter, int]]:
    """Trainable parameters whose rows are this layer's outputs: name, parameter, dimension of the rows.

    `path` may be a plain layer, a layer with LoRA (its B matrices) or the A of one adapter.
    """
    module = model.get_submodule(path)
    adapters = getattr(module, "lora_B", None)
    layers: dict[str, Any] = {path: module}
    if isinstance(adapters, nn.ModuleDict):
        layers = {f"{path}.lora_B.{name}": adapter for name, adapter in adapters.items()}
    for name, layer in layers.items():
        if layer.weight.requires_grad:
            yield f"{name}.weight", layer.weight, 1 if isinstance(layer, Conv1D) else 0
        if bias and layer.bias is not None and layer.bias.requires_grad:
            yield f"{name}.bias", layer.bias, 0
