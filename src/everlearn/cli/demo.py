"""``everlearn demo``: six domains of real text, offline, in a few minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[key=value]...", help="Changes of the demo's recipe.")
    ] = None,
    folder: Annotated[Path, typer.Option("--folder", help="Where the demo's runs and report are kept.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Learn the documentation of six installed libraries, plainly and with DAS, and compare. Needs no network."""
    from rich.console import Console

    from everlearn.loading import quiet
    from everlearn.progress import Terminal
    from everlearn.report import compare, terminal
    from everlearn.suites.docs.demo import run_demo

    quiet()
    runs, page = run_demo(folder, Terminal(), overrides or ())
    Console().print(terminal(compare(runs)))
    typer.echo(f"Report: {page}")
