"""Find documents that repeat an earlier one exactly or nearly: exact hashes, and MinHash with banding.

Near duplicates are documents whose sets of 5-word shingles have a Jaccard similarity of at least `near`. Candidates are
found by MinHash (Broder 1997) in bands (Leskovec et al., Mining of Massive Datasets, 3.4): of 120 minima every 6
consecutive ones are a band, and two documents that share a band are compared. A pair with similarity s is compared with
probability 1 − (1 − s⁶)²⁰: 0.27 at 0.5, 0.92 at 0.7, 0.998 at 0.8. The comparison itself is exact, so nothing is
removed whose similarity is below `near`.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WORDS = 5
"""Of a shingle."""
BANDS, ROWS = 20, 6
SHORTEST = 120
"""Letters and digits below which a text is not compared: headings and short lines are the same everywhere."""
_WORD = re.compile(r"\w+")
_SEED = 20221013
Shingles = NDArray[np.uint32]


class Match(NamedTuple):
    """An earlier document that a text repeats."""

    document: int
    """Its number, in the order in which documents were added."""
    exact: bool
    """Whether all letters and digits are the same."""


class Duplicates:
    """An index that recognises repeated documents; about 3 kB for a document of 200 words.

    Args:
        near: Jaccard similarity from which on two documents are the same; 1 finds exact copies only.
    """

    def __init__(self, near: float) -> None:
        self.near = near
        self._exact: dict[bytes, int] = {}
        self._bands: list[dict[bytes, list[int]]] = [{} for _ in range(BANDS)]
        self._shingles: dict[int, Shingles] = {}
        drawn = np.random.default_rng(_SEED).integers(0, 2**63, (2, BANDS * ROWS, 1), dtype=np.uint64)
        self._odd, self._plus = drawn[0] * np.uint64(2) + np.uint64(1), drawn[1]
        self._count = 0

    def add(self, text: str) -> Match | None:
        """Return the earlier document that this text repeats; add the text to the index if it repeats none."""
        words = _WORD.findall(text.lower())
        if sum(map(len, words)) < SHORTEST:
            return None
        key = fingerprint(words)
        if key in self._exact:
            return Match(self._exact[key], True)
        shingles = shingles_of(words) if self.near < 1 else None
        bands = self._keys(shingles) if shingles is not None else []
        if shingles is not None:
            for other in sorted(
                {n for known, band in zip(self._bands, bands, strict=True) for n in known.get(band, ())}
            ):
                if jaccard(shingles, self._shingles[other]) >= self.near:
                    return Match(other, False)
        number, self._count = self._count, self._count + 1
        self._exact[key] = number
        for known, band in zip(self._bands, bands, strict=False):
            known.setdefault(band, []).append(number)
        if shingles is not None:
            self._shingles[number] = shingles
        return None

    @property
    def last(self) -> int:
        """The number of the last document that was added."""
        return self._count - 1

    def _keys(self, shingles: Shingles) -> list[bytes]:
        return [band.tobytes() for band in self.signature(shingles).reshape(BANDS, ROWS)]

    def signature(self, shingles: Shingles) -> NDArray[np.uint32]:
        """Return the minima of 120 random functions (multiply-shift, 64 to 32 bits) over the shingles, [120]."""
        hashed: NDArray[np.uint64] = (self._odd * shingles[None].astype(np.uint64) + self._plus) >> np.uint64(32)
        return hashed.min(1).astype(np.uint32)


def fingerprint(words: list[str]) -> bytes:
    """Return a digest of the letters and digits of a text, whatever separates them."""
    return hashlib.blake2b("".join(words).encode("utf-8", "replace"), digest_size=12).digest()


def shingles_of(words: list[str]) -> Shingles:
    """Return the distinct hashes of every five consecutive words, sorted; of all words if there are fewer."""
    hashes = np.fromiter((zlib.crc32(word.encode("utf-8", "replace")) for word in words), np.uint64, len(words))
    size = min(WORDS, len(words))
    mixed = np.zeros(len(words) - size + 1, np.uint64)
    for place in range(size):
        mixed = (mixed ^ hashes[place : place + len(mixed)]) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return np.unique((mixed >> np.uint64(32)).astype(np.uint32))


def jaccard(one: Shingles, other: Shingles) -> float:
    """Return the size of the intersection divided by that of the union."""
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / (len(one) + len(other) - both)
