"""Minimal pairs: does the model find the good sentence likelier than the bad one?"""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from everlearn.evaluation import Cell, Conditions, Task, TaskConfig, Work, register_kind, register_mean
from everlearn.predictors import Predictor

register_mean("pairs_right", "Pairs right", "pairs_right")


class PairsTask(TaskConfig):
    """Options of an end task of this kind."""

    kind: Literal["pairs"] = "pairs"
    """The likelier of two sentences."""
    paths = ("test",)
    test: str
    """A file of JSON lines with the keys `good` and `bad`."""


@register_kind(PairsTask)
class Pairs(Task):
    """Scores each sentence by itself and compares the two."""

    kind = "pairs"
    config: PairsTask

    @cached_property
    def sentences(self) -> list[str]:
        """Return good and bad sentences in turn."""
        lines = Path(self.config.test).read_text(encoding="utf-8").splitlines()
        return [row[key] for row in map(json.loads, lines) for key in ("good", "bad")]

    def check(self) -> str:
        return f"{len(self.sentences) // 2} pairs"

    def fingerprint(self) -> str:
        return json.dumps(self.sentences)

    def texts(self) -> Sequence[str]:
        return self.sentences

    def work(self, seeds: int) -> Work:
        return Work(units=len(self.sentences), rows=len(self.sentences), tokens=32)

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        losses = np.array([self.loss(text, predictor, conditions) for text in self.sentences]).reshape(-1, 2)
        right = (losses[:, 0] < losses[:, 1]).astype(np.float64)
        return Cell("pairs", self.name, conditions.row, {"pairs_right": right}, fingerprint=self.fingerprint())

    def loss(self, text: str, predictor: Predictor, conditions: Conditions) -> float:
        """Return the mean loss of a sentence's tokens."""
        ids = np.array(conditions.tokenizer(text)["input_ids"], np.int32)
        batch = conditions.objective.collate([{"input_ids": ids, "segments": np.zeros_like(ids)}], [0])
        with torch.no_grad():
            return float(predictor.row_losses({key: value.to(conditions.device) for key, value in batch.items()})[0])
