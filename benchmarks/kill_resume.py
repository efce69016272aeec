"""Ten SIGKILLs at random moments of a demo-sized run with DAS and replay: the same weights as without them.

    python benchmarks/kill_resume.py

A run of two documentation domains is made once in peace. Then it is made again by processes that are killed after a
random time, each going on where the one before was killed, until the last one is left alone. Every tensor of every
stage folder, memories included, and every score must be equal, bit for bit. Writes ``docs/results/kill-resume.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is loaded; see docs/architecture.md

import torch

from everlearn import files
from everlearn.config.recipe import Recipe, load
from everlearn.learner import ContinualLearner
from everlearn.model.loading import quiet
from everlearn.run.environment import environment
from everlearn.run.progress import Advance, Reporter
from everlearn_bench.demo.demo import METHODS
from everlearn_bench.demo.demo import RECIPE as DEMO

RESULT = Path(__file__).parent.parent / "docs" / "results" / "kill-resume.json"
DOMAINS = ("sympy", "networkx")
METHODS_USED = [METHODS["das"], {"name": "replay", "share": 0.1, "capacity": 512}]


def recipe(folder: Path, steps: int) -> Recipe:
    """The demo's with two of its domains, DAS and replay, a checkpoint every third step and no end tasks."""
    demo = load(DEMO)
    train = demo.train | {"max_steps": steps, "save_steps": 3, "logging_steps": 2}
    domains = [domain.model_dump(mode="json") for domain in demo.domains if domain.name in DOMAINS]
    run = {"name": "kill-resume", "folder": str(folder)}
    return demo.changed(domains=domains, method=METHODS_USED, train=train, end_tasks=[], run=run)


# -- the process that is killed ----------------------------------------------------------------------------------


class Diary(Reporter):
    """Writes down what is being done, so that the one who kills knows what was."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _note(self, text: str) -> None:
        self.path.write_text(text, encoding="utf-8")

    @contextlib.contextmanager
    def activity(self, text: str, total: int) -> Iterator[Advance]:
        """Note each step, and what comes after the last one."""
        self._note(text)
        yield lambda done: self._note(f"{text}, step {done} of {total}")
        self._note(f"after: {text}")


def work(recipe_file: Path, diary: Path) -> None:
    """Take the run to its end, from wherever it is."""
    quiet()
    chosen = load(recipe_file)
    reporter = Diary(diary)
    diary.write_text("starting", encoding="utf-8")
    if (chosen.folder() / "recipe.yaml").is_file():
        ContinualLearner.open(chosen.folder(), reporter).resume()
    else:
        ContinualLearner(chosen, reporter=reporter).run()


# -- the one that kills --------------------------------------------------------------------------------------------


def start(recipe_file: Path, diary: Path) -> subprocess.Popen[bytes]:
    """A process that takes the run on; returns when its imports are done."""
    diary.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--work", str(recipe_file), str(diary)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not diary.is_file() and process.poll() is None:
        time.sleep(0.02)
    return process


def unbroken(folder: Path, steps: int) -> tuple[Path, float]:
    """The run that nothing happens to, and its seconds without imports."""
    made = recipe(folder / "whole", steps)
    path = folder / "whole.yaml"
    files.write_text(path, made.to_yaml())
    process = start(path, folder / "diary")
    started = time.monotonic()
    if process.wait() != 0:
        raise SystemExit("The unbroken run failed.")
    return made.folder(), time.monotonic() - started


def killed(folder: Path, steps: int, kills: int, seed: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Each kill as it happens, over as many runs as it takes (a run may end before its turn to die comes)."""
    generator = random.Random(seed)
    done, number = 0, 0
    while done < kills:
        number += 1
        made = recipe(folder / f"broken-{number}", steps)
        path = folder / f"broken-{number}.yaml"
        files.write_text(path, made.to_yaml())
        while done < kills:
            process = start(path, folder / "diary")
            wait = generator.uniform(0, 2 * seconds / kills)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(wait)
            if process.poll() is not None:
                break
            process.send_signal(signal.SIGKILL)
            process.wait()
            done += 1
            doing = (folder / "diary").read_text(encoding="utf-8")
            yield {"kill": done, "run": number, "after_seconds": round(wait, 2), "while": doing}
        process = start(path, folder / "diary")
        if process.wait() != 0:
            raise SystemExit(f"Run {number} could not be resumed.")


def compare(whole: Path, broken: Path) -> tuple[int, list[str]]:
    """Number of tensors, and the names of those that differ (scores included)."""
    different: list[str] = []
    count = 0
    for path in sorted(whole.glob("stage-*/**/*.safetensors")):
        name = path.relative_to(whole)
        mine, theirs = files.load_tensors(path), files.load_tensors(broken / name)
        count += len(mine)
        different += [f"{name}: {key}" for key in mine if not torch.equal(mine[key], theirs[key])]
    for path in sorted(whole.glob("evaluation/stage-*/*.safetensors")):
        name = path.relative_to(whole)
        if files.digest(path) != files.digest(broken / name):
            different.append(str(name))
    return count, different


def main() -> None:
    """Kill, resume, compare, write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="how many")
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps of each of the two domains")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--work", nargs=2, metavar=("RECIPE", "DIARY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(*map(Path, arguments.work))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        started = time.monotonic()
        whole, seconds = unbroken(folder, arguments.steps)
        print(f"unbroken: {seconds:.1f} s without imports")
        print(f"{'kill':>4}  {'run':>3}  {'after':>7}  while")
        kills = []
        for kill in killed(folder, arguments.steps, arguments.kills, arguments.seed, seconds):
            kills.append(kill)
            print(f"{kill['kill']:>4}  {kill['run']:>3}  {kill['after_seconds']:>5.1f} s  {kill['while']}", flush=True)
        tensors, different = 0, []
        for broken in sorted(folder.glob("broken-*/")):
            tensors, wrong = compare(whole, broken)
            different += [f"{broken.name}: {name}" for name in wrong]
        total = time.monotonic() - started
        print(f"{tensors} tensors and all scores identical: {'yes' if not different else 'NO: ' + different[0]}")
        made = load(whole)
        files.write_json(
            RESULT,
            {
                "identical": not different,
                "different": different[:20],
                "tensors": tensors,
                "kills": kills,
                "seed": arguments.seed,
                "domains": list(DOMAINS),
                "steps": arguments.steps,
                "method": list(made.method),
                "unbroken_seconds": round(seconds, 1),
                "seconds": round(total, 1),
                "environment": environment(),
            },
        )
        print(f"{total:.0f} s in all; written to {RESULT}")
        raise SystemExit(1 if different else 0)


if __name__ == "__main__":
    main()
