"""Operations on tensors that are laid out like parameters, which FSDP2 may have sharded over processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor


def resharded(model: nn.Module) -> None:
    """Reshard the parameters after a forward pass that no backward pass follows.

    FSDP2 keeps the outermost parameters gathered until a backward pass, and would add the gradients of the next step to
    the gathered ones.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local(tensor: Tensor) -> Tensor:
    """Return the shard of a tensor on this process, outside autograd."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.data


def shard_like(values: Tensor, parameter: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the shard of `values` that corresponds to this process's shard of `parameter`, on its device.

    Args:
        values: a complete tensor that broadcasts to the complete parameter.
        parameter: a complete parameter or one that FSDP2 has sharded.
        dtype: type of the result; None for that of the parameter.
    """
    dtype = dtype or parameter.dtype
    if isinstance(parameter, DTensor):
        whole = values.to(parameter.device).expand(parameter.shape).contiguous()
        return distribute_tensor(whole, parameter.device_mesh, parameter.placements).to_local().to(dtype)
    return values.to(device=parameter.device, dtype=dtype)


def sum_over_shards(terms: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Sum terms of this process, one per parameter, over all shards of each parameter; without gradient.

    Every process must call it with the same parameters.
    """
    groups: dict[torch.distributed.ProcessGroup, list[int]] = {}
    for index, parameter in enumerate(parameters):
        if isinstance(parameter, DTensor):
            for dim, placement in enumerate(parameter.placements):
                if placement.is_shard():
                    groups.setdefault(parameter.device_mesh.get_group(dim), []).append(index)
    whole = terms.detach().clone()
    for group, indices in groups.items():
        shared = whole[indices]
        torch.distributed.all_reduce(shared, group=group)
        whole[indices] = shared
    return whole


def local_part(tensor: Tensor) -> Tensor:
    """Return the shard of a tensor on this process, with its gradient."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def value_over_shards(terms: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Sum terms of this process, one per parameter, over all shards, with the gradient of the local terms only.

    Each process differentiates its own shard only, so nothing may flow back through the sum over processes.
    """
    return terms + (sum_over_shards(terms, parameters) - terms.detach())


def whole(tensor: Tensor) -> Tensor:
    """Return the complete tensor on every process; every process must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gathered(values: Tensor, parameter: Tensor) -> Tensor:
    """Gather the shards of a tensor that is laid out like `parameter`; every process must call it."""
    if not isinstance(parameter, DTensor):
        return values
    mesh, shape, stride = parameter.device_mesh, parameter.shape, parameter.stride()
    return DTensor.from_local(values, mesh, parameter.placements, shape=shape, stride=stride).full_tensor()
