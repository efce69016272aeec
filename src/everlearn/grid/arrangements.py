"""Make a cell: methods learn the stream, and other arrangements train plainly in different ways.

Everything is a run of :class:`~everlearn.learner.ContinualLearner`, so a killed cell continues where it was. The base
model is scored once for the complete grid (:attr:`Workbench.base`), since its scores depend only on model and data.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from everlearn import files
from everlearn.comparison.during_training import moments as moments_of
from everlearn.comparison.runs import read_run
from everlearn.config.recipe import Recipe
from everlearn.data.blocks import hash_of
from everlearn.data.corpus import Document, Domain
from everlearn.data.documents import read_documents
from everlearn.data.held_out import OwnHeldOut
from everlearn.evaluation import METRICS, Cell, Results, alone_path, classification_cell, set_path, task_path
from everlearn.evaluation.task import TaskConfig, make_task
from everlearn.grid.cells import (
    Measured,
    Moment,
    PointScores,
    ScoreMatrix,
    TaskScores,
    bits_of,
    measured_sets,
    scores_of,
)
from everlearn.grid.compute import Effort
from everlearn.grid.runs import Job, RunFactory
from everlearn.learner import ContinualLearner
from everlearn.predictors import Checkpoint
from everlearn.tasks.choice import Choice
from everlearn.tasks.generation import Generation
from everlearn.tasks.labelled import EndTask, read_end_task
from everlearn.tasks.prompts import AnswerTask, ChoiceTask, Question

POOL = "pool"
_DOCUMENTS = "documents.jsonl"


def stream(factory: RunFactory, job: Job, place: Path) -> Measured:
    """Let the methods learn one domain after another."""
    return _streamed(factory.finish(job, factory.recipe(job, place / "run")))


def cumulative(factory: RunFactory, job: Job, place: Path) -> Measured:
    """Train each domain shuffled with all domains before it, in the steps of the domain alone: A, then A and B."""
    whole = factory.recipe(job, place / "run")
    alone, learnt = ContinualLearner(whole, reporter=factory.reporter), []
    domains = [domain.model_dump(mode="json") for domain in whole.domains]
    for index, domain in enumerate(whole.domains):
        before = sorted(whole.domains[: index + 1], key=lambda each: each.name)  # one file for any order of the domains
        if index:
            so_far = whole.changed(domains=[each.model_dump(mode="json") for each in before], end_tasks=[])
            name = f"pool-corpus-{hash_of(*(each.name for each in before))[:8]}"
            corpus = _pool_of(factory, job, so_far, name)
            held_out = _held_out(factory, job, domain)
            own = domain.train | {"max_steps": alone.steps(domain.name)}
            learnt.append(corpus | {"name": domain.name, "validation": held_out, "train": own})
    return _streamed(factory.finish(job, whole.changed(domains=[domains[0], *learnt])))


def _streamed(learner: ContinualLearner) -> Measured:
    """Return the measurements of a finished run over a stream."""
    recipe, evaluation = learner.recipe, learner.folder.path / "evaluation"
    domains, last = [domain.name for domain in recipe.domains], len(recipe.domains)
    sets = measured_sets(evaluation, last, held_out_names(recipe))

    def moments(domain: str | None) -> dict[Moment, int]:
        own: dict[Moment, int] = {"learnt": domains.index(domain) + 1} if domain in domains else {}
        return {"base": 0, **own, "final": last}

    model, methods = learner.some_model(), recipe.methods()
    costs = [method.cost(model) for method in methods]
    spent = _spent(learner)
    return Measured(
        domains=domains,
        tasks={task.name: _tasks(evaluation, moments(task.domain), task.name) for task in scored(recipe)},
        bits_per_byte={name: {m: bits_of(evaluation, row, name) for m, row in moments(name).items()} for name in sets},
        matrix=ScoreMatrix(
            rows=["base", *domains],
            columns=sets,
            values=[
                [bits_of(evaluation, row, name) if set_path(evaluation, row, name).is_file() else None for name in sets]
                for row in range(last + 1)
            ],
        ),
        accuracies=_accuracies(evaluation, domains, [task.name for task in scored(recipe)]),
        points=[PointScores(**asdict(point)) for point in moments_of(read_run(learner.folder.path))],
        parameters=sum(cost.parameters for cost in costs),
        passes_per_step=sum(cost.passes_per_step for cost in costs),
        **spent | {"extra_tokens": (Effort.of(learner, costs).relative - 1) * spent["tokens"]},
    )


def constant(factory: RunFactory, job: Job, place: Path) -> Measured:
    """Answer every test example with the same label, without a model."""
    recipe = factory.recipe(job, place / "run")
    scores = {task.name: _constant(task, recipe) for task in scored(recipe)}
    return Measured(
        domains=list(job.domains), tasks={name: {"base": each, "final": each} for name, each in scores.items()}
    )


def _constant(task: TaskConfig, recipe: Recipe) -> TaskScores:
    """Score the most frequent label; for a task without fine-tuning, its domain is the training part."""
    if isinstance(task, EndTask):
        cell, shares = always_the_most_frequent(task), None
    else:
        asked = cast(Generation | Choice, make_task(task))
        cell = asked.always(_most_frequent(task, recipe))
        shares = shares_of_options(asked.questions) if isinstance(asked, Choice) else None
    if shares is None and "truth" in cell:
        shares = [float(np.mean(cell["truth"] == label)) for label in cell.facts["classes"]]
    return scores_of(cell).model_copy(update={"shares": shares or []})


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


def none(factory: RunFactory, job: Job, place: Path) -> Measured:
    """Score the base model."""
    base = factory.base(job)
    recipe, evaluation = base.recipe(), base.path / "evaluation"
    rows: dict[Moment, int] = {"base": 0, "final": 0}
    sets = measured_sets(evaluation, 0, held_out_names(recipe))
    return Measured(
        domains=[domain.name for domain in recipe.domains],
        tasks={task.name: _tasks(evaluation, rows, task.name) for task in scored(recipe)},
        bits_per_byte={name: {moment: bits_of(evaluation, 0, name) for moment in rows} for name in sets},
        notes=list(recipe.run.notes),
    )


def separate(factory: RunFactory, job: Job, place: Path) -> Measured:
    """Train one model per domain from the base model; scores on general text are means over these models."""
    rows: dict[Moment, int] = {"base": 0, "learnt": 1, "final": 1}
    parts = [factory.finish(job, factory.recipe(job, place / name, (name,))) for name in job.domains]
    found = Measured(domains=list(job.domains), extra_tokens=0)
    general: dict[str, list[dict[Moment, float]]] = {}
    for learner in parts:
        evaluation, domain = learner.folder.path / "evaluation", learner.recipe.domains[0].name
        for task in scored(learner.recipe):
            found.tasks[task.name] = _tasks(evaluation, rows, task.name)
        for name in measured_sets(evaluation, 1, held_out_names(learner.recipe)):
            bits = {moment: bits_of(evaluation, row, name) for moment, row in rows.items()}
            if name == domain:
                found.bits_per_byte[name] = bits
            else:
                general.setdefault(name, []).append({"base": bits["base"], "final": bits["final"]})
        spent = _spent(learner)
        found.tokens += spent["tokens"]
        found.seconds += spent["seconds"]
        found.notes = list(dict.fromkeys([*found.notes, *spent["notes"]]))
    moments: tuple[Moment, ...] = ("base", "final")
    for name, each in general.items():
        found.bits_per_byte[name] = {m: sum(bits[m] for bits in each) / len(each) for m in moments}
    return found


def pool(factory: RunFactory, job: Job, place: Path) -> Measured:
    """Train one model on all domains shuffled together, with as many steps as all of them."""
    whole = factory.recipe(job, place / "held-out")
    each = [whole.train_of(domain.name) for domain in whole.domains]
    longer = {
        key: sum(options[key] for options in each)
        for key in ("max_steps", "warmup_steps")
        if all(options.get(key, 0) >= 1 for options in each)
    }
    learner = factory.finish(
        job,
        whole.changed(
            domains=[_pool_of(factory, job, whole, "pool-corpus") | {"name": POOL, "validation": None}],
            end_tasks=[task.model_dump(mode="json") | {"domain": None} for task in whole.end_tasks],
            train=whole.train | longer,
            run=whole.run.model_dump(mode="json") | {"folder": str(place / "run")},
        ),
    )
    evaluation, base = learner.folder.path / "evaluation", factory.base(job).path / "evaluation"
    # The pooled run has no held-out text of single domains, so these are scored as a model of the stream would be.
    over = ContinualLearner(whole, reporter=factory.reporter)
    factory.share_base(job, over.folder)
    scorer = over.scorer()
    domains = [name for name in scorer.names() if name in job.domains]
    bits: dict[str, dict[Moment, float]] = {}
    for name in domains:
        scorer.score_alone(name, learner.folder.stage(1, POOL))
        alone = METRICS["bits_per_byte"].score(Cell.load(alone_path(scorer.cells, name)))
        bits[name] = {"base": bits_of(base, 0, name), "final": alone}
    rows: dict[Moment, int] = {"base": 0, "final": 1}
    for name in measured_sets(evaluation, 1, held_out_names(learner.recipe)):
        bits[name] = {moment: bits_of(evaluation, row, name) for moment, row in rows.items()}
    return Measured(
        domains=list(job.domains),
        tasks={task.name: _tasks(evaluation, rows, task.name) for task in scored(whole)},
        bits_per_byte=bits,
        **_spent(learner),
    )


def merged(factory: RunFactory, job: Job, place: Path) -> Measured:
    """Average the weights of one model per domain, each trained from the base model; learnt is what these knew."""
    parts = [factory.finish(job, factory.recipe(job, place / name, (name,))) for name in job.domains]
    model = parts[0].model_after(1)
    with torch.no_grad():
        for number, part in enumerate(parts[1:], 2):
            other = dict(part.model_after(1).named_parameters())
            for name, parameter in model.named_parameters():
                parameter.lerp_(other[name], 1 / number)
    whole = factory.recipe(job, place / "held-out")
    over = ContinualLearner(whole, reporter=factory.reporter)
    factory.share_base(job, over.folder)
    scorer, base = over.scorer(), factory.base(job).path / "evaluation"
    how = scorer.conditions(0)
    predictor = Checkpoint(model.to(scorer.device), how.objective)
    bits = {
        name: METRICS["bits_per_byte"].score(scorer.held_out(name).measure(predictor, how)) for name in scorer.names()
    }
    moments: dict[str, dict[Moment, float]] = {
        name: {"base": bits_of(base, 0, name), "final": found} for name, found in bits.items()
    }
    for part, name in zip(parts, job.domains, strict=True):
        moments[name]["learnt"] = bits_of(part.folder.path / "evaluation", 1, name)
    spent = [_spent(part) for part in parts]
    return Measured(
        domains=list(job.domains),
        tasks={
            task.name: _tasks(base, {"base": 0}, task.name)
            | {"final": scores_of(make_task(task).measure(predictor, how))}
            for task in scored(whole)
        },
        bits_per_byte=moments,
        tokens=sum(each["tokens"] for each in spent),
        seconds=sum(each["seconds"] for each in spent),
        extra_tokens=0,
        notes=list(dict.fromkeys(note for each in spent for note in each["notes"])),
    )


def _pool_of(factory: RunFactory, job: Job, recipe: Recipe, name: str) -> dict[str, Any]:
    """Return all domains of a recipe as one corpus."""
    answers = any(domain.target_column for domain in recipe.domains)
    last = max(part.keep_last for domain in recipe.domains for part in domain.parts)
    with factory.waiting_for(factory.runs, "writes the corpus of all domains"):  # cells of all seeds share it
        text = pooled(recipe, factory.shared(job, name))
    return {"path": str(text), **({"target_column": "target", "keep_last": last} if answers else {})}


def _held_out(factory: RunFactory, job: Job, domain: Domain) -> str | None:
    """Write a domain's held-out text to a file of its own, for a domain with more text; None if there is none."""
    if domain.validation is None:
        return None
    folder = factory.shared(job, f"held-out-{domain.name}")
    with factory.waiting_for(factory.runs, "writes held-out text"):
        if files.damage(folder) is not None:
            with files.new_folder(folder) as made:
                _write(made / _DOCUMENTS, _documents(domain, held_out=True))
    return str(folder / _DOCUMENTS)


