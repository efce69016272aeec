"""Draw the passages of a text on which two models are compared, and pack them into rows.

A passage is a document, or a piece of a document that is longer than a row. Every token of it is scored, also the
first one, because a beginning token comes before it. So the nats of a passage are those of all its bytes, with any
tokenizer.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from everlearn.data.blocks import Block
from everlearn.data.corpus import Document, document_key
from everlearn.data.held_out import cut
from everlearn.data.tokenize import Encoder

LENGTH = 3
"""Maximum characters of a passage per token of a row; most English passages then fit into one row."""
SPARE = 8
"""Characters that are drawn per requested token: more than the average token of any common tokenizer has."""


@dataclass(frozen=True)
class TextPassage:
    """A piece of text.

    Attributes:
        document: number of its document.
        text: the text.
    """

    document: int
    text: str

    @property
    def bytes(self) -> int:
        """Return the UTF-8 bytes of the text."""
        return len(self.text.encode())


def choose(documents: Iterable[Document], length: int, most: int) -> list[TextPassage]:
    """Draw passages from a complete corpus by a hash of their text: the same ones in any order of the documents.

    Args:
        documents: the corpus.
        length: maximum characters of a passage.
        most: approximate total of characters to draw.

    Returns:
        The passages, in the order in which they are drawn.
    """
    kept: list[tuple[int, int, TextPassage]] = []
    total = 0
    for number, passage in enumerate(_cut_all(documents, length)):
        heapq.heappush(kept, (-document_key(Document(passage.text)), -number, passage))
        total += len(passage.text)
        while total - len(kept[0][-1].text) >= most:
            total -= len(heapq.heappop(kept)[-1].text)
    return [passage for *_, passage in sorted(kept, reverse=True)]


def _cut_all(documents: Iterable[Document], length: int) -> Iterator[TextPassage]:
    """Yield documents, with longer ones cut at the ends of paragraphs, lines, sentences or words."""
    around = length // 8
    for number, document in enumerate(documents):
        start = 0
        while start < len(document.text):
            piece = document.text[start : start + length]
            if start + length < len(document.text):
                piece, _ = cut(piece, length - around, around)
            start += len(piece)
            if piece.strip():
                yield TextPassage(number, piece)


def few(passages: Sequence[TextPassage], ids: Sequence[Sequence[int]], tokens: int) -> list[TextPassage]:
    """Return as many of the first passages as are needed for `tokens` tokens, in the order of their documents."""
    count = int(np.searchsorted(np.cumsum([len(each) for each in ids]), tokens)) + 1
    return sorted(passages[:count], key=lambda passage: passage.document)


@dataclass(frozen=True)
class Rows:
    """Passages as rows of tokens.

    Attributes:
        blocks: the rows as an objective collates them.
        passage: number of the passage of each token, [rows, size]; -1 for special tokens and context.
        place: position of each token within its passage, [rows, size].
    """

    blocks: list[Block]
    passage: NDArray[np.int64]
    place: NDArray[np.int64]


def rows_of(ids: Sequence[Sequence[int]], encoder: Encoder, size: int) -> Rows:
    """Return rows of passages for a model.

    Args:
        ids: tokens of each passage, without special ones.
        encoder: the encoder of a masked or causal model.
        size: tokens of a row.
    """
    return _masked(ids, encoder, size) if encoder.kind == "encoder" else _causal(ids, encoder, size)


def _masked(ids: Sequence[Sequence[int]], encoder: Encoder, size: int) -> Rows:
    """Join the passages, with special tokens around each, and cut them into rows; an incomplete last row is dropped."""
    tokens, owner, place = [], [], []
    for number, own in enumerate(ids):
        tokens += [*encoder.prefix, *own, *encoder.suffix]
        before, behind = [-1] * len(encoder.prefix), [-1] * len(encoder.suffix)
        owner += [*before, *[number] * len(own), *behind]
        place += [*before, *range(len(own)), *behind]
    complete = len(tokens) // size * size
    flat, owners, places = (np.asarray(each[:complete], np.int64).reshape(-1, size) for each in (tokens, owner, place))
    segments = np.zeros(size, np.int32)
    return Rows([{"input_ids": row.astype(np.int32), "segments": segments} for row in flat], owners, places)


def _causal(ids: Sequence[Sequence[int]], encoder: Encoder, size: int) -> Rows:
    """Put each passage after the beginning token (or the end token if there is none), without other context.

    A passage that does not fit into the rest of a row continues in the next one, after its last token as context.
    """
    begin = encoder.prefix or [encoder.pad if encoder.end is None else encoder.end]
    rows = _Filling(size, encoder.pad)
    for number, own in enumerate(ids):
        tokens, places = [*begin, *own], [*[-1] * len(begin), *range(len(own))]
        start, context = 0, len(begin)
        while start + context < len(tokens):
            left = len(tokens) - start
            if rows.room < min(left, max(size // 8, context + 1)):
                rows.flush()
            here = slice(start, start + rows.room)
            rows.add(tokens[here], number, places[here], context)
            start, context = start + len(tokens[here]) - 1, 1
    rows.flush()
    return rows.done()


class _Filling:
    """Rows that are being filled; segments follow each other, and the rest of a row is padded and not scored."""

    def __init__(self, size: int, pad: int) -> None:
        self.size, self.pad = size, pad
        self.room = size
        self._row: list[NDArray[np.int64]] = []
        self._rows: list[NDArray[np.int64]] = []

    def add(self, tokens: Sequence[int], passage: int, places: Sequence[int], context: int) -> None:
        """Add a segment whose first `context` tokens are not scored."""
        part = np.empty((4, len(tokens)), np.int64)
        part[0], part[1], part[2], part[3] = tokens, len(self._row), passage, places
        part[2, :context] = -1
        self._row.append(part)
        self.room -= len(tokens)

    def flush(self) -> None:
        """Pad the row and begin a new one."""
        if self._row:
            self.add([self.pad] * self.room, -1, [-1] * self.room, 0)
            self._rows.append(np.concatenate(self._row, axis=1))
        self._row, self.room = [], self.size

    def done(self) -> Rows:
        """Return all rows."""
        table = np.stack(self._rows)
        blocks = [
            {"input_ids": row[0].astype(np.int32), "segments": row[1].astype(np.int32), "scored": (row[2] >= 0) * 1}
            for row in table
        ]
        return Rows(blocks, table[:, 2], table[:, 3])
