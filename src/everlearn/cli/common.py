"""What several verbs share: their arguments, and how they print."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everlearn.errors import RecipeError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from everlearn.learner import ContinualLearner

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe, a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Change the recipe: train.max_steps=100, method=das, method.threshold=0.5, domains.0.path=a.txt.",
    ),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, for example runs/first.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for another program.")]


def console(error: bool = False) -> Console:
    """Where to print; wide when nobody's terminal limits it, so that a table in a file is not cut."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    return Console(file=stream, highlight=False, soft_wrap=False, width=None if stream.isatty() else 140)


def show(value: Any, as_json: bool, rendered: Callable[[], RenderableType]) -> None:
    """Print a result, as JSON or for people."""
    if as_json:
        print(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))
    else:
        console().print(rendered())


def check_place(option: str, place: Path, folder: bool = False) -> None:
    """Find out, before work that takes hours, whether a file (or a folder) can be written; nothing is left behind.

    Raises:
        RecipeError: it cannot; the sentence names the option.
    """
    from everlearn.files import PARTIAL

    if os.path.exists(place) and os.path.isdir(place) != folder:
        there, wanted = ("file", "folder") if folder else ("folder", "file")
        raise RecipeError(f"`{option}` is '{place}', which is a {there}; it must be a {wanted}.")
    first = place.absolute() if folder else place.absolute().parent
    # A link that leads nowhere is in the way of the folder, so it counts as there.
    nearest = next(each for each in (first, *first.parents) if os.path.lexists(each))
    try:
        for name in first.relative_to(nearest).parts:
            with contextlib.suppress(FileNotFoundError):
                os.lstat(nearest / name)  # a name that is too long
        # Named like the partial file that `write_text` begins with.
        with tempfile.NamedTemporaryFile(dir=nearest, prefix=PARTIAL if folder else f"{PARTIAL}{place.name}."):
            pass
    except OSError as error:
        raise RecipeError(
            f"`{option}` is '{place}', which cannot be written in '{os.path.realpath(nearest)}': {error.strerror}. "
            "Name another place."
        ) from None


def take_to_its_end(learner: ContinualLearner, work: Callable[[], object]) -> None:
    """Do a run's work, then show its table and where its report is."""
    work()
    if learner.processes.is_main_process:
        conclude([learner.folder.path], learner.folder.report_file)


def conclude(runs: Sequence[Path], page: Path) -> None:
    """Show what runs learnt and forgot, and where the page is."""
    from everlearn.report import compare, terminal

    output = console()
    output.print(terminal(compare(runs)))
    output.print(f"Report: {page}", markup=False, soft_wrap=True)


def learner_of(run: Path) -> ContinualLearner:
    """The learner of a run folder, telling a terminal what it does."""
    from everlearn.learner import ContinualLearner
    from everlearn.model.loading import quiet
    from everlearn.run.progress import Terminal

    quiet()
    return ContinualLearner.open(run, reporter=Terminal())
