"""A corpus made ready for training: tokenised once, cached on disk, memory-mapped from then on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from everlearn.data.blocks import Block, BlockSource, Column, PackedBlocks, Ragged, hash_of
from everlearn.data.corpus import Corpus, Document, Domain, is_held_out
from everlearn.data.documents import corpus_fingerprint, read_documents
from everlearn.data.packing import CHUNK, Count, PairPacker, chunks, make_packer
from everlearn.data.streaming import StreamedBlocks, too_small
from everlearn.data.tokenize import Encoder, Kind
from everlearn.errors import DataError
from everlearn.files import damage, new_folder, read_json, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMAT = 1
"""Part of every cache key: raise it when blocks are made differently."""
STREAM_HELD_OUT = 2000
"""Documents that are held out of a stream at most, so that finding them comes to an end."""


@dataclass(frozen=True)
class Prepared:
    """A corpus as blocks.

    Attributes:
        train: what to learn from.
        validation: held-out blocks; None when the recipe holds nothing out.
        documents: trained on; None when streaming.
        tokens: of these documents, special tokens included; None when streaming.
        bytes: UTF-8 bytes of these documents' text (of the answers, for text-to-text); None when streaming.
        bytes_per_token: UTF-8 bytes a predicted token stands for, exactly, over the held-out text (over the training
            text when nothing is held out). Special tokens do not count, but for the end token where it is predicted
            (decoders, and answers). Bits per byte = nats per token / ln 2 / this.
        truncated: examples that were longer than a block.
        fingerprint: of text, tokenizer and settings.
    """

    train: BlockSource
    validation: PackedBlocks | None
    documents: int | None
    tokens: int | None
    bytes: int | None
    bytes_per_token: float
    truncated: int
    fingerprint: str


class _Columns:
    """Appends blocks to ``.npy`` files without holding them in memory."""

    def __init__(self, folder: Path, part: str, ragged: bool, stack: ExitStack) -> None:
        self.folder, self.part, self.ragged, self.stack = folder, part, ragged, stack
        self.files: dict[str, BinaryIO] = {}
        self.lengths: dict[str, list[int]] = {}

    @staticmethod
    def _header(file: BinaryIO, shape: tuple[int, ...]) -> None:
        header = {"descr": np.dtype(np.int32).newbyteorder("<").str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)

    def add(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            for key, row in block.items():
                if key not in self.files:
                    name = f"{self.part}.{key}.values.npy" if self.ragged else f"{self.part}.{key}.npy"
                    self.files[key] = self.stack.enter_context((self.folder / name).open("wb"))
                    self.lengths[key] = []
                    self._header(self.files[key], (0,) if self.ragged else (0, len(row)))
                self.files[key].write(row.astype("<i4").tobytes())
                self.lengths[key].append(len(row))

    def close(self) -> int:
        """Write the true shapes into the headers (NumPy leaves room for them) and say how many blocks there are."""
        for key, file in self.files.items():
            lengths = self.lengths[key]
            file.seek(0)
            self._header(file, (sum(lengths),) if self.ragged else (len(lengths), lengths[0]))
            file.flush()
            if self.ragged:
                offsets = np.cumsum([0, *lengths], dtype=np.int64)
                np.save(self.folder / f"{self.part}.{key}.offsets.npy", offsets)
        return max((len(lengths) for lengths in self.lengths.values()), default=0)


def default_cache() -> Path:
    """Where blocks are kept unless the recipe says otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "everlearn" / "data"


def _load(folder: Path, part: str) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for path in sorted(folder.glob(f"{part}.*.npy")):
        key = path.name.removesuffix(".npy").removeprefix(f"{part}.")
        if key.endswith(".values"):
            offsets = np.load(folder / f"{part}.{key.removesuffix('.values')}.offsets.npy")
            columns[key.removesuffix(".values")] = Ragged(np.load(path, mmap_mode="r"), offsets)
        elif not key.endswith(".offsets"):
            columns[key] = np.load(path, mmap_mode="r")
    return columns


