"""Estimate the disk space that a run needs: finished stages, and checkpoints of the stage in training."""

from __future__ import annotations

import itertools
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from transformers import TrainingArguments
from transformers.trainer_utils import SaveStrategy

from everlearn.errors import RunError
from everlearn.methods.base import Method
from everlearn.methods.engine.protection import costs_of
from everlearn.run.open_run import OpenRun
from everlearn.wording import size


@dataclass(frozen=True)
class Sizes:
    """Numbers of parameters in a run."""

    base: int
    """Of the model before the first stage."""
    stages: list[int]
    """Of the model in each stage, without what methods add."""
    added: int
    """Added by methods while a stage is trained."""
    frozen: bool
    """Whether only the added parameters are trained."""

    @classmethod
    def of(cls, model: nn.Module, methods: Sequence[Method], domains: int) -> Sizes:
        """Count the parameters of a run; a growing model is assumed to grow by the same factor in each stage."""
        base = sum(parameter.numel() for parameter in model.parameters())
        growth = [(method.grows, 1 + method.cost(model).parameters / base) for method in methods if method.grows]
        added = sum(method.cost(model).parameters for method in methods if not method.grows)
        stages = [
            round(base * math.prod(share ** max(0, stage - first + 1) for first, share in growth))
            for stage in range(1, domains + 1)
        ]
        return cls(base, stages, added, any(method.adds_peft or method.freezes for method in methods))

    def trained(self, stage: int) -> int:
        """Return how many parameters have gradients and optimizer state in a stage."""
        return self.added if self.frozen else self.stages[stage - 1] + self.added


def disk_bytes(run: OpenRun, model: nn.Module) -> int:
    """Return the largest size of the run folder during a run, in bytes: finished stages and current checkpoints.

    A checkpoint holds the model with the added parameters (only the added ones for PEFT), Adam's two moments of each
    trained parameter, and the memory of the methods.
    """
    methods, recipe = run.recipe.methods(), run.recipe
    weight: int = getattr(torch, recipe.run.stage_dtype).itemsize
    sizes = Sizes.of(model, methods, len(recipe.domains))
    costs = costs_of(methods, model)
    peft = any(method.adds_peft for method in methods)
    merges = all(method.merges for method in methods)
    arguments = run.all_arguments()
    written = [
        checkpoints_of(args, run.steps(domain.name)) for args, domain in zip(arguments, recipe.domains, strict=True)
    ]
    trainings = []  # for each stage: number of checkpoints, bytes of a checkpoint, bytes of the finished stage
    for stage, (count, plain) in enumerate(zip(written, sizes.stages, strict=True), 1):
        known, learnt = (sum(cost.saved(domains) for cost in costs) for domains in (stage - 1, stage))
        weights = sizes.added + (0 if peft else plain)
        adapter = sum(cost.adapter_bytes_per_domain for cost in costs) * stage
        left = weight * plain * merges + adapter + learnt
        left += 8 * sizes.trained(stage) if recipe.optimizer == "carry" else 0
        trainings.append((count, 4 * weights + 8 * sizes.trained(stage) + known, left))
    if recipe.evaluation.alone:
        trainings += [(count, 12 * sizes.base, weight * sizes.base) for count in written]
    held = largest = 0
    keep = recipe.run.keep_stages
    kept = len(trainings) if keep == "all" else 1 if keep == "last" else keep
    each = zip(trainings, itertools.cycle(arguments), strict=False)
    for number, ((count, checkpoint, finished), args) in enumerate(each):
        limit = args.save_total_limit or count
        # A new checkpoint is written before the oldest is removed, and a stage before its checkpoints are removed.
        largest = max(
            largest, held + min(count, limit + 1) * checkpoint, held + min(count, limit) * checkpoint + finished
        )
        held += finished
        if kept <= number < len(recipe.domains):  # the weights of a stage that is not kept
            held -= (weight + (8 if recipe.optimizer == "carry" else 0)) * sizes.stages[number - kept] * merges
    return largest


def checkpoints_of(args: TrainingArguments, steps: int) -> int:
    """Return how many checkpoints a stage writes, including the Trainer's last one."""
    strategy = SaveStrategy(args.save_strategy)
    if strategy != SaveStrategy.STEPS:
        return int(strategy == SaveStrategy.EPOCH)  # a stage is one pass over its loader
    every = math.ceil(args.save_steps * steps) if args.save_steps < 1 else args.save_steps
    return math.ceil(steps / every) if every > 0 else 1


def check_disk(run: OpenRun, model: nn.Module) -> str:
    """Compare the space that the run needs with the free space of its disk, and return both in words.

    Raises:
        RunError: the disk has too little free space.
    """
    needed = disk_bytes(run, model)
    place = run.folder.path.absolute()
    while not os.path.lexists(place):
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed > free:
        raise RunError(
            f"The run needs about {size(needed)}, but the disk of {run.folder.path} has {size(free)} free. Free "
            "some, lower `train.save_total_limit`, or set `run.folder` to another disk."
        )
    return f"about {size(needed)} needed, {size(free)} free"
