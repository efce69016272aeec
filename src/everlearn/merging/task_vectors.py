"""Merging methods that add task vectors τᵢ = θᵢ − θ₀, sparsified and summed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from everlearn.merging.base import MergeMethod, TensorGroup, Weighted, bounded, register_merge_method, weighted
from everlearn.model.weight_movement import Weights
from everlearn.seeding import seed_for

_HALF = 2**16
_CHUNK = 2**24
"""Number of entries counted at once."""


def largest_of(tensors: Callable[[], Iterable[Tensor]], share: float) -> Tensor:
    """Return the absolute value that the `share` of largest entries reach; entries equal to it are included.

    The bits of positive float32 numbers are ordered like the numbers. So counting the upper 16 bits finds the bin of
    the threshold, and counting the lower 16 bits within that bin finds the threshold: two passes, and 2¹⁶ counters.

    Args:
        tensors: returns the tensors, again at each call; entries are read as float32.
        share: in (0, 1].

    Returns:
        A float32 scalar; of N entries at least max(1, round(share · N)) reach it.
    """
    counts = torch.zeros(_HALF, dtype=torch.int64)
    for bits in _bits(tensors()):
        counts += torch.bincount(bits >> 16, minlength=_HALF)
    above = max(1, round(share * int(counts.sum())))
    upper, above = _place(counts, above)
    counts.zero_()
    for bits in _bits(tensors()):
        counts += torch.bincount(bits[bits >> 16 == upper] & (_HALF - 1), minlength=_HALF)
    lower, _ = _place(counts, above)
    return torch.tensor((upper << 16) | lower, dtype=torch.int32).view(torch.float32)


def _bits(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield absolute values as integers in the same order."""
    for tensor in tensors:
        for part in tensor.flatten().split(_CHUNK):
            yield part.abs().float().view(torch.int32).long()


def _place(counts: Tensor, n: int) -> tuple[int, int]:
    """Return the bin of the n-th largest entry, and its rank within the bin."""
    from_above = counts.flip(0).cumsum(0)
    place = int(torch.searchsorted(from_above, n))
    return len(counts) - 1 - place, n - (int(from_above[place - 1]) if place else 0)


class VectorOptions(Weighted):
    """Common options of methods with task vectors."""

    scale: float = 1.0
    """λ, the factor of the merged task vector."""
    since: Literal["base", "before"] = "base"
    """Start of a task vector: the base model; or, for the stages of one run, the previous checkpoint, so that each is
    the change of its own stage."""