@dataclass(frozen=True)
class _Work:
    """Everything that decides what the blocks are."""

    corpus: Corpus
    name: str
    encoder: Encoder
    block_size: int
    target_size: int | None

    @property
    def share(self) -> float:
        return self.corpus.held_out_share if isinstance(self.corpus, Domain) else 0.0

    @property
    def held_out(self) -> Corpus | None:
        return self.corpus.held_out_corpus if isinstance(self.corpus, Domain) else None

    def fingerprint(self) -> str:
        settings = (FORMAT, self.block_size, self.target_size, self.share, self.corpus.streaming)
        texts = [corpus_fingerprint(corpus) for corpus in (self.corpus, self.held_out) if corpus is not None]
        return hash_of(self.encoder.fingerprint, *settings, *texts)

    def build(self, folder: Path) -> None:
        """Write both parts and what is known about them into a new folder."""
        with ExitStack() as stack:
            parts = ("train", "validation")
            packers = {part: self._packer(part) for part in parts}
            ragged = isinstance(packers["train"], PairPacker)
            columns = {part: _Columns(folder, part, ragged, stack) for part in parts}
            for lot in chunks(document for document, _ in self._documents()):
                held = [document for document in lot if is_held_out(document, self.share)]
                kept = [document for document in lot if not is_held_out(document, self.share)]
                if self.corpus.streaming:
                    held = held[: STREAM_HELD_OUT - packers["validation"].count.documents]
                    if not self.share and packers["train"].count.documents < CHUNK:
                        # Only for the bytes of a token: a stream's own blocks are made while training.
                        packers["train"].feed(kept)
                else:
                    columns["train"].add(packers["train"].feed(kept))
                columns["validation"].add(packers["validation"].feed(held))
                if self.corpus.streaming and packers["validation"].count.documents >= self._enough:
                    break
            if self.held_out is not None:
                documents = (document for document, _ in read_documents(self.held_out))
                for lot in chunks(islice(documents, STREAM_HELD_OUT if self.corpus.streaming else None)):
                    columns["validation"].add(packers["validation"].feed(lot))
            for part in parts:
                if part == "validation" or not self.corpus.streaming:
                    columns[part].add(packers[part].finish())
            blocks = {part: columns[part].close() for part in parts}
        counts = {part: packers[part].count for part in parts}
        self._check(blocks, counts)
        write_json(folder / "facts.json", {part: {**asdict(counts[part]), "blocks": blocks[part]} for part in parts})

    @property
    def _enough(self) -> int:
        return STREAM_HELD_OUT if self.share else 0

    def _documents(self) -> Iterable[tuple[Document, dict[str, Any]]]:
        return read_documents(self.corpus)

    def _packer(self, part: str) -> Any:
        where = f"'{self.name}'" if part == "train" else f"The held-out text of '{self.name}'"
        examples = self.corpus.target_column is not None
        return make_packer(self.encoder, self.block_size, examples=examples, target_size=self.target_size, where=where)

    def _check(self, blocks: dict[str, int], counts: dict[str, Count]) -> None:
        if not self.corpus.streaming and not blocks["train"]:
            raise too_small(self.name, counts["train"].tokens, self.block_size)
        if (self.share or self.held_out) and not blocks["validation"]:
            count, asked = counts["validation"], getattr(self.corpus, "validation", None)
            raise DataError(
                f"The held-out text of '{self.name}' (`validation: {asked}`) has {count.tokens} tokens in "
                f"{count.documents} documents, fewer than one block (`block_size: {self.block_size}`). Hold out a "
                "larger share, name a file of held-out text, or set `validation: null`."
            )

    def _width(self, count: Count) -> float:
        """Only an encoder never predicts an end token: it is never masked."""
        return count.bytes_per_token if self.encoder.kind == "encoder" else count.bytes_per_label

    def open(self, folder: Path, fingerprint: str, seed: int) -> Prepared:
        """The blocks in a folder that :meth:`build` wrote."""
        facts = {
            part: Count(**{key: value for key, value in fact.items() if key != "blocks"})
            for part, fact in read_json(folder / "facts.json").items()
        }
        train, held = facts["train"], facts["validation"]
        columns = _load(folder, "validation")
        validation = None
        if columns:
            validation = PackedBlocks(columns, seed, f"{self.name}/validation", hash_of(fingerprint, "validation"))
        source: BlockSource
        if self.corpus.streaming:
            source = StreamedBlocks(
                self.corpus,
                self.encoder.tokenizer,
                self.encoder.kind,
                self.block_size,
                seed,
                name=self.name,
                held_out_share=self.share,
                target_size=self.target_size,
            )
        else:
            source = PackedBlocks(_load(folder, "train"), seed, self.name, fingerprint)
        known = not self.corpus.streaming
        return Prepared(
            train=source,
            validation=validation,
            documents=train.documents if known else None,
            tokens=train.tokens if known else None,
            bytes=train.text_bytes if known else None,
            bytes_per_token=self._width(held if validation else train),
            truncated=train.truncated + held.truncated,
            fingerprint=fingerprint,
        )


def prepare(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    kind: Kind,
    block_size: int,
    *,
    seed: int,
    cache: str | Path | None = None,
    name: str | None = None,
    target_size: int | None = None,
) -> Prepared:
    """Tokenise and pack a corpus, or find it in the cache.

    Args:
        corpus: a :class:`Domain`, or a corpus without held-out text.
        tokenizer: of the model.
        kind: of the model.
        block_size: tokens in a block; the longest prompt for an encoder-decoder.
        seed: of the order.
        cache: folder that keeps the blocks, one sealed folder for each fingerprint; a damaged one is made anew. None
            is ``everlearn/data`` in the user's cache folder (``XDG_CACHE_HOME``, ``~/.cache``).
        name: instead of the domain's.
        target_size: the longest answer, for text-to-text; `block_size` when None.

    Raises:
        DataError: the corpus cannot be read, is smaller than a block, or does not fit the kind of model.
        ModelError: the tokenizer has no end token.
    """
    name = name or (corpus.name if isinstance(corpus, Domain) else "corpus")
    work = _Work(corpus, name, Encoder(tokenizer, kind), block_size, target_size)
    fingerprint = work.fingerprint()
    folder = (default_cache() if cache is None else Path(cache).expanduser()) / f"{name}-{fingerprint}"
    if damage(folder) is not None:
        with new_folder(folder) as made:
            work.build(made)
    return work.open(folder, fingerprint, seed)
