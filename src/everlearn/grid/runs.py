"""Where the runs of a grid are made: recipes of one template, learners, and the base model's scores, measured once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everlearn.config.overrides import put
from everlearn.config.recipe import Recipe, parse
from everlearn.data.blocks import hash_of
from everlearn.errors import RunError
from everlearn.evaluation.results import Results
from everlearn.grid.template import GridSettings, GridTemplate
from everlearn.learner import ContinualLearner
from everlearn.methods.sequential import PLAIN
from everlearn.run.folder import RunFolder
from everlearn.run.progress import Advance, Logged, Reporter

WAIT = 2.0
"""Seconds between looks at a lock that another process holds."""


@dataclass(frozen=True)
class Job:
    """What is trained for a cell: domains in an order, with a seed; None where that makes no difference."""

    order: int | None
    seed: int | None
    domains: tuple[str, ...]
    methods: tuple[dict[str, Any], ...]
    """As a recipe has them."""
    changes: Mapping[str, Any]
    """Other keys of the recipe, dotted, that are not as in the other cells."""

    @property
    def base_changes(self) -> dict[str, Any]:
        """Those of the changes that the scores of the base model depend on."""
        return without_training(self.changes)


def without_training(changes: Mapping[str, Any]) -> dict[str, Any]:
    """What is changed of a recipe besides how its model is trained."""
    return {key: value for key, value in changes.items() if key.split(".")[0] not in ("train", "optimizer", "method")}


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
    def activity(self, text: str, total: int | None) -> Iterator[Advance]:
        """The other's, with the cell's name."""
        with self.other.activity(f"{self.cell}: {text}", total) as done:
            yield done

    def log(self, at: Logged) -> None:
        """The other's, with the cell's name."""
        self.other.log(replace(at, domain=f"{self.cell}: {at.domain}"))

    def left(self, seconds: float | None) -> None:
        """The other's."""
        self.other.left(seconds)


class RunFactory:
    """Makes runs of one template.

    Args:
        template: domains, orders and recipes.
        settings: what all runs share.
        runs: folder of the runs.
        data: folder of the template's data; None where the template finds it itself.
        reporter: who is told what is going on.
    """

    def __init__(
        self,
        template: GridTemplate,
        settings: GridSettings,
        runs: Path,
        data: Path | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        self.template, self.settings, self.data = template, settings, data
        self.runs = runs.resolve()
        self.reporter = Once(reporter or Reporter())
        self.first = template.first
        self._bases: dict[Path, RunFolder] = {}

    def recipe(self, job: Job, folder: Path, domains: Sequence[str] | None = None) -> Recipe:
        """A run of the template in a folder.

        Args:
            job: what is trained.
            folder: of the run.
            domains: fewer than those of the job.
        """
        raw = self.template.recipe(
            domains or job.domains,
            settings=self.settings,
            data=self.data,
            method=job.methods,
            seed=job.seed or 0,
            name=f"{folder.parent.name}-{folder.name}".removesuffix("-run"),
            folder=folder,
        )
        for key, value in job.changes.items():
            group, *inside = key.split(".")
            # What is changed of a domain or a task that this run does not have makes no difference to it.
            if group not in ("domains", "end_tasks") or inside[0] in ("*", *(item["name"] for item in raw[group])):
                put(raw, key, value)
        return parse(raw)

    def finish(self, job: Job, recipe: Recipe) -> ContinualLearner:
        """The learner of a run, after taking it to its end."""
        learner = self._learner(recipe)
        results = learner.folder.results_file
        if not results.is_file() or Results.load(results).status != "finished":
            self.share_base(job, learner.folder)
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

    def plain(self, changes: Mapping[str, Any] | None = None) -> Job:
        """Plain training in the first order."""
        return Job(None, None, self.first, ({"name": PLAIN},), changes or {})

    def shared(self, job: Job, name: str) -> Path:
        """A folder that all cells share whose base model is read and measured alike."""
        same = job.base_changes
        return self.runs / (f"{name}-{hash_of(*sorted(same.items()))[:8]}" if same else name)

    def base(self, job: Job) -> RunFolder:
        """A run folder with the scores of the base model, measured once for all cells."""
        place = self.shared(job, "base")
        if place not in self._bases:
            self.reporter.cell = "base"
            with self.waiting_for(place, "measures the base model"):
                learner = self._learner(self.recipe(self.plain(job.base_changes), place / "run"))
                learner.scorer().score(0)
                self._bases[place] = learner.folder
        return self._bases[place]

    def share_base(self, job: Job, folder: RunFolder) -> None:
        """Give a run the base model's scores and the held-out blocks: they depend on neither order, seed nor method."""
        folder.take_base_scores(self.base(job))

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
