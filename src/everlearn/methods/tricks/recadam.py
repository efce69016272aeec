"""RecAdam: an optimizer that shifts from staying close to the initial weights to learning the task."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.optim import Optimizer

from everlearn.errors import MethodError
from everlearn.methods.base import Cost, Method, MethodConfig, Needs, Setting, Stage, Variant, register
from everlearn.methods.engine.anchor import Anchored, anchor_weights
from everlearn.methods.engine.attachment import refuse_frozen_model
from everlearn.model.sharding import local, shard_like
from everlearn.ranges import Between, ranges


@register
class RecAdam(Method):
    """RecAdam (arXiv 2004.12651, eq. 9 and algorithm 1): anneal from the objective of the anchor to that of the task.

    λ(t) · L_task + (1 − λ(t)) · γ/2 · Σ (θ − θ*)²,  λ(t) = 1 / (1 + exp(−k (t − t₀))), with the second term outside
    Adam:

    θ ← θ − λ(t) · (Adam's step) − (1 − λ(t)) · η γ (θ − θ*)

    The optimizer is the one that `train` configures, with the same state; its step must be proportional to its learning
    rate. Weight decay is separate from both terms, and not scaled. All trained parameters of the anchor are pulled,
    except in a step in which they get no gradient because another method has frozen them. Parameters that other methods
    add are not pulled.
    """

    name = "recadam"
    title = "RecAdam"
    summary = "an optimizer that pulls weights back to where they began"
    paper = "https://arxiv.org/abs/2004.12651"
    needs = Needs(peft=False)
    reads_shards = True
    identity: ClassVar[dict[str, Any] | None] = {"strength": 0}
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant(
            name="recadam_released",
            title="RecAdam (released)",
            description="As in the authors' code and settings, for a learning rate of 2e-5: γ = 5000, and θ is pulled "
            "after Adam's step.",
            options={"gamma": 5000.0, "k": 0.1, "t0": 250, "pulls": "after"},
        ),
    )

    class Config(Anchored):
        strength: float = Field(0.1, ge=0, lt=1)
        """η γ, with η the full learning rate: the share of the distance to θ* that a step recovers while λ = 0. The
        published γ = 5000 at η = 2e-5 is 0.1. 0 is plain training."""
        gamma: float | None = Field(None, gt=0, allow_inf_nan=False)
        """γ itself, as published, instead of `strength`. Refused if η γ (1 − λ) reaches 1: such a step passes beyond
        θ*, and from 2 on it diverges."""
        k: float | None = Field(None, gt=0, allow_inf_nan=False)
        """Slope of λ per step; published: 0.05 to 1. By default 20 divided by the steps of the domain, so that λ rises
        from 0 to 1 within it."""
        t0: float | None = Field(None, ge=0, allow_inf_nan=False)
        """The step at which λ = ½; published: 100 to 1000. By default the middle of the domain. In a domain with fewer
        steps λ stays small and little or nothing is learnt, which is noted."""
        pulls: Literal["beside", "after"] = "beside"
        """Which θ is pulled: that before Adam's step (algorithm 1), or that after it (the authors' code)."""

        @model_validator(mode="after")
        def _one_strength(self) -> RecAdam.Config:
            # A resolved recipe lists every option, so an option with its default value counts as not set.
            if self.gamma is not None and self.strength != type(self).model_fields["strength"].default:
                raise ValueError("`gamma` and `strength` set the same quantity; give one of them")
            return self

    search = ranges(strength=Between(0.005, 0.9, log=True))
    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.needs = replace(type(self).needs, base_model=self._active and self.config.anchor == "base")
        self._anchors: dict[str, Tensor] = {}
        self._placed: dict[nn.Parameter, Tensor] = {}
        self._gamma = 0.0

    @property
    def _active(self) -> bool:
        return self.config.gamma is not None or self.config.strength > 0

    def check(self, setting: Setting) -> None:
        super().check(setting)
        refuse_frozen_model(self, setting)

    def cost(self, model: nn.Module) -> Cost:
        trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        return Cost(memory_bytes=trained if self._active else 0, whole_bytes=0)

    def begin_domain(self, stage: Stage) -> None:
        """Store θ*; a resumed domain begins with the same weights."""
        self._placed = {}
        self._anchors = anchor_weights(stage, self.config.anchor) if self._active else {}

    def optimizer(self, stage: Stage, optimizer: Optimizer) -> Optimizer:
        """Return the recalling optimizer; parameters without an anchor are in separate groups.

        Raises:
            MethodError: the pull would pass beyond the anchor.
        """
        if not self._active:
            return optimizer
        rate = max(float(group["lr"]) for group in optimizer.param_groups)
        self._gamma = self.config.gamma or self.config.strength / rate if rate else 0.0
        # An external Trainer that counts epochs does not know its steps yet; then λ may start at 0.
        self._check_pull(rate, 1 - self.share(stage, 0) if stage.steps else 1.0)
        recalled = {id(p) for name, p in stage.model.named_parameters() if name in self._anchors}
        groups = []
        for group in optimizer.param_groups:
            for mine in (True, False):
                some = [p for p in group["params"] if (id(p) in recalled) == mine]
                if some:
                    groups.append({**group, "params": some, "recalled": mine})
        optimizer.param_groups[:] = groups
        return Recalling(optimizer, lambda rate: self._terms(stage, rate), self._pull, self.config.pulls == "after")

    def begin_training(self, stage: Stage) -> None:
        """Place θ* beside the parameters, by name: under FSDP2 they are sharded now."""
        parameters = dict(stage.model.named_parameters())
        self._placed = {parameters[name]: shard_like(value, parameters[name]) for name, value in self._anchors.items()}
        self._anchors = {}
        self._note_a_late_middle(stage)

    def end_domain(self, stage: Stage) -> None:
        self._placed = {}

    def share(self, stage: Stage, step: int) -> float:
        """Return λ of the update after `step` updates; the first is number 1."""
        k = self.config.k or 20 / stage.steps
        t0 = stage.steps / 2 if self.config.t0 is None else self.config.t0
        return 0.5 * (1 + math.tanh(0.5 * k * (step + 1 - t0)))  # the logistic function, without overflow

    def _note_a_late_middle(self, stage: Stage) -> None:
        t0 = self.config.t0
        if self._active and t0 is not None and t0 >= stage.steps:
            last = self.share(stage, stage.steps - 1)
            stage.notes.append(
                f"Method '{self.label}', option 't0': λ is ½ at step {t0:,g}, but '{stage.domain}' has "
                f"{stage.steps:,}: even at its end λ is {last:.2g}, so little is learnt. Set `t0` below "
                f"{stage.steps:,}, or to null, the middle of a domain."
            )

    def _terms(self, stage: Stage, rate: float) -> tuple[float, float]:
        """Return λ, and the share of the distance to θ* that this step recovers at a learning rate."""
        share = self.share(stage, stage.step)
        return share, self._check_pull(rate, 1 - share)

    def _check_pull(self, rate: float, rest: float) -> float:
        pull = rate * self._gamma * rest
        if pull >= 1:
            key = "gamma" if self.config.gamma else "strength"
            raise MethodError(
                f"Method '{self.label}', option '{key}': γ = {self._gamma:g} at the learning rate {rate:g} and 1 − λ = "
                f"{rest:.3g} moves weights by {pull:.3g} times their distance to the anchor; from 1 on they pass it, "
                f"from 2 on training diverges. Set `gamma` below {1 / (rate * rest):.3g}, or `strength`, which is "
                "relative to the learning rate."
            )
        return pull

    def _pull(self, parameter: nn.Parameter, pull: float) -> None:
        local(parameter).lerp_(self._placed[parameter], pull)


class Recalling(Optimizer):
    """Wraps an optimizer: scales its step for recalled parameters by λ, and pulls them to the anchor.

    Parameters, groups and state are those of the wrapped optimizer, and so is everything that is saved and resumed.

    Args:
        inside: the wrapped optimizer, whose groups have the key ``recalled``.
        terms: function from a learning rate to λ and the share of the pull.
        pull: moves a parameter by that share.
        after: whether it is pulled after the step.
    """

    def __init__(
        self,
        inside: Optimizer,
        terms: Callable[[float], tuple[float, float]],
        pull: Callable[[nn.Parameter, float], None],
        after: bool,
    ) -> None:
        # Not `super().__init__`, which would create separate groups and state.
        self.inside, self._terms, self._pull, self._after = inside, terms, pull, after

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        recalled = [group for group in self.inside.param_groups if group["recalled"]]
        settings = [(group["lr"], group.get("weight_decay", 0.0)) for group in recalled]
        terms = [self._terms(float(rate)) for rate, _ in settings]
        if not self._after:
            self._recall(recalled, settings, terms)
        for group, (share, _) in zip(recalled, terms, strict=True):
            group.update(lr=share * group["lr"], weight_decay=0.0)
        try:
            result = self.inside.step(closure)
        finally:
            for group, (rate, decay) in zip(recalled, settings, strict=True):
                group.update(lr=rate, weight_decay=decay)
        if self._after:
            self._recall(recalled, settings, terms)
        return result

    def _recall(self, groups: list[dict[str, Any]], settings: list[Any], terms: list[tuple[float, float]]) -> None:
        for group, (rate, decay), (_, pull) in zip(groups, settings, terms, strict=True):
            for parameter in group["params"]:
                if parameter.grad is None:  # another method froze it for this step
                    continue
                if pull:  # torch creates states by a step at rate 0, before there are anchors
                    self._pull(parameter, pull)
                if decay:
                    local(parameter).mul_(1 - float(rate) * decay)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.inside.param_groups

    def __getattr__(self, name: str) -> Any:
        if name == "inside":
            raise AttributeError(name)
        return getattr(self.inside, name)

    def state_dict(self) -> dict[str, Any]:
        return self.inside.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inside.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inside.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group that is not recalled."""
        self.inside.add_param_group({"recalled": False, **param_group})
