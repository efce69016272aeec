"""``everlearn analyse``: importance maps of a run, how full its mask is, how alike domains are, rows that are large."""

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
    magnitude: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="BLOCKS",
            help="Also measure how large each row's outputs are on so many blocks of every domain (the corpora must be "
            "there), and compare domains; and the rows that each stage moved.",
        ),
    ] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page; RUN/analysis.html when left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which layers of a run moved, what its importance maps protect and leave free, and which rows are large."""
    from everlearn.analysis import alike, general_similarity, maps_of, saturation, threshold_of, without_maps
    from everlearn.analysis.magnitude import looked_at
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
    filled = saturation(maps.sites, maps.how, maps.grows) if maps is not None else None
    likeness = general_similarity(learner, similarity) if similarity else None
    outputs = looked_at(learner, magnitude) if magnitude else []
    compared = [alike(each, threshold_of(learner)) for each in outputs]
    show(
        to_json(moved, filled, likeness, compared),
        as_json,
        lambda: terminal(moved, learner.recipe.domains, filled, likeness, compared),
    )
    if maps is None:
        say(without_maps(learner.folder), as_json)
    if maps is not None or outputs:
        sites = maps.sites if maps is not None else None
        page = write_analysis(
            output or run / "analysis.html", learner.recipe.run.name, sites, filled, likeness, outputs, compared
        )
        say(f"Page: {page}", as_json)
