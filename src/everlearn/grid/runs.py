"""Make the runs of a grid: recipes of one template, learners, and the base model's scores, which are measured once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everlearn import files
from everlearn.config.overrides import put
from everlearn.config.recipe import Recipe, parse
from everlearn.data.blocks import hash_of
from everlearn.errors import RunError, RunInUse
from everlearn.evaluation.results import Results
from everlearn.grid.template import GridTemplate
from everlearn.learner import ContinualLearner
from everlearn.methods.sequential import PLAIN
from everlearn.run.folder import RunFolder
from everlearn.run.progress import Advance, Logged, Reporter

WAIT = 2.0
"""Seconds between attempts to get a lock that another process holds."""


@dataclass(frozen=True)
class Job:
    """The training of a cell: methods on domains in an order, with a seed.

    Order and seed are None if they make no difference.
    """

    order: int | None
    seed: int | None
    domains: tuple[str, ...]
    methods: tuple[dict[str, Any], ...]
    """Methods, in the form of a recipe."""
    changes: Mapping[str, Any]
    """Dotted keys of the recipe that differ from other cells."""

    @property
    def base_changes(self) -> dict[str, Any]:
        """Return the changes on which the scores of the base model depend."""
        return without_training(self.changes)


def without_training(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of a recipe that do not concern the training."""
    return {key: value for key, value in changes.items() if key.split(".")[0] not in ("train", "optimizer", "method")}


class Once(Reporter):
    """Show each message only once, and the name of the cell before each phase."""

    def __init__(self, other: Reporter) -> None:
        self.other, self.cell, self.shown = other, "", set[str]()

    def say(self, text: str) -> None:
        """Show a message unless it was shown before."""
        if text not in self.shown:
            self.shown.add(text)
            self.other.say(text)

    @contextlib.contextmanager
    def activity(self, text: str, total: int | None) -> Iterator[Advance]:
        """Show a phase with the name of the cell."""
        with self.other.activity(f"{self.cell}: {text}" if self.cell else text, total) as done:
            yield done

    def log(self, at: Logged) -> None:
        """Show a logging step with the name of the cell."""
        self.other.log(replace(at, domain=f"{self.cell}: {at.domain}"))

    def left(self, seconds: float | None) -> None:
        """Show the time left."""
        self.other.left(seconds)


class RunFactory:
    """Make runs of one template.

    Args:
        template: domains, orders and recipes.
        runs: folder of the runs.
        reporter: shows progress; None for no output.
    """

    def __init__(self, template: GridTemplate, runs: Path, reporter: Reporter | None = None) -> None:
        self.template, self.settings = template, template.settings
        self.runs = runs.resolve()
        self.reporter = Once(reporter or Reporter())
        self.first = template.first
        self._bases: dict[Path, RunFolder] = {}

    def recipe(self, job: Job, folder: Path, domains: Sequence[str] | None = None) -> Recipe:
        """Return the recipe of a run in a folder.

        Args:
            job: the training.
            folder: folder of the run.
            domains: some of the job's domains; None for all.
        """
        raw = self.template.recipe(
            domains or job.domains,
            method=job.methods,
            seed=job.seed or 0,
            name=f"{folder.parent.name}-{folder.name}".removesuffix("-run"),
            folder=folder,
        )
        for key, value in job.changes.items():
            group, *inside = key.split(".")
            # Changes of domains or tasks that this run does not have are skipped.
            if group not in ("domains", "end_tasks") or inside[0] in ("*", *(item["name"] for item in raw[group])):
                put(raw, key, value)
        return parse(raw)

    def finish(self, job: Job, recipe: Recipe) -> ContinualLearner:
        """Run a recipe to its end and return its learner."""
        learner = self.begun(recipe)
        results = learner.folder.results_file
        if not results.is_file() or Results.load(results).status != "finished":
            self.share_base(job, learner.folder)
            learner.resume()
        return learner

    def begun(self, recipe: Recipe) -> ContinualLearner:
        """Return the learner of a recipe, whose folder exists from here on.

        Raises:
            RunError: the folder holds a run of other settings.
        """
        folder = RunFolder(recipe.folder())
        if folder.recipe_file.is_file():
            saved, current = (
                each.model_dump(exclude={"run": {"folder", "notes"}}) for each in (folder.recipe(), recipe)
            )
            if saved != current:
                key = next(key for key in current if saved[key] != current[key])
                raise RunError(
                    f"{folder.path} holds a run of other settings (`{key}`). Remove it, or use another `--runs`."
                )
            return ContinualLearner.open(folder.path, reporter=self.reporter)
        learner = ContinualLearner(recipe, reporter=self.reporter)
        learner.check()
        learner.folder.create(recipe)
        return learner

    # -- the base model ---------------------------------------------------------------------------------------

    def plain(self, changes: Mapping[str, Any] | None = None) -> Job:
        """Return the job of plain training in the first order."""
        return Job(None, None, self.first, ({"name": PLAIN},), changes or {})

    def shared(self, job: Job, name: str) -> Path:
        """Return a folder that is shared by all cells with the same base model and the same evaluation of it."""
        same = job.base_changes
        return self.runs / (f"{name}-{hash_of(*sorted(same.items()))[:8]}" if same else name)

    def base(self, job: Job) -> RunFolder:
        """Return a run folder with the scores of the base model, measured once for all cells."""
        place = self.shared(job, "base")
        if place not in self._bases:
            self.reporter.cell = "base"
            with self.waiting_for(place, "measures the base model"):
                files.remove_leftovers(place)
                learner = self.begun(self.recipe(self.plain(job.base_changes), place / "run"))
                learner.scorer().score(0)
                self._bases[place] = learner.folder
        return self._bases[place]

    def share_base(self, job: Job, folder: RunFolder) -> None:
        """Copy the base model's scores and the held-out blocks to a run.

        They depend on neither order, seed nor method.
        """
        folder.take_base_scores(self.base(job))

    @contextlib.contextmanager
    def waiting_for(self, place: Path, work: str) -> Iterator[None]:
        """Hold the lock of a folder, after waiting for another process that does the `work`."""
        place.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            announced = False
            while True:
                try:
                    stack.enter_context(RunFolder(place).lock())
                    break
                except RunInUse:
                    if not announced:
                        self.reporter.say(f"Waiting for another process, which {work}.")
                    announced = True
                    time.sleep(WAIT)
            yield
