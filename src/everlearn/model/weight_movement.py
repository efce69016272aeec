"""Measure how far the weights of each layer moved between two checkpoints, reading tensor by tensor from disk.

For a group of tensors with values w before and w′ after, the relative change is ‖w′ − w‖ / ‖w‖ (Frobenius norms over
the whole group), and the share of moved weights counts those that are not bit for bit equal. Neither model is loaded:
at most two chunks of one tensor are in memory. :func:`stable_ranks` measures the number of directions in which a matrix
moved.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from everlearn import files
from everlearn.errors import ModelError, RunError
from everlearn.model.architectures import Architecture
from everlearn.model.depth import places

FILE = "_moved.json"
"""File name in the folder of a row's cells; no cell can have this name."""
_CHUNK, _SMALL = 2**24, 2**18
"""Number of weights compared at once, and of those in tensors that are compared together with others."""
_LANCZOS = 60
"""Steps after which the largest singular value is exact to 1e-6, even for noise, whose singular values are close
together."""
_INDEX = "model.safetensors.index.json"


class Weights(Protocol):
    """The tensors of a checkpoint by name, each read on demand."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the tensors by name."""

    def read(self, name: str) -> Tensor:
        """Read one tensor."""

    def read_each(self, names: Iterable[str]) -> Iterator[Tensor]:
        """Read tensors one after another."""


class SavedWeights:
    """The weights in a folder written by ``save_pretrained``, in one or several safetensors files.

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

    def place(self, name: str) -> Path:
        """Return the file that holds a tensor."""
        return self._places[name]

    def read(self, name: str) -> Tensor:
        with safe_open(self._places[name], "pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def read_each(self, names: Iterable[str]) -> Iterator[Tensor]:
        for path, of_file in itertools.groupby(names, self.place):
            with safe_open(path, "pt") as file:
                yield from map(file.get_tensor, of_file)


class LoadedWeights:
    """The weights of a model in memory, for a base model without a file of its own or with other names in its file."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        return self._tensors[name].detach().cpu()

    def read_each(self, names: Iterable[str]) -> Iterator[Tensor]:
        return map(self.read, names)


@dataclass(frozen=True)
class Moved:
    """How far a group of tensors moved.

    Attributes:
        layer: `embeddings`, a layer (`layers.0`, `decoder.1`), `other` (the norm after the last layer) or `head`.
        part: part of the layer: the name of an attention block, `feed-forward` or `other` (norms, position biases); the
            name of the layer itself elsewhere.
        change: ‖w′ − w‖.
        norm: ‖w‖.
        moved: number of weights that changed.
        count: number of weights.
        after: ‖w′‖.
        product: ⟨w, w′⟩.
        largest: max |w′ − w|.
    """

    layer: str
    part: str
    change: float
    norm: float
    moved: int
    count: int
    after: float
    product: float
    largest: float

    @property
    def cosine(self) -> float | None:
        """⟨w, w′⟩ / (‖w‖ ‖w′‖); None if one of the norms is 0."""
        return self.product / (self.norm * self.after) if self.norm * self.after else None

    @property
    def relative(self) -> float | None:
        """‖w′ − w‖ / ‖w‖; None if ‖w‖ is 0."""
        return self.change / self.norm if self.norm > 0 else None

    @property
    def share(self) -> float:
        """The share of weights that moved."""
        return self.moved / self.count if self.count else 0.0


@dataclass(frozen=True)
class Movement:
    """How far the model moved by the end of a stage.

    Attributes:
        since_before: relative to the checkpoint that the stage began with; None if the model grew.
        since_base: relative to the base model; None if the model grew, or the base model is not available.
    """

    since_before: Sequence[Moved] | None
    since_base: Sequence[Moved] | None


def comparable(before: Weights, after: Weights) -> bool:
    """Return whether every tensor of the later checkpoint has the same name and shape in the earlier one."""
    known = before.shapes()
    return all(known.get(name) == shape for name, shape in after.shapes().items())


def movement(before: Weights, after: Weights, architecture: Architecture) -> list[Moved] | None:
    """Measure how far each part of each layer moved; return None if the model grew and cannot be compared.

    A matrix that two modules share is stored once, and is counted once, at its place in the file.
    """
    if not comparable(before, after):
        return None
    groups: dict[tuple[str, str], list[str]] = {}
    for name, place in places(after.shapes(), architecture).items():
        groups.setdefault(place, []).append(name)
    result = []
    for (layer, part), names in groups.items():
        change = norm = length = product = largest = 0.0
        moved = count = 0
        for a, b in _values(before, after, names):
            norm += float(a.square().sum())
            moved += int((a != b).sum())
            length += float(b.square().sum())
            product += float(a @ b)
            b -= a
            change += float(b.square().sum())
            largest = max(largest, float(b.abs().max()))
            count += len(b)
        result.append(
            Moved(layer, part, math.sqrt(change), math.sqrt(norm), moved, count, math.sqrt(length), product, largest)
        )
    return result


