"""The anchor of a method: the model at the beginning of the domain, or the pre-trained one."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from everlearn.methods.base import MethodConfig
from everlearn.methods.stage import Stage
from everlearn.model.sharding import divided_like

Anchor = Literal["last", "base"]


class Anchored(MethodConfig):
    """Options of a method that keeps the model close to an earlier one."""

    anchor: Anchor = "last"
    """What is protected: `last`, the model at the beginning of the domain (in the first domain the pre-trained one), or
    `base`, the pre-trained model in every domain."""


def anchor_weights(stage: Stage, anchor: Anchor) -> dict[str, Tensor]:
    """Return copies of the anchor's weights for all trained parameters, by name, laid out like them.

    Call it in ``begin_domain``, where the model has the starting weights of the domain, resumed or not. A parameter
    that the anchor lacks, or has in another shape, is left out. In training a parameter may be divided over the
    processes where it was complete before, so read the copies by :func:`~everlearn.model.sharding.shard_like`.
    """
    trained = {name: p for name, p in stage.model.named_parameters() if p.requires_grad}
    model: nn.Module = stage.model if anchor == "last" else stage.checkpoints[0]
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return {
        name: divided_like(weights[name].to(device=p.device, dtype=p.dtype, copy=True), p)
        for name, p in trained.items()
        if name in weights and weights[name].shape == p.shape
    }
