"""Prepare a corpus for training: tokenised once, cached on disk, memory-mapped from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from everlearn.data.blocks import Block, BlockSource, PackedBlocks, hash_of
from everlearn.data.corpus import Corpus, Domain
from everlearn.data.documents import Skipped, check_apart, corpus_fingerprint, read_documents
from everlearn.data.held_out import OwnHeldOut
from everlearn.data.mixing import Anneal, Annealed, Mixture, ends_of
from everlearn.data.packing import CHUNK, IGNORED, Count, PairPacker, chunks, packer_of, version_of
from everlearn.data.stored_columns import StoredColumns
from everlearn.data.streaming import StreamedBlocks, too_little_held_out, too_small
from everlearn.data.tokenize import Encoder, Kind
from everlearn.files import damage, new_folder, read_json, user_cache, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PARTS = ("train", "validation")
FACTS = 2
"""Version of the facts about the blocks (``facts.json``); folders with an older one are rebuilt."""
FORMAT = 2
"""Part of every cache key: raise it when blocks are made differently."""
STREAM_HELD_OUT = 2000
"""Documents that are held out of a stream at most, so that finding them comes to an end."""


@dataclass(frozen=True)
class Prepared:
    """A corpus as blocks.

    Attributes:
        train: the training blocks.
        validation: held-out blocks; None when the recipe holds nothing out.
        documents: trained on; None when streaming.
        tokens: number of tokens, special tokens included; None when streaming.
        bytes: UTF-8 bytes of these documents' text (of the answers, for text-to-text); None when streaming.
        bytes_per_token: exact mean of the UTF-8 bytes per predicted token, over the held-out text (over the training
            text when nothing is held out). Special tokens do not count, except for the end token where it is predicted
            (decoders, and answers). Bits per byte = nats per token / ln 2 / this.
        counts: packed rows and tokens by part (`train`, `validation`); for a stream, those of its beginning.
        fingerprint: fingerprint of text, tokenizer and settings.
        skipped: rows that hold no text; of a stream, as far as it was read.
        first_skipped: place of the first of them when they were read; "" if there are none.
        undesired: rows that are left out because their answers are marked as not desired; likewise.
        end_held_out: whether the end of the corpus is held out, because a share of its documents would be far from the
            configured share of its text.
    """

    train: BlockSource
    validation: PackedBlocks | None
    documents: int | None
    tokens: int | None
    bytes: int | None
    bytes_per_token: float
    fingerprint: str
    counts: Mapping[str, Count] = field(default_factory=dict)
    skipped: int = 0
    first_skipped: str = ""
    undesired: int = 0
    end_held_out: bool = False

    @property
    def held_out_end(self) -> str | None:
        """Fingerprint of the training text if the end of the corpus is held out; None if documents are."""
        return self.train.fingerprint if self.end_held_out else None

    @property
    def truncated(self) -> int:
        """Examples that were longer than a block."""
        return sum(count.truncated for count in self.counts.values())


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
        """Write the true shapes into the headers (NumPy leaves room for them) and return the number of blocks."""
        for key, file in self.files.items():
            lengths = self.lengths[key]
            file.seek(0)
            self._header(file, (sum(lengths),) if self.ragged else (len(lengths), lengths[0]))
            file.flush()
            if self.ragged:
                offsets = np.cumsum([0, *lengths], dtype=np.int64)
                np.save(self.folder / f"{self.part}.{key}.offsets.npy", offsets)
        return max((len(lengths) for lengths in self.lengths.values()), default=0)


def cache_folder(path: str | Path | None) -> Path:
    """Return the folder that `data.cache` names, or the default one."""
    return user_cache() / "data" if path is None else Path(path).expanduser()


@dataclass(frozen=True)
class _Work:
    """All inputs that determine the blocks."""

    corpus: Corpus
    name: str
    encoder: Encoder
    block_size: int
    target_size: int | None
    isolated: bool

    @property
    def share(self) -> float:
        return self.corpus.held_out_share if isinstance(self.corpus, Domain) else 0.0

    @property
    def held_out(self) -> Corpus | None:
        return self.corpus.held_out_corpus if isinstance(self.corpus, Domain) else None

    def fingerprint(self) -> str:
        packed = version_of(self.encoder, self.corpus)
        settings = (FORMAT, self.block_size, self.target_size, self.share, self.corpus.streaming, *packed)
        texts = [corpus_fingerprint(corpus) for corpus in (self.corpus, self.held_out) if corpus is not None]
        return hash_of(self.encoder.fingerprint, *settings, *texts)

    def build(self, folder: Path, progress: Callable[[int], None]) -> None:
        """Write both parts and their metadata to a new folder; call `progress` with the number of documents done."""
        skipped, own = Skipped(), OwnHeldOut(self.corpus, self.share)
        with ExitStack() as stack:
            packers = {part: self._packer(part) for part in PARTS}
            ragged = isinstance(packers["train"], PairPacker)
            columns = {part: _Columns(folder, part, ragged, stack) for part in PARTS}
            documents = (document for document, _ in read_documents(self.corpus, skipped=skipped))
            for chunk in chunks(own.parted(documents)):
                held = [document for document, is_held in chunk if is_held]
                kept = [document for document, is_held in chunk if not is_held]
                if self.corpus.streaming:
                    held = held[: STREAM_HELD_OUT - packers["validation"].count.documents]
                    if packers["train"].count.tokens < self.block_size or (
                        not self.share and packers["train"].count.documents < CHUNK
                    ):
                        # To see that there is a block, and for the bytes of a token: blocks are made while training.
                        packers["train"].feed(kept)
                else:
                    columns["train"].add(packers["train"].feed(kept))
                columns["validation"].add(packers["validation"].feed(held))
                progress(packers["train"].count.documents + packers["validation"].count.documents)
                enough = packers["train"].count.tokens >= self.block_size
                if self.corpus.streaming and enough and packers["validation"].count.documents >= self._enough:
                    break
            if self.held_out is not None:
                others = (document for document, _ in read_documents(self.held_out))
                for more in chunks(islice(others, STREAM_HELD_OUT if self.corpus.streaming else None)):
                    columns["validation"].add(packers["validation"].feed(more))
            for part in PARTS:
                if part == "validation" or not self.corpus.streaming:
                    columns[part].add(packers[part].finish())
            blocks = {part: columns[part].close() for part in PARTS}
        counts = {part: packers[part].count for part in PARTS}
        self._check(blocks, counts)
        facts: dict[str, Any] = {part: {**asdict(counts[part]), "blocks": blocks[part]} for part in PARTS}
        ends = own.kept_characters is not None
        rows = {"skipped": skipped.rows, "undesired": skipped.undesired, "first": skipped.first}
        facts["rows"] = rows | {"end_held_out": ends}
        facts["version"] = FACTS
        write_json(folder / "facts.json", facts)

    @property
    def _enough(self) -> int:
        return STREAM_HELD_OUT if self.share else 0

    def _packer(self, part: str) -> Any:
        where = f"'{self.name}'" if part == "train" else f"The held-out text of '{self.name}'"
        corpus = self.corpus if part == "train" else self.corpus.model_copy(update={"fill_in_middle": 0.0})
        return packer_of(corpus, self.encoder, self.block_size, target_size=self.target_size, where=where)

    def _check(self, blocks: dict[str, int], counts: dict[str, Count]) -> None:
        short = not self.corpus.answers and counts["train"].tokens < self.block_size
        if short or not (self.corpus.streaming or blocks["train"]):
            raise too_small(self.name, counts["train"].tokens, self.block_size)
        again = isinstance(self.corpus, Domain) and self.corpus.continues is not None
        if (self.share or self.held_out) and not blocks["validation"] and not again:
            raise too_little_held_out(self.name, self.corpus, counts["validation"], self.block_size)

    def _width(self, count: Count) -> float:
        """Return the UTF-8 bytes per predicted token.

        An encoder predicts no special token, for none is masked, except the end of an answer. A decoder predicts each
        end and, where documents see each other, the next one's beginning too. The decoder of an encoder-decoder
        predicts all special tokens around an answer.
        """
        if self.encoder.kind == "encoder":
            examples = self.corpus.answers
            return count.bytes_per_label(len(self.encoder.answer_end) if examples else 0)
        around = len(self.encoder.prefix) + len(self.encoder.suffix)
        begins = not self.isolated and not self.corpus.answers and not self.corpus.beside_answers
        return count.bytes_per_label(around if begins or self.encoder.kind == "encoder-decoder" else 1)

    def open(self, folder: Path, fingerprint: str, seed: int) -> Prepared:
        """Open the blocks in a folder that :meth:`build` wrote."""
        facts = read_json(folder / "facts.json")
        train, held = (Count(**{key: value for key, value in facts[part].items() if key != "blocks"}) for part in PARTS)
        columns = StoredColumns(folder, "validation")
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
            source = PackedBlocks(StoredColumns(folder, "train"), seed, self.name, fingerprint)
        known = not self.corpus.streaming
        return Prepared(
            train=source,
            validation=validation,
            documents=train.documents if known else None,
            tokens=train.tokens if known else None,
            bytes=train.text_bytes if known else None,
            bytes_per_token=self._width(held if validation else train),
            fingerprint=fingerprint,
            counts=dict(zip(PARTS, (train, held), strict=True)),
            skipped=facts["rows"]["skipped"],
            first_skipped=facts["rows"]["first"],
            undesired=facts["rows"]["undesired"],
            end_held_out=facts["rows"]["end_held_out"],
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
    isolated: bool = True,
    predicted: float = 1.0,
    progress: Callable[[int], None] = lambda documents: None,
) -> Prepared:
    """Tokenise and pack a corpus, or find it in the cache.

    Args:
        corpus: a :class:`Domain`, or a corpus without held-out text.
        tokenizer: the model's tokenizer.
        kind: kind of the model.
        block_size: tokens in a block; the longest prompt for an encoder-decoder.
        seed: seed of the order.
        cache: folder that keeps the blocks, one folder with checksums for each fingerprint; a damaged one is
            rebuilt. None is ``everlearn/data`` in the user's cache folder (``XDG_CACHE_HOME``, ``~/.cache``).
        name: name of the corpus, if not that of the domain.
        target_size: the longest answer, for text-to-text; `block_size` when None.
        isolated: whether documents in a block are hidden from each other; it changes what is predicted and thus the
            loss per byte, but not the blocks.
        predicted: share of the tokens of plain text that are predicted; a masked model predicts a part of them, and
            all tokens of an answer.
        progress: called with the number of tokenised documents of a source.

    Raises:
        DataError: the corpus cannot be read, is smaller than a block, or does not fit the kind of model.
        ModelError: the tokenizer has no end token.
    """
    name = name or (corpus.name if isinstance(corpus, Domain) else "corpus")
    if isinstance(corpus, Domain) and corpus.sources:
        prepared = [
            prepare(
                part,
                tokenizer,
                kind,
                block_size,
                seed=seed,
                cache=cache,
                target_size=target_size,
                isolated=isolated,
                progress=progress,
            )
            for part in corpus.parts
        ]
        weights = [source.weight for source in corpus.sources]
        return together(name, dict(zip(corpus.source_names, prepared, strict=True)), weights, seed, predicted)
    work = _Work(corpus, name, Encoder(tokenizer, kind), block_size, target_size, isolated)
    if work.held_out is not None:
        check_apart(corpus, work.held_out)
    fingerprint = work.fingerprint()
    folder = cache_folder(cache) / f"{name}-{fingerprint}"
    if damage(folder) is not None or read_json(folder / "facts.json").get("version") != FACTS:
        with new_folder(folder) as build_folder:
            work.build(build_folder, progress)
    return work.open(folder, fingerprint, seed)


def together(
    name: str, parts: Mapping[str, Prepared], weights: Sequence[float | Annealed], seed: int, predicted: float = 1.0
) -> Prepared:
    """Combine several sources into one domain: each has its share of the training tokens and of the held-out rows.

    If shares change along the domain, the held-out rows have the mean ones. Bytes per token are averaged over predicted
    tokens; `predicted` is as in :func:`prepare`.
    """
    first, last = ([ends_of(weight)[place] for weight in weights] for place in (0, 1))
    train = Mixture(
        [(source, part.train, weight) for (source, part), weight in zip(parts.items(), first, strict=True)],
        name,
        size=_sum(part.train.size for part in parts.values()),
        anneal=None if first == last else Anneal(dict(zip(parts, last, strict=True))),
    )
    means = first if first == last else list(train.asked.values())
    held = [
        (part.validation, weight, part.bytes_per_token)
        for part, weight in zip(parts.values(), means, strict=True)
        if part.validation is not None
    ]
    validation, width = None, 0.0
    if held:
        # As many rows as there are, in the configured proportions.
        most = min(len(blocks) / weight for blocks, weight, _ in held)
        counts = [max(1, int(most * weight)) for _, weight, _ in held]
        chosen = [blocks.take(blocks.order(0)[:count]) for (blocks, _, _), count in zip(held, counts, strict=True)]
        validation = PackedBlocks.from_blocks((block for part in chosen for block in part), seed, f"{name}/validation")
        labels = [sum(_predicted_in(block, predicted) for block in part) for part in chosen]
        width = sum(count * each for count, (_, _, each) in zip(labels, held, strict=True)) / sum(labels)
    else:
        width = sum(w * part.bytes_per_token for w, part in zip(means, parts.values(), strict=True)) / sum(means)
    return Prepared(
        train=train,
        validation=validation,
        documents=_sum(part.documents for part in parts.values()),
        tokens=_sum(part.tokens for part in parts.values()),
        bytes=_sum(part.bytes for part in parts.values()),
        bytes_per_token=width,
        fingerprint=hash_of(name, *weights, *(part.fingerprint for part in parts.values())),
        counts={part: sum((each.counts[part] for each in parts.values()), Count()) for part in PARTS},
        skipped=sum(part.skipped for part in parts.values()),
        first_skipped=next((part.first_skipped for part in parts.values() if part.skipped), ""),
        undesired=sum(part.undesired for part in parts.values()),
        end_held_out=any(part.end_held_out for part in parts.values()),
    )


def _predicted_in(block: Block, share: float) -> int:
    """Return how many tokens of a block are predicted: all that are learnt, or a share of a block of plain text."""
    learnt = block.get("labels", block["input_ids"]) != IGNORED
    return max(1, round(share * learnt.size)) if learnt.all() else int(learnt.sum())


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the counts; None where one is not known."""
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)
