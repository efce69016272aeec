"""One short run of a recipe, which the search may end early."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from everlearn import files
from everlearn.comparison.comparison import Side, side, worth_taking
from everlearn.config.recipe import Recipe, parse
from everlearn.errors import RunError, TrainingDiverged
from everlearn.evaluation.estimate import Estimate, mean
from everlearn.evaluation.quantities import MEAN
from everlearn.evaluation.results import Results
from everlearn.learner import ContinualLearner
from everlearn.run.folder import RunFolder
from everlearn.run.progress import Reporter

FEWEST = 10
"""Smallest number of steps of a domain in a pilot, unless the domain has fewer."""
METRICS = ("bits_per_byte", "loss")
"""Metrics by which trials are compared: the first one that was measured."""

State = Literal["running", "complete", "stopped", "failed"]


@dataclass
class Trial:
    """One point of a row's search space, with the measurements of its pilot.

    Attributes:
        row: name of the row.
        number: number in the row, from 0.
        learning_rate: the sampled learning rate.
        methods: the methods in recipe form, with the sampled options.
        drawn: option → sampled value.
        state: `running`; `complete`; `stopped` early; `failed` if its training diverged.
        scores: score after each domain; None if nothing was measured or it is not finite.
        learnt: gain right after each domain's stage, in bits per byte, averaged over the domains.
        forgotten: loss of this gain by the end, averaged over the earlier domains.
        gained: gain at the end, averaged over the domains, with its 95 % interval.
        drifts: general set → its general drift, with its 95 % interval.
        seconds: duration.
        why: why it failed.
    """

    row: str
    number: int
    learning_rate: float
    methods: list[dict[str, Any]]
    drawn: dict[str, Any]
    state: State = "running"
    scores: list[float | None] = field(default_factory=list)
    learnt: float | None = None
    forgotten: float | None = None
    gained: tuple[float | None, float | None, float | None] = (None, None, None)
    drifts: dict[str, tuple[float | None, float | None, float | None]] = field(default_factory=dict)
    seconds: float = 0.0
    why: str = ""

    @property
    def score(self) -> float:
        """The objective of the search: the last score; minus infinity if there is none."""
        last = self.scores[-1] if self.scores and self.state != "failed" else None
        return -math.inf if last is None else last

    @property
    def drift(self) -> Estimate:
        """General drift, averaged over the general sets."""
        return mean(Estimate(*each) for each in self.drifts.values())

    def side(self, tolerate: float) -> Side:
        """Return whether its general drift is within the tolerance."""
        return side((Estimate(*each) for each in self.drifts.values()), tolerate)

    def worth_taking(self, tolerate: float) -> bool | None:
        """Return whether a complete trial is worth taking, by the rule of reports; None if that is undecided."""
        return worth_taking(Estimate(*self.gained), self.side(tolerate))

    @property
    def name(self) -> str:
        """The name of its run."""
        return f"{self.row}-{self.number}"

    def save(self, path: Path) -> None:
        """Write the trial atomically."""
        files.write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> Trial:
        """Load a trial written by :meth:`save`.

        Raises:
            RunError: the file is damaged.
        """
        raw = files.read_json(path)
        try:
            drifts = {name: tuple(each) for name, each in raw["drifts"].items()}
            return cls(**{**raw, "gained": tuple(raw["gained"]), "drifts": drifts})
        except (TypeError, KeyError, AttributeError) as error:
            raise RunError(f"{path} is no trial of this search ({error}). Remove it; it is run again.") from None


def shortened(recipe: Recipe, share: float, steps: Mapping[str, int]) -> dict[str, Any]:
    """Return a recipe for pilots: fewer steps of each domain, only held-out text is evaluated, no stages are kept.

    Args:
        recipe: the user's recipe.
        share: share of the recipe's steps.
        steps: domain → its steps in the whole run.
    """
    raw = recipe.model_dump(mode="json")
    for domain in raw["domains"]:
        count = steps[domain["name"]]
        train = {key: value for key, value in domain["train"].items() if key != "num_train_epochs"}
        domain["train"] = {**_warmed(train, share), "max_steps": min(count, max(FEWEST, math.ceil(share * count)))}
    train = {key: value for key, value in raw["train"].items() if key not in ("num_train_epochs", "max_steps")}
    raw["train"] = {**_warmed(train, share), "save_strategy": "no"}
    raw["end_tasks"], raw["stop"] = [], None
    raw["evaluation"] |= {"columns": "seen", "samples": 0, "alone": False, "every": None, "tasks_every": None}
    raw["evaluation"] |= {"lm_eval": None, "chat": None}
    raw["run"]["keep_stages"] = "last"
    return raw


def with_rate(raw: Mapping[str, Any], rate: float, before: float) -> dict[str, Any]:
    """Return a recipe with another learning rate; a domain's own changes by the same factor.

    Args:
        raw: the recipe as plain data.
        rate: the learning rate.
        before: the recipe's learning rate.
    """
    domains = []
    for domain in raw["domains"]:
        own = domain.get("train") or {}
        if "learning_rate" in own:
            own = {**own, "learning_rate": float(f"{own['learning_rate'] * rate / before:.3g}")}
        domains.append({**domain, "train": own} if own else domain)
    return {**raw, "domains": domains, "train": {**raw.get("train", {}), "learning_rate": rate}}


def _warmed(train: Mapping[str, Any], share: float) -> dict[str, Any]:
    """Return training arguments with a warm-up in steps shortened by the same share as the stage."""
    steps = train.get("warmup_steps", 0)
    return {**train, "warmup_steps": math.ceil(share * steps)} if steps >= 1 else dict(train)


class Pilot(ContinualLearner):
    """A run that calls a function after each domain to decide whether to continue.

    Args:
        recipe: recipe of the run.
        ask: called with the index of a domain; returns whether to continue.
        reporter: receives progress messages.
    """

    def __init__(self, recipe: Recipe, ask: Callable[[Pilot, int], bool], reporter: Reporter | None = None) -> None:
        super().__init__(recipe, reporter=reporter)
        self._ask = ask

    def goes_on(self, index: int) -> bool:
        return index == len(self.recipe.domains) or self._ask(self, index)


def score_of(results: Results, tolerate: float) -> float | None:
    """Return the gain of the domains learnt so far minus the general drift beyond the tolerance, in bits per byte.

    It is None if no gain was measured or a number is not finite.
    """
    gained, drift = _mean(results, "gained").value, mean(_estimates(results, "general_drift").values()).value
    return None if gained is None else gained - max(0.0, (drift or 0.0) - tolerate)


def _estimates(results: Results, quantity: str) -> Mapping[str, Estimate]:
    """Return a quantity for each held-out set, by name, under the first metric of :data:`METRICS` that was measured."""
    summary = next((results.summary[metric] for metric in METRICS if metric in results.summary), None)
    estimates: Mapping[str, Estimate] = getattr(summary, quantity, {})
    return estimates


def _mean(results: Results, quantity: str) -> Estimate:
    return _estimates(results, quantity).get(MEAN, Estimate())


def run_pilot(
    raw: Mapping[str, Any], trial: Trial, place: Path, ask: Callable[[Trial], bool], reporter: Reporter, tolerate: float
) -> None:
    """Run the pilot of a trial in a folder with its name; an interrupted one is resumed.

    Args:
        raw: the recipe of pilots, with the trial's learning rate.
        trial: receives the measurements.
        place: folder of all pilots; the base model's scores are measured once in it.
        ask: called with the trial after each domain but the last; returns whether to continue.
        reporter: receives progress messages.
        tolerate: bits per byte that general text may lose.
    """
    folder, base = RunFolder(place / trial.name), RunFolder(place / "base")
    begun, before = time.monotonic(), trial.seconds
    run = {**raw["run"], "name": trial.name, "folder": str(folder.path)}
    recipe = parse({**raw, "method": trial.methods, "run": run})

    def goes_on(pilot: Pilot, index: int) -> bool:
        if index < len(trial.scores):  # before it was killed
            return True
        if index > len(trial.scores):
            trial.scores.append(score_of(pilot.measured(), tolerate))
        trial.seconds = before + time.monotonic() - begun
        return ask(trial)

    pilot = Pilot(recipe, goes_on, reporter)
    if not folder.recipe_file.is_file():
        pilot.check()
        folder.create(recipe)
    if base.row(0).is_dir():
        folder.take_base_scores(base)
    try:
        results: Results = pilot.resume()
    except TrainingDiverged as error:
        trial.state, trial.why = "failed", str(error)
    else:
        if not base.row(0).is_dir():
            base.take_base_scores(folder)
        _conclude(trial, results, len(recipe.domains), tolerate)
    trial.seconds = before + time.monotonic() - begun


def _conclude(trial: Trial, results: Results, domains: int, tolerate: float) -> None:
    """Store the measurements and the final state of a pilot in its trial."""
    gained = _mean(results, "gained")
    trial.learnt, trial.forgotten = (_mean(results, key).value for key in ("learnt", "forgotten"))
    trial.gained = (gained.value, gained.low, gained.high)
    trial.drifts = {
        name: (each.value, each.low, each.high)
        for name, each in _estimates(results, "general_drift").items()
        if each.value is not None
    }
    if results.status != "finished":
        trial.state = "stopped"
        return
    score = score_of(results, tolerate)
    known = [*trial.scores, *[None] * domains][: domains - 1]
    trial.scores, trial.state = [*known, score], "complete"
    if score is None:
        trial.state, trial.why = "failed", "A score of the last model is not finite."


def best(trials: Sequence[Trial], tolerate: float) -> Trial | None:
    """Return the complete trial with the highest score (the first of equal ones), or None.

    One that is worth taking, or may be, comes before all that are not.
    """
    order = (False, None, True)
    complete = [trial for trial in trials if trial.state == "complete"]
    return max(complete, key=lambda each: (order.index(each.worth_taking(tolerate)), each.score), default=None)


def scores_of(trials: Sequence[Trial]) -> list[float]:
    """Return the scores of a row; a trial that was stopped or that failed counts as the worst complete one."""
    complete = [trial.score for trial in trials if trial.state == "complete"]
    return complete + [min(complete)] * (len(trials) - len(complete)) if complete else []


def expected_best(scores: Sequence[float]) -> list[float]:
    """Return the expected score of the best of 1, 2, … n trials that are sampled from these n with replacement.

    With the scores in ascending order the best of k is the i-th with probability (i/n)^k − ((i−1)/n)^k (Dodge et al.
    2019, arXiv 1909.03004, eq. 3). So rows with different numbers of trials can be compared at k trials.
    """
    ordered, n = sorted(scores), len(scores)
    return [
        sum(score * ((i / n) ** k - ((i - 1) / n) ** k) for i, score in enumerate(ordered, 1)) for k in range(1, n + 1)
    ]
