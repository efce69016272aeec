"""Gather a complete model from one that FSDP2 has sharded in place."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.distributed.tensor import DTensor


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
        whole: dict[int, nn.Parameter] = {}
        for name, blank in list(self.model.named_parameters(remove_duplicate=False)):
            if id(blank) not in whole:
                weight = weights[name].detach()
                gathered = weight.full_tensor() if isinstance(weight, DTensor) else weight
                whole[id(blank)] = nn.Parameter(gathered.contiguous(), blank.requires_grad)
            path, _, leaf = name.rpartition(".")
            self.model.get_submodule(path)._parameters[leaf] = whole[id(blank)]
        return self.model