class TaskVectors(MergeMethod):
    """Base class: θ = θ₀ + λ · combined(τ₁, …, τₙ)."""

    needs_base = True
    least = 1

    def merged(self, group: TensorGroup) -> Tensor:
        vectors = [self.thinned(group.name, i, vector) for i, vector in enumerate(self._vectors(group))]
        weights = self.config.weights or (1.0,) * len(vectors)
        return group.origin + self.config.scale * self.combined(vectors, weights)

    def _vectors(self, group: TensorGroup) -> list[Tensor]:
        before = [group.origin, *group.models] if self.config.since == "before" else [group.origin] * len(group.models)
        return [after - earlier for after, earlier in zip(group.models, before, strict=False)]

    def thinned(self, name: str, number: int, vector: Tensor) -> Tensor:
        """Return the task vector of one tensor of checkpoint `number`, sparsified."""
        return vector

    def combined(self, vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """Combine several vectors into one."""
        return weighted(vectors, weights)


@register_merge_method
class TaskArithmetic(TaskVectors):
    """Task arithmetic (arXiv 2212.04089, eq. 1): θ = θ₀ + λ Σ wᵢ τᵢ; a negative weight unlearns."""

    name = "task_arithmetic"
    title = "Task arithmetic"
    paper = "https://arxiv.org/abs/2212.04089"

    class Config(VectorOptions):
        scale: float = 0.4
        """λ. The paper chooses it on held-out data, mostly 0.3 to 0.5."""


def elected(vectors: Sequence[Tensor], weights: Sequence[float], tie: Tensor | None = None) -> Tensor:
    """Elect signs and average the entries that agree (TIES, steps 2 and 3).

    The sign at each entry is that of Σ wᵢ τᵢ; the result is the weighted mean of the entries that have it.

    Args:
        vectors: τᵢ.
        weights: wᵢ, above 0.
        tie: sign of entries whose sum is 0; by default they become 0.
    """
    weights = bounded(weights)
    stacked = torch.stack([vector * weight for vector, weight in zip(vectors, weights, strict=True)])
    sign = stacked.sum(0).sign()
    if tie is not None:
        sign = torch.where(sign == 0, tie, sign)
    agrees = (stacked.sign() == sign) & (stacked != 0)
    count = torch.tensor(list(weights), dtype=stacked.dtype).view(-1, *[1] * (stacked.dim() - 1))
    return (stacked * agrees).sum(0) / (agrees * count).sum(0).clamp(min=torch.finfo(stacked.dtype).tiny)


@register_merge_method
class TIES(TaskVectors):
    """TIES-Merging (arXiv 2306.01708, algorithm 1): trim, elect signs, merge the entries that agree.

    Each τᵢ keeps the share `keep` of its largest entries, over the whole model. γ = sgn(Σ τ̂ᵢ), and each entry becomes
    the mean of the τ̂ᵢ whose sign is γ there. θ = θ₀ + λ τ.
    """

    name = "ties"
    title = "TIES"
    paper = "https://arxiv.org/abs/2306.01708"

    class Config(VectorOptions):
        weights: tuple[float, ...] | None = Field(default=None, min_length=1)
        """One weight above 0 for each checkpoint: it multiplies the vector before signs are elected (as in mergekit),
        and the mean is divided by the sum of those that agree. The paper has none: 1 each."""
        keep: float = Field(0.2, gt=0, le=1)
        """Share of the entries that trimming keeps; 0.2 in the paper, with λ = 1."""
        trim: Literal["model", "tensor"] = "model"
        """Trim over the whole model at once (the paper), or over each tensor (mergekit)."""
        zero: Literal["none", "majority", "plus"] = "none"
        """Sign of an entry whose vectors cancel out: none, so nothing is added (the paper's equation); that of the
        majority of the model (its released code); or + (mergekit)."""

        @field_validator("weights")
        @classmethod
        def _positive(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
            if value is not None and min(value) <= 0:
                raise ValueError("must be above 0: signs are elected with them")
            return value

    def begin(self, models: Sequence[Weights], base: Weights, losses: Sequence[float] | None) -> None:
        names = [name for name in base.shapes() if base.read(name).is_floating_point()]
        before = [base, *models] if self.config.since == "before" else [base] * len(models)
        self._least: list[Tensor] = []
        self._tie = torch.tensor(1.0) if self.config.zero == "plus" else None

        def vector(number: int, name: str) -> Tensor:
            return models[number].read(name).double() - before[number].read(name).double()

        if self.config.trim == "model":
            for i in range(len(models)):
                tensors = functools.partial(map, functools.partial(vector, i), names)
                self._least.append(largest_of(tensors, self.config.keep))
            self.facts["thresholds"] = [float(each) for each in self._least]
        if self.config.zero == "majority":
            total = 0.0
            for name in names:
                thin = [self.thinned(name, i, vector(i, name)) for i in range(len(models))]
                total += float(weighted(thin, self.config.weights or (1.0,) * len(models)).sign().sum())
            self._tie = torch.tensor(total).sign()

    def thinned(self, name: str, number: int, vector: Tensor) -> Tensor:
        least = self._least[number] if self._least else largest_of(lambda: iter([vector]), self.config.keep)
        return torch.where(vector.abs().float() >= least, vector, 0.0)

    def combined(self, vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        return elected(vectors, weights, self._tie)


@register_merge_method
class DARE(TaskVectors):
    """DARE (arXiv 2311.03099, eq. 1 to 3): drop entries of each τᵢ with probability p, and rescale the rest.

    θ = θ₀ + λ Σ wᵢ mᵢ τᵢ / (1 − p), mᵢ ~ Bernoulli(1 − p). It was designed for the small deltas of supervised
    fine-tuning (below about 0.005); those of continued pre-training are larger, and a high p destroys them.
    """

    name = "dare"
    title = "DARE"
    paper = "https://arxiv.org/abs/2311.03099"

    class Config(VectorOptions):
        drop: float = Field(0.2, ge=0, lt=1)
        """p. The authors use 0.2 for merging models and 0.9 for the fine-tuning of one model; their code has 0.1."""
        rescale: Literal["expectation", "norm", "none"] = "expectation"
        """Rescale by 1 / (1 − p) (the paper); to the original L1 norm of the tensor's vector (mergekit); or not at
        all."""
        elect: bool = False
        """Elect signs afterwards and merge the entries that agree, like TIES without trimming."""
        seed: int = Field(0, ge=0)
        """Seed of the masks, which also depend on the name of the tensor and the position of the checkpoint."""

        @field_validator("elect")
        @classmethod
        def _positive_weights(cls, value: bool, info: ValidationInfo) -> bool:
            if value and min(info.data.get("weights") or (1.0,)) <= 0:
                raise ValueError("needs `weights` above 0: signs are elected with them")
            return value

    def thinned(self, name: str, number: int, vector: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed_for("dare", self.config.seed, name, number))
        kept = vector * (torch.rand(vector.shape, generator=generator) >= self.config.drop)
        if self.config.rescale == "expectation":
            return kept / (1 - self.config.drop)
        if self.config.rescale == "norm":
            left = float(kept.abs().sum())
            return kept * (float(vector.abs().sum()) / left) if left else kept
        return kept

    def combined(self, vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        return elected(vectors, weights) if self.config.elect else super().combined(vectors, weights)


@register_merge_method
class ModelStock(MergeMethod):
    """Model Stock (arXiv 2403.19522, eq. 2): θ = t θ̄ + (1 − t) θ₀, t = N cos φ / (1 + (N − 1) cos φ), by tensor.

    cos φ is the mean cosine between pairs of the τᵢ. If it is negative the models do not agree on anything, and t is 0.
    """

    name = "model_stock"
    title = "Model Stock"
    paper = "https://arxiv.org/abs/2403.19522"
    needs_base = True

    def merged(self, group: TensorGroup) -> Tensor:
        mean = torch.stack(list(group.models)).mean(0)
        cosine = _mean_cosine([(model - group.origin).flatten() for model in group.models])
        count = len(group.models)
        share = 1.0 if cosine is None else max(0.0, count * cosine / (1 + (count - 1) * max(0.0, cosine)))
        return group.origin + share * (mean - group.origin)


def _mean_cosine(vectors: Sequence[Tensor]) -> float | None:
    """Return the mean cosine over all pairs; None if a vector is 0 and has no direction."""
    lengths = [float(vector.norm()) for vector in vectors]
    if not all(lengths):
        return None
    unit = torch.stack([vector / length for vector, length in zip(vectors, lengths, strict=True)])
    products, count = unit @ unit.T, len(vectors)
    return float((products.sum() - products.trace()) / (count * (count - 1)))