def pooled(recipe: Recipe, folder: Path) -> Path:
    """Write one file with every training document of every domain, unordered, since training shuffles its rows.

    The weights of a domain's sources are ignored: every document occurs once.
    """
    if files.damage(folder) is not None:
        with files.new_folder(folder) as made:
            _write(made / _DOCUMENTS, (each for domain in recipe.domains for each in _documents(domain)))
    return folder / _DOCUMENTS


def _documents(domain: Domain, held_out: bool = False) -> Iterator[Document]:
    """Yield a domain's training documents, or its held-out ones."""
    for part in domain.parts:
        if held_out and part.held_out_corpus is not None:
            yield from (document for document, _ in read_documents(part.held_out_corpus))
            continue
        documents = (document for document, _ in read_documents(part))
        for document, held in OwnHeldOut(part, part.held_out_share).parted(documents):
            if held == held_out:
                yield document


def _write(file: Path, documents: Iterable[Document]) -> None:
    with file.open("w", encoding="utf-8") as out:
        for document in documents:
            answer = {} if document.target is None else {"target": document.target}
            out.write(json.dumps({"text": document.text, **answer}, ensure_ascii=False) + "\n")


def held_out_names(recipe: Recipe) -> list[str]:
    """Return the names of the domains, and of the general text if there is one."""
    return [domain.name for domain in (*recipe.domains, *([recipe.general] if recipe.general else []))]


