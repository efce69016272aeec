"""Tensors laid out like parameters, which FSDP2 may have sharded over processes, and models gathered from them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor


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

    What broadcasts to the parameter broadcasts to its shard, and is not expanded.

    Args:
        values: a complete tensor that broadcasts to the complete parameter, or one that is divided like it.
        parameter: a complete parameter or one that FSDP2 has sharded.
        dtype: type of the result; None for that of the parameter.
    """
    if isinstance(parameter, DTensor) and not isinstance(values, DTensor):
        shape = (1,) * (parameter.dim() - values.dim()) + values.shape
        dims = [placement.dim for placement in parameter.placements if isinstance(placement, Shard)]
        if all(shape[dim] == 1 < parameter.shape[dim] for dim in dims):
            return values.to(parameter.device, dtype or parameter.dtype)
        values = values.reshape(shape)
    return local(divided_like(values, parameter)).to(dtype or parameter.dtype)


def divided_like(values: Tensor, parameter: Tensor) -> Tensor:
    """Return a tensor on the device of `parameter`, and divided over the processes if and only if that is.

    Every process must call it.

    Args:
        values: a complete tensor of the parameter's shape, where it is divided, or one that is divided like it.
        parameter: a complete parameter or one that FSDP2 has sharded.
    """
    values = values.to(parameter.device)
    if not isinstance(parameter, DTensor):
        return full_tensor(values)
    mesh, placements = parameter.device_mesh, parameter.placements
    if isinstance(values, DTensor) and (values.device_mesh.shape, values.placements) == (mesh.shape, placements):
        return values
    return distribute_tensor(full_tensor(values).contiguous(), mesh, placements)


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
    sums = terms.detach().clone()
    for group, indices in groups.items():
        shared = sums[indices]
        torch.distributed.all_reduce(shared, group=group)
        sums[indices] = shared
    return sums


def local_part(tensor: Tensor) -> Tensor:
    """Return the shard of a tensor on this process, with its gradient."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def value_over_shards(terms: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Sum terms of this process, one per parameter, over all shards, with the gradient of the local terms only.

    Each process differentiates its own shard only, so nothing may flow back through the sum over processes.
    """
    return terms + (sum_over_shards(terms, parameters) - terms.detach())


def is_divided(model: nn.Module) -> bool:
    """Return whether FSDP2 has divided the weights of a model over the processes."""
    return any(isinstance(weight, DTensor) for weight in model.parameters())


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the complete tensor on every process; every process must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def of_shard(values: Tensor, parameter: Tensor) -> Tensor:
    """Return the tensor of which `values` is this process's part, if it is divided like `parameter`."""
    if not isinstance(parameter, DTensor):
        return values
    mesh, shape, stride = parameter.device_mesh, parameter.shape, parameter.stride()
    return DTensor.from_local(values, mesh, parameter.placements, shape=shape, stride=stride)


def kept(values: Tensor, parameter: Tensor) -> Tensor:
    """Return this process's part of a tensor for the memory: divided like the parameter, or in the host's memory."""
    return of_shard(values, parameter) if isinstance(parameter, DTensor) and values.dim() else values.cpu()


def gathered_on_one(tensors: Mapping[str, Tensor], keeps: bool) -> dict[str, Tensor]:
    """Gather tensors one after the other into the host's memory of the process that keeps them; all must call it."""
    complete = {}
    for name, tensor in tensors.items():
        value = full_tensor(tensor)
        if keeps:
            complete[name] = value.cpu()
    return complete


def shared_parameters(model: nn.Module) -> list[str]:
    """Return the parameters that several modules hold, apart from the embedding that is also the output projection.

    FSDP2 shards a parameter within one group of modules, and accelerate puts only that pair into one group, unless the
    embedding is in a module that transformers never splits.
    """
    getters = [getattr(model, name, None) for name in ("get_input_embeddings", "get_output_embeddings")]
    in_layers = {id(part) for layer in layers_of(model) for part in layer.modules()}
    pair = {id(getter()) for getter in getters if getter is not None} - in_layers
    names: dict[int, str] = {}
    holders: dict[int, set[int]] = {}
    for path, module in model.named_modules():
        for leaf, weight in module.named_parameters(recurse=False):
            names.setdefault(id(weight), f"{path}.{leaf}")
            holders.setdefault(id(weight), set()).add(id(module))
    return [names[weight] for weight, modules in holders.items() if len(modules) > 1 and not modules <= pair]


