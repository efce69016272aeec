"""Score models on the straight line between the weights of two stages."""

from __future__ import annotations

from dataclasses import asdict

from everlearn.diagnostics.checkpoint_distance import pair_of
from everlearn.diagnostics.interpolation import merged_back
from everlearn.diagnostics.pages import of_going_back
from everlearn.diagnostics.registry import Blocks, Findings, Since, Until, analysis
from everlearn.learner import ContinualLearner


@analysis("line")
def line(learner: ContinualLearner, blocks: Blocks = 64, since: Since = None, until: Until = None) -> Findings:
    """Show what returns on the line between two stages: the weights interpolated back to the earlier one.

    Both are measured on held-out text, `--from` an earlier stage (by default the one before) `--to` a later one.
    """
    going_back = merged_back(learner, pair_of(learner, since, until), blocks)
    return Findings([of_going_back(going_back)], {"going_back": [asdict(going_back)]})
