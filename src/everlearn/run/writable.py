"""Check that a file or folder can be written, before anything is loaded or computed."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from everlearn.errors import RecipeError, RunError
from everlearn.files import PARTIAL


def check_place(option: str, place: Path, folder: bool = False) -> None:
    """Check that a file or a folder can be written, without leaving anything behind.

    Raises:
        RecipeError: it cannot be written; the message names the option.
    """
    if os.path.exists(place) and os.path.isdir(place) != folder:
        there, needed = ("file", "folder") if folder else ("folder", "file")
        raise RecipeError(f"`{option}` is '{place}', which is a {there}; it must be a {needed}.")
    first = place.absolute() if folder else place.absolute().parent
    # A broken link prevents the folder from being made, so it counts as existing.
    nearest = next(each for each in (first, *first.parents) if os.path.lexists(each))
    try:
        for name in first.relative_to(nearest).parts:
            with contextlib.suppress(FileNotFoundError):
                os.lstat(nearest / name)  # raises for a name that is too long
        # Named like the partial file that `write_text` makes first.
        with tempfile.NamedTemporaryFile(dir=nearest, prefix=PARTIAL if folder else f"{PARTIAL}{place.name}."):
            pass
    except OSError as error:
        raise RecipeError(
            f"`{option}` is '{place}', which cannot be written in '{os.path.realpath(nearest)}': {error.strerror}. "
            "Name another place."
        ) from None


def check_new(folder: Path) -> None:
    """Refuse to write a model over existing files or into a run folder.

    Raises:
        RunError: the folder exists already, or is inside a run.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} exists already. Name a new folder.")
    for above in folder.resolve().parents:
        if is_run(above):
            raise RunError(f"{folder} is inside the run {above}, which keeps its own files only. Name another folder.")


def is_run(folder: Path) -> bool:
    """Return whether the folder holds a run that has begun, and not only a recipe."""
    return (folder / "recipe.yaml").is_file() and (folder / "environment.json").is_file()
