"""Decide where a domain ends (`stop`): at its best step within the bounds on what the model forgets.

After a bound is passed, the domain is trained again from the checkpoint of its best step, with the memory that the
methods had there, as if a killed run were resumed. So a run that is killed at any moment ends with the same weights (on
a GPU with ``train.full_determinism``).
A protected Trainer (:mod:`everlearn.protecting.stopping`) is judged and continued in the same way.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from everlearn import files
from everlearn.config.recipe import Recipe
from everlearn.errors import RunError
from everlearn.evaluation import METRICS, Cell, set_path
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.resampling import resample
from everlearn.evaluation.statistics import percentiles
from everlearn.run import notification
from everlearn.run.checkpoint import checkpoints, step_of
from everlearn.run.folder import RunFolder

STATE = "stop.json"
"""File beside the checkpoints of a domain in training."""
LOWERED, TIMES = 0.5, 3
"""`then: lower` multiplies the learning rate by the first number, at most this number of times."""
MEASURE = "bits_per_byte"
Then = Literal["end", "lower", "warn"]
Notify = str | tuple[str, ...]


@dataclass
class Decisions:
    """What was decided so far; written to a file after each decision.

    Attributes:
        best: the steps that were the best so far when they were measured, each with its score (None without held-out
            text of the domain), and the tokens and seconds spent by then.
        lowered: number of times that the learning rate was lowered.
        end: the step with whose weights the domain ends; None while it is trained.
        tokens: tokens of steps that were taken back.
        seconds: their time.
        notes: events, one sentence each.
    """

    best: list[dict[str, Any]] = field(default_factory=list)
    lowered: int = 0
    end: int | None = None
    tokens: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ForgettingBound:
    """How much worse a held-out text may get.

    Attributes:
        reference: the cell of the text under the model that it is compared with.
        most: the bits per byte that are allowed.
        key: the key of the recipe that allows them.
        since: the model that it is compared with, in words, such as "under the base model".
    """

    reference: Cell
    most: float
    key: str
    since: str


@dataclass(frozen=True)
class Passed:
    """A bound that was passed.

    Attributes:
        name: the held-out text.
        worse: bits per byte that it got worse, with its 95 % interval.
        bound: the bound.
    """

    name: str
    worse: Estimate
    bound: ForgettingBound

    def __str__(self) -> str:
        between = self.worse.interval
        error = f" ({between[0]:+.4f} to {between[1]:+.4f})" if between else ""
        return (
            f"'{self.name}' is predicted {self.worse.value:.4f}{error} bits per byte worse than {self.bound.since}, "
            f"more than `{self.bound.key}` allows ({self.bound.most:g})"
        )


class ForgettingGuard:
    """Judge the scores inside one domain, and say where its training begins and ends.

    Args:
        domain: name of the domain.
        folder: folder of its checkpoints, where the decisions are written too.
        bounds: name of a held-out text → its bound.
        own: name of the held-out text of the domain, if it has one.
        then: what happens when a bound is passed.
        notify: a webhook or a command that is told of it.
        run: name of the run, for `notify`.
        writes: whether this process writes; all processes decide the same.
    """

    def __init__(
        self,
        domain: str,
        folder: Path,
        bounds: Mapping[str, ForgettingBound],
        *,
        own: str,
        then: Then = "end",
        notify: Notify | None = None,
        run: str = "",
        writes: bool = True,
    ) -> None:
        self.domain = domain
        self._folder, self._bounds, self._own = folder, bounds, own
        self._then, self._notify, self._run, self._writes = then, notify, run, writes
        self.state = _read(folder / STATE)
        self.spent: Callable[[], tuple[int, float]] = lambda: (0, 0.0)
        """Returns the tokens and seconds of the training so far."""
        self.taken_back = False
        """Whether the training that ended just now must begin again, from the best step."""

    @classmethod
    def of_run(cls, recipe: Recipe, folder: RunFolder, index: int, writes: bool) -> ForgettingGuard:
        """Return the guard of a domain of a run whose recipe has `stop`; domains are numbered from 1."""
        assert recipe.stop is not None
        domain = recipe.domains[index - 1]
        return cls(
            domain.name,
            folder.training(index, domain.name),
            dict(_bounds(recipe, folder, index)),
            own=domain.learns,
            then=recipe.stop.then,
            notify=recipe.stop.notify,
            run=folder.path.name,
            writes=writes,
        )

    # -- where the training begins ----------------------------------------------------------------------------

    def begins(self, latest: Path | None) -> Path | None:
        """Return the checkpoint to begin with: of the step at which the domain ends if that is decided, or the last."""
        if self.state.end is not None:
            latest = self._checkpoint(self.state.end) if self.state.end else None
        done = 0 if latest is None else step_of(latest)
        # Killed between a measurement and its checkpoint: it will be measured again.
        self.state.best = [each for each in self.state.best if each["step"] <= done]
        return latest

    @property
    def end(self) -> int | None:
        """The step whose weights the domain keeps; None while that is undecided."""
        return self.state.end

    def callback(self) -> TrainerCallback:
        """Return the callback that lowers the learning rate."""
        return _LowerRate(LOWERED**self.state.lowered)

    def kept(self) -> int | None:
        """Return the step whose checkpoint must be kept."""
        return self._best_step() or None

    def facts(self, facts: Mapping[str, Any], planned: int) -> dict[str, Any]:
        """Return the facts of the finished domain, with the discarded steps and the events.

        Args:
            facts: facts of the training up to the last step that was kept.
            planned: steps that the domain would have had.
        """
        spent = {"tokens": facts["tokens"] + self.state.tokens}
        spent |= {key: round(facts[key] + self.state.seconds, 3) for key in ("seconds", "training_seconds")}
        return {**facts, **spent, "planned_steps": planned, "notes": [*facts["notes"], *self.state.notes]}

    # -- the decision -----------------------------------------------------------------------------------------

    def decide(
        self,
        state: TrainerState,
        control: TrainerControl,
        cells: Mapping[str, Cell],
        say: Callable[[str], None],
        ended: bool = False,
    ) -> None:
        """Judge the scores after a step, and tell the Trainer whether to save and whether to stop.

        Args:
            state: state of the Trainer.
            control: what the Trainer does next.
            cells: name → cell of the held-out text.
            say: called with each event, one sentence each.
            ended: whether the training has ended here, perhaps before its last step.
        """
        known = len(self.state.notes)
        decided = list(self.judge(state.global_step, state.max_steps, cells, ended))
        better, self.taken_back = broadcast_object_list(decided)
        control.should_training_stop |= self.taken_back
        control.should_save |= better
        for note in self.state.notes[known:]:
            say(note)
            if self._notify and self._writes:
                event = {"text": note, "run": self._run, "domain": self.domain, "step": state.global_step}
                if failed := notification.send(self._notify, event):
                    say(failed)

    def judge(self, step: int, last: int, cells: Mapping[str, Cell], ended: bool = False) -> tuple[bool, bool]:
        """Decide from the scores after a step whether and how to continue.

        Args:
            step: the step.
            last: the last step of the domain.
            cells: name → cell of the held-out text.
            ended: whether no step follows, whatever `last` is.

        Returns:
            Whether to write a checkpoint of this step, and whether to end the training here.
        """
        passed = self._passed(cells)
        if self._then == "warn":
            self._warn(step, passed)
            return False, False
        if not passed:
            better = self._note_best(step, cells.get(self._own))
            if better or not (ended or step >= last):
                return better, False
        best = self._best_step()
        if passed:
            self._write_back(step, best, last, passed[0])
        else:
            self.state.end = best
            self.state.notes.append(
                f"Domain '{self.domain}' ends with the weights of step {best:,} of {last:,}: no measured step predicts "
                "its own held-out text better."
            )
        tokens, seconds = self.spent()
        start = self.state.best[-1] if self.state.best else {"tokens": 0, "seconds": 0.0}
        self.state.tokens += tokens - int(start["tokens"])
        self.state.seconds += seconds - float(start["seconds"])
        self._save()
        self.taken_back = True
        return False, True

    def _write_back(self, step: int, best: int, last: int, passed: Passed) -> None:
        """Decide how the domain continues from its best step."""
        what = f"Domain '{self.domain}', step {step:,} of {last:,}: {passed}."
        where = f"step {best:,}" if best else "its beginning, since no measured step was within the bounds"
        if self._then == "lower" and self.state.lowered < TIMES:
            for newer in checkpoints(self._folder) if self._writes else []:
                if step_of(newer) > best:
                    shutil.rmtree(newer, ignore_errors=True)
            self.state.lowered += 1
            rate = LOWERED**self.state.lowered
            self.state.notes.append(f"{what} Training continues from {where}, with {rate:g} of the learning rate.")
        else:
            self.state.end = best
            kept = f"It ends with the weights of {where}." if best else f"It leaves the model as it was at {where}."
            self.state.notes.append(f"{what} {kept}")

    def _passed(self, cells: Mapping[str, Cell]) -> list[Passed]:
        """Return the texts that are worse than their bounds; a score that is not finite is worse than any bound."""
        score = METRICS[MEASURE].score
        return [
            Passed(name, worse(bound.reference, cells[name], name), bound)
            for name, bound in self._bounds.items()
            if name in cells and not score(cells[name]) - score(bound.reference) <= bound.most
        ]

    def _note_best(self, step: int, own: Cell | None) -> bool:
        """Note the step if it is the best so far; without held-out text of the domain the latest one is."""
        score, before = None if own is None else METRICS[MEASURE].score(own), self.state.best
        if score is not None and not (score < (before[-1]["score"] if before else math.inf)):
            return False
        tokens, seconds = self.spent()
        before.append({"step": step, "score": score, "tokens": tokens, "seconds": seconds})
        self._save()
        return True

    def _warn(self, step: int, passed: list[Passed]) -> None:
        for each in passed:
            if not any(f" '{each.name}' is predicted " in note for note in self.state.notes):
                self.state.notes.append(f"Domain '{self.domain}', step {step:,}: {each}.")
                self._save()

    def _best_step(self) -> int:
        """Return the best step; 0, before the domain, if no measured one was within the bounds."""
        return int(self.state.best[-1]["step"]) if self.state.best else 0

    def _checkpoint(self, step: int) -> Path:
        checkpoint = next((each for each in checkpoints(self._folder) if step_of(each) == step), None)
        wrong = f"{self._folder} has no checkpoint of step {step:,}" if checkpoint is None else files.damage(checkpoint)
        if checkpoint is None or wrong is not None:
            raise RunError(
                f"{wrong}, with which '{self.domain}' ends. Restore it from a copy, or delete {self._folder} to train "
                "the domain again."
            )
        return checkpoint

    def _save(self) -> None:
        if self._writes:
            files.write_json(self._folder / STATE, dataclasses.asdict(self.state))


def worse(before: Cell, after: Cell, name: str) -> Estimate:
    """Return the bits per byte by which a text is predicted worse, with its paired 95 % interval."""
    scores = resample([before, after], [METRICS[MEASURE]], seed=("stop", name))[MEASURE]
    low, high = percentiles(scores.samples[:, 1] - scores.samples[:, 0])
    value = float(scores.values[1] - scores.values[0])
    return Estimate(value, float(low), float(high)) if low == low else Estimate(value)


def _bounds(recipe: Recipe, folder: RunFolder, index: int) -> Iterator[tuple[str, ForgettingBound]]:
    """Yield the name and the bound of each text that is bounded."""
    stop, cells = recipe.stop, folder.path / "evaluation"
    assert stop is not None
    if stop.general is not None and recipe.general is not None:
        name = recipe.general.name
        yield (
            name,
            ForgettingBound(Cell.load(set_path(cells, 0, name)), stop.general, "stop.general", "under the base model"),
        )
    if stop.earlier is None:
        return
    *before, now = recipe.domains[:index]
    last = {domain.learns: row for row, domain in enumerate(before, 1) if domain.validation}
    for name, row in last.items():
        if name != now.learns:
            reference = Cell.load(set_path(cells, row, name))
            yield name, ForgettingBound(reference, stop.earlier, "stop.earlier", "right after it was learnt")


def _read(path: Path) -> Decisions:
    if not path.is_file():
        return Decisions()
    try:
        return Decisions(**files.read_json(path))
    except TypeError:
        raise RunError(f"{path} is damaged. Delete {path.parent} to train the domain again.") from None


class _LowerRate(TrainerCallback):
    """Multiply the learning rates of a schedule by a factor, whatever checkpoint they were loaded from."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the rates that the schedule multiplies, and those of the next step."""
        if self.factor == 1.0:
            return
        optimizer, schedule = kwargs["optimizer"], kwargs["lr_scheduler"]
        before = list(schedule.base_lrs)
        schedule.base_lrs = [group["initial_lr"] * self.factor for group in optimizer.param_groups]
        for group, old, new in zip(optimizer.param_groups, before, schedule.base_lrs, strict=True):
            group["lr"] = group["lr"] * new / old if old else new
        schedule._last_lr = [group["lr"] for group in optimizer.param_groups]
