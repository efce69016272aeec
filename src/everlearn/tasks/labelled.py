"""Read labelled data on which a checkpoint is fine-tuned for evaluation."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field, model_validator

from everlearn import wording
from everlearn.data.documents import same_file
from everlearn.data.readers import read_rows, resolve_files
from everlearn.errors import DataError
from everlearn.evaluation.task import TaskConfig
from everlearn.seeding import seed_for


class EndTask(TaskConfig):
    """A text classification task; accuracy, macro-F1 and, if set, micro-F1 of its test part are reported."""

    paths = ("train", "test")
    kind: Literal["classification"] = "classification"
    """A classifier is fine-tuned on the training part, once for each seed, and predicts the test part."""
    train: str
    """Files to fine-tune on: a file, folder or glob (jsonl, json, csv, tsv, parquet, arrow; compressed or not)."""
    test: str
    """Files to measure on."""
    text_column: str = "text"
    """Column with the text."""
    text_pair_column: str | None = None
    """Column with a second text, such as an aspect, a hypothesis or a question."""
    label_column: str = "label"
    """Column with the label: a whole number or a word."""
    epochs: float = Field(default=10, gt=0)
    """Passes over the training part."""
    learning_rate: float = Field(default=3e-5, gt=0)
    """Peak learning rate of the fine-tuning."""
    batch_size: int = Field(default=16, ge=1)
    """Examples per step."""
    max_length: int = Field(default=128, ge=4)
    """Maximum number of tokens per example; longer ones are cut."""
    max_train: int | None = Field(default=None, ge=1)
    """Maximum number of training examples, drawn at random; the same ones each time."""
    max_test: int | None = Field(default=None, ge=1)
    """Maximum number of test examples, drawn at random; the same ones each time."""
    unseen_labels: Literal["refuse", "wrong"] = "refuse"
    """For test examples whose label no training example has: refuse the task, or count them as wrong."""
    f1: Literal["macro", "micro"] = "macro"
    """The F1 of this task in the table `f1`. With one label per example micro-F1 equals accuracy. Macro-F1 and accuracy
    always have their own tables."""
    state_of_the_art: float | None = Field(default=None, gt=0, le=1)
    """The best published accuracy. If set, accuracies are also standardised (0 for always predicting the most frequent
    label, 1 for this accuracy), and forgetting is also given as a share of it (Arora et al., ALTA 2019)."""
    majority: float | None = Field(default=None, ge=0, lt=1)
    """With `state_of_the_art`: accuracy of always predicting the most frequent label. Default: that of the test
    part."""

    @model_validator(mode="after")
    def _above_chance(self) -> EndTask:
        if self.majority is not None and self.state_of_the_art is None:
            raise ValueError(f"end task '{self.name}' has `majority` without `state_of_the_art`; give both, or neither")
        if self.majority is not None and self.majority >= (self.state_of_the_art or 0):
            raise ValueError(
                f"end task '{self.name}': `majority` is {self.majority}, which must be below `state_of_the_art` "
                f"({self.state_of_the_art})"
            )
        return self

    @property
    def scale(self) -> dict[str, float]:
        """Return the accuracies set in the recipe that standardise this task's scores."""
        accuracies = {"majority": self.majority, "state_of_the_art": self.state_of_the_art}
        return {key: value for key, value in accuracies.items() if value is not None}


class CodelengthTask(TaskConfig):
    """How fast a classification task is learnt: the bits needed to send its labels while a model learns from them."""

    paths = ("train",)
    kind: Literal["codelength"] = "codelength"
    """A classifier is fine-tuned on prefixes of the examples, and predicts the next ones (arXiv 1901.11373)."""
    train: str
    """Files with labelled examples: a file, folder or glob (jsonl, json, csv, tsv, parquet, arrow; compressed or
    not)."""
    text_column: str = "text"
    """Column with the text."""
    text_pair_column: str | None = None
    """Column with a second text, such as an aspect, a hypothesis or a question."""
    label_column: str = "label"
    """Column with the label: a whole number or a word."""
    steps: int = Field(default=100, ge=1)
    """Optimizer steps on every prefix, whatever its length: codelengths compare only under the same budget."""
    learning_rate: float = Field(default=3e-5, gt=0)
    """Peak learning rate of the fine-tuning."""
    batch_size: int = Field(default=16, ge=1)
    """Examples per step."""
    max_length: int = Field(default=128, ge=4)
    """Maximum number of tokens per example; longer ones are cut."""
    max_train: int | None = Field(default=None, ge=1)
    """Maximum number of examples, drawn at random; the same ones each time."""


