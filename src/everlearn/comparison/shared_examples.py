"""Paired resampling of several runs: the same held-out blocks and test examples are drawn for all of them at once.

Two runs that are scored on the same text err in the same direction, so their difference is far more certain than
their separate intervals say (Efron & Tibshirani 1993, ch. 8). The cells that a run keeps in ``evaluation/`` hold what
is needed; where they are absent, or the runs were not scored on the same data, there are no samples and the caller
falls back to the separate intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import everlearn.tasks  # noqa: F401  # registers the kinds and their metrics
from everlearn.comparison.runs import Matrix, Run
from everlearn.errors import RunError
from everlearn.evaluation.cell import Cell, set_path, task_path
from everlearn.evaluation.metrics import METRICS
from everlearn.evaluation.quantities import QUANTITIES, Scores
from everlearn.evaluation.resampling import resample
from everlearn.evaluation.statistics import Floats

Samples = dict[str, dict[str, Floats]]
"""Quantity → column → samples [resamples, runs]."""
PAIRED = ("gained", "learnt", "forgotten", "general_drift", "average")
"""Quantities of the first table: base model, own stage and the end of the stream are all that they read."""


def paired_samples(runs: Sequence[Run], metric: str) -> Samples:
    """Samples of the paired quantities of a metric for the columns on which these runs can be paired."""
    if len(runs) < 2 or metric not in METRICS or any(run.folder is None for run in runs):
        return {}
    matrices = [run.matrices[metric] for run in runs]
    found: Samples = {}
    for column in matrices[0].columns:
        if not all(column in matrix.columns for matrix in matrices):
            continue
        try:
            scores = _scores(runs, matrices, column)
        except RunError:
            # A damaged or missing cell costs precision, not the report.
            continue
        for key in PAIRED if scores else ():
            parts = []
            for matrix, sample in zip(matrices, scores, strict=True):
                stage, last = matrix.own_stage(column), len(matrix.rows) - 1
                if not QUANTITIES[key].applies(stage, last):
                    break
                parts.append(QUANTITIES[key].of(sample, stage, last, matrix.higher_is_better))
            if len(parts) == len(runs):
                found.setdefault(key, {})[column] = np.stack(parts, axis=-1)
    return found


def _scores(runs: Sequence[Run], matrices: Sequence[Matrix], column: str) -> list[Scores]:
    """For each run its scores [resamples, rows], every run and row under the same draws; none when the data differ."""
    kept: list[Cell] = []
    rows: list[list[int]] = []
    for run, matrix in zip(runs, matrices, strict=True):
        wanted = sorted({0, matrix.own_stage(column) or 0, len(matrix.rows) - 1})
        rows.append([row for row in wanted if matrix.cell(row, column).value is not None])
        kept += [_load(run, matrix, row, column) for row in rows[-1]]
    metric = METRICS[matrices[0].metric]
    if not kept or not all(metric.applies(cell) and kept[0].same_examples(cell) for cell in kept):
        return []
    found = resample(kept, [metric], seed=("report", column))[metric.name].samples
    parts = np.split(found, np.cumsum([len(own) for own in rows])[:-1], axis=1)
    return [Scores(own, part) for own, part in zip(rows, parts, strict=True)]


def _load(run: Run, matrix: Matrix, row: int, column: str) -> Cell:
    if run.folder is None:
        raise RunError(f"Of run '{run.name}' only the results are known.")
    place = task_path if matrix.task_domains else set_path
    return Cell.load(place(run.folder / "evaluation", row, column))
