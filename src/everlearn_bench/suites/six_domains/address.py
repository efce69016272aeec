"""Addresses of the suite in a recipe: ``suite:six-domains/phone/train.jsonl``."""

from __future__ import annotations

from pathlib import Path

from everlearn.errors import RecipeError, did_you_mean
from everlearn_bench.suites.six_domains import corpora, tasks
from everlearn_bench.suites.six_domains.cache import data_folder


def addresses() -> list[str]:
    """Return all addresses below ``suite:six-domains/``."""
    found = [f"{name}/{part}.jsonl" for name in (*corpora.PROXIES, corpora.GENERAL) for part in corpora.PARTS]
    return found + [f"tasks/{name}/{part}.jsonl" for name in tasks.TASKS for part in tasks.PARTS]


def locate(inside: str, data: Path | None = None) -> Path:
    """Return the file at an address, built on demand.

    Args:
        inside: the address after ``suite:six-domains/``.
        data: the data folder; by default that of the environment variable, or the fetched data.

    Raises:
        RecipeError: there is no such address.
        DataError: the data that it is built from is missing.
    """
    if inside not in addresses():
        raise RecipeError(f"The suite 'six-domains' has no '{inside}'.{did_you_mean(inside, addresses())}")
    *kind, name, part = inside.removesuffix(".jsonl").split("/")
    if kind:
        return tasks.task_file(name, part, data_folder(data))
    if name == corpora.GENERAL:
        return corpora.general_file(part, data_folder(data))
    return corpora.proxy_file(name, part, data_folder(data))
