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
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from everlearn.model.sharding import full_tensor


@dataclass
class GradientPowers:
    """Replace the gradient of each gathered weight by |g|ᵖ, before FSDP2 adds up those of all processes.

    Attributes:
        power: returns |g|ᵖ.
        constant: c by name, divided like the weights. Where there is one, |g + c|ᵖ − |c|ᵖ takes the place of |g|ᵖ.
        factor: what it is multiplied by; 0 where a process has no sample left and only takes part in the sums.
    """

    power: Callable[[Tensor], Tensor]
    constant: Mapping[str, Tensor]
    factor: float = 1.0
    _hooked: dict[int, RemovableHandle] = field(default_factory=dict)

    def hook_gathered_weights(self, path: str, module: nn.Module, _: Any) -> None:
        """Add a hook to the weights that FSDP2 has gathered for this module; those of the modules inside are shards."""
        for name, weight in module.named_parameters(path):
            if weight.requires_grad and not isinstance(weight, DTensor) and id(weight) not in self._hooked:
                self._hooked[id(weight)] = weight.register_hook(partial(self._raised, name))

    def _raised(self, name: str, gradient: Tensor) -> Tensor:
        if name not in self.constant:
            return self.power(gradient).mul_(self.factor)
        constant = full_tensor(self.constant[name])
        return self.power(gradient + constant).sub_(self.power(constant)).mul_(self.factor)

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._hooked.values():
            handle.remove()


def divided_sums(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    samples: Iterable[tuple[Mapping[str, Tensor], float]],
    mean_loss: Callable[[nn.Module, Mapping[str, Tensor]], Tensor],
    power: Callable[[Tensor], Tensor],
    constant: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return Σ w |g + c|ᵖ over samples as shards by name; all processes must call it, with the same samples.

    Args:
        model: the divided model.
        weights: the weights to measure, by name.
        samples: what the gradients are computed for one by one, and the weight of each in the sum.
        mean_loss: function of (model, sample) that returns a scalar loss.
        power: returns |g|ᵖ.
        constant: c, the same for all samples, by name and divided like the weights; 0 where it has none.
    """
    rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    powers, weights_of_all = GradientPowers(power, constant), 0.0
    with ExitStack() as hooks:
        hooks.callback(powers.remove)
        modules: dict[str, nn.Module] = dict(model.named_modules())
        for path, module in modules.items():
            if isinstance(module, FSDPModule):
                hook = partial(powers.hook_gathered_weights, path)
                hooks.enter_context(module.register_forward_pre_hook(hook))
        for group in _groups(samples, processes):
            own, weight = group[min(rank, len(group) - 1)]
            weights_of_all += sum(weight for _, weight in group)
            powers.factor = weight if rank < len(group) else 0.0
            mean_loss(model, own).backward()
    # FSDP2 divides what it adds up by the number of processes.
    sums = {name: _pop_gradient(weight).mul_(processes) for name, weight in weights.items()}
    for name, value in constant.items():
        sums[name].add_(power(value), alpha=weights_of_all)
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
