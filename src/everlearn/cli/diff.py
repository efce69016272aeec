"""``everlearn diff``: compare two checkpoints: what the later one forgot and learnt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everlearn.cli.common import AsJson, Quiet, say, show, telling

if TYPE_CHECKING:
    from everlearn.data.corpus import Corpus


def command(
    before: Annotated[
        str, typer.Argument(metavar="BEFORE", help="The earlier model: a folder or hub id, also LABEL=PATH.")
    ],
    after: Annotated[
        str, typer.Argument(metavar="AFTER", help="The later model: a folder or hub id, also LABEL=PATH.")
    ],
    text: Annotated[
        list[str] | None,
        typer.Option("--text", metavar="[NAME=]PATH", help="A text: a file, folder, glob or hub id. Repeat for more."),
    ] = None,
    text_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column with the text of each --text; default: detected."),
    ] = None,
    task: Annotated[
        list[Path] | None,
        typer.Option("--task", metavar="FILE", help="End tasks, as YAML like a recipe's end_tasks."),
    ] = None,
    on: Annotated[
        Path | None,
        typer.Option(
            "--on", metavar="RUN", help="Also use the held-out text, general text and end tasks of a run or recipe."
        ),
    ] = None,
    blocks: Annotated[int, typer.Option(min=1, help="Approximate number of rows to read of each text.")] = 64,
    block_size: Annotated[
        int | None, typer.Option(min=8, help="Tokens per row; default: up to 512, as the models allow.")
    ] = None,
    tolerate: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="BITS",
            help="Tolerated loss in bits per byte: if the complete interval is below, a text is not called forgotten; "
            "default: 0.02.",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows per forward pass.")] = 8,
    bf16: Annotated[bool, typer.Option("--bf16", help="Compute in bfloat16: faster on GPUs, less exact.")] = False,
    device: Annotated[
        str | None, typer.Option(help="Device, as torch names it; default: the first GPU, or else the CPU.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write a page as a single HTML file.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare two models on the same text: what the later one forgot and learnt. No recipe is needed."""
    from rich.console import Group
    from rich.text import Text

    from everlearn.config.recipe import load
    from everlearn.diagnostics.diff.comparing import diff
    from everlearn.diagnostics.diff.words import brief_tables
    from everlearn.report.tables import terminal_table
    from everlearn.run.writable import check_place

    reporter = telling(quiet or as_json)
    if output is not None:
        check_place("--output", output)
    comparison = diff(
        before,
        after,
        _read(_named(text or []), text_column),
        tasks=task or [],
        on=None if on is None else load(on),
        blocks=blocks,
        block_size=block_size,
        tolerate=tolerate,
        batch_size=batch_size,
        bf16=bf16,
        device=device,
        reporter=reporter,
    )
    if output is not None:
        comparison.save(output)
    show(
        comparison.to_json(),
        as_json,
        lambda: Group(*(part for each in brief_tables(comparison) for part in (terminal_table(each), Text("")))),
    )
    for note in comparison.notes:
        say(f"Note: {note}", as_json)
    say(comparison.verdict, as_json)
    if output is not None:
        say(f"Page: {output}", as_json)


def _read(texts: dict[str, str], column: str | None) -> Mapping[str, str | Corpus]:
    """Return the corpus of each text by its name; only its path if the text column must be detected."""
    from everlearn.data.columns import split_to_read
    from everlearn.data.corpus import Corpus
    from everlearn.options import path_or_id

    if column is None:
        return texts
    paths = {name: path_or_id(path, "--text") for name, path in texts.items()}
    return {
        name: Corpus(path=path, split=split_to_read(path, "--text"), text_column=column) for name, path in paths.items()
    }


def _named(texts: list[str]) -> dict[str, str]:
    """Return the path of each text by its name; the default name is that of the file."""
    from everlearn.errors import RecipeError

    named: dict[str, str] = {}
    for argument in texts:
        name, equals, path = argument.partition("=")
        if not equals or Path(argument).exists():
            name, path = Path(argument).name.split(".")[0] or argument, argument
        if name in named:
            raise RecipeError(f"Two texts would be called '{name}'. Write `--text NAME=PATH` for one of them.")
        named[name] = path
    return named
