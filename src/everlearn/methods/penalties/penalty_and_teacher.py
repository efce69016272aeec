"""The base class of methods with a penalty on the weights and a frozen copy of the earlier model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from everlearn.methods.base import Batch, Cost, MethodConfig, Needs, Setting, Stage
from everlearn.methods.distillation.teacher import WithTeacher, cost_of_teacher, teacher_of
from everlearn.methods.penalties.ewc import EWC
from everlearn.methods.state import Nested


class PenaltyAndTeacher(WithTeacher):
    """Base class of methods that constrain weights (by a penalty) and outputs (by a teacher) at once.

    The pre-trained model is protected from the first domain on. The teacher is a copy made when a domain begins; it is
    not part of the trained model, of its checkpoints or of the memory. Under DDP every process holds a complete one,
    under FSDP2 a part of its layers.
    """

    kinds = ("prior-focused", "data-focused")
    needs = Needs(importance_pass=True, peft=False, predictions=True, memory="statistics")
    importance_samples = True

    _penalty = Nested(at="weights")

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.weights: EWC = self.penalty()
        self.weights.label = self.label
        self.needs = replace(type(self).needs, importance_pass=self.weights.needs.importance_pass)

    def penalty(self) -> EWC:
        """Return the penalty on the weights."""
        raise NotImplementedError

    @property
    def has_teacher(self) -> bool:
        """Return whether the method uses an earlier model."""
        raise NotImplementedError

    def check(self, setting: Setting) -> None:
        super().check(setting)
        self.weights.label = self.label
        self.weights.check(replace(setting, methods=tuple(m for m in setting.methods if m is not self)))

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of the penalty, plus the teacher (dropped before measurements) and its forward pass."""
        beside = self.weights.cost(model)
        if not self.has_teacher:
            return beside
        teacher = cost_of_teacher(model)
        return replace(
            beside,
            memory_bytes=beside.memory_bytes + teacher.memory_bytes,
            whole_bytes=beside.undivided_bytes + teacher.undivided_bytes,
            host_bytes=teacher.host_bytes,
            measuring_bytes=max(0, beside.measuring_bytes - teacher.memory_bytes),
            passes_per_step=teacher.passes_per_step,
        )

    def begin_domain(self, stage: Stage) -> None:
        self.weights.begin_domain(stage)
        if self.has_teacher:
            self._teacher = teacher_of(stage)

    def begin_training(self, stage: Stage) -> None:
        super().begin_training(stage)
        self.weights.begin_training(stage)

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        return self.weights.before_forward(stage, batch)

    def end_domain(self, stage: Stage) -> None:
        super().end_domain(stage)
        self.weights.end_domain(stage)
