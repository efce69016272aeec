"""Which trial to take, and how good the best of so many trials is expected to be."""

from __future__ import annotations

from collections.abc import Sequence

from everlearn.tuning.pilot import Trial


def best(trials: Sequence[Trial]) -> Trial | None:
    """Return the complete trial with the highest score; of equal ones the first. None where none is complete."""
    complete = [trial for trial in trials if trial.state == "complete"]
    return max(complete, key=lambda trial: trial.score, default=None)


def scores_of(trials: Sequence[Trial]) -> list[float]:
    """Return the scores of a row; a trial that was stopped or that failed counts as the worst complete one."""
    complete = [trial.score for trial in trials if trial.state == "complete"]
    return complete + [min(complete)] * (len(trials) - len(complete)) if complete else []


def expected_best(scores: Sequence[float]) -> list[float]:
    """Return the expected score of the best of 1, 2, … n trials that are drawn from these n, with replacement.

    With the scores in ascending order the best of k is the i-th with probability (i/n)^k − ((i−1)/n)^k (Dodge et al.
    2019, arXiv 1909.03004, eq. 3). A row of which more was tried has no advantage at k trials.
    """
    ordered, n = sorted(scores), len(scores)
    return [
        sum(score * ((i / n) ** k - ((i - 1) / n) ** k) for i, score in enumerate(ordered, 1)) for k in range(1, n + 1)
    ]
