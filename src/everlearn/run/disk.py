"""How much a run writes: finished stages, and the checkpoints of the one that is being learnt."""

from __future__ import annotations

import itertools
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from transformers import TrainingArguments
from transformers.trainer_utils import SaveStrategy

from everlearn.errors import RunError
from everlearn.methods.base import Method
from everlearn.run.open_run import OpenRun
from everlearn.wording import size


@dataclass(frozen=True)
class Sizes:
    """Numbers of parameters."""

    base: int
    """Of the plain model, before the first stage."""
    stages: list[int]
    """Of the plain model, in each stage."""
    added: int
    """By methods, beside the plain model, while a domain is learnt."""
    frozen: bool
    """Whether nothing but what is added is trained."""

    @classmethod
    def of(cls, model: nn.Module, methods: Sequence[Method], domains: int) -> Sizes:
        """Of a run; a model that grows is taken to grow each time by the same share."""
        base = sum(parameter.numel() for parameter in model.parameters())
        growth = [(method.grows, 1 + method.cost(model).parameters / base) for method in methods if method.grows]
        added = sum(method.cost(model).parameters for method in methods if not method.grows)
        stages = [
            round(base * math.prod(share ** max(0, stage - first + 1) for first, share in growth))
            for stage in range(1, domains + 1)
        ]
        return cls(base, stages, added, any(method.adds_peft or method.freezes for method in methods))

    def trained(self, stage: int) -> int:
        """With gradients and optimizer state in a stage."""
        return self.added if self.frozen else self.stages[stage - 1] + self.added


def disk_bytes(run: OpenRun, model: nn.Module) -> int:
    """Bytes of a run folder at its largest: finished stages, and the checkpoints of the one that is being learnt.

    A checkpoint is the model with what is added to it (that alone, where it is PEFT's), two numbers of Adam's for each
    trained parameter, and what the methods remember.
    """
    methods, recipe = run.recipe.methods(), run.recipe
    sizes = Sizes.of(model, methods, len(recipe.domains))
    costs = [method.cost(model) for method in methods]
    peft = any(method.adds_peft for method in methods)
    merges = all(method.merges for method in methods)
    arguments = run.all_arguments()
    written = [
        checkpoints_of(args, run.steps(domain.name)) for args, domain in zip(arguments, recipe.domains, strict=True)
    ]
    trainings = []  # checkpoints, bytes of one, bytes of what is left
    for stage, (count, plain) in enumerate(zip(written, sizes.stages, strict=True), 1):
        known, learnt = (sum(cost.saved(domains) for cost in costs) for domains in (stage - 1, stage))
        weights = sizes.added + (0 if peft else plain)
        adapter = sum(cost.adapter_bytes_per_domain for cost in costs) * stage
        left = 4 * plain * merges + adapter + learnt + (8 * sizes.trained(stage) if recipe.optimizer == "carry" else 0)
        trainings.append((count, 4 * weights + 8 * sizes.trained(stage) + known, left))
    if recipe.evaluation.alone:
        trainings += [(count, 12 * sizes.base, 4 * sizes.base) for count in written]
    held = largest = 0
    keep = recipe.run.keep_stages
    kept = len(trainings) if keep == "all" else 1 if keep == "last" else keep
    each = zip(trainings, itertools.cycle(arguments), strict=False)
    for number, ((count, checkpoint, finished), args) in enumerate(each):
        limit = args.save_total_limit or count
        # A new checkpoint is written before the oldest goes, and a stage before its checkpoints go.
        largest = max(
            largest, held + min(count, limit + 1) * checkpoint, held + min(count, limit) * checkpoint + finished
        )
        held += finished
        if kept <= number < len(recipe.domains):  # the weights of a stage that is not kept
            held -= (12 if recipe.optimizer == "carry" else 4) * sizes.stages[number - kept] * merges
    return largest


def checkpoints_of(args: TrainingArguments, steps: int) -> int:
    """How many checkpoints a stage writes: the Trainer writes one at the end too, unless it writes none at all."""
    strategy = SaveStrategy(args.save_strategy)
    if strategy != SaveStrategy.STEPS:
        return int(strategy == SaveStrategy.EPOCH)  # a stage is one pass over its loader
    every = math.ceil(args.save_steps * steps) if args.save_steps < 1 else args.save_steps
    return math.ceil(steps / every) if every > 0 else 1


def check_disk(run: OpenRun, model: nn.Module) -> str:
    """What the run needs, and what its disk has free, in words.

    Raises:
        RunError: it has less.
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
