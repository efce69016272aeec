"""Examine the corpora of a recipe: sizes, lengths, samples, duplicates, and the notes of `validate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from everlearn.config.recipe import Recipe
from everlearn.data.chats import ChatFormat, uses_template
from everlearn.data.corpus import Document, Domain, document_key
from everlearn.data.documents import Skipped, check_apart, read_documents
from everlearn.data.file_listing import FileGroup, files_of
from everlearn.data.held_out import OwnHeldOut
from everlearn.data.leaks import LeakCheck
from everlearn.data.near_duplicates import NearDuplicates
from everlearn.data.notes import notes_on, same_files, unread_files
from everlearn.data.packing import Count, chunks, packer_of
from everlearn.data.shingles import words_of
from everlearn.data.streaming import too_little_held_out, too_small
from everlearn.data.tokenize import Encoder
from everlearn.evaluation import make_task
from everlearn.model.loading import load_skeleton
from everlearn.model.text_format import TextFormat
from everlearn.run.checks import check_run_leaks
from everlearn.run.open_run import OpenRun
from everlearn.run.progress import Reporter
from everlearn.seeding import seed_for

MOST = 100_000
"""Maximum number of documents of a corpus that are read."""
TOKENISED = 2_000
"""Number of documents that are tokenised, drawn at random; if there are more, tokens are estimated from bytes."""
SAMPLES = 3
LONGEST = 100_000
"""Maximum number of characters of a document that are tokenised."""
QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)


@dataclass
class CorpusSurvey:
    """Contents of one corpus. Counts are exact unless stated otherwise."""

    name: str
    path: str
    files: list[FileGroup] = field(default_factory=list)
    """The files, by format, split and use; none for a data set of the hub."""
    documents: int = 0
    held_out: int = 0
    """Held-out documents: some of the corpus, or those of a separate file."""
    held_out_by: str = ""
    skipped: int = 0
    undesired: int = 0
    """Rows that are left out because their answers are marked as not desired."""
    bytes: int = 0
    tokens: int = 0
    about: bool = False
    """Whether tokens and lengths are estimated from the bytes, because only a part of the documents was tokenised."""
    whole: bool = True
    """Whether every document was read."""
    lengths: list[int] = field(default_factory=list)
    """Tokens of the shortest document, of the 5 %, 50 % and 95 % quantile, and of the longest."""
    histogram: list[tuple[int, int]] = field(default_factory=list)
    """(maximum number of tokens, a power of two; number of documents) for each length class."""
    longer: int = 0
    """Documents longer than a row, or examples that are cut."""
    duplicates: int = 0
    """Documents with the same text as an earlier one."""
    near_duplicates: int = 0
    """Different documents that are nearly the same as an earlier one (estimated)."""
    samples: list[str] = field(default_factory=list)
    examples: bool = False
    """Whether documents are prompts with answers."""

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes of a token."""
        return self.bytes / max(self.tokens, 1)


@dataclass(frozen=True)
class Survey:
    """Contents of the corpora of a recipe.

    Attributes:
        block_size: tokens per row.
        corpora: each of them.
        leaks: held-out text that occurs in training text, and text that corpora share.
        findings: problems, as sentences.
    """

    block_size: int
    corpora: list[CorpusSurvey]
    leaks: LeakCheck
    findings: list[str]

    @property
    def shared(self) -> list[tuple[str, str, float]]:
        """Return the share of the 13-grams of one corpus (first) that occur in another (second)."""
        return [
            triple
            for pair in self.leaks.shared
            for triple in ((pair.one, pair.other, pair.of_one), (pair.other, pair.one, pair.of_other))
        ]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        corpora = [asdict(corpus) | {"bytes_per_token": corpus.bytes_per_token} for corpus in self.corpora]
        return asdict(self) | {"corpora": corpora, "shared": self.shared}


class _Drawn:
    """A uniform sample of documents; all of them, in their order, if there are no more."""

    def __init__(self, name: str) -> None:
        self.name, self.seen = name, 0
        self.documents: list[Document] = []

    def add(self, document: Document) -> None:
        """Offer a document to the sample (reservoir sampling as in :class:`~everlearn.data.reservoir.Reservoir`)."""
        self.seen += 1
        place = seed_for("data", self.name, self.seen) % self.seen
        if len(self.documents) < TOKENISED:
            self.documents.append(document)
        elif place < TOKENISED:
            self.documents[place] = document


