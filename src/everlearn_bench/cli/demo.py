"""``everlearn demo``: real text, offline, in a few minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from everlearn.cli.common import Overrides, Quiet, conclude, telling

HEADING = "Start"


def command(
    overrides: Overrides = None,
    folder: Annotated[Path, typer.Option("--folder", help="Folder of the demo's runs and report.")] = Path("runs/demo"),
    quiet: Quiet = False,
) -> None:
    """Train a small model on four domains plainly, with EWC and with the recommended method, and compare; offline."""
    from everlearn_bench.demo.demo import run_demo

    conclude(*run_demo(folder, telling(quiet), overrides or ()), quiet)
