"""Settings of the runs of a suite: the base model, the budget, and the fine-tuning on end tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from everlearn.errors import RecipeError
from everlearn.grid.template import GridSettings
from everlearn.methods import build
from everlearn.options import Options


class Given(Options):
    """Base class of the groups: unknown keys are refused. A missing value takes the default of the suite."""

    def given(self) -> dict[str, Any]:
        """Return the keys that were set."""
        return {name: getattr(self, name) for name in type(self).model_fields if getattr(self, name) is not None}


class EndTaskSettings(Given):
    """Fine-tuning on end tasks."""

    settings: Literal["released", "paper"] | None = None
    """Learning rate and epochs of the released code or of the paper, if they differ."""
    aspect: Literal["pair", "released"] | None = None
    """Aspect and sentence as two texts, or as one string as in the released code."""
    max_train: int | None = Field(default=None, ge=1)
    """Largest number of training examples."""
    max_test: int | None = Field(default=None, ge=1)
    """Largest number of test examples."""
    epochs_factor: float | None = Field(default=None, gt=0)
    """Factor of the number of epochs."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Peak learning rate, instead of the one of `settings`."""
    batch_size: int | None = Field(default=None, ge=1)
    """Examples per step."""
    seeds: int | None = Field(default=None, ge=1)
    """Fine-tunings per end task."""
    when: Literal["final", "diagonal", "every"] | None = None
    """After which domains end tasks are measured: see `evaluation.end_tasks`."""
    answers: Literal["written", "chosen", "head"] | None = None
    """If domains are tasks: the model generates the answer, or its most likely label is the answer, or (encoders) a
    classifier is fine-tuned on every evaluated checkpoint."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Largest number of tokens of a program (`code`)."""


class PromptSettings(Given):
    """Conversion of examples to prompts, if domains are tasks."""

    names: bool | None = None
    """Begin with the names of task and dataset."""
    cut: Literal["text", "end"] | None = None
    """How a long prompt is truncated: at the end of its text, or at its very end, including "Answer:", as in the
    released code."""


class StreamSettings(Options):
    """The domains of a stream, and the processing of their text (`m2d2`)."""

    domains: tuple[str, ...] = ()
    """Domains, or groups and super-domains with all of theirs; every domain by default."""
    level: Literal[1, 2] = 2
    """Level of M2D2's taxonomy: its groups (L1), or their parts (L2). A stream has one of the two: L1 contains L2."""
    aliases: Literal["drop", "keep"] = "drop"
    """Second names of categories of arXiv, such as `cs.NA` for `math.NA`, which have nearly the same papers."""
    duplicates: Literal["remove", "report"] = "remove"
    """Documents that repeat one of their own or of another domain: removed, or only counted."""
    near: float = Field(default=0.8, ge=0.5, le=1)
    """Jaccard similarity of 5-word shingles from which on a document repeats another; 1 finds exact copies only."""
    domain_bytes: int | None = Field(default=None, ge=1)
    """Largest size of a domain's training text: the documents that come first by their hashes, without any that alone
    exceeds it (if all do, the first)."""
    held_out_bytes: int | None = Field(default=None, ge=1)
    """Largest size of its validation and of its test part."""
    balanced: bool = False
    """Truncate the training text of every domain to that of the smallest."""
    measured: Literal["valid", "test"] = "test"
    """The part that is evaluated."""
    embedding: str | None = None
    """Encoder for the order `similar`: a hub id or a folder; by default hashed TF-IDF, which needs none."""
    samples: int = Field(default=1000, ge=1)
    """Documents per domain for the order `similar` (five times as many of general text); the study used 10,000."""
    order: str | None = None
    """File of the order `file`: names of domains, one per line; or the `domains` in a file that a run wrote."""


class Settings(Given, GridSettings):
    """The settings file of ``everlearn bench``."""

    model: str | None = None
    """Hub id or folder of the base model; a folder relative to the file, or to where the command runs."""
    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps per domain, the same for every method."""
    budget_tokens: int | None = Field(default=None, ge=1)
    """Tokens per domain instead of `steps`."""
    batch: int | None = Field(default=None, ge=1)
    """Rows per device and micro-batch."""
    accumulate: int | None = Field(default=None, ge=1)
    """Micro-batches per step."""
    block_size: int | None = Field(default=None, ge=8)
    """Tokens per row."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Peak learning rate."""
    samples: int | None = Field(default=None, ge=1)
    """Rows for measuring importance, for every method that does (`Method.importance_samples`)."""
    blocks: int | None = Field(default=None, ge=1)
    """Held-out rows per domain and of general text."""
    stream: StreamSettings | None = None
    """Domains and their text, if the suite has a choice of them (`m2d2`)."""
    corpora: dict[str, str | dict[str, Any]] | None = None
    """Your own text in place of a domain's (or `general`): a path, or the keys of a recipe's domain."""
    run_code: bool | None = None
    """Whether to run programs that the model writes, in a sandbox (`code`, which requires it; `--run-code`)."""
    end_tasks: EndTaskSettings = EndTaskSettings()
    """Fine-tuning or evaluation on end tasks."""
    max_train: int | None = Field(default=None, ge=1)
    """Largest number of training examples of a domain, if domains are tasks."""
    prompts: PromptSettings = PromptSettings()
    """Conversion of examples to prompts, if domains are tasks."""
    train: dict[str, Any] = Field(default={})
    """Further `TrainingArguments`, such as `{bf16: true}`."""


PROGRAMS = ("run_code", "end_tasks.max_new_tokens")
"""Keys of settings that apply only to suites with generated programs."""
STREAM = ("stream",)
"""Keys of settings that apply only to suites with a choice of domains."""


def steps_of(steps: int | None, budget_tokens: int | None, per_step: int, otherwise: int) -> int:
    """Return the number of optimizer steps per domain.

    Args:
        steps: the requested number of steps.
        budget_tokens: the requested number of tokens instead.
        per_step: tokens per step.
        otherwise: the default of the suite.

    Raises:
        RecipeError: both are set, or the budget is less than one step.
    """
    if steps is not None and budget_tokens is not None:
        raise RecipeError(f"Give `steps` or `budget_tokens`, not both (got {steps} and {budget_tokens}).")
    if budget_tokens is not None:
        if budget_tokens < per_step:
            raise RecipeError(
                f"`budget_tokens` is {budget_tokens}, less than one step of {per_step} tokens (`batch` × "
                "`accumulate` × `block_size`)."
            )
        return budget_tokens // per_step
    return otherwise if steps is None else steps


def with_samples(method: Any, samples: int | None) -> list[dict[str, Any]]:
    """Return the methods of a recipe with a number of rows for measuring importance, unless they set one.

    An option `samples` that counts other rows, such as stored ones, is not changed.
    """
    specs = _specs(method)
    for spec in specs:
        if samples is not None and build(spec).importance_samples:
            spec.setdefault("samples", samples)
    return specs


def with_options(method: Any, **options: Any) -> list[dict[str, Any]]:
    """Return the methods of a recipe with these options, if a method has them and does not set them."""
    specs = _specs(method)
    for spec in specs:
        for key, value in options.items():
            if key in type(build(spec).config).model_fields:
                spec.setdefault(key, value)
    return specs


def _specs(method: Any) -> list[dict[str, Any]]:
    """Return the methods of a recipe, each as a separate mapping."""
    listed = [method] if isinstance(method, str | Mapping) else list(method)
    return [{"name": item} if isinstance(item, str) else dict(item) for item in listed]
