"""Measure on a few held-out rows how many bits per byte a model has lost on a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from everlearn.data.blocks import Block, PackedBlocks
from everlearn.methods.engine.processes import everywhere, processes
from everlearn.methods.stage import Stage
from everlearn.model.objectives import IGNORE
from everlearn.model.training_mode import as_its_class_computes
from everlearn.predictors.block_losses import block_losses

MASKS = "drift"
"""Seed of the masks of probes: the same in every stage, so that losses are comparable."""
LEVEL = 1.96
"""Standard errors on each side of a measured drift, for 95 %."""


@dataclass(frozen=True)
class Drift:
    """Bits per byte lost on a text.

    Attributes:
        value: the measured value; below 0 the text is predicted better than before.
        error: its standard error, from the sample of rows.
    """

    value: float
    error: float

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval."""
        return self.value - LEVEL * self.error, self.value + LEVEL * self.error


@dataclass
class DriftProbe:
    """A few held-out rows of a text, and their losses right after it was learnt.

    Attributes:
        rows: rows of the text; nothing else of it is stored.
        width: number of UTF-8 bytes per label.
        nats: loss of each row right after the text was learnt, float64 [n]; None before.
    """

    rows: list[Block]
    width: float
    nats: Tensor | None = None

    @classmethod
    def of(cls, rows: list[Block], stage: Stage) -> DriftProbe:
        return cls(rows, bytes_per_label(rows, stage))

    def learn(self, stage: Stage) -> None:
        """Store the current losses of the rows."""
        self.nats = self._losses(stage)[0]

    def first(self, count: int) -> DriftProbe:
        return DriftProbe(self.rows[:count], self.width, None if self.nats is None else self.nats[:count])

    def drift(self, stage: Stage) -> Drift:
        """Return how much the losses have increased; for a single row the error equals the value."""
        assert self.nats is not None
        now, labels = self._losses(stage)
        lost = now - self.nats
        mean = float(lost.sum() / labels.sum())
        apart, rows = lost - mean * labels, len(lost)
        error = float(apart.square().sum() * rows / max(rows - 1, 1)) ** 0.5 / float(labels.sum())
        bits = math.log(2) * self.width
        return Drift(mean / bits, (error if rows > 1 else abs(mean)) / bits)

    def _losses(self, stage: Stage) -> tuple[Tensor, Tensor]:
        """Return nats and number of labels of each row, float64 [n]; the same on every process.

        Mixed precision is off, as for the stored losses; otherwise rounding would count as drift.
        """
        objective, size = stage.objective.reseeded(MASKS), len(self.rows)
        source = PackedBlocks.from_blocks(self.rows, 0, "probe")
        with as_its_class_computes(stage.model):
            losses = block_losses(stage.model, source, objective, batch_size=stage.batch_size)
        nats = torch.from_numpy(losses.nats)
        if processes() > 1:  # different rounding would make the weights of the processes diverge
            nats = everywhere(nats.to(next(stage.model.parameters()).device))[:size].cpu()
        return nats, torch.from_numpy(losses.items).double()


def mean_drift(drifts: Sequence[Drift]) -> Drift:
    """Average the drifts of several texts with equal weights."""
    values, errors = ([getattr(each, key) for each in drifts] for key in ("value", "error"))
    return Drift(float(np.mean(values)), float(np.sqrt(np.square(errors).sum()) / len(drifts)))


def bytes_per_label(rows: Sequence[Block], stage: Stage) -> float:
    """Return the number of UTF-8 bytes of text per predicted token of these rows; special tokens have none.

    A masked model predicts only some tokens, so its mean is over all tokens except special ones.
    """
    ids: list[int] = []
    special = set(stage.tokenizer.all_special_ids)
    for number, row in enumerate(rows):
        batch = stage.objective.collate([row], [number])
        if "plain_ids" in batch:
            ids += [each for each in batch["plain_ids"].flatten().tolist() if each not in special]
        else:
            ids += [each for each in batch["labels"].flatten().tolist() if each != IGNORE]
    text = str(stage.tokenizer.decode(ids, skip_special_tokens=True))
    return max(len(text.encode()), 1) / max(len(ids), 1)
