"""O-LoRA: keep the input directions of each domain's adapter orthogonal to those of the earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.adapters.low_rank import A
from everlearn.methods.base import Batch, Cost, Method, MethodConfig, Setting, Stage, Variant, register
from everlearn.methods.state import Tensors
from everlearn.model.adapted import weights_of
from everlearn.model.objectives import Outputs
from everlearn.model.peft_adapter import directions_of, matrices_of
from everlearn.model.sharding import full_tensor, local_part, value_over_shards
from everlearn.ranges import Around, OneOf, ranges

Strength = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TermsConfig(MethodConfig):
    """Options of O-LoRA's terms."""

    lambda_1: Strength | Annotated[list[Strength], Field(min_length=1)] = 0.5
    """λ_1, the weight of orthogonality: one number, or a list with one for each domain in order (the last applies to
    all further ones)."""
    lambda_2: Strength | Annotated[list[Strength], Field(min_length=1)] = 0.0
    """λ_2, the weight of the norms: one number or a list, as for `lambda_1`."""
    orthogonality: Literal["absolute", "squares"] = "absolute"
    """What is summed over the elements of A_i A_tᵀ: absolute values, as in the code of the published numbers, or
    squares, as in the paper."""


@dataclass(frozen=True)
class _Layers:
    """Layers whose A have the same shape, with equally many earlier rows, for one batched product."""

    a: list[nn.Parameter]
    """A of this domain, m times [r, d_in]."""
    earlier: Tensor
    """A of all earlier domains, concatenated, [m, rows, d_in]; frozen."""


class Terms:
    """The terms of a domain: λ_1 Σ_layers Σ_jk |A_i A_tᵀ|_jk and λ_2 Σ_layers (‖A_t‖_F + ‖B_t‖_F).

    Args:
        config: λ_1, λ_2 and the form.
        model: with the adapters of the domain, which are trained.
        earlier: returns the A of earlier adapters of the layer at a path.
    """

    def __init__(self, config: TermsConfig, model: nn.Module, earlier: Callable[[str], Sequence[Tensor]]) -> None:
        self._config, self._layers = config, list[_Layers]()
        self._matrices = [*matrices_of(model, "A").values(), *matrices_of(model, "B").values()]
        alike: dict[tuple[torch.Size, int], list[tuple[nn.Parameter, Tensor]]] = {}
        for path, new in matrices_of(model, "A").items():
            if rows := earlier(path):
                before = torch.cat([each.to(new.device, torch.float32) for each in rows])
                alike.setdefault((new.shape, len(before)), []).append((new, before))
        for pairs in alike.values():
            self._layers.append(_Layers([new for new, _ in pairs], torch.stack([before for _, before in pairs])))

    def losses(self, index: int) -> dict[str, Tensor]:
        """Return the terms for the domain with number `index`, computed in float32."""
        first, second = _at(self._config.lambda_1, index), _at(self._config.lambda_2, index)
        losses = {}
        with torch.autocast(self._matrices[0].device.type, enabled=False):
            if first and self._layers:
                sums = [overlap(layers.a, layers.earlier, self._config.orthogonality) for layers in self._layers]
                losses["orthogonality"] = first * torch.stack(sums).sum()
            if second:
                losses["norms"] = second * norms(self._matrices).sum()
        return losses


