"""PiSSA: adapters that are initialised with the principal components of the weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from everlearn.methods.adapters.low_rank import matrix_of
from everlearn.methods.adapters.residual import Residual
from everlearn.methods.base import Stage, register


@register
class PiSSA(Residual):
    """Principal singular values and singular vectors adaptation (arXiv 2404.02948, eq. 2 to 4), for a stream.

    W = U Σ Vᵀ,   s B₀ = U_r √Σ_r, A₀ = √Σ_r V_rᵀ (s divided between them), with the r largest singular values

    The adapter is trained on what matters most in W, to learn faster than LoRA, and the frozen rest is what matters
    least. It protects nothing, and is `init_lora_weights="pissa"` of PEFT. As in :class:`Residual`, s B A is added back
    when a domain ends, and the next domain begins from the components of the new W.
    """

    name = "pissa"
    title = "PiSSA"
    summary = "one adapter per domain, initialised with the principal components of the weights"
    paper = "https://arxiv.org/abs/2404.02948"

    class Config(Residual.Config):
        """Options of PiSSA, by PEFT's names."""

    config: Config

    def _parts_of(self, stage: Stage) -> Mapping[str, tuple[Tensor, Tensor]]:
        parts = {}
        for path in self._targets(stage.model):
            u, sizes, vt = torch.linalg.svd(matrix_of(stage.model.get_submodule(path)).float(), full_matrices=False)
            root = (sizes[: self.config.r] / self._scale).sqrt()
            parts[path] = (root[:, None] * vt[: self.config.r], u[:, : self.config.r] * root)
        return parts
