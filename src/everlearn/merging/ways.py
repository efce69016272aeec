"""The base class of merging methods, and weighted means.

A mean has one weight for each checkpoint (or for each entry of it, with Fisher information), which sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from pydantic import Field, ValidationError, field_validator
from torch import Tensor

from everlearn.errors import RecipeError, did_you_mean
from everlearn.model.movement import Weights
from everlearn.options import Options, key_of, wrong_value


@dataclass(frozen=True)
class Same:
    """The same tensor of every checkpoint.

    Attributes:
        name: name of the tensor.
        models: float64, in the order of the checkpoints.
        base: float64; None if the method reads no base model.
        fisher: Fisher diagonals of the tensor, one per checkpoint, if the method reads them and the tensor has them.
    """

    name: str
    models: Sequence[Tensor]
    base: Tensor | None = None
    fisher: Sequence[Tensor] | None = None

    @property
    def origin(self) -> Tensor:
        """The tensor of the base model."""
        if self.base is None:
            raise ValueError("this merging method declares no base model")
        return self.base


class Way:
    """Base class of merging methods. Subclass, set the class attributes, override :meth:`merged`, register.

    Class attributes:
        name: value of `--way` (snake_case).
        title: its name as the paper writes it.
        paper: URL.
        needs_base: whether it reads the base model of the checkpoints.
        least, most: the number of checkpoints it takes; None: any number.
        reads: what is measured of each checkpoint on a text: nothing, its loss, or its Fisher information.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    needs_base: ClassVar[bool] = False
    least: ClassVar[int] = 2
    most: ClassVar[int | None] = None
    reads: ClassVar[Literal["nothing", "losses", "fisher"]] = "nothing"

    class Config(Options):
        """Options of the method."""

    config: Any

    def __init__(self, **options: Any) -> None:
        """Set the options by name.

        Raises:
            RecipeError: an option is unknown or its value is not allowed; the message names it.
        """
        self.config = self._checked(options)
        self.facts: dict[str, Any] = {}
        """Computed values for the provenance: weights, thresholds."""

    @classmethod
    def _checked(cls, options: Mapping[str, Any]) -> Options:
        try:
            return cls.Config.model_validate(options)
        except ValidationError as error:
            first, *others = error.errors()
            key = ".".join(map(str, key_of(first)))
            if first["type"] == "extra_forbidden":
                near = did_you_mean(key, cls.Config.model_fields)
                raise RecipeError(f"`--way {cls.name}` has no option '{key}'.{near}") from None
            others = [each for each in others if key_of(each) == key_of(first)]
            raise RecipeError(f"`--way {cls.name}`, option '{key}': {wrong_value(first, *others)}.") from None

    def check(self, count: int) -> None:
        """Refuse a number of checkpoints that the method or its options do not support."""
        if count < self.least or (self.most is not None and count > self.most):
            number = f"{self.least}" if self.most == self.least else f"{self.least} or more"
            plural = "" if self.most == self.least == 1 else "s"
            beside = " beside the base model" if self.needs_base else ""
            raise RecipeError(f"`--way {self.name}` takes {number} checkpoint{plural}{beside}; there are {count}.")
        weights = getattr(self.config, "weights", None)
        if weights is not None and len(weights) != count:
            raise RecipeError(
                f"`--way {self.name}`, option 'weights': one for each of {count} checkpoints is needed, and there are "
                f"{len(weights)}."
            )

    def begin(self, models: Sequence[Weights], base: Any, losses: Sequence[float] | None) -> None:
        """Compute statistics over all tensors before the first one is merged.

        Args:
            models: the checkpoints.
            base: the :class:`~everlearn.model.movement.Weights` of their base model, if the method needs them.
            losses: mean loss of each checkpoint in nats per token, if the method reads them.
        """

    def merged(self, same: Same) -> Tensor:
        """Return one tensor of the merged model, float64."""
        raise NotImplementedError


W = TypeVar("W", bound=type[Way])
WAYS: dict[str, type[Way]] = {}
"""Name → class."""


