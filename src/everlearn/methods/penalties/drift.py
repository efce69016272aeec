"""How much of a text is lost, in bits per byte, measured on a few held-out rows of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from everlearn.data.blocks import Block, PackedBlocks
from everlearn.evaluation.perplexity import block_losses
from everlearn.methods.engine.processes import everywhere, processes
from everlearn.methods.stage import Stage
from everlearn.model.modes import as_its_class_computes
from everlearn.model.objectives import IGNORE

MASKS = "drift"
"""Seeds the masks of probes: the same ones in every stage, so that losses can be compared."""
LEVEL = 1.96
"""Standard errors on each side of a measured drift: 95 %."""


@dataclass(frozen=True)
class Drift:
    """Bits per byte that are lost.

    Attributes:
        value: measured; below 0 the text is read better than before.
        error: standard error of it, of a sample of rows.
    """

    value: float
    error: float

    @property
    def interval(self) -> tuple[float, float]:
        """95 %."""
        return self.value - LEVEL * self.error, self.value + LEVEL * self.error


@dataclass
class DriftProbe:
    """A few held-out rows of a text, and how well they were read when it was known.

    Attributes:
        rows: of the text; nothing else of it is kept.
        width: UTF-8 bytes that a label stands for.
        nats: of each row when the text was known, float64 [n]; None before.
    """

    rows: list[Block]
    width: float
    nats: Tensor | None = None

    @classmethod
    def of(cls, rows: list[Block], stage: Stage) -> DriftProbe:
        """These rows."""
        return cls(rows, bytes_per_label(rows, stage))

    def learn(self, stage: Stage) -> None:
        """Remember how well the rows are read now."""
        self.nats = self._losses(stage)[0]

    def first(self, count: int) -> DriftProbe:
        """The first so many of the rows."""
        return DriftProbe(self.rows[:count], self.width, None if self.nats is None else self.nats[:count])

    def drift(self, stage: Stage) -> Drift:
        """How much worse the rows are read now; of a single row nothing says how sure that is: as much as it is."""
        assert self.nats is not None
        now, labels = self._losses(stage)
        lost = now - self.nats
        mean = float(lost.sum() / labels.sum())
        apart, rows = lost - mean * labels, len(lost)
        error = float(apart.square().sum() * rows / max(rows - 1, 1)) ** 0.5 / float(labels.sum())
        bits = math.log(2) * self.width
        return Drift(mean / bits, (error if rows > 1 else abs(mean)) / bits)

    def _losses(self, stage: Stage) -> tuple[Tensor, Tensor]:
        """Nats and labels of each row, float64 [n]; the same on every process.

        In the middle of training, too, without its mixed precision: what was known was measured without, and rounding
        would count as drift."""
        objective, size = stage.objective.reseeded(MASKS), len(self.rows)
        source = PackedBlocks.from_blocks(self.rows, 0, "probe")
        with as_its_class_computes(stage.model):
            found = block_losses(stage.model, source, objective, batch_size=stage.batch_size)
        nats = torch.from_numpy(found.nats)
        if processes() > 1:  # processors that round otherwise would lead the processes' weights apart
            nats = everywhere(nats.to(next(stage.model.parameters()).device))[:size].cpu()
        return nats, torch.from_numpy(found.items).double()


def mean_drift(drifts: Sequence[Drift]) -> Drift:
    """Of several texts, each counting the same."""
    values, errors = ([getattr(each, key) for each in drifts] for key in ("value", "error"))
    return Drift(float(np.mean(values)), float(np.sqrt(np.square(errors).sum()) / len(drifts)))


def bytes_per_label(rows: Sequence[Block], stage: Stage) -> float:
    """UTF-8 bytes of text that a predicted token of these rows stands for; special tokens have none.

    A masked model predicts some of the tokens, so there it is the mean over all but special ones.
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
