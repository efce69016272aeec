"""Carry an optimizer's state from one domain to the next by the names of the parameters (`optimizer: carry`)."""

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
"""Prefixes of bitsandbytes' tables for 8-bit moments, whose shape is not the parameter's."""
Carried = tuple[dict[str, Tensor], dict[str, Any]]
"""Full tensors under "<key>/<parameter>", and JSON: the optimizer's class, its numbers, the parameters' names."""


def state_of(model: nn.Module, optimizer: Optimizer) -> Carried:
    """Return the state of every trained parameter, gathered from all processes; every process must call it.

    Args:
        model: the model in training, without a distributed wrapper.
        optimizer: the optimizer of its parameters.
    """
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, float] = {}
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensor = value.full_tensor() if isinstance(value, DTensor) else value
                tensors[f"{key}/{name}"] = tensor.detach().cpu()
            else:
                numbers[f"{key}/{name}"] = value
    return tensors, {"optimizer": type(optimizer).__name__, "parameters": list(parameters), "numbers": numbers}


def save(folder: Path, carried: Carried) -> None:
    """Write the state into a stage folder; plain SGD has no tensors, so no tensor file is written."""
    if carried[0]:
        files.save_tensors(folder / TENSORS, carried[0])
    files.write_json(folder / FACTS, carried[1])


def load(folder: Path) -> Carried:
    """Read the state from a stage folder."""
    tensors = folder / TENSORS
    return files.load_tensors(tensors) if tensors.is_file() else {}, files.read_json(folder / FACTS)


def restore(carried: Carried, model: nn.Module, optimizer: Optimizer) -> None:
    """Set an optimizer to a carried state; its learning rate and other settings are kept.

    Raises:
        RunError: the state is of another optimizer, or of other parameters.
    """
    tensors, facts = carried
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if type(optimizer).__name__ != facts["optimizer"]:
        raise RunError(
            f"The previous domain was trained with the optimizer {facts['optimizer']}, but this domain uses "
            f"{type(optimizer).__name__}. Set `optimizer: reset`."
        )
    if (differ := sorted(parameters.keys() ^ set(facts["parameters"]))) or (differ := _reshaped(tensors, parameters)):
        raise RunError(
            f"The optimizer's state of the previous domain does not fit '{differ[0]}': other parameters are trained "
            "now. Set `optimizer: reset`."
        )
    state: dict[str, dict[str, Any]] = {}
    for path, value in {**tensors, **facts["numbers"]}.items():
        key, name = path.split("/", 1)
        parameter = parameters[name]
        if isinstance(parameter, DTensor) and isinstance(value, Tensor) and value.shape == parameter.shape:
            value = distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
        state.setdefault(name, {})[key] = value
    names = {id(parameter): name for name, parameter in parameters.items()}
    current = optimizer.state_dict()
    order = [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
    # `load_state_dict` moves each entry to the device and type that the optimizer needs.
    optimizer.load_state_dict(current | {"state": {at: state[name] for at, name in enumerate(order) if name in state}})


def _reshaped(tensors: dict[str, Tensor], parameters: dict[str, nn.Parameter]) -> list[str]:
    """Return the parameters whose moments have another shape than they have now.

    A tensor counts as a moment if it has as many dimensions as its parameter.
    """
    names = []
    for path, value in tensors.items():
        if path.startswith(TABLES):
            continue
        parameter = parameters[path.split("/", 1)[1]]
        if value.dim() == parameter.dim() > 0 and value.numel() > 1 and value.shape != torch.Size(parameter.shape):
            names.append(path.split("/", 1)[1])
    return names
