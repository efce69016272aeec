"""From measured cells to :class:`Results`: metrics of the losses and of the end tasks, and all that follows.

``f1`` is there only where an end task asks for micro-F1: it would repeat macro-F1 otherwise.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from everlearn.errors import RecipeError, RunError
from everlearn.evaluation.cells import LossCell, TaskCell
from everlearn.evaluation.matrix import MEAN, ScoreMatrix, summarise
from everlearn.evaluation.metrics import METRICS, task_scores
from everlearn.evaluation.results import Cost, Estimate, Matrix, Results, RunFacts, Share, Study, Summary
from everlearn.evaluation.statistics import RESAMPLES, Floats, Interval, bootstrap_ratio, percentiles

BASE = "base"
ONE_FINE_TUNING = (
    "End tasks were fine-tuned with one seed: their intervals cover the choice of test examples, not the variation "
    "between fine-tunings."
)
"""A note, where it is so; a table over several runs has other intervals and must say something else."""


def build_results(
    facts: RunFacts,
    domains: Sequence[str],
    general: Sequence[str] = (),
    losses: Mapping[tuple[int, str], LossCell] | None = None,
    tasks: Mapping[tuple[int, str], TaskCell] | None = None,
    task_domains: Mapping[str, str | None] | None = None,
    alone: Mapping[str, LossCell] | None = None,
    cost: Cost | None = None,
    mixture: Sequence[Share] = (),
    notes: Sequence[str] = (),
    resamples: int = RESAMPLES,
) -> Results:
    """Everything that can be said from the cells measured so far; what cannot be said is null or absent.

    The intervals are seeded by the run's seed and the column's name, so the same cells give the same results.

    Args:
        facts: what was run.
        domains: the whole stream in order.
        general: names of the general sets.
        losses: (row, name of a domain or general set) → cell; row 0 is the base model, row i after domain i.
        tasks: (row, end task) → cell.
        task_domains: every end task and the domain that it belongs to, None for a general one.
        alone: domain → cell of the base model trained on that domain alone.
        cost: time and memory.
        mixture: shares asked for and realised.
        notes: plain sentences worth reading.
        resamples: of the bootstrap.

    Raises:
        RecipeError: a name is used twice or reserved, or an end task belongs to an unknown domain.
        RunError: cells of one column were measured on different data, or a cell belongs to no row or column.
    """
    losses, tasks, task_domains = losses or {}, tasks or {}, task_domains or {}
    _check_names([*domains, *general], "domains")
    _check_names(list(task_domains), "end_tasks")
    stage_of = {name: index for index, name in enumerate(domains, start=1)}
    for task, domain in task_domains.items():
        if domain is not None and domain not in stage_of:
            raise RecipeError(f"End task '{task}' belongs to domain '{domain}', which is not in `domains`.")
    _check_cells(losses, [*domains, *general], len(domains))
    _check_cells(tasks, list(task_domains), len(domains))

    scores: dict[str, ScoreMatrix] = {}
    if losses:
        columns = (*domains, *general)
        stages = tuple(stage_of.get(name) for name in columns)
        scores |= _loss_matrices(columns, stages, losses, facts.seed, resamples)
    if tasks:
        stages = tuple(None if domain is None else stage_of[domain] for domain in task_domains.values())
        scores |= _task_matrices(tuple(task_domains), stages, tasks, facts.seed, resamples)

    rows = [BASE, *domains]
    sentences = list(notes)
    if tasks and max(len(cell.seeds) for cell in tasks.values()) == 1:
        sentences.append(ONE_FINE_TUNING)
    sentences += _task_notes(task_domains, tasks)
    return Results(
        **facts.model_dump(),
        domains=list(domains),
        general=list(general),
        matrices={
            metric: _matrix(matrix, rows, dict(task_domains) if metric in METRICS else None)
            for metric, matrix in scores.items()
        },
        summary={metric: _summary(matrix) for metric, matrix in scores.items()},
        study=_study(scores["loss"], list(domains), alone or {}) if losses else Study(),
        cost=cost or Cost(),
        mixture=list(mixture),
        notes=sentences,
    )


def _task_notes(names: Iterable[str], cells: Mapping[tuple[int, str], TaskCell]) -> list[str]:
    notes = []
    for name in names:
        cell = next((cell for (_, task), cell in cells.items() if task == name), None)
        if cell is not None and cell.f1 == "micro":
            notes.append(f"The table `f1` holds micro-F1 (equal to accuracy) for end task '{name}'.")
        if cell is not None and cell.ceiling < 1:
            notes.append(
                f"End task '{name}': {1 - cell.ceiling:.2%} of the test examples have a label that no training example "
                f"has and always count as wrong; its accuracy can be at most {cell.ceiling:.2%}."
            )
    return notes


def _check_names(names: list[str], key: str) -> None:
    if MEAN in names:
        raise RecipeError(f"The name '{MEAN}' is taken by the column of means: choose another one in `{key}`.")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RecipeError(f"The name '{twice[0]}' is used twice (`{key}`): every column of a table needs its own.")


def _check_cells(cells: Mapping[tuple[int, str], LossCell | TaskCell], columns: list[str], last: int) -> None:
    first: dict[str, tuple[int, Any]] = {}
    for (row, name), cell in sorted(cells.items(), key=lambda item: item[0]):
        if name not in columns or not 0 <= row <= last:
            raise RunError(
                f"The evaluation holds a cell of '{name}' after {row} domains, which this run does not have."
            )
        mark = len(cell.nats) if isinstance(cell, LossCell) else (cell.truth.tolist(), cell.classes.tolist(), cell.f1)
        other_row, other = first.setdefault(name, (row, mark))
        if mark != other:
            raise RunError(
                f"'{name}' was measured on other data after {row} domains than after {other_row}: the scores cannot be "
                "compared. Remove the `evaluation/stage-*` folders and resume; they are measured again."
            )


def _loss_matrices(
    columns: tuple[str, ...],
    stages: tuple[int | None, ...],
    cells: Mapping[tuple[int, str], LossCell],
    seed: int,
    resamples: int,
) -> dict[str, ScoreMatrix]:
    rows = 1 + max(row for row, _ in cells)
    values = np.full((rows, len(columns)), np.nan)
    samples = np.full((resamples, rows, len(columns)), np.nan)
    width = np.ones(len(columns))
    for index, name in enumerate(columns):
        measured = {row: cells[row, name] for row in range(rows) if (row, name) in cells}
        if not measured:
            continue
        at = list(measured)
        values[at, index] = [cell.loss for cell in measured.values()]
        nats, items = (np.stack([getattr(c, key) for c in measured.values()]) for key in ("nats", "items"))
        samples[:, at, index] = bootstrap_ratio(nats, items, seed=(seed, name), resamples=resamples)
        width[index] = next(iter(measured.values())).bytes_per_token

    def matrix(unit: str, values: Floats, samples: Floats) -> ScoreMatrix:
        return ScoreMatrix(columns, stages, values, samples, higher_is_better=False, unit=unit)

    bits = np.log(2) * width
    with np.errstate(over="ignore"):
        return {
            "bits_per_byte": matrix("bits/byte", values / bits, samples / bits),
            "loss": matrix("nats/token", values, samples),
            "perplexity": matrix("per token", np.exp(values), np.exp(samples)),
        }


def _task_matrices(
    columns: tuple[str, ...],
    stages: tuple[int | None, ...],
    cells: Mapping[tuple[int, str], TaskCell],
    seed: int,
    resamples: int,
) -> dict[str, ScoreMatrix]:
    rows = 1 + max(row for row, _ in cells)
    parts = [
        task_scores([cells.get((row, name)) for row in range(rows)], seed=(seed, name), resamples=resamples)
        for name in columns
    ]
    return {
        metric: ScoreMatrix(
            columns,
            stages,
            np.stack([part[metric][0] for part in parts], axis=-1),
            np.stack([part[metric][1] for part in parts], axis=-1),
            higher_is_better=True,
            unit="fraction",
        )
        for metric in METRICS
        if metric != "f1" or any(cell.f1 == "micro" for cell in cells.values())
    }


def _matrix(scores: ScoreMatrix, rows: list[str], task_domains: dict[str, str | None] | None) -> Matrix:
    low, high = percentiles(scores.samples)
    return Matrix(
        higher_is_better=scores.higher_is_better,
        unit=scores.unit,
        rows=rows[: len(scores.values)],
        columns=list(scores.columns),
        task_domains=task_domains,
        values=[[_known(x) for x in row] for row in scores.values],
        low=[[_known(x) for x in row] for row in low],
        high=[[_known(x) for x in row] for row in high],
    )


def _summary(scores: ScoreMatrix) -> Summary:
    numbers = summarise(scores)
    return Summary(**{name: {c: _estimate(x) for c, x in found.items()} for name, found in numbers.items()})


def _estimate(found: Interval) -> Estimate:
    return Estimate(value=found.value, low=_known(found.low), high=_known(found.high))


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _study(loss: ScoreMatrix, domains: list[str], alone: Mapping[str, LossCell]) -> Study:
    """All from the matrix of losses: a perplexity is exp(loss), and forgetting is a difference of losses."""
    last, lists = loss.last, dict[str, dict[str, float | None]]()
    lists["zero_shot"] = {name: _exp(loss.values[0, c]) for c, name in enumerate(domains)}
    lists["fine_tuned_alone"] = {name: _exp(alone[name].loss) if name in alone else None for name in domains}
    seen = list(enumerate(domains[:last]))
    lists["continual"] = {name: _exp(loss.values[c + 1, c]) for c, name in seen}
    lists["last_checkpoint"] = {name: _exp(loss.values[last, c]) for c, name in seen}
    numbers = summarise(loss)
    for key in ("forgotten", "forgotten_max"):
        lists[key] = {name: found.value for name, found in numbers[key].items() if name != MEAN}
    median: dict[str, float | None] = {}
    for key, found in lists.items():
        known = [value for value in found.values() if value is not None]
        median[key] = float(np.median(known)) if known else None
    return Study(**lists, median=median)


def _exp(loss: float) -> float | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # too large for a float: not known rather than infinite
        return _known(float(np.exp(loss)))
