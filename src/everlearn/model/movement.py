"""How far the weights of a model's layers moved from one checkpoint to another, read tensor by tensor from the disk.

Of a group of tensors with values w before and w′ after, the relative change is ‖w′ − w‖ / ‖w‖ (Frobenius norms over
the whole group), and its share of weights moved counts those that are not bit for bit what they were. Neither model is
loaded: at any moment two chunks of one tensor are in memory.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from everlearn import files
from everlearn.errors import ModelError, RunError
from everlearn.model.architectures import Architecture, Stack

EMBEDDINGS, HEAD, OTHER, FEED_FORWARD = "embeddings", "head", "other", "feed-forward"
FILE = "_moved.json"
"""Beside the cells of a row; no cell can have this name."""
_CHUNK = 2**24
"""Weights that are compared at once."""
_INDEX = "model.safetensors.index.json"


class Weights(Protocol):
    """A checkpoint's tensors by name, each read when it is asked for."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Name → shape."""

    def read(self, name: str) -> Tensor:
        """One tensor."""


class SavedWeights:
    """The weights in a folder that ``save_pretrained`` wrote, in one safetensors file or several.

    Args:
        folder: the checkpoint.

    Raises:
        ModelError: there is no such file, or it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        try:
            names = sorted(set(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
        except FileNotFoundError:
            names = ["model.safetensors"]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"{folder / _INDEX} is damaged: {error}.") from None
        self._places: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for path in (folder / name for name in names):
            try:
                with safe_open(path, "pt") as file:
                    for name in file.keys():  # noqa: SIM118 - no mapping
                        self._places[name], self._shapes[name] = path, tuple(file.get_slice(name).get_shape())
            except (OSError, SafetensorError) as error:
                raise ModelError(f"The weights in {path} cannot be read: {error}.") from None

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> Tensor:
        with safe_open(self._places[name], "pt") as file:
            found: Tensor = file.get_tensor(name)
        return found


class LoadedWeights:
    """The weights of a model in memory: for a base model without a file of its own, or with other names in it."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        return self._tensors[name].detach().cpu()


@dataclass(frozen=True)
class Moved:
    """How far a group of tensors moved.

    Attributes:
        layer: `embeddings`, a layer (`layers.0`, `decoder.1`), `other` (the norm behind the last one) or `head`.
        part: of the layer: the name of an attention block, `feed-forward` or `other` (norms, biases of positions); the
            layer's own name elsewhere.
        change: ‖w′ − w‖.
        norm: ‖w‖.
        moved: weights that are not what they were.
        count: weights.
    """

    layer: str
    part: str
    change: float
    norm: float
    moved: int
    count: int

    @property
    def relative(self) -> float | None:
        """‖w′ − w‖ / ‖w‖; None where there was nothing before."""
        return self.change / self.norm if self.norm > 0 else None

    @property
    def share(self) -> float:
        """Of the weights, how many moved."""
        return self.moved / self.count if self.count else 0.0


@dataclass(frozen=True)
class Movement:
    """How far the model moved by the end of a stage.

    Attributes:
        since_before: since the checkpoint that the stage began with; None where the model grew.
        since_base: since the base model; None where the model grew, or the base model is not to be had.
    """

    since_before: Sequence[Moved] | None
    since_base: Sequence[Moved] | None


def comparable(before: Weights, after: Weights) -> bool:
    """Whether every tensor of the later checkpoint has one of its name and shape in the earlier one."""
    known = before.shapes()
    return all(known.get(name) == shape for name, shape in after.shapes().items())


