"""EWC: a quadratic penalty on moving the weights that mattered to earlier domains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.importance import fisher
from everlearn.methods.base import (
    Batch,
    Cost,
    Memory,
    Method,
    MethodConfig,
    Needs,
    Setting,
    Stage,
    Variant,
    register,
)
from everlearn.model.modes import evaluating, training
from everlearn.model.sharding import local_part, shard_like, value_over_shards

if TYPE_CHECKING:
    from everlearn.model.objectives import Outputs


@register
class EWC(Method):
    """Elastic weight consolidation (arXiv 1612.00796, eq. 3), in its online form (arXiv 1805.06370).

    L = L_t + λ/2 · Σ_i F_i (θ_i − θ*_i)², with θ* the weights after the last domain and F the diagonal Fisher
    information of the earlier domains. Quadratic penalties of several domains add up to one, so a single F and a
    single θ* are kept however long the stream is.
    """

    name = "ewc"
    title = "EWC"
    paper = "https://arxiv.org/abs/1612.00796"
    needs = Needs(importance_pass=True, peft=False, memory="statistics")
    identity: ClassVar[dict[str, Any] | None] = {"strength": 0}
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant(
            name="ewc_released",
            title="EWC (released)",
            description="As the DAS authors' code has it: Fisher information from squared gradients of batch means, "
            "with dropout and the penalty in the loss, as a running mean over domains.",
            options={
                "samples": 10_000,
                "gradients": "batch",
                "dropout": True,
                "include_penalty": True,
                "accumulate": "mean",
            },
            paper="https://arxiv.org/abs/2302.03241",
        ),
    )

    class Config(MethodConfig):
        """Options of EWC."""

        strength: float = Field(5000.0, ge=0, allow_inf_nan=False)
        """λ; 0 is plain training. The size that works depends on how F is scaled: tune it by factors of ten."""
        samples: int = Field(1000, ge=1)
        """Blocks of a domain that its Fisher information is measured on."""
        gradients: Literal["sample", "batch"] = "sample"
        """What is squared: each sample's gradient, as the Fisher information asks, or the gradient of a batch's mean
        loss, times the rows of the batch (the DAS authors' code: Σ_b |b| (∇L_b)² over the number of batches b)."""
        dropout: bool = False
        """Measure with dropout on."""
        include_penalty: bool = False
        """Measure on the loss with this method's penalty in it; from the second domain on it adds λ F (θ − θ*)."""
        accumulate: Literal["sum", "mean"] = "sum"
        """F over several domains: their sum (online EWC with γ = 1), or their mean (the DAS authors' EWC)."""
        protect_base: bool = False
        """Also protect the base model, with its Fisher information on the general corpus (on the first domain when
        the recipe names none). The paper protects only what was learnt within the stream."""

    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.needs = replace(type(self).needs, importance_pass=self.config.strength > 0)
        self._fisher: dict[str, Tensor] = {}
        self._anchor: dict[str, Tensor] = {}
        self._measured: list[str] = []
        self._placed: list[tuple[nn.Parameter, Tensor, Tensor]] | None = None

    def check(self, setting: Setting) -> None:
        """The penalty holds all that is trained; what another method adds is there while a domain is learnt only."""
        super().check(setting)
        for other in setting.methods:
            if other.name != self.name and other.needs.extra_parameters:
                raise MethodError(
                    f"Method '{self.label}' protects the model's own weights, but what method '{other.label}' adds "
                    "comes and goes with each domain. Remove one of them."
                )

    def cost(self, model: nn.Module) -> Cost:
        """Fisher information and anchor, in float32, beside the model."""
        if not self.config.strength:
            return Cost()
        numbers = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        return Cost(memory_bytes=8 * numbers, disk_bytes=8 * numbers, passes_per_domain=self.config.samples)

    def begin_domain(self, stage: Stage) -> None:
        """The base model's Fisher information, where it was asked for."""
        self._placed = None
        if self.config.strength and self.config.protect_base and not self._measured:
            self._consolidate(stage, stage.batches(self.config.samples, stage.general), "base")

    def begin_training(self, stage: Stage) -> None:
        """Lay Fisher and anchor beside the parameters.

        Under FSDP2 every parameter is a shard at this moment, whereas the outermost ones stay whole after a pass.
        """
        if self._fisher and self.config.strength:
            self._placed = self._place(stage.model)

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """λ/2 · Σ F (θ − θ*)²."""
        return {"penalty": self._penalty(self._placed)} if self._placed else {}

    def end_domain(self, stage: Stage) -> None:
        """Add the domain's Fisher information and move the anchor to the weights that it ended with."""
        self._placed = None
        if self.config.strength:
            self._consolidate(stage, stage.batches(self.config.samples), stage.domain)

    def _consolidate(self, stage: Stage, batches: Iterable[Batch], domain: str) -> None:
        with training(stage.model) if self.config.dropout else evaluating(stage.model):
            new = self._measure(stage, batches)
        seen = len(self._measured)
        for name, value in new.items():
            old = self._fisher.get(name)
            if old is None:
                continue
            value.add_(old.to(value.device), alpha=seen if self.config.accumulate == "mean" else 1)
            if self.config.accumulate == "mean":
                value.div_(seen + 1)
        # What was frozen in this domain has not moved, and keeps what was known of it.
        self._fisher = {**self._fisher, **new}
        self._anchor = self._anchor | {
            name: parameter.detach().to(torch.float32, copy=True)
            for name, parameter in stage.model.named_parameters()
            if name in new
        }
        self._measured = [*self._measured, domain]

    def _measure(self, stage: Stage, batches: Iterable[Batch]) -> dict[str, Tensor]:
        placed = self._place(stage.model) if self.config.include_penalty else []

        def losses(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
            per_sample = stage.objective.per_sample_loss(model, batch)
            return per_sample + self._penalty(placed) if placed else per_sample

        return fisher(stage.model, batches, losses, batch_means=self.config.gradients == "batch")

    def _penalty(self, placed: list[tuple[nn.Parameter, Tensor, Tensor]]) -> Tensor:
        terms = []
        for parameter, importance, anchor in placed:
            terms.append(_Quadratic.apply(local_part(parameter), importance, anchor))
        whole = value_over_shards(torch.stack(terms), [parameter for parameter, _, _ in placed])
        return self.config.strength / 2 * whole.sum()

    def _place(self, model: nn.Module) -> list[tuple[nn.Parameter, Tensor, Tensor]]:
        parameters = dict(model.named_parameters())
        for name, values in self._fisher.items():
            if name not in parameters or parameters[name].shape != values.shape:
                raise MethodError(
                    f"Method '{self.label}' remembers '{name}' with shape {tuple(values.shape)}, which the model has "
                    "not. Its memory belongs to another model."
                )
        # named_parameters() gives a tied parameter once, so it is penalised once.
        return [
            (parameters[name], shard_like(values, parameters[name]), shard_like(self._anchor[name], parameters[name]))
            for name, values in self._fisher.items()
            if parameters[name].requires_grad
        ]

    def memory(self) -> Memory:
        """Fisher information and anchor by parameter, and the domains that are in them."""
        if not self._measured:
            return Memory()
        tensors = {f"fisher/{name}": value for name, value in self._fisher.items()}
        tensors |= {f"anchor/{name}": value for name, value in self._anchor.items()}
        return Memory(tensors, {"domains": list(self._measured)})

    def load_memory(self, memory: Memory) -> None:
        """Take back Fisher information and anchor."""
        parts: dict[str, dict[str, Tensor]] = {"fisher": {}, "anchor": {}}
        for key, value in memory.tensors.items():
            kind, name = key.split("/", 1)
            parts[kind][name] = value
        self._fisher, self._anchor = parts["fisher"], parts["anchor"]
        self._measured = list(memory.facts.get("domains", []))
        self._placed = None


class _Quadratic(torch.autograd.Function):
    """Σ F (θ − θ*)² with the gradient 2 F (θ − θ*), holding no copy of the parameters for the backward pass."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, importance: Tensor, anchor: Tensor) -> Tensor:
        ctx.save_for_backward(parameter, importance, anchor)
        return (parameter - anchor).square_().mul_(importance).sum(dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        parameter, importance, anchor = ctx.saved_tensors
        return (parameter - anchor).mul_(importance).mul_(2 * gradients[0]), None, None
