"""Settings of the runs of a suite: the base model, the budget, and the fine-tuning on end tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from everlearn.errors import RecipeError
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
    """Learning rate and epochs of the released code or of the paper, where they differ."""
    aspect: Literal["pair", "released"] | None = None
    """Aspect and sentence as two texts, or as one string as in the released code."""
    max_train: int | None = Field(default=None, ge=1)
    """Fine-tune on no more than so many examples."""
    max_test: int | None = Field(default=None, ge=1)
    """Measure on no more than so many examples."""
    epochs_factor: float | None = Field(default=None, gt=0)
    """The epochs times this."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Peak learning rate, instead of the one of `settings`."""
    batch_size: int | None = Field(default=None, ge=1)
    """Examples per step."""
    seeds: int | None = Field(default=None, ge=1)
    """Fine-tunings per end task."""
    when: Literal["final", "diagonal", "every"] | None = None
    """After which domains end tasks are measured: see `evaluation.end_tasks`."""
    answers: Literal["written", "chosen", "head"] | None = None
    """Where domains are tasks: the model writes the answer, or its likeliest label is the answer, or (encoders) a
    classifier is fine-tuned on every checkpoint that is measured."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Tokens of a program (`code`)."""


class PromptSettings(Given):
    """Conversion of examples to prompts, if domains are tasks."""

    names: bool | None = None
    """Begin with the names of task and data set."""
    cut: Literal["text", "end"] | None = None
    """What of a prompt that is too long goes: the end of its text, or the end of all, "Answer:" included, as in the
    released code."""


class StreamSettings(Options):
    """The domains of a stream, and the processing of their text (`m2d2`)."""

    domains: tuple[str, ...] = ()
    """Domains, or groups and super-domains with all of theirs; every domain when left out."""
    level: Literal[1, 2] = 2
    """Of M2D2's taxonomy: its groups (L1), or their parts (L2). A stream has one of the two: L1 holds L2."""
    aliases: Literal["drop", "keep"] = "drop"
    """The second names of categories of arXiv, such as `cs.NA` for `math.NA`, which have nearly the same papers."""
    duplicates: Literal["remove", "report"] = "remove"
    """Documents that repeat one of their own or of another domain: taken out, or counted only."""
    near: float = Field(default=0.8, ge=0.5, le=1)
    """Jaccard similarity of 5-word shingles from which a document repeats another; 1 compares exact copies alone."""
    domain_bytes: int | None = Field(default=None, ge=1)
    """Training text of a domain at most: the documents that come first in the order of their hashes, without any that
    is longer by itself (where all are, the first)."""
    held_out_bytes: int | None = Field(default=None, ge=1)
    """The same of its validation and of its test part."""
    balanced: bool = False
    """Cut the training text of every domain to that of the smallest."""
    measured: Literal["valid", "test"] = "test"
    """The part that is measured."""
    embedding: str | None = None
    """Encoder behind the order `similar`: a hub id or a folder; hashed TF-IDF, which needs none, when left out."""
    samples: int = Field(default=1000, ge=1)
    """Documents of a domain that the order `similar` is made of (of general text five times as many); the study had
    10,000."""
    order: str | None = None
    """File of the order `file`: names of domains, one a line; of a file that a run wrote, its `domains`."""


class Settings(Given):
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
    """Rows for importance, for every method that measures it (`Method.importance_samples`)."""
    blocks: int | None = Field(default=None, ge=1)
    """Held-out rows per domain and of general text."""
    stream: StreamSettings | None = None
    """Domains and their text, where the suite has a choice of them (`m2d2`)."""
    corpora: dict[str, str | dict[str, Any]] | None = None
    """Text of your own instead of a domain's (or `general`): a path, or the keys of a recipe's domain."""
    run_code: bool | None = None
    """Whether programs that the model writes are run, in a sandbox (`code`, which wants it said; `--run-code`)."""
    end_tasks: EndTaskSettings = EndTaskSettings()
    """How end tasks are fine-tuned, or asked."""
    max_train: int | None = Field(default=None, ge=1)
    """Learn from no more than so many examples of a domain, where domains are tasks."""
    prompts: PromptSettings = PromptSettings()
    """How examples become prompts, where domains are tasks."""
    train: dict[str, Any] = Field(default={})
    """Further `TrainingArguments`, such as `{bf16: true}`."""
    methods: dict[str, dict[str, Any]] = Field(default={})
    """Options of methods, by name, where the defaults are not wanted."""
    entries: dict[str, dict[str, Any]] = Field(default={})
    """Keys of the recipe, dotted, that single rows of the table have of their own:
    `{lora: {train.learning_rate: 1.0e-3}}`."""

    def spec(self, method: str) -> dict[str, Any]:
        """Return a method with its options, as in a recipe."""
        return {"name": method, **self.methods.get(method, {})}


PROGRAMS = ("run_code", "end_tasks.max_new_tokens")
"""Keys of settings that mean something only where programs are written."""
STREAM = ("stream",)
"""Those that mean something only where domains can be chosen."""


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
