"""Find evaluation text in training text, identical or nearly so.

`everlearn data`, `validate` and `run` make the same check: held-out documents of every corpus and examples of end tasks
are looked for in the training text of every corpus. The outcome is cached with the tokenised corpora. Large texts are
searched only in part, and the outcome says which part.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np

from everlearn import wording
from everlearn.data.blocks import hash_of
from everlearn.data.corpus import Domain, text_key
from everlearn.data.documents import corpus_fingerprint, read_documents
from everlearn.data.held_out import OwnHeldOut
from everlearn.data.near_duplicates import Probes, Sketch, distinct
from everlearn.data.packing import chunks
from everlearn.data.phases import Phase, in_silence
from everlearn.data.prepare import STREAM_HELD_OUT, cache_folder
from everlearn.data.shingles import words_of
from everlearn.errors import EverlearnError
from everlearn.files import read_json, write_json

VERSION = 1
"""Version of the check; raise it if the outcome for the same text may change."""
SEARCHED = 256 * 10**6
"""Number of characters of a corpus' training text that are searched, from its beginning."""
STREAMED = 16 * 10**6
"""Number of characters of a stream that are read, including held-out documents: reading all of it may take days."""
LOOKED_FOR = 16 * 10**6
"""Number of characters of a group of texts that are looked for; a larger group is sampled."""
WORTH_SAYING = 0.01
"""Smallest shared part of two texts that is reported, since a few phrases occur everywhere. A corpus' own held-out
documents in its training text are always reported."""


@dataclass(frozen=True)
class Leak:
    """Evaluation texts that occur in the training text of a corpus.

    Attributes:
        texts: a description of the texts.
        corpus: the corpus of the training text.
        own: whether they are held-out documents of this very corpus.
        count: number of leaked texts.
        identical: number of them that are identical to a training document.
        of: number of texts that were checked.
    """

    texts: str
    corpus: str
    own: bool
    count: int
    identical: int
    of: int

    @property
    def share(self) -> float:
        """Return the share of the texts that occur in the training text."""
        return self.count / self.of

    def __str__(self) -> str:
        source = "its own training text" if self.own else f"the training text of '{self.corpus}'"
        letters = f", {self.identical:,} of them verbatim" if self.identical else ""
        if one := self.count == 1:
            letters = ", verbatim" if self.identical else ""
        some = "The only" if self.of == 1 else f"{self.count:,} of the {self.of:,}"
        texts = counted(1, self.texts).removeprefix("1 ") if self.of == 1 else self.texts
        return (
            f"{some} {texts} {'occurs' if one else 'occur'} in {source}{letters} ({wording.percent(self.share)}): "
            f"{'it is' if one else 'they are'} scored as text that was learnt. {self.remedy}"
        )

    @property
    def remedy(self) -> str:
        """Return the advice what to do about it."""
        if self.own:
            return "Remove the duplicates from the corpus, or name a file of other text in `validation`."
        return f"Remove {'it' if self.count == 1 else 'them'} from one of the two."


@dataclass(frozen=True)
class SharedText:
    """The overlap of the training texts of two corpora.

    Attributes:
        one: a corpus.
        other: another.
        documents: identical documents.
        fewest: different documents of the corpus that has fewer.
        of_one: share of the first one's runs of 13 words that the other has too.
        of_other: the same in the opposite direction.
    """

    one: str
    other: str
    documents: int
    fewest: int
    of_one: float
    of_other: float

    @property
    def worth_saying(self) -> bool:
        """Return whether it is more than a few sentences."""
        return max(self.of_one, self.of_other) >= WORTH_SAYING or self.documents >= WORTH_SAYING * max(self.fewest, 1)

    def sentence(self, general: str | None) -> str:
        """Return a sentence on the overlap, with its consequence if one of the two is the general text."""
        drift = f": the drift of '{general}' is not that of unseen text." if general in (self.one, self.other) else "."
        return (
            f"'{self.one}' and '{self.other}' share text: {wording.count(self.documents, 'identical document')}, "
            f"{wording.percent(self.of_one)} of the runs of 13 words of the first and "
            f"{wording.percent(self.of_other)} of the second{drift}"
        )


