"""``everlearn resume``: complete an interrupted run."""

from __future__ import annotations

from everlearn.cli.common import AsJson, Quiet, RunPath, learner_of, take_to_its_end


def command(run: RunPath, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Continue an interrupted run where it stopped, with the same result as without the interruption."""
    learner = learner_of(run, quiet)
    take_to_its_end(learner, learner.resume, quiet, as_json)
