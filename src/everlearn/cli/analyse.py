"""``everlearn analyse``: importance maps of a run, how full its mask is, how alike domains are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from everlearn.cli.common import AsJson, RunPath, learner_of, say, show


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
    """Show which layers of a run moved, what its importance maps protect, and how much they leave free."""
    from everlearn.analysis import general_similarity, maps_of, saturation, without_maps
    from everlearn.analysis.page import terminal, to_json, write_analysis
    from everlearn.errors import RunError
    from everlearn.model.movement import movements
    from everlearn.run.places import check_place

    if output is not None:
        check_place("--output", output)
    learner = learner_of(run)
    maps = maps_of(learner.folder)
    for option, given in (("--similarity", similarity), ("--output", output)):
        if maps is None and given:
            raise RunError(f"{without_maps(learner.folder)} Leave out {option}.")
    try:
        learner.look_back()
    except RunError as error:
        # A run that cannot be written to can still be looked at.
        say(f"What is missing was not measured: {error}", as_json)
    moved = movements(learner.folder.path)
    if maps is None:
        show(to_json(moved), as_json, lambda: terminal(moved, learner.recipe.domains))
        say(without_maps(learner.folder), as_json)
        return
    filled = saturation(maps.sites, maps.how, maps.grows)
    alike = general_similarity(learner, similarity) if similarity else None
    page = write_analysis(output or run / "analysis.html", learner.recipe.run.name, maps.sites, filled, alike)
    show(to_json(moved, filled, alike), as_json, lambda: terminal(moved, learner.recipe.domains, filled, alike))
    say(f"Page: {page}", as_json)
