"""Reptile: interpolate periodically towards earlier weights, which aligns the gradients of different batches."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.methods.base import Cost, Method, MethodConfig, Needs, Stage, Variant, register
from everlearn.methods.state import Tensors
from everlearn.model.sharding import local, shard_like
from everlearn.ranges import Between, ranges


@register
class Reptile(Method):
    """The meta-step of Reptile (arXiv 1803.02999), with replay that of meta-experience replay (arXiv 2508.01908).

    Every k steps of a domain θ ← θ_prev + ε · (θ − θ_prev), with θ_prev the weights k steps before, or at the beginning
    of the domain. To second order in the learning rate this reduces the loss and increases the inner products of the
    gradients of those k steps, which removes changes that help one batch and harm another. With replayed rows among
    them (`method: [replay, reptile]`) these are old and new text.

    The state of the optimizer is unchanged. Steps after the last multiple of k keep their full change; a domain of
    fewer than k steps is plain training, which the results note.
    """

    name = "reptile"
    title = "Reptile"
    summary = "interpolates back to earlier weights every k steps"
    paper = "https://arxiv.org/abs/2508.01908"
    needs = Needs(memory="parameters")
    reads_shards = True
    identity: ClassVar[dict[str, Any] | None] = {"epsilon": 1}
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant(
            "reptile_released",
            "Reptile (released)",
            "As in the released configuration, k = 500 and ε = 0.01: of 500 steps a hundredth is kept.",
            {"every": 500, "epsilon": 0.01},
        ),
    )

    class Config(MethodConfig):
        every: int = Field(10, ge=1)
        """k. Our value: the first-order argument assumes that k steps together are a small change."""
        epsilon: float = Field(0.5, ge=0, le=1)
        """ε; 1 is plain training. Our value: a share ε of each k steps is kept, so a small one needs a larger learning
        rate."""

    search = ranges(epsilon=Between(0.1, 1))
    config: Config
    _previous = Tensors(parameters=True)
    """θ_prev, while a domain is learnt."""

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of θ_prev; between domains nothing is stored."""
        if self.config.epsilon == 1:
            return Cost()
        numbers = sum(parameter.numel() for parameter in model.parameters())
        return Cost(memory_bytes=4 * numbers, whole_bytes=0)

    def begin_training(self, stage: Stage) -> None:
        """Set θ_prev to the weights at the beginning of the domain; a resumed stage has it in its memory."""
        if self.config.epsilon == 1:
            return
        if not self._previous:
            self._previous = self._weights(stage)
        if stage.steps < self.config.every:
            stage.notes.append(
                f"Method '{self.label}' steps back every {self.config.every:,} steps (`every`), but '{stage.domain}' "
                f"has {stage.steps:,}: its training was plain."
            )

    def after_step(self, stage: Stage) -> None:
        """Set θ ← θ_prev + ε (θ − θ_prev) at every k-th step."""
        if not self._previous or (stage.step + 1) % self.config.every:
            return
        with torch.no_grad():
            for name, parameter in self._trained(stage).items():
                here = local(parameter)
                torch.lerp(shard_like(self._previous[name], parameter), here, self.config.epsilon, out=here)
        self._previous = self._weights(stage)

    def end_domain(self, stage: Stage) -> None:
        self._previous = {}

    def _trained(self, stage: Stage) -> dict[str, Tensor]:
        return {name: p for name, p in stage.model.named_parameters() if p.requires_grad}

    def _weights(self, stage: Stage) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self._trained(stage).items()}
