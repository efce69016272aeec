"""Started by torchrun: takes each recipe to its end in one process group; "resumed" and "signalled" ones stop first."""

from __future__ import annotations

import imported_first  # noqa: F401

# isort: split
import gc
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, memory

from everlearn import report
from everlearn.config.recipe import load
from everlearn.errors import Interrupted
from everlearn.learner import ContinualLearner
from everlearn.model.loading import quiet
from everlearn.run import trainer
from methods_of_other_kinds import registered
from quick_loading import with_copies, without_first_weights, without_searches, without_stack_traces

STOP_AT = (2, 2)
"""Stage and step; the last checkpoint is at step 1."""
WHOLE = ("sequential", "carried", "ended")
"""Runs with everything. Others have no scores: the first process alone makes them, of complete models, as where it is
alone. Of the others, those with shards have no checks before a run, which ask for the method."""


class Killed(Exception):
    """The run ended on every process without saving anything."""


def main(paths: list[str]) -> None:
    """Run each recipe; the first word of its name says what happens to it."""
    torch.set_num_threads(1)
    quiet()
    allow_fsdp_on_cpu()
    report.write_report = lambda *_: None  # type: ignore[assignment]
    os.fsync = lambda file: None  # type: ignore[assignment]  # this and the next: see tests/conftest.py
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()
    memory.gc = SimpleNamespace(collect=lambda: 0)  # type: ignore[assignment]
    without_first_weights()
    without_stack_traces()
    without_searches()
    with_copies()
    stop = {"resumed": kill, "signalled": signal_one}
    for path in paths:
        recipe = load(path)
        kind = recipe.run.name.split()[0]
        learner = ContinualLearner(recipe)
        if kind == "created":  # killed before any held-out text was drawn
            create(learner)
            learner.resume()
            continue
        if kind not in stop and recipe.run.name.removeprefix(kind).strip() not in WHOLE:
            if kind == "ddp":
                learner.check()
                learner.processes.wait_for_everyone()
            only_train(learner)
            continue
        if kind not in stop:
            learner.run()
            continue
        trainer.StageTrainer.on_step_end = stop[kind]  # type: ignore[method-assign]
        try:
            learner.run()
        except (Killed, Interrupted):
            trainer.StageTrainer.on_step_end = lambda self: None  # type: ignore[method-assign]
        learner = ContinualLearner.open(recipe.folder())
        step = int(kind == "signalled") + 1
        assert (learner.folder.training(2, recipe.domains[1].name) / f"checkpoint-{step}").is_dir()
        learner.resume()


def create(learner: ContinualLearner) -> None:
    """Make the folder of a run."""
    if learner.processes.is_main_process:
        learner.folder.create(learner.recipe)
    learner.processes.wait_for_everyone()


def only_train(learner: ContinualLearner) -> None:
    """Train all domains of a run and write its results, without checks and scores."""
    create(learner)
    for index, domain in enumerate(learner.recipe.domains, 1):
        while not learner.folder.finished(index, domain.name):
            learner.train_stage(index, domain, learner.methods_after(index - 1))
    learner._finish()


def kill(self: trainer.StageTrainer) -> None:
    """End as a kill would."""
    if (self.stage.index, self.state.global_step) == STOP_AT:
        raise Killed


def signal_one(self: trainer.StageTrainer) -> None:
    """Only one process gets the signal; all must stop after the same step."""
    if (self.stage.index, self.state.global_step) == STOP_AT and self.args.process_index == 1:
        os.kill(os.getpid(), signal.SIGTERM)


def allow_fsdp_on_cpu() -> None:
    """Accelerate uses DDP instead of FSDP on CPU, although PyTorch shards there as well: let it believe in GPUs."""
    original = AcceleratorState.__init__

    def __init__(self: AcceleratorState, *args: Any, fsdp_plugin: Any = None, **options: Any) -> None:  # noqa: N807
        if fsdp_plugin is not None:
            PartialState(cpu=True)
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        original(self, *args, fsdp_plugin=fsdp_plugin, **options)

    AcceleratorState.__init__ = __init__  # type: ignore[method-assign]


if __name__ == "__main__":
    with registered():
        main(sys.argv[1:])
