"""Map layers and tensors to their depth in a model, and freeze layers by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn

from everlearn.errors import ModelError, did_you_mean
from everlearn.model.architectures import Architecture, Stack
from everlearn.model.finding import find, join, transformers_model
from everlearn.model.structure import architecture_of

EMBEDDINGS, HEAD, OTHER, FEED_FORWARD = "embeddings", "head", "other", "feed-forward"


class Layers(NamedTuple):
    """The layers of a stack: its description, the path of the module list, and the list."""

    stack: Stack
    path: str
    modules: nn.ModuleList


def layers_of(model: nn.Module) -> list[Layers]:
    """Return the stacks of layers in forward order; stacks that the model does not have are left out.

    Args:
        model: a transformers model, with or without a language-model head, PEFT adapters or a distributed wrapper.

    Raises:
        ModelError: it is no language model of transformers.
    """
    path, inner = transformers_model(model)
    prefix = inner.base_model_prefix
    base = join(path, prefix) if prefix and hasattr(inner, prefix) else path
    result = []
    for stack in architecture_of(inner).stacks:
        modules: Any = find(model, where := join(base, stack.layers))
        if modules is not None:
            result.append(Layers(stack, where, modules))
    return result


def depth_groups(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Group the names of the parameters by depth: embeddings, each layer from the first to the last, the head.

    Parameters between the layers of two stacks belong to the group of the layer before them, and the final norm to the
    head. So do output embeddings that are tied to the input embeddings, since the loss reaches them first in the head.

    Args:
        model: the model, as in :func:`layers_of`.
    """
    parameters = dict(model.named_parameters())
    stacks = layers_of(model)
    inside = _inside(parameters, [(stack.stack, stack.path) for stack in stacks])
    before = [sum(len(stack.modules) for stack in stacks[:number]) for number in range(len(stacks) + 1)]
    output: Any = transformers_model(model)[1].get_output_embeddings()
    head = {id(parameter) for parameter in output.parameters()} if output is not None else set()
    groups: list[list[str]] = [[] for _ in range(before[-1] + 2)]
    depth = 0
    for name, parameter in parameters.items():  # in the order of the architecture
        if name in inside:
            number, index, _ = inside[name]
            depth = before[number] + index + 1
        elif depth == before[-1]:
            depth += 1
        groups[-1 if id(parameter) in head else depth].append(name)
    return tuple(map(tuple, groups))


def places(shapes: Mapping[str, tuple[int, ...]], architecture: Architecture) -> dict[str, tuple[str, str]]:
    """Return layer and part of each tensor by its name, from the first layer to the last.

    Tensors outside the layers belong to the head if they are outside the base model; else to the embeddings if their
    module has a matrix, and to `other` if it has none.

    Args:
        shapes: shapes of the tensors of a plain model, in a file or in memory, by name.
        architecture: the architecture of the model.
    """
    stacks, head = architecture.stacks, f"{architecture.head}."
    renamed = not any(f"{stack.layers}." in name for stack in stacks for name in shapes)
    if renamed:
        # The files of vision-language models name tensors of the text model otherwise than its modules.
        stacks = tuple(replace(stack, layers=stack.layers.rpartition(".")[2]) for stack in stacks)
    prefix = _prefix([name for name in shapes if "vis" not in name], stacks)
    inside = _inside(shapes, [(stack, prefix + stack.layers) for stack in stacks])
    outside: dict[str, str] = {}
    matrices = {_module(name, prefix) for name, shape in shapes.items() if name not in inside and len(shape) > 1}
    for name in shapes:
        if name not in inside:
            in_head = head in name if renamed else not name.startswith(prefix) or name.startswith(head)
            outside[name] = HEAD if in_head else EMBEDDINGS if _module(name, prefix) in matrices else OTHER
    placed = {name: (EMBEDDINGS, EMBEDDINGS) for name, place in outside.items() if place == EMBEDDINGS}
    ordered = []
    for name, (number, index, path) in inside.items():
        order, part = _part(path, stacks[number])
        ordered.append(((number, index, order), name, (f"{stacks[number].name}.{index}", part)))
    placed |= {name: place for _, name, place in sorted(ordered, key=lambda each: each[0])}
    for last in (OTHER, HEAD):
        placed |= {name: (last, last) for name, place in outside.items() if place == last}
    return placed


def _inside(names: Iterable[str], stacks: Iterable[tuple[Stack, str]]) -> dict[str, tuple[int, int, str]]:
    """Return stack number, layer number and path within the layer, for each name that is inside a layer."""
    result: dict[str, tuple[int, int, str]] = {}
    starts = [f"{path}." for _, path in stacks]
    for name in names:
        for number, start in enumerate(starts):
            index, _, path = name.removeprefix(start).partition(".")
            if name.startswith(start) and index.isdigit():
                result[name] = number, int(index), path
    return result


def _prefix(names: Iterable[str], stacks: Iterable[Stack]) -> str:
    """Return the prefix of the base model in the tensor names, such as "roberta."."""
    paths = "|".join(re.escape(stack.layers) for stack in stacks)
    matches = (re.match(rf"(|.*\.)(?:{paths})\.\d+\.", name) for name in names)
    return max((match[1] for match in matches if match is not None), key=len, default="")


def _module(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).split(".")[0]


def _part(path: str, stack: Stack) -> tuple[int, str]:
    """Return the sort order and the name of the part of a layer that a parameter belongs to."""
    blocks: list[tuple[str, tuple[str, ...]]] = [
        (block.name, (*block.inputs, block.output)) for block in stack.attentions
    ]
    networks = [block for block in (stack.feed_forward, *stack.more) if block is not None]
    blocks += [(FEED_FORWARD, (*block.inputs, block.output)) for block in networks]
    for order, (name, paths) in enumerate(blocks):
        if any(path.startswith(f"{own}.") for own in paths):
            return order, name
    return len(blocks), OTHER


def frozen_parameters(model: nn.Module, patterns: Sequence[str]) -> list[nn.Parameter]:
    """Return the parameters that match some patterns; a parameter that two modules share is frozen in both.

    Args:
        model: the model, before any method adds modules to it.
        patterns: names with wildcards (``*.bias``), or layers as `everlearn analyse` names them: ``embeddings``,
            ``layers.0``, ``head``, ``other``.

    Raises:
        ModelError: a pattern matches nothing, or nothing is left to train.
    """
    parameters = dict(model.named_parameters())
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    where = places(shapes, architecture_of(model)) if patterns else {}
    frozen: dict[str, nn.Parameter] = {}
    for pattern in patterns:
        own = {name: p for name, p in parameters.items() if fnmatchcase(name, pattern) or where[name][0] == pattern}
        if not own:
            layers = dict.fromkeys(layer for layer, _ in where.values())
            near = did_you_mean(pattern, [*layers, *parameters])
            raise ModelError(
                f"`model.frozen` names '{pattern}', which is no layer and no parameter of the model."
                f"{near if near.startswith(' Did') else did_you_mean(pattern, layers)}"
            )
        frozen |= own
    if len(frozen) == len(parameters):
        raise ModelError(f"`model.frozen` leaves nothing to train: {', '.join(patterns)}. Leave one of them out.")
    return list(frozen.values())
