"""``everlearn resume``: complete an interrupted run."""

from __future__ import annotations

from typing import Annotated

import typer

from everlearn.cli.common import AsJson, Quiet, RunPath, learner_of, take_to_its_end


def command(
    run: RunPath,
    keys: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    *,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Continue an interrupted run where it stopped, with the same result as without the interruption."""
    from everlearn.errors import RunError
    from everlearn.wording import command as written

    if keys:
        longer = written("learn", run, "--more")
        raise RunError(
            f"`everlearn resume` continues a run with its own recipe, and takes no keys (got '{keys[0]}'). When it has "
            f"finished, `{longer} NAME train.max_steps=…` learns more of its domain NAME; other values are another run."
        )
    learner = learner_of(run, quiet)
    take_to_its_end(learner, learner.resume, quiet, as_json)
