"""``everlearn report``: show one run or compare several."""

from __future__ import annotations

import io
import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everlearn.cli.common import AsJson, console

if TYPE_CHECKING:
    from everlearn.comparison.comparison import Comparison


class Format(StrEnum):
    """Output formats of a report."""

    HTML = "html"
    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    LATEX = "latex"
    CSV = "csv"
    JSON = "json"


ENDINGS = {".html": Format.HTML, ".md": Format.MARKDOWN, ".tex": Format.LATEX, ".csv": Format.CSV, ".json": Format.JSON}


def command(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders; the others are compared with the first.")
    ],
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the report to a file; its extension sets the format. May be repeated.",
        ),
    ] = None,
    form: Annotated[Format | None, typer.Option("--format", "-f", help="Output format; default: terminal.")] = None,
    tolerate: Annotated[
        float | None,
        typer.Option(
            metavar="BITS",
            help="Bits per byte that general text may lose in an acceptable run; default: as in the recipes "
            "(report.tolerate).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what runs learnt and forgot: in the terminal, as one HTML page, Markdown, LaTeX, CSV or JSON."""
    from everlearn import files
    from everlearn.comparison.comparison import compare
    from everlearn.errors import RecipeError
    from everlearn.report import tables
    from everlearn.run.writable import check_place

    form = Format.JSON if as_json else form
    written = [(file, _format_of(file, form)) for file in output or ()]
    for file, _ in written:
        check_place("--output", file)
    places = [run.resolve() for run in runs]
    if twice := next((run for run, place in zip(runs, places, strict=True) if places.count(place) > 1), None):
        raise RecipeError(f"'{twice}' is given twice, but a run cannot be compared with itself. Name each run once.")
    if tolerate is not None and not (math.isfinite(tolerate) and tolerate >= 0):
        raise RecipeError(f"`--tolerate` is {tolerate:g}; it must be a number of bits per byte, 0 or more.")
    comparison = compare(runs, tolerate)
    if not written and form in (None, Format.TERMINAL):
        console().print(tables.terminal(comparison))
        return
    if not written and form is Format.HTML:
        written = [(runs[0] / "report.html" if len(runs) == 1 else Path("comparison.html"), form)]
    for file, each in written:
        files.write_text(file, _text(comparison, each))
        print(f"Wrote {file}")
    if not written and form is not None:
        print(_text(comparison, form), end="")


def _format_of(file: Path, form: Format | None) -> Format:
    """Return the format of an output file: that of its ending, or the one that is asked for.

    Raises:
        RecipeError: the two differ, or there is neither.
    """
    from everlearn.errors import RecipeError

    by_ending = ENDINGS.get(file.suffix.lower())
    if form is not None and by_ending not in (form, None):
        raise RecipeError(f"`--output` is '{file}', but `--format` is {form}. Change one of them.")
    if (file_format := form or by_ending) is None:
        raise RecipeError(
            f"`--output` is '{file}'; its ending must be one of {', '.join(ENDINGS)}, or `--format` must say how "
            "to write it."
        )
    return file_format


def _text(comparison: Comparison, form: Format) -> str:
    """Return the report in a format."""
    from everlearn.report import tables

    if form is Format.HTML:
        from everlearn.report.html import page

        return page(comparison)
    if form is Format.TERMINAL:
        from rich.console import Console

        recorder = Console(record=True, file=io.StringIO(), width=140)
        recorder.print(tables.terminal(comparison))
        return recorder.export_text()
    text: str = getattr(tables, form)(comparison)  # it has a function of each name
    return text
