"""Where the runs of a grid are made: recipes of one suite, learners, and the base model's scores, measured once."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from everlearn import files
from everlearn.config.recipe import Recipe, parse
from everlearn.errors import RunError
from everlearn.evaluation.results import Results
from everlearn.learner import ContinualLearner
from everlearn.methods.sequential import PLAIN
from everlearn.run.folder import RunFolder
from everlearn.run.progress import Advance, Reporter
from everlearn.suites import Settings, Suite

WAIT = 2.0
"""Seconds between looks at a lock that another process holds."""


@dataclass(frozen=True)
class Job:
    """What is trained for a cell: domains in an order, with a seed; None where that makes no difference."""

    order: int | None
    seed: int | None
    domains: tuple[str, ...]
    spec: dict[str, Any]
    """The method, as a recipe has it."""


class Once(Reporter):
    """Says a sentence once, however many cells say it, and names the cell that an activity belongs to."""

    def __init__(self, other: Reporter) -> None:
        self.other, self.cell, self.said = other, "", set[str]()

    def say(self, text: str) -> None:
        """Say it unless it was said."""
        if text not in self.said:
            self.said.add(text)
            self.other.say(text)

    @contextlib.contextmanager
    def activity(self, text: str, total: int) -> Iterator[Advance]:
        """The other's, with the cell's name."""
        with self.other.activity(f"{self.cell}: {text}", total) as done:
            yield done


class Workbench:
    """Makes runs of one suite.

    Args:
        suite: domains, orders and recipes.
        settings: what all runs share.
        runs: folder of the runs.
        data: folder of the suite's data; None where the suite finds it itself.
        reporter: who is told what is going on.
    """

    def __init__(
        self, suite: Suite, settings: Settings, runs: Path, data: Path | None = None, reporter: Reporter | None = None
    ) -> None:
        self.suite, self.settings, self.data = suite, settings, data
        self.runs = runs.resolve()
        self.reporter = Once(reporter or Reporter())
        self.first = tuple(suite.orders[min(suite.orders)])

    def recipe(self, order: Sequence[str], spec: dict[str, Any], seed: int, folder: Path) -> Recipe:
        """A run of the suite in a folder."""
        name = f"{folder.parent.name}-{folder.name}".removesuffix("-run")
        return parse(
            self.suite.recipe(
                order, settings=self.settings, data=self.data, method=spec, seed=seed, name=name, folder=folder
            )
        )

    def finish(self, recipe: Recipe) -> ContinualLearner:
        """The learner of a run, after taking it to its end."""
        learner = self._learner(recipe)
        results = learner.folder.results_file
        if not results.is_file() or Results.load(results).status != "finished":
            self.share_base(learner.folder)
            learner.resume()
        return learner

    def _learner(self, recipe: Recipe) -> ContinualLearner:
        folder = RunFolder(recipe.folder())
        if folder.recipe_file.is_file():
            mine, wanted = (each.model_dump(exclude={"run": {"folder", "notes"}}) for each in (folder.recipe(), recipe))
            if mine != wanted:
                key = next(key for key in wanted if mine[key] != wanted[key])
                raise RunError(
                    f"{folder.path} holds a run of other settings (`{key}`). Remove it, or use another `--runs`."
                )
            return ContinualLearner.open(folder.path, reporter=self.reporter)
        learner = ContinualLearner(recipe, reporter=self.reporter)
        learner.check()
        learner.folder.create(recipe)
        return learner

    # -- the base model ---------------------------------------------------------------------------------------

    @cached_property
    def base(self) -> RunFolder:
        """A run folder with the scores of the base model, measured once for all cells."""
        place, self.reporter.cell = self.runs / "base", "base"
        with self.waiting_for(place, "measures the base model"):
            learner = self._learner(self.recipe(self.first, {"name": PLAIN}, 0, place / "run"))
            learner.scorer().score(0)
            return learner.folder

    def share_base(self, folder: RunFolder) -> None:
        """Give a run the base model's scores and the held-out blocks: they depend on neither order, seed nor method."""
        for part in (self.base.row(0), self.base.sets):
            for file in filter(Path.is_file, part.rglob("*")):
                place = folder.path / file.relative_to(self.base.path)
                if not file.name.startswith(("_", files.PARTIAL)) and not place.is_file():
                    place.parent.mkdir(parents=True, exist_ok=True)
                    partial = place.with_name(f"{files.PARTIAL}{place.name}")
                    shutil.copyfile(file, partial)
                    partial.replace(place)

    @contextlib.contextmanager
    def waiting_for(self, place: Path, work: str) -> Iterator[None]:
        """Hold the lock of a folder, after waiting for another process that does the `work`."""
        place.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            told = False
            while True:
                try:
                    stack.enter_context(RunFolder(place).lock())
                    break
                except RunError:
                    if not told:
                        self.reporter.say(f"Waiting for another process, which {work}.")
                    told = True
                    time.sleep(WAIT)
            yield