class _Reader:
    """Scans one corpus."""

    def __init__(self, corpus: Domain, format_: TextFormat) -> None:
        self.corpus, self.format = corpus, format_
        self.survey = CorpusSurvey(corpus.name, corpus.path, files_of(corpus), examples=corpus.answers)
        self.notes: list[str] = []
        self._near, self._keys = NearDuplicates(), set[int]()
        self._own = OwnHeldOut(corpus, corpus.held_out_share)
        self._lengths: list[int] = []
        self._chats = ChatFormat(format_.tokenizer) if uses_template(corpus, format_.tokenizer, format_.kind) else None
        self._train, self._held_out = _Drawn(corpus.name), _Drawn(f"{corpus.name}/held out")
        self._bytes = {"train": 0, "validation": 0}
        self._first_skipped = ""

    def read(self) -> None:
        """Go through the corpus."""
        survey, skipped = self.survey, Skipped()
        documents = (document for document, _ in islice(read_documents(self.corpus, skipped=skipped), MOST + 1))
        for chunk in chunks(self._own.parted(documents)):
            if survey.documents + survey.held_out + len(chunk) > MOST:
                survey.whole = False
                chunk = chunk[: MOST - survey.documents - survey.held_out]
            self._take([document for document, held in chunk if not held])
            self._hold_out([document for document, held in chunk if held])
            if not survey.whole:
                break
        survey.skipped, survey.undesired = skipped.rows, skipped.undesired
        self._first_skipped = skipped.first
        if self._own.kept_characters is not None:
            survey.held_out_by = "the end of the corpus, whose documents are too few or too unequal to hold out some"
        elif survey.held_out:
            survey.held_out_by = "a hash of their text"
        others = self.corpus.held_out_corpus
        if others is not None:
            check_apart(self.corpus, others)
            survey.held_out_by = others.path if not others.on_hub else f"split {others.split}"
            for more in chunks(document for document, _ in islice(read_documents(others), MOST)):
                self._hold_out(more)
        self._conclude()

    def _take(self, documents: list[Document]) -> None:
        new = []
        for document in documents:
            self.survey.documents += 1
            self._train.add(document)
            self._bytes["train"] += _learnt_bytes(document)
            self._lengths.append(len(self._written(document).encode("utf-8", "replace")))
            key = document_key(document)
            if key in self._keys:
                self.survey.duplicates += 1
            else:
                new.append(document)
            self._keys.add(key)
        self._near.add(words_of([document.full_text for document in new]))

    def _written(self, document: Document) -> str:
        """Return a document as the model reads it."""
        return self._chats.text(document.messages, document.tools) if self._chats is not None else document.full_text

    def _hold_out(self, documents: list[Document]) -> None:
        self.survey.held_out += len(documents)
        for document in documents:
            self._held_out.add(document)
            self._bytes["validation"] += _learnt_bytes(document)

    def _conclude(self) -> None:
        survey, drawn = self.survey, self._train.documents
        lengths = np.array(self._lengths, np.int64)
        survey.bytes = int(lengths.sum())
        texts = [self._written(document)[:LONGEST] for document in drawn]
        tokens = np.array([len(ids) for ids in _ids(self.format, texts)], np.int64)
        read = np.array([len(text.encode("utf-8", "replace")) for text in texts], np.int64)
        survey.about = len(texts) < survey.documents or int(read.sum()) < survey.bytes
        if survey.about:
            tokens = np.rint(lengths * (tokens.sum() / max(int(read.sum()), 1))).astype(np.int64)
        survey.tokens = int(tokens.sum())
        counts = {
            part: self._count(part, sample) for part, sample in (("train", self._train), ("validation", self._held_out))
        }
        if len(tokens):
            survey.lengths = [int(value) for value in np.quantile(tokens, QUANTILES, method="nearest")]
            survey.longer = int((tokens > self.format.block_size).sum())
            powers = np.ceil(np.log2(np.maximum(tokens, 1))).astype(int)
            survey.histogram = [
                (2**power, int((powers == power).sum())) for power in range(powers.min(), powers.max() + 1)
            ]
        if survey.examples:
            survey.longer = counts["train"].truncated
        survey.near_duplicates = self._near.count()
        order = sorted(range(len(drawn)), key=lambda i: seed_for("sample", survey.name, i))
        survey.samples = [self._written(drawn[i]) for i in sorted(order[:SAMPLES])]
        self._note(counts)

    def _count(self, part: str, sample: _Drawn) -> Count:
        """Pack the sample as training does, and scale the counts to all documents."""
        scale = sample.seen / max(len(sample.documents), 1)
        learnt_bytes = self._bytes[part]
        tokens = round(learnt_bytes * self.survey.tokens / max(self.survey.bytes, 1))
        count = Count(sample.seen, tokens=tokens, text_tokens=tokens, text_bytes=learnt_bytes)
        if self.survey.examples or tokens <= 2 * self.format.block_size:
            encoder, size = Encoder(self.format.tokenizer, self.format.kind), self.format.block_size
            packer = packer_of(self.corpus, encoder, size, where=f"'{self.survey.name}'")
            for chunk in chunks(sample.documents):
                packer.feed(chunk)
            packed = packer.count
            count.tokens, count.longest = round(packed.tokens * scale), packed.longest
            for name in ("truncated", "answers_cut", "spelt"):
                setattr(count, name, round(getattr(packed, name) * scale))
        return count

    def _note(self, counts: dict[str, Count]) -> None:
        """Collect the notes and errors that `validate` reports for the corpus."""
        size, tokens = self.format.block_size, counts["train"].tokens
        about = any(len(sample.documents) < sample.seen for sample in (self._train, self._held_out))
        ends = self._own.kept_characters is not None
        left_out = (self.survey.skipped, ends, size, self.survey.undesired)
        vocabulary = len(self.format.tokenizer)
        self.notes += notes_on(self.corpus, counts, *left_out, about, self._first_skipped, vocabulary)
        if not self.survey.examples and self.survey.whole and tokens < size:
            self.notes.append(str(too_small(self.survey.name, tokens, size)))
        held = counts["validation"]
        short = not held.documents or (not self.survey.examples and held.tokens < size)
        if self.corpus.validation is not None and self.survey.whole and short:
            self.notes.append(str(too_little_held_out(self.survey.name, self.corpus, held, size)))


