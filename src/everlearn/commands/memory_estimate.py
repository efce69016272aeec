"""Estimate the memory of each device in training, for `everlearn plan` and the batch size that `everlearn init` writes.

Weights, gradients, optimizer state and the tensors of methods are counted from shapes; activations are traced
(:mod:`everlearn.commands.activation_trace`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves
from transformers import Trainer, TrainingArguments

from everlearn.commands.activation_trace import Traced, trace, without_numbers
from everlearn.methods.cost import Cost
from everlearn.model.objectives import Objective
from everlearn.model.quantising import quantised_bytes
from everlearn.model.sharding import gathered_together
from everlearn.run.disk import Sizes

ROOM = 0.9
"""Share of a device's memory that the estimate may use; the rest is for the libraries, fragments of freed memory and
the error of the estimate."""
ACTIVATIONS, GATHERED, COPIES = "activations", "gathered layers", "weights in 16 bits"
MEASURED, COMPLETE = "what is measured", "the complete model"
ESTIMATED = (ACTIVATIONS, GATHERED, COPIES)
"""Parts that are estimates; the others are exact."""
OPTIMIZER = "optimizer"
QUANTISED_FROM, QUANTISED_BLOCK = 4096, 256
"""Of bitsandbytes: smallest tensor whose moments have 8 bits, and the numbers that share a scale (float32)."""
ADAM = 8
"""Bytes per number of Adam's two moments in float32."""


@dataclass(frozen=True)
class Setup:
    """The training settings on which the memory of a device depends.

    Attributes:
        rows: rows in a batch of one device.
        half: whether the computation is in 16 bits.
        checkpointing: whether layers are computed again in the backward pass.
        devices: number of devices, each with a process.
        sharded: whether FSDP2 divides the model over them; otherwise each has all of it (DDP).
        wraps: whether FSDP2 gathers one layer at a time.
        reshards: whether FSDP2 frees a gathered layer after its forward pass.
    """

    rows: int
    half: bool = False
    checkpointing: bool = False
    devices: int = 1
    sharded: bool = False
    wraps: bool = True
    reshards: bool = True

    @classmethod
    def of(cls, args: TrainingArguments, devices: int) -> Setup:
        """Read the training arguments."""
        fsdp: Mapping[str, Any] = args.fsdp_plugin_args or {} if args.fsdp else {}
        return cls(
            rows=args.per_device_train_batch_size,
            half=bool(args.bf16 or args.fp16),
            checkpointing=bool(args.activation_checkpointing or fsdp.get("activation_checkpointing")),
            devices=devices,
            sharded=bool(args.fsdp) and devices > 1,
            wraps=fsdp.get("auto_wrap_policy") != "NO_WRAP",
            reshards=bool(fsdp.get("reshard_after_forward", True)),
        )

    @property
    def over(self) -> int:
        """Return the number of devices that share each weight."""
        return self.devices if self.sharded else 1

    @property
    def distribution(self) -> str:
        """Return how the model lies on several devices; "" with one."""
        return "" if self.devices == 1 else "FSDP2" if self.sharded else "DDP"


class Held(NamedTuple):
    """The memory of one device, in bytes by use.

    Attributes:
        step: at the peak of a step.
        between: between two domains, while methods measure or FSDP2's shards are gathered; empty if neither happens.
    """

    step: dict[str, int]
    between: dict[str, int]

    @property
    def peak(self) -> int:
        """Return the most bytes held."""
        return max(sum(self.step.values()), sum(self.between.values()))


