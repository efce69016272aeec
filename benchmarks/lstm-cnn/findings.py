"""What the cells of `everlearn bench lstm-cnn` say about the study's findings. Nothing here trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from everlearn.comparison.runs import Run
from everlearn.evaluation import Column, summarise
from everlearn.evaluation.metrics import STANDARDISED
from everlearn_bench.claims.crossed_effects import CrossedMean, mean_of_these
from everlearn_bench.claims.judge import FAILS, HOLDS, MISSING, OPEN, RUNS, Verdict
from everlearn_bench.suites import find_suite

Cell = Mapping[str, Any]
NUMBERS = ("share_forgotten", "share_forgotten_per_step", "share_forgotten_clipped", "share_forgotten_clipped_per_step")
"""Both conventions, over all later steps and for each."""
JUDGED = (NUMBERS[0], NUMBERS[2])
CLEARLY = 0.05
"""Of accuracy, above the most frequent label: less is not counted as learnt."""


class Comparison(NamedTuple):
    """Two groups of cells, of which the first should forget less; they are paired by what else they are."""

    less: Mapping[str, str]
    more: Mapping[str, str]


TUNED = {"embeddings": "tuned"}
FINDINGS = {
    "A CNN forgets less than an LSTM": Comparison({"base": "cnn-max", **TUNED}, {"base": "lstm", **TUNED}),
    "… because of max-pooling (against the mean)": Comparison(
        {"base": "cnn-max", **TUNED}, {"base": "cnn-mean", **TUNED}
    ),
    "… because of max-pooling (against none)": Comparison({"base": "cnn-max", **TUNED}, {"base": "cnn-last", **TUNED}),
    "The hard task last forgets less": Comparison({"order": "hard-last"}, {"order": "hard-first"}),
    "Frozen embeddings forget less": Comparison({"embeddings": "frozen"}, TUNED),
}
"""What the study says, each with what is compared for it."""


def cell_of(run: Run) -> Cell:
    """What is judged of a cell: what it is, its tasks, how often their most frequent labels are right, accuracies."""
    scores, tasks = run.matrices["accuracy"].scores, run.domains
    names = {number: name for name, number in find_suite("lstm-cnn").order_names.items()}
    return {
        "base": run.grid.row.removesuffix("-frozen"),
        "embeddings": "frozen" if run.grid.row.endswith("-frozen") else "tuned",
        "order": names[run.grid.order or 0],
        "seed": run.grid.seed,
        "tasks": list(tasks),
        "often": [max(run.grid.shares[task]) for task in tasks],
        "accuracy": [[scores[row, task].value for task in tasks[:row]] for row in range(1, len(tasks) + 1)],
    }


def standardised(cell: Cell, tasks: Mapping[str, Mapping[str, float]]) -> np.ndarray:
    """(m − majority) / (state of the art − majority) of task j after i tasks, [T, T]; NaN where it was not asked."""
    scores = np.full((len(cell["tasks"]),) * 2, np.nan)
    for row, accuracies in enumerate(cell["accuracy"]):
        for place, value in enumerate(accuracies):
            known = tasks[cell["tasks"][place]]
            scores[row, place] = (value - known["majority"]) / (known["state_of_the_art"] - known["majority"])
    return scores


def forgotten(cell: Cell, tasks: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The study's numbers, as every run of everlearn has them (:mod:`everlearn.evaluation.quantities`)."""
    scores = standardised(cell, tasks)
    last = len(scores)
    columns = [
        Column(name, stage, tuple(range(1, last + 1)), scores[:, stage - 1], np.zeros((1, last)))
        for stage, name in enumerate(cell["tasks"], 1)
    ]
    summary = summarise(columns, last, True, STANDARDISED)
    return {number: float(summary[number]["mean"].value) for number in NUMBERS}


def unlearnt(cell: Cell) -> list[str]:
    """The tasks that were answered, right after their stage, hardly better than always by their most frequent label."""
    own = [row[-1] for row in cell["accuracy"]]
    return [n for n, m, often in zip(cell["tasks"], own, cell["often"], strict=True) if m < often + CLEARLY]


def paired(
    cells: Iterable[Cell], comparison: Comparison, value: Callable[[Cell], float]
) -> dict[tuple[str, int], float]:
    """less − more of the cells that differ in nothing else: what they share, and the seed → the difference.

    What was not learnt cannot be forgotten: cells with a task that was not are left out.
    """
    sides: list[dict[tuple[str, int], float]] = []
    listed = [cell for cell in cells if not unlearnt(cell)]
    for side in (comparison.less, comparison.more):
        own = [cell for cell in listed if all(cell[key] == value_of for key, value_of in side.items())]
        sides.append({(_rest(cell, side), cell["seed"]): value(cell) for cell in own})
    less, more = sides
    return {unit: less[unit] - more[unit] for unit in less if unit in more}


def _rest(cell: Cell, side: Mapping[str, str]) -> str:
    return ", ".join(cell[key] for key in ("base", "embeddings", "order") if key not in side)


def mean(differences: Mapping[tuple[str, int], float]) -> CrossedMean:
    """Their mean where seeds are the only sample: bases and orders are the ones that are meant."""
    groups = {group: number for number, group in enumerate(sorted({group for group, _ in differences}))}
    return mean_of_these({(groups[group], seed): {"": value} for (group, seed), value in differences.items()})


def verdict(differences: Mapping[tuple[str, int], float]) -> Verdict:
    """Which side of 0 the whole 95 % interval lies on; of fewer than three seeds nothing follows."""
    if not differences:
        return MISSING
    interval = mean(differences).interval()
    if interval is None or len({seed for _, seed in differences}) < RUNS:
        return OPEN
    low, high = interval
    return HOLDS if high < 0 else FAILS if low > 0 else OPEN


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Of a finding: that of both conventions, where they agree."""
    distinct = set(verdicts)
    return MISSING if MISSING in distinct else distinct.pop() if len(distinct) == 1 else OPEN
