"""Define a grid: which cells there are, which are missing, and the loop that makes them."""

from __future__ import annotations

import contextlib
import os
import shutil
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from everlearn import files, wording
from everlearn.errors import (
    EverlearnError,
    Interrupted,
    MethodError,
    RecipeError,
    RunError,
    RunInUse,
    TrainingDiverged,
)
from everlearn.evaluation.results import GridCell, cell_name
from everlearn.grid.arrangements import Made
from everlearn.grid.cells import check_settings, load_cell, load_results
from everlearn.grid.identity import identity
from everlearn.grid.rows import RowSpec, our_name
from everlearn.grid.runs import Job, RunFactory
from everlearn.grid.template import GridTemplate
from everlearn.learner import ContinualLearner
from everlearn.methods import build
from everlearn.run.folder import RunFolder
from everlearn.run.progress import Reporter

FAILED = "failed.json"
NAMED = 8
"""Maximum number of cells that a message names; the rest is counted."""
RUNNING = "Another process works on it. If that process was stopped, start this command again."


@dataclass(frozen=True)
class GridRun(Job):
    """One row in one order with one seed."""

    entry: RowSpec

    @property
    def name(self) -> str:
        """Return the name of its file and folder."""
        return cell_name(self.entry.name, self.order, self.seed)

    def same_method(self, other: GridRun) -> bool:
        """Return whether another cell has the same arrangement and methods, with whatever options."""
        mine, its = ((run.entry.make, [method["name"] for method in run.methods]) for run in (self, other))
        return mine == its


@dataclass(frozen=True)
class State:
    """The state of a cell, and the reason of a failure."""

    cell: str
    state: Literal["done", "running", "failed", "missing"]
    reason: str = ""


def completeness(states: Sequence[State]) -> str:
    """Say how many runs of a grid are done, and which are not."""
    names = {kind: [each.cell for each in states if each.state == kind] for kind in ("missing", "failed", "running")}
    count = sum(each.state == "done" for each in states)
    if count == len(states):
        return f"All {count} runs are done." if count > 1 else "The run is done."
    rest = "; ".join(f"{kind}: {_few(cells)}" for kind, cells in names.items() if cells)
    verb = wording.be(1 if len(states) == 1 else count)
    return f"{count} of {wording.count(len(states), 'run')} {verb} done; {rest}."