class MemoryEstimate:
    """The memory of a device under different setups.

    Args:
        model: a model on any device, of which only shapes are read; parameters without gradient are frozen.
        sizes: numbers of parameters of the run.
        costs: label of each method → its cost.
        objective: computes the loss.
        block_size: tokens in a row.
        args: names the optimizer; None for AdamW.
        quantised: options of quantisation of the weights, if any.
        shards: whether the methods measure on shards under FSDP2; otherwise each device has the complete model then.
        carried: whether the next domain gets the optimizer's state; otherwise it is freed before anything is measured.
    """

    def __init__(
        self,
        model: nn.Module,
        sizes: Sizes,
        costs: Mapping[str, Cost],
        objective: Objective,
        block_size: int,
        args: TrainingArguments | None = None,
        quantised: dict[str, Any] | None = None,
        shards: bool = False,
        carried: bool = False,
    ) -> None:
        self.model, self.sizes, self.costs = model, sizes, costs
        self._objective, self._block_size, self._quantised = objective, block_size, quantised
        self._args, self._shards, self._carried = args, shards, carried
        self._traced: dict[tuple[int, bool, bool], Traced] = {}
        self._states: dict[int, int] = {}
        self.optimizer_is_exact = True

    @property
    def trained(self) -> list[nn.Parameter]:
        """Return the parameters of the model that are trained, without those that methods add."""
        return [] if self.sizes.frozen else [each for each in self.model.parameters() if each.requires_grad]

    @property
    def trained_numbers(self) -> int:
        """Return how many numbers have gradients and optimizer state in the last stage."""
        return round(self._growth * sum(parameter.numel() for parameter in self.trained)) + self.sizes.added

    def held(self, setup: Setup) -> Held:
        """Return what a device holds."""
        fixed = self.fixed(setup)
        traced = self._trace(setup.rows, setup.half, setup.checkpointing)
        wider = 1 + sum(cost.passes_per_step for cost in self.costs.values())
        copies = {} if setup.sharded or not setup.half else {COPIES: traced.copies}
        step = fixed.step | copies | {ACTIVATIONS: round(traced.activations * wider)}
        moments = self._between(setup)
        if any(MEASURED in parts for parts in moments):  # which is done without mixed precision
            measuring = self._trace(setup.rows, half=False, checkpointing=False).activations
            moments = [parts | ({ACTIVATIONS: measuring} if MEASURED in parts else {}) for parts in moments]
        return Held(step, max(moments, key=_sum, default={}))

    def fixed(self, setup: Setup) -> Held:
        """Return the part of :meth:`held` that does not depend on the batch."""
        over, kept = setup.over, self._kept(setup)
        trained = self._numbers(over, self.trained)
        step = kept | {"gradients": 4 * trained}
        if setup.distribution == "DDP":
            step |= {"buckets of gradients (DDP)": 4 * trained}
        if setup.sharded:
            step |= {GATHERED: self._gathered(setup)}
        return Held(step, max(self._between(setup), key=_sum, default={}))

    def _kept(self, setup: Setup) -> dict[str, int]:
        """Return what is held in a step and between two domains."""
        over, weights = setup.over, 4 * self._numbers(setup.over)
        if self._quantised is not None:
            weights = quantised_bytes(self.model, self._quantised) + 4 * self.sizes.added
            weights += max((cost.exact_bytes for cost in self.costs.values()), default=0)
        return {"weights": weights, OPTIMIZER: self._optimizer(over)} | {
            f"method {name}": _share(cost.memory_bytes, over) + (cost.undivided_bytes if setup.sharded else 0)
            for name, cost in self.costs.items()
            if cost.memory_bytes
        }

    def _between(self, setup: Setup) -> list[dict[str, int]]:
        """Return what is held at each moment between two domains, without activations."""
        kept = self._kept(setup)
        if not self._carried:
            del kept[OPTIMIZER]
        most = max((cost.measuring_bytes for cost in self.costs.values()), default=0)
        measured = {MEASURED: most} if most else {}
        if not setup.sharded:
            return [kept | measured] if measured else []
        saved = kept | {COMPLETE: 4 * self._numbers(1)}
        if not (measured and self._shards):
            return [saved | measured]
        layers = self._gathered(replace(setup, half=False, wraps=True, reshards=True))
        return [saved, kept | {MEASURED: _share(most, setup.over), GATHERED: layers}]

    @property
    def _growth(self) -> float:
        return self.sizes.stages[-1] / self.sizes.base

    def _numbers(self, over: int, parameters: Sequence[nn.Parameter] | None = None) -> int:
        """Return how many numbers a device holds of these parameters (of all by default) and of the added ones."""
        own = self.model.parameters() if parameters is None else parameters
        return round(self._growth * sum(_shard(p.shape, over).numel() for p in own)) + _share(self.sizes.added, over)

    def _optimizer(self, over: int) -> int:
        """Return the bytes of the optimizer's state; a growing model's grows with it."""
        if over not in self._states:
            shapes = [_shard(parameter.shape, over) for parameter in self.trained]
            shapes += [torch.Size([_share(self.sizes.added, over)])] if self.sizes.added else []
            own, exact = (ADAM * sum(map(math.prod, shapes)), True)
            if self._args is not None:
                own, exact = optimizer_bytes(self._args, shapes)
            self.optimizer_is_exact &= exact
            self._states[over] = round(own * (self._growth if not self.sizes.frozen else 1))
        return self._states[over]

    def _trace(self, rows: int, half: bool, checkpointing: bool) -> Traced:
        key = (rows, half, checkpointing)
        if key not in self._traced:
            self._traced[key] = trace(
                self.model,
                self._objective,
                rows,
                self._block_size,
                half=half,
                checkpointing=checkpointing,
                shapes=self._shapes,
            )
        return self._traced[key]

    @cached_property
    def _shapes(self) -> nn.Module:
        return without_numbers(self.model)

    def _gathered(self, setup: Setup) -> int:
        """Estimate the complete weights and gradients that a device holds for a moment under FSDP2.

        Accelerate divides the model into layers, the embedding, and the rest with the output head. The rest is kept
        between forward and backward pass. A layer is gathered while the one before it computes, into a buffer first;
        its gradients are complete until they are summed over the devices, from a buffer too.
        """
        number = 2 if setup.half else 4
        total = sum(parameter.numel() for parameter in self.model.parameters())
        together = gathered_together(self.model) if setup.wraps else []
        units = [sum(parameter.numel() for parameter in module.parameters()) for module in together]
        rest = total - sum(units)
        if not setup.reshards:
            return number * (total + rest + 3 * max(units, default=0))
        return number * (2 * rest + 5 * max(units, default=0))


