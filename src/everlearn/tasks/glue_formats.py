"""Define GLUE's nine tasks (arXiv 1804.07461): how they are published, how they are scored, and their options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from everlearn.evaluation.task import TaskConfig

TaskName = Literal["cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte", "wnli"]


@dataclass(frozen=True)
class GlueFormat:
    """How a task is published.

    Attributes:
        folder: folder of its files.
        subset: configuration of the hub's data set.
        texts: columns with one text or two in the files.
        label: column with the label in the files.
        labels: names of the labels by their number; none if the label is a value.
        scores: metrics of the task (:mod:`everlearn.tasks.glue_scores`).
        hub_texts: columns of the data set if they have other names.
        header: columns of files without a header.
    """

    folder: str
    subset: str
    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    scores: tuple[str, ...] = ("accuracy",)
    hub_texts: tuple[str, ...] = ()
    header: tuple[str, ...] = ()

    @property
    def tests(self) -> tuple[str, ...]:
        """Endings of the names of its test parts."""
        return ("_matched", "_mismatched") if "matched_accuracy" in self.scores else ("",)


_PAIR = ("sentence1", "sentence2")
_ENTAILED = ("entailment", "not_entailment")
_F1 = ("accuracy", "positive_f1")
FORMATS: dict[str, GlueFormat] = {
    "cola": GlueFormat(
        "CoLA", "cola", ("sentence",), "label", ("unacceptable", "acceptable"), ("matthews",),
        header=("source", "label", "mark", "sentence"),
    ),
    "sst-2": GlueFormat("SST-2", "sst2", ("sentence",), "label", ("negative", "positive")),
    "mrpc": GlueFormat(
        "MRPC", "mrpc", ("#1 String", "#2 String"), "Quality", ("not_equivalent", "equivalent"), _F1, _PAIR
    ),
    "sts-b": GlueFormat("STS-B", "stsb", _PAIR, "score", (), ("pearson", "spearman")),
    "qqp": GlueFormat("QQP", "qqp", ("question1", "question2"), "is_duplicate", ("not_duplicate", "duplicate"), _F1),
    "mnli": GlueFormat(
        "MNLI", "mnli", _PAIR, "gold_label", ("entailment", "neutral", "contradiction"),
        ("matched_accuracy", "mismatched_accuracy"), ("premise", "hypothesis"),
    ),
    "qnli": GlueFormat("QNLI", "qnli", ("question", "sentence"), "label", _ENTAILED),
    "rte": GlueFormat("RTE", "rte", _PAIR, "label", _ENTAILED),
    "wnli": GlueFormat("WNLI", "wnli", _PAIR, "label", ("not_entailment", "entailment")),
}  # fmt: skip
"""By the name of the task; labels in the order of their numbers, in the data set and in files that have numbers."""


class GlueTask(TaskConfig):
    """One of GLUE's tasks, scored with its own metrics; `glue_score` is their mean."""

    paths = ("path",)
    kind: Literal["glue"] = "glue"
    """A copy of the model is fine-tuned on a task of GLUE, once for each seed, and predicts its validation part."""
    task: TaskName
    """Name of the task; `mnli` is tested on its matched and its mismatched part."""
    path: str
    """The folder with GLUE's folders (`CoLA`, `SST-2`, …), or a hub id (`nyu-mll/glue`), or a copy of that data set."""
    epochs: float = Field(default=3, gt=0)
    """Passes over the training part."""
    learning_rate: float = Field(default=3e-5, gt=0)
    """Peak learning rate of the fine-tuning."""
    batch_size: int = Field(default=32, ge=1)
    """Examples per step."""
    max_length: int = Field(default=128, ge=4)
    """Maximum number of tokens per example; longer ones are cut."""
    max_train: int | None = Field(default=None, ge=1)
    """Maximum number of training examples, drawn at random; the same ones each time."""
    max_test: int | None = Field(default=None, ge=1)
    """Maximum number of test examples (MNLI: of each part), drawn at random; the same ones each time."""

    @property
    def published(self) -> Path | None:
        """The folder with the task's published files; None if the path is a data set."""
        folder = Path(self.path).expanduser() / FORMATS[self.task].folder
        return folder if folder.is_dir() else None

    def files(self) -> list[Path]:
        """Return the local files of the task; none if it is read from the hub."""
        place = self.published or Path(self.path).expanduser()
        return sorted(file for file in place.rglob("*") if file.is_file()) if place.is_dir() else []
