"""Read the cells of a grid: the ``results.json`` of one row in one order with one seed, under the group ``grid``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from everlearn.comparison.runs import Run, read_run
from everlearn.errors import RunError
from everlearn.evaluation.results import Results
from everlearn.files import read_json
from everlearn.grid.archive import KeptCell, find_cell, find_cells
from everlearn.grid.identity import where_differ


def check_settings(run: Run, settings: Mapping[str, Any], where: Path) -> None:
    """Raise ``RunError`` if a cell was measured with settings other than these."""
    own = run.grid.settings
    for key in sorted({*settings, *own}):
        mine, other = own.get(key), settings.get(key)
        if mine != other:
            key, mine, other = where_differ(key, mine, other)
            shown = f": {mine!r} there, {other!r} here" if len(f"{mine}{other}") < 200 else ""
            raise RunError(
                f"{run.grid.name} in '{where}' was measured with other settings (`{key}`{shown}). Runs of one table "
                "must share them: use the same settings, or another folder (`--results`)."
            )


def load_cell(folder: Path, name: str) -> Run | None:
    """Return a cell of a folder, from its own file or from the archive; None if it is not measured.

    Raises:
        RunError: the file is damaged or not a cell.
    """
    kept = find_cell(folder, name)
    return None if kept is None else read_cell(kept)


def load_results(folder: Path) -> list[Run]:
    """Return every cell in a folder and its archive, sorted by name.

    Raises:
        RunError: a file is damaged, not a cell or not named after its cell, or the cells were measured with
            different settings.
    """
    runs: list[Run] = []
    for name, kept in find_cells(folder).items():
        run = read_cell(kept)
        if run.name != name:
            raise RunError(
                f"'{kept.where}' holds the run {run.name}, which would be counted twice under another name. Rename "
                f"it to {run.name}.json, or remove it from there."
            )
        runs.append(run)
        check_settings(run, runs[0].grid.settings, folder)
    return runs


def read_cell(kept: KeptCell) -> Run:
    """Return the content of a cell's file as a run.

    Raises:
        RunError: it is not a cell.
    """
    try:
        results = Results.model_validate(kept.value)
    except ValidationError as error:
        first = error.errors()[0]
        key = f"`{'.'.join(map(str, first['loc']))}`: " if first["loc"] else ""
        raise RunError(f"'{kept.where}' is no run of a grid: {key}{first['msg']}. Remove it from there.") from None
    if results.grid is None:
        raise RunError(f"'{kept.where}' is no run of a grid: it has no `grid`. Remove it from there.")
    return Run(results.grid.name, results.grid.title, kept.value)


def run_folders(cells: Iterable[Run], runs: Path) -> dict[str, Path]:
    """Return cell → folder of its run in the folder of all runs, for streams whose run is still there and the same."""
    folders = {}
    for cell in cells:
        folder = runs / cell.name / "run"
        if cell.grid.order is None or not (folder / "results.json").is_file():
            continue
        results = read_json(folder / "results.json")
        if isinstance(results, Mapping) and results.get("matrices") == cell.results.get("matrices"):
            folders[cell.name] = folder
    return folders


def runs_of(cells: Iterable[Run], folders: Mapping[str, Path]) -> list[Run]:
    """Return the runs in these folders, each with what its cell knows of it, such as the compute."""
    with_folder = [cell for cell in cells if cell.name in folders]
    runs = [(read_run(folders[cell.name]), cell) for cell in with_folder]
    return [replace(run, results=run.results | {"grid": cell.results["grid"]}) for run, cell in runs]