def _values(before: Weights, after: Weights, names: Sequence[str]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the values of tensors in both checkpoints in float64: chunks of large tensors, small ones together."""
    small: list[tuple[Tensor, Tensor]] = []
    for old, new in zip(before.read_each(names), after.read_each(names), strict=True):
        if not torch.is_floating_point(new):
            continue
        if new.numel() > _SMALL:
            for a, b in zip(old.flatten().split(_CHUNK), new.flatten().split(_CHUNK), strict=True):
                yield a.double(), b.double()
            continue
        small.append((old.flatten().double(), new.flatten().double()))
        if sum(len(b) for _, b in small) > _SMALL:
            yield _joined(small)
            small = []
    if small:
        yield _joined(small)


def _joined(pairs: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    before, after = zip(*pairs, strict=True)
    return torch.cat(before), torch.cat(after)


def stable_ranks(before: Weights, after: Weights) -> dict[str, float]:
    """Return ‖Δ‖²_F / ‖Δ‖²₂ of the change Δ of each matrix that moved, by name; between 1 and its rank.

    The stable rank counts the directions of an update by their strength: 1 for one outer product, whatever its size (M.
    Rudelson and R. Vershynin, Sampling from large matrices, 2007).
    """
    ranks = {}
    for name, shape in after.shapes().items():
        if len(shape) != 2 or before.shapes().get(name) != shape or not after.read(name).is_floating_point():
            continue
        delta = after.read(name).float() - before.read(name).float()
        # Scaled, so that the squares of tiny changes are not lost in float32.
        largest = float(delta.abs().max())
        if largest > 0:
            delta /= largest
            ranks[name] = float(delta.double().square().sum()) / _spectral_norm(delta) ** 2
    return ranks


def _spectral_norm(matrix: Tensor) -> float:
    """Return the largest singular value by Lanczos on A Aᵀ, which needs no spectral gap."""
    matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    basis, diagonal, beside = [], [], []
    vector = torch.randn(matrix.shape[0], generator=torch.Generator().manual_seed(0)).to(matrix)
    vector /= vector.norm()
    for _ in range(min(_LANCZOS, matrix.shape[0])):
        basis.append(vector)
        following = matrix @ (matrix.T @ vector)
        diagonal.append(float(following @ vector))
        for known in basis * 2:  # orthogonal to all of them, twice: rounding would bring the largest back
            following -= (known @ following) * known
        size = float(following.norm())
        if size <= 1e-6 * diagonal[0]:
            break
        beside.append(size)
        vector = following / size
    size = len(diagonal)
    small = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    small += sum(torch.diag(torch.tensor(beside[: size - 1], dtype=torch.float64), side) for side in (-1, 1))
    return math.sqrt(float(torch.linalg.eigvalsh(small)[-1]))


def together(parts: Iterable[Moved]) -> dict[str, Moved]:
    """Sum the measurements of the parts of each layer (attention, feed-forward, other).

    Returns:
        One measurement for each layer, by the name of the layer, in the order in which layers first occur in `parts`.
    """
    layers: dict[str, Moved] = {}
    for part in parts:
        known = layers.get(part.layer)
        layers[part.layer] = replace(part, part=part.layer) if known is None else _both(known, part)
    return layers


def total_movement(parts: Iterable[Moved]) -> Moved:
    """Sum the measurements of all parts of all layers to one for the complete model."""
    return functools.reduce(_both, (replace(part, layer="", part="") for part in parts))


def _both(one: Moved, other: Moved) -> Moved:
    """Return the measurement of two disjoint groups of tensors together."""
    return Moved(
        one.layer,
        one.part,
        math.hypot(one.change, other.change),
        math.hypot(one.norm, other.norm),
        one.moved + other.moved,
        one.count + other.count,
        math.hypot(one.after, other.after),
        one.product + other.product,
        max(one.largest, other.largest),
    )


def movements(folder: Path) -> dict[int, Movement]:
    """Return the movement of each stage by its number, from a run folder; files of another format are skipped.

    Raises:
        RunError: a file is not as it was saved; `everlearn resume` writes it again.
    """
    result = {}
    for path in sorted(folder.glob(f"evaluation/stage-*/{FILE}")):
        number = path.parent.name.removeprefix("stage-")
        files.check(path)
        try:
            raw: Any = files.read_json(path)
            result[int(number)] = Movement(*(_parts(raw[key]) for key in ("since_before", "since_base")))
        except (RunError, KeyError, TypeError, ValueError):
            continue
    return result


def _parts(raw: Any) -> list[Moved] | None:
    return None if raw is None else [Moved(**part) for part in raw]
