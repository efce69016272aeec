"""Check a run before it starts, as far as that is possible without training.

`everlearn validate` shows the outcome of every check. A run performs the same checks first and stops at the first one
that fails, before anything is written or measured.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from everlearn.config.arguments import MEASURING, training_arguments
from everlearn.data.blocks import BlockSource
from everlearn.data.corpus import Domain
from everlearn.data.documents import check_corpus
from everlearn.data.leaks import LeakCheck, check_leaks, examples_of, held_out_of, kept_rows_of
from everlearn.data.mixing import Mixture
from everlearn.data.prepare import cache_folder
from everlearn.errors import DataError, EverlearnError, ModelError, RunError
from everlearn.evaluation import make_task, task_path
from everlearn.evaluation.task import TaskConfig
from everlearn.methods.engine.protection import moved_by
from everlearn.model.loading import check_vocabulary
from everlearn.model.peft_adapter import holds_adapter
from everlearn.model.vocabulary import new_token_ids
from everlearn.run import notification
from everlearn.run.disk import check_disk
from everlearn.run.dry_run import rehearse
from everlearn.run.method_checks import check_run_methods
from everlearn.run.open_run import OpenRun
from everlearn.run.writable import check_place
from everlearn.tasks.held_out import HeldOut
from everlearn.wording import count, percent

SAMPLE = "Learning one domain after another, 24 of 24 lines kept."
"""Text that is encoded and decoded to check the tokenizer."""
WITHOUT_WARM_UP = ("constant", *MEASURING)
"""Schedules that `warmup_steps` does not change."""


@dataclass(frozen=True)
class Check:
    """Hold the outcome of one check.

    Attributes:
        name: name of the check.
        ok: whether it passed; None if it was skipped because an earlier check failed.
        detail: the outcome in words.
        error: the error of a check that failed.
        notes: warnings about behaviour that the user may not intend.
        warned: whether it passed but found something that a later check notes.
    """

    name: str
    ok: bool | None
    detail: str
    error: EverlearnError | None = None
    notes: tuple[str, ...] = ()
    warned: bool = False


@dataclass(frozen=True)
class Item:
    """One check: a name, a function to run, and the checks that it depends on.

    `work` returns its result, or warnings, and raises an :class:`EverlearnError` if the check fails.
    """

    name: str
    work: Callable[[], str | list[str]]
    needs: tuple[str, ...] = ()
    """Names of the checks that must have passed before this one."""


def checks(run: OpenRun, only: str | None = None) -> Iterator[Check]:
    """Make the checks of a run and yield the outcome of each.

    Text is read and tokenised as the run does it; the result is cached, so the run does not read it again.

    Args:
        run: the run that would be started.
        only: a domain that is added to a finished run. The texts of the other domains may be gone and are not read,
            and the run folder is not checked.
    """
    passed: dict[str, bool | None] = {}
    for item in listed(run, only):
        if all(passed[need] for need in item.needs):
            before = len(run.warnings)
            outcome = attempt(item.name, item.work)
            outcome = replace(outcome, warned=len(run.warnings) > before)
        else:
            outcome = Check(item.name, None, "an earlier check that this one needs has failed")
        passed[item.name] = outcome.ok
        yield outcome


def attempt(name: str, work: Callable[[], str | list[str]]) -> Check:
    """Make one check and return its outcome."""
    try:
        outcome = work()
        if isinstance(outcome, str):
            return Check(name, True, outcome)
        return Check(name, True, " ".join(outcome) or "nothing to note", notes=tuple(outcome))
    except EverlearnError as error:
        return Check(name, False, str(error), error)


NOTIFY = "notification of forgetting"
FOLDER, ARGUMENTS, MODEL, TOKENIZER = "run folder", "training arguments", "model and its head", "tokenizer round trip"
FITS, METHODS, TRAINER = "objective, tokens, positions", "methods fit", "trainer, optimizer, trackers"
LEAKS, NOTES, DISK = "held-out text not in training text", "what is learnt and measured", "disk space"


def listed(run: OpenRun, only: str | None = None) -> list[Item]:
    """Return the checks in order; the arguments are those of :func:`checks`."""
    recipe = run.recipe
    domains = [domain for domain in recipe.domains if only in (None, domain.name)]
    corpora: list[Domain] = [*domains, *([recipe.general] if recipe.general is not None and only is None else [])]

    @functools.cache
    def model() -> PreTrainedModel:
        return run.some_model()  # type: ignore[return-value]

    files = {corpus.name: f"'{corpus.name}': files and columns" for corpus in corpora}
    rows = {name: f"'{name}': rows and steps" for name in files}
    tasks = [  # the files of a task that was already evaluated may be gone
        task for task in recipe.tasks if not task_path(run.folder.path / "evaluation", 0, task.name).is_file()
    ]
    end_tasks = [task for task in tasks if task in recipe.end_tasks]
    labels = {task.name: f"end task '{task.name}': files and labels" for task in tasks}
    return [
        *([Item(FOLDER, partial(_folder, run))] if only is None else []),
        Item(ARGUMENTS, partial(_arguments, run)),
        *([Item(NOTIFY, partial(_notified, notify))] if (notify := recipe.stop and recipe.stop.notify) else []),
        Item(MODEL, lambda: _model(model())),
        Item(TOKENIZER, lambda: _round_trip(run, model()), (MODEL,)),
        Item(FITS, lambda: _fits(run, model()), (MODEL, TOKENIZER)),
        Item(METHODS, lambda: _methods(run, model()), (FITS,)),
        Item(TRAINER, lambda: _trainer(run, model(), [domain.name for domain in domains]), (ARGUMENTS, MODEL)),
        *(
            item
            for corpus, (name, readable) in zip(corpora, files.items(), strict=True)
            for item in (
                Item(readable, partial(_readable, corpus)),
                Item(rows[name], partial(_rows, run, name), (readable, FITS, ARGUMENTS)),
            )
        ),
        *(
            item
            for task in tasks
            for item in (
                Item(labels[task.name], partial(_labels, run, task)),
                Item(f"end task '{task.name}': for this model", partial(_model_fit, run, task), (FITS,)),
            )
        ),
        Item(LEAKS, partial(_leaks, run, corpora, end_tasks), (FITS, *files.values(), *labels.values())),
        Item(NOTES, run.data_notes, tuple(rows.values())),
        *([Item(DISK, lambda: check_disk(run, model()), (FOLDER, METHODS, *rows.values()))] if only is None else []),
    ]


def _folder(run: OpenRun) -> str:
    check_place("run.folder", run.folder.path, folder=True)
    cache = cache_folder(run.recipe.data.cache)
    if not cache.is_dir():  # an existing cache may hold everything already, and is then only read
        check_place("data.cache", cache, folder=True)
    run.folder.check_free(run.recipe)
    return f"{run.folder.path} is free"


def _arguments(run: OpenRun) -> str:
    training_arguments(run.recipe.train, run.folder.path, run.recipe.run.seed)
    first = run.all_arguments()[0]
    return f"accepted; batches of {count(first.per_device_train_batch_size, 'row')}, on {first.device}"


def _notified(notify: str | tuple[str, ...]) -> str:
    notification.check(notify)
    return "a webhook" if isinstance(notify, str) else f"the command '{notify[0]}'"


def _model(model: PreTrainedModel) -> str:
    return f"{type(model).__name__}, {count(sum(p.numel() for p in model.parameters()), 'parameter')}, float32"


def _round_trip(run: OpenRun, model: PreTrainedModel) -> str:
    """Check that the tokenizer reads back its own output and that the model has an embedding for every token.

    The text need not come back exactly, since some tokenizers drop case and spaces. Its decoded form must give the same
    tokens again.
    """
    tokenizer = run.some_tokenizer()
    first = tokenizer(SAMPLE, add_special_tokens=False)["input_ids"]
    again = tokenizer(tokenizer.decode(first), add_special_tokens=False)["input_ids"]
    name = tokenizer.name_or_path
    if not first or list(first) != list(again):
        raise ModelError(
            f"The tokenizer '{name}' does not encode its own decoded text to the same tokens. Is it the model's own?"
        )
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in first:
        raise ModelError(f"The tokenizer '{name}' does not know plain English letters. Is it the model's own?")
    check_vocabulary(tokenizer, model)
    return f"{len(SAMPLE.encode()) / len(first):.1f} bytes per token, {count(len(tokenizer), 'token')}"


def _fits(run: OpenRun, model: PreTrainedModel) -> str:
    format_ = run.setting(model)
    return f"{format_.objective.name} on a model of kind {format_.kind}, rows of {count(format_.block_size, 'token')}"


def _methods(run: OpenRun, model: PreTrainedModel) -> str:
    check_run_methods(run, model)
    run.warnings += [*_merged(run, model), *_rows_left(run, model)]
    return " + ".join(method.title for method in run.recipe.methods())


def _merged(run: OpenRun, model: PreTrainedModel) -> list[str]:
    """Return a note on what is trained if the recipe's model is an adapter."""
    if not holds_adapter(model):
        return []
    base = str(model.name_or_path)
    base = Path(base).name if Path(base).exists() else base
    began = f"`model` is {run.recipe.model.path}, a PEFT adapter. It was added to the weights of its base model, {base}"
    own = next((method for method in run.recipe.methods() if method.adds_peft or method.freezes), None)
    if own is None:
        return [
            f"{began}, and all weights of the sum are trained: each stage is a complete model. To train an adapter, "
            "choose a method that adds one, such as `lora`."
        ]
    kept = f" The adapters that stages keep belong to the sum, not to {base}." if own.adds_peft else ""
    return [f"{began}. '{own.label}' does not go on training it, but trains what it adds to the sum.{kept}"]


