"""Cells of the score matrix as they are measured and kept: everything else is computed from these.

``evaluation/stage-NN/<set>.safetensors`` holds the losses of a held-out set, ``evaluation/stage-NN/<task>.json`` the
predictions of an end task, where NN is the row of the matrix (00 is the base model).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from everlearn import files
from everlearn.errors import RunError


@dataclass(frozen=True, eq=False)
class LossCell:
    """Losses of one checkpoint on one held-out set.

    Attributes:
        nats: sum of the negative log-likelihoods of each block's labels, float64 [n].
        items: number of labels of each block, int64 [n].
        bytes_per_token: UTF-8 bytes of the set's text per token.
    """

    nats: NDArray[np.float64]
    items: NDArray[np.int64]
    bytes_per_token: float

    @property
    def loss(self) -> float:
        """Mean nats per label."""
        return float(self.nats.sum() / self.items.sum())

    @property
    def perplexity(self) -> float:
        """exp of the mean nats per label."""
        return float(np.exp(self.loss))

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of text; does not depend on the vocabulary (for masked models: of the masked tokens' text)."""
        return self.loss / float(np.log(2)) / self.bytes_per_token

    def save(self, path: Path) -> None:
        """Replace the file atomically."""
        tensors = {
            "nats": torch.from_numpy(np.asarray(self.nats, np.float64)),
            "items": torch.from_numpy(np.asarray(self.items, np.int64)),
            "bytes_per_token": torch.tensor(self.bytes_per_token, dtype=torch.float64),
        }
        files.save_tensors(path, tensors)

    @classmethod
    def load(cls, path: Path) -> LossCell:
        """Read what :meth:`save` wrote.

        Raises:
            RunError: the file is missing or damaged; the sentence names it.
        """
        tensors = files.load_tensors(path)
        try:
            nats, items = tensors["nats"].numpy(), tensors["items"].numpy()
            return cls(nats, items, float(tensors["bytes_per_token"]))
        except KeyError as error:
            raise RunError(f"{path} is damaged: it has no {error}.") from None


@dataclass(frozen=True, eq=False)
class TaskCell:
    """Predictions of one checkpoint's fine-tunings on one end task.

    Attributes:
        truth: label numbers of the test set, int64 [n].
        predictions: predicted label numbers, int64 [seeds, n].
        classes: label numbers that the training set has, int64 [classes], sorted.
        seeds: seed of each fine-tuning.
        f1: which F1 the metric ``f1`` takes for this task.
    """

    truth: NDArray[np.int64]
    predictions: NDArray[np.int64]
    classes: NDArray[np.int64]
    seeds: tuple[int, ...]
    f1: Literal["macro", "micro"] = "macro"

    @property
    def ceiling(self) -> float:
        """Best accuracy that can be had: the share of test examples whose label the training set has."""
        return float(np.isin(self.truth, self.classes).mean())

    def save(self, path: Path) -> None:
        """Replace the file atomically."""
        files.write_json(
            path,
            {
                "classes": self.classes.tolist(),
                "seeds": list(self.seeds),
                "f1": self.f1,
                "truth": self.truth.tolist(),
                "predictions": self.predictions.tolist(),
            },
        )

    @classmethod
    def load(cls, path: Path) -> TaskCell:
        """Read what :meth:`save` wrote.

        Raises:
            RunError: the file is missing or damaged; the sentence names it.
        """
        raw: Any = files.read_json(path)
        try:
            truth, classes = (np.asarray(raw[key], np.int64) for key in ("truth", "classes"))
            seeds = tuple(int(seed) for seed in raw["seeds"])
            predictions = np.asarray(raw["predictions"], np.int64).reshape(len(seeds), len(truth))
            return cls(truth, predictions, classes, seeds, "micro" if raw.get("f1") == "micro" else "macro")
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{path} is damaged: {error}.") from None


def loss_path(folder: Path, row: int, name: str) -> Path:
    """Where a held-out set's losses after `row` domains are kept; `folder` is the run's ``evaluation``."""
    return folder / f"stage-{row:02d}" / f"{name}.safetensors"


def task_path(folder: Path, row: int, name: str) -> Path:
    """Where an end task's predictions after `row` domains are kept; `folder` is the run's ``evaluation``."""
    return folder / f"stage-{row:02d}" / f"{name}.json"
