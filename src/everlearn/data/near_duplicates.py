"""Find near-duplicate documents, texts that a corpus contains, and the share of text that two corpora have in common.

Everything works on hashes of word n-grams (:mod:`everlearn.data.shingles`), in memory that does not grow with the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from everlearn.data.shingles import Words

RUN = 13
"""Words of an n-gram; two texts do not share one by chance (Brown et al., arXiv 2005.14165, appendix C)."""
SHORTEST = 5
"""Minimum number of words of a text to search for; a shorter one occurs in any corpus by chance."""
LEAKED = 0.5
"""A text counts as contained in a corpus if the corpus has at least this share of its n-grams."""
NEAR_RUN, BINS, ROWS = 5, 64, 4
ALIKE = 0.8
"""Documents count as nearly the same if they have at least this share of their n-grams in common (Jaccard)."""
TEMPLATE, FEWEST = 0.2, 10
"""An n-gram is part of a template if more than this share, and more than this number, of a group's texts have it."""
KEPT = 2**20
"""Number of n-grams of a corpus that are kept to compare it with others."""


class NearDuplicates:
    """Documents that share about :data:`ALIKE` of their word 5-grams (Jaccard) with another.

    One-permutation MinHash (Li, Owen and Zhang, NIPS 2012): the smallest hash in each of 64 bins; empty bins take over
    the next one that is not. Sixteen bands of four find the pairs, the share of equal bins decides.
    """

    def __init__(self) -> None:
        self._signatures: list[np.ndarray] = []

    def add(self, words: Words) -> None:
        """Add documents; leave out those that are identical to an earlier one."""
        hashes, document = words.runs(NEAR_RUN)
        lowest = np.full(words.documents * BINS, np.iinfo(np.uint32).max, np.uint32)
        places = document * BINS + (hashes >> np.uint64(58)).astype(np.int64)
        np.minimum.at(lowest, places, (hashes & np.uint64(0xFFFFFFFE)).astype(np.uint32))
        signatures = lowest.reshape(-1, BINS)
        empty = signatures == np.iinfo(np.uint32).max
        signatures = signatures[~empty.all(1)]
        empty = empty[~empty.all(1)]
        # The distance to the next bin that is not empty; after the last bin comes the first.
        places = np.where(empty, 2 * BINS, np.arange(BINS))
        following = np.minimum.accumulate(np.concatenate([places, places + BINS], 1)[:, ::-1], 1)[:, ::-1][:, :BINS]
        distance = (following - np.arange(BINS)).astype(np.uint32)
        filled = np.take_along_axis(signatures, following % BINS, 1)
        self._signatures.append(np.where(empty, filled + distance * np.uint32(0x9E3779B1), filled))

    def count(self) -> int:
        """Return how many documents are nearly the same as an earlier one."""
        signatures = np.concatenate([np.empty((0, BINS), np.uint32), *self._signatures])
        root = np.arange(len(signatures))

        def leader(place: int) -> int:
            while root[place] != place:
                root[place] = root[root[place]]
                place = int(root[place])
            return place

        for start in range(0, BINS, ROWS):
            band = np.ascontiguousarray(signatures[:, start : start + ROWS]).view([("", np.uint32)] * ROWS).ravel()
            order = np.argsort(band, kind="stable")
            same = np.flatnonzero(band[order][1:] == band[order][:-1]) + 1
            # Each document of a group is compared with the group's first one.
            begins = np.arange(len(order))
            begins[same] = 0
            heads = order[np.maximum.accumulate(begins)]
            some, first = order[same], heads[same]
            alike = (signatures[some] == signatures[first]).mean(1) >= ALIKE
            for one, other in zip(some[alike].tolist(), first[alike].tolist(), strict=True):
                low, high = sorted((leader(one), leader(other)))
                root[high] = low
        return int((root != np.arange(len(root))).sum())