@register
class OLoRA(IncLoRA):
    """Orthogonal LoRA (arXiv 2310.14152): IncLoRA whose A_t is kept orthogonal to the earlier ones.

    L + λ_1 Σ_layers Σ_{i < t} Σ_{jk} |A_i A_tᵀ|_{jk} + λ_2 Σ_layers (‖A_t‖_F + ‖B_t‖_F)

    The rows of A_i span the input directions of adapter i, [r, d_in]. The first sum is one batched product of [A_1; …;
    A_{t−1}] and A_t for all layers of a shape. If the base model was merged from an adapter (a PEFT folder as `model`),
    this adapter counts as an earlier one.

    If the model already has LoRA adapters, as in `everlearn.protect`, nothing is attached: the terms act on the adapter
    that is trained, and frozen ones count as earlier adapters.
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

    class Config(TermsConfig, IncLoRA.Config):
        """Options of O-LoRA; those of LoRA are PEFT's."""

    search = ranges(lambda_1=Around(10), r=OneOf((8, 16, 32, 64)))
    config: Config
    _of_base = Tensors("base/")
    """A of the adapter that the base model was merged with, by path."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._terms: Terms | None = None
        self._adopted = False

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of IncLoRA, plus A of the earlier domains."""
        own, earlier = super().cost(model), sum(self.config.r * inputs for inputs, _ in self._shapes(model))
        return replace(own, memory_bytes=own.memory_bytes + 4 * earlier)

    # -- a model that already has LoRA adapters -----------------------------------------------------------------

    def adopts(self, model: nn.Module) -> bool:
        """Return whether the model trains LoRA matrices already."""
        return bool(matrices_of(model, "A"))

    def check(self, setting: Setting) -> None:
        """Refuse options of the adapter if the model already has one."""
        if not self.adopts(setting.model):
            super().check(setting)
            return
        Method.check(self, setting)
        if others := sorted(self.config.model_fields_set - TermsConfig.model_fields.keys()):
            raise MethodError(
                f"Method '{self.label}', option '{others[0]}': the model already has LoRA adapters, which are not "
                "changed. Remove the option."
            )

    def moves(self, model: nn.Module) -> list[str]:
        if not self.adopts(model):
            return super().moves(model)
        return [name for name, weight in weights_of(model).items() if weight.trained]

    def begin_domain(self, stage: Stage) -> None:
        """Store the input directions of an adapter that the base model was merged with.

        Raises:
            MethodError: the model's adapter is that of an earlier domain.
        """
        super().begin_domain(stage)
        if stage.first:
            self._of_base = directions_of(stage.model)
        new = matrices_of(stage.model, "A") if not stage.step else {}
        for domain, learnt in self._adapters.items():
            if any(_same(matrix, learnt.get(_key(path))) for path, matrix in new.items()):
                raise MethodError(
                    f"Method '{self.label}' needs a new adapter for each domain, and the model has that of '{domain}'. "
                    "Merge it (`merge_and_unload`) and make a new one; to continue with one adapter, use a penalty, "
                    "such as 'mas'."
                )

    def attach(self, stage: Stage) -> None:
        self._adopted = self.adopts(stage.model)
        if not self._adopted:
            super().attach(stage)

    def detach(self, stage: Stage) -> None:
        """Detach the adapter as IncLoRA does; of an adapter of the model's own, store A only."""
        self._terms = None
        if not self._adopted:
            super().detach(stage)
            return
        new = matrices_of(stage.model, "A")
        self._keep(stage.domain, {_key(path): value.detach().cpu().clone() for path, value in new.items()})

    # -- the terms ----------------------------------------------------------------------------------------------

    def begin_training(self, stage: Stage) -> None:
        others = {
            path: full_tensor(each.detach()) for path, each in matrices_of(stage.model, "A", trained=False).items()
        }

        def earlier(path: str) -> list[Tensor]:
            rows = [self._of_base[path]] if path in self._of_base else []
            rows += [learnt[_key(path)] for learnt in self._adapters.values() if _key(path) in learnt]
            frozen = others.get(path)  # of another adapter of the model, which may be in the memory too
            return rows if frozen is None or any(_same(frozen, row) for row in rows) else [*rows, frozen]

        self._terms = Terms(self.config, stage.model, earlier)

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return λ_1 Σ |A_i A_tᵀ| and λ_2 Σ (‖A_t‖_F + ‖B_t‖_F)."""
        assert self._terms is not None
        return self._terms.losses(stage.index)


def _key(path: str) -> str:
    return f"base_model.model.{path}.{A}"


def _same(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.shape == other.shape and torch.equal(one.detach().cpu(), other.cpu())


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
    """Return the strength for the domain with number `index`."""
    return strength[min(index, len(strength)) - 1] if isinstance(strength, list) else strength
