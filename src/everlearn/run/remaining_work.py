"""Count the work that a run still has to do, by kind, for the forecast of its time."""

from __future__ import annotations

import math
from collections import Counter

from everlearn.errors import EverlearnError
from everlearn.evaluation import alone_path, make_task, set_path, task_path
from everlearn.methods.cost import FORWARD
from everlearn.run.forecast import AROUND, PASSES, ROWS, SAMPLES, SETS
from everlearn.run.measurement_plan import held_out_names, sets_inside, tasks_inside, wanted_sets, wanted_tasks
from everlearn.run.open_run import OpenRun
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
