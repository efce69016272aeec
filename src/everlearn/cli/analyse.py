"""``everlearn analyse``: read a finished run and show what changed inside its models.

Importance maps, the share of the mask in use, similarity of domains, rows with large activations, distances between
stages, forgetting by layer, and prediction ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from everlearn.cli.common import AsJson, RunPath, learner_of, no_pair, pair, say, show

ALSO = "decay=4"
"""How `--also` looks."""


def command(
    run: RunPath,
    similarity: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="BLOCKS",
            help="Also measure general importance on this number of blocks of every domain (the corpora must exist), "
            "and compare the maps.",
        ),
    ] = 0,
    magnitude: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="BLOCKS",
            help="Also measure the output magnitude of each row on this number of blocks of every domain (the corpora "
            "must exist), compare domains, and show the rows that each stage changed.",
        ),
    ] = 0,
    distance: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="BLOCKS",
            help="Also measure the distance between stages: of weights by layer, and of predictions on this number of "
            "blocks of every held-out set. Each stage is compared with the base model and the last, or --from "
            "with --to.",
        ),
    ] = 0,
    restore: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="BLOCKS",
            help="Also restore one layer at a time to an earlier stage (--from), and measure on this number of blocks "
            "of every held-out set what is recovered and what is lost.",
        ),
    ] = 0,
    merge_back: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="BLOCKS",
            help="Also interpolate back to an earlier stage (--from), and score this number of blocks of every "
            "held-out set on the way.",
        ),
    ] = 0,
    ranks: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="CONTEXTS",
            help="Also measure the ranks of domain-specific words in the predictions of every checkpoint, in this "
            "number of contexts of every held-out set (200 or more); the median of their logarithm is shown.",
        ),
    ] = 0,
    since: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="STAGE", help="The earlier stage: its domain, or `base`; default: the one before --to."
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="STAGE", help="The later stage; default: the last one.")
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=BLOCKS", help="Also run an analysis of a plugin on so many blocks; repeatable."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The page; default: RUN/analysis.html.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show which layers of a run moved, what importance protects, which rows have large outputs, and where it
    forgets."""
    from everlearn.diagnostics import (
        alike,
        distances,
        general_similarity,
        maps_of,
        merged_back,
        occupied_share,
        pair_of,
        pairs_of,
        prediction_ranks,
        prequential,
        restored,
        threshold_of,
        without_maps,
    )
    from everlearn.diagnostics.pages.checkpoints import of_distances, of_going_back
    from everlearn.diagnostics.pages.prediction_ranks import of_ranks
    from everlearn.diagnostics.pages.run import terminal, to_json, write_analysis
    from everlearn.diagnostics.registry import find_analysis, section_as_data
    from everlearn.diagnostics.row_activations import looked_at
    from everlearn.errors import RecipeError, RunError
    from everlearn.model.movement import movements
    from everlearn.run.writable import check_place

    asked = []
    for words in also or ():
        name, blocks = pair(words, "--also", ALSO)
        if not blocks.isdecimal():
            raise no_pair("--also", words, ALSO)
        asked.append((name, find_analysis(name), int(blocks)))
    if output is not None:
        check_place("--output", output)
    comparing = distance or restore or merge_back
    looking = comparing or ranks or magnitude or also
    if (since is not None or until is not None) and not comparing:
        raise RecipeError(
            "`--from` and `--to` name the stages of --distance, --restore and --merge-back: give one of these too."
        )
    learner = learner_of(run)
    maps = maps_of(learner.folder)
    for option, given in (("--similarity", similarity), ("--output", output and not looking)):
        if maps is None and given:
            raise RunError(f"{without_maps(learner.folder)} Leave out {option}.")
    moved = movements(learner.folder.path)
    filled = occupied_share(maps.sites, maps.how, maps.grows) if maps is not None else None
    likeness = general_similarity(learner, similarity) if similarity else None
    outputs = looked_at(learner, magnitude) if magnitude else []
    compared = [alike(each, threshold_of(learner)) for each in outputs]
    apart = distances(learner, pairs_of(learner, since, until), distance) if distance else []
    back = [
        look(learner, pair_of(learner, since, until), blocks)
        for look, blocks in ((restored, restore), (merged_back, merge_back))
        if blocks
    ]
    expected = prediction_ranks(learner, ranks) if ranks else None
    sections = [*([of_distances(apart)] if apart else []), *map(of_going_back, back)]
    sections += [of_ranks(expected)] if expected is not None else []
    own = {name: analyse(learner, blocks) for name, analyse, blocks in asked}
    sections += own.values()
    online = prequential(learner.folder)
    show(
        to_json(moved, filled, likeness, compared, apart, back, online, expected)
        | ({"also": {name: section_as_data(section) for name, section in own.items()}} if own else {}),
        as_json,
        lambda: terminal(moved, learner.recipe.domains, filled, likeness, compared, sections, online),
    )
    if maps is None and not looking:
        say(without_maps(learner.folder), as_json)
    if maps is not None or outputs or sections:
        sites = maps.sites if maps is not None else None
        page = write_analysis(
            output or run / "analysis.html",
            learner.recipe.run.name,
            sites,
            filled,
            likeness,
            outputs,
            compared,
            sections,
        )
        say(f"Page: {page}", as_json)
