"""What is measured: held-out text, and the kinds of end tasks that a recipe may name, each registered by one class.

A kind is one file: options (a :class:`~everlearn.evaluation.task.TaskConfig`), how its examples are read, and how a
:class:`~everlearn.predictors.predictor.Predictor` is asked. What it leaves are the outcomes of every example, in a
:class:`~everlearn.evaluation.cell.Cell`; scores are made of these by :mod:`everlearn.evaluation.metrics`.
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
from everlearn.options import slug, wrong_value
from everlearn.plugins import Registry
from everlearn.predictors.predictor import Predictor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from everlearn.model.anatomy import Kind
    from everlearn.model.objectives import Objective


@dataclass(frozen=True)
class Conditions:
    """How a task is measured: the same for every checkpoint of a run.

    Attributes:
        row: label of the checkpoint.
        tokenizer: of the model.
        objective: of the run, with the seed of its masks.
        batch_size: rows per forward pass (`evaluation.batch_size`).
        seeds: of the fine-tunings, where a task fine-tunes.
        device: to measure on.
        bf16: compute in bfloat16 (autocast); weights stay float32.
        progress: told how much of :attr:`Work.units` is done.
    """

    row: str
    tokenizer: PreTrainedTokenizerBase
    objective: Objective
    batch_size: int
    seeds: tuple[int, ...] = (0,)
    device: torch.device | str = "cpu"
    bf16: bool = False
    progress: Callable[[int], None] | None = None


@dataclass(frozen=True)
class Work:
    """What measuring one checkpoint on a task takes, for ``everlearn plan`` and progress bars.

    Attributes:
        units: how often progress is told.
        rows: sequences that go through the model forward only; a generated token counts as one.
        trained: sequences that go forward and backward (fine-tuning).
        tokens: length of a sequence, about.
    """

    units: int
    rows: int = 0
    trained: int = 0
    tokens: int = 0

    @property
    def forward_tokens(self) -> int:
        """In units of a token's forward pass; a backward pass counts twice."""
        return (self.rows + 3 * self.trained) * self.tokens


class TaskConfig(Reads):
    """Base of the options of every kind of end task: what they share in a recipe."""

    name: str
    """Letters, digits, '.', '-' and '_'."""
    kind: str
    """What is measured, and how."""
    domain: str | None = None
    """Name of the domain whose knowledge it measures; null for a general one."""

    paths: ClassVar[tuple[str, ...]] = ()
    """Keys that name files: a file, folder or glob each."""

    def files(self) -> list[Path]:
        """The files that it is made of; raises ``DataError`` where there is none."""
        return [Path(file) for key in self.paths for file in resolve_files(getattr(self, key), key)]

    @field_validator("name")
    @classmethod
    def _slug(cls, value: str) -> str:
        return slug(value, "an end task's name")


class Task:
    """Base of everything that can be measured on a checkpoint; a subclass is a kind.

    Class attributes:
        kind: the word in recipes (`end_tasks: - {kind: …}`) and cells.
        fine_tunes: whether copies of a checkpoint are fine-tuned, one for each seed (`evaluation.end_task_seeds`).
        shared: whether runs may share its cells: its fingerprint covers all that a score depends on but the model.
    """

    kind: ClassVar[str]
    fine_tunes: ClassVar[bool] = False
    shared: ClassVar[bool] = True

    name: str
    domain: str | None
    """Whose knowledge it measures; None for general text and general tasks."""

    def check(self) -> str:
        """What there is, in words; raises ``DataError`` for examples that cannot be read or used."""
        raise NotImplementedError

    def notes(self) -> list[str]:
        """Sentences about its examples that a reader of its scores should know."""
        return []

    def check_model(self, kind: Kind) -> None:
        """Raise ``ModelError`` where a model of this kind (encoder, decoder, encoder-decoder) cannot be asked."""

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise ``ModelError`` where a model with this tokenizer cannot be asked."""

    def fingerprint(self) -> str:
        """Of everything about the task that a score depends on, but for the model."""
        raise NotImplementedError

    def texts(self) -> Sequence[str]:
        """Unlabelled text of the task, from which a method may recognise a domain."""
        raise NotImplementedError

    def examples(self) -> Sequence[str]:
        """The text of each example that it is measured on."""
        return self.texts()

    def answered(self, cell: Cell) -> Sequence[str]:
        """What the model answered to each example, in words; nothing where it did not answer in words."""
        return cell.texts

    def work(self, seeds: int) -> Work:
        """What measuring one checkpoint takes."""
        raise NotImplementedError

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        """Outcomes of every example."""
        raise NotImplementedError


T = TypeVar("T", bound=type[Task])
KINDS: Registry[type[Task]] = Registry("tasks")
"""Every kind of cell."""
CONFIGS: Registry[type[TaskConfig]] = Registry("tasks")
"""The kinds that a recipe's `end_tasks` may name, with their options."""


def register_kind(config: type[TaskConfig] | None = None) -> Callable[[T], T]:
    """Make a kind known to cells; with a `config` (whose ``kind`` has the kind's name as default) also to recipes.

    A kind with a config is made from it: ``cls(config)``.
    """

    def known(cls: T) -> T:
        KINDS.add(cls.kind, cls)
        if config is not None:
            CONFIGS.add(cls.kind, config)
        return cls

    return known


def kind_of(raw: Mapping[str, Any]) -> Any:
    """Return the kind that an end task of a recipe says that it is of."""
    return raw.get("kind", "classification")


def task_config(raw: Any, key: str) -> TaskConfig:
    """Checked options of an end task as a recipe has it; `kind` decides which.

    Args:
        raw: the mapping.
        key: where it stands, for the error: ``end_tasks.0``.

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
        first = error.errors()[0]
        at = ".".join([key, *(str(part) for part in first["loc"])])
        if first["type"] == "extra_forbidden":
            near = did_you_mean(str(first["loc"][-1]), CONFIGS[kind].model_fields)
            raise RecipeError(f"Unknown key `{at}` (an end task of kind {kind}).{near}") from None
        if first["type"] == "missing":
            raise RecipeError(f"The recipe needs `{at}`.") from None
        message = wrong_value(first)
        raise RecipeError(f"`{at}`: {message[0].upper()}{message[1:]}.") from None


def make_task(config: TaskConfig) -> Task:
    """The task of a recipe's end task."""
    make: Any = KINDS[config.kind]
    task: Task = make(config)
    return task


def _refused(sentence: str) -> Any:
    raise RecipeError(sentence)
