"""Count the work that a run still has to do, by kind, for the forecast of its time; update it at each logged step."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

from everlearn.errors import EverlearnError
from everlearn.evaluation import alone_path, make_task, set_path, task_path
from everlearn.methods.base import Stage
from everlearn.methods.cost import FORWARD
from everlearn.run.forecast import AROUND, PASSES, ROWS, SAMPLES, SETS
from everlearn.run.measurement_plan import held_out_names, sets_inside, tasks_inside, wanted_sets, wanted_tasks
from everlearn.run.open_run import OpenRun
from everlearn.run.progress import Logged
from everlearn.run.trainer import ADDED
from everlearn.tasks.samples import samples_path


def look_ahead(run: OpenRun) -> None:
    """Set the remaining work of a run's forecast, and the expected cost of a unit of each kind.

    Only the corpora of unfinished stages are read; for finished stages the stage folders are enough.
    """
    run.forecast.ahead = work = _stages(run) + _cells(run)
    run.forecast.weights = {
        ROWS: 1 + sum(cost.passes_per_step for cost in run.costs()),
        PASSES: 1.0,
        SETS: FORWARD * run.recipe.evaluation.blocks,
        SAMPLES: FORWARD * run.recipe.evaluation.samples,
        **{task.name: _weight(run, task.name) for task in run.recipe.tasks if work[task.name]},
    }


def declared_passes(run: OpenRun, index: int) -> int:
    """Return the rows that the methods declare to process outside of the training steps of domain `index`."""
    domain, first = run.recipe.domains[index - 1].name, run.recipe.domains[0].name
    trained = run.steps(domain) * run.rows_per_step(run.arguments(domain))
    rows = sum(cost.outside(_size(run, domain), trained=trained, earlier=index - 1) for cost in run.costs())
    if index == 1 and any(cost.passes_once for cost in run.costs()):
        general = run.recipe.general.name if run.recipe.general is not None else first
        rows += sum(cost.outside_once(_size(run, first), _size(run, general)) for cost in run.costs())
    return rows


def _size(run: OpenRun, name: str) -> int | None:
    """Return the number of rows of a text; None if it is unknown or the text can no longer be read."""
    try:
        return run.prepared(name).train.size
    except EverlearnError:
        return None


def _stages(run: OpenRun) -> Counter[str]:
    """Count the rows of unfinished stages, and the scores during these stages."""
    recipe, evaluation = run.recipe, run.recipe.evaluation
    missing = [
        index for index, domain in enumerate(recipe.domains, 1) if not run.folder.stage(index, domain.name).is_dir()
    ]
    alone = [
        domain.name
        for domain in recipe.domains
        if evaluation.alone and domain.held_out and not run.folder.alone(domain.name).stage(1, domain.name).is_dir()
    ]
    work = Counter({AROUND: len(missing) + len(alone), PASSES: sum(declared_passes(run, index) for index in missing)})
    for name in [*(recipe.domains[index - 1].name for index in missing), *alone]:
        work[ROWS] += run.steps(name) * run.rows_per_step(run.arguments(name))
    for index in missing:
        steps = run.steps(recipe.domains[index - 1].name)
        if (every := recipe.scored_every) is not None:
            work[SETS] += len(sets_inside(recipe, index)) * math.ceil(steps / every)
        if evaluation.tasks_every is not None:
            for task in tasks_inside(recipe):
                work[task.name] += (steps - 1) // evaluation.tasks_every
    return work


def _cells(run: OpenRun) -> Counter[str]:
    """Count the missing cells of the score matrix."""
    recipe, cells = run.recipe, run.folder.path / "evaluation"
    work: Counter[str] = Counter()
    for row in range(len(recipe.domains) + 1):
        names = wanted_sets(recipe, row)
        work[SETS] += sum(not set_path(cells, row, name).is_file() for name in names)
        if recipe.evaluation.samples:
            work[SAMPLES] += sum(not samples_path(cells, row, name).is_file() for name in names)
        for task in wanted_tasks(recipe, row):
            work[task.name] += not task_path(cells, row, task.name).is_file()
    if recipe.evaluation.alone:
        domains = {domain.name for domain in recipe.domains}
        work[SETS] += sum(not alone_path(cells, name).is_file() for name in held_out_names(recipe) if name in domains)
    return work


def _weight(run: OpenRun, name: str) -> float:
    """Return the cost of an end task in rows of forward and backward passes; 0 if its files are gone."""
    try:
        config = next(task for task in run.recipe.tasks if task.name == name)
        work = make_task(config).work(run.recipe.evaluation.end_task_seeds)
    except EverlearnError:
        return 0.0
    return FORWARD * work.forward_tokens / run.setting().block_size


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