def movement(before: Weights, after: Weights, architecture: Architecture) -> list[Moved] | None:
    """How far each part of each layer moved; None where the model grew, so that there is nothing to compare with.

    A matrix that two modules share is in the file once, and counts once, where the file has it.
    """
    if not comparable(before, after):
        return None
    groups: dict[tuple[str, str], list[str]] = {}
    for name, place in places(after.shapes(), architecture).items():
        groups.setdefault(place, []).append(name)
    found = []
    for (layer, part), names in groups.items():
        change = norm = 0.0
        moved = count = 0
        for name in names:
            old, new = before.read(name).flatten(), after.read(name).flatten()
            if not torch.is_floating_point(new):
                continue
            for a, b in zip(old.split(_CHUNK), new.split(_CHUNK), strict=True):
                a, b = a.double(), b.double()
                norm += float(a.square().sum())
                moved += int((a != b).sum())
                change += float((b - a).square().sum())
            count += new.numel()
        found.append(Moved(layer, part, math.sqrt(change), math.sqrt(norm), moved, count))
    return found


def together(parts: Iterable[Moved]) -> dict[str, Moved]:
    """Layer → all its parts as one group, in the order in which they come."""
    found: dict[str, Moved] = {}
    for part in parts:
        known = found.get(part.layer, Moved(part.layer, part.layer, 0.0, 0.0, 0, 0))
        found[part.layer] = Moved(
            part.layer,
            part.layer,
            math.hypot(known.change, part.change),
            math.hypot(known.norm, part.norm),
            known.moved + part.moved,
            known.count + part.count,
        )
    return found


def places(shapes: Mapping[str, tuple[int, ...]], architecture: Architecture) -> dict[str, tuple[str, str]]:
    """Tensor name → layer and part, from the first layer to the last.

    What stands outside of the layers belongs to the head where it is not inside the base model; else to the embeddings
    where its module has a matrix, and to `other` where it has none.
    """
    inside: dict[str, tuple[tuple[int, int, int], tuple[str, str]]] = {}
    prefixes = {""}
    for name in shapes:
        for number, stack in enumerate(architecture.stacks):
            found = re.match(rf"(|.*\.){re.escape(stack.layers)}\.(\d+)\.(.*)", name)
            if found is None:
                continue
            prefixes.add(found[1])
            order, part = _part(found[3], stack)
            inside[name] = (number, int(found[2]), order), (f"{stack.name}.{found[2]}", part)
            break
    prefix = max(prefixes, key=len)
    outside: dict[str, str] = {}
    matrices = {_module(name, prefix) for name, shape in shapes.items() if name not in inside and len(shape) > 1}
    for name in shapes:
        if name not in inside:
            head = not name.startswith(prefix) or name.startswith(f"{architecture.head}.")
            outside[name] = HEAD if head else EMBEDDINGS if _module(name, prefix) in matrices else OTHER
    placed = {name: (EMBEDDINGS, EMBEDDINGS) for name, place in outside.items() if place == EMBEDDINGS}
    placed |= {name: place for name, (_, place) in sorted(inside.items(), key=lambda item: item[1][0])}
    for last in (OTHER, HEAD):
        placed |= {name: (last, last) for name, place in outside.items() if place == last}
    return placed


def _module(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).split(".")[0]


def _part(path: str, stack: Stack) -> tuple[int, str]:
    """Which part of a layer a parameter belongs to, and where it comes among the parts."""
    blocks: list[tuple[str, tuple[str, ...]]] = [
        (block.name, (*block.inputs, block.output)) for block in stack.attentions
    ]
    blocks.append((FEED_FORWARD, (*stack.feed_forward.inputs, stack.feed_forward.output)))
    for order, (name, paths) in enumerate(blocks):
        if any(path.startswith(f"{own}.") for own in paths):
            return order, name
    return len(blocks), OTHER


def movements(folder: Path) -> dict[int, Movement]:
    """Stage → what is known of it in a run's folder; a file of another form is left out.

    Raises:
        RunError: a file is not what was saved; `everlearn resume` makes it again.
    """
    found = {}
    for path in sorted(folder.glob(f"evaluation/stage-*/{FILE}")):
        number = path.parent.name.removeprefix("stage-")
        files.check(path)
        try:
            raw: Any = files.read_json(path)
            found[int(number)] = Movement(*(_parts(raw[key]) for key in ("since_before", "since_base")))
        except (RunError, KeyError, TypeError, ValueError):
            continue
    return found


def _parts(raw: Any) -> list[Moved] | None:
    return None if raw is None else [Moved(**part) for part in raw]