@dataclass(frozen=True)
class LeakCheck:
    """The outcome.

    Attributes:
        leaks: leaks of each group of texts in each corpus that has any.
        shared: text shared by each pair of corpora.
        looked_for: texts of each group that were looked for.
        characters: number of characters of training text that were searched.
        partial: sentences about texts that were not searched.
    """

    leaks: list[Leak] = field(default_factory=list)
    shared: list[SharedText] = field(default_factory=list)
    looked_for: dict[str, int] = field(default_factory=dict)
    characters: int = 0
    partial: list[str] = field(default_factory=list)

    def notes(self, general: str | None = None) -> list[str]:
        """Return the findings above the threshold for reporting, as sentences.

        Args:
            general: name of the general text.
        """
        leaks = [str(leak) for leak in self.leaks if leak.own or leak.share >= WORTH_SAYING]
        shared = [pair.sentence(general) for pair in self.shared if pair.worth_saying]
        return leaks + shared + self.partial

    def leaked(self, tests: Mapping[str, str]) -> dict[str, float]:
        """Return the evaluation texts that occur in training text, with the largest share in any corpus.

        Args:
            tests: words for a group of texts, as in `looked_for` → name of its scores.
        """
        shares: dict[str, float] = {}
        for leak in self.leaks:
            if leak.texts in tests and leak.share >= WORTH_SAYING:
                shares[tests[leak.texts]] = max(leak.share, shares.get(tests[leak.texts], 0.0))
        return shares

    def scope(self) -> str:
        """Return a sentence on which texts were searched for, and where."""
        texts = ", ".join(counted(count, name) for name, count in self.looked_for.items() if count)
        searched = wording.size(self.characters)
        return f"looked for {texts} in {searched} of training text" if texts else "no held-out text to look for"

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> LeakCheck:
        """Restore the object from the result of ``asdict``."""
        leaks, shared = [Leak(**leak) for leak in raw["leaks"]], [SharedText(**pair) for pair in raw["shared"]]
        return cls(leaks, shared, raw["looked_for"], raw["characters"], raw["partial"])


def check_leaks(
    corpora: Sequence[Domain],
    tests: Mapping[str, Sequence[str]],
    cache: str | Path | None = None,
    phase: Phase = in_silence,
) -> LeakCheck:
    """Look for everything that is measured on in everything that is learnt.

    Args:
        corpora: the domains, and the general text.
        tests: other evaluation texts by their display name ("test examples of 'topics'").
        cache: the cache folder, as in :func:`everlearn.data.prepare.prepare`.
        phase: reports progress, in documents, if the outcome is not cached.

    Raises:
        DataError: a corpus cannot be read.
    """
    parts = [(corpus.name, part) for corpus in corpora for part in corpus.parts]
    path = cache_folder(cache) / "leaks" / f"{_fingerprint([part for _, part in parts], tests)}.json"
    if path.is_file():
        with contextlib.suppress(EverlearnError, KeyError, TypeError):  # damaged: it is rebuilt
            return LeakCheck.from_json(read_json(path))
    with phase("Looking for held-out text in the training text", None) as progress:
        outcome = _Check(parts, tests, progress).outcome()
    with contextlib.suppress(EverlearnError):  # a cache that holds everything else may be read-only
        write_json(path, asdict(outcome))
    return outcome


def counted(number: int, texts: str) -> str:
    """Return a number with the name of a group of texts: "1 held-out document of 'a'"."""
    noun, _, owner = texts.partition(" of ")
    return f"{wording.count(number, noun.removesuffix('s'))} of {owner}"


def held_out_of(name: str) -> str:
    """Return the display name of the held-out documents of a corpus."""
    return f"held-out documents of '{name}'"


def kept_rows_of(name: str) -> str:
    """Return the display name of the stored held-out rows of a corpus."""
    return f"held-out rows of '{name}'"


def examples_of(name: str) -> str:
    """Return the display name of the test examples of an end task."""
    return f"test examples of '{name}'"


def _own_documents(part: Domain) -> Iterator[tuple[str, bool]]:
    """Yield the documents of a corpus and whether each is held out; of a stream only the beginning."""
    characters = 0
    for document, held in OwnHeldOut(part, part.held_out_share).parted(each for each, _ in read_documents(part)):
        yield document.full_text, held
        characters += len(document.full_text)
        if part.streaming and characters >= STREAMED:
            return


def _held_out(part: Domain) -> Iterator[str]:
    """Yield the texts that a corpus holds out."""
    if part.held_out_corpus is not None:
        most = STREAM_HELD_OUT if part.streaming else None  # as many as are measured on
        yield from (document.full_text for document, _ in islice(read_documents(part.held_out_corpus), most))
    elif part.held_out_share:
        yield from (text for text, held in _own_documents(part) if held)


