"""Commands to which something happens at a random moment: given again, they end as if nothing had.

    make faults COUNT=1000 SEED=0 MINUTES=60

A case takes a method and a kind of fault from its number. A run is made once in peace, and again with the fault; every
tensor of every stage folder, memories included, every score and note must be equal, bit for bit, nothing half-made may
be left, and a command that ends by itself ends in success or in one sentence. Processes are forks of this one, so
libraries are imported once.
"""

from __future__ import annotations

import errno
import functools
import gc
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench_suite import TinySuite
from endurance.quick import place_of, quick
from endurance.record import Record, asked
from everlearn import files, report
from everlearn.cli import main as everlearn_main
from everlearn.config.recipe import Recipe
from everlearn.grid import Grid
from everlearn.grid.rows import resolve
from everlearn.methods import names
from everlearn.methods.base import REGISTRY
from everlearn.run.interruption import SIGNALS
from everlearn_bench.suites import overlay_of
from fuzz.disk import watched
from integration.small_runs import assert_same, elsewhere, recipe

WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO)
RENAMING = (errno.ESTALE, errno.EIO, errno.EACCES, errno.EBUSY)
"""What a network's file system answers now and then."""
DONE, SENTENCE, LEFT, STOPPED = 0, 2, 3, 130
PATIENCE = 600
"""Seconds after which a command hangs."""


class Case(NamedTuple):
    """What a fault happens to.

    Attributes:
        recipe: of a run that has not begun.
        whole: the folder of the same run, made in peace.
        seconds: what that took.
        operations: how often it changed something on the disk.
        place: a folder for this case.
        chance: its random generator.
    """

    recipe: Recipe
    whole: Path
    seconds: float
    operations: int
    place: Path
    chance: random.Random


# -- processes ------------------------------------------------------------------------------------------------------


def start(work: Callable[[], object], said: Path) -> int:
    """A new process that works and ends with an exit code; what it says is appended to a file."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        signal.alarm(PATIENCE)
        for number in (signal.SIGINT, *SIGNALS):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        code = int(work() or 0)  # type: ignore[call-overload]
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def end_of(process: int) -> int:
    """Its exit code; minus the number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def expect(code: int, among: tuple[int, ...], said: Path) -> None:
    """Raise what the process said last if it ended otherwise."""
    if code not in among:
        lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
        words = [line.strip() for line in lines if line.strip() and "it/s]" not in line and "?it/s" not in line]
        raise AssertionError(f"ended with {code}: {' / '.join(words[-12:][::-1])}")


def take_on(of: Recipe) -> int:
    """The command that a user gives: `run` where there is no run yet, `resume` where there is one."""
    folder = of.folder()
    if (folder / "recipe.yaml").is_file():
        return everlearn_main(["resume", str(folder), "--quiet"])
    path = folder.with_suffix(".yaml")
    path.write_text(of.to_yaml(), encoding="utf-8")
    return everlearn_main(["run", str(path), "--quiet"])


def finish(case: Case) -> None:
    """Take the run to its end, without a fault, and compare."""
    said = case.place / "said"
    expect(end_of(start(lambda: take_on(case.recipe), said)), (DONE,), said)
    assert_same(case.recipe.folder(), case.whole)


# -- faults -----------------------------------------------------------------------------------------------------------


def killed(case: Case) -> None:
    """SIGKILL, up to three times."""
    for _ in range(case.chance.randint(1, 3)):
        process = start(lambda: take_on(case.recipe), case.place / "said")
        time.sleep(case.chance.uniform(0, 0.8 * case.seconds))
        os.kill(process, signal.SIGKILL)
        expect(end_of(process), (DONE, -signal.SIGKILL), case.place / "said")
    finish(case)


def stopped(case: Case) -> None:
    """A signal that asks to stop; before the command has begun it ends the process as any."""
    number = case.chance.choice((signal.SIGINT, *SIGNALS))
    process = start(lambda: take_on(case.recipe), case.place / "said")
    time.sleep(case.chance.uniform(0, 0.9 * case.seconds))
    os.kill(process, number)
    code = end_of(process)
    before = not (case.place / "said").is_file() or not (case.place / "said").stat().st_size
    expect(code, (DONE, STOPPED, *([1, -number] if before else [])), case.place / "said")
    finish(case)


