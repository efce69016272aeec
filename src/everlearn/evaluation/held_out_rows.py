"""What belongs to each held-out row: how many bytes one of its tokens stands for, and which document it is of.

Rows differ in both. The bytes of a token of the whole held-out text are not those of the rows that are scored (a level
in bits per byte is off by a percent or two with 24 rows), and rows of one long document are alike, so that a bootstrap
that draws them one by one takes them for more observations than they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from everlearn.data.blocks import Block, PackedBlocks
from everlearn.data.tokenize import Encoder
from everlearn.data.windows import SCORED, Windows
from everlearn.model.objectives import IGNORE

BYTES, DOCUMENT = "bytes_per_token", "document"
"""Names of what is known of each row."""
_MOST = 4096
"""Rows that are read to know what all rows have in common."""


def facts_of_rows(
    blocks: PackedBlocks | Windows, chosen: NDArray[np.intp], encoder: Encoder, width: float, in_order: bool
) -> dict[str, NDArray[Any]]:
    """What is known of each chosen row.

    Args:
        blocks: all held-out rows.
        chosen: numbers of those that are scored.
        encoder: of the model.
        width: exact bytes of a token of all rows.
        in_order: whether a document that does not end in its row goes on in the next; rows of several sources are
            mixed.

    Returns:
        :data:`BYTES`, and :data:`DOCUMENT` where documents can be told apart.
    """
    facts: dict[str, NDArray[Any]] = {BYTES: row_widths(blocks, chosen, encoder.tokenizer, width)}
    end = encoder.suffix[-1] if encoder.suffix else encoder.end
    documents = main_documents(blocks, chosen, end) if in_order else None
    return facts if documents is None else {**facts, DOCUMENT: documents}


def row_widths(
    blocks: PackedBlocks | Windows, chosen: NDArray[np.intp], tokenizer: PreTrainedTokenizerBase, width: float
) -> NDArray[np.float64]:
    """Bytes of a token of each chosen row.

    A row's tokens are decoded, which may lose a little (white space, half a character where the row was cut), so what
    counts is how a row differs from all rows: of these together the bytes of a token are known exactly.

    Args:
        blocks: all held-out rows.
        chosen: numbers of those that are scored.
        tokenizer: of the model.
        width: exact bytes of a token of all rows.

    Returns:
        [chosen].
    """
    every = np.arange(len(blocks))
    if len(every) > _MOST:
        every = np.union1d(every[:: -(-len(every) // _MOST)], chosen)
    decoded = _decoded(blocks.take(every), tokenizer)
    mean = decoded[:, 0].sum() / max(decoded[:, 1].sum(), 1.0)
    if not mean:
        return np.full(len(chosen), width)
    own = decoded[np.searchsorted(every, chosen)]
    return np.asarray(width * own[:, 0] / np.maximum(own[:, 1], 1.0) / mean, np.float64)


def _decoded(rows: Iterable[Block], tokenizer: PreTrainedTokenizerBase) -> NDArray[np.float64]:
    """UTF-8 bytes and tokens of what is scored in each row, [rows, 2]."""
    found = []
    for row in rows:
        ids = row.get("labels", row["input_ids"])
        ids = ids[(ids != IGNORE) & (row[SCORED] == 1)] if SCORED in row else ids[ids != IGNORE]
        text = tokenizer.decode(ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        found.append((len(str(text).encode(errors="replace")), len(ids)))
    return np.array(found, np.float64).reshape(-1, 2)


def main_documents(
    blocks: PackedBlocks | Windows, chosen: NDArray[np.intp], end: int | None
) -> NDArray[np.int64] | None:
    """Number of the document that most of a row's scored tokens belong to.

    Args:
        blocks: packed text in the order in which it was cut: a document that does not end in its row goes on in the
            next.
        chosen: numbers of the rows that are scored.
        end: id of the token that ends a document; None where there is none.

    Returns:
        [chosen]; None where rows are no pieces of packed text, or nothing tells where a document ends.
    """
    packed = blocks.blocks if isinstance(blocks, Windows) else blocks
    segments, ids = packed.arrays.get("segments"), packed.arrays["input_ids"]
    if end is None or not isinstance(segments, np.ndarray) or not isinstance(ids, np.ndarray):
        return None
    if "labels" in packed.arrays:
        return None
    ends = np.asarray(segments[:, -1], np.int64) + (np.asarray(ids[:, -1]) == end)
    first = np.concatenate([[0], np.cumsum(ends)[:-1]])
    found = []
    for number, row in zip(map(int, chosen), blocks.take(chosen), strict=True):
        start = number
        base = 0
        if isinstance(blocks, Windows):
            start, offset = divmod(number * blocks.stride, np.asarray(ids).shape[1])
            base = int(segments[start, offset])
        own = row["segments"][row[SCORED] == 1] if SCORED in row else row["segments"]
        found.append(int(first[start]) + base + int(np.bincount(own).argmax()))
    return np.array(found, np.int64)
