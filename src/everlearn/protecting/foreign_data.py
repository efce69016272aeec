"""Adapters for external data: the examples of a dataset, and the batches that a collator makes of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from everlearn.data.blocks import Block, BlockSource, hash_of
from everlearn.errors import DataError, MethodError
from everlearn.model.anatomy import kind_of
from everlearn.model.head import output_head
from everlearn.model.objectives import IGNORE, Batch, Objective
from everlearn.seeding import seed_for

Collator = Callable[[list[Any]], Mapping[str, Any]]


class Examples(BlockSource):
    """The examples of a map-style dataset, in a new seeded order each pass.

    A block is an unchanged example; if all its values are lists of integers they become arrays, which methods can
    store.

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
        """Whether a method can store examples: mappings of names to lists of integers only."""
        block = as_block(self._first)
        return isinstance(block, dict) and all(isinstance(value, np.ndarray) for value in block.values())

    def as_example(self, block: Any) -> Any:
        """Convert a block to the types of the dataset's examples: tensors, arrays or lists."""
        if not isinstance(block, Mapping):
            return block
        return {key: _like(value, self._first.get(key)) for key, value in block.items()}

    def taken_by(self, collator: Collator) -> Collator:
        """Return the collator as a function of blocks."""
        return lambda blocks: collator([self.as_example(block) for block in blocks])

    @functools.cached_property
    def _first(self) -> Any:
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


def as_block(example: Any) -> Block:
    """Return an example with its integer lists as int32 arrays, or the example itself if it holds other values."""
    if not isinstance(example, Mapping):
        return cast(Block, example)
    try:
        arrays = {key: np.asarray(value) for key, value in example.items()}
    except ValueError:  # lists of lists that differ in length
        return cast(Block, dict(example))
    if not all(array.ndim == 1 and array.dtype.kind in "iub" for array in arrays.values()):
        return cast(Block, dict(example))
    return {key: array.astype(np.int32) for key, array in arrays.items()}


def _like(value: Any, theirs: Any) -> Any:
    """Convert an array to a tensor, an array or a list, like `theirs`; return other values unchanged."""
    if not isinstance(value, np.ndarray):
        return value
    if isinstance(theirs, Tensor):
        return torch.as_tensor(value, dtype=theirs.dtype)
    return value.astype(theirs.dtype) if isinstance(theirs, np.ndarray) else value.tolist()


@dataclass(frozen=True)
class Theirs(Objective):
    """An objective that reads the batches of an external collator.

    The loss that methods measure with (importance, Fisher information) is the mean nats per label of each row of a
    batch. It is the loss of the stock collators and Trainers; measurements use it even if the training loss is another
    one (label smoothing, DFT, a function of the user).

    Attributes:
        model: the unwrapped model.
        collator: makes a batch of a list of blocks (:meth:`Examples.taken_by`).
    """

    isolate: bool = False
    model: nn.Module | None = None
    collator: Collator | None = None

    def read(self, batch: Mapping[str, Any]) -> Batch:
        """Convert a batch to the format of everlearn.

        Raises:
            DataError: it has no labels for tokens.
        """
        tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
        labels = tensors.get("labels")
        if labels is None or labels.dim() != 2 or "input_ids" not in tensors:
            raise DataError(
                "`protect` needs batches with `input_ids` and with `labels` for tokens [rows, tokens], -100 where "
                f"nothing is learnt; this one has {', '.join(sorted(tensors)) or 'no tensors'}. Use a collator for "
                "language modelling."
            )
        return self._read(tensors, labels)

    def _read(self, batch: Batch, labels: Tensor) -> Batch:
        raise NotImplementedError

    def collate(self, blocks: Sequence[Block], rows: Sequence[int]) -> Batch:
        """Apply the external collator to blocks.

        Raises:
            DataError: the collator does not make one row per block (padding-free packing).
        """
        collator = cast(Collator, self.collator)
        batch = collator(list(blocks))
        converted = self.read(batch)
        if len(converted["labels"]) != len(blocks):
            raise DataError(
                f"The collator makes {len(converted['labels'])} row(s) of {len(blocks)} examples, so nothing can be "
                "measured for each. Switch off padding-free batches (`padding_free=False`)."
            )
        return converted


@dataclass(frozen=True)
class TheirMasked(Theirs):
    """Labels at the masked positions hold the text before masking."""

    name: ClassVar[str] = "masked"

    def options(self) -> dict[str, Any]:
        return {}

    def _read(self, batch: Batch, labels: Tensor) -> Batch:
        labelled = labels != IGNORE
        count = max(1, int(labelled.sum(1).max()))
        positions = labelled.int().argsort(dim=1, descending=True, stable=True)[:, :count]
        plain = torch.where(labelled, labels, batch["input_ids"])
        return {**batch, "plain_ids": plain, "positions": positions, "labels": labels.gather(1, positions)}


@dataclass(frozen=True)
class TheirCausal(Theirs):
    """The model shifts the labels: the label at t is predicted at t − 1."""

    name: ClassVar[str] = "causal"

    def _read(self, batch: Batch, labels: Tensor) -> Batch:
        shifted = torch.full_like(labels, IGNORE)
        shifted[:, :-1] = labels[:, 1:]
        return {**batch, "labels": shifted}


@dataclass(frozen=True)
class TheirTextToText(Theirs):
    """Labels are the answers of an encoder-decoder."""

    name: ClassVar[str] = "text-to-text"

    def _read(self, batch: Batch, labels: Tensor) -> Batch:
        if "decoder_input_ids" in batch:
            return batch
        core: Any = self.model
        return {**batch, "decoder_input_ids": core.prepare_decoder_input_ids_from_labels(labels=labels)}


_OF_KIND: dict[str, type[Theirs]] = {
    "encoder": TheirMasked,
    "decoder": TheirCausal,
    "encoder-decoder": TheirTextToText,
}


def their_objective(model: nn.Module, tokenizer: Any, collator: Collator) -> Theirs:
    """Return the objective that reads batches for a model.

    Raises:
        MethodError: it is no language model.
    """
    if output_head(model) is None:
        raise MethodError(f"`protect` needs a model with a vocabulary head, which '{type(model).__name__}' has not.")
    return _OF_KIND[kind_of(model)](tokenizer=tokenizer, model=model, collator=collator)
