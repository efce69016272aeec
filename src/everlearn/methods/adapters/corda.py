"""CorDA: adapters that are initialised with the components of the weights that matter least for general text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from everlearn.errors import MethodError
from everlearn.methods.adapters.layer_inputs import read_rows
from everlearn.methods.adapters.residual import ReadResidual
from everlearn.methods.base import Stage, register
from everlearn.model.training_mode import evaluating


@register
class CorDA(ReadResidual):
    """Context-oriented decomposition adaptation (arXiv 2406.05223, eq. 1 to 5), with PEFT's decomposition.

    SVD(W C) = U Σ Vᵀ with C = X Xᵀ of the inputs X of a layer, so W = U Σ Vᵀ C⁻¹ = Σ_i σ_i u_i (v_iᵀ C⁻¹)

    The adapter takes over r of these components, s B₀ = U_r √Σ_r, A₀ = √Σ_r V_rᵀ C⁻¹ (s divided between them), and the
    rest of W is frozen. Knowledge-preserved adaptation (`kpm`): C of general text and the r components with the
    smallest σ. Instruction-previewed adaptation (`ipm`): C of the text of the domain and the r largest, to learn
    faster.

    C, its inverse (with 1 % of its mean diagonal added, or more until it can be inverted) and the decomposition are
    PEFT's. It divides the inputs of each row by the largest of them, which the paper does not mention.
    """

    name = "corda"
    title = "CorDA"
    summary = "one adapter per domain, initialised with the weight components that matter least for general text"
    paper = "https://arxiv.org/abs/2406.05223"

    class Config(ReadResidual.Config):
        """Options of CorDA, by PEFT's names."""

        corda_method: Literal["kpm", "ipm"] = "kpm"
        """Knowledge-preserved (reads general text) or instruction-previewed (reads the text of the domain)
        adaptation."""

    config: Config

    @property
    def _reads_general(self) -> bool:
        return self.config.corda_method == "kpm"

    def _read_bytes(self, inputs: int, outputs: int) -> int:
        """Return the bytes of the covariance of the inputs and of the singular vectors."""
        return 4 * (inputs * inputs + min(inputs, outputs) * (inputs + outputs))

    def _parts_of(self, stage: Stage) -> Mapping[str, tuple[Tensor, Tensor]]:
        from peft.tuners.lora.config import CordaConfig
        from peft.tuners.lora.corda import preprocess_corda  # needs attrs, which PEFT does not declare

        model, source = stage.model, stage.general if self._reads_general else stage.source
        corda = CordaConfig(corda_method=self.config.corda_method)
        lora = self._lora(model, init_lora_weights="corda", corda_config=corda)
        try:
            with evaluating(model):
                preprocess_corda(model, lora, run_model=lambda: read_rows(stage, self.config.samples, source))
        except (ValueError, torch.linalg.LinAlgError) as error:
            raise MethodError(
                f"Method '{self.label}' cannot decompose the weights by the inputs of the layers: {error} Give it "
                "other or more text (`general`, option 'samples')."
            ) from error
        parts = {}
        for path in self._targets(model):
            layer = model.get_submodule(path)
            eigens = layer.__dict__.pop("eigens")
            root = (eigens.S_WC / self._scale).sqrt()
            parts[path] = (root[:, None] * eigens.V_WC.T, eigens.U_WC * root)
        return parts
