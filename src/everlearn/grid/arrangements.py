"""Make a cell: methods learn the stream, and other arrangements train plainly in different ways.

Everything is a run of :class:`~everlearn.learner.ContinualLearner`, so a killed cell continues where it was. The base
model is scored once for the complete grid (:meth:`RunFactory.base`), since its scores depend only on model and data.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from everlearn import files
from everlearn.comparison.during_training import inside_stages
from everlearn.comparison.runs import read_run
from everlearn.config.recipe import Recipe
from everlearn.data.blocks import hash_of
from everlearn.data.chats import uses_template
from everlearn.data.corpus import Document, Domain, document_key
from everlearn.data.documents import read_documents
from everlearn.data.held_out import documents_of
from everlearn.data.messages import WEIGHT
from everlearn.errors import RunError
from everlearn.evaluation import Cell, Results, Spent, alone_path, classification_cell, task_path
from everlearn.evaluation.build import BASE as BASE_ROW
from everlearn.evaluation.task import TaskConfig, make_task
from everlearn.grid.board import Board
from everlearn.grid.compute import Effort
from everlearn.grid.runs import Job, RunFactory
from everlearn.learner import ContinualLearner
from everlearn.methods.engine.protection import costs_of
from everlearn.model.loading import load_skeleton
from everlearn.predictors import Checkpoint
from everlearn.run.collect_results import Outcome
from everlearn.run.folder import RunFolder
from everlearn.run.open_run import OpenRun
from everlearn.tasks.choice import Choice
from everlearn.tasks.generation import Generation
from everlearn.tasks.labelled import EndTask, read_end_task
from everlearn.tasks.prompts import AnswerTask, ChoiceTask, Question

BASE = "none"
"""Name of the row of the base model."""
CONSTANT, ALONE, POOL, MERGED = "constant", "alone", "pool", "merged"
"""Labels of rows in score tables: the most frequent label as the answer to everything, a model per domain, one model of
all domains, and the mean of the models per domain."""
Made = tuple[Results, dict[str, Any]]
"""The results of a cell, and further facts for the group `grid` of its file."""
_DOCUMENTS = "documents.jsonl"


def stream(factory: RunFactory, job: Job, place: Path) -> Made:
    """Let the methods learn one domain after another."""
    return _streamed(factory.finish(job, factory.recipe(job, place / "run")))


def cumulative(factory: RunFactory, job: Job, place: Path) -> Made:
    """Train on the first domain, then on the first two shuffled together, then on the first three, and so on.

    Each stage has as many steps as training on its newest domain alone would have.
    """
    recipe = factory.recipe(job, place / "run")
    alone, learnt = ContinualLearner(recipe, reporter=factory.reporter), []
    domains = [domain.model_dump(mode="json") for domain in recipe.domains]
    for index, domain in enumerate(recipe.domains):
        # One file for any order of the domains.
        before = sorted(recipe.domains[: index + 1], key=lambda each: each.name)
        if index:
            so_far = recipe.changed(domains=[each.model_dump(mode="json") for each in before], end_tasks=[])
            name = f"pool-corpus-{hash_of(*(each.name for each in before))[:8]}"
            corpus = _pool_of(factory, job, so_far, name)
            held_out = _held_out(factory, job, domain, "messages_column" in corpus)
            own = domain.train | {"max_steps": alone.steps(domain.name)}
            learnt.append(corpus | {"name": domain.name, "validation": held_out, "train": own})
    return _streamed(factory.finish(job, recipe.changed(domains=[domains[0], *learnt])))


def _streamed(learner: ContinualLearner) -> Made:
    """Return the results of a finished run over a stream, and what its methods add to plain training."""
    results, last = Results.load(learner.folder.results_file), len(learner.recipe.domains)
    model = learner.some_model()
    costs = costs_of(learner.recipe.methods(), model)
    return results, {
        "parameters": sum(cost.parameters for cost in costs),
        "passes_per_step": sum(cost.passes_per_step for cost in costs),
        "extra_tokens": (Effort.of(learner, costs).relative - 1) * results.cost.tokens,
        "examples": _examples(learner.folder, last),
        "points": inside_stages(read_run(learner.folder.path)),
    }


def constant(factory: RunFactory, job: Job, place: Path) -> Made:
    """Answer every test example with the same label, without a model."""
    recipe = factory.recipe(job, place / "run")
    board, examples, shares = Board([CONSTANT], recipe), {}, {}
    for task in scored(recipe):
        cell, label_shares = _constant(task, recipe)
        board.measured(CONSTANT, cell, task=True)
        examples[task.name], shares[task.name] = len(cell), label_shares
    results = _so_far(recipe, RunFolder(place / "run"))
    return board.results(results), {"examples": examples, "shares": shares}


def _constant(task: TaskConfig, recipe: Recipe) -> tuple[Cell, list[float]]:
    """Return the answers of the most frequent label, and the share of each label.

    For a task without fine-tuning, its domain is the training part.
    """
    if isinstance(task, EndTask):
        cell = always_the_most_frequent(task)
    else:
        measured_task = cast(Generation | Choice, make_task(task))
        cell = measured_task.always(_most_frequent(task, recipe))
        if isinstance(measured_task, Choice):
            return cell, shares_of_options(measured_task.questions)
    labels = cell.facts["classes"] if "truth" in cell else []
    return cell, [float(np.mean(cell["truth"] == label)) for label in labels]


def shares_of_options(questions: Sequence[Question]) -> list[float]:
    """Return how often each option that all questions have is the right one.

    Options that only some questions have are no labels and are left out.
    """
    right = Counter(question.answers[question.right] for question in questions)
    labels = [each for each in questions[0].answers if all(each in question.answers for question in questions)]
    return [right[label] / len(questions) for label in labels]


def always_the_most_frequent(task: EndTask) -> Cell:
    """Return the cell of always answering the training part's most frequent label; ties go to the first one."""
    train, test = read_end_task(task)
    classes, counts = np.unique(train.labels, return_counts=True)
    answers = np.full((1, len(test)), classes[counts.argmax()])
    return classification_cell(test.labels, answers, classes, (0,), task.f1, task=task.name)


