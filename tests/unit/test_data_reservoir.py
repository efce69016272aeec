from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from everlearn.data.reservoir import Reservoir
from everlearn.errors import DataError, RunError


def block(number: int, length: int = 3) -> dict[str, np.ndarray]:
    return {"input_ids": np.full(length, number, np.int32), "segments": np.zeros(length, np.int32)}


def kept(reservoir: Reservoir) -> list[int]:
    return [int(found["input_ids"][0]) for found in reservoir.blocks]


def test_every_block_has_the_same_chance_whatever_its_domain():
    counts = np.zeros(40)
    for seed in range(2000):
        reservoir = Reservoir(8, seed)
        for domain, numbers in (("a", range(5)), ("b", range(5, 12)), ("c", range(12, 40))):
            reservoir.extend(map(block, numbers), domain)
        counts[kept(reservoir)] += 1
        assert reservoir.seen == 40
    assert counts.sum() == 2000 * 8
    assert stats.chisquare(counts).pvalue > 0.001


def test_pairs_are_independent_of_distance():
    together = np.zeros((12, 12))
    for seed in range(3000):
        reservoir = Reservoir(4, seed)
        reservoir.extend(map(block, range(12)), "a")
        together[np.ix_(kept(reservoir), kept(reservoir))] += 1
    pairs = together[np.triu_indices(12, 1)]
    assert stats.chisquare(pairs).pvalue > 0.001


def test_the_domain_stays_with_its_block():
    reservoir = Reservoir(10, 0)
    reservoir.extend(map(block, range(50)), "old")
    reservoir.extend(map(block, range(50, 100)), "new")
    assert len(reservoir) == 10
    assert reservoir.domains == ["old" if number < 50 else "new" for number in kept(reservoir)]
    assert reservoir.source(0).size == 10


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 12), st.booleans())
def test_memory_gives_the_same_continuation(before, after, capacity, ragged):
    def made(number: int) -> dict[str, np.ndarray]:
        return block(number, 1 + number % 4 if ragged else 3)

    first = Reservoir(capacity, 7)
    first.extend(map(made, range(before)), "a")
    tensors, facts = first.to_memory()
    second = Reservoir.from_memory(tensors, json.loads(json.dumps(facts)))
    for reservoir in (first, second):
        reservoir.extend(map(made, range(before, before + after)), "b")
    assert (second.seen, second.domains) == (first.seen, first.domains)
    for found, wanted in zip(second.blocks, first.blocks, strict=True):
        assert all(np.array_equal(found[key], wanted[key]) and found[key].dtype == np.int32 for key in wanted)


def test_bad_capacities_and_damaged_memories_are_refused():
    with pytest.raises(DataError, match="at least 1"):
        Reservoir(0, 0)
    with pytest.raises(DataError, match="no block"):
        Reservoir(3, 0).source(0)
    reservoir = Reservoir(3, 0)
    reservoir.add(block(1), "a")
    tensors, facts = reservoir.to_memory()
    with pytest.raises(RunError, match="damaged"):
        Reservoir.from_memory(tensors, {**facts, "domains": ["a", "b"]})
