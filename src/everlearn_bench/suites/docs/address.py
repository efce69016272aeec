"""Addresses of the suite in a recipe: ``suite:docs/sympy/train.jsonl``, ``suite:docs/base``, ``suite:docs/start``."""

from __future__ import annotations

from pathlib import Path

from everlearn.errors import RecipeError, did_you_mean
from everlearn_bench.suites import docs


def locate(inside: str) -> Path:
    """Return the file or folder at an address, built on demand.

    Args:
        inside: the address after ``suite:docs/``.

    Raises:
        RecipeError: there is no such file.
    """
    if inside == "base":
        return docs.base_path()
    if inside == "start":
        from everlearn_bench.suites.docs.start import start_folder

        return start_folder()
    docs.build()
    path = docs.cache_folder() / inside
    if not path.exists():
        raise RecipeError(f"The suite 'docs' has no '{inside}'.{did_you_mean(inside, _names(docs.cache_folder()))}")
    return path


def _names(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.glob("*/*.jsonl")]
