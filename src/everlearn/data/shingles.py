"""Hash word n-grams with vectorised array operations, to find near-duplicates and leaks.

A word is a maximal sequence of letters and digits, in lower case; in writing without blanks each
character is a word. The hash of an n-gram has 64 bits: a polynomial over its bytes, from differences of running sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

PIECE = 2**17
"""Number of characters that are processed at once; n-grams across two such pieces are left out."""
BASE = 0x9E3779B97F4A7C15
"""Odd, so that it has an inverse modulo 2^64."""
_WORD, _SINGLE, _GOES_ON = 1, 2, 3


def _kinds() -> np.ndarray:
    """Return each character's kind by its first UTF-8 byte.

    0 is between words, 1 is part of a word, 2 is a word of its own (CJK and beyond).
    """
    kinds = np.zeros(256, np.uint8)
    kinds[[ord(c) for c in "abcdefghijklmnopqrstuvwxyz0123456789"]] = _WORD
    kinds[0xC3:0xE2] = _WORD  # letters with accents, Greek, Cyrillic, Arabic, Indic; U+2000 and on is punctuation
    kinds[0xE3:] = _SINGLE
    kinds[0x80:0xC0] = _GOES_ON
    return kinds


KINDS = _kinds()


@cache
def _powers(inverse: bool, size: int) -> np.ndarray:
    base = pow(BASE, -1, 2**64) if inverse else BASE
    powers = np.full(size, base, np.uint64)
    powers[0] = 1
    return np.cumprod(powers)


def _sums(values: np.ndarray) -> np.ndarray:
    """Return running sums of the values times powers of the base; a slice's hash is a difference of two."""
    size = 1 << max(10, len(values).bit_length())
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(values * _powers(False, size)[: len(values)])])


def _slices(sums: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return hashes of slices, equal for equal values; the last steps spread the bits (splitmix64)."""
    size = 1 << max(10, len(sums).bit_length())
    value = (sums[ends] - sums[starts]) * _powers(True, size)[starts]
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@dataclass(frozen=True)
class Words:
    """The words of some documents.

    Attributes:
        hashes: uint64 [words].
        document: int64 [words], the number of each word's document.
        documents: number of documents.
    """

    hashes: np.ndarray
    document: np.ndarray
    documents: int

    def counts(self) -> np.ndarray:
        """Return the number of words of each document."""
        return np.bincount(self.document, minlength=self.documents)

    def runs(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the hashes of all n-grams of `length` words, and the document of each; no n-gram crosses documents."""
        count = len(self.hashes) - length + 1
        if count <= 0:
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        starts = np.flatnonzero(self.document[:count] == self.document[length - 1 :])
        return _slices(self._running_sums, starts, starts + length), self.document[starts]

    @cached_property
    def _running_sums(self) -> np.ndarray:
        return _sums(self.hashes)


def words_of(texts: Sequence[str]) -> Words:
    """Split documents into words."""
    pieces = [(number, text[at : at + PIECE]) for number, text in enumerate(texts) for at in range(0, len(text), PIECE)]
    word_chunks = [_words(chunk, len(texts)) for chunk in _chunks(pieces)]
    hashes = np.concatenate([np.empty(0, np.uint64), *(words.hashes for words in word_chunks)])
    documents = np.concatenate([np.empty(0, np.int64), *(words.document for words in word_chunks)])
    return Words(hashes, documents, len(texts))


def _chunks(pieces: Sequence[tuple[int, str]]) -> Iterable[list[tuple[int, str]]]:
    """Group pieces into chunks of about the greatest length allowed."""
    chunk: list[tuple[int, str]] = []
    length = 0
    for piece in pieces:
        if chunk and length + len(piece[1]) > PIECE:
            yield chunk
            chunk, length = [], 0
        chunk.append(piece)
        length += len(piece[1])
    if chunk:
        yield chunk


def _words(pieces: Sequence[tuple[int, str]], documents: int) -> Words:
    encoded = [text.lower().encode("utf-8", "replace") + b"\n" for _, text in pieces]
    raw = np.frombuffer(b"".join(encoded), np.uint8)
    kinds = KINDS[raw]
    first = kinds != _GOES_ON
    for _ in range(3):  # a character has at most three bytes behind its first
        if len(rest := np.flatnonzero(kinds == _GOES_ON)):
            kinds[rest] = kinds[rest - 1]
    inside = kinds == _WORD
    starts = np.flatnonzero((inside & ~np.roll(inside, 1)) | ((kinds == _SINGLE) & first))
    ends = np.flatnonzero((inside & ~np.roll(inside, -1)) | ((kinds == _SINGLE) & np.roll(first, -1))) + 1
    behind = np.cumsum([len(piece) for piece in encoded])
    numbers = np.array([number for number, _ in pieces], np.int64)[np.searchsorted(behind, starts, side="right")]
    return Words(_slices(_sums(raw.astype(np.uint64) + np.uint64(1)), starts, ends), numbers, documents)
