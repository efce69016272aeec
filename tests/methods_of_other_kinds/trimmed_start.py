"""A domain starts from the base model wherever the earlier ones moved it little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from everlearn.methods.base import Method, MethodConfig, Needs, Stage, register


@register
class TrimmedStart(Method):
    """Selective initialisation: of each parameter the entries that are nearest to the base model are reset to it.

    It is the trimming of TIES (arXiv 2306.01708, section 4.2, step 1), done to what the stream has learnt so far.
    """

    name = "trimmed_start"
    title = "Trimmed start"
    paper = "https://arxiv.org/abs/2306.01708"
    needs = Needs(peft=False)
    identity: ClassVar[dict[str, Any] | None] = {"share": 0}

    class Config(MethodConfig):
        """Options of the start."""

        share: float = Field(0.5, ge=0, lt=1)
        """Share of the entries of each parameter that is reset; 0 is plain training."""

    def starting_weights(self, stage: Stage) -> Mapping[str, Tensor]:
        """The last model, trimmed."""
        if stage.first or not self.config.share:
            return {}
        found = {}
        base = dict(stage.checkpoints[0].named_parameters())
        for name, parameter in stage.model.named_parameters():
            now = parameter.detach().cpu()
            near = (now - base[name]).abs().flatten().argsort(stable=True)[: int(self.config.share * now.numel())]
            reset = torch.zeros(now.numel(), dtype=torch.bool).scatter_(0, near, True).view(now.shape)
            found[name] = torch.where(reset, base[name].detach(), now)
        return found
