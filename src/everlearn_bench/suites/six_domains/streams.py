"""Recipes of the streams: domains in one of the paper's orders, each with its end task."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everlearn.errors import RecipeError, did_you_mean
from everlearn.methods.sequential import PLAIN
from everlearn_bench.suites.settings import steps_of, with_samples
from everlearn_bench.suites.six_domains.cache import data_folder
from everlearn_bench.suites.six_domains.corpora import (
    GENERAL,
    GENERAL_SOURCES,
    PARTS,
    PROXIES,
    general_file,
    proxy_file,
)
from everlearn_bench.suites.six_domains.making import NOTE, made_here
from everlearn_bench.suites.six_domains.tasks import EndTasks, task_file

DOMAINS = ("restaurant", "acl", "ai", "phone", "pubmed", "camera")
ORDERS: dict[int, tuple[str, ...]] = {
    0: DOMAINS,
    1: ("phone", "ai", "pubmed", "camera", "restaurant", "acl"),
    2: ("pubmed", "camera", "acl", "restaurant", "ai", "phone"),
    3: ("camera", "acl", "phone", "restaurant", "pubmed", "ai"),
    4: ("ai", "pubmed", "camera", "phone", "acl", "restaurant"),
}
"""The orders that the paper averages over, by the released code's numbers; 0 is that of its main table. Its others
are no orders of the six: 5 is `acl` alone (give ``("acl",)``), 12 learns WikiText-103 before them."""
STEPS = 2500
OWN_HELD_OUT = 0.05
"""Share of a user's own corpus that is measured on; the released code sets 5 % aside too."""

Corpus = str | Path | Mapping[str, Any]


def order_of(order: int | Sequence[str]) -> tuple[str, ...]:
    """Return the domains of a numbered order, or the named domains after a check.

    Raises:
        RecipeError: there is no such order or domain, or a domain is repeated.
    """
    if isinstance(order, int):
        if order not in ORDERS:
            raise RecipeError(f"The suite `six-domains` has no order {order}; it has {', '.join(map(str, ORDERS))}.")
        return ORDERS[order]
    names = (order,) if isinstance(order, str) else tuple(order)
    for name in names:
        if name not in DOMAINS:
            raise RecipeError(f"The suite `six-domains` has no domain '{name}'.{did_you_mean(name, DOMAINS)}")
    if not names or len(set(names)) < len(names):
        raise RecipeError(f"An order names one domain or more, each once (got {', '.join(names) or 'none'}).")
    return names


