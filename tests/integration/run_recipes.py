"""Started by torchrun: takes each recipe to its end in one process group. ``MOMENT`` stops the run there first."""

from __future__ import annotations

import sys
from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from everlearn import report, trainer
from everlearn.learner import ContinualLearner
from everlearn.loading import quiet
from everlearn.recipe import load


class Stopped(Exception):
    """The run was stopped on every process."""


def main(paths: list[str]) -> None:
    """Run each recipe; one whose name begins with "resumed" is stopped in its second stage and resumed."""
    torch.set_num_threads(1)
    quiet()
    allow_fsdp_on_cpu()
    report.write_report = lambda *_: None  # type: ignore[assignment]
    for path in paths:
        recipe = load(path)
        if recipe.run.name.startswith("resumed"):
            stop_at(2, 3)
            try:
                ContinualLearner(recipe).run()
            except Stopped:
                stop_at(0, 0)
            ContinualLearner.open(recipe.folder()).resume()
        else:
            ContinualLearner(recipe).run()


def allow_fsdp_on_cpu() -> None:
    """Accelerate uses DDP instead of FSDP on CPU, although PyTorch shards there as well: let it believe in GPUs."""
    original = AcceleratorState.__init__

    def __init__(self: AcceleratorState, *args: Any, fsdp_plugin: Any = None, **options: Any) -> None:
        if fsdp_plugin is not None:
            PartialState(cpu=True)
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        original(self, *args, fsdp_plugin=fsdp_plugin, **options)

    AcceleratorState.__init__ = __init__  # type: ignore[method-assign]


def stop_at(stage: int, step: int) -> None:
    """Let the run end at this step as a kill would end it."""

    def on_step_end(self: trainer.StageTrainer) -> None:
        if (self.stage.index, self.state.global_step) == (stage, step):
            raise Stopped

    trainer.StageTrainer.on_step_end = on_step_end  # type: ignore[method-assign]


if __name__ == "__main__":
    main(sys.argv[1:])
