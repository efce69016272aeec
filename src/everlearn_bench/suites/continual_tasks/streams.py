"""Recipes of the streams: tasks in one of six orders, each with its end task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everlearn.errors import RecipeError, did_you_mean
from everlearn_bench.suites.continual_tasks.files import data_folder, proxy, task_file
from everlearn_bench.suites.continual_tasks.tasks import TASKS
from everlearn_bench.suites.settings import Settings, steps_of, with_samples

STANDARD: dict[int, tuple[str, ...]] = {
    1: ("dbpedia", "amazon", "yahoo", "agnews"),
    2: ("dbpedia", "amazon", "agnews", "yahoo"),
    3: ("yahoo", "amazon", "agnews", "dbpedia"),
}
LONG: dict[int, tuple[str, ...]] = {
    4: ("mnli", "cb", "wic", "copa", "qqp", "boolqa", "rte", "imdb", "yelp", "amazon", "sst-2", "dbpedia", "agnews",
        "multirc", "yahoo"),
    5: ("multirc", "boolqa", "wic", "mnli", "cb", "copa", "qqp", "rte", "imdb", "sst-2", "dbpedia", "agnews", "yelp",
        "amazon", "yahoo"),
    6: ("yelp", "amazon", "mnli", "cb", "copa", "qqp", "rte", "imdb", "sst-2", "dbpedia", "agnews", "yahoo", "multirc",
        "boolqa", "wic"),
}  # fmt: skip
"""The orders of O-LoRA (arXiv 2310.14152) and MIGU (arXiv 2406.17245, table 7), by their numbers."""
TWICE = {LONG[5]: "wic", LONG[6]: "mnli"}
"""Tasks that the released scripts of an order learn for two epochs: its third one."""
KEPT = 8
"""Tokens of a prompt's end that stay: no tokenizer that reads bytes needs more for the 8 bytes of the ending."""
BATCH, ACCUMULATE, BLOCK = 8, 8, 512
"""64 examples a step, prompts of 512 tokens."""
LEARNING_RATE = 1e-4
EPOCHS = 3
"""Of a classifier's fine-tuning, where the model is an encoder: our choice, nobody published one."""
TUNING = ("max_train", "learning_rate", "batch_size", "epochs_factor", "seeds")
"""Settings of end tasks that mean something only where a classifier is fine-tuned."""


def recipe(
    order: Sequence[str],
    *,
    settings: Settings,
    data: Path | None,
    method: Sequence[Mapping[str, Any]],
    seed: int,
    name: str,
    folder: Path,
) -> dict[str, Any]:
    """Return the recipe of a run; see :meth:`everlearn_bench.suites.base.Suite.recipe` for the arguments.

    Default settings are those of the released scripts for full fine-tuning of T5-large: one epoch with 64 examples per
    step at a constant 1e-4, no weight decay, gradients clipped at 1.
    """
    place = data_folder(data)
    given, ends = settings.given(), settings.end_tasks.given()
    names = settings.prompts.names is not False
    batch, accumulate = given.get("batch", BATCH), given.get("accumulate", ACCUMULATE)
    block = given.get("block_size", BLOCK)
    length: dict[str, Any] = {"num_train_epochs": 1}
    if settings.steps is not None or settings.budget_tokens is not None:
        length = {"max_steps": steps_of(settings.steps, settings.budget_tokens, batch * accumulate * block, 0)}
    twice = TWICE.get(tuple(order)) if "max_steps" not in length else None
    cut = {"keep_last": 0 if settings.prompts.cut == "end" else KEPT}
    head = ends.get("answers") == "head"

    def domain(task: str) -> dict[str, Any]:
        files = {part: str(task_file(task, part, place, names)) for part in ("train", "dev")}
        found = {"name": task, "path": files["train"], "validation": files["dev"], "max_documents": settings.max_train}
        if not head:
            found |= {"text_column": "prompt", "target_column": "answer", **cut}
        return found | ({"train": {"num_train_epochs": 2}} if task == twice else {})

    def end_task(task: str) -> dict[str, Any]:
        found: dict[str, Any] = {"name": task, "domain": task}
        if head:
            own = {key: ends[key] for key in (*TUNING[:3], "max_test") if key in ends}
            files = {part: str(task_file(task, part, place, names)) for part in ("train", "test")}
            columns = {"text_column": "prompt", "label_column": "answer", "max_length": block}
            return found | files | columns | {"epochs": EPOCHS * ends.get("epochs_factor", 1), **own}
        found |= {"test": str(task_file(task, "test", place, names)), "prompt": "{prompt}"}
        found |= {"max_length": block, "max_test": ends.get("max_test"), **cut}
        labels = list(TASKS[task].labels)
        if ends.get("answers") == "chosen":
            return found | {"kind": "choice", "choices": labels, "answer_column": "answer"}
        written = {"labels": labels, "target_column": "answer", "max_new_tokens": None, "match": "words"}
        return found | {"kind": "text-to-text", **written}

    return {
        "model": given["model"],
        "objective": "masked" if head else "text-to-text",
        "domains": [domain(task) for task in order],
        "end_tasks": [end_task(task) for task in order],
        "method": with_samples(method, settings.samples),
        "data": {"block_size": block},
        "train": {
            "per_device_train_batch_size": batch,
            "gradient_accumulation_steps": accumulate,
            "learning_rate": given.get("learning_rate", LEARNING_RATE),
            "lr_scheduler_type": "constant",
            "weight_decay": 0.0,
            "max_grad_norm": 1.0,
            **length,
            **settings.train,
        },
        "evaluation": {
            "blocks": given.get("blocks", 256),
            "end_tasks": ends.get("when", "diagonal" if head else "every"),
            "end_task_seeds": ends.get("seeds", 1),
        },
        "run": {"name": name, "seed": seed, "folder": str(folder), "notes": sentences(order, place)},
    }


def order_of(order: int | Sequence[str], orders: Mapping[int, Sequence[str]], suite: str) -> tuple[str, ...]:
    """Return the tasks of a numbered order, or the named tasks after a check.

    Raises:
        RecipeError: there is no such order or task, or a task is repeated.
    """
    if isinstance(order, int):
        if order not in orders:
            raise RecipeError(f"The suite `{suite}` has no order {order}; it has {', '.join(map(str, orders))}.")
        return tuple(orders[order])
    names = (order,) if isinstance(order, str) else tuple(order)
    known = dict.fromkeys(task for each in orders.values() for task in each)
    for name in names:
        if name not in known:
            raise RecipeError(f"The suite `{suite}` has no task '{name}'.{did_you_mean(name, known)}")
    if not names or len(set(names)) < len(names):
        raise RecipeError(f"An order names one task or more, each once (got {', '.join(names) or 'none'}).")
    return names


def sentences(order: Sequence[str], data: Path) -> list[str]:
    """Return notes about the examples for a reader: which tasks are proxies, and what is held out."""
    proxies = {name: proxy(name, data) for name in sorted(TASKS) if name in order}
    return [
        *(f"Proxy task '{name}': {what}." for name, what in proxies.items() if what),
        "Held-out text is a part of each training file: the published development files are the test files again.",
    ]
