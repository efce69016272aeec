"""Run a cell of the study: a randomly initialised body learns tasks in turn, each with its own classifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)

import everlearn_bench.bases  # noqa: F401  # AutoConfig knows them from here on
from everlearn import files
from everlearn.config.recipe import Recipe
from everlearn.evaluation import Cell, Results, RunFacts, build_results, classification_cell, task_path
from everlearn.grid.arrangements import Made
from everlearn.grid.runs import Job, RunFactory
from everlearn.model.loading import load_tokenizer
from everlearn.run.folder import RunFolder
from everlearn.seeding import seeded
from everlearn.tasks.fine_tuning import fine_tune
from everlearn.tasks.labelled import EndTask, LabelledSet, read_end_task

ROOM = 256
"""Texts in a batch of predictions."""


@dataclass(frozen=True)
class Body:
    """The part of the model that the tasks share: embeddings and layers, without classifiers.

    Attributes:
        shape: the configuration, without the size of the vocabulary.
        frozen: whether the embeddings are frozen.
    """

    shape: Mapping[str, Any]
    frozen: bool


def learn_tasks(body: Body, factory: RunFactory, job: Job, place: Path) -> Made:
    """Train a body on the tasks of the domains; an interrupted cell continues after the last task it has learnt.

    The folder of a stage contains the classifier of its task, with the body as it was then. Later tasks change the
    body, and the classifier is evaluated again on the changed one.
    """
    recipe = factory.recipe(job, place / "run")
    folder = factory.begun(recipe).folder
    tokenizer = load_tokenizer(recipe.model)
    tasks = [task for task in recipe.end_tasks if isinstance(task, EndTask)]
    sets = {task.name: read_end_task(task) for task in tasks}
    for number, task in enumerate(tasks, 1):
        stages = [folder.stage(position, each.name) for position, each in enumerate(tasks[:number], 1)]
        if files.damage(stages[-1]) is None:
            continue
        before = stored(stages[-2]).base_model if number > 1 else start(body, str(recipe.model.path), job.seed or 0)
        classifier = learnt(before, body, tokenizer, task, sets[task.name], job.seed or 0)
        for stage, scored_task in zip(stages, tasks, strict=False):
            own = classifier if scored_task is task else stored(stage)
            own.base_model.load_state_dict(classifier.base_model.state_dict())
            cell = measured(own, tokenizer, scored_task, *sets[scored_task.name], seed=job.seed or 0)
            replace(cell, row=task.name).save(task_path(folder.path / "evaluation", number, scored_task.name))
        with files.new_folder(stages[-1]) as new:
            classifier.save_pretrained(new)
    often = {name: np.bincount(test.labels) / len(test) for name, (_, test) in sets.items()}
    return results(recipe, folder, tasks), {
        "examples": {name: len(test) for name, (_, test) in sets.items()},
        "shares": {name: shares.tolist() for name, shares in often.items()},
    }


def stored(stage: Path) -> Any:
    """Return the classifier in the folder of a stage."""
    return AutoModelForSequenceClassification.from_pretrained(stage).eval()


def start(body: Body, words: str, seed: int) -> Any:
    """Return a body with random layers, and the embeddings of a model reduced to the body's width by PCA."""
    model: Any = AutoModelForCausalLM.from_pretrained(words)
    known = model.get_input_embeddings().weight.detach()
    shape = {key: value for key, value in body.shape.items() if key != "model_type"}
    with seeded("lstm-cnn", seed):
        config = AutoConfig.for_model(body.shape["model_type"], vocab_size=len(known), **shape)
        model = AutoModel.from_config(config)
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(components(known, config.hidden_size))
    return model


def components(words: torch.Tensor, width: int) -> torch.Tensor:
    """Return the projection of embeddings [V, E] on their first principal components, [V, width]."""
    centred = words.float() - words.float().mean(0)
    return centred @ torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, :width]


def learnt(
    before: Any, body: Body, tokenizer: Any, task: EndTask, sets: tuple[LabelledSet, LabelledSet], seed: int
) -> Any:
    """Return a classifier trained on a task, on a copy of a body."""
    kept: list[Any] = []

    def keep(classifier: Any) -> Any:
        kept.append(classifier)
        classifier.base_model.get_input_embeddings().weight.requires_grad_(not body.frozen)
        return classifier

    fine_tune(before, tokenizer, task, *sets, seed=seed, prepare=keep)
    return kept[0].eval()


def measured(classifier: Any, tokenizer: Any, task: EndTask, train: LabelledSet, test: LabelledSet, seed: int) -> Cell:
    """Return the cell of a classifier's predictions of the test part."""
    predictions = answers(classifier, tokenizer, task, test)[None]
    cell = classification_cell(test.labels, predictions, np.unique(train.labels), (seed,), task.f1, task=task.name)
    return replace(cell, facts={**cell.facts, **task.scale})


def answers(classifier: Any, tokenizer: Any, task: EndTask, test: LabelledSet) -> NDArray[np.int64]:
    """Return the predicted labels, [examples]."""
    logits = []
    for first in range(0, len(test), ROOM):
        texts = test.texts[first : first + ROOM]
        batch = tokenizer(texts, truncation=True, max_length=task.max_length, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits.append(classifier(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits)
    return torch.cat(logits).argmax(-1).numpy()


def results(recipe: Recipe, folder: RunFolder, tasks: list[EndTask]) -> Results:
    """Return the results of the cells in a folder."""
    facts = RunFacts(
        run=recipe.run.name,
        methods=[],
        status="finished",
        objective="classification",
        model=Path(str(recipe.model.path)).name,
        seed=recipe.run.seed,
    )
    names = [task.name for task in tasks]
    places = {
        (row, name): task_path(folder.path / "evaluation", row, name)
        for row in range(1, len(names) + 1)
        for name in names[:row]
    }
    cells = {key: Cell.load(path) for key, path in places.items()}
    return build_results(facts, names, tasks=cells, task_domains=dict(zip(names, names, strict=True)))