def none(factory: RunFactory, job: Job, place: Path) -> Made:
    """Score the base model; its scores also count as those at the end."""
    base = factory.base(job)
    recipe = base.recipe()
    results, board = _so_far(recipe, base), Board([BASE_ROW, BASE], recipe)
    for row in board.rows:
        board.take(row, results, 0)
    return board.results(results), {"examples": _examples(base, 0)}


def separate(factory: RunFactory, job: Job, place: Path) -> Made:
    """Train one model per domain from the base model; scores on general text are means over these models."""
    parts = _alone(factory, job, place)
    board = Board([BASE_ROW, ALONE], factory.recipe(job, place / "all"), learnt=ALONE)
    examples: dict[str, int] = {}
    for part in parts:
        for place_of_row, row in enumerate(board.rows):
            board.take(row, Results.load(part.folder.results_file), place_of_row)
        examples |= _examples(part.folder, 1)
    return _together(board, parts), {"examples": examples, "extra_tokens": 0}


def _alone(factory: RunFactory, job: Job, place: Path) -> list[ContinualLearner]:
    """Return a finished run of each domain alone, from the base model."""
    for domain in factory.recipe(job, place / "all").domains:
        if domain.continues is not None:
            raise RunError(
                f"'{domain.name}' learns '{domain.continues}' again, so it cannot have a model of its own. Leave out "
                "this row (`--methods`), or the domain."
            )
    return [factory.finish(job, factory.recipe(job, place / name, (name,))) for name in job.domains]