def layers_of(model: Any) -> list[nn.Module]:
    """Return the layers: the outermost modules of the classes that transformers never splits."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    inside = {id(part) for module in layers for part in module.modules() if part is not module}
    return [module for module in layers if id(module) not in inside]


def gathered_together(model: Any) -> list[nn.Module]:
    """Return the modules whose weights FSDP2 gathers and frees one after the other: layers, and the embedding."""
    modules = layers_of(model)
    getters = (getattr(model, name, lambda: None) for name in ("get_input_embeddings", "get_output_embeddings"))
    embedding, head = (getter() for getter in getters)
    if embedding is not None and getattr(head, "weight", None) is not embedding.weight:
        modules.append(embedding)
    return modules


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
        return _with_weights(self.model, sharded, lambda weight, _: full_tensor(weight).contiguous())

    def divided(self, model: nn.Module) -> nn.Module:
        """Return the plain model with a shard of each weight on every process, for FSDP2; all processes must call it.

        It computes in the number format of its weights, without the mixed precision of training.

        Args:
            model: a complete model, or one whose weights are shards; these are shared, not copied.
        """
        mesh = _mesh(next(model.parameters()))
        plain = copy.deepcopy(self.model)
        for module in [*gathered_together(plain), plain]:
            fully_shard(module, mesh=mesh)

        def shard(weight: Tensor, blank: Any) -> Tensor:
            if isinstance(weight, DTensor):
                return weight.to(mesh.device_type)
            return distribute_tensor(weight, mesh, blank.placements)

        return _with_weights(plain, model, shard)


def divide_layers(model: nn.Module, trained: nn.Module) -> None:
    """Divide the layers of a frozen model over the processes, as FSDP2 has divided a trained one; all must call it.

    A layer is gathered for its pass, and freed after it. All other weights stay complete, on the device of the pass:
    the embedding and the head, which may be called without the rest.
    """
    mesh = _mesh(next(trained.parameters()))
    for layer in layers_of(model):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    model.to(mesh.device_type)  # not that of the trained shards, which `cpu_offload` leaves on the host


@torch.no_grad()
def refill(sharded: nn.Module, plain: nn.Module) -> None:
    """Copy the weights of a complete model into one of the same structure that FSDP2 has divided."""
    weights = dict(plain.named_parameters())
    for name, weight in sharded.named_parameters():
        local(weight).copy_(shard_like(weights[name], weight))


@contextlib.contextmanager
def on_host(model: nn.Module) -> Iterator[None]:
    """Keep a model in the host's memory inside the block."""
    device = next(model.parameters()).device
    try:
        model.cpu()
        yield
    finally:
        model.to(device)


@contextlib.contextmanager
def divided(model: nn.Module) -> Iterator[nn.Module]:
    """Yield a complete model divided over the processes; its complete weights are in the host's memory meanwhile."""
    parts = Blueprint(model).divided(model)
    with on_host(model):
        yield parts


def _mesh(weight: Tensor) -> DeviceMesh:
    if isinstance(weight, DTensor):
        return weight.device_mesh
    return init_device_mesh(weight.device.type, (torch.distributed.get_world_size(),))


def _with_weights(plain: nn.Module, model: nn.Module, make: Callable[[Tensor, Any], Tensor]) -> nn.Module:
    """Replace the weights of `plain` by those made from the ones of `model` and the blank ones; tied ones stay tied."""
    weights = dict(model.named_parameters(remove_duplicate=False))
    new: dict[int, nn.Parameter] = {}
    for name, blank in list(plain.named_parameters(remove_duplicate=False)):
        if id(blank) not in new:
            new[id(blank)] = nn.Parameter(make(weights[name].detach(), blank), blank.requires_grad)
        path, _, leaf = name.rpartition(".")
        plain.get_submodule(path)._parameters[leaf] = new[id(blank)]
    return plain
