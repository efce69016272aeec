"""Judge claims about methods from the cells of a grid: difference, interval, p-value and verdict of each comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from everlearn.comparison.pairs import Rows, Unit, aligned, over_orders, unit_of
from everlearn.comparison.runs import Run
from everlearn.evaluation.estimate import Estimate
from everlearn.grid.numbers import parts as grid_parts
from everlearn_bench.claims.crossed_effects import CrossedMean, crossed_mean, holm, mean_of_these
from everlearn_bench.suites.claims import TRANSFER, Claim, ClaimQuestion, Number
from everlearn_bench.transfer_study.claim_numbers import transfer

SIGNIFICANT = 0.05
RUNS = 3
"""No verdict rests on fewer: with two, the noise of runs can find a difference in one of six cases without any."""
Sampled = Callable[[Rows], CrossedMean]
"""How the mean of differences is computed, by what is treated as a sample."""
Verdict = Literal["holds here", "does not hold here", "not decidable at this size", "not measured yet"]
HOLDS: Verdict = "holds here"
FAILS: Verdict = "does not hold here"
OPEN: Verdict = "not decidable at this size"
MISSING: Verdict = "not measured yet"


@dataclass(frozen=True)
class Finding:
    """The answer to a question.

    Attributes:
        question: the question.
        verdict: whether the claim was confirmed.
        difference: the mean over runs and tasks, in the unit of the number; of the number itself where a question
            has no other entry. Without an interval where there is one run.
        sides: means of the entry and of the other, over the paired runs.
        p_value: two-sided, of the true mean being the question's bar (for equality, its nearer margin).
        adjusted: the same after Holm's correction over the claim's comparisons.
        runs: order and seed of the pairs.
        tasks: end tasks, or domains.
    """

    question: ClaimQuestion
    verdict: Verdict = MISSING
    difference: Estimate = field(default_factory=Estimate)
    sides: tuple[float, ...] = ()
    p_value: float | None = None
    adjusted: float | None = None
    runs: tuple[Unit, ...] = ()
    tasks: int = 0


@dataclass(frozen=True)
class Judged:
    """A claim with its findings and its own verdict."""

    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """Return the verdict over the published comparisons.

        The claim holds if all of them hold, and fails if one is contradicted after correction for their number.
        """
        counted = [finding for finding in self.findings if finding.question.published]
        against = [finding.adjusted for finding in counted if finding.verdict == FAILS and finding.adjusted is not None]
        if any(p < SIGNIFICANT for p in against):
            return FAILS
        if any(finding.verdict == MISSING for finding in counted):
            return MISSING
        return HOLDS if all(finding.verdict == HOLDS for finding in counted) else OPEN


def parts(run: Run, number: Number) -> dict[str, float]:
    """Return the values that a number is the mean of, by end task or domain; empty if the run lacks it."""
    if number in TRANSFER:
        return transfer(run, number)
    if number == "drift":
        drift = grid_parts(run, "bits_drift")
        return {run.domains[-1]: float(np.mean(list(drift.values())))} if drift else {}
    return grid_parts(run, number)


def tasks_and_runs(rows: Rows) -> CrossedMean:
    """Return the mean with both tasks and runs as samples: for a verdict on tasks in general."""
    return crossed_mean(list(rows.values()))


SAMPLED: dict[str, Sampled] = {"tasks in general": tasks_and_runs, "these tasks": mean_of_these}
"""Scope of a verdict → how the mean is computed; every page has the first one."""


def ask(cells: Sequence[Run], question: ClaimQuestion, sampled: Sampled = tasks_and_runs) -> Finding:
    """Answer a question, without the correction for others."""
    ours, other_rows = _rows(cells, question.entry, question.number, question.orders), None
    if question.other is not None:
        other_rows = _rows(cells, question.other, question.number, question.other_orders)
        ours, other_rows = aligned(ours, other_rows)
    if not ours:
        return Finding(question)
    if other_rows is None:
        differences, sides = ours, [_mean(ours)]
    else:
        differences = {
            unit: {task: a - other_rows[unit][task] for task, a in row.items()} for unit, row in ours.items()
        }
        sides = [_mean(ours), _mean(other_rows)]
    resampled = sampled(differences)
    interval = resampled.interval()
    if question.relation == "within" and not any(sides):
        interval = None  # two that solve nothing are alike in nothing else
    bar = question.bar
    if question.relation == "within" and resampled.value < 0:
        bar = -bar  # the nearer margin
    return Finding(
        question,
        verdict=verdict(question, interval, len(differences)),
        difference=Estimate(resampled.value, *(interval or ())),
        sides=tuple(sides),
        p_value=None if interval is None else resampled.p_value(bar),
        runs=tuple(sorted(differences, key=str)),
        tasks=len({task for row in differences.values() for task in row}),
    )


def verdict(question: ClaimQuestion, interval: tuple[float, float] | None, runs: int) -> Verdict:
    """Apply the rule, fixed before anything was measured: on which side of the bar the whole interval lies.

    An end that touches the bar decides nothing, and neither do fewer than `RUNS` runs.
    """
    if interval is None or runs < RUNS:
        return OPEN
    low, high = interval
    bar = question.bar
    if question.relation == "above":
        yes, no = low > bar, high < bar
    elif question.relation == "below":
        yes, no = high < bar, low > bar
    else:
        yes, no = -bar < low and high < bar, low > bar or high < -bar
    return HOLDS if yes else FAILS if no else OPEN


def judge(cells: Sequence[Run], claims: Sequence[Claim], sampled: Sampled = tasks_and_runs) -> list[Judged]:
    """Judge claims from the available cells."""
    judged = []
    for claim in claims:
        findings = [ask(cells, question, sampled) for question in claim.questions]
        tested = [finding.p_value for finding in findings if finding.p_value is not None]
        adjusted = iter(holm(tested))
        findings = [each if each.p_value is None else replace(each, adjusted=next(adjusted)) for each in findings]
        judged.append(Judged(claim, tuple(findings)))
    return judged


def _rows(cells: Sequence[Run], entry: str, number: Number, orders: tuple[int, ...] | None) -> Rows:
    own = [cell for cell in cells if cell.grid.row == entry]
    chosen = [cell for cell in own if orders is None or cell.grid.order in (*orders, None)]
    rows = {unit_of(cell): row for cell in chosen if (row := parts(cell, number))}
    return rows if orders is None else over_orders(rows)


def _mean(rows: Rows) -> float:
    return float(np.mean([value for row in rows.values() for value in row.values()]))