def _shard(shape: torch.Size, over: int) -> torch.Size:
    """Return the shape of the largest shard of a parameter, which FSDP2 divides along its first dimension."""
    return torch.Size([_share(shape[0], over), *shape[1:]]) if len(shape) else shape


def _sum(parts: dict[str, int]) -> int:
    return sum(parts.values())


def _share(number: int, over: int) -> int:
    return -(-number // over)


def memory_free() -> tuple[int | None, str]:
    """Return the free memory for training in bytes, or None if unknown, and the name of its device."""
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        return free, torch.cuda.get_device_name()
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
        limit = Path("/sys/fs/cgroup/memory.max")  # of a container
        if limit.is_file() and (text := limit.read_text().strip()).isdigit():
            free = min(free, int(text))
    except (OSError, StopIteration, ValueError):
        return None, "this machine"
    return free, "this machine"


def optimizer_bytes(args: TrainingArguments, shapes: Sequence[torch.Size]) -> tuple[int, bool]:
    """Return the bytes of the state after a step, and whether they are exact.

    Optimizers of torch make a step on fake tensors, which have only shapes. Adafactor and the 8-bit optimizers of
    bitsandbytes, whose steps need numbers, are counted by their rules, and all others like AdamW.

    Args:
        args: the arguments that name the optimizer.
        shapes: the shapes of the parameters, or of a device's shards of them.
    """
    name = str(getattr(args.optim, "value", args.optim))
    if "8bit" in name:
        return sum(map(_of_eight_bits, shapes)), True
    if name == "adafactor":
        return sum(map(_factored, shapes)) + 4 * len(shapes), True  # and the size of each parameter
    try:
        return _of_a_step(args, shapes), True
    except Exception:  # a package that is not installed here, or a step that reads numbers
        return ADAM * sum(shape.numel() for shape in shapes), name.startswith("adamw")


def _of_a_step(args: TrainingArguments, shapes: Sequence[torch.Size]) -> int:
    """Return the bytes of the state of parameters after a step with one of each shape, which a large model repeats."""
    cls, options = Trainer.get_optimizer_cls_and_kwargs(args)
    times = Counter(shapes)
    with FakeTensorMode():
        parameters = [nn.Parameter(torch.empty(shape, device="cpu")) for shape in times]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        optimizer: torch.optim.Optimizer = cls(parameters, **options)
        optimizer.step()
        states: Any = [(times[parameter.shape], tree_leaves(state)) for parameter, state in optimizer.state.items()]
        return sum(n * each.nbytes for n, state in states for each in state if isinstance(each, torch.Tensor))


def _of_eight_bits(shape: torch.Size) -> int:
    numbers = shape.numel()
    if numbers < QUANTISED_FROM:
        return ADAM * numbers
    return 2 * numbers + 2 * 4 * math.ceil(numbers / QUANTISED_BLOCK)


def _factored(shape: torch.Size) -> int:
    """Return the bytes of Adafactor's row and column means, or of its second moment of a vector."""
    if len(shape) < 2:
        return 4 * shape.numel()
    return 4 * (shape[:-1].numel() + shape[:-2].numel() * shape[-1])
