"""The kinds of tasks and their metrics are known wherever scores are read, in an order that does not move."""

from __future__ import annotations

import pytest

import everlearn.tasks  # noqa: F401
import prepared
from everlearn.evaluation.metrics import METRICS


@pytest.mark.parametrize(
    "module", ["everlearn.comparison.shared_examples", "everlearn.run.collect_results", "everlearn.config.recipe"]
)
def test_who_reads_scores_knows_every_kind(module: str) -> None:
    """The registries fill when `everlearn.tasks` is imported, which `everlearn.evaluation` cannot do."""
    code = (
        f"import {module}\n"
        "from everlearn.evaluation.metrics import METRICS\n"
        "from everlearn.evaluation.task import KINDS\n"
        "assert {'rouge_l', 'normalised', 'codelength', 'chats', 'pass_at_1'} <= set(METRICS), list(METRICS)\n"
        "assert {'text', 'choice', 'big-bench', 'lm_eval', 'code', 'samples'} <= set(KINDS), list(KINDS)\n"
    )
    done = prepared.run(code)
    assert done.returncode == 0, done.stderr


def test_the_score_that_a_task_prefers_leads() -> None:
    """Of the metrics that a cell has the first one leads: a task of BIG-bench shows its normalised score."""
    order = list(METRICS)
    assert order.index("normalised") < order.index("multiple_choice_grade") < order.index("exact_match")
    assert (
        order.index("choice_accuracy") < order.index("exact_match") < order.index("token_f1") < order.index("rouge_l")
    )
