"""A frozen model that teaches the trained one."""

from __future__ import annotations

import contextlib
import copy
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from accelerate.utils import get_mixed_precision_context_manager
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.base import FORWARD, Batch, Cost, Method, Stage
from everlearn.methods.distillation.comparisons import Distance
from everlearn.methods.engine.anchor import Anchor
from everlearn.model.objectives import IGNORE, View
from everlearn.model.sharding import divide_layers, is_divided, layers_of, on_host
from everlearn.model.vocabulary_head import LogitLoss, logits_of


class WithTeacher(Method):
    """A method with a frozen model, which exists while a domain is learnt.

    Under FSDP2 its layers are divided over the processes while the model is.
    """

    reads_shards = True

    _teacher: nn.Module | None = None

    @property
    def teacher(self) -> nn.Module:
        """The frozen model.

        Raises:
            MethodError: no domain has begun.
        """
        if self._teacher is None:
            raise MethodError(f"Method '{self.label}' has no teacher: run `begin_domain` before the first step.")
        return self._teacher

    def begin_training(self, stage: Stage) -> None:
        """Divide the layers of the teacher, where FSDP2 has divided the model."""
        if self._teacher is not None and is_divided(stage.model):
            divide_layers(self._teacher, stage.model)

    def end_domain(self, stage: Stage) -> None:
        self._teacher = None


def teacher_of(stage: Stage, anchor: Anchor = "last") -> nn.Module:
    """Return a frozen copy, in evaluation mode, of the model that the domain starts from, or the pre-trained model.

    Under FSDP2 it is in the host's memory until the training begins: no device holds two complete models.
    """
    if anchor == "base":
        base = stage.checkpoints[0]
        return (base if stage.sharded else base.to(next(stage.model.parameters()).device)).requires_grad_(False)
    with on_host(stage.undivided) if stage.sharded else contextlib.nullcontext():
        answering = stage.answering
        own = copy.deepcopy(answering) if stage.as_tested is None else answering
    return own.requires_grad_(False).eval()


def cost_of_teacher(model: nn.Module) -> Cost:
    """Return the cost of a teacher: a copy of the model and its pass.

    What is not divided under FSDP2 is what lies outside of layers, and one gathered layer.
    """
    layers = [_bytes_of(layer) for layer in layers_of(model)]
    total = _bytes_of(model)
    return Cost(
        memory_bytes=total,
        whole_bytes=total - sum(layers) + max(layers, default=0),
        host_bytes=total,
        passes_per_step=FORWARD,
    )


def _bytes_of(module: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in [*module.parameters(), *module.buffers()])


def answers_beside(stage: Stage, teacher: nn.Module, batch: Batch, temperature: float, of: Distance) -> View:
    """Return a view of the batch's own rows with a loss against the predictions of a teacher on the same input.

    See :func:`distance_from`; the batch locates the labels.
    """
    with torch.no_grad(), rounding_like(stage.model):
        features = stage.objective.label_features(teacher, batch)
    return View(None, None, batch["labels"], batch.get("positions"), distance_from(teacher, features, temperature, of))


def distance_from(teacher: nn.Module, features: Tensor, temperature: float, of: Distance) -> LogitLoss:
    """Return the loss of a view: the distance of its predictions from those of a teacher.

    Args:
        teacher: a model with the same vocabulary.
        features: what its head reads for each label of the view, [b · K, H].
        temperature: the divisor of the logits of both.
        of: distance between the log-probabilities of teacher and student.
    """

    def answers(logits: Tensor, labels: Tensor, at: slice) -> Tensor:
        with torch.no_grad():
            old = F.log_softmax(logits_of(teacher, features[at]) / temperature, -1)
        return of(old, F.log_softmax(logits / temperature, -1)).masked_fill(labels == IGNORE, 0)

    return answers


def rounding_like(student: nn.Module) -> AbstractContextManager[Any]:
    """Return a context in which a teacher computes in the precision of its student.

    Accelerate implements mixed precision by replacing the forward of the student (the earlier one is stored as
    ``_original_forward``). A teacher without it would differ from an equal student by rounding. Its forward cannot be
    reused, because a student with PEFT adapters is of another class than a teacher without them.
    """
    if "_original_forward" not in vars(student):
        return contextlib.nullcontext()
    mixed: AbstractContextManager[Any] = get_mixed_precision_context_manager(native_amp=True)
    return mixed
