"""Started by a test: a run that processes take on and SIGKILL ends. Forks, so that imports are paid once."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import time
import traceback

import torch

from everlearn import report
from everlearn.config.recipe import Recipe, load
from everlearn.learner import ContinualLearner
from everlearn.model.loading import quiet


def attempt(recipe: Recipe) -> int:
    """A new process that takes the run on; its id."""
    process = os.fork()
    if process == 0:
        try:
            started = (recipe.folder() / "recipe.yaml").is_file()
            (ContinualLearner.open(recipe.folder()).resume if started else ContinualLearner(recipe).run)()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return process


def finish(recipe: Recipe) -> float:
    """Take the run to its end; seconds."""
    started = time.monotonic()
    _, status = os.waitpid(attempt(recipe), 0)
    if status != 0:
        sys.exit("a run failed")
    return time.monotonic() - started


def main(whole: str, broken: str, kills: str, seed: str) -> None:
    """Run one recipe in peace and the other with kills at random moments."""
    torch.set_num_threads(1)
    quiet()
    gc.freeze()  # accelerate collects garbage before each stage
    report.write_report = lambda *_: None  # type: ignore[assignment]
    seconds = finish(load(whole))
    generator = random.Random(int(seed))
    for _ in range(int(kills)):
        process = attempt(load(broken))
        time.sleep(generator.uniform(0, 0.6 * seconds))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    finish(load(broken))


if __name__ == "__main__":
    main(*sys.argv[1:])
