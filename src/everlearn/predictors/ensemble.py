"""Combine several predictors into one by mixing their probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from everlearn.predictors.decoding import Continuation
from everlearn.predictors.predictor import Batch, Predictor, Tune

Mix = Literal["mean", "geometric", "confident", "by_confidence", "by_entropy"]


def equal(best: Tensor, entropy: Tensor) -> Tensor:
    """Return log w_m for w_m = 1/M: the mean probability."""
    return torch.full_like(best, -math.log(len(best)))


def confident(best: Tensor, entropy: Tensor) -> Tensor:
    """Return log w_m for w_m = 1 for the member with the highest max p_m (the first of equal ones), otherwise 0."""
    first = best.argmax(0, keepdim=True)
    return torch.full_like(best, -torch.inf).scatter(0, first, 0.0)


def by_confidence(best: Tensor, entropy: Tensor) -> Tensor:
    """Return log w_m for w_m ∝ max p_m."""
    return torch.log_softmax(best, 0)


def by_entropy(best: Tensor, entropy: Tensor) -> Tensor:
    """Return log w_m for w_m ∝ exp(−H(p_m)), H in nats."""
    return torch.log_softmax(-entropy, 0)


WEIGHTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": equal,
    "confident": confident,
    "by_confidence": by_confidence,
    "by_entropy": by_entropy,
}
"""Functions from the log-probability of each member's most likely outcome and the entropy of its distribution, [M, …]
each, to the logarithms of the weights, [M, …]. A weight does not depend on the target."""


def weighted(likely: Tensor, weights: Tensor) -> Tensor:
    """Return log Σ_m w_m p_m for log-probabilities [M, …] and logarithms of weights [M, …]."""
    return torch.logsumexp(likely + weights, 0)


def geometric(likely: Tensor) -> Tensor:
    """Return the normalised mean of the log-probabilities: a product of experts, each with power 1/M."""
    return torch.log_softmax(likely.mean(0), -1)


def mixed(likely: Tensor, mix: Mix) -> Tensor:
    """Return the ensemble's log-probabilities, […, outcomes], from those of the members, [M, …, outcomes]."""
    if mix == "geometric":
        return geometric(likely)
    entropy = torch.special.entr(likely.exp()).sum(-1)
    return weighted(likely, WEIGHTS[mix](likely.amax(-1), entropy)[..., None])


def together(members: Sequence[Predictor], inputs: Batch, mix: Callable[[Tensor], Tensor]) -> Continuation:
    """Continue rows with several predictors, for which each token is chosen from their mixed probabilities."""
    parts = [member.continuation(inputs) for member in members]
    likely = [next(part) for part in parts]
    while True:
        chosen = yield mix(torch.stack(likely))
        likely = [part.send(chosen) for part in parts]


@dataclass(frozen=True)
class Ensemble(Predictor):
    """Several predictors whose distributions are mixed, for each token when they generate.

    Attributes:
        members: at least one.
        mix: how the distributions are mixed: weighted (:data:`WEIGHTS`) or multiplied (``geometric``). A product has no
            losses of labels, since they cannot be computed from the probabilities of the label.
    """

    members: tuple[Predictor, ...]
    mix: Mix = "mean"

    def label_losses(self, batch: Batch) -> Tensor:
        if self.mix == "geometric":
            raise self._cannot("with `mix: geometric` gives no losses of labels (`mix: mean` does)")
        if self.mix == "mean":
            losses = torch.stack([member.label_losses(batch) for member in self.members])
            return -weighted(-losses, equal(losses, losses))  # where there is no label every loss is 0, and so is this
        losses, best, entropy = torch.stack([member.certainty(batch) for member in self.members], 1)
        return -weighted(-losses, WEIGHTS[self.mix](-best, entropy))

    def likely(self, batch: Batch) -> Tensor:
        return mixed(torch.stack([member.likely(batch) for member in self.members]), self.mix)

    def fine_tuned(self, tune: Tune) -> Predictor:
        return replace(self, members=tuple(member.fine_tuned(tune) for member in self.members))

    def class_probabilities(self, inputs: Batch) -> Tensor:
        probabilities = torch.stack([member.class_probabilities(inputs) for member in self.members])
        return mixed(probabilities.log(), self.mix).exp()

    def values(self, inputs: Batch) -> Tensor:
        """Return the mean of the members' values, whatever the mixture: a value says nothing of confidence."""
        return torch.stack([member.values(inputs) for member in self.members]).mean(0)

    def continuation(self, inputs: Batch) -> Continuation:
        return together(self.members, inputs, lambda likely: mixed(likely, self.mix))
