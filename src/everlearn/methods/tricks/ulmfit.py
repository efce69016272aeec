"""ULMFiT: learning rates by depth, a slanted triangular schedule, and gradual unfreezing from the top."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from everlearn.methods.base import MethodConfig, Needs, Setting, Stage, Variant, register
from everlearn.methods.engine.attachment import refuse_frozen_model
from everlearn.methods.tricks.depth import Thaws, scaled_rates
from everlearn.model.depth import depth_groups

SLACK = 1e-9
"""Keeps a product such as 0.1 · 30 from being rounded down below an integer."""


@register
class ULMFiT(Thaws):
    """The fine-tuning procedure of ULMFiT (arXiv 1801.06146, section 3).

    Discriminative rates, η^(l−1) = η^l / 2.6 from the head down; slanted triangular rates (eq. 3),

    cut = ⌊T f⌋,  p = t/cut below cut, then 1 − (t − cut)/(T − cut),  η_t = η_max · (1 + p (ratio − 1)) / ratio;

    and gradual unfreezing: the head is trained first, then one more layer after each phase, the embeddings last. Frozen
    layers have no gradient (:class:`~everlearn.methods.tricks.depth.Thaws`). The paper's cut · (1/f − 1) in place of
    T − cut is equal if T f is an integer, and gives negative rates otherwise.
    """

    name = "ulmfit"
    title = "ULMFiT"
    summary = "learning rates by depth, a triangular schedule, gradual unfreezing"
    paper = "https://arxiv.org/abs/1801.06146"
    needs = Needs(anatomy=True)
    identity: ClassVar[dict[str, Any] | None] = {"decay": 1, "ratio": None, "unfreeze": 0}
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant(
            name="ulmfit_lm_released",
            title="ULMFiT (released, language model)",
            description="As the authors' code fine-tunes a language model: rates η/6, η/3, η for thirds of the layers "
            "and η/2 for the head; no layer is frozen.",
            options={"divisors": (6, 3, 1, 2), "unfreeze": 0},
        ),
        Variant(
            name="ulmfit_classifier_released",
            title="ULMFiT (released, classifier)",
            description="As the authors' code trains a classifier: five parts with rates η/2.6⁴ to η; first the last "
            "part, then the last two, then all are trained; a triangle from η/8 for each of these phases.",
            options={
                "divisors": (2.6**4, 2.6**3, 2.6**2, 2.6, 1),
                "ratio": 8,
                "cut": 1 / 8,
                "phase_cut": 1 / 3,
                "alone": 2,
            },
        ),
    )

    class Config(MethodConfig):
        decay: float = Field(2.6, ge=1, allow_inf_nan=False)
        """Divisor of the rate from one depth to the one below. The published 2.6 is for three layers; below twelve
        layers it leaves 1/95,000."""
        divisors: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = ()
        """Instead of `decay`, divisors of the rate for two or more parts of the model: the last is the head, the others
        are equal parts of embeddings and layers."""
        ratio: float | None = Field(32.0, ge=1, allow_inf_nan=False)
        """η_max divided by the rate at both ends of the triangle; None keeps the schedule of `train`."""
        cut: float = Field(0.1, gt=0, lt=1)
        """f, the share of the steps in which the rate rises."""
        phase_cut: float | None = Field(None, gt=0, lt=1)
        """If set, each phase of the unfreezing has its own triangle with this f, and `cut` is that of the steps after
        the last thaw."""
        unfreeze: float = Field(0.5, ge=0, le=1)
        """The share of a domain's steps after which all parts are trained; 0: all from the beginning. The paper uses
        one epoch per phase, and continues until nothing improves."""
        alone: int | None = Field(None, ge=1)
        """Number of phases before all remaining parts thaw at once; None: every part has a phase (the paper)."""

        def without_effect(self) -> Iterator[tuple[Sequence[str], str]]:
            if self.divisors:
                yield ("decay",), "with `divisors`, which take its place"
            if self.ratio is None:
                yield ("cut", "phase_cut"), "with `ratio: null`, which keeps the schedule of `train`"

        @field_validator("divisors")
        @classmethod
        def _two_or_more(cls, value: tuple[float, ...]) -> tuple[float, ...]:
            if len(value) == 1:
                raise ValueError(f"must be two or more: the head and the rest each need a divisor (got {value[0]:g})")
            return value

    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.idle = frozenset({"schedule"} if self.config.ratio is None else ())

    def check(self, setting: Setting) -> None:
        super().check(setting)
        refuse_frozen_model(self, setting)

    def parts(self, stage: Stage) -> list[tuple[list[str], float]]:
        """Return the names of the parameters, from the embeddings to the head, with the divisor of their rate."""
        trained = {name for name, p in stage.model.named_parameters() if p.requires_grad}
        depths = [[name for name in names if name in trained] for names in depth_groups(stage.model)]
        depths = [names for names in depths if names]
        *below, head = depths
        divisors = self.config.divisors
        if not divisors:
            return [(names, self.config.decay**number) for number, names in reversed(list(enumerate(depths[::-1])))]
        parts = [(list[str](), divisor) for divisor in divisors[:-1]]
        for number, names in enumerate(below):
            parts[number * len(parts) // len(below)][0].extend(names)
        return [*(part for part in parts if part[0]), (head, divisors[-1])]

    def starts(self, stage: Stage, parts: int) -> list[int]:
        """Return the step at which each part thaws, from the embeddings to the head."""
        phases = min(self.config.alone or parts - 1, parts - 1)
        phase = self.config.unfreeze * stage.steps / max(1, phases)
        return [math.floor(min(number, phases) * phase + SLACK) for number in reversed(range(parts))]

    def parameter_groups(self, stage: Stage, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        parameters = dict(stage.model.named_parameters())
        return scaled_rates(groups, {id(parameters[name]): 1 / by for names, by in self.parts(stage) for name in names})

    def schedule(self, stage: Stage, scheduler: LRScheduler) -> LRScheduler:
        """Return the slanted triangle, or one for each phase and one for the rest."""
        ratio, cut = self.config.ratio, self.config.cut
        if ratio is None:
            return scheduler
        ends = {0, stage.steps}
        if self.config.phase_cut is not None:
            ends |= set(self.starts(stage, len(self.parts(stage))))
        triangles = list(pairwise(sorted(ends)))

        def share(step: int) -> float:
            begin, end = next((each for each in triangles if step < each[1]), triangles[-1])
            rising = cut if self.config.phase_cut is None or end == stage.steps else self.config.phase_cut
            return slanted(step - begin, end - begin, rising, ratio)

        result: Any = LambdaLR(scheduler.optimizer, share)
        return result

    def begin_training(self, stage: Stage) -> None:
        parts = self.parts(stage)
        names = [names for names, _ in parts]
        self.thaw(stage, zip(names, self.starts(stage, len(parts)), strict=True))


def slanted(step: int, steps: int, cut: float, ratio: float) -> float:
    """Return η_t / η_max at a step of a triangle (arXiv 1801.06146, eq. 3)."""
    top = max(1, math.floor(steps * cut + SLACK))
    part = step / top if step < top else 1 - (step - top) / max(1, steps - top)
    return (1 + max(0.0, part) * (ratio - 1)) / ratio