class Sketch:
    """The distinct n-grams of a corpus, or if there are too many, a uniform sample of them by their hashes."""

    def __init__(self) -> None:
        self.sampled = 1
        """One n-gram in this number is kept."""
        self._kept: list[np.ndarray] = []

    def add(self, words: Words) -> None:
        """Add the n-grams of documents."""
        hashes, _ = words.runs(RUN)
        self._kept.append(distinct(self._of(hashes)))
        if sum(map(len, self._kept)) > 2 * KEPT:
            self._kept = [self.runs]
            while len(self._kept[0]) > KEPT:
                self.sampled *= 2
                self._kept = [self._of(self._kept[0])]

    def _of(self, hashes: np.ndarray, sampled: int | None = None) -> np.ndarray:
        return hashes[hashes < np.uint64((2**64 - 1) // (sampled or self.sampled))]

    @property
    def runs(self) -> np.ndarray:
        """Return the distinct sampled hashes, uint64, sorted."""
        return distinct(np.concatenate([np.empty(0, np.uint64), *self._kept]))

    def share_in(self, other: Sketch) -> float:
        """Return the share of this corpus' distinct n-grams that the other has too."""
        sampled = max(self.sampled, other.sampled)
        own, others = self._of(self.runs, sampled), other._of(other.runs, sampled)
        return float(np.isin(own, others, assume_unique=True).mean()) if len(own) else 0.0


class Probes:
    """Texts that are looked for in corpora: held-out documents, examples of end tasks.

    A corpus contains a text if it contains half of the text's word 13-grams, in any of its documents; a shorter text is
    a single n-gram. N-grams that many texts of a group share, such as a prompt's template, do not count.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """Texts of each group that are long enough to be looked for."""
        self._runs: dict[int, list[np.ndarray]] = {}
        self._texts: dict[int, list[np.ndarray]] = {}
        self._groups: list[str] = []
        self._keys: list[int] = []
        self._values: dict[int, np.ndarray] = {}

    def add(self, group: str, words: Words, keys: Sequence[int] | None = None) -> None:
        """Look for these texts too.

        Args:
            group: name of the group, for the counts.
            words: words of the texts.
            keys: a number of each text that identical ones share (:func:`text_key`).
        """
        counts = words.counts()
        self.counts[group] = self.counts.get(group, 0) + int((counts >= SHORTEST).sum())
        first = len(self._groups)
        self._groups += [group] * words.documents
        self._keys += keys if keys is not None else [0] * words.documents
        for length in sorted({min(RUN, int(count)) for count in counts if count >= SHORTEST}):
            hashes, document = words.runs(length)
            of_length = counts[document] >= RUN if length == RUN else counts[document] == length
            self._runs.setdefault(length, []).append(hashes[of_length])
            self._texts.setdefault(length, []).append(document[of_length] + first)
        self._values.clear()

    def search(self) -> Search:
        """Begin a search through one corpus."""
        if not self._values:
            for length in self._runs:
                self._leave_templates_out(length)
            self._values = {length: distinct(np.concatenate(runs)) for length, runs in self._runs.items()}
        return Search(self, self._values)

    def _leave_templates_out(self, length: int) -> None:
        runs, texts = np.concatenate(self._runs[length]), np.concatenate(self._texts[length])
        groups, keep = np.array(self._groups)[texts], np.ones(len(runs), bool)
        for group, count in self.counts.items():
            its = np.flatnonzero(groups == group)
            ordered = its[np.argsort(runs[its], kind="stable")]
            begins = np.flatnonzero(np.diff(runs[ordered], prepend=~runs[ordered][:1]))
            times = np.diff(begins, append=len(ordered))
            keep[ordered[np.repeat(times > max(FEWEST, TEMPLATE * count), times)]] = False
        self._runs[length], self._texts[length] = [runs[keep]], [texts[keep]]

    def contained(self, seen: dict[int, np.ndarray], keys: np.ndarray) -> dict[str, tuple[int, int]]:
        """Return for each group how many texts a corpus contains, and how many of them as identical documents.

        Args:
            seen: for each length, which of the n-grams that are looked for occur in the corpus.
            keys: keys of the corpus' documents, uint64, sorted.
        """
        inside, identical = self.inside(seen, keys)
        groups = np.array(self._groups)
        return {
            group: (int(inside[of].sum()), int(identical[of].sum()))
            for group in self.counts
            for of in [groups == group]
        }

    def inside(self, seen: dict[int, np.ndarray], keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return whether a corpus contains each text, and whether as an identical document, each bool [texts].

        Arguments as of :meth:`contained`.
        """
        runs, hits = (np.zeros(len(self._groups), np.int64) for _ in range(2))
        for length, values in self._values.items():
            texts = np.concatenate(self._texts[length])
            there = seen[length][np.searchsorted(values, np.concatenate(self._runs[length]))]
            runs += np.bincount(texts, minlength=len(runs))
            hits += np.bincount(texts[there], minlength=len(runs))
        identical = (runs > 0) & np.isin(np.array(self._keys, np.uint64), keys)
        return identical | ((runs > 0) & (hits >= LEAKED * runs)), identical


class Search:
    """Record which n-grams of the probes occur in one corpus."""

    def __init__(self, probes: Probes, values: dict[int, np.ndarray]) -> None:
        self.probes, self.values = probes, values
        self.seen = {length: np.zeros(len(runs), bool) for length, runs in values.items()}
        # Most n-grams of a corpus occur in no probe: a table of the last bits of their hashes rejects them quickly.
        self._tables = {length: _table(runs) for length, runs in values.items()}

    def add(self, words: Words) -> None:
        """Search documents of the corpus."""
        for length, values in self.values.items():
            hashes, _ = words.runs(length)
            table = self._tables[length]
            hashes = hashes[table[_last_bits(hashes, table)]]
            places = np.minimum(np.searchsorted(values, hashes), len(values) - 1)
            self.seen[length][places[values[places] == hashes]] = True

    def contained(self, keys: np.ndarray | None = None) -> dict[str, tuple[int, int]]:
        """Return for each group how many texts the corpus contains, and how many of them as identical documents."""
        return self.probes.contained(self.seen, np.empty(0, np.uint64) if keys is None else keys)

    def inside(self) -> np.ndarray:
        """Return whether the corpus contains each text, bool [texts]."""
        return self.probes.inside(self.seen, np.empty(0, np.uint64))[0]


_PLACES = 64, 2**24
"""Size of a table: places per hash, and the maximum."""


def _table(values: np.ndarray) -> np.ndarray:
    each, most = _PLACES
    table = np.zeros(min(most, 2 ** (each * len(values)).bit_length()), bool)
    table[_last_bits(values, table)] = True
    return table


def _last_bits(hashes: np.ndarray, table: np.ndarray) -> np.ndarray:
    return (hashes & np.uint64(len(table) - 1)).astype(np.int64)


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the different values, sorted; for integers many times as fast as ``np.unique``, which hashes them."""
    ordered = np.sort(values)
    return ordered[np.concatenate([np.ones(min(1, len(ordered)), bool), ordered[1:] != ordered[:-1]])]
