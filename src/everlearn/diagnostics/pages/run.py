"""Show the analysis of a run as a page, tables for a terminal, and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.text import Text

from everlearn.comparison.formatting import fixed
from everlearn.data.corpus import Domain
from everlearn.diagnostics.checkpoint_distance import Distance
from everlearn.diagnostics.importance_maps import Map, OccupiedShare, kind_of_site
from everlearn.diagnostics.importance_similarity import Similarity
from everlearn.diagnostics.interpolation import GoingBack
from everlearn.diagnostics.pages import row_activations
from everlearn.diagnostics.prediction_ranks import Ranks
from everlearn.diagnostics.row_activations import Alike, Magnitudes
from everlearn.diagnostics.training_codelength import Prequential, table
from everlearn.files import write_text
from everlearn.model.movement import Moved, Movement, together
from everlearn.report.drawing import legend_of
from everlearn.report.figures import draw
from everlearn.report.figures.curves import Curve, Curves
from everlearn.report.figures.heat import Heat, Shade
from everlearn.report.html import render
from everlearn.report.sections import Section
from everlearn.report.tables import Table, TableCell, terminal_table
from everlearn.version import __version__

_DECILES = 10


def write_analysis(
    output: Path,
    run: str,
    maps: Mapping[str, Map] | None = None,
    filled: OccupiedShare | None = None,
    alike: Similarity | None = None,
    outputs: Sequence[Magnitudes] = (),
    compared: Sequence[Alike] = (),
    sections: Sequence[Section] = (),
) -> Path:
    """Write the page to a file, atomically; parts that are not given are left out."""
    importance = {} if maps is None or filled is None else _importance(maps, filled, alike)
    about = {
        "what importance protects": importance,
        "which rows have large outputs": outputs,
        "where it forgets": sections,
    }
    write_text(
        output,
        render(
            "analysis.html.jinja",
            title=f"{run}: {', '.join(title for title, content in about.items() if content)}",
            kicker="Analysis",
            version=__version__,
            importance=importance,
            outputs=row_activations.sections(outputs, compared),
            output_tables=row_activations.tables(compared),
            sections=sections,
        ),
    )
    return output


def _importance(maps: Mapping[str, Map], filled: OccupiedShare, alike: Similarity | None) -> dict[str, Any]:
    """Return what the page shows of importance maps."""
    names = [*filled.kinds, "independent maps"]
    curves = [*filled.free, filled.chance]
    saturation = Curves(
        "free to change: mean of 1 − I",
        [
            Curve(i, range(len(filled.stages)), values, label=name)
            for i, (name, values) in enumerate(zip(names, curves, strict=True))
        ],
        _FREE if filled.grows else _FREE_ANEW,
        ticks=filled.stages,
        limits=(0, 1),
    )
    heats = [heat_map(stage, kind, maps[stage], filled) for kind in filled.kinds for stage in filled.stages]
    plates = [draw("heat", each) for each in heats]
    return {
        "legend": legend_of(names),
        "saturation": draw("curves", saturation),
        "tables": tables(filled, alike),
        "maps": [plate for each in plates[:: len(filled.stages)] for plate in each],
        "others": [plate for place, each in enumerate(plates) if place % len(filled.stages) for plate in each],
        "aside": _MAPS if filled.grows else _MAPS_ANEW,
    }


_FREE = (
    "The share of an update that the mask lets through, by kind of unit, before the first domain and after each. The "
    "element-wise maximum of maps can only fill up; the last line is what maps that have nothing to do with each other "
    "would leave."
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


def heat_map(stage: str, kind: str, found: Map, filled: OccupiedShare) -> Heat:
    """Return one kind of unit after one stage: layers × heads, or layers × deciles of their units' importance."""
    sites = {site: value.float() for site, value in found.items() if kind_of_site(site) == kind}
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
    """Return tables of how full the mask is, and of the similarity of general importance beside its random baseline."""
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
                (stage, tuple(TableCell(f"{column[i]:.1%}") for column in filled.protected))
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


def moved_table(moved: Mapping[int, Movement], domains: Sequence[Domain]) -> Table:
    """Return a table of how far each layer moved in each stage, and in total since the base model."""
    columns = [(domains[stage - 1].name, movement.since_before) for stage, movement in moved.items()]
    columns += [("since the base", movement.since_base) for movement in list(moved.values())[-1:]]
    each = [(name, together(parts or ())) for name, parts in columns]
    layers = dict.fromkeys(layer for _, movement in each for layer in movement)
    return Table(
        "How far each layer moved, ‖ΔW‖/‖W‖",
        ("Layer", *(name for name, _ in each)),
        tuple((layer, tuple(TableCell(_percent(movement.get(layer))) for _, movement in each)) for layer in layers),
    )


def _percent(part: Moved | None) -> str:
    return "–" if part is None or part.relative is None else f"{fixed(100 * part.relative, 2)} %"


def terminal(
    moved: Mapping[int, Movement],
    domains: Sequence[Domain],
    filled: OccupiedShare | None = None,
    alike: Similarity | None = None,
    compared: Sequence[Alike] = (),
    sections: Sequence[Section] = (),
    online: Sequence[Prequential] = (),
) -> RenderableType:
    """Return the tables for a terminal."""
    shown = [*([moved_table(moved, domains)] if moved else []), *([] if filled is None else tables(filled, alike))]
    shown += [table(list(online))] if online else []
    shown += [*row_activations.tables(compared), *(each for section in sections for each in section.tables)]
    return Group(*(part for each in shown for part in (terminal_table(each), Text(""))))


def to_json(
    moved: Mapping[int, Movement],
    filled: OccupiedShare | None = None,
    alike: Similarity | None = None,
    compared: Sequence[Alike] = (),
    apart: Sequence[Distance] = (),
    back: Sequence[GoingBack] = (),
    online: Sequence[Prequential] = (),
    expected: Ranks | None = None,
) -> dict[str, Any]:
    """Return everything that was measured as JSON data."""
    return {
        "moved": {stage: asdict(movement) for stage, movement in moved.items()},
        "saturation": filled.to_json() if filled is not None else None,
        "similarity": alike.to_json() if alike is not None else None,
        "magnitudes": [each.to_json() for each in compared],
        "distances": [each.to_json() for each in apart],
        "going_back": [each.to_json() for each in back],
        "online_codelength": [each.to_json() for each in online],
        "prediction_ranks": expected.to_json() if expected is not None else None,
    }