def scored(recipe: Recipe) -> list[TaskConfig]:
    """Return the end tasks with an accuracy: those with fine-tuning, and those of a domain without fine-tuning.

    Other tasks are in the report of the runs, and tasks without a domain in :mod:`everlearn.grid.during_training`.
    """
    answered = [task for task in recipe.end_tasks if isinstance(task, AnswerTask | ChoiceTask) and task.domain]
    return [task for task in recipe.end_tasks if isinstance(task, EndTask) or task in answered]


def _most_frequent(task: TaskConfig, recipe: Recipe) -> str:
    """Return the most frequent answer of a task's domain."""
    found = Counter[str]()
    for domain in recipe.domains:
        if domain.name == task.domain:
            found.update(document.target or "" for part in domain.parts for document, _ in read_documents(part))
    return min(found, key=lambda word: (-found[word], word), default="")


def _accuracies(evaluation: Path, domains: list[str], tasks: list[str]) -> ScoreMatrix | None:
    """Return the accuracy of every task after every domain, where measured; None if there are no tasks."""

    def score(row: int, task: str) -> float | None:
        place = task_path(evaluation, row, task)
        return float(np.mean(scores_of(Cell.load(place)).accuracy)) if place.is_file() else None

    rows = ["base", *domains]
    values = [[score(row, task) for task in tasks] for row in range(len(rows))]
    return ScoreMatrix(rows=rows, columns=tasks, values=values) if tasks else None


def _tasks(evaluation: Path, rows: Mapping[Moment, int], task: str) -> dict[Moment, TaskScores]:
    places = {moment: task_path(evaluation, row, task) for moment, row in rows.items()}
    return {moment: scores_of(Cell.load(place)) for moment, place in places.items() if place.is_file()}


def _spent(learner: ContinualLearner) -> dict[str, Any]:
    """Return the cost of plain training, to which a method's own passes are added."""
    cost = (results := Results.load(learner.folder.results_file)).cost
    return {"tokens": cost.tokens, "extra_tokens": 0, "seconds": cost.training_seconds, "notes": results.notes}
