"""Held-out text as a task: fixed blocks of one domain or of the general text, kept for as long as the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from everlearn import files, wording
from everlearn.data.blocks import Column, PackedBlocks, Ragged, hash_of
from everlearn.errors import DataError, RunError
from everlearn.evaluation.cell import TEXT, Cell, text_cell
from everlearn.evaluation.content import without_content
from everlearn.evaluation.perplexity import BlockLosses, losses_of
from everlearn.evaluation.predictor import Predictor
from everlearn.evaluation.task import Conditions, Task, Work, register_kind
from everlearn.seeding import seed_for

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_STRETCHES = 16


@dataclass(frozen=True)
class HeldOut:
    """Held-out blocks of one domain or of the general text."""

    blocks: PackedBlocks
    bytes_per_token: float

    def save(self, path: Path) -> None:
        """Replace the file atomically."""
        tensors = {"bytes_per_token": torch.tensor(self.bytes_per_token, dtype=torch.float64)}
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
        chosen = self.blocks.take(np.sort(order[:count]))
        return replace(self, blocks=PackedBlocks.from_blocks(chosen, 0, self.blocks.name))

    def half(self, number: int) -> HeldOut:
        """One of two halves (0 or 1) that have no block in common.

        They take turns in stretches of several blocks: both have text from everywhere, and few documents that go on
        from one block to the next are in both.
        """
        count = len(self.blocks)
        stretch = np.arange(count) * min(_STRETCHES, count) // max(count, 1)
        return replace(
            self,
            blocks=PackedBlocks.from_blocks(
                self.blocks.take(np.flatnonzero(stretch % 2 == number)), 0, self.blocks.name
            ),
        )

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
            for key in tensors:
                name, _, part = key.partition(".")
                if part == "values":
                    columns[name] = Ragged(tensors[key].numpy(), tensors[f"{name}.offsets"].numpy())
                elif not part:
                    columns[name] = tensors[key].numpy()
            return cls(PackedBlocks(columns, seed=0, name=path.stem), width)
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
        width, mark = self.held_out.bytes_per_token, self.fingerprint()
        both = (found.content_nats, found.content_items)
        return text_cell(found.nats, found.items, width, *both, task=self.name, row=conditions.row, mark=mark)

    def without_content(self, tokenizer: PreTrainedTokenizerBase) -> Tensor | None:
        """The tokens that are no content, bool [V]; None where content tokens are not asked for."""
        return None if self.content is None else without_content(self.held_out.blocks, tokenizer, self.content)