def _fingerprint(parts: Sequence[Domain], tests: Mapping[str, Sequence[str]]) -> str:
    """Hash everything that decides the outcome; the order of the corpora does not."""
    texts = sorted(
        hash_of(
            part.name,
            part.streaming,
            part.held_out_share,
            *(corpus_fingerprint(corpus) for corpus in (part, part.held_out_corpus) if corpus is not None),
        )
        for part in parts
    )
    examples = sorted(hash_of(name, *map(text_key, texts)) for name, texts in tests.items())
    return hash_of("leaks", VERSION, SEARCHED, STREAMED, LOOKED_FOR, *texts, "tests", *examples)


class _Texts:
    """The texts of a group, or those with the smallest hashes if they exceed :data:`LOOKED_FOR`."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, str]] = []
        self.seen = self._length = 0

    def add(self, text: str) -> None:
        self.seen += 1
        self._length += len(text)
        self.kept.append((text_key(text), text))
        if self._length > 2 * LOOKED_FOR:
            self.shorten()

    def shorten(self) -> None:
        """Drop the texts with the largest hashes if there are too many characters."""
        if self._length <= LOOKED_FOR or len(self.kept) == 1:
            return
        self.kept.sort()
        lengths = np.cumsum([len(text) for _, text in self.kept])
        self.kept = self.kept[: max(1, int(np.searchsorted(lengths, LOOKED_FOR, side="right")))]
        self._length = sum(len(text) for _, text in self.kept)


class _Check:
    """Perform one check."""

    def __init__(
        self,
        parts: Sequence[tuple[str, Domain]],
        tests: Mapping[str, Sequence[str]],
        progress: Callable[[int], None],
    ) -> None:
        self.parts, self.progress, self.read = parts, progress, 0
        self.probes = Probes()
        self.partial: list[str] = []
        self.characters = 0
        for _, part in parts:
            if part.continues is None:  # otherwise it is the held-out text of the domain that is learnt again
                self._add(held_out_of(part.name), _held_out(part))
        for name, texts in tests.items():
            self._add(name, iter(texts))

    def _add(self, group: str, texts: Iterator[str]) -> None:
        """Look for the texts of a group."""
        sample = _Texts()
        for text in texts:
            sample.add(text)
        sample.shorten()
        if not sample.kept:
            return
        if len(sample.kept) < sample.seen:
            was = "was" if len(sample.kept) == 1 else "were"
            self.partial.append(f"Of the {counted(sample.seen, group)}, {len(sample.kept):,} {was} looked for.")
        for chunk in chunks(sample.kept):
            self.probes.add(group, words_of([text for _, text in chunk]), [key for key, _ in chunk])

    def outcome(self) -> LeakCheck:
        """Search every corpus."""
        leaks, keys, sketches = [], [], []
        for domain, part in self.parts:
            matches, its_keys, sketch = self._search(part)
            keys.append(its_keys)
            sketches.append(sketch)
            siblings = [held_out_of(each.name) for name, each in self.parts if name == domain]
            for group, (count, identical) in matches.items():
                if count:
                    own = group in siblings
                    leaks.append(Leak(group, part.name, own, count, identical, self.probes.counts[group]))
        shared = [
            SharedText(
                self.parts[i][1].name,
                self.parts[j][1].name,
                len(np.intersect1d(keys[i], keys[j], assume_unique=True)),
                min(len(keys[i]), len(keys[j])),
                sketches[i].share_in(sketches[j]),
                sketches[j].share_in(sketches[i]),
            )
            for i, j in combinations(range(len(self.parts)), 2)
            if not self._again(i, j)
        ]
        return LeakCheck(leaks, shared, self.probes.counts, self.characters, self.partial)

    def _again(self, i: int, j: int) -> bool:
        """Return whether one of two corpora continues the other, so that they share text on purpose."""
        (first, one), (second, other) = self.parts[i], self.parts[j]
        if one.continues is None and other.continues is None:
            return False
        return (one.continues or first) == (other.continues or second)

    def _search(self, part: Domain) -> tuple[dict[str, tuple[int, int]], np.ndarray, Sketch]:
        """Go through the training text of a corpus."""
        search, sketch, keys, characters = self.probes.search(), Sketch(), array("Q"), 0
        texts = (text for text, held in _own_documents(part) if not held)
        for chunk in chunks(texts):
            words = words_of(chunk)
            search.add(words)
            sketch.add(words)
            self.read += len(chunk)
            self.progress(self.read)
            keys.extend(map(text_key, chunk))
            characters += sum(map(len, chunk))
            if characters >= SEARCHED:
                break
        if part.streaming or characters >= SEARCHED:
            self.partial.append(
                f"Held-out text was looked for in the first {wording.size(characters)} of '{part.name}' alone."
            )
        self.characters += characters
        different = distinct(np.frombuffer(keys, np.uint64))
        return search.contained(different), different, sketch
