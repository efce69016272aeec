"""Paired resampling of several runs: the same held-out blocks and test examples are drawn for all of them at once.

Two runs that are scored on the same text err in the same direction, so their difference is far more certain than
their separate intervals say (Efron & Tibshirani 1993, ch. 8). The cells that a run keeps in ``evaluation/`` hold what
is needed; where they are absent, or the runs were not scored on the same data, there are no samples and the caller
falls back to the separate intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from everlearn.errors import RunError
from everlearn.evaluation.cell import Cell, set_path, task_path
from everlearn.evaluation.metrics import METRICS
from everlearn.evaluation.quantities import QUANTITIES, Scores
from everlearn.evaluation.resampling import resample
from everlearn.evaluation.statistics import Floats
from everlearn.report.runs import Matrix, Run

Samples = dict[str, dict[str, Floats]]
"""Quantity → column → samples [resamples, runs]."""


def paired_samples(runs: Sequence[Run], metric: str) -> Samples:
    """Samples of every quantity of a metric for the columns on which these runs can be paired; empty when none can."""
    if len(runs) < 2 or any(run.folder is None for run in runs) or metric not in METRICS:
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
        if scores is None:
            continue
        for key, quantity in QUANTITIES.items():
            parts = []
            for matrix, sample in zip(matrices, scores, strict=True):
                stage, last = matrix.own_stage(column), len(matrix.rows) - 1
                if not quantity.applies(stage, last):
                    break
                parts.append(quantity.of(sample, stage, last, matrix.higher_is_better))
            if len(parts) == len(runs):
                found.setdefault(key, {})[column] = np.stack(parts, axis=-1)
    return found


def _scores(runs: Sequence[Run], matrices: Sequence[Matrix], column: str) -> list[Scores] | None:
    """Samples of each run's rows, every run and row under the same draws; None when the data differ."""
    metric = METRICS[matrices[0].metric]
    place = task_path if matrices[0].task_domains else set_path
    rows = [[row for row, name in matrix.scores if name == column] for matrix in matrices]
    cells = [
        Cell.load(place(run.folder / "evaluation", row, column))
        for run, own in zip(runs, rows, strict=True)
        if run.folder is not None
        for row in own
    ]
    if not cells or not all(metric.applies(cell) and cell.same_examples(cells[0]) for cell in cells):
        return None
    samples = resample(cells, [metric], seed=("report", column))[metric.name].samples
    parts = np.split(samples, np.cumsum([len(own) for own in rows])[:-1], axis=1)
    return [Scores(own, part) for own, part in zip(rows, parts, strict=True)]
