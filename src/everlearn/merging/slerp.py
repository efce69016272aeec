"""Spherical interpolation between two models."""

from __future__ import annotations

import math

from pydantic import Field
from torch import Tensor

from everlearn.merging.base import MergeMethod, TensorGroup, register_merge_method, weighted
from everlearn.options import Options

STRAIGHT = 0.9995
"""Value of |cos Ω| above which the arc is a line, as in all released code: sin Ω would be rounding noise."""


@register_merge_method
class SLERP(MergeMethod):
    """Spherical interpolation (K. Shoemake, Animating rotation with quaternion curves, 1985), tensor by tensor:

    θ = sin((1 − t) Ω) / sin Ω · θ₁ + sin(t Ω) / sin Ω · θ₂, cos Ω = θ₁·θ₂ / (‖θ₁‖ ‖θ₂‖); a straight line if they are
    almost parallel. Checkpoints of one stream nearly always are; then it equals WiSE-FT.
    """

    name = "slerp"
    title = "SLERP"
    paper = "https://doi.org/10.1145/325334.325242"
    least = most = 2

    class Config(Options):
        t: float = Field(0.5, ge=0, le=1)
        """Position between the first checkpoint (0) and the second (1)."""

    def merged(self, group: TensorGroup) -> Tensor:
        t = self.config.t
        first, second = group.models
        lengths = float(first.norm()) * float(second.norm())
        cosine = float((first * second).sum()) / lengths if lengths else 1.0
        if abs(cosine) > STRAIGHT:
            return weighted([first, second], [1 - t, t])
        angle = math.acos(cosine)
        return weighted(
            [first, second], [math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)]
        )
