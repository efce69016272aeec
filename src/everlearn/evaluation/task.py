"""Define the interface of a task, a measurement on a checkpoint; each kind registers one class.

A kind is one file with its options (a :class:`~everlearn.evaluation.task.TaskConfig`), the reader of its examples, and
its evaluation of a :class:`~everlearn.predictors.predictor.Predictor`. The result is the outcome of every example, in a
:class:`~everlearn.evaluation.cell.Cell`, from which :mod:`everlearn.evaluation.metrics` computes scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from pydantic import ValidationError, field_validator

from everlearn.data.corpus import Reads
from everlearn.data.readers import resolve_files
from everlearn.errors import RecipeError, did_you_mean
from everlearn.evaluation.cell import Cell
from everlearn.options import slug, wrong_key
from everlearn.plugins import Registry
from everlearn.predictors.predictor import Predictor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from everlearn.model.anatomy import Kind
    from everlearn.model.objectives import Objective


@dataclass(frozen=True)
class Conditions:
    """The conditions under which a task is measured, the same for every checkpoint of a run.

    Attributes:
        row: label of the checkpoint.
        tokenizer: the model's tokenizer.
        objective: the run's objective, with the seed of its masks.
        batch_size: rows per forward pass (`evaluation.batch_size`).
        seeds: seeds of the fine-tunings, for tasks that fine-tune.
        device: device of the computation.
        bf16: compute in bfloat16 (autocast); weights stay float32.
        progress: called with the number of finished units, out of :attr:`Work.units`.
    """

    row: str
    tokenizer: PreTrainedTokenizerBase
    objective: Objective
    batch_size: int
    seeds: tuple[int, ...] = (0,)
    device: torch.device | str = "cpu"
    bf16: bool = False
    progress: Callable[[int], None] | None = None


BYTES_PER_TOKEN = 4
"""Rough average, for estimates of the work."""


@dataclass(frozen=True)
class Work:
    """The work of measuring one checkpoint on a task, for ``everlearn plan`` and progress bars.

    Attributes:
        units: number of units in which progress is reported.
        rows: sequences with a forward pass only; each generated token counts as one.
        trained: sequences with a forward and a backward pass (fine-tuning).
        tokens: approximate length of a sequence.
    """

    units: int
    rows: int = 0
    trained: int = 0
    tokens: int = 0

    @property
    def forward_tokens(self) -> int:
        """Return the work in forward passes of a token; a backward pass counts as two."""
        return (self.rows + 3 * self.trained) * self.tokens


class TaskConfig(Reads):
    """Base class of the options of an end task: those that all kinds share in a recipe."""

    name: str
    """Name of the task: letters, digits, '.', '-' and '_'."""
    kind: str
    """Kind of the task."""
    domain: str | None = None
    """Name of the domain whose knowledge it measures; null for a general task."""

    paths: ClassVar[tuple[str, ...]] = ()
    """Keys whose value is a file, folder or glob."""

    def files(self) -> list[Path]:
        """Return the files of the task; raise ``DataError`` if there are none."""
        return [Path(file) for key in self.paths for file in resolve_files(getattr(self, key), key)]

    @field_validator("name")
    @classmethod
    def _slug(cls, value: str) -> str:
        return slug(value, "an end task's name")


class Task:
    """Base class of everything that can be measured on a checkpoint; each subclass is a kind.

    Class attributes:
        kind: name in recipes (`end_tasks: - {kind: …}`) and cells.
        fine_tunes: whether copies of a checkpoint are fine-tuned, one for each seed (`evaluation.end_task_seeds`).
        shared: whether runs may share its cells. Its fingerprint must then cover everything but the model on which a
            score depends.

    Args:
        config: its options; a kind that no recipe names may take others.
    """

    kind: ClassVar[str]
    fine_tunes: ClassVar[bool] = False
    shared: ClassVar[bool] = True

    name: str
    domain: str | None
    """Domain whose knowledge it measures; None for general text and general tasks."""
    config: Any

    def __init__(self, config: Any) -> None:
        self.name, self.domain, self.config = config.name, config.domain, config

    def check(self) -> str:
        """Describe the examples in words; raise ``DataError`` if they cannot be read or used."""
        raise NotImplementedError

    def notes(self) -> list[str]:
        """Return warnings about the examples, for the reader of the scores."""
        return []

    def check_model(self, kind: Kind) -> None:
        """Raise ``ModelError`` if a model of this kind (encoder, decoder, encoder-decoder) cannot be evaluated."""

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise ``ModelError`` if a model with this tokenizer cannot be evaluated."""

    def fingerprint(self) -> str:
        """Return a hash of everything that a score depends on, except the model."""
        raise NotImplementedError

    def texts(self) -> Sequence[str]:
        """Return unlabelled text of the task, from which a method may recognise a domain."""
        raise NotImplementedError

    def examples(self) -> Sequence[str]:
        """Return the text of each test example."""
        return self.texts()

    def answered(self, cell: Cell) -> Sequence[str]:
        """Return the model's answer to each example in words; empty if it did not answer in words."""
        return cell.texts

    def work(self, seeds: int) -> Work:
        """Return the work of measuring one checkpoint."""
        raise NotImplementedError

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        """Measure a predictor and return the outcome of every example."""
        raise NotImplementedError


T = TypeVar("T", bound=type[Task])
TASK_KINDS: Registry[type[Task]] = Registry("tasks")
"""Every kind of task, by name."""
CONFIGS: Registry[type[TaskConfig]] = Registry("tasks")
"""Options of the kinds that a recipe's `end_tasks` may name."""


def register_kind(config: type[TaskConfig] | None = None) -> Callable[[T], T]:
    """Register a kind of task; with a `config` (whose ``kind`` has the kind's name as default) also for recipes.

    A kind with a config is instantiated from it: ``cls(config)``.
    """

    def known(cls: T) -> T:
        TASK_KINDS.add(cls.kind, cls)
        if config is not None:
            CONFIGS.add(cls.kind, config)
        return cls

    return known


def kind_of(raw: Mapping[str, Any]) -> Any:
    """Return the kind that an end task of a recipe names; classification by default."""
    return raw.get("kind", "classification")


def task_config(raw: Any, key: str) -> TaskConfig:
    """Check the options of an end task in a recipe; `kind` decides which options there are.

    Args:
        raw: the mapping.
        key: its key in the recipe, for the message: ``end_tasks.0``.

    Raises:
        RecipeError: the kind or an option is unknown, or a value is not allowed.
    """
    if not isinstance(raw, dict):
        return raw if raw.__class__ in CONFIGS.values() else _refused(f"`{key}` must be a mapping (got {raw!r}).")
    kind = kind_of(raw)
    if not isinstance(kind, str) or kind not in CONFIGS:
        _refused(f"`{key}.kind`: there is no kind of end task '{kind}'.{did_you_mean(str(kind), CONFIGS)}")
    try:
        return CONFIGS[kind].model_validate(raw)
    except ValidationError as error:
        raise RecipeError(wrong_key(CONFIGS[kind], error, key.split("."), f" (an end task of kind {kind})")) from None


def make_task(config: TaskConfig) -> Task:
    """Make the task of a recipe's end task."""
    make: Any = TASK_KINDS[config.kind]
    task: Task = make(config)
    return task


def _refused(sentence: str) -> Any:
    raise RecipeError(sentence)
