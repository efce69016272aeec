"""Compute facts of held-out rows: the bytes of a row's tokens, and the document that it belongs to.

Both differ between rows. With the average bytes per token of the complete held-out text, a level in bits per byte would
be off by one or two per cent for 24 scored rows. Rows of one document are similar, so a bootstrap that draws them one
by one gives intervals that are too narrow.
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
"""Names of the facts of rows."""
_MOST = 4096
"""Maximum number of rows that are decoded to estimate the average of all rows."""


def facts_of_rows(
    blocks: PackedBlocks | Windows, chosen: NDArray[np.intp], encoder: Encoder, width: float, in_order: bool
) -> dict[str, NDArray[Any]]:
    """Return the facts of each chosen row.

    Args:
        blocks: all held-out rows.
        chosen: numbers of the scored rows.
        encoder: the model's encoder of texts.
        width: exact average bytes per token of all rows.
        in_order: whether a document that does not end in its row continues in the next row. This is false if rows of
            several sources are mixed.

    Returns:
        :data:`BYTES`, and :data:`DOCUMENT` if documents can be distinguished.
    """
    facts: dict[str, NDArray[Any]] = {BYTES: row_widths(blocks, chosen, encoder.tokenizer, width)}
    end = encoder.suffix[-1] if encoder.suffix else encoder.end
    documents = main_documents(blocks, chosen, end) if in_order else None
    return facts if documents is None else {**facts, DOCUMENT: documents}


def row_widths(
    blocks: PackedBlocks | Windows, chosen: NDArray[np.intp], tokenizer: PreTrainedTokenizerBase, width: float
) -> NDArray[np.float64]:
    """Return the average bytes per token of each chosen row, [chosen].

    A row is decoded for this, which may lose a little (white space, half a character where the row was cut). So only
    the ratio of a row to all rows is taken from decoding, and the average of all rows is the exact one.

    Args:
        blocks: all held-out rows.
        chosen: numbers of the scored rows.
        tokenizer: the model's tokenizer.
        width: exact average bytes per token of all rows.
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
    """Return the UTF-8 bytes and the number of the scored tokens of each row, [rows, 2]."""
    sizes = []
    for row in rows:
        ids = row.get("labels", row["input_ids"])
        ids = ids[(ids != IGNORE) & (row[SCORED] == 1)] if SCORED in row else ids[ids != IGNORE]
        text = tokenizer.decode(ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        sizes.append((len(str(text).encode(errors="replace")), len(ids)))
    return np.array(sizes, np.float64).reshape(-1, 2)


def main_documents(
    blocks: PackedBlocks | Windows, chosen: NDArray[np.intp], end: int | None
) -> NDArray[np.int64] | None:
    """Return for each chosen row the number of the document of most of its scored tokens, [chosen].

    None if the rows are not pieces of packed text, or if nothing marks the end of a document.

    Args:
        blocks: packed text in the order in which it was cut: a document that does not end in its row continues in the
            next row.
        chosen: numbers of the scored rows.
        end: id of the token that ends a document; None if there is none.
    """
    packed = blocks.blocks if isinstance(blocks, Windows) else blocks
    segments, ids = packed.arrays.get("segments"), packed.arrays["input_ids"]
    if end is None or not isinstance(segments, np.ndarray) or not isinstance(ids, np.ndarray):
        return None
    if "labels" in packed.arrays:
        return None
    ends = np.asarray(segments[:, -1], np.int64) + (np.asarray(ids[:, -1]) == end)
    first = np.concatenate([[0], np.cumsum(ends)[:-1]])
    documents = []
    for number, row in zip(map(int, chosen), blocks.take(chosen), strict=True):
        start = number
        base = 0
        if isinstance(blocks, Windows):
            start, offset = divmod(number * blocks.stride, np.asarray(ids).shape[1])
            base = int(segments[start, offset])
        own = row["segments"][row[SCORED] == 1] if SCORED in row else row["segments"]
        documents.append(int(first[start]) + base + int(np.bincount(own).argmax()))
    return np.array(documents, np.int64)