def _rows_left(run: OpenRun, model: PreTrainedModel) -> list[str]:
    """Return a warning if the model was given tokens whose embeddings no method trains."""
    recipe, new = run.recipe, new_token_ids(model)
    freezing = [method for method in recipe.methods() if method.adds_peft or method.freezes]
    embeddings: Any = model.get_input_embeddings()
    names = {name for name, parameter in model.named_parameters() if parameter is embeddings.weight}
    if not new or not freezing or (moved_by(recipe.methods(), model) or frozenset()) & names:
        return []
    able = "trainable_token_indices" in type(freezing[0].config).model_fields
    advice = "Set its option `trainable_token_indices: new`, or learn" if able else "Learn"
    return [
        f"{recipe.model.path} was extended by {count(len(new), 'token')}, whose embeddings '{freezing[0].label}' "
        f"does not train: it trains only what it adds. {advice} the first domain with a method that trains "
        "all weights (such as `mas`), and go on from its last stage."
    ]


def _trainer(run: OpenRun, model: PreTrainedModel, names: list[str]) -> str:
    methods, recipe = run.recipe.methods(), run.recipe
    different: list[dict[str, object]] = []
    for options in map(recipe.train_of, names):
        if options not in different:
            different.append(options)
    return "; ".join(rehearse(options, model, methods, recipe.run.seed) for options in different)


