"""Everything that can be checked about a recipe without training, each check on its own, so that one run finds all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from everlearn.config.arguments import training_arguments
from everlearn.config.recipe import Recipe, load
from everlearn.data.documents import check_corpus
from everlearn.errors import EverlearnError, ModelError, RunError
from everlearn.evaluation import Task, make_task
from everlearn.learner import ContinualLearner
from everlearn.model.loading import load_model, load_tokenizer
from everlearn.run.progress import Reporter
from everlearn.tools.planning import disk_bytes, size

SAMPLE = "Learning one domain after another, 24 of 24 lines kept."
"""Text of the tokenizer's round trip."""


@dataclass(frozen=True)
class Check:
    """One check: its name, whether it passed (None: not reached, because an earlier one failed), and what was found."""

    name: str
    ok: bool | None
    detail: str


class _Checks:
    """Runs checks and remembers how each ended."""

    def __init__(self) -> None:
        self.done: list[Check] = []

    def __call__(self, name: str, work: Callable[[], str], needs: bool = True) -> bool:
        """Run one check. `work` returns what it found, or raises the sentence of what is wrong."""
        if not needs:
            self.done.append(Check(name, None, "an earlier check that this one needs has failed"))
            return False
        try:
            self.done.append(Check(name, True, work()))
        except EverlearnError as error:
            self.done.append(Check(name, False, str(error)))
        return bool(self.done[-1].ok)


def preflight(path: Path | str, overrides: Iterable[str] = (), reporter: Reporter | None = None) -> list[Check]:
    """Check a recipe file: every check is run, those that need a failed one are marked as not reached.

    Text is read and tokenised as a run would do it (and cached, so that the run finds it).

    Args:
        path: the recipe.
        overrides: ``key=value`` texts.
        reporter: who is told what is being read.
    """
    checks = _Checks()
    found: list[Recipe] = []

    def read() -> str:
        found.append(load(path, overrides))
        methods = " + ".join(method.title for method in found[0].methods())
        return f"{len(found[0].domains)} domains, {len(found[0].end_tasks)} end tasks, {methods}"

    if checks("recipe", read):
        _preflight(found[0], checks, reporter)
    return checks.done


def _preflight(recipe: Recipe, checks: _Checks, reporter: Reporter | None) -> None:
    learner = ContinualLearner(recipe, reporter=reporter)
    loaded: list[PreTrainedModel] = []

    def free() -> str:
        learner.folder.check_free(recipe)
        return f"{learner.folder.path} is free"

    def arguments() -> str:
        for domain in recipe.domains:
            training_arguments(recipe.train_of(domain.name), learner.folder.path, recipe.run.seed)
        args = training_arguments(recipe.train, learner.folder.path, recipe.run.seed)
        optimizer = getattr(args.optim, "value", args.optim)
        return f"accepted; {optimizer}, learning rate {args.learning_rate:g}, on {args.device}"

    def model() -> str:
        loaded.append(load_model(recipe.model, recipe.run.seed))
        return f"{type(loaded[0]).__name__}, {sum(p.numel() for p in loaded[0].parameters()):,} parameters, float32"

    def objective() -> str:
        format_ = learner.setting(loaded[0])
        return f"{format_.objective.name} on a model of kind {format_.kind}, rows of {format_.block_size} tokens"

    def methods() -> str:
        learner.check_methods(loaded[0])
        return " + ".join(method.title for method in recipe.methods())

    def end_task(task: Task) -> str:
        if fits:
            task.check_model(learner.setting(loaded[0]).kind)
        return task.check()

    checks("run folder", free)
    has_arguments = checks("training arguments", arguments)
    has_model = checks("model and its head", model)
    has_tokenizer = checks("tokenizer round trip", lambda: _round_trip(recipe, loaded[0]), has_model)
    fits = checks("objective, tokens, positions", objective, has_model and has_tokenizer)
    checks("methods fit", methods, fits)
    for corpus in (*recipe.domains, *([recipe.general] if recipe.general else [])):
        name = f"'{corpus.name}'"
        readable = checks(f"{name}: files and columns", lambda corpus=corpus: _readable(corpus))  # type: ignore[misc]
        checks(
            f"{name}: rows and steps",
            lambda corpus=corpus: _rows(learner, corpus.name),  # type: ignore[misc]
            fits and readable and has_arguments,
        )
    for task in map(make_task, recipe.end_tasks):
        checks(f"end task '{task.name}': files and labels", lambda task=task: end_task(task))  # type: ignore[misc]
    checks("disk space", lambda: _disk(learner, loaded[0]), fits and has_arguments)


def _round_trip(recipe: Recipe, model: PreTrainedModel) -> str:
    """Text to ids and back, and every id in the model's vocabulary.

    Not every tokenizer gives the text back (some drop case and spaces), but its own output must stay as it is.
    """
    tokenizer = load_tokenizer(recipe.model)
    first = tokenizer(SAMPLE, add_special_tokens=False)["input_ids"]
    again = tokenizer(tokenizer.decode(first), add_special_tokens=False)["input_ids"]
    name = tokenizer.name_or_path
    if not first or list(first) != list(again):
        raise ModelError(f"The tokenizer '{name}' does not read back what it writes. Is it the model's own?")
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in first:
        raise ModelError(f"The tokenizer '{name}' does not know plain English letters. Is it the model's own?")
    rows = len(model.get_input_embeddings().get_parameter("weight"))
    if len(tokenizer) > rows:
        raise ModelError(
            f"The tokenizer '{name}' has {len(tokenizer)} tokens, but the model has embeddings for {rows}. "
            "Use the model's own tokenizer (`model.tokenizer`)."
        )
    return f"{len(SAMPLE.encode()) / len(first):.1f} bytes per token, {len(tokenizer):,} tokens"


def _readable(corpus: object) -> str:
    check_corpus(corpus)  # type: ignore[arg-type]
    return str(corpus.path)  # type: ignore[attr-defined]


def _rows(learner: ContinualLearner, name: str) -> str:
    prepared = learner.prepared(name)
    rows = "streamed" if prepared.train.size is None else f"{prepared.train.size:,} rows"
    held_out = f"{prepared.validation.size:,} held out" if prepared.validation is not None else "nothing held out"
    if learner.recipe.general is not None and name == learner.recipe.general.name:
        return f"{rows}, {held_out}"
    return f"{rows}, {held_out}, {learner.steps(name):,} steps{_own_arguments(learner, name)}"


def _own_arguments(learner: ContinualLearner, name: str) -> str:
    own = next(domain.train for domain in learner.recipe.domains if domain.name == name)
    return "".join(f", {key} {value}" for key, value in own.items())


def _disk(learner: ContinualLearner, model: PreTrainedModel) -> str:
    needed = disk_bytes(learner, model)
    place = learner.folder.path.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed > free:
        raise RunError(
            f"The run needs about {size(needed)}, but the disk of {learner.folder.path} has {size(free)} free. Free "
            "some, lower `train.save_total_limit`, or set `run.folder` to another disk."
        )
    return f"about {size(needed)} needed, {size(free)} free"
