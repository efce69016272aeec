"""Tensors laid out like parameters, which FSDP2 may have sharded over processes, and models gathered from them."""

from __future__ import annotations

import copy
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


def shared_parameters(model: nn.Module) -> list[str]:
    """Return the parameters that several modules hold, apart from the embedding that is also the output projection.

    FSDP2 shards a parameter within one group of modules, and accelerate puts only that pair into one group.
    """
    getters = [getattr(model, name, None) for name in ("get_input_embeddings", "get_output_embeddings")]
    pair = {id(getter()) for getter in getters if getter is not None}
    names: dict[int, str] = {}
    holders: dict[int, set[int]] = {}
    for path, module in model.named_modules():
        for leaf, weight in module.named_parameters(recurse=False):
            names.setdefault(id(weight), f"{path}.{leaf}")
            holders.setdefault(id(weight), set()).add(id(module))
    return [names[weight] for weight, modules in holders.items() if len(modules) > 1 and not modules <= pair]


class Blueprint:
    """The structure of a model without its weights, taken before it is sharded and filled after training.

    Sharding changes the modules of a model for good, but methods measure importance on a plain model, and a stage
    folder holds one.

    Args:
        model: any model, with or without adapters or tied weights; it is not changed.
    """

    def __init__(self, model: nn.Module) -> None:
        blank = {
            id(weight): nn.Parameter(torch.empty_like(weight, device="meta"), weight.requires_grad)
            for weight in model.parameters()
        }
        # deepcopy does not copy what is in its memo, so that no second model is ever in memory.
        self.model: nn.Module = copy.deepcopy(model, dict(blank))

    def filled(self, sharded: nn.Module) -> nn.Module:
        """Return the plain model with the gathered weights on every process; all processes must call it."""
        weights = dict(sharded.named_parameters(remove_duplicate=False))
        complete: dict[int, nn.Parameter] = {}
        for name, blank in list(self.model.named_parameters(remove_duplicate=False)):
            if id(blank) not in complete:
                complete[id(blank)] = nn.Parameter(whole(weights[name].detach()).contiguous(), blank.requires_grad)
            path, _, leaf = name.rpartition(".")
            self.model.get_submodule(path)._parameters[leaf] = complete[id(blank)]
        return self.model
