"""LoRA-Null: adapters whose inputs are orthogonal to those of general text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from everlearn.methods.adapters.layer_inputs import second_moments
from everlearn.methods.adapters.low_rank import matrix_of
from everlearn.methods.adapters.residual import ReadResidual
from everlearn.methods.base import Stage, Variant, register


@register
class LoRANull(ReadResidual):
    """LoRA initialised in the null space of activations (arXiv 2503.02659, section 4).

    X Xᵀ = Q Λ Qᵀ,  N = the r columns of Q with the smallest λ,  SVD(W N Nᵀ) = U Σ Vᵀ,
    s B₀ = U √Σ, A₀ = √Σ Vᵀ (s divided between them)

    X holds the inputs of a layer for general text, so A₀ X ≈ 0 and the frozen rest computes on general text what W did.
    LoRA-Null trains A and B; with A frozen (its second version) s B A X ≈ 0 holds for every B.
    """

    name = "lora_null"
    title = "LoRA-Null"
    summary = "one adapter per domain, in the null space of the inputs of general text"
    paper = "https://arxiv.org/abs/2503.02659"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant(
            "lora_null_v2",
            "LoRA-Null-v2",
            "With A frozen in the null space, so that only B is trained.",
            {"freeze_a": True},
        ),
    )

    class Config(ReadResidual.Config):
        """Options of LoRA-Null; those of LoRA are PEFT's."""

        freeze_a: bool = False
        """Train only B; A stays in the null space."""

    config: Config

    def _read_bytes(self, inputs: int, outputs: int) -> int:
        """Return the bytes of the second moment of the inputs, in float64."""
        return 8 * inputs * inputs

    def _parts_of(self, stage: Stage) -> Mapping[str, tuple[Tensor, Tensor]]:
        parts = {}
        layers = {path: stage.model.get_submodule(path) for path in self._targets(stage.model)}
        for path, moment in second_moments(stage, layers, self.config.samples, stage.general).items():
            null = torch.linalg.eigh(moment).eigenvectors[:, : self.config.r]
            u, sizes, vt = torch.linalg.svd(matrix_of(layers[path]).double() @ null, full_matrices=False)
            root = (sizes / self._scale).sqrt()
            parts[path] = (root[:, None] * (vt @ null.T), u * root)
        return parts

    def attach(self, stage: Stage) -> None:
        super().attach(stage)
        if self.config.freeze_a:
            for name, parameter in stage.model.named_parameters():
                if "lora_A" in name:
                    parameter.requires_grad_(False)

    def _trains(self, model: nn.Module) -> int:
        frozen = sum(self.config.r * inputs for inputs, _ in self._shapes(model)) if self.config.freeze_a else 0
        return self._numbers(model) - frozen
