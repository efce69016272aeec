"""Evaluate held-out text: fixed blocks of one domain or of the general text, kept in the run folder.

Most of a change in perplexity can come from a few tokens that have nothing to do with the domain, such as line breaks
and quotation marks (arXiv 2410.05581). So the loss over content tokens is reported in addition to the loss over all:
content tokens are all labels except the most frequent token types and formatting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from everlearn import files, wording
from everlearn.data.blocks import PackedBlocks, Ragged, hash_of
from everlearn.data.column_tensors import from_tensors, to_tensors
from everlearn.errors import DataError, RunError
from everlearn.evaluation.cell import TEXT, Cell, text_cell
from everlearn.evaluation.held_out_rows import BYTES, DOCUMENT
from everlearn.evaluation.task import Conditions, Task, Work, register_kind
from everlearn.predictors.block_losses import BlockLosses, losses_of
from everlearn.predictors.predictor import Predictor
from everlearn.seeding import seed_for

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_PART = "\ufffd"
"""Text that an incomplete multi-byte letter is decoded to."""


def without_content(blocks: PackedBlocks, tokenizer: PreTrainedTokenizerBase, frequent: int) -> Tensor:
    """Return which tokens are no content tokens, bool [V]: special ones, those without letter or digit, frequent ones.

    This depends on the held-out set alone, so every checkpoint of every run is scored on the same labels.

    Args:
        blocks: the set; only labels are counted: the answers, if there are any.
        tokenizer: the model's tokenizer.
        frequent: number of the set's types that count as frequent; ties are resolved in favour of lower ids.
    """
    column = blocks.arrays.get("labels", blocks.arrays["input_ids"])
    ids = np.asarray(column.values if isinstance(column, Ragged) else column).ravel()
    types, counts = np.unique(ids[ids >= 0], return_counts=True)
    without = torch.zeros(max(len(tokenizer), int(types.max(initial=0)) + 1), dtype=torch.bool)
    special = set(tokenizer.all_special_ids)
    for token in types.tolist():
        text = str(tokenizer.decode([token], clean_up_tokenization_spaces=False))
        without[token] = token in special or not any(letter.isalnum() or letter == _PART for letter in text)
    types, counts = types[~without.numpy()[types]], counts[~without.numpy()[types]]
    without[types[np.lexsort((types, -counts))[:frequent]].tolist()] = True
    return without


_STRETCHES = 16
_ROWS = "rows"
"""Prefix of the names of row facts in a file."""


@dataclass(frozen=True)
class HeldOut:
    """Hold the held-out blocks of one domain or of the general text.

    Attributes:
        blocks: the blocks, one a row.
        bytes_per_token: average of the complete held-out text, of which the rows may be a sample.
        rows: facts of each row (:mod:`everlearn.evaluation.held_out_rows`), name → array [rows]; empty if unknown.
    """

    blocks: PackedBlocks
    bytes_per_token: float
    rows: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the blocks to a file, atomically."""
        tensors = {"bytes_per_token": torch.tensor(self.bytes_per_token, dtype=torch.float64)}
        tensors |= {f"{_ROWS}.{name}": torch.from_numpy(column.copy()) for name, column in self.rows.items()}
        files.save_tensors(path, tensors | to_tensors(self.blocks.arrays), sealed=True)

    def sample(self, count: int) -> HeldOut:
        """Return a sample of `count` blocks, the same one each time; a larger sample contains the smaller ones."""
        order = np.random.Generator(np.random.PCG64(seed_for("sample", self.blocks.name))).permutation(len(self.blocks))
        return self._part(np.sort(order[:count]))

    def half(self, number: int) -> HeldOut:
        """Return one of two halves (0 or 1) that have no block in common.

        The halves alternate in stretches of several blocks. So both have text from everywhere, and few documents that
        span two blocks are in both.
        """
        count = len(self.blocks)
        stretch = np.arange(count) * min(_STRETCHES, count) // max(count, 1)
        return self._part(np.flatnonzero(stretch % 2 == number))

    def _part(self, numbers: NDArray[np.intp]) -> HeldOut:
        """Return some of the rows with their facts."""
        blocks = PackedBlocks.from_blocks(self.blocks.take(numbers), 0, self.blocks.name)
        return replace(self, blocks=blocks, rows={name: column[numbers] for name, column in self.rows.items()})

    def row_properties(self, items: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the facts of a cell about its rows: the bytes of their labels, and their documents.

        Args:
            items: number of labels of each row.
        """
        facts: dict[str, NDArray[Any]] = {}
        if BYTES in self.rows:
            facts["bytes"] = np.asarray(items * self.rows[BYTES], np.float64)
        if DOCUMENT in self.rows:
            facts[DOCUMENT] = self.rows[DOCUMENT]
        return facts

    @classmethod
    def load(cls, path: Path) -> HeldOut:
        """Read blocks that :meth:`save` wrote.

        Raises:
            RunError: the file is missing or damaged; the message names it.
        """
        tensors = files.load_tensors(path)
        try:
            width = float(tensors.pop("bytes_per_token"))
            rows = {key: tensors.pop(key).numpy() for key in list(tensors) if key.startswith(f"{_ROWS}.")}
            blocks = PackedBlocks(from_tensors(tensors), seed=0, name=path.stem)
            return cls(blocks, width, {key.removeprefix(f"{_ROWS}."): column for key, column in rows.items()})
        except (KeyError, ValueError, TypeError, RuntimeError, DataError) as error:
            raise RunError(f"{path} is damaged: it holds no blocks ({error}).") from error


def blocks_in(path: Path) -> int:
    """Return how many blocks a file of held-out text has, without reading them; 0 for a damaged one."""
    try:
        with safe_open(path, "numpy") as file:
            ragged = "input_ids.offsets" in list(file.keys())
            rows = int(file.get_slice("input_ids.offsets" if ragged else "input_ids").get_shape()[0])
    except (SafetensorError, OSError):
        return 0
    return rows - 1 if ragged else rows


@register_kind()
class HeldOutText(Task):
    """Score the labels of held-out blocks.

    Args:
        path: file with the blocks (:meth:`HeldOut.save`); the hash of its content is the fingerprint.
        domain: the domain of the text; None for general text.
        most: maximum number of blocks, the same ones each time; None for all.
        half: half of these blocks to score (:meth:`HeldOut.half`); None for both.
        content: also score content tokens: all except formatting and this number of most frequent token types of the
            set. None to leave this out.
    """

    kind = TEXT

    def __init__(
        self,
        path: Path,
        domain: str | None,
        most: int | None = None,
        half: Literal[0, 1] | None = None,
        content: int | None = None,
    ) -> None:
        self.name, self.domain, self.path, self.content = path.stem, domain, path, content
        held_out = HeldOut.load(path)
        self.most = None if most is None or most >= len(held_out.blocks) else most
        self.held_out = held_out if self.most is None else held_out.sample(self.most)
        self.part = half
        if half is not None:
            if len(self.held_out.blocks) < 2:
                raise DataError(f"'{self.name}' holds out a single block, which cannot be halved. Hold out more text.")
            self.held_out = self.held_out.half(half)

    def check(self) -> str:
        return f"{wording.count(len(self.held_out.blocks), 'block')}"

    def fingerprint(self) -> str:
        digest = files.digest(self.path)
        content = () if self.content is None else ("content", self.content)
        if self.part is not None:
            return hash_of(digest, self.most, "half", self.part, *content)
        if self.most is None and not content:
            return digest
        return hash_of(digest, self.most, *content)

    def texts(self) -> Sequence[str]:
        raise NotImplementedError("held-out text is there as blocks already")

    def work(self, seeds: int) -> Work:
        blocks = self.held_out.blocks
        return Work(units=len(blocks), rows=len(blocks), tokens=blocks.block_tokens or 0)

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        losses = losses_of(
            predictor,
            self.held_out.blocks,
            conditions.objective,
            batch_size=conditions.batch_size,
            device=conditions.device,
            bf16=conditions.bf16,
            progress=conditions.progress,
            without_content=self.without_content(conditions.tokenizer),
        )
        return self.cell(losses, conditions)

    def cell(self, losses: BlockLosses, conditions: Conditions) -> Cell:
        """Return the cell of these losses."""
        properties = self.held_out.row_properties(losses.items)
        total = float(np.sum(losses.items))
        width = (
            float(properties["bytes"].sum()) / total
            if "bytes" in properties and total
            else self.held_out.bytes_per_token
        )
        both, mark = (losses.content_nats, losses.content_items), self.fingerprint()
        return text_cell(
            losses.nats, losses.items, width, *both, given=properties, task=self.name, row=conditions.row, mark=mark
        )

    def without_content(self, tokenizer: PreTrainedTokenizerBase) -> Tensor | None:
        """Return the tokens that are not content tokens, bool [V]; None if content tokens are not scored apart."""
        return None if self.content is None else without_content(self.held_out.blocks, tokenizer, self.content)
