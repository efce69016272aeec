"""A domain ends with the mean of what it began with and what it learnt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from everlearn.methods.base import Method, MethodConfig, Needs, Stage, register


@register
class CheckpointAverage(Method):
    """Weight-space averaging along the stream (WiSE-FT, arXiv 2109.01903, eq. 1): θ_t ← α θ_t + (1 − α) θ_{t−1}."""

    name = "checkpoint_average"
    title = "Checkpoint average"
    paper = "https://arxiv.org/abs/2109.01903"
    needs = Needs(peft=False)
    identity: ClassVar[dict[str, Any] | None] = {"alpha": 1}

    class Config(MethodConfig):
        """Options of averaging."""

        alpha: float = Field(0.5, ge=0, le=1)
        """α, the share of what was learnt; 1 is plain training."""

    def final_weights(self, stage: Stage) -> Mapping[str, Tensor]:
        """The mean; the model that the stage began with is read from disk."""
        if self.config.alpha == 1:
            return {}
        now, before = dict(stage.model.named_parameters()), dict(stage.checkpoints[-1].named_parameters())
        shared = [name for name in before if name in now and now[name].shape == before[name].shape]
        return {name: before[name].lerp(now[name].detach().cpu(), self.config.alpha) for name in shared}
