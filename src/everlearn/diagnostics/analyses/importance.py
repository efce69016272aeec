"""Importance maps of a run: the share of the mask in use, the maps by layer, and how alike domains are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
import typer

from everlearn.comparison.formatting import fixed
from everlearn.diagnostics.importance_maps import (
    Map,
    OccupiedShare,
    Similarity,
    general_similarity,
    kind_of_site,
    maps_of,
    occupied_share,
    without_maps,
)
from everlearn.diagnostics.registry import Findings, analysis
from everlearn.errors import RunError
from everlearn.learner import ContinualLearner
from everlearn.report.drawing import legend_of
from everlearn.report.figures import draw
from everlearn.report.figures.curves import Curve, Curves
from everlearn.report.figures.heat import Heat, Shade
from everlearn.report.sections import Section
from everlearn.report.tables import Table, TableCell
from everlearn.wording import percent

_DECILES = 10
Measured = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="BLOCKS",
        help="Also measure general importance on this number of blocks of every domain (the corpora must exist), and "
        "compare the maps.",
    ),
]


@analysis("importance", recorded=True)
def importance(learner: ContinualLearner, blocks: Measured = 0) -> Findings:
    """Show what importance protects: the share of the mask in use, and the maps that the run saved, by layer.

    With `--blocks` general importance is measured on every domain, and the domains' maps are compared.
    """
    maps = maps_of(learner.folder)
    if maps is None and blocks:
        raise RunError(f"{without_maps(learner.folder)} Leave out --blocks.")
    if maps is None:
        return Findings([], {"occupied_share": None, "similarity": None}, without_maps(learner.folder))
    filled = occupied_share(maps.sites, maps.how, maps.grows)
    alike = general_similarity(learner, blocks) if blocks else None
    data = {"occupied_share": vars(filled), "similarity": None if alike is None else vars(alike)}
    return Findings(sections(maps.sites, filled, alike), data)


def sections(maps: Mapping[str, Map], filled: OccupiedShare, alike: Similarity | None = None) -> list[Section]:
    """Return a section on the share that is free to change, and one with the maps."""
    names = [*filled.kinds, "independent maps"]
    curves = Curves(
        "free to change: mean of 1 − I",
        [
            Curve(i, range(len(filled.stages)), values, label=name)
            for i, (name, values) in enumerate(zip(names, [*filled.free, filled.chance], strict=True))
        ],
        _FREE if filled.grows else _FREE_ANEW,
        ticks=filled.stages,
        limits=(0, 1),
    )
    heats = [heat_map(stage, kind, maps[stage], filled) for kind in filled.kinds for stage in filled.stages]
    plates = [draw("heat", each) for each in heats]
    first = [plate for each in plates[:: len(filled.stages)] for plate in each]
    others = [plate for place, each in enumerate(plates) if place % len(filled.stages) for plate in each]
    return [
        Section(
            "How much is left to learn with",
            plates=draw("curves", curves),
            tables=tables(filled, alike),
            legend=tuple(legend_of(names)),
            layout="",
        ),
        Section(
            "Importance by layer",
            _MAPS if filled.grows else _MAPS_ANEW,
            first,
            parts=[Section("The other maps", plates=others, folded=True)] if others else [],
        ),
    ]


_FREE = (
    "The share of an update that the mask lets through, by kind of unit, before the first domain and after each. The "
    "element-wise maximum of maps can only fill up; the last line is what independent maps would leave."
)
_FREE_ANEW = (
    "The share of an update that the mask lets through, by kind of unit, while each domain is learnt. Importance is "
    "measured anew before each domain and does not accumulate; the last line is what a map of independent scores "
    "would leave."
)
_MAPS = (
    '0 is free to change, 1 is protected. "General" is what was measured before the first domain; the others are the '
    "largest over it and all domains learnt so far."
)
_MAPS_ANEW = (
    "0 is free to change, 1 is protected. Each map was measured before its domain and held while it was learnt."
)


def heat_map(stage: str, kind: str, importance_map: Map, filled: OccupiedShare) -> Heat:
    """Return one kind of unit after one stage: layers × heads, or layers × deciles of their units' importance."""
    sites = {site: value.float() for site, value in importance_map.items() if kind_of_site(site) == kind}
    heads = max(len(value) for value in sites.values()) <= 2 * _DECILES
    rows = []
    for site, value in sites.items():
        share = torch.linspace(0, 1, _DECILES + 1)
        shown = (value if heads else value.quantile(share)).tolist()
        cells = [Shade(x, fixed(x, 2), f"{site}: importance {x:.3f}") for x in shown]
        rows.append((site.rsplit(".", 1)[0], cells))
    width = len(rows[0][1])
    columns = [str(i + 1) for i in range(width)] if heads else [f"{10 * i} %" for i in range(width)]
    what = "each head" if heads else "quantiles over the units of a layer"
    when = "after" if filled.grows else "while learning"
    return Heat(f"{kind}, {when} {stage}: {what}", "layer", columns, rows, scale=1.0)


def tables(filled: OccupiedShare, alike: Similarity | None) -> list[Table]:
    """Return tables of the share free to change, of the important units, and of the cosine between domains."""
    moment = "After" if filled.grows else "While learning"
    shown = [
        Table(
            "Free to change (mean of 1 − I)",
            (moment, *filled.kinds, "Independent maps"),
            tuple(
                (stage, tuple(TableCell(fixed(column[i])) for column in [*filled.free, filled.chance]))
                for i, stage in enumerate(filled.stages)
            ),
        ),
        Table(
            "Units of importance 0.9 or more",
            (moment, *filled.kinds),
            tuple(
                (stage, tuple(TableCell(percent(column[i])) for column in filled.protected))
                for i, stage in enumerate(filled.stages)
            ),
        ),
    ]
    for kind, matrix in alike.cosine.items() if alike is not None else ():
        mean, highest = alike.random[kind]  # type: ignore[union-attr]
        shown.append(
            Table(
                f"General importance of {kind}: cosine between domains",
                ("Measured on", *alike.domains),  # type: ignore[union-attr]
                tuple(
                    (domain, tuple(TableCell(fixed(value)) for value in row))
                    for domain, row in zip(alike.domains, matrix, strict=True)  # type: ignore[union-attr]
                ),
                f"Unrelated random maps, normalised in the same way: {mean:.3f} on average, {highest:.3f} at most.",
            )
        )
    return shown
