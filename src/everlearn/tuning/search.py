"""The search: trials of every row at the same points of their search spaces, resumable at any time."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everlearn import files
from everlearn.config.recipe import Recipe, parse
from everlearn.errors import Interrupted, RecipeError, RunError
from everlearn.grid import RecipeTemplate
from everlearn.grid.identity import identity
from everlearn.grid.runs import Once
from everlearn.learner import ContinualLearner
from everlearn.run.folder import RunFolder
from everlearn.run.progress import Reporter
from everlearn.tuning.pilot import Trial, best, run_pilot, shortened, with_rate
from everlearn.tuning.space import Candidate, rate_of, rows_of
from everlearn.wording import duration

SEED = 0
"""Seed of the sampled points, which are the same for all rows and all searches."""
NEVER_STOPPED = 4
"""Smallest number of complete trials of a row before a trial may be stopped."""
HOPELESS = 0.25
"""A trial is stopped if it is worse than this share of its row's complete trials after the same domain. Successive
halving would favour high learning rates, since forgetting and general drift grow with each domain."""
DIMENSIONS = 8
"""Smallest number of dimensions of the sampled points, so that they are the same in all searches."""
_FACTS = "search.json"


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        recipe: the user's recipe.
        rows: plain training first.
        trials: by row, in the order of their draws.
        share: share of the recipe's steps that pilots take.
        tolerate: bits per byte that general text may lose.
        trial_count: requested number of trials of each row.
    """

    recipe: Recipe
    rows: Sequence[Candidate]
    trials: Mapping[str, Sequence[Trial]]
    share: float
    tolerate: float
    trial_count: int

    @property
    def every(self) -> list[Trial]:
        """Return all trials."""
        return [trial for trials in self.trials.values() for trial in trials]

    @property
    def chosen(self) -> Trial | None:
        """The trial to take."""
        return best(self.every, self.tolerate)

    def row(self, trial: Trial) -> Candidate:
        """Return the row of a trial."""
        return next(row for row in self.rows if row.name == trial.row)


