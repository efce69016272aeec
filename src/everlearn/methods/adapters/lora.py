"""LoRA: one low-rank adapter of the base model, trained on the whole stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.adapters.low_rank import Merged, MergedConfig, sets_weights
from everlearn.methods.base import Cost, Setting, Stage, register
from everlearn.methods.state import Fact, Tensors
from everlearn.model.anatomy import kind_of
from everlearn.model.peft_adapter import TASKS, PeftAdapter
from everlearn.model.quantising import is_quantised, quantised_like


@register
class LoRA(Merged):
    """Low-rank adaptation (arXiv 2106.09685, eq. 3) with one adapter for all domains.

    It is the baseline "LoRA" (SeqLoRA) of arXiv 2310.14152 and 2406.17245. A layer computes W_0 x + s · B A x with s =
    α / r. W_0 is always that of the base model; A and B continue from one domain to the next. The optimizer starts
    anew.

    Each stage is a plain model with weights W_0 + s · B A, computed from the base model's W_0 in float32. A domain
    begins by restoring W_0, bit for bit as in the base model, so nothing is ever subtracted and rounding errors do not
    accumulate.
    """

    name = "lora"
    title = "LoRA"
    summary = "one low-rank adapter for all domains"
    paper = "https://arxiv.org/abs/2106.09685"
    kinds = ("trick",)
    needs = replace(Merged.needs, base_model=True)
    onto: ClassVar[int] = 0

    class Config(MergedConfig):
        """Options of LoRA, by PEFT's names."""

    config: Config
    _adapter = Tensors(beside="_domains")
    _domains = Fact("domains", list[str], beside="_adapter")
    """A and B of each layer under PEFT's names, and the domains that they have learnt."""

    def check(self, setting: Setting) -> None:
        super().check(setting)
        for other in setting.methods:
            if sets_weights(other):
                raise MethodError(
                    f"Method '{other.label}' changes weights of the base model, but method '{self.label}' restores "
                    "them at the beginning of each domain. Remove one of them."
                )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of the adapter, which is stored as memory and as the adapter of the stage."""
        count = self._numbers(model)
        return Cost(memory_bytes=4 * count, disk_bytes=8 * count, parameters=count)

    def attach(self, stage: Stage) -> None:
        """Replace W_0 + s B A by W_0 with A and B beside it: the same function."""
        if self._adapter:
            self._restore_base(stage)
        super().attach(stage)
        self._fill(stage.model, self._adapter, complete=True)

    def _restore_base(self, stage: Stage) -> None:
        base = stage.checkpoints[0]
        if is_quantised(stage.model):
            stage.model = quantised_like(base, stage.model)
            return
        with torch.no_grad():
            for path in self._targets(stage.model):
                stage.model.get_parameter(f"{path}.weight").copy_(base.get_parameter(f"{path}.weight"))

    def _keep(self, domain: str, learnt: dict[str, Tensor]) -> None:
        self._adapter, self._domains = learnt, [*self._domains, domain]

    def peft_adapter(self, model: nn.Module, base: Callable[[], nn.Module]) -> PeftAdapter | None:
        """Return A and B unchanged."""
        if not self._adapter:
            return None
        config = self._lora(model)
        config.inference_mode, config.task_type = True, TASKS.get(kind_of(model))
        return PeftAdapter(config, self._adapter, alone=not self.merges)