def survey(recipe: Recipe, reporter: Reporter | None = None) -> Survey:
    """Examine every corpus of a recipe, and their overlaps.

    Args:
        recipe: the recipe; of its model only configuration and tokenizer are read.
        reporter: receives progress messages.

    Raises:
        EverlearnError: a corpus, an end task, the configuration or the tokenizer cannot be read.
    """
    run = OpenRun(recipe, reporter)
    format_ = run.setting(load_skeleton(recipe.model))
    readers = [_Reader(part, format_) for corpus in run.corpora for part in corpus.parts]
    for reader in readers:
        run.reporter.say(f"Reading {reader.survey.name}")
        reader.read()
    findings = unread_files(run.corpora) + [note for reader in readers for note in reader.notes]
    findings += same_files(run.corpora)
    for config in recipe.end_tasks:
        task = make_task(config)
        task.check()
        findings += task.notes()
    leaks = check_run_leaks(run, run.corpora, recipe.end_tasks)
    findings += leaks.notes(recipe.general.name if recipe.general else None)
    return Survey(format_.block_size, [reader.survey for reader in readers], leaks, findings)


def _learnt_bytes(document: Document) -> int:
    """Return the UTF-8 bytes that a packer counts: of the text, or of the answer."""
    text = document.text if document.target is None else document.target
    return len(text.encode("utf-8", "replace"))


def _ids(format_: TextFormat, texts: Sequence[str]) -> list[list[int]]:
    tokenizer = format_.tokenizer
    return [
        ids for chunk in chunks(texts) for ids in tokenizer(chunk, add_special_tokens=False, verbose=False)["input_ids"]
    ]