def pool(factory: RunFactory, job: Job, place: Path) -> Made:
    """Train one model on all domains shuffled together, with the sum of their steps."""
    recipe = factory.recipe(job, place / "held-out")
    each = [recipe.train_of(domain.name) for domain in recipe.domains]
    longer = {
        key: sum(options[key] for options in each)
        for key in ("max_steps", "warmup_steps")
        if all(options.get(key, 0) >= 1 for options in each)
    }
    learner = factory.finish(
        job,
        recipe.changed(
            domains=[_pool_of(factory, job, recipe, "pool-corpus") | {"name": POOL, "validation": None}],
            stop=None,
            end_tasks=[task.model_dump(mode="json") | {"domain": None} for task in recipe.end_tasks],
            train=recipe.train | longer,
            run=recipe.run.model_dump(mode="json") | {"folder": str(place / "run")},
        ),
    )
    base, board = factory.base(job), Board([BASE_ROW, POOL], recipe)
    board.take(BASE_ROW, _so_far(recipe, base), 0)
    board.take(POOL, Results.load(learner.folder.results_file), 1)
    # The pooled run has no held-out text of single domains, so these are scored as a model of the stream would be.
    over = ContinualLearner(recipe, reporter=factory.reporter)
    factory.share_base(job, over.folder)
    scorer = over.scorer()
    for name in (name for name in scorer.names() if name in job.domains):
        scorer.score_alone(name, learner.folder.stage(1, POOL))
        board.measured(POOL, Cell.load(alone_path(scorer.cells, name)))
    return _together(board, [learner]), {"examples": _examples(learner.folder, 1), "extra_tokens": 0}


def merged(factory: RunFactory, job: Job, place: Path) -> Made:
    """Average the weights of one model per domain, each trained from the base model.

    The scores right after a domain's own stage are those of the domain's model.
    """
    parts = _alone(factory, job, place)
    model = parts[0].model_after(1)
    with torch.no_grad():
        for number, part in enumerate(parts[1:], 2):
            other = dict(part.model_after(1).named_parameters())
            for name, parameter in model.named_parameters():
                parameter.lerp_(other[name], 1 / number)
    recipe = factory.recipe(job, place / "held-out")
    over = ContinualLearner(recipe, reporter=factory.reporter)
    factory.share_base(job, over.folder)
    scorer, base = over.scorer(), factory.base(job)
    how = scorer.conditions(0)
    predictor = Checkpoint(model.to(scorer.device), how.objective)
    board = Board([BASE_ROW, ALONE, MERGED], recipe, learnt=ALONE)
    board.take(BASE_ROW, _so_far(recipe, base), 0)
    for part in parts:
        board.take(ALONE, Results.load(part.folder.results_file), 1, general=False)
    for text in (scorer.held_out(name) for name in scorer.names()):
        board.measured(MERGED, text.measure(predictor, how))
    for task in scored(recipe):
        board.measured(MERGED, make_task(task).measure(predictor, how), task=True)
    return _together(board, parts), {"examples": _examples(base, 0), "extra_tokens": 0}


def _together(board: Board, parts: Sequence[ContinualLearner]) -> Results:
    """Return the results of an arrangement that trained these runs, with their total cost."""
    runs = [Results.load(part.folder.results_file) for part in parts]
    added = ("seconds", "training_seconds", "evaluation_seconds", "tokens")
    cost = Spent(**{key: sum(getattr(run.cost, key) for run in runs) for key in added})
    notes = list(dict.fromkeys(note for run in runs for note in run.notes))
    return board.results(runs[0]).model_copy(update={"cost": cost, "notes": notes})


def _so_far(recipe: Recipe, folder: RunFolder) -> Results:
    """Return the results of all scores in a folder, even if no domain is learnt yet."""
    return Outcome(recipe, folder).results(recipe.objective or "", recipe.run.notes)


def _examples(folder: RunFolder, row: int) -> dict[str, int]:
    """Return the number of test examples of each end task that was measured in a row."""
    places = task_path(folder.path / "evaluation", row, "any").parent.glob("*.safetensors")
    return {place.stem: len(Cell.load(place)) for place in sorted(places)}


