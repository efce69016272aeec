"""``everlearn merge``: merge existing models into one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from everlearn.cli.common import AsJson, Checkpoints, say, show, telling


def command(
    checkpoints: Checkpoints,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="A new folder to write to.")],
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="NAME",
            help="mean, wise_ft, wsm, cocktail, fisher, task_arithmetic, ties, dare, model_stock or slerp.",
        ),
    ] = "mean",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the merging method: keep=0.2, weights=[1,2]."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="MODEL", help="The base model of the checkpoints; default: that of the run."),
    ] = None,
    texts: Annotated[
        list[str] | None,
        typer.Option(
            "--text",
            metavar="FILE",
            help="For cocktail and fisher: the text to measure on; one for all checkpoints, or one for each.",
        ),
    ] = None,
    blocks: Annotated[int, typer.Option(min=1, help="Number of rows to read of a text.")] = 64,
    as_json: AsJson = False,
) -> None:
    """Merge models without training: average, interpolation, task arithmetic, TIES, DARE, Model Stock, Fisher."""
    from everlearn.commands.merge import merge, options_of
    from everlearn.run.writable import check_place

    check_place("--output", output, folder=True)
    options = options_of(settings or ())
    merged = merge(
        checkpoints, output, method, options, base=base, texts=texts or (), blocks=blocks, reporter=telling(as_json)
    )
    if as_json:
        show({**asdict(merged), "folder": str(output)}, True, str)
        return
    began = f" on {merged.base}" if merged.base is not None else ""
    say(
        f"Merged {', '.join(merged.checkpoints)}{began} ({merged.method['name']}, {merged.tensors:,} tensors): {output}"
    )
    for key, value in merged.facts.items():
        say(f"{key}: {value}")
    for note in merged.notes:
        say(f"Note: {note}")
