"""How much work a run still has ahead, by kind, for its forecast."""

from __future__ import annotations

from collections import Counter

from everlearn.evaluation import alone_path, set_path, task_path
from everlearn.run.forecast import AROUND, ROWS, SETS
from everlearn.run.open_run import OpenRun
from everlearn.run.wanted import held_out_names, wanted_sets, wanted_tasks


def work_ahead(run: OpenRun) -> Counter[str]:
    """What is missing of a run: rows of unfinished stages, and cells that are not there.

    Only the corpora of unfinished stages are looked at; of old ones only the finished stages need be there.
    """
    recipe, cells = run.recipe, run.folder.path / "evaluation"
    places = [(domain, run.folder.stage(index, domain.name)) for index, domain in enumerate(recipe.domains, 1)]
    if recipe.evaluation.alone:
        alone = [(domain, run.folder.alone(domain.name)) for domain in recipe.domains]
        places += [(domain, folder.stage(1, domain.name)) for domain, folder in alone]
    missing = [domain.name for domain, place in places if not place.is_dir()]
    work = Counter({AROUND: len(missing)})
    for name in missing:
        work[ROWS] += run.steps(name) * run.rows_per_step(run.arguments(name))
    for row in range(len(recipe.domains) + 1):
        work[SETS] += sum(not set_path(cells, row, name).is_file() for name in wanted_sets(recipe, row))
        for task in wanted_tasks(recipe, row):
            work[task.name] += not task_path(cells, row, task.name).is_file()
    if recipe.evaluation.alone:
        work[SETS] += sum(
            not alone_path(cells, name).is_file()
            for name in held_out_names(recipe)
            if name in {domain.name for domain in recipe.domains}
        )
    return work
