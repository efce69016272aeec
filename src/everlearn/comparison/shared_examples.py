"""Resample several runs in pairs: the same held-out blocks and test examples are drawn for all of them.

Two runs that are scored on the same text have correlated errors, so their difference is far more certain than their
separate intervals suggest (Efron & Tibshirani 1993, ch. 8). The cells in a run's ``evaluation/`` hold what is needed.
If they are missing, or the runs were scored on different data, there are no samples and the caller uses the separate
intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import everlearn.tasks  # noqa: F401  # registers the kinds and their metrics
from everlearn.comparison.runs import Run
from everlearn.errors import RunError
from everlearn.evaluation.cell import Cell, set_path, task_path
from everlearn.evaluation.metrics import METRICS, Metric
from everlearn.evaluation.quantities import QUANTITIES, Scores
from everlearn.evaluation.resampling import resample
from everlearn.evaluation.score_table import ScoreTable
from everlearn.evaluation.statistics import Floats

Samples = dict[str, dict[str, Floats]]
"""Quantity → column → samples [resamples, runs]."""
PAIRED = ("gained", "learnt", "forgotten", "general_drift", "average")
"""Quantities of the first table, which read only three rows: base model, own stage and end of the stream."""


def paired_samples(runs: Sequence[Run], metric: str) -> Samples:
    """Return samples of the paired quantities of a metric, for the columns on which these runs can be paired."""
    if len(runs) < 2 or metric not in METRICS or any(run.folder is None for run in runs):
        return {}
    matrices = [run.matrices[metric] for run in runs]
    samples: Samples = {}
    for column in matrices[0].columns:
        if not all(column in matrix.columns for matrix in matrices):
            continue
        try:
            scores = _scores(runs, matrices, METRICS[metric], column)
        except RunError:
            # Without a cell the intervals are wider, but the report is still possible.
            continue
        for key in PAIRED if scores else ():
            parts = []
            for matrix, sample in zip(matrices, scores, strict=True):
                stage, last = matrix.own_stage(column), len(matrix.rows) - 1
                if not QUANTITIES[key].applies(stage, last):
                    break
                parts.append(QUANTITIES[key].of(sample, stage, last, matrix.higher_is_better))
            if len(parts) == len(runs):
                samples.setdefault(key, {})[column] = np.stack(parts, axis=-1)
    return samples


def _scores(runs: Sequence[Run], matrices: Sequence[ScoreTable], metric: Metric, column: str) -> list[Scores]:
    """Return each run's scores [resamples, rows] under the same draws; empty if the data differ."""
    kept: list[Cell] = []
    rows: list[list[int]] = []
    for run, matrix in zip(runs, matrices, strict=True):
        needed = sorted({0, matrix.own_stage(column) or 0, len(matrix.rows) - 1})
        rows.append([row for row in needed if matrix.cell(row, column).value is not None])
        kept += [_load(run, matrix, row, column) for row in rows[-1]]
    if not kept or not all(metric.applies(cell) and kept[0].same_examples(cell) for cell in kept):
        return []
    samples = resample(kept, [metric], seed=("report", column))[metric.name].samples
    parts = np.split(samples, np.cumsum([len(own) for own in rows])[:-1], axis=1)
    return [Scores(own, part) for own, part in zip(rows, parts, strict=True)]


def _load(run: Run, matrix: ScoreTable, row: int, column: str) -> Cell:
    if run.folder is None:
        raise RunError(f"Run '{run.name}' has results but no folder.")
    place = task_path if matrix.task_domains else set_path
    return Cell.load(place(run.folder / "evaluation", row, column))
