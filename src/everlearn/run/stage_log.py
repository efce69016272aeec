"""Handle the logging steps of a stage: write ``metrics.jsonl``, update the forecast, report progress."""

from __future__ import annotations

import time
from typing import Any

from everlearn.methods.base import Stage
from everlearn.run.forecast import ROWS
from everlearn.run.open_run import OpenRun
from everlearn.run.progress import Logged
from everlearn.run.trainer import ADDED


class StageLog:
    """Handle each logged line of one stage, in the process that writes.

    Args:
        run: the run of the stage.
        stage: the stage in training.
        step: number of steps done before; above 0 for a resumed stage.
    """

    def __init__(self, run: OpenRun, stage: Stage, step: int) -> None:
        self.run, self.stage = run, stage
        self._step, self._time, self._measured = step, time.monotonic(), run.forecast.measured
        run.forecast.took(ROWS, step * stage.rows_per_step, None)

    def __call__(self, line: dict[str, Any]) -> None:
        """Write the line, update the forecast by the time that its steps took, and report it."""
        self.run.folder.log(line)
        stage, forecast, step, now = self.stage, self.run.forecast, line["step"], time.monotonic()
        # Scoring and methods' passes between the steps are counted as kinds of their own.
        elsewhere = forecast.measured - self._measured
        forecast.took(ROWS, (step - self._step) * stage.rows_per_step, max(0.0, now - self._time - elsewhere))
        self._step, self._time, self._measured = step, now, forecast.measured
        self.run.reporter.log(
            Logged(
                domain=stage.domain,
                stage=stage.index,
                stages=len(self.run.recipe.domains),
                step=step,
                steps=stage.steps,
                loss=line["loss"],
                added=line.get(ADDED),
                learning_rate=line.get("learning_rate"),
                tokens_per_second=line.get("tokens_per_second"),
                stage_left=forecast.seconds({ROWS: (stage.steps - step) * stage.rows_per_step}),
                run_left=forecast.left(),
            )
        )