def recipe(
    order: int | Sequence[str] = 0,
    data: Path | str | None = None,
    *,
    model: str | Path | Mapping[str, Any],
    method: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = PLAIN,
    corpora: Mapping[str, Corpus] | None = None,
    steps: int | None = None,
    budget_tokens: int | None = None,
    batch: int = 62,
    accumulate: int = 4,
    block_size: int = 164,
    learning_rate: float = 1e-4,
    samples: int | None = None,
    end_tasks: EndTasks | None = EndTasks(),  # noqa: B008 - frozen
    blocks: int = 256,
    seed: int = 0,
    train: Mapping[str, Any] | None = None,
    name: str | None = None,
    folder: Path | str | None = None,
) -> dict[str, Any]:
    """Return the recipe of a run over the six domains with their end tasks; defaults are those of the released code.

    Args:
        order: a number of :data:`ORDERS`, or domains by name (some or all, in any order).
        data: folder with corpora and end tasks (see :data:`~everlearn_bench.suites.six_domains.cache.LAYOUT`); by
            default the value of the environment variable EVERLEARN_SIX_DOMAINS. Not needed if `corpora` names every
            domain and ``general`` and `end_tasks` is None.
        model: hub id or folder of the base model, or the recipe's ``model`` group.
        method: as in a recipe.
        corpora: domain (or ``general``) → your own text instead of the proxy: a path, of which 5 % are held out, or the
            keys of a recipe's domain.
        steps: optimizer steps per domain; 2,500 by default.
        budget_tokens: tokens per domain, instead of `steps`.
        batch: rows per device and micro-batch.
        accumulate: micro-batches per step.
        block_size: tokens per row.
        learning_rate: peak, reached after a tenth of the steps, then decreasing linearly to 0.
        samples: rows for measuring importance, for every method that measures it and does not set a number.
        end_tasks: how models are fine-tuned on end tasks; None for none.
        blocks: held-out rows per domain and of general text.
        seed: seed of everything.
        train: further ``TrainingArguments``, such as ``{"bf16": True}``.
        name: name of the run; by default order and methods.
        folder: folder of the run; by default below ``runs/``.

    Returns:
        The recipe as plain data; :func:`everlearn.config.recipe.parse` reads it.

    Raises:
        RecipeError: an argument is not allowed.
        DataError: a file is missing; the message names it and what to change.
    """
    names = order_of(order)
    own = dict(corpora or {})
    for key in own:
        if key not in (*DOMAINS, GENERAL):
            raise RecipeError(f"`corpora` names '{key}', no domain.{did_you_mean(key, (*DOMAINS, GENERAL))}")
    specs = with_samples(method, samples)
    number = steps_of(steps, budget_tokens, batch * accumulate * block_size, STEPS)
    place = functools.cache(lambda: data_folder(data))  # resolved only if it is used

    def corpus(key: str) -> dict[str, Any]:
        if key in own:
            given = own[key]
            keys = dict(given) if isinstance(given, Mapping) else {"path": str(given)}
            return {"name": key, "validation": OWN_HELD_OUT, **keys}
        files = [general_file(p, place()) if key == GENERAL else proxy_file(key, p, place()) for p in PARTS]
        return {"name": key, "path": str(files[0]), "validation": str(files[1])}

    tasks = []
    evaluation: dict[str, Any] = {"blocks": blocks}
    if end_tasks is not None:
        for key in names:
            task = end_tasks.end_task(key, task_file(key, "train", place()), task_file(key, "test", place()))
            tasks.append(task.model_dump(mode="json"))
        evaluation |= {"end_tasks": end_tasks.when, "end_task_seeds": end_tasks.seeds}
    labels = "+".join(str(spec["name"]) for spec in specs)
    title = name or f"six-domains-{order if isinstance(order, int) else '-'.join(names)}-{labels}"
    return {
        "model": dict(model) if isinstance(model, Mapping) else str(model),
        "domains": [corpus(key) for key in names],
        "general": corpus(GENERAL),
        "end_tasks": tasks,
        "method": specs,
        "objective": "masked",
        "data": {"block_size": block_size},
        "train": {
            "per_device_train_batch_size": batch,
            "gradient_accumulation_steps": accumulate,
            "max_steps": number,
            "learning_rate": learning_rate,
            "lr_scheduler_type": "linear",
            "warmup_steps": round(0.1 * number),
            "weight_decay": 0.0,
            "max_grad_norm": 0,
            "adam_epsilon": 1e-6,
            **(train or {}),
        },
        "evaluation": evaluation,
        "run": {
            "name": title,
            "seed": seed,
            "folder": None if folder is None else str(folder),
            "notes": [*sentences(names, own), *_made(names, own, place)],
        },
    }


def sentences(names: Sequence[str], corpora: Mapping[str, Corpus] | None = None) -> list[str]:
    """Return notes about the corpora of these domains for a reader: which are proxies, and of what."""
    proxies = [name for name in names if name not in (corpora or {})]
    return [f"Proxy corpus '{name}': {PROXIES[name].sentence}." for name in proxies]


def _made(names: Sequence[str], own: Mapping[str, Corpus], place: Callable[[], Path]) -> list[str]:
    """Return notes on corpora that differ from those of the committed results, though they have the same sources."""
    proxies = {f"Proxy corpus '{key}'": [f"domains/{PROXIES[key].corpus}"] for key in names if key not in own}
    general = {} if GENERAL in own else {"General text": [f"D0/{source}" for source in GENERAL_SOURCES]}
    return [
        f"{title}: {NOTE}."
        for title, folders in {**proxies, **general}.items()
        if any(made_here(place() / folder) for folder in folders)
    ]
