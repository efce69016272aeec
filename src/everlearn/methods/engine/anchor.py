"""The model that a method protects: the one that the domain began with, or the pre-trained one."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from everlearn.methods.base import MethodConfig
from everlearn.methods.stage import Stage

Anchor = Literal["last", "base"]


class Anchored(MethodConfig):
    """Options of a method that stays near an earlier model."""

    anchor: Anchor = "last"
    """What is protected: `last`, the model that the domain begins with, with all that earlier domains taught it (in the
    first domain the pre-trained one), or `base`, in every domain the pre-trained model."""


def anchor_weights(stage: Stage, anchor: Anchor) -> dict[str, Tensor]:
    """Copies of the anchor's weights, by the names of the parameters that are trained; on the model's device.

    For ``begin_domain``, where the model has the weights that the domain begins with, resumed or not. A parameter that
    the anchor has not, or in another shape, is left out.

    Args:
        stage: that begins.
        anchor: of :class:`Anchored`.
    """
    trained = {name: p for name, p in stage.model.named_parameters() if p.requires_grad}
    model: nn.Module = stage.model if anchor == "last" else stage.checkpoints[0]
    found = {name: p.detach() for name, p in model.named_parameters()}
    return {
        name: found[name].to(device=p.device, dtype=p.dtype, copy=True)
        for name, p in trained.items()
        if name in found and found[name].shape == p.shape
    }
