"""Sources of blocks: the examples of an external dataset, and rows that an external trainer generates."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from everlearn import files
from everlearn.data.blocks import Block, BlockSource, PackedBlocks, hash_of
from everlearn.errors import DataError, MethodError
from everlearn.model.objectives import IGNORE, Batch
from everlearn.seeding import seed_for

Collator = Callable[[list[Any]], Mapping[str, Any]]
_KEPT = ("input_ids", "labels")


class Examples(BlockSource):
    """The examples of a map-style dataset, in a new seeded order each pass.

    A block is the example itself; if all its values are integers or lists of integers, they are converted to arrays,
    which methods can store.

    Args:
        dataset: has a length and can be indexed.
        seed: seed of the order.
        name: name of the domain.

    Raises:
        DataError: the dataset has no length, or no example.
    """

    in_training_order = False  # the sampler of the caller decides it

    def __init__(self, dataset: Any, seed: int, name: str) -> None:
        indexed = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if not indexed or isinstance(dataset, IterableDataset):
            raise DataError(
                f"`protect` needs a dataset with a length, whose examples it can draw; a '{type(dataset).__name__}' is "
                "a stream. Give a map-style dataset, or use `everlearn run`, which streams."
            )
        if not len(dataset):
            raise DataError("The training dataset has no example.")
        self.dataset, self.seed, self.name = dataset, seed, name
        self.size: int = len(dataset)
        self.block_tokens = None
        self.fingerprint = hash_of("examples", name, self.size)
        self._position = 0

    def __next__(self) -> Block:
        number, place = divmod(self._position, self.size)
        self._position += 1
        generator = np.random.Generator(np.random.PCG64(seed_for(self.seed, "examples", self.name, number)))
        if place == 0 or not hasattr(self, "_order"):
            self._order = generator.permutation(self.size)
        return as_block(self.dataset[int(self._order[place])])

    @property
    def keepable(self) -> bool:
        """Return whether a method can store examples: mappings of names to integers or lists of integers only."""
        block = as_block(self.first)
        return isinstance(block, dict) and all(isinstance(value, np.ndarray) for value in block.values())

    def as_example(self, block: Any) -> Any:
        """Convert a block to the types of the dataset's examples: tensors, arrays, lists or numbers."""
        if not isinstance(block, Mapping):
            return block
        return {key: _like(value, self.first.get(key)) for key, value in block.items()}

    def taken_by(self, collator: Collator) -> Collator:
        """Return the collator as a function of blocks."""
        return lambda blocks: collator([self.as_example(block) for block in blocks])

    @functools.cached_property
    def first(self) -> Any:
        """The first example of the dataset."""
        return self.dataset[0]

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        return {"position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position."""
        self._position = int(state["position"])
        if hasattr(self, "_order"):
            del self._order

    def fresh(self, seed: int) -> Examples:
        """Return an independent pass in another order."""
        return Examples(self.dataset, seed, self.name)


class AnsweredPrompts(BlockSource):
    """The rows of the last steps of a trainer that generates them: prompts with the answers of the model (GRPO).

    The dataset contains only prompts, so nothing can be measured before the first step.

    Args:
        name: name of the domain.
    """

    KEPT = 1000
    in_training_order = False
    block_tokens = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.fingerprint = hash_of("written", name)
        self._rows: deque[Block] = deque(maxlen=self.KEPT)

    @property
    def size(self) -> int:  # type: ignore[override]
        """Number of rows so far."""
        return len(self._rows)

    def add(self, batch: Batch) -> None:
        """Keep the rows of a batch, without their padding.

        Args:
            batch: `input_ids`, `attention_mask` and `labels`, [rows, tokens] each.
        """
        seen = batch["attention_mask"].bool().cpu()
        for row, mask in enumerate(seen):
            kept = {name: batch[name][row].cpu()[mask].numpy().astype(np.int32) for name in _KEPT}
            self._rows.append(kept)

    def fresh(self, seed: int) -> BlockSource:
        """Return an independent pass over the rows.

        Raises:
            MethodError: there is none yet.
        """
        if not self._rows:
            raise MethodError(
                "This trainer's dataset has prompts alone, and the model has answered none of them yet, so there is "
                "nothing to measure on. Give a text that the model knows (`general`)."
            )
        return PackedBlocks.from_blocks(self._rows, seed, self.name)

    def __next__(self) -> Block:
        raise NotImplementedError("The trainer itself trains on these rows.")

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: there is no position."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing."""

    def save(self, file: Path) -> None:
        """Write the rows, so that a resumed training ends as if it had not stopped."""
        columns = {name: [torch.from_numpy(row[name]) for row in self._rows] for name in _KEPT}
        lengths = torch.tensor([len(row) for row in columns["input_ids"]])
        files.save_tensors(file, {name: torch.cat(rows) for name, rows in columns.items()} | {"lengths": lengths})

    def load(self, file: Path) -> None:
        """Restore the rows."""
        tensors = files.load_tensors(file)
        columns = [tensors[name].split(tensors["lengths"].tolist()) for name in _KEPT]
        self._rows.extend(
            {n: row.numpy() for n, row in zip(_KEPT, rows, strict=True)} for rows in zip(*columns, strict=True)
        )


def padded(blocks: list[Any]) -> Batch:
    """Return generated rows as a batch, padded on the right."""
    ids = [torch.from_numpy(block["input_ids"]).long() for block in blocks]
    labels = [torch.from_numpy(block["labels"]).long() for block in blocks]
    pad = functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    return {
        "input_ids": pad(ids),
        "attention_mask": pad([torch.ones_like(row) for row in ids]),
        "labels": pad(labels, padding_value=IGNORE),
    }


def as_block(example: Any) -> Block:
    """Return an example with its integers as int32 arrays, or the example itself if it holds other values."""
    if not isinstance(example, Mapping):
        return cast(Block, example)
    try:
        arrays = {key: np.atleast_1d(np.asarray(value)) for key, value in example.items()}
    except ValueError:  # lists of lists that differ in length
        return cast(Block, dict(example))
    if not all(array.ndim == 1 and array.dtype.kind in "iub" for array in arrays.values()):
        return cast(Block, dict(example))
    return {key: array.astype(np.int32) for key, array in arrays.items()}


def _like(value: Any, original: Any) -> Any:
    """Convert an array to a tensor, an array, a list or a number, like `original`; return other values unchanged."""
    if not isinstance(value, np.ndarray):
        return value
    if isinstance(original, Tensor):
        shape = value.shape if original.dim() else original.shape
        return torch.as_tensor(value, dtype=original.dtype).reshape(shape)
    if isinstance(original, np.ndarray):
        return value.astype(original.dtype)
    return type(original)(value[0]) if isinstance(original, bool | int) else value.tolist()
