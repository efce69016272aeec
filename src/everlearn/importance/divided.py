"""Sum |gₙ|ᵖ over the samples of a model that FSDP2 has divided over the processes; the sums are divided likewise.

All processes are given the same samples, and each runs its share of them forward and backward, one at a time. In a
backward pass FSDP2 has the complete gradient of one layer after the other, and adds up those of all processes in the
shards. Before that, every gradient is raised to its power here, so what is added up is |gₙ|ᵖ: after the last sample,
the shards in ``.grad`` are the sums. No process holds complete gradients of more than a layer, and the work is shared
out too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


@dataclass
class Raised:
    """Raise the gradient of each gathered weight to a power, before FSDP2 adds it to those of other processes.

    Attributes:
        raise_: returns |g|ᵖ.
        factor: what it is multiplied by; 0 where a process has no sample left and only takes part in the sums.
    """

    raise_: Callable[[Tensor], Tensor]
    factor: float = 1.0
    _known: dict[int, Tensor] = field(default_factory=dict)

    def gathered(self, module: nn.Module, _: Any) -> None:
        """Watch the weights that FSDP2 has gathered for this module; those of the modules inside are shards still."""
        for weight in module.parameters():
            if weight.requires_grad and not isinstance(weight, DTensor) and id(weight) not in self._known:
                self._known[id(weight)] = weight
                weight.register_hook(lambda gradient: self.raise_(gradient).mul_(self.factor))


def divided_sums(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    samples: Iterable[tuple[Mapping[str, Tensor], float]],
    mean_loss: Callable[[nn.Module, Mapping[str, Tensor]], Tensor],
    raise_: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """Return Σ w |g|ᵖ over samples as shards by name; all processes must call it, with the same samples.

    Args:
        model: the divided model.
        weights: the weights to measure, by name.
        samples: what the gradients are computed for one by one, and the weight of each in the sum.
        mean_loss: function of (model, sample) that returns a scalar loss.
        raise_: returns |g|ᵖ.
    """
    rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    raised = Raised(raise_)
    hooks = [m.register_forward_pre_hook(raised.gathered) for m in model.modules() if isinstance(m, FSDPModule)]
    try:
        for some in _by(processes, samples):
            own, weight = some[min(rank, len(some) - 1)]
            raised.factor = weight if rank < len(some) else 0.0
            mean_loss(model, own).backward()
    finally:
        for hook in hooks:
            hook.remove()
    # FSDP2 divides what it adds up by the number of processes.
    sums = {name: _taken(each).mul_(processes) for name, each in weights.items()}
    model.zero_grad()
    return sums


def _taken(weight: Tensor) -> Tensor:
    gradient, weight.grad = weight.grad, None
    return torch.zeros_like(weight, requires_grad=False) if gradient is None else gradient


def _by(size: int, samples: Iterable[Any]) -> Iterator[Sequence[Any]]:
    some: list[Any] = []
    for sample in samples:
        some.append(sample)
        if len(some) == size:
            yield some
            some = []
    if some:
        yield some