def _readable(corpus: Domain) -> str:
    check_corpus(corpus)
    return ", ".join(source.path for source in corpus.sources) or corpus.path


def _rows(run: OpenRun, name: str) -> str:
    prepared = run.prepared(name)
    rows = "streamed" if prepared.train.size is None else f"{count(prepared.train.size, 'row')}"
    held_out = f"{prepared.validation.size:,} held out" if prepared.validation is not None else "nothing held out"
    domain = next((domain for domain in run.recipe.domains if domain.name == name), None)
    if domain is None:
        return f"{rows}, {held_out}"
    run.warnings += _warm_up(run, name)
    own = "".join(f", {key} {value}" for key, value in domain.train.items())
    return f"{rows}{_shares(prepared.train)}, {held_out}, {count(run.steps(name), 'step')}{own}"


def _shares(source: BlockSource) -> str:
    """Return the share of each source of a domain in words, if it has several; what changes has two numbers."""
    if not isinstance(source, Mixture):
        return ""
    parts = (
        f"{percent(first, 0)} {name}" if first == last else f"{percent(first, 0)} to {percent(last, 0)} {name}"
        for name, (first, last) in source.ends.items()
    )
    return f" ({', '.join(parts)})"


def _warm_up(run: OpenRun, name: str) -> list[str]:
    """Return a warning if a stage ends before its warm-up does."""
    args, steps = run.arguments(name), run.steps(name)
    rising = args.get_warmup_steps(steps)
    if rising < steps or args.lr_scheduler_type in WITHOUT_WARM_UP:
        return []
    return [
        f"The warm-up of '{name}' has {count(rising, 'step')} and its stage {steps:,}: its learning rate only rises."
    ]


