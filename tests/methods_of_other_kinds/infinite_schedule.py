"""A learning rate for streams without end: it comes down once and stays."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from everlearn.methods.base import Method, MethodConfig, Stage, register


@register
class InfiniteSchedule(Method):
    """An infinite schedule (arXiv 2403.08763, section 7.4): warm up and cool down in the first domain, then stay.

    Later domains need no new warm-up, which would forget. With `rewarm` every domain warms up and cools down.
    """

    name = "infinite_schedule"
    title = "Infinite schedule"
    paper = "https://arxiv.org/abs/2403.08763"

    class Config(MethodConfig):
        """Options of the schedule."""

        warmup: float = Field(0.1, ge=0, le=1)
        """Share of the first domain's steps on which the rate rises."""
        constant: float = Field(0.5, gt=0, le=1)
        """The rate that stays, as a share of `train.learning_rate`."""
        rewarm: bool = False
        """Warm up and cool down in every domain."""

    def schedule(self, stage: Stage, scheduler: LRScheduler) -> LRScheduler:
        """η(t) by the step of the domain."""
        rises, low = self.config.warmup * stage.steps, self.config.constant

        def share(step: int) -> float:
            if not stage.first and not self.config.rewarm:
                return low
            if step < rises:
                return (step + 1) / (rises + 1)
            cooled = (step - rises) / max(1.0, stage.steps - rises)
            return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, cooled)))

        made: Any = LambdaLR(scheduler.optimizer, share)
        return made
