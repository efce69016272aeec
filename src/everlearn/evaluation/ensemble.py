"""Several predictors as one: their probabilities are mixed wherever they are asked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from everlearn.evaluation.decoding import Continuation
from everlearn.evaluation.predictor import Batch, Predictor, Tune


def mean(likely: Tensor) -> Tensor:
    """log of the mean probability, log (1/M Σ_m p_m), over the first axis of log-probabilities [M, …]."""
    return torch.logsumexp(likely, 0) - math.log(len(likely))


def geometric(likely: Tensor) -> Tensor:
    """Mean of the log-probabilities, normalised over the last axis: a product of experts, each with power 1/M."""
    return torch.log_softmax(likely.mean(0), -1)


def confident(likely: Tensor) -> Tensor:
    """In each row the distribution of the member whose likeliest outcome is the likeliest."""
    best = likely.amax(-1).argmax(0)
    return likely[best, torch.arange(likely.shape[1], device=likely.device)]


MIXES: dict[str, Callable[[Tensor], Tensor]] = {"mean": mean, "geometric": geometric, "confident": confident}
"""From log-probabilities [members, B, outcomes] to those of the ensemble, [B, outcomes]."""


@dataclass(frozen=True)
class Ensemble(Predictor):
    """Several predictors that answer together, token by token where they write.

    Attributes:
        members: at least one.
        mix: how their distributions become one (:data:`MIXES`). Losses of labels are those of the mean probability
            only: of the other two a label's probability alone does not tell.
    """

    members: tuple[Predictor, ...]
    mix: Literal["mean", "geometric", "confident"] = "mean"

    def label_losses(self, batch: Batch) -> Tensor:
        if self.mix != "mean":
            raise self._cannot(f"with `mix: {self.mix}` gives no losses of labels (`mix: mean` does)")
        losses = torch.stack([member.label_losses(batch) for member in self.members])
        return -mean(-losses)  # where there is no label every loss is 0, and so is this

    def likely(self, batch: Batch) -> Tensor:
        likely = torch.stack([member.likely(batch) for member in self.members])
        return MIXES[self.mix](likely.flatten(1, 2)).view(likely.shape[1:])

    def fine_tuned(self, tune: Tune) -> Predictor:
        return replace(self, members=tuple(member.fine_tuned(tune) for member in self.members))

    def class_probabilities(self, inputs: Batch) -> Tensor:
        found = torch.stack([member.class_probabilities(inputs) for member in self.members])
        return MIXES[self.mix](found.log()).exp()

    def continuation(self, inputs: Batch) -> Continuation:
        parts = [member.continuation(inputs) for member in self.members]
        likely = [next(part) for part in parts]
        while True:
            chosen = yield MIXES[self.mix](torch.stack(likely))
            likely = [part.send(chosen) for part in parts]
