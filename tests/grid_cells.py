"""Cells of grids for tests, from scores at three moments: base model, right after the own domain, end of the stream."""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

from everlearn import files
from everlearn.comparison.runs import Run
from everlearn.evaluation import Results
from everlearn.grid.archive import KeptCell
from everlearn.grid.cells import read_cell

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from convert_cells import converted

_MADE_OF: list[tuple[Run, dict[str, Any]]] = []


def cell_of(**scores: Any) -> Run:
    """Return the cell with these scores, in the keys of cells before they were `results.json` files."""
    old = {"suite": "six-domains", "order": None, "seed": None, "settings": {}} | scores
    value = Results.model_validate(converted(old)).model_dump(mode="json")
    _MADE_OF.append((read_cell(KeptCell(value, "a test")), deepcopy(old)))
    return _MADE_OF[-1][0]


def made_of(cell: Run) -> dict[str, Any]:
    """Return a copy of the scores from which a cell was made."""
    return deepcopy(next(old for run, old in _MADE_OF if run is cell))


def like(cell: Run, **changes: Any) -> Run:
    """Return a cell that differs in some keys."""
    return cell_of(**made_of(cell) | changes)


def write(folder: Path, *cells: Run) -> None:
    """Write cells to their files in a folder."""
    for each in cells:
        files.write_json(folder / f"{each.name}.json", each.results)
