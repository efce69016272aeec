"""IncLoRA: a new low-rank adapter for each domain, added to the frozen sum of the earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from everlearn.methods.adapters.low_rank import MAGNITUDE, TOKENS, A, B, Merged, MergedConfig, matrix_of
from everlearn.methods.base import Cost, register
from everlearn.methods.state import ByDomain, Fact
from everlearn.model.anatomy import kind_of
from everlearn.model.peft_adapter import TASKS, PeftAdapter


@register
class IncLoRA(Merged):
    """Incremental LoRA: one adapter per domain, with the earlier ones frozen and summed.

    It is O-LoRA (arXiv 2310.14152) without its orthogonality terms, the baseline "IncLoRA" of arXiv 2406.17245. In
    domain t a layer computes W x + s · Σ_{i ≤ t} B_i A_i x with s = α / r, and only A_t and B_t are trained. Frozen
    adapters are never needed separately, so B_i A_i is added to W in float32 when domain i ends: the function is the
    same, the cost is that of one adapter, and every stage is a plain model.

    In addition, each stage stores all changes of the stream as one adapter of the base model, of rank t · r: s · [B_1 …
    B_t] [A_1; …; A_t]. With quantised weights (QLoRA, arXiv 2305.14314) B_i A_i is added to the float32 ones.
    """

    name = "inc_lora"
    title = "IncLoRA"
    summary = "one adapter per domain, merged"
    paper = "https://arxiv.org/abs/2310.14152"
    parts: ClassVar[int] = 1
    """The number of adapters of rank r that represent the change of a domain."""

    class Config(MergedConfig):
        """Options of IncLoRA, by PEFT's names."""

    config: Config
    _adapters = ByDomain()
    """The adapter of every learnt domain, by PEFT's names."""
    _learnt_with = Fact("config", dict[str, Any], beside="_adapters")

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: finished adapters are stored individually, and combined as the adapter of the stage."""
        count = self._numbers(model)
        return Cost(
            memory_bytes=8 * count,
            disk_bytes_per_domain=4 * count,
            adapter_bytes_per_domain=4 * count,
            parameters=count,
        )

    def _keep(self, domain: str, learnt: dict[str, Tensor]) -> None:
        self._learnt_with = self.config.model_dump(mode="json")
        self._adapters[domain] = learnt

    def peft_adapter(self, model: nn.Module, base: Callable[[], nn.Module]) -> PeftAdapter | None:
        """Return the adapters of all domains, concatenated; rows of tokens are those of the last one.

        DoRA learns W_t = diag(m_t / ‖·‖) (W_{t−1} + s B_t A_t), where ‖·‖ is the norm of each row of the matrix in
        parentheses. With D the product of these factors so far this is D (W + s Σ_i D_{i−1}⁻¹ B_i A_i), again a DoRA
        adapter.
        """
        if not self._adapters:
            return None
        start, parts = base() if self.config.use_dora else model, dict[str, Tensor]()
        for path in self._targets(model):
            key = f"base_model.model.{path}."
            adapters = [
                {name.removeprefix(key): value for name, value in learnt.items() if name.startswith(key)}
                for learnt in self._adapters.values()
            ]
            if self.config.use_dora:
                adapters = self._on_the_base(start.get_submodule(path), adapters)
                name = next(name for name in adapters[-1] if MAGNITUDE in name)
                parts[key + name] = adapters[-1][name]
            parts[key + A] = torch.cat([part[A] for part in adapters])
            parts[key + B] = torch.cat([part[B] for part in adapters], dim=1)
        parts |= {name: value for name, value in [*self._adapters.values()][-1].items() if TOKENS in name}
        config = self._lora(model, self.parts * len(self._adapters))
        config.inference_mode, config.task_type = True, TASKS.get(kind_of(model))
        return PeftAdapter(config, parts, alone=not self.merges)

    def _on_the_base(self, module: nn.Module, learnt: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Convert DoRA adapters that were trained in sequence to parts of one adapter of the base model, in float64."""
        weight = matrix_of(module).cpu().double()
        factor, converted = torch.ones(len(weight), dtype=torch.float64), []
        for part in learnt:
            name = next(name for name in part if MAGNITUDE in name)
            b, magnitude = part[B].double() / factor[:, None], part[name].double()
            weight = weight + self._scale * b @ part[A].double()
            norm = weight.norm(dim=1)
            factor = magnitude.flatten() * factor.sign() / norm
            converted.append(part | {B: b.float(), name: (factor * norm).reshape(magnitude.shape).float()})
        return converted