def register_way(cls: W) -> W:
    """Register a merging method by its name."""
    WAYS[cls.name] = cls
    return cls


def make_way(name: str, options: Mapping[str, Any]) -> Way:
    """Create a merging method by name, with its options.

    Raises:
        RecipeError: there is no such method, or an option is wrong.
    """
    if name not in WAYS:
        raise RecipeError(f"There is no way '{name}' (`--way`).{did_you_mean(name, WAYS)}")
    return WAYS[name](**options)


def weighted(models: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return Σ wᵢ θᵢ."""
    total = torch.zeros_like(models[0])
    for model, weight in zip(models, weights, strict=True):
        total.add_(model, alpha=weight)
    return total


def bounded(weights: Sequence[float]) -> list[float]:
    """Scale weights to at most 1 by a power of two, without rounding, so that their sum cannot overflow."""
    exponent = math.frexp(max(weights))[1]
    return [math.ldexp(weight, -exponent) for weight in weights]


def normalised(weights: Sequence[float] | None, count: int) -> list[float]:
    """Return weights that sum to 1; equal ones by default."""
    values = [1.0] * count if weights is None else bounded(weights)
    return [weight / math.fsum(values) for weight in values]


class Weighted(Options):
    """Base class of options with a weight for each checkpoint."""

    weights: tuple[float, ...] | None = Field(default=None, min_length=1)
    """One weight for each checkpoint, in their order; equal by default."""


class MeanOptions(Weighted):
    """Options of a mean: weights are divided by their sum, so none may be negative."""

    weights: tuple[float, ...] | None = Field(default=None, min_length=1)
    """One weight for each checkpoint, in their order, 0 or more; divided by their sum. Equal by default."""

    @field_validator("weights")
    @classmethod
    def _not_negative(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if value is not None and (min(value) < 0 or not max(value)):
            raise ValueError("must be 0 or more, and one of them above 0")
        return value


@register_way
class Mean(Way):
    """The weighted mean θ = Σ wᵢ θᵢ / Σ wᵢ (model soups, arXiv 2203.05482).

    Over all stages of a run it is the running average of the stage checkpoints, θ̄ₙ = θ̄ₙ₋₁ + (θₙ − θ̄ₙ₋₁) / n.
    """

    name = "mean"
    title = "Mean"
    paper = "https://arxiv.org/abs/2203.05482"

    class Config(MeanOptions):
        """Options of the mean."""

    def merged(self, same: Same) -> Tensor:
        return weighted(same.models, normalised(self.config.weights, len(same.models)))


@register_way
class WiSELine(Way):
    """WiSE-FT (arXiv 2109.01903, eq. 1): θ = (1 − α) θ₀ + α θ₁ for every tensor."""

    name = "wise_ft"
    title = "WiSE-FT"
    paper = "https://arxiv.org/abs/2109.01903"
    needs_base = True
    least = most = 1

    class Config(Options):
        alpha: float = Field(0.5, ge=0, le=1)
        """α, the weight of the checkpoint; ½ is the paper's recommendation if nothing can be measured."""

    def merged(self, same: Same) -> Tensor:
        return weighted([same.origin, same.models[0]], [1 - self.config.alpha, self.config.alpha])


DECAYS = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    "sqrt": lambda x: 1 - math.sqrt(x),
}
"""Shapes of a learning-rate decay: from 1 at x = 0 to 0 at x = 1."""


