"""Combine several sources: with given shares of the tokens, exact to one block at any moment, or by all their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from everlearn.data.blocks import Block, BlockSource, hash_of, tokens_in
from everlearn.errors import DataError, RunError
from everlearn.options import Options
from everlearn.seeding import seed_for

TINY = 1e-12
"""Replaces a share of 0 in divisions."""


class Annealed(Options):
    """A number that changes linearly along each domain."""

    start: float = Field(ge=0)
    """Its value at the first row of a domain."""
    end: float = Field(ge=0)
    """Its value at the last row."""


def ends_of(value: float | Annealed) -> tuple[float, float]:
    """Return a number at the beginning and at the end of a domain."""
    return (value.start, value.end) if isinstance(value, Annealed) else (value, value)


class Anneal(NamedTuple):
    """A linear change of the shares of a mixture.

    Attributes:
        shares: name → final share.
        blocks: number of blocks during which shares change; afterwards they are constant. None if it is not known
            (:meth:`BlockSource.along`): the shares are the means of the first and the last ones.
    """

    shares: Mapping[str, float]
    blocks: int | None = None


def _normalised(shares: Mapping[str, float]) -> dict[str, float]:
    total = float(sum(shares.values()))
    return {name: share / total for name, share in shares.items()}


class Mixture(BlockSource):
    """Draw each block from the source that keeps every share of the tokens within one block of the configured one.

    The choice is the quota method of Balinski and Young ("The quota method of apportionment", Amer. Math. Monthly 82,
    1975): among the sources that are not ahead of their share after this block, the one that has the fewest tokens
    for its share with the block added. It is deterministic and proven to stay within one block when blocks are
    equally long; taking the largest deficit is not, with three or more sources. Where blocks differ, shares are exact
    to about the longest block.

    Shares may change from block to block (`anneal`). A source's tokens then stay within one block of the sum of its
    shares of all blocks so far, as the same choice does for any shares (Tijdeman, "The chairman assignment problem",
    Discrete Math. 32, 1980). An independent pass (:meth:`fresh`, :meth:`once`) has the mean shares throughout, so that
    its beginning stands for all of the domain.

    Attributes:
        tokens: name → number of tokens drawn so far.
    """

    def __init__(
        self,
        sources: Sequence[tuple[str, BlockSource, float]],
        name: str = "mixture",
        *,
        size: int | None = None,
        anneal: Anneal | None = None,
    ) -> None:
        """Take (name, source, share) triples; shares are normalised.

        Args:
            sources: a pass lasts as long as that of the first one, unless a `size` is given.
            name: name of the mixture.
            size: blocks of a pass.
            anneal: how the shares change; None if they are constant.

        Raises:
            DataError: there is no source, a name comes twice, or a share is not above 0.
        """
        names = [source_name for source_name, _, _ in sources]
        if not sources or len(set(names)) < len(names):
            raise DataError(f"A mixture needs sources with different names; it has {names}.")
        for source_name, _, share in sources:
            if not (share > 0 or (anneal is not None and share == 0 and anneal.shares[source_name] > 0)):
                raise DataError(f"The share of '{source_name}' in a mixture must be above 0; it is {share}.")
        self.name = name
        self.sources = {source_name: source for source_name, source, _ in sources}
        self._first = _normalised({source_name: share for source_name, _, share in sources})
        self._last = self._first if anneal is None else _normalised(anneal.shares)
        self._mean = {source_name: (first + self._last[source_name]) / 2 for source_name, first in self._first.items()}
        self.anneal = anneal
        self._changes = anneal is not None and anneal.blocks is not None
        self.tokens = dict.fromkeys(names, 0)
        self._blocks = dict.fromkeys(names, 0)
        self._due = dict.fromkeys(names, 0.0)
        """Sum of the shares of all blocks so far, in tokens; kept where shares change."""
        first = sources[0][1].size
        self._own_size = size
        self.size = size or (None if first is None else max(1, round(first / self._mean[names[0]])))
        sizes = {source.block_tokens for _, source, _ in sources}
        self.block_tokens = sizes.pop() if len(sizes) == 1 else None
        changes = [] if anneal is None else [self._last, anneal.blocks]
        parts = ((source_name, self._first[source_name], source.fingerprint) for source_name, source, _ in sources)
        self.fingerprint = hash_of(*parts, *changes)

    @property
    def asked(self) -> dict[str, float]:
        """Share of the tokens that each source should have given so far, by name; sums to 1."""
        total = sum(self.tokens.values())
        if not self._changes or not total:
            return self._shares()
        return {name: due / total for name, due in self._due.items()}

    @property
    def ends(self) -> dict[str, tuple[float, float]]:
        """Share of each source at the first block and at the last one, by name."""
        return {name: (first, self._last[name]) for name, first in self._first.items()}

    def _shares(self) -> dict[str, float]:
        """Return the shares of the next block."""
        if self.anneal is None or self.anneal.blocks is None:
            return dict(self._mean)
        done = min(1.0, sum(self._blocks.values()) / max(1, self.anneal.blocks - 1))
        return {name: (1 - done) * first + done * self._last[name] for name, first in self._first.items()}

    @property
    def realised(self) -> dict[str, float]:
        """Share of the tokens that each source has given so far, by name (0 for all before the first block)."""
        total = max(sum(self.tokens.values()), 1)
        return {name: tokens / total for name, tokens in self.tokens.items()}

    @property
    def passes(self) -> float | None:
        """Number of passes over the first source, which determines the length of a pass."""
        return next(iter(self.sources.values())).passes

    def _expected(self, name: str) -> float:
        """Estimate the tokens of a source's next block before it is read."""
        if self.block_tokens is not None:
            return self.block_tokens
        known = self.sources[name].block_tokens
        if known is not None:
            return known
        blocks = sum(self._blocks.values())
        own = self._blocks[name]
        return self.tokens[name] / own if own else sum(self.tokens.values()) / max(blocks, 1) or 1.0

    def _choose(self) -> str:
        total, shares = sum(self.tokens.values()), self._shares()
        expected = {name: self._expected(name) for name in self.sources}
        # Difference between the tokens due by all earlier shares and those due by the present share; 0 if constant.
        owed = {name: self._due[name] - shares[name] * total if self._changes else 0.0 for name in shares}
        behind = [
            name for name, share in shares.items() if self.tokens[name] < share * (total + expected[name]) + owed[name]
        ] or [name for name, share in shares.items() if share > 0]
        return min(behind, key=lambda name: (self.tokens[name] + expected[name] - owed[name]) / (shares[name] or TINY))

    def __next__(self) -> Block:
        name = self._choose()
        return self._counted(name, next(self.sources[name]))

    def _counted(self, name: str, block: Block) -> Block:
        tokens = tokens_in(block)
        if self._changes:
            for source, share in self._shares().items():
                self._due[source] += share * tokens
        self.tokens[name] += tokens
        self._blocks[name] += 1
        return block

    def once(self, seed: int) -> Iterator[Block]:
        """Iterate over one pass; where its length is not known, until the first of the streams ends."""
        mixture = self.fresh(seed)
        if self.size is not None:
            yield from islice(mixture, self.size)
            return
        streams = {name: source.once(seed) for name, source in self.sources.items() if source.size is None}
        while True:
            name = mixture._choose()
            block = next(streams.get(name, mixture.sources[name]), None)
            if block is None:
                return
            yield mixture._counted(name, block)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, and the state of each source."""
        return {
            "tokens": dict(self.tokens),
            "blocks": dict(self._blocks),
            "sources": {name: source.state_dict() for name, source in self.sources.items()},
            **({"due": dict(self._due)} if self._changes else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            RunError: the state is of a mixture of other sources.
        """
        saved = state.get("sources", {})
        if set(saved) != set(self.sources):
            raise RunError(f"The saved mixture has the sources {sorted(saved)}; this one has {sorted(self.sources)}.")
        self.tokens = {name: int(state["tokens"][name]) for name in self.sources}
        self._blocks = {name: int(state["blocks"][name]) for name in self.sources}
        self._due = {name: float(state.get("due", {}).get(name, 0.0)) for name in self.sources}
        for name, source in self.sources.items():
            source.load_state_dict(saved[name])

    def fresh(self, seed: int) -> Mixture:
        return self._of({name: source.fresh(seed) for name, source in self.sources.items()}, None)

    def along(self, blocks: int) -> Mixture:
        """Return a mixture of the same sources whose shares change during so many blocks, if they change."""
        return self if self.anneal is None else self._of(self.sources, blocks)

    def _of(self, sources: Mapping[str, BlockSource], blocks: int | None) -> Mixture:
        """Return the mixture of other sources, with shares that change during so many blocks."""
        parts = [(name, source, self._first[name]) for name, source in sources.items()]
        anneal = None if self.anneal is None else self.anneal._replace(blocks=blocks)
        return Mixture(parts, self.name, size=self._own_size, anneal=anneal)


