"""CLoRA: keep the update of each layer out of a fixed random subspace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.adapters.low_rank import ADAPTER, A, B
from everlearn.methods.base import Batch, Cost, MethodConfig, Setting, Stage, register
from everlearn.model.objectives import Outputs
from everlearn.model.sharding import full_tensor
from everlearn.ranges import Around, OneOf, ranges
from everlearn.seeding import seed_for


@register
class CLoRA(IncLoRA):
    """Controlled LoRA (arXiv 2410.16801, ACL 2025): IncLoRA whose updates have a subspace in their null space.

    L + λ Σ_layers (‖A P_A‖²_F + ‖Bᵀ P_B‖²_F)

    The k columns of P_A [d_in, k] and P_B [d_out, k] are orthonormal, random and fixed: an update with A P_A = 0 does
    not change inputs in the span of P_A, and one with Bᵀ P_B = 0 does not move outputs along P_B. All domains of a
    stream have the same P, drawn for each layer from the seed of the run, so the sum of all updates leaves the same
    subspace unchanged.

    With k the width of a layer this would be the squared norm of A and B. The released code halves the penalty.
    """

    name = "clora"
    title = "CLoRA"
    summary = "one adapter per domain, whose update does not change a fixed subspace"
    paper = "https://arxiv.org/abs/2410.16801"

    class Config(IncLoRA.Config):
        """Options of CLoRA; those of LoRA are PEFT's."""

        strength: float = Field(1.0, ge=0, allow_inf_nan=False)
        """λ; 0 is IncLoRA. The released code's λ = 1 is 0.5 here."""
        k: int | None = Field(None, ge=1)
        """Number of directions of each layer's inputs, and of its outputs, that must not change; half of them by
        default. The paper tries 128 to 2048 of 4096."""

    search = ranges(strength=Around(30), r=OneOf((8, 16, 32, 64)))
    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._pairs: list[tuple[nn.Parameter, int, Tensor]] = []

    def check(self, setting: Setting) -> None:
        super().check(setting)
        smallest = min(min(sizes) for sizes in self._shapes(setting.model))
        if self.config.k is not None and self.config.k >= smallest:
            raise MethodError(
                f"Method '{self.label}', option 'k': {self.config.k} fixed directions leave a layer of width "
                f"{smallest} none to learn in. Set it below {smallest}."
            )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of IncLoRA, plus P_A and P_B."""
        own = super().cost(model)
        fixed = sum(width * self._k(width) for sizes in self._shapes(model) for width in sizes)
        return replace(own, memory_bytes=own.memory_bytes + 4 * fixed) if self.config.strength else own

    def _k(self, width: int) -> int:
        return self.config.k or width // 2

    def begin_training(self, stage: Stage) -> None:
        """Create P for each adapter: the same in every domain, after every resume and on every process."""
        parameters, self._pairs = dict(stage.model.named_parameters()), []
        for matrix, dim in ((A, 1), (B, 0)) if self.config.strength else ():
            ending = matrix.replace("weight", f"{ADAPTER}.weight")
            for name, parameter in parameters.items():
                if name.endswith(ending):
                    width = parameter.shape[dim]
                    seed = seed_for(stage.seed, self.name, name)
                    directions = orthonormal(width, self._k(width), seed).to(parameter.device)
                    self._pairs.append((parameter, dim, directions))

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return λ Σ (‖A P_A‖² + ‖Bᵀ P_B‖²), computed in float32."""
        if not self._pairs:
            return {}
        with torch.autocast(self._pairs[0][0].device.type, enabled=False):
            # A shard of B would give a partial sum of Bᵀ P, which cannot be squared: full matrices are needed.
            products = [torch.tensordot(full_tensor(matrix).float(), p, ([dim], [0])) for matrix, dim, p in self._pairs]
            return {"subspace": self.config.strength * torch.stack([each.square().sum() for each in products]).sum()}

    def detach(self, stage: Stage) -> None:
        self._pairs = []
        super().detach(stage)


def orthonormal(width: int, k: int, seed: int) -> Tensor:
    """Return k orthonormal directions, drawn uniformly, [width, k] float32 on the CPU."""
    drawn = torch.randn(width, k, generator=torch.Generator().manual_seed(seed))
    q, r = torch.linalg.qr(drawn)
    return q * r.diagonal().sign()