@register_way
class WSM(Way):
    """WSM (arXiv 2507.17634): Σ cⱼ θⱼ over the last checkpoints of a constant learning rate emulates its decay.

    θⱼ = θ₀ + u₁ + … + uⱼ, so the update uᵢ has the weight wᵢ = Σ_{j≥i} cⱼ. For a decay w₀ = 1 ≥ w₁ ≥ … ≥ w_k of the k
    updates between k + 1 checkpoints, cⱼ = wⱼ − wⱼ₊₁ and c_k = w_k. The decay ends one update after the last one: wᵢ =
    to + (1 − to) · d(i / (k + 1)); `linear` to 0 is the mean.
    """

    name = "wsm"
    title = "WSM"
    paper = "https://arxiv.org/abs/2507.17634"

    class Config(Options):
        decay: Literal["linear", "cosine", "sqrt"] = "linear"
        """The shape d: 1 − x, (1 + cos πx) / 2 or 1 − √x."""
        to: float = Field(0.0, ge=0, le=1)
        """End of the decay, as a share of the initial rate."""

    def coefficients(self, count: int) -> list[float]:
        """Return c₀ … c_k, which sum to 1."""
        decay, to = DECAYS[self.config.decay], self.config.to
        w = [to + (1 - to) * decay(i / count) for i in range(count)] + [0.0]
        return [w[j] - w[j + 1] for j in range(count)]

    def merged(self, same: Same) -> Tensor:
        self.facts["coefficients"] = self.coefficients(len(same.models))
        return weighted(same.models, self.facts["coefficients"])


@register_way
class Cocktail(Way):
    """LM-Cocktail (arXiv 2311.13534): θ = α θ_T + (1 − α) Σ wᵢ θᵢ, w = softmax(−Lᵢ / T).

    Lᵢ is the mean loss of checkpoint i on a few examples of the target (`--text`). θ_T is the last checkpoint; with α =
    0 there is none, and all are weighted by their losses (`mix_models_with_data` of the released code).
    """

    name = "cocktail"
    title = "LM-Cocktail"
    paper = "https://arxiv.org/abs/2311.13534"
    reads = "losses"

    class Config(Options):
        temperature: float = Field(5.0, gt=0)
        """T; 5.0 in the released code, whose docstring says 3.0."""
        alpha: float = Field(0.0, ge=0, le=1)
        """α, the weight of the last checkpoint, the model that was tuned on the target; ½ in the paper's experiments.
        The others are weighted by their losses; 0 weights all by their losses."""

    def begin(self, models: Sequence[Weights], base: Any, losses: Sequence[float] | None) -> None:
        logits = [-loss / self.config.temperature for loss in losses or ()]
        logits = logits[:-1] if self.config.alpha else logits
        shares = normalised([math.exp(each - max(logits)) for each in logits], len(logits))
        own = [self.config.alpha] if self.config.alpha else []
        self.facts |= {"losses": list(losses or ()), "weights": [(1 - self.config.alpha) * w for w in shares] + own}

    def merged(self, same: Same) -> Tensor:
        return weighted(same.models, self.facts["weights"])


@register_way
class FisherMean(Way):
    """Fisher-weighted merging (arXiv 2111.09832, eq. 4): θ = Σ wᵢ Fᵢ θᵢ / Σ wᵢ Fᵢ, entry by entry.

    Fᵢ is the Fisher diagonal of checkpoint i on text that it knows (`--text`): the empirical one, with the labels of
    the text (the paper's expectation is over labels of the model). With a base model, one checkpoint and the weights 1
    − α and α it is the Fisher-weighted form of WiSE-FT.
    """

    name = "fisher"
    title = "Fisher merging"
    paper = "https://arxiv.org/abs/2111.09832"
    reads = "fisher"

    class Config(MeanOptions):
        floor: float = Field(1e-6, gt=0)
        """Smallest value of an entry of a Fisher diagonal, as a share of the tensor's mean over all checkpoints, so
        that entries that matter to no checkpoint become their mean. The released code uses an absolute 1e-6, although
        entries are smaller in larger models."""

    def merged(self, same: Same) -> Tensor:
        weights = normalised(self.config.weights, len(same.models))
        if same.fisher is None:  # nothing that is trained
            return weighted(same.models, weights)
        mean = sum(float(fisher.double().mean()) for fisher in same.fisher) / len(same.fisher)
        if mean == 0:  # no checkpoint needs any of it
            return weighted(same.models, weights)
        kept = [fisher.clamp(min=self.config.floor * mean) for fisher in same.fisher]
        above = weighted([f * model for f, model in zip(kept, same.models, strict=True)], weights)
        return above / weighted(kept, weights)
