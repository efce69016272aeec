"""Paired resampling of several runs: the same held-out blocks and test examples are drawn for all of them at once.

Two runs that are scored on the same text err in the same direction, so their difference is far more certain than
their separate intervals say (Efron & Tibshirani 1993, ch. 8). The cells that a run keeps in ``evaluation/`` hold what
is needed; where they are absent, or the runs were not scored on the same data, there are no samples and the caller
falls back to the separate intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from everlearn.errors import RunError
from everlearn.evaluation.cells import LossCell, TaskCell, loss_path, task_path
from everlearn.evaluation.matrix import NUMBERS
from everlearn.evaluation.metrics import task_scores
from everlearn.evaluation.statistics import Floats, bootstrap_ratio
from everlearn.files import digest
from everlearn.report.runs import Matrix, Run

Samples = dict[str, dict[str, Floats]]
"""Measure → column → samples [resamples, runs]."""
Place = tuple[Path, int, bool]
"""A run's evaluation folder, a row of its matrix, and whether the cell was measured."""
_BITS = {"bits_per_byte": True, "loss": False}
"""Metrics that are linear in the loss, and whether they count bits per byte."""


def paired_samples(runs: Sequence[Run], metric: str) -> Samples:
    """Samples of every measure of a metric for the columns on which these runs can be paired; empty when none can."""
    if len(runs) < 2 or any(run.folder is None for run in runs):
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
        for measure, number in NUMBERS.items():
            parts = []
            for matrix, sample in zip(matrices, scores, strict=True):
                stage, last = matrix.own_stage(column), len(matrix.rows) - 1
                sign = -1.0 if number.signed and not matrix.higher_is_better else 1.0
                if not number.applies(stage, last):
                    break
                parts.append(number.formula(sign * sample, stage or 0, last))
            if len(parts) == len(runs):
                found.setdefault(measure, {})[column] = np.stack(parts, axis=-1)
    return found


def _scores(runs: Sequence[Run], matrices: Sequence[Matrix], column: str) -> list[Floats] | None:
    """For each run [resamples, rows], every run and row under the same draws; None when the data differ."""
    places = [
        (run.folder / "evaluation", row, matrix.cell(row, column).value is not None)
        for run, matrix in zip(runs, matrices, strict=True)
        for row in range(len(matrix.rows))
        if run.folder is not None
    ]
    lead = matrices[0]
    if lead.task_domains:
        samples = _task_samples(places, lead.metric, column)
    else:
        samples = _loss_samples(places, _BITS[lead.metric], column) if lead.metric in _BITS else None
    return None if samples is None else np.split(samples, np.cumsum([len(m.rows) for m in matrices])[:-1], axis=1)


def _task_samples(places: Sequence[Place], metric: str, column: str) -> Floats | None:
    cells = [TaskCell.load(task_path(folder, row, column)) if there else None for folder, row, there in places]
    known = [cell for cell in cells if cell is not None]
    if not all(_same(cell.truth, known[0].truth) and _same(cell.classes, known[0].classes) for cell in known):
        return None
    if len({cell.f1 for cell in known}) > 1:
        return None
    return task_scores(cells, seed=("report", column))[metric][1]


def _loss_samples(places: Sequence[Place], bits: bool, column: str) -> Floats | None:
    sets = {folder / "sets" / f"{column}.safetensors" for folder, _, _ in places}
    if not all(path.is_file() for path in sets) or len({digest(path) for path in sets}) > 1:
        return None
    cells = [LossCell.load(loss_path(folder, row, column)) if there else None for folder, row, there in places]
    known = [cell for cell in cells if cell is not None]
    if not known or not all(_same(cell.items, known[0].items) for cell in known):
        return None
    nats = np.stack([np.full(len(known[0].nats), np.nan) if cell is None else cell.nats for cell in cells])
    samples = bootstrap_ratio(nats, np.broadcast_to(known[0].items, nats.shape), seed=("report", column))
    return samples / (np.log(2) * known[0].bytes_per_token) if bits else samples


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool((a == b).all())
