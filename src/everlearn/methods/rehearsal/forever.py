"""FOREVER: replay old rows when the weights have moved by given distances, and constrain the weights meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from everlearn.data.blocks import Block
from everlearn.data.reservoir import Reservoir
from everlearn.methods.base import Batch, Cost, Method, MethodConfig, Needs, Setting, Stage, View, register
from everlearn.methods.cost import usual_row
from everlearn.methods.rehearsal.rows_in_batch import own_rows, refuse_encoder_decoder, refuse_other_width
from everlearn.methods.state import Fact, Tensors, TextRows
from everlearn.model.objectives import Outputs, row_means
from everlearn.model.sharding import local, local_part, shard_like, sum_over_shards, value_over_shards
from everlearn.ranges import Around, ranges
from everlearn.seeding import seed_for

USUAL_ROWS = 10_000
"""Assumed number of rows of a domain that is not known."""
EMA, LOWEST, HIGHEST = 0.05, 0.5, 3.0
"""Decay of the moving average of step lengths, and the limits of the factor of β."""


@dataclass
class Clock:
    """How far training on a domain has moved the weights.

    Attributes:
        moved: τ, the sum of Δ_t = ‖θ_t − θ_{t−1}‖ over the steps of the domain.
        day: the sum over its first S steps.
        recent: μ, the mean Δ of the first S steps, then the moving average.
        events: number of replays that have begun.
        left: number of remaining steps of the current replay.
    """

    moved: float = 0.0
    day: float = 0.0
    recent: float = 0.0
    events: int = 0
    left: int = 0

    def tick(self, step: int, moved: float, warm_up: int, days: Sequence[float], lasts: int) -> None:
        """Advance the clock after step number `step`, counted from 1."""
        self.moved += moved
        self.left = max(0, self.left - 1)
        if step <= warm_up:
            self.day += moved
            self.recent = self.day / step
        else:
            self.recent += EMA * (moved - self.recent)
        if step < warm_up or not self.day:
            return
        due = self.events
        while due < len(days) and self.moved >= days[due] * self.day:
            due += 1
        if due > self.events:  # several that are due at once count as one
            self.events, self.left = due, lasts

    def strength(self, base: float, gamma: float, warm_up: int) -> float:
        """Return β: `base` times 1 + γ (μ / μ₀ − 1), within bounds."""
        ratio = self.recent * warm_up / self.day if self.day else 1.0
        return base * min(max(1 + gamma * (ratio - 1), LOWEST), HIGHEST)


@register
class Forever(Method):
    """FOREVER (arXiv 2601.03938): replay old rows at the days of a forgetting curve, by the movement of the weights.

    With Δ_t = ‖θ_t − θ_{t−1}‖ over all trained weights, τ = Σ Δ_t over a domain, and a day as long as its first S
    steps, a replay begins when τ ≥ d · day for the next d of 1, 2, 4, 7, 15, 30. During a replay, the loss of a step is

        L_t + L_old + β Σ ‖θ − θ*‖²,   β = β₀ · clip(1 + γ (μ_t / μ_0 − 1), 0.5, 3),

    where L_old is the loss of as many old rows as the batch has, sampled uniformly, in the pass of the batch; θ* are
    the weights at the beginning of the domain; μ_0 is the mean Δ of the first S steps and μ_t = 0.95 μ_{t−1} + 0.05
    Δ_t. A share of the rows of each domain is stored. Decreasing learning rates slow the clock down, so later replays
    are further apart.

    Neither paper nor code was available: this follows descriptions of it. They do not state γ, the duration of a replay
    (here as many steps as a pass over the stored rows) and whether training on the domain continues meanwhile (here it
    does).
    """

    name = "forever"
    title = "FOREVER"
    summary = "replays when the weights have moved by given distances"
    paper = "https://arxiv.org/abs/2601.03938"
    kinds = ("replay", "prior-focused")
    needs = Needs(old_data=True)
    reads_shards = True
    identity: ClassVar[dict[str, Any] | None] = {"sample": 0}

    class Config(MethodConfig):
        sample: float = Field(0.02, ge=0, le=1)
        """Share of the rows of each domain that is stored, at least one row; 0 is plain training."""
        warm_up: int = Field(24, ge=1)
        """S, the number of steps that define a day."""
        days: tuple[float, ...] = Field((1, 2, 4, 7, 15, 30), min_length=1)
        """Starts of the replays, in days."""
        strength: float = Field(1e-3, ge=0, allow_inf_nan=False)
        """β₀; 0 does not constrain the weights."""
        gamma: float = Field(1.0, ge=0, allow_inf_nan=False)
        """γ, the sensitivity of β to the length of steps relative to the first day. Our value."""

        @field_validator("days")
        @classmethod
        def _increasing(cls, value: tuple[float, ...]) -> tuple[float, ...]:
            if min(value) < 1 or list(value) != sorted(set(value)):
                raise ValueError("must increase from 1 or more, because the first day determines the length of a day")
            return value

    search = ranges(strength=Around(30))
    config: Config
    _kept = TextRows("rows/", lambda: Reservoir(1, 0))  # used as a list of rows; nothing is sampled
    _start = Tensors("start/", parameters=True)
    _clock = Fact("clock", Clock, beside="_start")
    """The stored rows and, while a domain is learnt, θ* and the clock."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.needs = replace(type(self).needs, old_data=self.config.sample > 0)
        # The sharded parameters, which are replaced by gathered ones during a step.
        self._trained: list[nn.Parameter] = []
        self._held: list[Tensor] = []
        self._before: list[Tensor] = []

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if self.config.sample:
            refuse_encoder_decoder(self, setting)

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: θ* and θ_{t−1}; the rows of one domain of usual size, and their passes in each replay."""
        if not self.config.sample:
            return Cost()
        numbers = sum(parameter.numel() for parameter in model.parameters())
        rows = math.ceil(self.config.sample * USUAL_ROWS) * usual_row(getattr(model, "config", None)) * 12
        share = min(1.0, len(self.config.days) * self.config.sample)
        return Cost(
            memory_bytes=8 * numbers + rows, whole_bytes=rows, disk_bytes_per_domain=rows, passes_per_step=share
        )

    # -- a domain ----------------------------------------------------------------------------------------------

    def begin_training(self, stage: Stage) -> None:
        """Set θ* to the weights at the beginning of the domain; a resumed stage has it in its memory."""
        if not len(self._kept):
            return
        trained = {name: p for name, p in stage.model.named_parameters() if p.requires_grad}
        self._trained = list(trained.values())
        self._start = self._start or {name: p.detach().clone() for name, p in trained.items()}
        self._held = [shard_like(self._start[name], p, torch.float32) for name, p in trained.items()]
        self._before = [local(p).clone() for p in self._trained]

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        """Select as many old rows as the batch has, during a replay."""
        if not self._clock.left:
            return {}
        ids = batch["input_ids"]
        refuse_other_width(self, stage, len(self._kept.blocks[0]["input_ids"]), batch)
        # Row i of a domain's training gets the same old row for any batch size and number of processes.
        numbers = list(range(stage.row, stage.row + len(ids)))
        chosen = [seed_for(stage.seed, self.name, stage.index, row) % len(self._kept) for row in numbers]
        blocks: list[Block] = [self._kept.blocks[row] for row in chosen]
        old = stage.objective.reseeded(stage.seed, self.name, stage.index).collate(blocks, numbers)
        return {name: value.to(ids.device) for name, value in old.items()}

    def views(self, stage: Stage, batch: Batch) -> list[View]:
        old = own_rows(self, batch)
        if not old:
            return []
        return [View(stage.objective.inputs(old), labels=old["labels"], positions=old.get("positions"))]

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return L_old, averaged over rows, and β Σ ‖θ − θ*‖²."""
        if not outputs.view_losses or (nats := outputs.view_losses[0]) is None:
            return {}
        losses = {"replay": row_means(nats, batch[f"{self.name}/labels"])}
        if self.config.strength:
            apart = [local_part(p).float() - start for p, start in zip(self._trained, self._held, strict=True)]
            terms = torch.stack([each.square().sum() for each in apart])
            beta = self._clock.strength(self.config.strength, self.config.gamma, self.config.warm_up)
            losses["anchor"] = beta * value_over_shards(terms, self._trained).sum()
        return losses

    @torch.no_grad()
    def after_step(self, stage: Stage) -> None:
        """Advance the clock; the decision about a replay is made on the CPU, which waits for the step."""
        if not self._before:
            return
        moved = []
        for parameter, old in zip(self._trained, self._before, strict=True):
            moved.append((local(parameter).float() - old.float()).square().sum())
            old.copy_(local(parameter))
        length = float(sum_over_shards(torch.stack(moved), self._trained).sum().sqrt())
        lasts, before = math.ceil(len(self._kept) / stage.rows_per_step), self._clock.events
        self._clock.tick(stage.step + 1, length, self.config.warm_up, self.config.days, lasts)
        if self._clock.events > before:
            stage.log({"step": stage.step + 1, "replay_of_day": self.config.days[self._clock.events - 1]})

    def end_domain(self, stage: Stage) -> None:
        if not self.config.sample:
            return
        if self._before and not self._clock.events:
            stage.notes.append(
                f"Method '{self.label}' begins to replay after {self.config.warm_up:,} steps (`warm_up`), but "
                f"'{stage.domain}' has {stage.steps:,}: nothing was replayed in it."
            )
        size = stage.source.size if stage.source.size is not None else stage.steps * stage.rows_per_step
        new = list(islice(stage.source.once(seed_for(stage.seed, self.name)), max(1, int(self.config.sample * size))))
        self._kept.blocks = [*self._kept.blocks, *new]
        self._kept.domains = [*self._kept.domains, *[stage.domain] * len(new)]

    def detach(self, stage: Stage) -> None:
        self._clock, self._start = Clock(), {}
        self._trained, self._held, self._before = [], [], []
