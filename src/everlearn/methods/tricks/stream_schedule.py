"""One learning-rate schedule for the stream: infinite, decreasing peaks, and anneals that branch off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from everlearn.errors import MethodError
from everlearn.methods.base import Cost, Method, MethodConfig, Needs, Setting, Stage, Variant, register
from everlearn.methods.state import Fact, Tensors
from everlearn.methods.tricks.schedule_shapes import (
    Levels,
    Time,
    autoregressive,
    exponentially,
    infinite,
    inverse_sqrt,
    linearly,
)
from everlearn.model.sharding import full_tensor


@dataclass(frozen=True)
class Shape:
    """A schedule.

    Attributes:
        rate: function from a time to the share of the full rate; None leaves it to `train`.
        reads: options that it depends on.
        annealing: options that only its anneal depends on.
        anneal: function from the initial rate, the lowest rate and the progress to a rate; None if it has no anneal.
        restarts: whether it restarts in each domain, independently of the time of the stream.
    """

    rate: Callable[[Levels, Time], float] | None
    reads: frozenset[str]
    annealing: frozenset[str] = frozenset()
    anneal: Callable[[float, float, float], float] | None = None
    restarts: bool = False


SHAPES = {
    "train": Shape(None, frozenset(), restarts=True),
    "infinite": Shape(
        infinite,
        frozenset({"warmup", "cooldown", "cooling", "constant", "minimum", "anneal", "release"}),
        frozenset({"minimum", "release"}),
        exponentially,
    ),
    "inverse_sqrt": Shape(
        inverse_sqrt, frozenset({"warmup", "minimum", "anneal", "release"}), frozenset({"release"}), linearly
    ),
    "autoregressive": Shape(autoregressive, frozenset({"warmup", "minimum"}), restarts=True),
}
EVERYWHERE = {"shape", "gather"}
"""Options that every shape uses."""


@register
class StreamSchedule(Method):
    """A learning-rate schedule over the stream, relative to `train.learning_rate` (of the domain, if it has its own).

    `infinite` (arXiv 2403.08763, section 7.4; 2503.02844): η_max · t/T_w, a cooldown to η_const, then constant for all
    further data; later domains neither warm up nor cool down. `inverse_sqrt` (arXiv 2504.02107): η_min + (η_max −
    η_min) · √(T_w/t). `autoregressive` (same paper): each domain has a warm-up and a cosine to η_min, from peak_i =
    η_min + (η_max − η_min)/2 · (1 + cos(π · i/(i + 1))) in domain i = 0, 1, 2 …

    With `anneal` the rate decreases to η_min at the end of a domain, which gives a model to release; the next domain
    starts from the weights before the anneal, and the time of the stream continues from there. With `gather` a domain
    begins with steps at a rate of 0, in which Adam accumulates its moments. Schedules that `train` supports itself
    (warm-up and cosine in each domain) are configured there.
    """

    name = "stream_schedule"
    title = "Schedule of the stream"
    summary = "one learning-rate schedule over the stream"
    paper = "https://arxiv.org/abs/2403.08763"
    identity: ClassVar[dict[str, Any] | None] = {"shape": "train", "gather": 0}
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant(
            "infinite_schedule",
            "Infinite schedule",
            "Warm-up, cooldown, then one rate for all later domains.",
            {"shape": "infinite"},
        ),
        Variant(
            "autoregressive_schedule",
            "Autoregressive schedule",
            "A warm-up and a cosine in each domain, whose peaks fall to the minimum as about 1 / (i + 1)².",
            {"shape": "autoregressive", "warmup": 0.03, "minimum": 0.1},
            paper="https://arxiv.org/abs/2504.02107",
        ),
        Variant(
            "inverse_sqrt_schedule",
            "Inverse-square-root schedule",
            "An inverse square root over the stream; each domain ends with a linear anneal that branches off from it.",
            {"shape": "inverse_sqrt", "minimum": 0.03, "anneal": 0.2},
            paper="https://arxiv.org/abs/2504.02107",
        ),
    )

    class Config(MethodConfig):
        """Options of the schedule. A duration below 1 is a share of a domain's steps, from 1 on a number of steps."""

        shape: Literal["train", "infinite", "inverse_sqrt", "autoregressive"] = "infinite"
        """The schedule; `train` leaves it to `train.lr_scheduler_type`."""
        warmup: float = Field(0.05, ge=0, allow_inf_nan=False)
        """T_w, a share (below 1) or number of the first domain's steps; of every domain's with `autoregressive`."""
        cooldown: float = Field(0.1, ge=0, allow_inf_nan=False)
        """Duration of the cooldown after the warm-up, as a share (below 1) or a number of the first domain's steps; it
        may extend into later domains."""
        cooling: Literal["cosine", "inverse_sqrt", "linear"] = "cosine"
        """Form of the cooldown."""
        constant: float = Field(0.1, gt=0, le=1)
        """η_const / η_max, the constant rate."""
        minimum: float = Field(0.01, gt=0, le=1)
        """η_min / η_max, the end of anneals, peaks and the inverse square root."""
        anneal: float = Field(0.0, ge=0, allow_inf_nan=False)
        """The last steps of a domain, in which the rate decreases to η_min, as a share (below 1) or a number; 0: none.
        The next domain starts from the weights before them: changes of a domain's final weights by another method
        (`wise_ft`) affect the release only, not later training."""
        release: tuple[str, ...] | None = None
        """The domains that end with an anneal; all by default."""
        gather: float = Field(0.0, ge=0, allow_inf_nan=False)
        """The first steps of a domain with a rate of 0, as a share (below 1) or a number: the optimizer accumulates its
        moments before the first update. They count as steps and read their rows."""

        def without_effect(self) -> Iterator[tuple[Sequence[str], str]]:
            shape = SHAPES[self.shape]
            used = ", ".join(sorted(shape.reads)) or "none of the others"
            yield (
                sorted(type(self).model_fields.keys() - shape.reads - EVERYWHERE),
                (f"with `shape: {self.shape}`, which uses {used}"),
            )
            if not self.anneal:
                yield sorted(shape.annealing), f"with `shape: {self.shape}` if `anneal` is 0"

    config: Config
    _before = Fact("steps", int, of=NonNegativeInt, beside="_first")
    _first = Fact[int | None]("first", lambda: None, of=PositiveInt | None)
    """Number of earlier steps of the stream, and of steps of the first domain."""
    _start = Tensors("start/", parameters=True)
    _trunk = Tensors("trunk/", parameters=True)
    """Weights before the anneal of the last domain, and before that of the current one."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._shape = SHAPES[self.config.shape]
        memory: Literal["nothing", "statistics", "parameters"] = "nothing" if self._shape.restarts else "statistics"
        self.needs = Needs(memory="parameters" if self.config.anneal else memory)
        idle = set() if self.config.anneal else {"starting_weights"}
        self.idle = frozenset(idle | (set() if self._shape.rate or self.config.gather else {"schedule"}))

    def check(self, setting: Setting) -> None:
        """Refuse an anneal with methods that add parameters, which the next domain could not restore."""
        super().check(setting)
        if not self.config.anneal:
            return
        for other in setting.methods:
            if other.adds_peft or other.freezes or other.grows or other.needs.extra_parameters:
                raise MethodError(
                    f"Method '{self.label}', option 'anneal': the next domain starts from the model's weights before "
                    f"it, but method '{other.label}' trains other parameters. Set `anneal: 0`."
                )
        for name in self.config.release or ():
            if setting.domains and name not in setting.domains:
                raise MethodError(
                    f"Method '{self.label}', option 'release': there is no domain '{name}' "
                    f"({', '.join(setting.domains)})."
                )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: with anneals, the weights before one, and during one those before the previous one."""
        if not self.config.anneal:
            return Cost()
        held = 4 * sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        return Cost(memory_bytes=2 * held, disk_bytes=held)

    # -- the rate ----------------------------------------------------------------------------------------------

    def share(self, stage: Stage, step: int) -> float:
        """Return η / η_max at a step of a domain."""
        if self._shape.rate is None:
            return 1.0
        begin = self._annealed_from(stage)
        levels = Levels(self.config.constant, self.config.minimum, self.config.cooling)
        rate = self._shape.rate(levels, self._time(stage, min(step, begin)))
        if step <= begin or self._shape.anneal is None:
            return rate
        return self._shape.anneal(rate, self.config.minimum, (step - begin) / max(1, stage.steps - begin))

    def _time(self, stage: Stage, step: int) -> Time:
        of = stage.steps if self._shape.restarts or self._first is None else self._first
        return Time(
            t=self._before + step,
            step=step,
            steps=stage.steps,
            domain=stage.index - 1,
            warmup=_steps(self.config.warmup, of),
            cooldown=_steps(self.config.cooldown, of),
        )

    def _annealed_from(self, stage: Stage) -> int:
        """Return the step at which the anneal of the domain begins; at least its last step if it has none."""
        released = self.config.release is None or stage.domain in self.config.release
        annealed = _steps(self.config.anneal, stage.steps) if released else 0
        return stage.steps - min(annealed, stage.steps - 1)

    def schedule(self, stage: Stage, scheduler: LRScheduler) -> LRScheduler:
        """Return the schedule, after the gathering steps; that of `train` if the shape is `train`."""
        if "schedule" in self.idle:
            return scheduler
        gathering = _steps(self.config.gather, stage.steps)
        for name, number in (("gather", self.config.gather), ("anneal", self.config.anneal)):
            if number >= max(1, stage.steps):  # a share below 1 is always smaller
                raise MethodError(
                    f"Method '{self.label}', option '{name}': {number:g} steps leave none of the {stage.steps:,} of "
                    f"domain '{stage.domain}' for training. Lower it, or give a share below 1."
                )
        groups = len(scheduler.optimizer.param_groups)
        shares: list[Callable[[int], float]] = [lambda step: self.share(stage, step)] * groups
        if self._shape.rate is None:
            if not isinstance(scheduler, LambdaLR):
                raise MethodError(
                    f"Method '{self.label}', option 'gather': the schedule of `train.lr_scheduler_type` depends on "
                    "measurements instead of the step, so it cannot be delayed. Choose another type."
                )
            shares = list(scheduler.lr_lambdas)
        result: Any = LambdaLR(scheduler.optimizer, [_zero_until(gathering, share) for share in shares])
        return result

    # -- anneals -----------------------------------------------------------------------------------------------

    def starting_weights(self, stage: Stage) -> Mapping[str, Tensor]:
        """Return the weights before the anneal of the last domain."""
        return self._start

    def after_step(self, stage: Stage) -> None:
        """Store the weights right before an anneal."""
        if self.config.anneal and stage.step + 1 == self._annealed_from(stage) < stage.steps:
            trained = {name: p for name, p in stage.model.named_parameters() if p.requires_grad}
            self._trunk = {name: full_tensor(p.detach()).cpu().clone() for name, p in trained.items()}

    def end_domain(self, stage: Stage) -> None:
        """Advance the time of the stream, without the steps of an anneal."""
        if self._shape.restarts:
            return
        self._first = stage.steps if self._first is None else self._first
        # An external trainer may stop early.
        self._before += min(stage.step, self._annealed_from(stage))
        self._start, self._trunk = self._trunk, {}


def _zero_until(first: int, share: Callable[[int], float]) -> Callable[[int], float]:
    """Return a schedule that is 0 before step `first`, and unchanged afterwards."""
    return lambda step: 0.0 if step < first else share(step)


def _steps(number: float, of: int) -> int:
    """Return a number of steps; below 1 it is a share of `of`, rounded."""
    return round(number * of) if number < 1 else int(number)
