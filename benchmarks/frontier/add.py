"""Add cells that were made later to those of a stream: python benchmarks/frontier/add.py NEW STREAM

NEW is a folder of cells that run.py has written elsewhere (``--results``), plain training among them. The older cells
divide by the bytes per token of the complete held-out text, new ones by those of the scored rows, so each column of a
new cell is multiplied by one factor: the base model's old score over its new one, as both are of the same rows. With it
the new plain training must be the old one to the last digits, or the new cells were made with another arithmetic and
none is added. A cell of another way that is there already is replaced. Times are left out: they are of another day, and
the pages compare times.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rows import HERE

from everlearn import files
from everlearn.evaluation.build import BASE
from everlearn.grid.archive import find_cells, pack
from everlearn.methods.sequential import PLAIN

METRIC = "bits_per_byte"
CLOSE = 1e-9
"""Bits per byte by which plain training may differ."""


def scores(cell: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Stage and text → bits per byte."""
    return {(stage, text): value for stage, text, value, *_ in cell["matrices"][METRIC]["cells"]}


def converted(cell: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """Return a new cell with the denominators of an old one, and without what the old ones lack."""
    before, now = scores(old), scores(cell)
    matrix = cell["matrices"][METRIC] | {
        "cells": [
            [stage, text, value * before[BASE, text] / now[BASE, text], None, None]
            for (stage, text), value in now.items()
        ]
    }
    cost = cell["cost"] | {"seconds": 0.0, "training_seconds": 0.0}
    return cell | {"matrices": {METRIC: matrix}, "summary": {}, "leaked": {}, "cost": cost}


def main() -> None:
    new, place = Path(sys.argv[1]), HERE / "results" / sys.argv[2]
    old = {name: kept.value for name, kept in find_cells(place).items()}
    plain = [name for name, cell in old.items() if cell["grid"]["row"] == PLAIN]
    cells = {name: converted(kept.value, old[plain[0]]) for name, kept in find_cells(new).items()}
    again = [name for name in plain if name in cells]
    if not again:
        sys.exit(f"{new} has no plain training, so nobody knows whether its arithmetic is the same.")
    apart = max(abs(value - scores(cells[name])[key]) for name in again for key, value in scores(old[name]).items())
    if apart > CLOSE:
        sys.exit(f"{', '.join(again)}: different by up to {apart:.1e} bits per byte. Nothing is added.")
    added = [name for name in cells if name not in plain]
    for name in added:
        files.write_json(place / f"{name}.json", cells[name])
    print(f"{', '.join(again)}: different by up to {apart:.1e}. Written: {len(added)}; {pack(place)} cells are there.")


if __name__ == "__main__":
    main()