def _few(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


class Grid(RunFactory):
    """Rows × orders × seeds on one template.

    Args:
        template: domains, orders and recipes.
        entries: rows of the table.
        orders: numbers of the template's orders.
        seeds: seeds of training.
        results: folder of the results: a `results.json` for each cell, under its name, or their archive.
        runs: folder of the runs, and of records of failures.
        keep: keep the models of finished cells.
        reporter: shows progress.

    Raises:
        RecipeError: the template has no such order, or a setting does not fit.
        RunError: `results` holds cells with other settings.
    """

    def __init__(
        self,
        template: GridTemplate,
        entries: Sequence[RowSpec],
        orders: Sequence[int],
        seeds: Sequence[int],
        results: Path,
        runs: Path,
        keep: bool = False,
        reporter: Reporter | None = None,
    ) -> None:
        super().__init__(template, runs, reporter)
        self.results, self.keep = results, keep
        for name in self.settings.rows:
            if our_name(name, template) != name:
                raise RecipeError(f"`grid.rows` names '{name}', which is not the name of a row.")
        for entry in entries:
            wants = template.systems[entry.name].wants if entry.name in template.systems else ()
            if lacking := [key for key in wants if key not in self.settings.rows.get(entry.name, {})]:
                raise RecipeError(
                    f"The row '{entry.name}' needs its own `{lacking[0]}`, which the settings do not set: add "
                    f"`grid: {{rows: {{{entry.name}: {{{lacking[0]}: …}}}}}}` to the file of `--settings`."
                )
        for order in orders:
            if order not in template.orders:
                known = ", ".join(map(template.order_title, template.orders))
                raise RecipeError(f"`--orders` names {template.order_title(order)}; `{template.name}` has {known}.")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise RunError("Each run of a grid takes one process. Start the command several times to share it.")
        self.cells = self._cells(entries, orders, seeds)
        self.identity = identity(template, self.recipe(self.plain(), self.runs))
        for cell in load_results(results):
            check_settings(cell, self.identity, results)

    def _cells(self, entries: Sequence[RowSpec], orders: Sequence[int], seeds: Sequence[int]) -> list[GridRun]:
        by_name: dict[str, GridRun] = {}
        for seed in seeds:  # the complete table of the first seed comes first
            for order in orders:
                for entry in entries:
                    own = order if entry.ordered else None
                    domains = tuple(self.template.orders[order]) if entry.ordered else self.first
                    methods = tuple(self._spec(entry, method) for method in entry.methods)
                    seeded = seed if entry.seeded else None
                    changes = {**entry.changes, **self.settings.rows.get(entry.name, {})}
                    cell = GridRun(own, seeded, domains, methods, changes, entry)
                    by_name.setdefault(cell.name, cell)
        return list(by_name.values())

    def _spec(self, entry: RowSpec, method: Mapping[str, Any]) -> dict[str, Any]:
        """Return a method of a row with its options.

        The settings take precedence over the published options of the template's own rows, and the options of any other
        row take precedence over the settings.
        """
        configured = self.settings.spec(method["name"])
        return {**method, **configured} if entry.name in self.template.systems else {**configured, **method}

    # -- what there is ----------------------------------------------------------------------------------------

    def path(self, cell: GridRun) -> Path:
        """Return the file of the cell's result; the archive beside it may hold it instead."""
        return self.results / f"{cell.name}.json"

    def done(self, cell: GridRun) -> bool:
        """Return whether the cell is measured.

        Raises:
            RunError: it is measured with other settings or options.
        """
        saved = load_cell(self.results, cell.name)
        if saved is None:
            return False
        check_settings(saved, self.identity, self.results)
        options = _options(cell)
        if saved.grid.options != options:
            raise RunError(
                f"{cell.name} in '{self.results}' was measured with other options of '{cell.entry.name}' "
                f"({saved.grid.options} there, {options} here). Remove it, set these options again, or use another "
                "folder (`--results`)."
            )
        return True

    def states(self) -> list[State]:
        """Return the state of every cell."""
        return [self._state(cell) for cell in self.cells]

    def _state(self, cell: GridRun) -> State:
        place, locked = self.runs / cell.name, False
        with contextlib.ExitStack() as stack:  # the state below cannot change under the lock
            if place.is_dir():
                try:
                    stack.enter_context(RunFolder(place).lock())
                except RunInUse:
                    locked = True
            if self.done(cell):
                return State(cell.name, "done")
            if locked:
                return State(cell.name, "running", RUNNING)
            if (place / FAILED).is_file():
                return State(cell.name, "failed", _reason(place / FAILED))
            return State(cell.name, "missing")

    def check(self) -> None:
        """Check every row that has missing cells, before the first of them is made.

        Rows that the base model does not support are left out with a message if only a group named them.

        Raises:
            EverlearnError: a row cannot be run; the message names it.
        """
        checked: set[str] = set()
        without: set[str] = set()
        for cell in self.cells:
            place = self.runs / cell.name / "run"
            begun = (place / "recipe.yaml").is_file()  # it was checked then
            if cell.entry.name not in checked and not begun and not self.done(cell):
                checked.add(cell.entry.name)
                self.reporter.cell = cell.entry.name
                try:
                    ContinualLearner(self.recipe(cell, place), reporter=self.reporter).check()
                except EverlearnError as error:
                    if not cell.entry.optional or not isinstance(error, MethodError):
                        raise type(error)(f"{cell.entry.name}: {error}") from None
                    without.add(cell.entry.name)
                    self.reporter.say(f"Left out, since this model does not support it: {cell.entry.name}. {error}")
        self.reporter.cell = ""
        self.cells = [cell for cell in self.cells if cell.entry.name not in without]

    # -- making what is missing -------------------------------------------------------------------------------

    def run(self) -> list[State]:
        """Make every missing cell that no other process is working on, once; a failure does not stop the others.

        The loop repeats until nothing is left, since another process may have been stopped after its cell was skipped.
        Failures of earlier calls are tried again; failures since then are not, whichever process they occurred in.

        Raises:
            Interrupted: the grid was stopped; the message says what is kept.
            RunError: two methods failed one after the other with the same error, which others would have too.
        """
        try:
            self._make_missing()
        except (Interrupted, KeyboardInterrupt):
            raise Interrupted(
                f"Stopped. {completeness(self.states())} Results are in {self.results}, and an unfinished run resumes "
                "from its last checkpoint: start the same command again, or show the results with `--show`."
            ) from None
        return self.states()

    def _make_missing(self) -> None:
        for folder in (self.results, self.runs):
            files.remove_abandoned(folder)
        known = {cell.name: self._failure(cell) for cell in self.cells}
        before: tuple[GridRun, str] | None = None
        while missing := [cell for cell in self.cells if self._free(cell, known[cell.name])]:
            for cell in missing:
                if cell.entry.needs_base:
                    self.base(cell)  # an error of model or data affects every cell, so it stops the grid
            for number, cell in enumerate(missing, 1):
                place = self.runs / cell.name
                place.mkdir(parents=True, exist_ok=True)
                with contextlib.ExitStack() as stack:
                    try:
                        stack.enter_context(RunFolder(place).lock())
                    except RunInUse:
                        self.reporter.say(f"{cell.name}: another process works on it.")
                        continue
                    if not self._open(cell, known[cell.name]):  # it has been made since
                        continue
                    self.reporter.say(f"{cell.name} ({number} of {wording.count(len(missing), 'missing cell')})")
                    failure = self._make(cell, place)
                if failure and before and failure == before[1] and not cell.same_method(before[0]):
                    raise self._shared(before[0], cell)
                before = (cell, failure) if failure else None

    def _shared(self, first: GridRun, second: GridRun) -> RunError:
        """Return the error that ends a grid of which two methods failed alike."""
        record = self.runs / second.name / FAILED
        return RunError(
            f"Stopped, since {first.name} and {second.name} failed one after the other with the same error: "
            f"{_reason(record).rstrip('.')}. {completeness(self.states())} Remove the cause (where it occurred is in "
            f"{record}), and start the same command again, or show the results with `--show`."
        )

    def _free(self, cell: GridRun, known: int | None) -> bool:
        """Return whether the cell is to be made and no other process is working on it."""
        return self._open(cell, known) and self._state(cell).state != "running"

    def _open(self, cell: GridRun, known: int | None) -> bool:
        """Return whether to run the cell: it is not done, and its last failure, if any, is the one at time `known`."""
        return not self.done(cell) and self._failure(cell) in (None, known)

    def _failure(self, cell: GridRun) -> int | None:
        """Return the time of a cell's last failure, which identifies it; None if there is none."""
        try:
            return (self.runs / cell.name / FAILED).stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def _make(self, cell: GridRun, place: Path) -> str:
        """Make a cell; return the reason of a failure that other methods may share, without the cell's name, or ""."""
        files.remove_leftovers(place)
        (place / FAILED).unlink(missing_ok=True)
        self.reporter.cell = cell.name
        try:
            self._save(cell, cell.entry.make(self, cell, place))
        except Interrupted:
            raise
        except Exception as error:
            sentence = str(error) if isinstance(error, EverlearnError) else f"{type(error).__name__}: {error}"
            files.write_json(place / FAILED, {"sentence": sentence, "traceback": traceback.format_exc()})
            self.reporter.say(f"{cell.name} failed: {sentence}")
            return "" if isinstance(error, TrainingDiverged) else sentence.replace(cell.name, "")
        if not self.keep:
            for run in [path.parent for path in place.glob("*/recipe.yaml")]:
                for stage in run.glob("stage-*"):
                    shutil.rmtree(stage, ignore_errors=True)
        return ""

    def _save(self, cell: GridRun, outcome: Made) -> None:
        results, facts = outcome
        needs = [build(spec).needs for spec in cell.methods]
        own = GridCell(
            suite=self.template.name,
            row=cell.entry.name,
            title=cell.entry.title,
            paper=cell.entry.paper,
            order=cell.order,
            seed=cell.seed,
            options=_options(cell),
            domain_id_at_test=any(each.domain_id_test for each in needs),
            old_data=cell.entry.old_data or any(each.old_data for each in needs),
            settings=self.identity,
            **facts,
        )
        files.write_text(self.path(cell), results.model_copy(update={"grid": own}).text())


def _reason(path: Path) -> str:
    """Return the recorded reason of a cell's failure."""
    try:
        return str(files.read_json(path)["sentence"])
    except (RunError, KeyError, TypeError):
        return f"{path} is damaged"


def _options(cell: GridRun) -> dict[str, Any]:
    built = [build(spec) for spec in cell.methods]
    options = {method.label: method.config.model_dump(mode="json", exclude_defaults=True) for method in built}
    return {**(options if len(options) > 1 else next(iter(options.values()))), **cell.changes}