class Tuner:
    """Runs the pilots of one recipe.

    Args:
        recipe: the user's recipe.
        methods: rows beside plain training, as `everlearn sweep` reads them; None for the recipe's own.
        trials: number of trials of each row.
        share: share of the recipe's steps that a pilot takes.
        place: folder of the search: one file per trial, and the current runs.
        reporter: receives progress messages.

    Raises:
        RecipeError: an argument or the recipe is wrong.
        RunError: the folder holds another search.
    """

    def __init__(
        self,
        recipe: Recipe,
        place: Path,
        methods: str | None = None,
        trials: int = 8,
        share: float = 0.25,
        reporter: Reporter | None = None,
    ) -> None:
        if not 0 < share <= 1:
            raise RecipeError(f"`--share` is {share:g}; it is a share of the recipe's steps: above 0, at most 1.")
        self.recipe, self.place, self.count, self.share = recipe, place, trials, share
        self.rows = rows_of(recipe, methods)
        self.tolerate = recipe.report.tolerate
        self.reporter = Once(reporter or Reporter())

    def run(self, minutes: float | None = None) -> SearchResult:
        """Run the missing trials, in rounds with one trial of each row.

        Args:
            minutes: time of the trials in all calls, after which no further round starts.

        Raises:
            EverlearnError: the recipe cannot be run.
            Interrupted: the search was stopped; the same call continues it.
        """
        self.place.mkdir(parents=True, exist_ok=True)
        try:
            with RunFolder(self.place).lock():
                self._run(minutes)
        except (Interrupted, KeyboardInterrupt):
            raise Interrupted(
                f"Stopped. Finished trials are in {self.place}, and the interrupted one continues from its last save: "
                "give the same command again."
            ) from None
        return self.result()

    def _run(self, minutes: float | None) -> None:
        points = drawn(self.count, max(DIMENSIONS, *(len(row.draws) for row in self.rows)))
        pilots = self._pilots()
        self._open()
        for number in range(self.count):
            spent = sum(trial.seconds for trials in self._known().values() for trial in trials)
            if minutes is not None and number > 0 and spent >= 60 * minutes:
                self.reporter.say(f"{minutes:g} minutes are over after {number} of {self.count} trials of each row.")
                break
            for row in self.rows:
                self._advance(row, number, points[number], pilots)

    def _say_rest(self) -> None:
        """Show the time left of the search, estimated from the finished trials; a run's own is that of its trial."""
        if known := [trial for trials in self._known().values() for trial in trials]:
            missing = self.count * len(self.rows) - len(known)
            seconds = missing * sum(trial.seconds for trial in known) / len(known)
            self.reporter.say(f"{self.reporter.cell}: search ~{duration(max(1.0, seconds))} left")

    def result(self) -> SearchResult:
        """Return the results so far, without incomplete rounds."""
        known = self._known()
        rounds = min(len(trials) for trials in known.values())
        return SearchResult(
            self.recipe,
            self.rows,
            {name: trials[:rounds] for name, trials in known.items()},
            self.share,
            self.tolerate,
            self.count,
        )

    def _known(self) -> dict[str, list[Trial]]:
        """Return the finished trials of each row, in their order."""
        return {row.name: list(self._finished(row)) for row in self.rows}

    def _finished(self, row: Candidate) -> Iterator[Trial]:
        for number in range(self.count):
            path = self._file(row, number)
            if not path.is_file() or (trial := Trial.load(path)).state == "running":
                return
            yield trial

    def _advance(self, row: Candidate, number: int, point: Sequence[float], pilots: Mapping[str, Any]) -> None:
        """Run one trial, unless it is finished."""
        path = self._file(row, number)
        trial = Trial.load(path) if path.is_file() else Trial(row.name, number, *row.at(point))
        if trial.state == "running":
            self.reporter.cell = f"{row.title} {number + 1}/{self.count}"
            self._say_rest()
            raw = with_rate(pilots, trial.learning_rate, rate_of(self.recipe))

            def goes_on(trial: Trial) -> bool:
                trial.save(path)
                return row.plain or not self._hopeless(row, trial)

            run_pilot(raw, trial, self.place / "runs", goes_on, self.reporter, self.tolerate)
            trial.save(path)
        shutil.rmtree(self.place / "runs" / trial.name, ignore_errors=True)

    def _hopeless(self, row: Candidate, trial: Trial) -> bool:
        """Return whether a trial is worse than the worst quarter after its last domain; before the second none is."""
        step, score = len(trial.scores), trial.scores[-1]
        known = [
            other.scores[step - 1]
            for other in self._finished(row)
            if other.number < trial.number and other.state == "complete"
        ]
        others = sorted(each for each in known if each is not None)
        if step < 2 or score is None or len(others) < NEVER_STOPPED:
            return False
        return score < others[math.ceil(HOPELESS * len(others)) - 1]

    def _file(self, row: Candidate, number: int) -> Path:
        return self.place / "trials" / f"{row.name}-{number}.json"

    def _pilots(self) -> dict[str, Any]:
        """Check the recipe, and return that of its pilots."""
        if all(domain.validation is None for domain in self.recipe.domains):
            raise RecipeError("No domain has held-out text (`domains.*.validation`), by which trials are compared.")
        # Its own run folder may hold a run: the pilots are elsewhere.
        run = self.recipe.run.model_dump(mode="json") | {"folder": str(self.place / "runs" / "recipe")}
        learner = ContinualLearner(self.recipe.changed(run=run), reporter=self.reporter)
        learner.check()
        steps = {domain.name: learner.steps(domain.name) for domain in self.recipe.domains}
        raw = shortened(self.recipe, self.share, steps)
        parse(raw)
        return raw

    def _open(self) -> None:
        """Refuse the folder of another search, and record the identity of this one."""
        facts: dict[str, Any] = {
            "recipe": identity(RecipeTemplate(self.recipe, ""), self.recipe),
            "share": self.share,
            "tolerate": self.tolerate,
            "seed": self.recipe.run.seed,
            "rows": {row.name: [list(row.methods), [str(draw) for draw in row.draws]] for row in self.rows},
        }
        path, facts = self.place / _FACTS, json.loads(json.dumps(facts))  # as it is read again
        known = files.read_json(path) if path.is_file() else facts
        if differing := [key for key in facts if known.get(key) != facts[key]]:
            raise RunError(
                f"{self.place} holds a search that differs in {', '.join(differing)}. Name another folder "
                "(`--results`), or remove this one."
            )
        files.write_json(path, facts)


def drawn(count: int, dimensions: int) -> list[list[float]]:
    """Draw points of the unit cube by Optuna's quasi-random sampler; more points begin with fewer."""
    optuna = _optuna()
    sampler = optuna.samplers.QMCSampler(scramble=True, seed=SEED)
    study, cube = optuna.create_study(sampler=sampler), optuna.distributions.FloatDistribution(0, 1)
    points = []
    for _ in range(count):
        trial = study.ask({f"{place}": cube for place in range(dimensions)})
        points.append([min(trial.params[f"{place}"], 1 - 1e-9) for place in range(dimensions)])
        study.tell(trial, 0.0)
    return points


def _optuna() -> Any:
    """Import Optuna without its log messages."""
    try:
        import optuna
    except ImportError:
        raise RecipeError("A search needs Optuna, which is not installed: pip install 'everlearn[tune]'.") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna
