"""O-LoRA: keep the input directions of each domain's adapter orthogonal to those of the earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.adapters.low_rank import ADAPTER, A, B
from everlearn.methods.base import Batch, Cost, MethodConfig, Stage, Variant, register
from everlearn.model.sharding import local_part, value_over_shards
from everlearn.ranges import Around, OneOf, ranges

if TYPE_CHECKING:
    from everlearn.model.objectives import Outputs

Strength = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class _Layers:
    """Layers with adapters of one shape."""

    a: list[nn.Parameter]
    """A of this domain, m times [r, d_in]."""
    earlier: Tensor
    """A of all earlier domains, concatenated, [m, (t − 1) r, d_in]; frozen."""


@register
class OLoRA(IncLoRA):
    """Orthogonal LoRA (arXiv 2310.14152): IncLoRA whose A_t is kept orthogonal to the earlier ones.

    L + λ_1 Σ_layers Σ_{i < t} Σ_{jk} |A_i A_tᵀ|_{jk} + λ_2 Σ_layers (‖A_t‖_F + ‖B_t‖_F)

    The rows of A_i span the input directions of adapter i, [r, d_in]. The first sum is one batched product of [A_1; …;
    A_{t−1}] and A_t for all layers of a shape.
    """

    name = "o_lora"
    title = "O-LoRA"
    summary = "one adapter per domain, orthogonal to the earlier ones"
    paper = "https://arxiv.org/abs/2310.14152"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant(
            "o_lora_squared",
            "O-LoRA (squared)",
            "With squares of the elements of A_i A_tᵀ, as the paper writes it, in place of their absolute values.",
            {"orthogonality": "squares"},
        ),
        Variant(
            "o_lora_long_sequence",
            "O-LoRA (long sequence)",
            "λ_1 and λ_2 of the released scripts for 15 tasks, by the position of a domain in the stream.",
            {
                "lambda_1": [0.0] + 8 * [0.5] + 6 * [5.0],
                "lambda_2": [0, 0, 0, 0, 0.1, 0.1, 0.3, 0, 0.1, 0, 0, 0.1, 0, 0.1, 0.3],
            },
        ),
    )

    class Config(IncLoRA.Config):
        """Options of O-LoRA; those of LoRA are PEFT's."""

        lambda_1: Strength | Annotated[list[Strength], Field(min_length=1)] = 0.5
        """λ_1, the weight of orthogonality: one number, or a list with one for each domain in order, whose last applies
        to all further ones."""
        lambda_2: Strength | Annotated[list[Strength], Field(min_length=1)] = 0.0
        """λ_2, the weight of the norms: one number or a list, as for `lambda_1`."""
        orthogonality: Literal["absolute", "squares"] = "absolute"
        """What is summed over the elements of A_i A_tᵀ: absolute values, as in the code of the published numbers, or
        squares, as in the paper."""

    search = ranges(lambda_1=Around(10), r=OneOf((8, 16, 32, 64)))
    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._layers: list[_Layers] = []
        self._matrices: list[nn.Parameter] = []

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of IncLoRA, plus A of the earlier domains."""
        own, earlier = super().cost(model), sum(self.config.r * inputs for inputs, _ in self._shapes(model))
        return Cost(**{**vars(own), "memory_bytes": own.memory_bytes + 4 * earlier})

    def begin_training(self, stage: Stage) -> None:
        """Stack the earlier A beside the new ones, for all layers of a shape."""
        new = dict(stage.model.named_parameters())
        name_of = {matrix: matrix.replace("weight", f"{ADAPTER}.weight") for matrix in (A, B)}
        self._matrices = [new[name] for name in new if name.endswith(tuple(name_of.values()))]
        by_shape: dict[tuple[int, ...], list[str]] = {}
        for name in new:
            if name.endswith(name_of[A]):
                by_shape.setdefault(tuple(new[name].shape), []).append(name)
        self._layers = []
        for names in by_shape.values() if self._adapters else ():
            stacked = [self._earlier(name.replace(name_of[A], A)) for name in names]
            parameters = [new[name] for name in names]
            self._layers.append(_Layers(parameters, torch.stack(stacked).to(parameters[0].device)))

    def _earlier(self, name: str) -> Tensor:
        return torch.cat([learnt[name] for learnt in self._adapters.values()])

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return λ_1 Σ |A_i A_tᵀ| and λ_2 Σ (‖A_t‖_F + ‖B_t‖_F), computed in float32."""
        first, second = _at(self.config.lambda_1, stage.index), _at(self.config.lambda_2, stage.index)
        losses = {}
        with torch.autocast(self._matrices[0].device.type, enabled=False):
            if first and self._layers:
                sums = [overlap(layers.a, layers.earlier, self.config.orthogonality) for layers in self._layers]
                losses["orthogonality"] = first * torch.stack(sums).sum()
            if second:
                losses["norms"] = second * norms(self._matrices).sum()
        return losses

    def detach(self, stage: Stage) -> None:
        """Detach the adapter as IncLoRA does, and drop the earlier A."""
        self._layers, self._matrices = [], []
        super().detach(stage)


def overlap(new: Sequence[nn.Parameter], earlier: Tensor, form: Literal["absolute", "squares"]) -> Tensor:
    """Return Σ_layers Σ_{jk} of |A_prev Aᵀ| or its square.

    Args:
        new: A of each layer, m times [r, d_in]; under FSDP2, sharded by rows.
        earlier: A_prev, [m, rows, d_in].
        form: absolute values or squares.
    """
    product = earlier @ torch.stack([local_part(a) for a in new]).transpose(1, 2)
    terms = (product.abs() if form == "absolute" else product.square()).sum((1, 2))
    return value_over_shards(terms, new).sum()


def norms(matrices: Sequence[nn.Parameter]) -> Tensor:
    """Return ‖·‖_F of each matrix, [m]; at 0 the gradient is 0."""
    squares = value_over_shards(torch.stack([local_part(matrix).square().sum() for matrix in matrices]), matrices)
    return squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt()


def _at(strength: float | list[float], index: int) -> float:
    """Return the strength for the domain with a number."""
    return strength[min(index, len(strength)) - 1] if isinstance(strength, list) else strength
