"""Build blocks during training: nothing is stored, and a restored state continues with exactly the same blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from everlearn import wording
from everlearn.data.blocks import Block, BlockSource, hash_of
from everlearn.data.corpus import Corpus, Document, is_held_out
from everlearn.data.documents import corpus_fingerprint, read_documents
from everlearn.data.packing import CHUNK, Count, Packer, packer_of, version_of
from everlearn.data.tokenize import Encoder, Kind
from everlearn.errors import DataError
from everlearn.seeding import seed_for

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class _CorpusEnds(Exception):
    """Signals the end of a stream that is read once."""


class StreamedBlocks(BlockSource):
    """Reads, tokenises and packs on the fly, from the start again when the corpus ends.

    Documents are processed in chunks. The state is the position of the reader and the remainder of the packer *before*
    the current chunk, and the number of blocks taken from it. A restored stream processes the chunk again and skips
    these blocks.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: PreTrainedTokenizerBase,
        kind: Kind,
        block_size: int,
        seed: int,
        *,
        name: str = "stream",
        held_out_share: float = 0.0,
        target_size: int | None = None,
    ) -> None:
        """Prepare to read; no file is opened yet.

        Args:
            corpus: the corpus to read.
            tokenizer: the model's tokenizer.
            kind: kind of the model.
            block_size: tokens in a block; the longest prompt for an encoder-decoder.
            seed: seed of the shuffle buffer (`corpus.shuffle_buffer` blocks).
            name: name of the domain.
            held_out_share: share of the documents to leave out (:func:`is_held_out`).
            target_size: the longest answer, for text-to-text.

        Raises:
            DataError: the kind of model cannot learn this kind of text.
            ModelError: the tokenizer has no end token.
        """
        self.corpus, self.tokenizer, self.kind = corpus, tokenizer, kind
        self.block_size, self.seed, self.name = block_size, seed, name
        self.held_out_share, self.target_size = held_out_share, target_size
        self.encoder = Encoder(tokenizer, kind)
        self.size = None
        self.block_tokens = None if kind == "encoder-decoder" else block_size
        self._once = False
        self._pass = 0
        self._yielded = 0
        self._buffer: list[Block] = []
        self._start()

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        packed = version_of(self.encoder, self.corpus)
        settings = (self.block_size, self.target_size, self.held_out_share, *packed)
        return hash_of(corpus_fingerprint(self.corpus), self.encoder.fingerprint, *settings)

    def _start(self, position: dict[str, Any] | None = None) -> None:
        """Open the corpus at a position, with an empty packer."""
        self._packer: Packer = packer_of(
            self.corpus, self.encoder, self.block_size, target_size=self.target_size, where=f"'{self.name}'"
        )
        self._position: dict[str, Any] | None = position
        self._documents = read_documents(self.corpus, position=position)
        self._before: dict[str, Any] = {"position": position, "packer": self._packer.state_dict()}
        self._blocks: list[Block] = []
        self._taken = 0
        self._in_pass = 0

    def _text(self) -> Iterator[Document]:
        """Yield the documents of the next chunk that are trained on, and remember where the chunk ends."""
        for document, position in islice(self._documents, CHUNK):
            self._position = position
            if not is_held_out(document, self.held_out_share):
                yield document

    def _next_chunk(self) -> None:
        """Process the next chunk, or begin the next pass.

        Raises:
            DataError: a complete pass gave no block.
        """
        self._before = {"position": self._position, "packer": self._packer.state_dict()}
        self._taken = 0
        before = self._position
        documents = list(self._text())
        if self._position != before:
            self._blocks = self._packer.feed(documents)
            self._in_pass += len(self._blocks)
            return
        self._blocks = self._packer.finish()
        if not self._blocks:
            if not self._in_pass:
                raise too_small(self.name, self._packer.count.tokens, self.block_size)
            if self._once:
                raise _CorpusEnds
            self._pass += 1
            self._start()
        else:
            self._in_pass += len(self._blocks)

    def _in_order(self) -> Block:
        while self._taken >= len(self._blocks):
            self._next_chunk()
        self._taken += 1
        return self._blocks[self._taken - 1]

    def __next__(self) -> Block:
        block = self._in_order()
        if self.corpus.shuffle_buffer:
            while len(self._buffer) < self.corpus.shuffle_buffer:
                self._buffer.append(block)
                block = self._in_order()
            drawn = self._draw()
            self._buffer[drawn], block = block, self._buffer[drawn]
        self._yielded += 1
        return {key: row.copy() for key, row in block.items()}

    def _draw(self) -> int:
        # The draw depends on the count alone, so that no generator's state must be saved.
        return seed_for(self.seed, self.name, self._yielded) % len(self._buffer)

    def once(self, seed: int) -> Iterator[Block]:
        """Iterate over the blocks of :meth:`fresh` until the corpus ends, then over those that its shuffle buffer still
        holds.
        """
        stream = self.fresh(seed)
        stream._once = True
        try:
            while True:
                yield next(stream)
        except _CorpusEnds:
            while stream._buffer:
                drawn = stream._draw()
                stream._yielded += 1
                yield stream._buffer.pop(drawn)

    def state_dict(self) -> dict[str, Any]:
        """Return the chunk's start, the blocks taken from it, and the shuffle buffer's blocks."""
        return {
            "pass": self._pass,
            "given": self._yielded,
            "lot": self._before,
            "taken": self._taken,
            "in_pass": self._in_pass - len(self._blocks),
            "buffer": [{key: row.tolist() for key, row in block.items()} for block in self._buffer],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Read again from the chunk's start and skip the blocks that were taken."""
        self._pass, self._yielded = int(state["pass"]), int(state["given"])
        self._start(state["lot"]["position"])
        self._packer.load_state_dict(state["lot"]["packer"])
        self._before = dict(state["lot"])
        self._in_pass = int(state["in_pass"])
        self._buffer = [{key: np.array(row, np.int32) for key, row in block.items()} for block in state["buffer"]]
        if state["taken"]:
            self._next_chunk()
            self._taken = int(state["taken"])

    def fresh(self, seed: int) -> StreamedBlocks:
        """Return the same stream from the start; its order differs only by the shuffle buffer."""
        return StreamedBlocks(
            self.corpus,
            self.tokenizer,
            self.kind,
            self.block_size,
            seed_for("fresh", seed),
            name=self.name,
            held_out_share=self.held_out_share,
            target_size=self.target_size,
        )


def too_small(name: str, tokens: int, block_size: int) -> DataError:
    """Return the error for training text that does not fill a block."""
    return DataError(
        f"'{name}' has {wording.count(tokens, 'token')} to learn from, fewer than one block "
        f"(`data.block_size: {block_size}`). "
        "Use a larger corpus, a smaller block or a smaller `validation` share."
    )


def too_little_held_out(name: str, corpus: Corpus, count: Count, block_size: int) -> DataError:
    """Return the error for held-out text that does not fill a block.

    Args:
        name: name of the corpus.
        corpus: the corpus of the held-out text.
        count: size of the beginning of the stream.
        block_size: tokens of a block.
    """
    validation = getattr(corpus, "validation", None)
    streams = corpus.streaming and isinstance(validation, float)
    return DataError(
        f"The held-out text of '{name}' (`validation: {validation}`) has {wording.count(count.tokens, 'token')} in "
        f"{wording.count(count.documents, 'document')}, fewer than one block (`data.block_size: {block_size}`). Hold "
        "out a larger share, name a file of held-out text, or set `validation: null`."
        + (
            " A stream's documents are held out whole; `streaming: false` can hold out the end of one."
            if streams
            else ""
        )
    )