def _leaks(run: OpenRun, corpora: Sequence[Domain], tasks: Sequence[TaskConfig]) -> str:
    """Look for held-out text and test examples in the training text.

    Raises:
        DataError: a larger share than `data.max_leaked` was found.
    """
    outcome, most = check_run_leaks(run, corpora, tasks), run.recipe.data.max_leaked
    general = run.recipe.general
    run.warnings += outcome.notes(general.name if general is not None else None)
    worst = max(outcome.leaks, key=lambda leak: leak.share, default=None)
    if most is not None and worst is not None and worst.share > most:
        raise DataError(f"{worst} The recipe allows {percent(most)} (`data.max_leaked`).")
    if not any(outcome.looked_for.values()):
        return outcome.scope()
    return f"{outcome.scope()}; {sum(leak.count for leak in outcome.leaks) or 'none'} found there"


def _labels(run: OpenRun, config: TaskConfig) -> str:
    task = make_task(config)
    outcome = task.check()
    run.warnings += task.notes()
    return outcome


def _model_fit(run: OpenRun, config: TaskConfig) -> str:
    kind, task = run.setting().kind, make_task(config)
    task.check_model(kind)
    task.check_tokenizer(run.setting().tokenizer)
    return f"works with a model of kind {kind}"


def check_run_leaks(run: OpenRun, corpora: Sequence[Domain], tasks: Sequence[TaskConfig]) -> LeakCheck:
    """Look for held-out text and test examples in training text (:mod:`everlearn.data.leaks`).

    Args:
        corpora: the corpora that are read. For the others, the held-out rows in the run folder are looked for.
        tasks: the end tasks whose examples are looked for.
    """
    tests = {examples_of(task.name): make_task(task).examples() for task in tasks}
    for corpus in run.corpora:
        path = run.folder.sets / f"{corpus.name}.safetensors"
        if corpus not in corpora and path.is_file():
            with contextlib.suppress(RunError):  # damaged: it is drawn again, or refused, when it is scored
                tests[kept_rows_of(corpus.name)] = _texts(run, HeldOut.load(path))
    with run.processes.main_process_first():
        outcome = check_leaks(corpora, tests, run.recipe.data.cache, run.reporter.activity)
    called = {words(corpus.name): corpus.name for corpus in run.corpora for words in (held_out_of, kept_rows_of)}
    run.leaked |= outcome.leaked(called | {examples_of(task.name): task.name for task in tasks})
    return outcome


def _texts(run: OpenRun, held_out: HeldOut) -> list[str]:
    """Decode held-out rows to texts; for an encoder-decoder, the prompt and the answer."""
    decode = functools.partial(run.setting().tokenizer.decode, skip_special_tokens=True)
    parts = ("input_ids", "labels") if run.setting().kind == "encoder-decoder" else ("input_ids",)
    rows = held_out.blocks.take(range(len(held_out.blocks)))
    return [" ".join(decode(row[part]) for part in parts) for row in rows]