class Concatenation(Mixture):
    """All rows of several sources, one after another and then shuffled: a pass has each of them once.

    Which source the next row is from is drawn without replacement, seeded by (seed, name, pass). Each source has an
    order of its own, so every order of all the rows is equally likely.

    Attributes:
        asked: name → configured share of the rows.
    """

    def __init__(self, sources: Sequence[tuple[str, BlockSource, int]], seed: int, name: str = "concatenation") -> None:
        """Take (name, source, rows) triples.

        Raises:
            DataError: as for a mixture, with rows in place of shares.
        """
        super().__init__(sources, name, size=sum(rows for _, _, rows in sources))
        self.rows = {source_name: rows for source_name, _, rows in sources}
        self.seed = seed
        self._order: tuple[int, np.ndarray] | None = None

    @property
    def realised(self) -> dict[str, float]:
        """Share of the rows that each source has given so far, by name (0 for all before the first one)."""
        total = max(sum(self._blocks.values()), 1)
        return {name: blocks / total for name, blocks in self._blocks.items()}

    def _choose(self) -> str:
        number, place = divmod(sum(self._blocks.values()), sum(self.rows.values()))
        if self._order is None or self._order[0] != number:
            owners = np.repeat(np.arange(len(self.rows)), list(self.rows.values()))
            self._order = (number, np.random.default_rng(seed_for(self.seed, self.name, number)).permutation(owners))
        return list(self.rows)[self._order[1][place]]

    def fresh(self, seed: int) -> Concatenation:
        parts = [(name, source.fresh(seed), self.rows[name]) for name, source in self.sources.items()]
        return Concatenation(parts, seed_for("fresh", seed), self.name)


def shares(source: BlockSource) -> list[dict[str, Any]]:
    """Return the share of each source of a mixture, and of each source that these are mixed from.

    Each item has the source's name, its share of the tokens (of the rows in a :class:`Concatenation`) as configured and
    as realised so far, and the tokens that it gave. The list is empty for a source that is no mixture.
    """
    rows: list[dict[str, Any]] = []
    if isinstance(source, Mixture):
        for name, configured in source.asked.items():
            realised = source.realised[name]
            rows += [
                {
                    "source": f"{name}.{part['source']}",
                    "asked": round(configured * part["asked"], 9),
                    "realised": realised * part["realised"],
                    "tokens": part["tokens"],
                }
                for part in shares(source.sources[name])
            ] or [{"source": name, "asked": round(configured, 9), "realised": realised, "tokens": source.tokens[name]}]
    return rows
