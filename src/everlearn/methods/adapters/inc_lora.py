"""IncLoRA: a new low-rank adapter for each domain on top of the frozen sum of the earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from everlearn.methods.adapters.low_rank import MAGNITUDE, A, B, Merged, MergedConfig
from everlearn.methods.base import Cost, Memory, MethodConfig, register
from everlearn.model.anatomy import kind_of
from everlearn.model.peft_adapter import TASKS, PeftAdapter


@register
class IncLoRA(Merged):
    """Incremental LoRA: one adapter per domain, earlier ones frozen and summed (arXiv 2310.14152, without its
    orthogonality terms; the baseline "IncLoRA" of arXiv 2406.17245).

    In domain t a layer computes W x + s · Σ_{i ≤ t} B_i A_i x with s = α / r, and only A_t and B_t are trained. Since
    nothing frozen is ever needed apart, B_i A_i is added to W in float32 when domain i ends: the same function, at the
    cost of one adapter however long the stream is, and every stage is a plain model.

    Beside it each stage keeps all that the stream has changed as one adapter of the base model, of rank t · r:
    s · [B_1 … B_t] [A_1; …; A_t]. A model that is trained on a quantised copy of itself (QLoRA, arXiv 2305.14314) gets
    B_i A_i added to its weights in float32 all the same.
    """

    name = "inc_lora"
    title = "IncLoRA"
    paper = "https://arxiv.org/abs/2310.14152"
    parts: ClassVar[int] = 1
    """What a domain has changed, as so many adapters of rank r."""

    class Config(MergedConfig):
        """Options of IncLoRA, by PEFT's names."""

    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._finished: list[str] = []
        self._adapters: dict[str, Tensor] = {}

    def cost(self, model: nn.Module) -> Cost:
        """The adapter's parameters; finished adapters are kept, one by one and together as the stage's."""
        count = self._numbers(model)
        return Cost(
            memory_bytes=8 * count,
            disk_bytes_per_domain=4 * count,
            adapter_bytes_per_domain=4 * count,
            parameters=count,
        )

    def _keep(self, domain: str, learnt: dict[str, Tensor]) -> None:
        self._finished = [*self._finished, domain]
        self._adapters |= {f"{domain}/{name}": value for name, value in learnt.items()}

    def peft_adapter(self, model: nn.Module, base: Callable[[], nn.Module]) -> PeftAdapter | None:
        """The adapters of all domains side by side.

        DoRA learns W_t = diag(m_t / ‖·‖) (W_{t−1} + s B_t A_t), ‖·‖ the norm of each row of what follows it. With D the
        product of these factors so far this is D (W + s Σ_i D_{i−1}⁻¹ B_i A_i), once more a DoRA adapter.
        """
        if not self._finished:
            return None
        start, parts = base() if self.config.use_dora else model, dict[str, Tensor]()
        for path in self._targets(model):
            key = f"base_model.model.{path}."
            found = [self._of(f"{domain}/{key}") for domain in self._finished]
            if self.config.use_dora:
                found = self._on_the_base(start.get_submodule(path), found)
                name = next(name for name in found[-1] if MAGNITUDE in name)
                parts[key + name] = found[-1][name]
            parts[key + A] = torch.cat([part[A] for part in found])
            parts[key + B] = torch.cat([part[B] for part in found], dim=1)
        config = self._lora(model, self.parts * len(self._finished))
        config.inference_mode, config.task_type = True, TASKS.get(kind_of(model))
        return PeftAdapter(config, parts, alone=not self.merges)

    def _of(self, key: str) -> dict[str, Tensor]:
        return {name.removeprefix(key): value for name, value in self._adapters.items() if name.startswith(key)}

    def _on_the_base(self, module: nn.Module, learnt: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """DoRA adapters that were learnt one on top of the other, as parts of one on the base (float64 inside)."""
        weight = module.get_parameter("weight").detach().cpu().double()
        weight = weight.T if isinstance(module, Conv1D) else weight
        factor, found = torch.ones(len(weight), dtype=torch.float64), []
        for part in learnt:
            name = next(name for name in part if MAGNITUDE in name)
            b, magnitude = part[B].double() / factor[:, None], part[name].double()
            weight = weight + self._scale * b @ part[A].double()
            norm = weight.norm(dim=1)
            factor = magnitude.flatten() * factor.sign() / norm
            own = {B: b.float(), name: (factor * norm).reshape(magnitude.shape).float()}
            found.append(part | own)
        return found

    def memory(self) -> Memory:
        """Every finished domain's adapter under "<domain>/<PEFT name>": publish it, or subtract it again."""
        if not self._finished:
            return Memory()
        facts = {"domains": list(self._finished), "config": self.config.model_dump(mode="json")}
        return Memory(dict(self._adapters), facts)

    def load_memory(self, memory: Memory) -> None:
        """Take the finished adapters back; the weights they were added to are the model's own."""
        self._adapters = dict(memory.tensors)
        self._finished = list(memory.facts.get("domains", []))
