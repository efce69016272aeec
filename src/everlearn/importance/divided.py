"""Sum |gₙ|ᵖ over the samples of a model that FSDP2 has divided over the processes; the sums are divided likewise.

All processes are given the same samples, and each runs its share of them forward and backward, one at a time. In a
backward pass FSDP2 has the complete gradient of one layer after the other, and adds up those of all processes in the
shards. Before that, every gradient is raised to its power here, so what is added up is |gₙ|ᵖ: after the last sample,
the shards in ``.grad`` are the sums. No process holds complete gradients of more than a layer, and the work is shared
out too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


@dataclass
class GradientPowers:
    """Replace the gradient of each gathered weight by |g|ᵖ, before FSDP2 adds up those of all processes.

    Attributes:
        power: returns |g|ᵖ.
        factor: what it is multiplied by; 0 where a process has no sample left and only takes part in the sums.
    """

    power: Callable[[Tensor], Tensor]
    factor: float = 1.0
    _hooked: dict[int, Tensor] = field(default_factory=dict)

    def hook_gathered_weights(self, module: nn.Module, _: Any) -> None:
        """Add a hook to the weights that FSDP2 has gathered for this module; those of the modules inside are shards."""
        for weight in module.parameters():
            if weight.requires_grad and not isinstance(weight, DTensor) and id(weight) not in self._hooked:
                self._hooked[id(weight)] = weight
                weight.register_hook(lambda gradient: self.power(gradient).mul_(self.factor))


def divided_sums(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    samples: Iterable[tuple[Mapping[str, Tensor], float]],
    mean_loss: Callable[[nn.Module, Mapping[str, Tensor]], Tensor],
    power: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """Return Σ w |g|ᵖ over samples as shards by name; all processes must call it, with the same samples.

    Args:
        model: the divided model.
        weights: the weights to measure, by name.
        samples: what the gradients are computed for one by one, and the weight of each in the sum.
        mean_loss: function of (model, sample) that returns a scalar loss.
        power: returns |g|ᵖ.
    """
    rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    powers = GradientPowers(power)
    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                hooks.enter_context(module.register_forward_pre_hook(powers.hook_gathered_weights))
        for group in _groups(samples, processes):
            own, weight = group[min(rank, len(group) - 1)]
            powers.factor = weight if rank < len(group) else 0.0
            mean_loss(model, own).backward()
    # FSDP2 divides what it adds up by the number of processes.
    sums = {name: _pop_gradient(weight).mul_(processes) for name, weight in weights.items()}
    model.zero_grad()
    return sums


def _pop_gradient(weight: Tensor) -> Tensor:
    gradient, weight.grad = weight.grad, None
    return torch.zeros_like(weight, requires_grad=False) if gradient is None else gradient


def _groups(samples: Iterable[Any], size: int) -> Iterator[Sequence[Any]]:
    group: list[Any] = []
    for sample in samples:
        group.append(sample)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
