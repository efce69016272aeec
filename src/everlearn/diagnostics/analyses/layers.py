"""Restore one layer at a time to the weights of an earlier stage, and score the model again."""

from __future__ import annotations

from dataclasses import asdict

from everlearn.diagnostics.checkpoint_distance import pair_of
from everlearn.diagnostics.interpolation import restored
from everlearn.diagnostics.pages import of_going_back
from everlearn.diagnostics.registry import Blocks, Findings, Since, Until, analysis
from everlearn.learner import ContinualLearner


@analysis("layers")
def layers(learner: ContinualLearner, blocks: Blocks = 64, since: Since = None, until: Until = None) -> Findings:
    """Show what returns when one layer at a time is restored to an earlier stage, and what is lost.

    Both are measured on held-out text, `--from` an earlier stage (by default the one before) `--to` a later one.
    """
    going_back = restored(learner, pair_of(learner, since, until), blocks)
    return Findings([of_going_back(going_back)], {"going_back": [asdict(going_back)]})
