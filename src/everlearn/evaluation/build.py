"""Build the :class:`Results` of a run from its cells: scores under every metric, quantities, and intervals.

One column is resampled at a time and only its intervals are kept, so memory does not grow with the number of columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from everlearn import wording
from everlearn.errors import RecipeError, RunError
from everlearn.evaluation.cell import Cell
from everlearn.evaluation.metrics import METRICS, Metric, metrics_of
from everlearn.evaluation.quantities import MEAN, Column, Derivation
from everlearn.evaluation.resampling import resample
from everlearn.evaluation.results import Results, RunFacts, Share, Spent, Summary
from everlearn.evaluation.score_table import Score, ScoreTable
from everlearn.evaluation.statistics import RESAMPLES, percentiles
from everlearn.evaluation.task import TASK_KINDS

BASE = "base"
Cells = Mapping[tuple[int, str], Cell]
ONE_FINE_TUNING = (
    "End tasks were fine-tuned with one seed: their intervals cover the choice of test examples, not the variation "
    "between fine-tunings."
)
"""Note of a run with one fine-tuning per cell. A table over several runs has other intervals and another note."""


def build_results(
    facts: RunFacts,
    domains: Sequence[str],
    general: Sequence[str] = (),
    losses: Cells | None = None,
    tasks: Cells | None = None,
    task_domains: Mapping[str, str | None] | None = None,
    alone: Mapping[str, Cell] | None = None,
    cost: Spent | None = None,
    mixture: Sequence[Share] = (),
    notes: Sequence[str] = (),
    resamples: int = RESAMPLES,
    labels: Sequence[str] | None = None,
    groups: Mapping[str, str] | None = None,
    leaked: Mapping[str, float] | None = None,
    effective: Mapping[str, Any] | None = None,
    unscored: Collection[str] = (),
) -> Results:
    """Build the results from the cells measured so far; unknown values are null or absent.

    The intervals are seeded by the run's seed and the column's name, so the same cells give the same results.

    Args:
        facts: facts of the run, such as its methods.
        domains: all domains of the stream, in order.
        general: names of the general sets.
        losses: (row, name of a domain or general set) → cell; row 0 is the base model, row i after domain i.
        tasks: (row, end task) → cell.
        task_domains: every end task and the domain that it belongs to, None for a general one.
        alone: domain → cell of the base model trained on that domain alone.
        cost: time and memory.
        mixture: requested and realised shares of the mixture.
        notes: sentences for the reader of the results.
        resamples: number of bootstrap resamples.
        labels: labels of the rows if these are existing models rather than the stages of a stream. Then `domains` is
            empty, every set is a general one, and nothing is learnt or forgotten.
        groups: domain → its group.
        leaked: set or end task → the share of it that was found in training text.
        effective: key of the recipe → the value in effect, where it depends on the model.
        unscored: domains without held-out text of their own, which no mean over domains waits for.

    Raises:
        RecipeError: a name is used twice or reserved, or an end task belongs to an unknown domain.
        RunError: cells of one column were measured on different data, or a cell belongs to no row or column.
    """
    losses, tasks, task_domains = losses or {}, tasks or {}, dict(task_domains or {})
    _check_names([*domains, *general], "domains")
    _check_names(list(task_domains), "end_tasks")
    stage_of = {name: index for index, name in enumerate(domains, start=1)}
    for task, domain in task_domains.items():
        if domain is not None and domain not in stage_of and labels is None:
            raise RecipeError(f"End task '{task}' belongs to domain '{domain}', which is not in `domains`.")
    rows = list(labels) if labels is not None else [BASE, *domains]
    for cells, columns in ((losses, [*domains, *general]), (tasks, list(task_domains))):
        _check_cells(cells, columns, rows, same=labels is None)

    text_stages = {name: stage_of.get(name) for name in [*domains, *general] if name not in unscored}
    task_stages = {name: stage_of.get(domain or "") for name, domain in task_domains.items()}
    matrices: dict[str, ScoreTable] = {}
    summary: dict[str, Summary] = {}
    for cells, stages, of in ((losses, text_stages, None), (tasks, task_stages, task_domains)):
        for name, (table, derived) in _tables(cells, stages, rows, of, facts.seed, resamples, labels is None).items():
            matrices[name], summary[name] = table, derived
    sentences = list(notes)
    tuned = [len(cell.seeds) for cell in tasks.values() if TASK_KINDS[cell.kind].fine_tunes]
    if tuned and max(tuned) == 1:
        sentences.append(ONE_FINE_TUNING)
    sentences += [*_task_notes(task_domains, tasks), *_undefined(tasks, rows), *_means(matrices)]
    return Results(
        **facts.model_dump(),
        domains=list(domains),
        general=list(general),
        groups=dict(groups or {}),
        leaked=dict(leaked or {}),
        effective=dict(effective or {}),
        matrices={name: matrices[name] for name in METRICS if name in matrices},
        summary={name: summary[name] for name in METRICS if name in summary},
        alone=_alone(matrices, alone or {}),
        cost=cost or Spent(),
        mixture=list(mixture),
        notes=sentences,
    )


def _task_notes(names: Iterable[str], cells: Cells) -> list[str]:
    notes = []
    for name in names:
        cell = next((cell for (_, task), cell in cells.items() if task == name), None)
        if cell is None or "classes" not in cell.facts:
            continue
        if cell.facts.get("f1") == "micro":
            notes.append(f"The table `f1` holds micro-F1 (equal to accuracy) for end task '{name}'.")
        ceiling = float(np.isin(cell["truth"], cell.facts["classes"]).mean())
        if ceiling < 1:
            notes.append(
                f"End task '{name}': {wording.percent(1 - ceiling, 2)} of the test examples have a label that no "
                "training example has and always count as wrong; its accuracy can be at most "
                f"{wording.percent(ceiling, 2)}."
            )
    return notes


def _undefined(cells: Cells, rows: Sequence[str]) -> list[str]:
    notes = []
    for (row, name), cell in sorted(cells.items(), key=lambda item: item[0]):
        own = [METRICS[each] for each in cell.facts.get("scores", ())]
        if missing := [each.title for each in own if each.applies(cell) and not np.isfinite(each.score(cell))]:
            notes.append(
                f"End task '{name}' at '{rows[row]}': all examples got the same answer, for which there is no "
                f"{' and no '.join(missing)}. The mean of the task's metrics counts them as 0."
            )
    return notes


def _means(tables: Mapping[str, ScoreTable]) -> list[str]:
    notes = []
    for table in (table for name, table in tables.items() if METRICS[name].averaged and len(table.columns) > 1):
        for row, scores in zip(table.rows, table.values, strict=True):
            if None not in scores:
                count = wording.count(len(scores), "end task")
                notes.append(f"{table.title} at '{row}', mean of {count}: {np.mean(scores):.4f}.")  # type: ignore[arg-type]
    return notes


def _check_names(names: list[str], key: str) -> None:
    if MEAN in names:
        raise RecipeError(f"The name '{MEAN}' is taken by the column of means: choose another one in `{key}`.")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RecipeError(f"The name '{twice[0]}' is used twice (`{key}`): every column of a table needs its own.")


def _check_cells(cells: Cells, columns: list[str], rows: list[str], same: bool) -> None:
    first: dict[str, tuple[int, Cell]] = {}
    for (row, name), cell in sorted(cells.items(), key=lambda item: item[0]):
        if name not in columns or not 0 <= row < len(rows):
            raise RunError(
                f"The evaluation holds a cell of '{name}' after {wording.count(row, 'domain')}, which "
                "this run does not have."
            )
        other_row, other = first.setdefault(name, (row, cell))
        if same and not cell.same_examples(other):
            raise RunError(
                f"'{name}' was measured on different data after {wording.count(row, 'domain')} than after "
                f"{other_row}: the scores cannot be "
                "compared. Remove the `evaluation/stage-*` folders and resume; they are measured again."
            )


def _tables(
    cells: Cells,
    stages: Mapping[str, int | None],
    rows: list[str],
    task_domains: dict[str, str | None] | None,
    seed: int,
    resamples: int,
    stream: bool,
) -> dict[str, tuple[ScoreTable, Summary]]:
    """Return every metric's scores and the quantities derived from them, processing one column at a time."""
    metrics = metrics_of(cells.values())
    last = max((row for row, _ in cells), default=0)
    scores: dict[str, list[tuple[int, int, Score]]] = {metric.name: [] for metric in metrics}
    derived = {
        metric.name: Derivation(last if stream else 0, metric.higher_is_better, metric.name) for metric in metrics
    }
    by_column: dict[str, dict[int, Cell]] = {}
    for (row, name), cell in sorted(cells.items(), key=lambda item: item[0]):
        by_column.setdefault(name, {})[row] = cell
    columns: dict[str, list[str]] = {metric.name: [] for metric in metrics}
    one_kind = len({cell.kind for cell in cells.values()}) == 1
    for place, (name, stage) in enumerate(stages.items()):
        measured = by_column.get(name, {})
        for metric in metrics:
            if any(metric.applies(cell) for cell in measured.values()) or (not measured and one_kind):
                columns[metric.name].append(name)
        for column, metric in _columns(name, stage, measured, metrics, (seed, name), resamples):
            low, high = percentiles(column.samples)
            for row, value, *ends in zip(column.rows, column.values, low, high, strict=True):
                if np.isfinite(value):
                    bottom, top = (float(end) if np.isfinite(end) else None for end in ends)
                    scores[metric.name].append((row, place, (rows[row], name, float(value), bottom, top)))
            derived[metric.name].add(column)
        if not measured and one_kind:  # without this column there is no mean over columns
            for derivation in derived.values():
                derivation.add(Column(name, stage, (), np.zeros(0), np.zeros((1, 0))))
    return {
        metric.name: (
            ScoreTable(
                title=metric.title,
                higher_is_better=metric.higher_is_better,
                unit=metric.unit,
                rows=rows[: last + 1],
                columns=columns[metric.name],
                task_domains=task_domains and {name: task_domains[name] for name in columns[metric.name]},
                cells=[score for _, _, score in sorted(scores[metric.name], key=lambda each: each[:2])],
            ),
            Summary.model_validate(derived[metric.name].summary()),
        )
        for metric in metrics
    }


