"""``everlearn resume``: take an interrupted run to its end."""

from __future__ import annotations

from everlearn.cli.common import RunPath, learner_of, take_to_its_end


def command(run: RunPath) -> None:
    """Continue an interrupted run where it stopped, with the same result as if it had not."""
    learner = learner_of(run)
    take_to_its_end(learner, learner.resume)
