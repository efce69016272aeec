"""Store the outcomes of one checkpoint on one task, example by example; all scores are computed from these.

Files are ``evaluation/stage-NN/<held-out set>.safetensors`` and ``evaluation/stage-NN/tasks/<end task>.safetensors``,
where NN is the number of the row (00 is the base model). A file holds a tensor for each outcome, and facts as JSON in
its header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from everlearn import files
from everlearn.errors import RunError

TEXT, CLASSIFICATION = "text", "classification"
"""The kinds of held-out text and of fine-tuned classifiers."""
_HEADER, _PARTS = "everlearn", ("given", "outcomes")


@dataclass(frozen=True, eq=False)
class Cell:
    """Hold the outcomes of one checkpoint on one task.

    Attributes:
        kind: kind of the task (:data:`everlearn.evaluation.task.TASK_KINDS`).
        task: name of the task, which is a column of tables.
        row: label of the checkpoint: ``base``, the domain learnt last, or the user's name for it.
        outcomes: outcomes of the model: name → array [..., n] over the n examples (held-out blocks, test examples).
            Outcomes of several fine-tunings are [seeds, n]. Metrics read them.
        given: properties of the examples, the same for every model: name → array [n]. Metrics read them too.
        facts: further facts of the task that a metric needs, as JSON; the same for every model.
        seeds: seeds of the fine-tunings; a single one if nothing is random.
        texts: texts that the model generated, [n]; empty if it generated none.
        fingerprint: hash of the task and its examples; empty if unknown.
    """

    kind: str
    task: str
    row: str
    outcomes: Mapping[str, NDArray[Any]]
    given: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    texts: tuple[str, ...] = ()
    fingerprint: str = ""

    def __post_init__(self) -> None:
        shapes = {name: array.shape for name, array in {**self.given, **self.outcomes}.items()}
        if len({shape[-1] for shape in shapes.values()}) != 1:
            raise ValueError(f"The outcomes of '{self.task}' have different numbers of examples: {shapes}.")

    def __len__(self) -> int:
        """Return the number of examples."""
        return int(next(iter(self.outcomes.values())).shape[-1])

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return an outcome, or a property of the examples."""
        return self.outcomes[name] if name in self.outcomes else self.given[name]

    def __contains__(self, name: object) -> bool:
        return name in self.outcomes or name in self.given

    def same_examples(self, other: Cell) -> bool:
        """Return whether both were measured on the same examples, so that a paired comparison is possible."""
        known = self.fingerprint and other.fingerprint
        return (
            self.kind == other.kind
            and (self.fingerprint == other.fingerprint or not known)
            and self.given.keys() == other.given.keys()
            and all(np.array_equal(array, other.given[name]) for name, array in self.given.items())
            and dict(self.facts) == dict(other.facts)
        )

    def save(self, path: Path) -> None:
        """Write the cell to a file, atomically."""
        tensors = {
            f"{part}.{name}": torch.from_numpy(np.ascontiguousarray(array))
            for part in _PARTS
            for name, array in getattr(self, part).items()
        }
        header = {
            name: getattr(self, name) for name in ("kind", "task", "row", "facts", "seeds", "texts", "fingerprint")
        }
        files.save_tensors(path, tensors, {_HEADER: json.dumps(header)}, sealed=True)

    @classmethod
    def load(cls, path: Path) -> Cell:
        """Read a cell that :meth:`save` wrote.

        Raises:
            RunError: the file is missing or damaged; the message names it.
        """
        files.check(path)
        try:
            with safe_open(path, "numpy") as file:
                facts = json.loads((file.metadata() or {})[_HEADER])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            parts: Any = {part: {} for part in _PARTS}
            for name, array in tensors.items():
                part, _, own = name.partition(".")
                parts[part][own] = array
            seeds, texts = tuple(facts.pop("seeds")), tuple(facts.pop("texts"))
            return cls(**facts, **parts, seeds=seeds, texts=texts)
        except FileNotFoundError:
            raise RunError(f"{path} is missing.") from None
        except (OSError, SafetensorError, LookupError, ValueError, TypeError, AttributeError) as error:
            raise RunError(f"{path} is damaged: {error}.") from error


def text_cell(
    nats: NDArray[Any],
    items: NDArray[Any],
    bytes_per_token: float,
    content_nats: NDArray[Any] | None = None,
    content_items: NDArray[Any] | None = None,
    *,
    given: Mapping[str, NDArray[Any]] | None = None,
    task: str = "",
    row: str = "",
    mark: str = "",
) -> Cell:
    """Make the cell of a held-out set's losses.

    Args:
        nats: sum of the negative log-likelihoods of each block's labels, [n].
        items: number of labels of each block, [n].
        bytes_per_token: UTF-8 bytes of the text for each label.
        content_nats: the same for labels that are content tokens; None if these are not scored apart.
        content_items: number of content tokens of each block, [n].
        given: ``bytes`` of each block's labels, [n], and the number of its ``document``, [n], if known.
        task: name of the set.
        row: label of the checkpoint.
        mark: fingerprint of the set.
    """
    outcomes = {"nats": np.asarray(nats, np.float64)}
    given = {"items": np.asarray(items, np.int64), **(given or {})}
    if content_nats is not None:
        outcomes["content_nats"] = np.asarray(content_nats, np.float64)
        given["content_items"] = np.asarray(content_items, np.int64)
    facts = {"bytes_per_token": float(bytes_per_token)}
    return Cell(TEXT, task, row, outcomes, given, facts, fingerprint=mark)


def classification_cell(
    truth: NDArray[Any],
    predictions: NDArray[Any],
    classes: NDArray[Any],
    seeds: tuple[int, ...],
    f1: str = "macro",
    *,
    task: str = "",
) -> Cell:
    """Make the cell of the predictions of a checkpoint's fine-tunings.

    Args:
        truth: label numbers of the test set, [n].
        predictions: predicted label numbers, [seeds, n].
        classes: label numbers of the training set, sorted.
        seeds: seed of each fine-tuning.
        f1: the F1 of the metric ``f1`` for this task: macro or micro.
        task: name of the end task.
    """
    outcomes, properties = {"predictions": np.asarray(predictions, np.int64)}, {"truth": np.asarray(truth, np.int64)}
    facts = {"classes": np.asarray(classes).tolist(), "f1": f1}
    return Cell(CLASSIFICATION, task, "", outcomes, properties, facts, tuple(seeds))


ALONE = "alone"
"""Folder of models trained on one domain alone: of their runs in the run folder, of their cells in ``evaluation``."""


def set_path(folder: Path, row: int, name: str) -> Path:
    """Return the file of a held-out set's cell in a row; `folder` is the run's ``evaluation``."""
    return folder / f"stage-{row:02d}" / f"{name}.safetensors"


def alone_path(folder: Path, name: str) -> Path:
    """Return the file of the cell of a domain that was trained alone; `folder` is the run's ``evaluation``."""
    return folder / ALONE / f"{name}.safetensors"


def task_path(folder: Path, row: int, name: str) -> Path:
    """Return the file of an end task's cell in a row; `folder` is the run's ``evaluation``."""
    return folder / f"stage-{row:02d}" / "tasks" / f"{name}.safetensors"
