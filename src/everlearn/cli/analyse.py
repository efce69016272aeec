"""``everlearn analyse``: importance maps of a run, how full its mask is, how alike domains are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from everlearn.cli.common import AsJson, RunPath, console, learner_of, show


def command(
    run: RunPath,
    similarity: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="BLOCKS",
            help="Also measure general importance on so many blocks of every domain (the corpora must be there), and "
            "compare the maps.",
        ),
    ] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page; RUN/analysis.html when left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a run's importance maps protect, and how much they leave free for the next domain."""
    from everlearn.analysis import general_similarity, maps_of, saturation
    from everlearn.analysis.page import terminal, to_json, write_analysis

    learner = learner_of(run)
    maps = maps_of(learner.folder)
    filled = saturation(maps.sites, maps.how, maps.grows)
    alike = general_similarity(learner, similarity) if similarity else None
    page = write_analysis(output or run / "analysis.html", learner.recipe.run.name, maps.sites, filled, alike)
    show(to_json(filled, alike), as_json, lambda: terminal(filled, alike))
    if not as_json:
        console().print(f"Page: {page}", markup=False, soft_wrap=True)