def _columns(
    name: str,
    stage: int | None,
    measured: Mapping[int, Cell],
    metrics: Sequence[Metric],
    seed: object,
    resamples: int,
) -> Iterable[tuple[Column, Metric]]:
    """Yield one task's scores under each of its metrics; cells of different examples are resampled separately."""
    groups: list[dict[int, Cell]] = []
    for row, cell in measured.items():
        group = next((each for each in groups if next(iter(each.values())).same_examples(cell)), None)
        if group is None:
            groups.append({row: cell})
        else:
            group[row] = cell
    for group in groups:
        cells = list(group.values())
        own = [metric for metric in metrics if metric.applies(cells[0])]
        for key, resampled in resample(cells, own, seed=seed, resamples=resamples).items():
            yield Column(name, stage, tuple(group), resampled.values, resampled.samples), METRICS[key]


def _alone(tables: Iterable[str], cells: Mapping[str, Cell]) -> dict[str, dict[str, float]]:
    """Return, by metric and domain, the score of the model that was trained on that domain alone."""
    alone: dict[str, dict[str, float]] = {}
    for name in tables:
        for domain, cell in cells.items():
            if METRICS[name].applies(cell) and np.isfinite(score := METRICS[name].score(cell)):
                alone.setdefault(name, {})[domain] = float(score)
    return alone
