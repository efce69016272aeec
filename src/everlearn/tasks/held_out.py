"""Held-out text as a task: fixed blocks of one domain or of the general text, kept for as long as the run."""

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
from everlearn.data.blocks import Column, PackedBlocks, Ragged, hash_of
from everlearn.errors import DataError, RunError
from everlearn.evaluation.cell import TEXT, Cell, text_cell
from everlearn.evaluation.held_out_rows import BYTES, DOCUMENT
from everlearn.evaluation.task import Conditions, Task, Work, register_kind
from everlearn.predictors.block_losses import BlockLosses, losses_of
from everlearn.predictors.predictor import Predictor
from everlearn.seeding import seed_for
from everlearn.tasks.content_tokens import without_content

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_STRETCHES = 16
_ROWS = "rows"
"""What the names of what is known of each row begin with, in a file."""


@dataclass(frozen=True)
class HeldOut:
    """Held-out blocks of one domain or of the general text.

    Attributes:
        blocks: the rows.
        bytes_per_token: of the whole held-out text, of which the rows may be a sample.
        rows: what is known of each row (:mod:`everlearn.evaluation.held_out_rows`), name → array [rows]; nothing
            where they are not known.
    """

    blocks: PackedBlocks
    bytes_per_token: float
    rows: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Replace the file atomically."""
        tensors = {"bytes_per_token": torch.tensor(self.bytes_per_token, dtype=torch.float64)}
        tensors |= {f"{_ROWS}.{name}": torch.from_numpy(column.copy()) for name, column in self.rows.items()}
        for key, column in self.blocks.arrays.items():
            if isinstance(column, Ragged):
                tensors[f"{key}.values"] = torch.from_numpy(column.values.copy())
                tensors[f"{key}.offsets"] = torch.from_numpy(column.offsets.copy())
            else:
                tensors[key] = torch.from_numpy(column.copy())
        files.save_tensors(path, tensors, sealed=True)

    def sample(self, count: int) -> HeldOut:
        """So many of the blocks, the same ones each time; of more there are those of fewer, and others."""
        order = np.random.Generator(np.random.PCG64(seed_for("sample", self.blocks.name))).permutation(len(self.blocks))
        return self._part(np.sort(order[:count]))

    def half(self, number: int) -> HeldOut:
        """One of two halves (0 or 1) that have no block in common.

        They take turns in stretches of several blocks: both have text from everywhere, and few documents that go on
        from one block to the next are in both.
        """
        count = len(self.blocks)
        stretch = np.arange(count) * min(_STRETCHES, count) // max(count, 1)
        return self._part(np.flatnonzero(stretch % 2 == number))

    def _part(self, numbers: NDArray[np.intp]) -> HeldOut:
        """Some of the rows, with what is known of them."""
        blocks = PackedBlocks.from_blocks(self.blocks.take(numbers), 0, self.blocks.name)
        return replace(self, blocks=blocks, rows={name: column[numbers] for name, column in self.rows.items()})

    def given(self, items: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """What belongs to the rows in a cell: bytes of so many labels of each, and its document.

        Args:
            items: labels of each row.
        """
        found: dict[str, NDArray[Any]] = {}
        if BYTES in self.rows:
            found["bytes"] = np.asarray(items * self.rows[BYTES], np.float64)
        if DOCUMENT in self.rows:
            found[DOCUMENT] = self.rows[DOCUMENT]
        return found

    @classmethod
    def load(cls, path: Path) -> HeldOut:
        """Read what :meth:`save` wrote.

        Raises:
            RunError: the file is missing or damaged; the sentence names it.
        """
        tensors = files.load_tensors(path)
        try:
            width = float(tensors.pop("bytes_per_token"))
            columns: dict[str, Column] = {}
            rows: dict[str, NDArray[Any]] = {}
            for key in tensors:
                name, _, part = key.partition(".")
                if name == _ROWS and part:
                    rows[part] = tensors[key].numpy()
                elif part == "values":
                    columns[name] = Ragged(tensors[key].numpy(), tensors[f"{name}.offsets"].numpy())
                elif not part:
                    columns[name] = tensors[key].numpy()
            return cls(PackedBlocks(columns, seed=0, name=path.stem), width, rows)
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
    """Losses of the labels of held-out blocks.

    Args:
        path: where the blocks are kept (:meth:`HeldOut.save`); the file's content is the fingerprint.
        domain: whose text it is; None for general text.
        most: measure no more than so many of the blocks, the same ones each time; None for all.
        half: measure one half of these (:meth:`HeldOut.half`); None for both.
        content: score content tokens too: all but so many frequent types of the set, and formatting; None to leave
            that.
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
        whole = HeldOut.load(path)
        self.most = None if most is None or most >= len(whole.blocks) else most
        self.held_out = whole if self.most is None else whole.sample(self.most)
        self.part = half
        if half is not None:
            if len(self.held_out.blocks) < 2:
                raise DataError(f"'{self.name}' holds out a single block, which cannot be halved. Hold out more text.")
            self.held_out = self.held_out.half(half)

    def check(self) -> str:
        return f"{wording.count(len(self.held_out.blocks), 'block')}"

    def fingerprint(self) -> str:
        whole = files.digest(self.path)
        content = () if self.content is None else ("content", self.content)
        if self.part is not None:
            return hash_of(whole, self.most, "half", self.part, *content)
        if self.most is None and not content:
            return whole
        return hash_of(whole, self.most, *content)

    def texts(self) -> Sequence[str]:
        raise NotImplementedError("held-out text is there as blocks already")

    def work(self, seeds: int) -> Work:
        blocks = self.held_out.blocks
        return Work(units=len(blocks), rows=len(blocks), tokens=blocks.block_tokens or 0)

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        found = losses_of(
            predictor,
            self.held_out.blocks,
            conditions.objective,
            batch_size=conditions.batch_size,
            device=conditions.device,
            bf16=conditions.bf16,
            progress=conditions.progress,
            without_content=self.without_content(conditions.tokenizer),
        )
        return self.cell(found, conditions)

    def cell(self, found: BlockLosses, conditions: Conditions) -> Cell:
        """The cell of losses that were found."""
        given = self.held_out.given(found.items)
        total = float(np.sum(found.items))
        width = float(given["bytes"].sum()) / total if "bytes" in given and total else self.held_out.bytes_per_token
        both, mark = (found.content_nats, found.content_items), self.fingerprint()
        return text_cell(
            found.nats, found.items, width, *both, given=given, task=self.name, row=conditions.row, mark=mark
        )

    def without_content(self, tokenizer: PreTrainedTokenizerBase) -> Tensor | None:
        """The tokens that are no content, bool [V]; None where content tokens are not asked for."""
        return None if self.content is None else without_content(self.held_out.blocks, tokenizer, self.content)
