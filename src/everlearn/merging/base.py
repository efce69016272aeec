"""The interface of merging methods, their registry, and the weighted sums that they share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from everlearn.errors import RecipeError, did_you_mean
from everlearn.model.weight_movement import Weights
from everlearn.options import Options, wrong_option


@dataclass(frozen=True)
class TensorGroup:
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


class MergeMethod:
    """Base class of merging methods. Subclass, set the class attributes, override :meth:`merged`, register.

    Class attributes:
        name: value of `--method` (snake_case).
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
        try:
            self.config = self.Config.model_validate(options)
        except ValidationError as error:
            raise RecipeError(wrong_option(f"`--method {self.name}`", self.Config, error)) from None
        self.facts: dict[str, Any] = {}
        """Computed values for the provenance: weights, thresholds."""

    def check(self, count: int) -> None:
        """Refuse a number of checkpoints that the method or its options do not support."""
        if count < self.least or (self.most is not None and count > self.most):
            number = f"{self.least}" if self.most == self.least else f"{self.least} or more"
            plural = "" if self.most == self.least == 1 else "s"
            beside = " beside the base model" if self.needs_base else ""
            raise RecipeError(f"`--method {self.name}` takes {number} checkpoint{plural}{beside}; there are {count}.")
        weights = getattr(self.config, "weights", None)
        if weights is not None and len(weights) != count:
            raise RecipeError(
                f"`--method {self.name}`, option 'weights': one for each of {count} checkpoints is needed, and "
                f"there are {len(weights)}."
            )

    def begin(self, models: Sequence[Weights], base: Any, losses: Sequence[float] | None) -> None:
        """Compute statistics over all tensors before the first one is merged.

        Args:
            models: the checkpoints.
            base: the :class:`~everlearn.model.weight_movement.Weights` of their base model, if the method needs them.
            losses: mean loss of each checkpoint in nats per token, if the method reads them.
        """

    def merged(self, group: TensorGroup) -> Tensor:
        """Return one tensor of the merged model, float64."""
        raise NotImplementedError


W = TypeVar("W", bound=type[MergeMethod])
MERGE_METHODS: dict[str, type[MergeMethod]] = {}
"""Name → class."""


def register_merge_method(cls: W) -> W:
    """Register a merging method by its name."""
    MERGE_METHODS[cls.name] = cls
    return cls


def make_merge_method(name: str, options: Mapping[str, Any]) -> MergeMethod:
    """Create a merging method by name, with its options.

    Raises:
        RecipeError: there is no such method, or an option is wrong.
    """
    if name not in MERGE_METHODS:
        raise RecipeError(f"There is no merging method '{name}' (`--method`).{did_you_mean(name, MERGE_METHODS)}")
    return MERGE_METHODS[name](**options)


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
