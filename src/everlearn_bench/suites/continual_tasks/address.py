"""Addresses of the suites in a recipe: ``suite:standard-cl/dbpedia/train.jsonl``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from everlearn.errors import RecipeError, did_you_mean
from everlearn_bench.suites.continual_tasks.files import PARTS, data_folder, task_file


def locate(inside: str, suite: str, tasks: Iterable[str], data: Path | None = None, names: bool = True) -> Path:
    """Return the file at an address, built on demand.

    Args:
        inside: the address after ``suite:NAME/``.
        suite: name of the suite.
        tasks: tasks of the suite.
        data: the data folder; by default that of the environment variable, or the fetched data.
        names: whether prompts name task and dataset.

    Raises:
        RecipeError: there is no such address.
        DataError: the data that it is built from is missing.
    """
    known = [f"{task}/{part}.jsonl" for task in tasks for part in PARTS]
    if inside not in known:
        raise RecipeError(f"The suite '{suite}' has no '{inside}'.{did_you_mean(inside, known)}")
    task, part = inside.removesuffix(".jsonl").split("/")
    return task_file(task, part, data_folder(data), names)
