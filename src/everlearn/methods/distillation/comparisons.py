"""Distributions and distances by which distillation compares a student and its teacher.

A distance takes log-probabilities of the teacher first and of the student second, over tokens, features or other texts.
It sums over this dimension only; the caller averages over labels, tokens or texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from everlearn.methods.engine.processes import everywhere, rank

Distance = Callable[[Tensor, Tensor], Tensor]
"""Function from log-probabilities of a teacher and of its student, [..., n] each, to a distance, [...]."""
Compared = Literal["representations", "logits", "batch", "queue"]
Divergence = Literal["forward_kl", "reverse_kl", "squared"]


def forward_kl(old: Tensor, new: Tensor) -> Tensor:
    """Return KL(teacher ‖ student) = Σ p (log p − log q), p the teacher's."""
    return (old.exp() * (old - new)).sum(-1)


def reverse_kl(old: Tensor, new: Tensor) -> Tensor:
    """Return KL(student ‖ teacher) = Σ q (log q − log p), q the student's."""
    return forward_kl(new, old)


def cross_entropy(old: Tensor, new: Tensor) -> Tensor:
    """Return H = −Σ p log q: the forward divergence plus the entropy of the teacher, a constant."""
    return -(old.exp() * new).sum(-1)


DISTANCES: Mapping[str, Distance] = {"forward_kl": forward_kl, "reverse_kl": reverse_kl}


def softened(of: Distance, temperature: float) -> Distance:
    """Return T² times a distance."""
    return lambda old, new: temperature**2 * of(old, new)


def over_texts(values: Tensor, counted: Tensor | None) -> Tensor:
    """Average values, [B, S], over the counted positions of each text (None: all), then over texts, to [].

    Every text has the same weight, and the result does not depend on how a batch is divided.
    """
    if counted is None:
        return values.mean(1).mean()
    return ((values * counted).sum(1) / counted.sum(1).clamp(min=1)).mean()


def texts_of(hidden: Tensor, counted: Tensor | None) -> Tensor:
    """Return a unit vector for each text, [B, H] float32: the normalised mean of its hidden states, [B, S, H]."""
    hidden = hidden.float()
    if counted is None:
        return F.normalize(hidden.mean(1), dim=-1)
    return F.normalize((hidden * counted[:, :, None]).sum(1), dim=-1)


def among_the_batch(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines of each text with all other texts, by teacher and by student, [B, n − 1] each from [B, H].

    The texts of all processes are included. A text is not compared with itself, as the cosine of 1 would get most of
    the probability without any information.
    """
    first = rank() * len(student)
    own = torch.arange(first, first + len(student), device=student.device)
    cosines = []
    for texts in (teacher, student):
        pairs = texts @ everywhere(texts).T
        # Index cyclically from the text itself: a boolean mask would require a device synchronisation.
        others = torch.arange(1, pairs.shape[1], device=pairs.device)
        cosines.append(pairs.gather(1, (own[:, None] + others) % pairs.shape[1]))
    return cosines[0], cosines[1]


def against_a_queue(student: Tensor, teacher: Tensor, queue: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines of teacher and student, [B, K + 1] each, with K queued texts and with the teacher's vector.

    See arXiv 2101.04731, eq. 2 and 3; vectors in the queue are the teacher's.
    """
    itself = [(texts * teacher).sum(-1, keepdim=True) for texts in (teacher, student)]
    return torch.cat([teacher @ queue.T, itself[0]], 1), torch.cat([student @ queue.T, itself[1]], 1)


class TextQueue:
    """The teacher's vectors of the last texts trained on by all processes, oldest first; it advances once per step.

    Args:
        size: K, the number of texts.

    Attributes:
        texts: [n, H] float32, n up to K; not a slice of a longer tensor, which would stay in memory.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.texts = torch.empty(0)
        self._waiting: list[Tensor] = []

    def beside(self, texts: Tensor) -> Tensor:
        """Return the queue on the device of some texts, [n, H]."""
        if not len(self.texts):
            return texts[:0]
        self.texts = self.texts.to(texts.device)
        return self.texts

    def add(self, texts: Tensor) -> None:
        """Add the texts of a micro-batch, [B, H], which enter the queue at the end of the step."""
        self._waiting = [torch.cat([*self._waiting, everywhere(texts.detach())])[-self.size :].clone()]

    def move(self) -> None:
        """Advance the queue at the end of a step: the texts of the step enter, the oldest leave."""
        if self._waiting:
            known = [self.texts.to(self._waiting[0].device)] if len(self.texts) else []
            self.texts, self._waiting = torch.cat([*known, *self._waiting])[-self.size :].clone(), []