def _pool_of(factory: RunFactory, job: Job, recipe: Recipe, name: str) -> dict[str, Any]:
    """Return all domains of a recipe as one corpus."""
    setting = OpenRun(recipe).setting(load_skeleton(recipe.model))
    parts = [part for domain in recipe.domains for part in domain.parts]
    chats = {uses_template(part, setting.tokenizer, setting.kind) for part in parts}
    if len(chats) > 1:
        raise RunError("Chats and other text cannot be pooled into one corpus. Leave this row out (`--methods`).")
    answers = any(domain.answers for domain in recipe.domains)
    last = max(part.keep_last for part in parts)
    with factory.waiting_for(factory.runs, "writes the corpus of all domains"):  # cells of all seeds share it
        text = pooled(recipe, factory.shared(job, name), True in chats)
    if True in chats:
        return {"path": str(text), "messages_column": "messages", "tools_column": "tools"}
    return {"path": str(text), **({"target_column": "target", "keep_last": last} if answers else {})}


def _held_out(factory: RunFactory, job: Job, domain: Domain, chats: bool) -> str | None:
    """Write a domain's held-out text to a file of its own, for a domain with more text; None if there is none."""
    if domain.validation is None:
        return None
    folder = factory.shared(job, f"held-out-{domain.name}")
    with factory.waiting_for(factory.runs, "writes held-out text"):
        if files.damage(folder) is not None:
            with files.new_folder(folder) as new_folder:
                _write(new_folder / _DOCUMENTS, documents_of(domain, held_out=True), chats)
    return str(folder / _DOCUMENTS)


def pooled(recipe: Recipe, folder: Path, chats: bool = False) -> Path:
    """Write one file with every training document of every domain, unordered, since training shuffles its rows.

    The weights of a domain's sources are ignored: every document occurs once.
    """
    if files.damage(folder) is not None:
        with files.new_folder(folder) as new_folder:
            _write(new_folder / _DOCUMENTS, _each_once(recipe), chats)
    return folder / _DOCUMENTS


def _each_once(recipe: Recipe) -> Iterator[Document]:
    """Yield the training documents of all domains, without repetitions where one domain is learnt again."""
    known: dict[str, set[int]] = {domain.continues: set() for domain in recipe.domains if domain.continues is not None}
    for domain in recipe.domains:
        seen = known.get(domain.learns)
        for document in documents_of(domain):
            key = None if seen is None else document_key(document)
            if domain.continues is None or seen is None or key not in seen:
                yield document
            if seen is not None and key is not None:
                seen.add(key)


def _write(file: Path, documents: Iterable[Document], chats: bool) -> None:
    with file.open("w", encoding="utf-8") as out:
        for document in documents:
            row: dict[str, Any] = {"text": document.text}
            if chats:
                messages = [each.as_dict() | ({} if each.trained else {WEIGHT: 0}) for each in document.messages]
                row = {"messages": messages, "tools": list(document.tools) or None}
            elif document.target is not None:
                row |= {"target": document.target}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


def scored(recipe: Recipe) -> list[TaskConfig]:
    """Return the end tasks with an accuracy: those with fine-tuning, and those of a domain without fine-tuning.

    Other tasks are in the report of the runs, and tasks without a domain in :mod:`everlearn.grid.during_training`.
    """
    answered = [task for task in recipe.end_tasks if isinstance(task, AnswerTask | ChoiceTask) and task.domain]
    return [task for task in recipe.end_tasks if isinstance(task, EndTask) or task in answered]


def _most_frequent(task: TaskConfig, recipe: Recipe) -> str:
    """Return the most frequent answer of a task's domain."""
    counts = Counter[str]()
    for domain in recipe.domains:
        if domain.name == task.domain:
            counts.update(document.target or "" for part in domain.parts for document, _ in read_documents(part))
    return min(counts, key=lambda word: (-counts[word], word), default="")
