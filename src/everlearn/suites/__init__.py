"""Built-in streams. In a recipe, ``suite:docs/sympy/train.jsonl`` is a file of the suite ``docs``, made on demand."""

from __future__ import annotations

from pathlib import Path

from everlearn.errors import RecipeError, did_you_mean


def locate(address: str) -> Path:
    """The file or folder behind a ``suite:`` path, without that prefix.

    Raises:
        RecipeError: there is no such suite or file.
    """
    from everlearn.suites import docs

    suite, _, inside = address.partition("/")
    if suite != "docs":
        raise RecipeError(f"There is no suite '{suite}' ('suite:{address}').{did_you_mean(suite, ['docs'])}")
    if inside == "base":
        return docs.base_path()
    if inside == "start":
        from everlearn.suites.docs.start import start_folder

        return start_folder()
    docs.build()
    path = docs.cache_folder() / inside
    if not path.exists():
        raise RecipeError(f"The suite 'docs' has no '{inside}'.{did_you_mean(inside, _names(docs.cache_folder()))}")
    return path


def _names(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.glob("*/*.jsonl")]
