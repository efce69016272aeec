from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlearn.data.blocks import PackedBlocks, Ragged, stack, tokens_in
from everlearn.errors import DataError, RunError


def source(size: int = 7, seed: int = 0, name: str = "a") -> PackedBlocks:
    ids = np.arange(size * 4, dtype=np.int32).reshape(size, 4)
    return PackedBlocks({"input_ids": ids, "segments": np.zeros_like(ids)}, seed, name)


def numbers(blocks: PackedBlocks, count: int) -> list[int]:
    return [int(next(blocks)["input_ids"][0]) // 4 for _ in range(count)]


def test_every_pass_gives_every_block_once_in_an_order_of_its_own():
    blocks = source()
    passes = [numbers(blocks, 7) for _ in range(4)]
    assert all(sorted(order) == list(range(7)) for order in passes)
    assert len({tuple(order) for order in passes}) == 4
    assert passes[2] == source().order(2).tolist()


def test_the_order_depends_on_seed_and_name_alone():
    assert numbers(source(), 20) == numbers(source(), 20)
    assert numbers(source(), 20) != numbers(source(seed=1), 20)
    assert numbers(source(), 20) != numbers(source(name="b"), 20)


@given(st.integers(0, 30), st.integers(1, 9))
def test_the_state_gives_the_same_continuation(before, size):
    blocks, other = source(size), source(size)
    numbers(blocks, before)
    other.load_state_dict(json.loads(json.dumps(blocks.state_dict())))
    assert numbers(blocks, 20) == numbers(other, 20)


def test_fresh_is_independent_and_in_another_order():
    blocks = source(50)
    numbers(blocks, 3)
    state = blocks.state_dict()
    fresh = blocks.fresh(0)
    order = numbers(fresh, 50)
    assert sorted(order) == list(range(50))
    assert order != numbers(source(50), 50), "the run's own seed must not repeat the training order"
    assert blocks.state_dict() == state
    assert fresh.fingerprint == blocks.fingerprint


def test_blocks_are_copies():
    blocks = source()
    block = blocks.take([0])[0]
    block["input_ids"][:] = -1
    assert blocks.take([0])[0]["input_ids"].tolist() == [0, 1, 2, 3]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=8))
def test_rows_of_different_lengths_survive_stacking(lengths):
    generator = np.random.default_rng(0)
    rows = [
        {
            "input_ids": generator.integers(0, 9, n).astype(np.int32),
            "labels": generator.integers(0, 9, m).astype(np.int32),
        }
        for n, m in lengths
    ]
    blocks = PackedBlocks(stack(rows), 0)
    assert blocks.block_tokens is None
    for found, row in zip(blocks.take(range(len(rows))), rows, strict=True):
        assert all(np.array_equal(found[key], row[key]) for key in row)
    assert [tokens_in(row) for row in rows] == [n + m for n, m in lengths]


def test_labels_beside_segments_cost_nothing():
    row = np.zeros(6, np.int32)
    assert tokens_in({"input_ids": row, "labels": row, "segments": row}) == 6
    assert tokens_in({"input_ids": row}) == 6
    assert source().block_tokens == 4


def test_fingerprints_follow_content():
    assert source().fingerprint == source(seed=9).fingerprint
    assert source(7).fingerprint != source(8).fingerprint
    ids = np.arange(4, dtype=np.int32)
    parts = [Ragged(ids, np.array([0, *cut, 4], dtype=np.int64)) for cut in ([1], [2])]
    assert len({PackedBlocks({"input_ids": part}, 0).fingerprint for part in parts}) == 2


def test_bad_columns_and_foreign_states_are_refused():
    ids = np.zeros((2, 4), np.int32)
    with pytest.raises(DataError, match="no block"):
        PackedBlocks({"input_ids": ids[:0]}, 0)
    with pytest.raises(DataError, match="no block"):
        PackedBlocks.from_blocks([], 0)
    with pytest.raises(DataError, match="equally many rows"):
        PackedBlocks({"input_ids": ids, "labels": ids[:1]}, 0)
    with pytest.raises(RunError, match="another kind of source"):
        source().load_state_dict({"pass": 1})
