"""An optimizer's state, carried from one domain to the next by the names of the parameters (`optimizer: carry`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from everlearn import files
from everlearn.errors import RunError

TENSORS, FACTS = "optimizer.safetensors", "optimizer.json"
TABLES = ("qmap", "absmax")
"""What bitsandbytes keeps beside moments in 8 bits, in a shape of its own."""
Carried = tuple[dict[str, Tensor], dict[str, Any]]
"""Whole tensors under "<key>/<parameter>", and JSON: the optimizer's class, its numbers, the parameters' names."""


def state_of(model: nn.Module, optimizer: Optimizer) -> Carried:
    """The state of every trained parameter, gathered; every process must call it.

    Args:
        model: as it is trained, without a distributed wrapper.
        optimizer: of its parameters.
    """
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, float] = {}
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                whole = value.full_tensor() if isinstance(value, DTensor) else value
                tensors[f"{key}/{name}"] = whole.detach().cpu()
            else:
                numbers[f"{key}/{name}"] = value
    return tensors, {"optimizer": type(optimizer).__name__, "parameters": list(parameters), "numbers": numbers}


def save(folder: Path, carried: Carried) -> None:
    """Write it into a stage folder; plain SGD has no tensors, and then there is no file of them."""
    if carried[0]:
        files.save_tensors(folder / TENSORS, carried[0])
    files.write_json(folder / FACTS, carried[1])


def load(folder: Path) -> Carried:
    """Read it from a stage folder."""
    tensors = folder / TENSORS
    return files.load_tensors(tensors) if tensors.is_file() else {}, files.read_json(folder / FACTS)


def restore(carried: Carried, model: nn.Module, optimizer: Optimizer) -> None:
    """Let an optimizer go on from a carried state; learning rates and other settings stay its own.

    Raises:
        RunError: it is another optimizer, or of other parameters.
    """
    tensors, facts = carried
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if type(optimizer).__name__ != facts["optimizer"]:
        raise RunError(
            f"The state of the domain before is of the optimizer {facts['optimizer']}, but this domain has "
            f"{type(optimizer).__name__}. Set `optimizer: reset`."
        )
    if (differ := sorted(parameters.keys() ^ set(facts["parameters"]))) or (differ := _reshaped(tensors, parameters)):
        raise RunError(
            f"The optimizer's state of the domain before does not fit '{differ[0]}': other parameters are trained now. "
            "Set `optimizer: reset`."
        )
    state: dict[str, dict[str, Any]] = {}
    for path, value in {**tensors, **facts["numbers"]}.items():
        key, name = path.split("/", 1)
        parameter = parameters[name]
        if isinstance(parameter, DTensor) and isinstance(value, Tensor) and value.shape == parameter.shape:
            value = distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
        state.setdefault(name, {})[key] = value
    names = {id(parameter): name for name, parameter in parameters.items()}
    whole = optimizer.state_dict()
    order = [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
    # Through `load_state_dict`, which knows the device and type that each entry must have.
    optimizer.load_state_dict(whole | {"state": {at: state[name] for at, name in enumerate(order) if name in state}})


def _reshaped(tensors: dict[str, Tensor], parameters: dict[str, nn.Parameter]) -> list[str]:
    """Parameters whose moments (everything with as many dimensions) have another shape."""
    found = []
    for path, value in tensors.items():
        if path.startswith(TABLES):
            continue
        parameter = parameters[path.split("/", 1)[1]]
        if value.dim() == parameter.dim() > 0 and value.numel() > 1 and value.shape != torch.Size(parameter.shape):
            found.append(path.split("/", 1)[1])
    return found
