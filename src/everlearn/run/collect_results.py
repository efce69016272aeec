"""Build the results of a run from its folder: measured cells, cost of the stages, shares of the mixture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import everlearn.tasks  # noqa: F401  # registers the kinds and their metrics
from everlearn import files
from everlearn.config.recipe import Recipe
from everlearn.data.blocks import hash_of
from everlearn.errors import RunError
from everlearn.evaluation import (
    Cell,
    MethodUsed,
    Results,
    RunFacts,
    Share,
    Spent,
    StageCost,
    alone_path,
    build_results,
    set_path,
    task_path,
)
from everlearn.evaluation.build import BASE
from everlearn.evaluation.cell import ALONE
from everlearn.evaluation.results import StageFacts, StageWork, Took, read
from everlearn.run.folder import TIME, RunFolder
from everlearn.run.measurement_plan import held_out_names, wanted_sets, wanted_tasks
from everlearn.run.outweighing_losses import outweighing_losses
from everlearn.version import __version__


class Outcome:
    """Collect the measurements of a run so far.

    Args:
        recipe: the recipe of the run.
        folder: the run's folder.
    """

    def __init__(self, recipe: Recipe, folder: RunFolder) -> None:
        self.recipe, self.folder = recipe, folder
        self.cells = folder.path / "evaluation"
        self.domains = [domain.name for domain in recipe.domains]
        self.rows = [BASE, *self.domains]

    def results(self, objective: str, notes: Sequence[str], effective: Mapping[str, Any] | None = None) -> Results:
        """Build the results from the cells measured so far.

        Args:
            objective: name of the run's objective.
            notes: sentences for the reader of the results.
            effective: key of the recipe → value in effect, for defaults that depend on the model.
        """
        names, tasks = held_out_names(self.recipe), {task.name: task.domain for task in self.recipe.tasks}
        facts = [read(StageFacts, path) for path in self._stages() if path.is_file()]
        model, methods = self.recipe.model, self.recipe.methods()
        of_stages = dict.fromkeys(note for fact in facts for note in fact.notes)
        return build_results(
            RunFacts(
                run=self.recipe.run.name,
                methods=[
                    MethodUsed(
                        name=method.label,
                        title=method.title,
                        paper=method.paper,
                        options=method.config.model_dump(mode="json"),
                        as_saved=method.tested_as_saved,
                    )
                    for method in methods
                ],
                status="finished" if len(facts) == len(self.domains) else "running",
                objective=objective,
                # The model's path on this machine is in recipe.yaml; results are shared, so only its name is given.
                model=_called(model.path) if model.path else f"random {(model.config or {})['model_type']}",
                seed=self.recipe.run.seed,
            ),
            self.domains,
            [name for name in names if name not in self.domains],
            self._known(names, set_path),
            self._known(tasks, task_path),
            tasks,
            {name: Cell.load(path) for name in names if (path := alone_path(self.cells, name)).is_file()},
            self._spent(facts),
            [
                Share(stage=fact.index, domain=fact.domain, **share.model_dump())
                for fact in facts
                for share in fact.mixture
            ],
            list(dict.fromkeys([*notes, *of_stages, *outweighing_losses(self.folder.metrics(), methods)])),
            groups={domain.name: domain.group for domain in self.recipe.domains if domain.group},
            leaked=self.folder.leaked(),
            unscored=[domain.name for domain in self.recipe.domains if not domain.held_out],
            effective=effective,
        )

    def is_current(self) -> bool:
        """Return whether every stage and cell is there and the results were built from their present state.

        Cells of a stage whose weights were removed are not expected: a domain added later cannot be evaluated on it.
        """
        expected = [
            path
            for row in range(len(self.rows))
            if row == 0 or not self.folder.without_weights(row, self.rows[row])
            for path in (
                *(set_path(self.cells, row, name) for name in wanted_sets(self.recipe, row)),
                *(task_path(self.cells, row, task.name) for task in wanted_tasks(self.recipe, row)),
            )
        ]
        alone = [alone_path(self.cells, name) for name in held_out_names(self.recipe) if name in self.domains]
        expected += alone if self.recipe.evaluation.alone else []
        results = (self.folder.results_file, self.folder.card_file, self.folder.report_file, self._mark)
        if (
            not all(path.is_file() for path in (*expected, *results))
            or files.fault(self.folder.results_file) is not None
        ):
            return False
        try:
            return bool(files.read_json(self._mark) == {"of": self.mark()})
        except RunError:  # damaged: build the results again
            return False

    def mark(self) -> str:
        """Return a hash of the files from which the results are built: their paths, sizes and times."""
        cells = [path for path in self.cells.rglob("*") if path.is_file() and path not in (self._mark,)]
        state = [
            (path.relative_to(self.folder.path).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
            for path in sorted([*cells, *(path for path in self._stages() if path.is_file())])
        ]
        return hash_of(__version__, self.recipe.to_yaml(), state)

    def set_mark(self) -> None:
        """Save the hash of the files from which the results were built."""
        files.write_json(self._mark, {"of": self.mark()})

    @property
    def _mark(self) -> Path:
        return self.cells / "_made_of.json"

    def _stages(self) -> list[Path]:
        return [self.folder.stage(index, name) / "stage.json" for index, name in enumerate(self.domains, 1)]

    def _known(self, names: Iterable[str], place: Any) -> dict[tuple[int, str], Cell]:
        all_names, cells = list(names), {}
        for row in range(len(self.rows)):
            for name in all_names:
                path = place(self.cells, row, name)
                if path.is_file():
                    cells[row, name] = Cell.load(path)
        return cells

    def _spent(self, facts: list[StageFacts]) -> Spent:
        stages = [
            StageCost(
                **fact.model_dump(include={*StageWork.model_fields}),
                tokens_per_second=fact.tokens / max(fact.training_seconds, 1e-9),
            )
            for fact in facts
        ]
        times = [self.folder.row(row) / TIME for row in range(len(self.rows))]
        times.append(self.cells / ALONE / TIME)
        evaluation = sum(read(Took, path).seconds for path in times if path.is_file())
        training, tokens = sum(stage.seconds for stage in stages), sum(stage.tokens for stage in stages)
        return Spent(
            seconds=training + evaluation,
            training_seconds=training,
            evaluation_seconds=evaluation,
            tokens=tokens,
            tokens_per_second=tokens / max(sum(fact.training_seconds for fact in facts), 1e-9),
            peak_memory_bytes=max((fact.peak_memory_bytes for fact in facts), default=0),
            stages=stages,
        )


def _called(model: str) -> str:
    """Return a hub id unchanged, and ``./`` with the folder's name for an absolute path.

    No hub id can begin with ``./``.
    """
    path = Path(model).expanduser()
    return f"./{path.name}" if path.is_absolute() else model
