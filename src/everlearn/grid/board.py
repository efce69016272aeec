"""Collect the scores of an arrangement in which domains are not learnt one after another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from everlearn.config.recipe import Recipe
from everlearn.evaluation import METRICS, Cell, Results, ScoreTable
from everlearn.evaluation.metrics import metrics_of
from everlearn.evaluation.score_table import Score


class Board:
    """The score tables of an arrangement.

    Args:
        rows: labels of its rows, the base model's first.
        recipe: the recipe of all domains, which names the domain of each end task.
        learnt: the row after which every domain has just been learnt; None if there is no such row.
    """

    def __init__(self, rows: Sequence[str], recipe: Recipe, learnt: str | None = None) -> None:
        self.rows, self.learnt = list(rows), learnt
        self.domains = [domain.name for domain in recipe.domains]
        self.tasks = {task.name: task.domain for task in recipe.tasks}
        self.scores: dict[str, dict[tuple[str, str], list[Score]]] = {}
        self.of_tasks: set[str] = set()

    def take(self, row: str, results: Results, at: int, general: bool = True) -> None:
        """Take a row of a run's scores; a general column that several runs have is their mean.

        Args:
            row: label of the row.
            results: the run's results.
            at: the number of its row.
            general: whether to take text and tasks that belong to no domain.
        """
        for metric, table in results.matrices.items():
            of_tasks = table.task_domains is not None
            for label, column, value, low, high in table.cells:
                if label == table.rows[at] and (general or self._domain(column, of_tasks) is not None):
                    self._add(metric, (row, column, value, low, high), of_tasks)

    def measured(self, row: str, cell: Cell, task: bool = False) -> None:
        """Add a cell of a held-out text or of an end task, under every metric that it has."""
        for metric in metrics_of([cell]):
            if np.isfinite(score := metric.score(cell)):
                self._add(metric.name, (row, cell.task, float(score), None, None), task)

    def _add(self, metric: str, score: Score, of_tasks: bool) -> None:
        self.scores.setdefault(metric, {}).setdefault(score[:2], []).append(score)
        if of_tasks:
            self.of_tasks.add(metric)

    def _domain(self, column: str, of_tasks: bool) -> str | None:
        return self.tasks.get(column) if of_tasks else column if column in self.domains else None

    def results(self, of: Results) -> Results:
        """Return the results of a run with these domains and scores in place of its own."""
        tables = {metric: self._table(metric) for metric in self.scores}
        return of.model_copy(
            update={"domains": self.domains, "matrices": tables, "summary": {}, "alone": {}, "mixture": []}
        )

    def _table(self, metric: str) -> ScoreTable:
        scores, known, of_tasks = self.scores[metric], METRICS[metric], metric in self.of_tasks
        columns = list(dict.fromkeys(column for _, column in scores))
        domains = {column: self._domain(column, of_tasks) for column in columns}
        return ScoreTable(
            title=known.title,
            higher_is_better=known.higher_is_better,
            unit=known.unit,
            rows=self.rows,
            columns=columns,
            task_domains=domains if of_tasks else None,
            learnt_at={column: self.learnt for column, domain in domains.items() if domain is not None},
            cells=[_mean(scores[row, column]) for row in self.rows for column in columns if (row, column) in scores],
        )


def _mean(scores: Sequence[Score]) -> Score:
    """Return the only score, or the mean of several, without an interval."""
    if len(scores) == 1:
        return scores[0]
    row, column = scores[0][:2]
    return row, column, float(np.mean([score[2] for score in scores])), None, None
