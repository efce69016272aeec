from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from everlearn.data.blocks import PackedBlocks, stack, tokens_in
from everlearn.data.mixing import Concatenation, Mixture, shares
from everlearn.errors import DataError, RunError


def source(name: str, size: int = 5, width: int = 8) -> PackedBlocks:
    ids = np.full((size, width), ord(name[0]), np.int32) + np.arange(size, dtype=np.int32)[:, None] * 1000
    return PackedBlocks({"input_ids": ids, "segments": np.zeros_like(ids)}, 0, name)


def mixture(shares: list[float], widths: int = 8) -> Mixture:
    return Mixture([(f"{chr(97 + i)}", source(chr(97 + i), 5, widths), share) for i, share in enumerate(shares)])


@settings(max_examples=12, deadline=None)
@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=8))
@example([0.00395455, 0.25250895, 0.42687586, 0.00426313, 0.04507424, 0.23190498, 0.0354183])  # fails by deficit
def test_every_share_is_exact_to_one_block_at_every_prefix(shares):
    mixed = mixture(shares)
    for taken in range(1, 90):
        next(mixed)
        assert sum(mixed.tokens.values()) == 8 * taken
        for name, asked in mixed.asked.items():
            assert abs(mixed.tokens[name] - asked * 8 * taken) <= 8 * (1 + 1e-9)
    assert sum(mixed.asked.values()) == pytest.approx(1)
    assert mixed.realised == {name: tokens / (8 * 89) for name, tokens in mixed.tokens.items()}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.05, 1), min_size=2, max_size=4), st.integers(0, 2**32))
def test_shares_count_tokens_where_blocks_differ(shares, seed):
    generator = np.random.default_rng(seed)
    parts = []
    for i, share in enumerate(shares):
        rows = [{"input_ids": np.zeros(n, np.int32)} for n in generator.integers(1, 20 * (i + 1), 30)]
        parts.append((str(i), PackedBlocks(stack(rows), 0, str(i)), share))
    mixed = Mixture(parts)
    total = sum(tokens_in(next(mixed)) for _ in range(300))
    longest = 20 * len(shares)
    assert sum(mixed.tokens.values()) == total
    assert all(abs(mixed.tokens[name] - asked * total) <= 2 * longest for name, asked in mixed.asked.items())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 60), st.lists(st.floats(0.01, 1), min_size=1, max_size=4))
def test_the_state_gives_the_same_continuation(before, shares):
    first, second = mixture(shares), mixture(shares)
    list(islice(first, before))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    pairs = zip(islice(first, 40), islice(second, 40), strict=True)
    assert all(np.array_equal(a["input_ids"], b["input_ids"]) for a, b in pairs)
    assert first.realised == second.realised


def test_facts_about_a_mixture():
    mixed = Mixture([("new", source("n", 90), 9), ("old", source("o", 4), 1)])
    assert mixed.asked == {"new": 0.9, "old": 0.1}
    assert mixed.realised == {"new": 0, "old": 0}
    assert mixed.size == 100, "a pass is over when the first source has been passed once"
    assert mixed.block_tokens == 8
    assert Mixture([("a", source("a"), 1), ("b", source("b", 5, 9), 1)]).block_tokens is None
    fresh = mixed.fresh(0)
    assert fresh.asked == mixed.asked
    assert fresh.fingerprint == mixed.fingerprint
    assert mixed.fingerprint != Mixture([("new", source("n", 90), 8), ("old", source("o", 4), 1)]).fingerprint


def test_bad_mixtures_and_foreign_states_are_refused():
    with pytest.raises(DataError, match="different names"):
        Mixture([("a", source("a"), 1), ("a", source("b"), 1)])
    with pytest.raises(DataError, match="different names"):
        Mixture([])
    for share in (0, -1, float("nan")):
        with pytest.raises(DataError, match="share of 'a'"):
            Mixture([("a", source("a"), share)])
    with pytest.raises(RunError, match=r"sources \['a'\]; this one has \['a', 'b'\]"):
        mixture([1, 1]).load_state_dict(mixture([1]).state_dict())


def test_tokens_of_every_source_are_counted_also_where_shares_are_of_rows():
    inner = Mixture([("x", source("x", 6, 4), 0.5), ("y", source("y", 6, 4), 0.5)])
    joined = Concatenation([("short", inner, 12), ("long", source("long", 4, 32), 4)], 0)
    blocks = list(islice(joined, 16))
    said = {each["source"]: each for each in shares(joined)}
    assert {name: each["tokens"] for name, each in said.items()} == {"short.x": 24, "short.y": 24, "long": 128}
    assert said["long"]["realised"] == 4 / 16
    assert sum(map(tokens_in, blocks)) == sum(each["tokens"] for each in said.values())