@dataclass(frozen=True)
class LabelledSet:
    """Hold the examples of a classification task, or of a regression.

    Attributes:
        texts: N texts.
        pairs: N second texts, or None.
        labels: int64 [N], indices into `label_names`; float64 [N], the values of a regression.
        label_names: names of the labels, sorted (whole numbers by value). In a test part, labels that the training part
            lacks, which no model can predict, come last. Empty for a regression.
    """

    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray
    label_names: list[str]

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, chosen: np.ndarray) -> LabelledSet:
        """Return some of the examples, in this order, with the same label names."""
        pairs = None if self.pairs is None else [self.pairs[i] for i in chosen]
        return replace(self, texts=[self.texts[i] for i in chosen], pairs=pairs, labels=self.labels[chosen])

    def whole_texts(self) -> list[str]:
        """Return each example's text, followed by its second text if there is one."""
        if self.pairs is None:
            return list(self.texts)
        return [f"{text} {pair}" for text, pair in zip(self.texts, self.pairs, strict=True)]


T = TypeVar("T")
Example = tuple[str, str | None, str]
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def read_end_task(task: EndTask) -> tuple[LabelledSet, LabelledSet]:
    """Read the training and the test part.

    Raises:
        DataError: a part cannot be read or is empty; a column is missing; a label is neither a whole number nor a word;
            labels are fractional numbers, or spellings of the same word; the training part has fewer than two labels;
            or the test part has a label that the training part lacks, and `unseen_labels` refuses it.
    """
    train, test = _read(task, "train"), _read(task, "test")
    _check_labels(task.name, {label for _, _, label in (*train, *test)})
    names = _names(task.name, train)
    unseen = _sorted({label for _, _, label in test} - set(names))
    if unseen and task.unseen_labels == "refuse":
        raise DataError(
            f"End task '{task.name}': the test part has labels that the training part lacks: "
            f"{', '.join(unseen[:10])}. Those of the training part: {', '.join(names[:20])}. To count these examples "
            "as wrong, set its `unseen_labels: wrong`."
        )
    train, test = at_most(task.max_train, train, task.name), at_most(task.max_test, test, f"{task.name} test")
    return _labelled(train, names), _labelled(test, names + unseen)


def read_labelled(task: CodelengthTask) -> LabelledSet:
    """Read the labelled examples; raise ``DataError`` as :func:`read_end_task` does for a training part."""
    examples = _read(task, "train")
    _check_labels(task.name, {label for _, _, label in examples})
    return _labelled(at_most(task.max_train, examples, task.name), _names(task.name, examples))


def _names(task: str, train: list[Example]) -> list[str]:
    names = _sorted({label for _, _, label in train})
    if len(names) < 2:
        raise DataError(f"End task '{task}': every training example has the label '{names[0]}'; two are needed.")
    return names


def check_test_apart(task: EndTask) -> None:
    """Refuse a test part that is the training part: the same file under any name, or the same content.

    Raises:
        DataError: they are the same; the message names the file.
    """
    if same := same_file(resolve_files(task.train, "train"), resolve_files(task.test, "test")):
        one, other = same
        which = f"{one} is in both" if one == other else f"{other} is the same file as {one}"
        raise DataError(
            f"End task '{task.name}' would be tested on its training examples: {which} (`train`, `test`). Put the "
            "test examples into a separate file."
        )