def refused(case: Case) -> None:
    """A full disk, a folder that becomes read-only: nothing can be changed from some operation on."""
    how = OSError(code := case.chance.choice(WRITING), os.strerror(code))

    def work() -> int:
        with watched(case.recipe.folder(), case.chance.randint(1, case.operations), how):
            return take_on(case.recipe)

    expect(end_of(start(work, case.place / "said")), (DONE, SENTENCE), case.place / "said")
    finish(case)


def not_renamed(case: Case) -> None:
    """One rename fails."""
    how, original = OSError(code := case.chance.choice(RENAMING), os.strerror(code)), os.replace
    left = [case.chance.randint(1, max(2, case.operations // 4))]

    def replace(source: Any, target: Any, **options: Any) -> None:
        left[0] -= str(target).startswith(str(case.recipe.folder()))
        if left[0] == 0:
            left[0] = -1
            raise OSError(how.errno, how.strerror, os.fspath(source), None, os.fspath(target))
        original(source, target, **options)

    def work() -> int:
        os.replace = replace  # type: ignore[assignment]
        return take_on(case.recipe)

    expect(end_of(start(work, case.place / "said")), (DONE, SENTENCE), case.place / "said")
    finish(case)


def other_times(case: Case) -> None:
    """The clock jumps by up to ten years, forwards and backwards, now and then."""
    original, offset = time.time, [0.0]

    def jumping() -> float:
        if case.chance.random() < 0.05:
            offset[0] = case.chance.uniform(-3e8, 3e8)
        return original() + offset[0]

    def work() -> int:
        time.time = jumping
        return take_on(case.recipe)

    expect(end_of(start(work, case.place / "said")), (DONE,), case.place / "said")
    finish(case)


def together(case: Case) -> None:
    """Two processes take the same run on, and one of them may die."""
    said = [case.place / "said-1", case.place / "said-2"]
    processes = []
    for each in said:
        processes.append(start(lambda: take_on(case.recipe), each))
        time.sleep(case.chance.uniform(0, 0.5 * case.seconds))
    dies = case.chance.random() < 0.5
    if dies:
        os.kill(processes[0], signal.SIGKILL)
    for process, each in zip(processes, said, strict=True):
        expect(end_of(process), (DONE, SENTENCE, *([-signal.SIGKILL] if dies else [])), each)
    finish(case)


def without_memory(case: Case) -> None:
    """The system gives no more memory; how the process ends is not ours to say."""

    def work() -> int:
        held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        most = held + int(2**20 * case.chance.uniform(1, 120))
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        return take_on(case.recipe)

    end_of(start(work, case.place / "said"))
    finish(case)


VERBS: tuple[tuple[str, ...], ...] = (
    ("evaluate", "{run}", "--on", "{recipe}"),
    ("report", "{run}", "-o", "{place}/report.html"),
    ("report", "{run}", "--format", "csv", "-o", "{place}/report.csv"),
    ("merge", "{run}", "-o", "{place}/merged"),
    ("export", "{run}", "{place}/exported"),
    ("analyse", "shape", "{run}"),
    ("diff", "{run}/stage-01-first", "{run}/stage-02-second"),
    ("data", "{recipe}"),
    ("plan", "{recipe}"),
    ("validate", "{recipe}"),
    ("inspect", "{run}/stage-01-first"),
)


def killed_reading(case: Case) -> None:
    """SIGKILL while another verb looks at a finished run; given again it works, and the run is what it was."""
    run, made = case.place / "finished", case.place / "recipe.yaml"
    shutil.copytree(case.whole, run)
    made.write_text(case.recipe.to_yaml(), encoding="utf-8")
    verb = case.chance.choice(VERBS)
    words = [word.format(run=run, recipe=made, place=case.place) for word in verb]
    for kills in (True, False):
        process = start(lambda: everlearn_main(words), case.place / "said")
        if kills:
            time.sleep(case.chance.uniform(0, 0.8 * case.seconds))
            os.kill(process, signal.SIGKILL)
        code = end_of(process)
        there = code == SENTENCE and "exists already" in (case.place / "said").read_text(encoding="utf-8")
        if not there:  # it was through before it was killed
            expect(code, (DONE, *([-signal.SIGKILL] if kills else [])), case.place / "said")
    assert_same(run, case.whole)


@functools.cache
def suite(place: Path) -> tuple[TinySuite, float]:
    """A suite of three tiny domains, and the seconds that its cells take in peace."""
    found = TinySuite(place)
    began = time.monotonic()
    expect(end_of(start(lambda: grid(found, place), place / "said")), (DONE,), place / "said")
    return found, time.monotonic() - began


def grid(of: TinySuite, place: Path) -> int:
    """Make the missing cells that nobody else is making; whether that was all of them."""
    chosen = of.on(overlay_of({"grid": {"methods": {"ewc": {"samples": 4}}}}))
    made = Grid(chosen, resolve(("ncl", "ewc"), of), (0,), (0,), place / "results", place / "runs")
    states = made.run()
    print(states)
    assert all(state.state != "failed" for state in states)
    return DONE if all(state.state == "done" for state in states) else LEFT


def worker_dies(case: Case) -> None:
    """Two processes share a grid and one is killed: at most the cell that it was making is left for the next."""
    place = case.place.parent / "grid"
    place.mkdir(exist_ok=True)
    chosen, seconds = suite(place)
    said = [case.place / "said-1", case.place / "said-2"]
    dying, living = [start(lambda: grid(chosen, case.place), each) for each in said]
    time.sleep(case.chance.uniform(0, seconds))
    os.kill(dying, signal.SIGKILL)
    expect(end_of(dying), (DONE, LEFT, -signal.SIGKILL), said[0])
    expect(end_of(living), (DONE, LEFT), said[1])
    expect(end_of(start(lambda: grid(chosen, case.place), said[1])), (DONE,), said[1])
    for cell in (place / "results").glob("*.json"):
        mine, theirs = (files.read_json(folder / "results" / cell.name) for folder in (case.place, place))
        assert mine["matrices"] == theirs["matrices"], f"{cell.name} is another cell"


KINDS: dict[str, Callable[[Case], None]] = {
    "killed": killed,
    "asked to stop": stopped,
    "disk full or read-only": refused,
    "rename fails": not_renamed,
    "clock jumps": other_times,
    "two processes on one folder": together,
    "out of memory": without_memory,
    "another verb killed": killed_reading,
    "a worker of a grid dies": worker_dies,
}
SHARES = [6, 2, 3, 2, 1, 2, 1, 2, 1]


# -- cases ------------------------------------------------------------------------------------------------------------


class Runs:
    """Runs that were made in peace, one a method."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.refused: set[str] = set()

    @functools.cache  # noqa: B019 - there is one of them
    def whole(self, name: str) -> tuple[Recipe, Path, float, int] | None:
        """A recipe, its finished run, its seconds and its operations; None where the tiny models cannot have it."""
        folder = self.place / name
        folder.mkdir()
        objective, architecture = place_of(name)
        groups: dict[str, Any] = {"evaluation": {"samples": 0}, "train": {"max_steps": 3, "save_steps": 1}}
        if objective == "text-to-text":
            groups |= {"answers": True, "objective": objective}
        made = recipe(folder, architecture, quick(name), general=True, **groups)
        made = elsewhere(made, folder / "whole")

        def work() -> int:
            with watched(made.folder()) as disk:
                code = take_on(made)
            (folder / "operations").write_text(str(len(disk.done)))
            return code

        began = time.monotonic()
        code = end_of(start(work, folder / "said"))
        if code == SENTENCE:
            self.refused.add(name)
            return None
        expect(code, (DONE,), folder / "said")
        return made, made.folder(), time.monotonic() - began, int((folder / "operations").read_text())


def main() -> int:
    """Make every case."""
    record = Record(asked(__doc__, 1000))
    torch.set_num_threads(1)
    report.write_report = lambda *_: None  # type: ignore[assignment]  # it takes as long as all the rest
    os.fsync = lambda _: None  # type: ignore[assignment]  # no case cuts the power
    gc.freeze()  # no fork's collections look at the libraries
    methods = [name for name in names() if name in REGISTRY]
    used: set[str] = set()
    with tempfile.TemporaryDirectory() as temporary:
        runs = Runs(Path(temporary))
        for number in record.numbers():
            chance = random.Random(f"faults {number}")
            (kind,), method = chance.choices(list(KINDS), SHARES), chance.choice(methods)
            place = Path(temporary) / f"case-{number}"
            place.mkdir()
            try:
                if (found := runs.whole(method)) is None:
                    continue
                made, whole, seconds, operations = found
                case = Case(elsewhere(made, place / "run"), whole, seconds, operations, place, chance)
                KINDS[kind](case)
            except Exception as error:
                record.done(kind, number, f"{method}: {type(error).__name__}: {error}")
            else:
                record.done(kind, number)
            used.add(method)
            shutil.rmtree(place, ignore_errors=True)
        record.more = {"methods": sorted(used), "refused by the tiny models": sorted(runs.refused)}
    return record.finish()


if __name__ == "__main__":
    raise SystemExit(main())
