"""Which documents are nearly the same, which text stands in a corpus too, and how much two corpora have in common.

Everything works on hashes of runs of words (:mod:`everlearn.tools.word_runs`), in memory that text does not fill.
"""

from __future__ import annotations

import numpy as np

from everlearn.tools.word_runs import Words

RUN = 13
"""Words of a run that two texts do not share by chance (Brown et al., arXiv 2005.14165, appendix C)."""
SHORTEST = 5
"""Words that a text must have to be looked for: a shorter one stands in any corpus by chance."""
LEAKED = 0.5
"""Share of a text's runs from which on it counts as standing in a corpus."""
NEAR_RUN, BINS, ROWS = 5, 64, 4
ALIKE = 0.8
"""Share of the runs of both documents from which on they count as nearly the same."""
KEPT = 2**20
"""Runs of a corpus that are kept to compare it with others."""


class NearDuplicates:
    """Documents that share about :data:`ALIKE` of their runs of five words (Jaccard) with another.

    One-permutation MinHash (Li, Owen and Zhang, NIPS 2012): the smallest hash in each of 64 bins; empty bins take over
    the next one that is not. Sixteen bands of four find the pairs, the share of equal bins decides.
    """

    def __init__(self) -> None:
        self._signatures: list[np.ndarray] = []

    def add(self, words: Words) -> None:
        """Take documents; those that are the same to the letter are better left out."""
        hashes, document = words.runs(NEAR_RUN)
        lowest = np.full(words.documents * BINS, np.iinfo(np.uint32).max, np.uint32)
        places = document * BINS + (hashes >> np.uint64(58)).astype(np.int64)
        np.minimum.at(lowest, places, (hashes & np.uint64(0xFFFFFFFE)).astype(np.uint32))
        signatures = lowest.reshape(-1, BINS)
        empty = signatures == np.iinfo(np.uint32).max
        signatures = signatures[~empty.all(1)]
        empty = empty[~empty.all(1)]
        # The distance to the next bin that holds something, around the end.
        places = np.where(empty, 2 * BINS, np.arange(BINS))
        following = np.minimum.accumulate(np.concatenate([places, places + BINS], 1)[:, ::-1], 1)[:, ::-1][:, :BINS]
        distance = (following - np.arange(BINS)).astype(np.uint32)
        filled = np.take_along_axis(signatures, following % BINS, 1)
        self._signatures.append(np.where(empty, filled + distance * np.uint32(0x9E3779B1), filled))

    def count(self) -> int:
        """Documents that are nearly the same as an earlier one."""
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
    """The different runs of a corpus; where they are too many, an even sample of them by their hashes."""

    def __init__(self) -> None:
        self.sampled = 1
        """One of how many runs is kept."""
        self._kept: list[np.ndarray] = []

    def add(self, words: Words) -> None:
        """Take the runs of documents."""
        hashes, _ = words.runs(RUN)
        self._kept.append(np.unique(self._of(hashes)))
        if sum(map(len, self._kept)) > 2 * KEPT:
            self._kept = [self.runs]
            while len(self._kept[0]) > KEPT:
                self.sampled *= 2
                self._kept = [self._of(self._kept[0])]

    def _of(self, hashes: np.ndarray, sampled: int | None = None) -> np.ndarray:
        return hashes[hashes < np.uint64((2**64 - 1) // (sampled or self.sampled))]

    @property
    def runs(self) -> np.ndarray:
        """Those kept, uint64, sorted."""
        return np.unique(np.concatenate([np.empty(0, np.uint64), *self._kept]))

    def share_in(self, other: Sketch) -> float:
        """The share of this corpus' different runs that stand in the other too."""
        sampled = max(self.sampled, other.sampled)
        own, theirs = self._of(self.runs, sampled), other._of(other.runs, sampled)
        return float(np.isin(own, theirs, assume_unique=True).mean()) if len(own) else 0.0


class Probes:
    """Texts that are looked for in corpora: held-out documents, examples of end tasks.

    A text stands in a corpus where half of its runs of 13 words do, whichever documents they are in; one that is
    shorter is a single run.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """Texts of each group that are long enough to be looked for."""
        self._runs: dict[int, list[np.ndarray]] = {}
        self._texts: dict[int, list[np.ndarray]] = {}
        self._groups: list[str] = []
        self._values: dict[int, np.ndarray] = {}

    def add(self, group: str, words: Words) -> None:
        """Look for these texts too."""
        counts = words.counts()
        self.counts[group] = self.counts.get(group, 0) + int((counts >= SHORTEST).sum())
        first = len(self._groups)
        self._groups += [group] * words.documents
        for length in sorted({min(RUN, int(count)) for count in counts if count >= SHORTEST}):
            hashes, document = words.runs(length)
            wanted = counts[document] >= RUN if length == RUN else counts[document] == length
            self._runs.setdefault(length, []).append(hashes[wanted])
            self._texts.setdefault(length, []).append(document[wanted] + first)
        self._values.clear()

    def search(self) -> Search:
        """A search through one corpus."""
        if not self._values:
            self._values = {length: np.unique(np.concatenate(runs)) for length, runs in self._runs.items()}
        return Search(self, self._values)

    def found(self, seen: dict[int, np.ndarray]) -> dict[str, int]:
        """Texts of each group that stand in what was seen."""
        runs, hits = (np.zeros(len(self._groups), np.int64) for _ in range(2))
        for length, values in self._values.items():
            texts = np.concatenate(self._texts[length])
            there = seen[length][np.searchsorted(values, np.concatenate(self._runs[length]))]
            runs += np.bincount(texts, minlength=len(runs))
            hits += np.bincount(texts[there], minlength=len(runs))
        leaked = np.flatnonzero((runs > 0) & (hits >= LEAKED * runs))
        result = dict.fromkeys(self.counts, 0)
        for text in leaked.tolist():
            result[self._groups[text]] += 1
        return result


class Search:
    """What of the probes has been seen in one corpus."""

    def __init__(self, probes: Probes, values: dict[int, np.ndarray]) -> None:
        self.probes, self.values = probes, values
        self.seen = {length: np.zeros(len(runs), bool) for length, runs in values.items()}
        # Most runs of a corpus stand in no probe: a table of 2^24 bits of their hashes says so at once.
        self._tables = {length: _table(runs) for length, runs in values.items()}

    def add(self, words: Words) -> None:
        """Go through documents of the corpus."""
        for length, values in self.values.items():
            hashes, _ = words.runs(length)
            hashes = hashes[self._tables[length][(hashes & _LOW).astype(np.int64)]]
            places = np.minimum(np.searchsorted(values, hashes), len(values) - 1)
            self.seen[length][places[values[places] == hashes]] = True

    def found(self) -> dict[str, int]:
        """Texts of each group that stand in the corpus."""
        return self.probes.found(self.seen)


_LOW = np.uint64(2**24 - 1)


def _table(values: np.ndarray) -> np.ndarray:
    table = np.zeros(2**24, bool)
    table[(values & _LOW).astype(np.int64)] = True
    return table