def notes_on(name: str, train: LabelledSet, test: LabelledSet) -> list[str]:
    """Return warnings about the examples, for the reader of the task's scores."""
    notes = []
    known = set(train.whole_texts())
    if both := sum(text in known for text in test.whole_texts()):
        share = both / len(test)
        notes.append(
            f"{both:,} of the {wording.count(len(test), 'test example')} of '{name}' also occur "
            f"in its training part ({wording.percent(share, 0)})."
        )
    counts = Counter(train.labels.tolist())
    lonely = sum(count == 1 for count in counts.values())
    if lonely > len(counts) / 2 and len(counts) > 2:
        notes.append(
            f"{lonely:,} of the {wording.count(len(counts), 'label')} of '{name}' have only one "
            "training example: are these classes?"
        )
    return notes


def _spelling(label: str) -> str:
    """Return a normal form that is the same for labels with the same meaning."""
    if re.fullmatch(r"[+-]?\d+(\.0*)?", label.strip()):
        return str(int(label.strip().partition(".")[0]))
    return " ".join(unicodedata.normalize("NFC", label).casefold().split())


def _check_labels(name: str, labels: set[str]) -> None:
    spellings: dict[str, list[str]] = {}
    for label in sorted(labels):
        spellings.setdefault(_spelling(label), []).append(label)
    for several in spellings.values():
        if len(several) > 1:
            listed = ", ".join(f"'{label}'" for label in several[:5])
            raise DataError(
                f"End task '{name}': the labels {listed} differ only in case, white space or the form of a number and "
                f"would be {wording.count(len(several), 'class')}. Write them in the same way."
            )
    fractions = [label for label in sorted(labels) if NUMBER.fullmatch(label.strip()) and not float(label).is_integer()]
    if fractions and all(NUMBER.fullmatch(label.strip()) for label in labels):
        raise DataError(
            f"End task '{name}': labels such as '{fractions[0]}' are quantities, which a classifier cannot predict: "
            f"it would learn {wording.count(len(labels), 'class')}. Round them, or write classes as words."
        )


def _read(task: EndTask | CodelengthTask, part: str) -> list[Example]:
    columns = [task.text_column, task.label_column, *([task.text_pair_column] if task.text_pair_column else [])]
    examples: list[Example] = []
    for file in resolve_files(getattr(task, part), part):
        for row in read_rows(file, columns, limits=task.limits):
            texts = [_text(row.values[column], column, row.where) for column in columns if column != task.label_column]
            label = _label(row.values[task.label_column], task.label_column, row.where)
            examples.append((texts[0], texts[1] if task.text_pair_column else None, label))
    if not examples:
        raise DataError(f"End task '{task.name}': `{part}: {getattr(task, part)}` is empty.")
    return examples


def at_most(most: int | None, examples: list[T], seed: str) -> list[T]:
    """Return a random sample of `most` examples in their order, or all; the same ones each time."""
    if most is None or most >= len(examples):
        return examples
    generator = np.random.Generator(np.random.PCG64(seed_for("end task", seed)))
    return [examples[i] for i in np.sort(generator.choice(len(examples), most, replace=False))]


def _text(value: Any, column: str, where: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{where}: column '{column}' must hold text; it holds {type(value).__name__} ({value!r:.60}).")
    return value


def _label(value: Any, column: str, where: str) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, (str, int)) or value == "":
        raise DataError(f"{where}: column '{column}' must hold a word or a whole number; it holds {value!r:.60}.")
    return str(value)


def _sorted(labels: set[str]) -> list[str]:
    try:
        return sorted(labels, key=int)
    except ValueError:
        return sorted(labels)


def _labelled(examples: Sequence[Example], names: list[str]) -> LabelledSet:
    number = {name: index for index, name in enumerate(names)}
    pairs = [pair for _, pair, _ in examples if pair is not None]
    return LabelledSet(
        texts=[text for text, _, _ in examples],
        pairs=pairs if len(pairs) == len(examples) else None,
        labels=np.array([number[label] for _, _, label in examples], dtype=np.int64),
        label_names=names,
    )
