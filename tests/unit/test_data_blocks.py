"""Sources of blocks: in memory, streamed, mixed, kept by a reservoir, and the batches that a loader makes of them."""

from __future__ import annotations

import gzip
import json
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.utils.data import DataLoader

import tiny
from everlearn.data import streaming
from everlearn.data.blocks import PackedBlocks, Ragged, stack, tokens_in
from everlearn.data.corpus import Corpus, Document, is_held_out
from everlearn.data.loader import BlockLoader, sample_batches
from everlearn.data.mixing import Anneal, Concatenation, Mixture, shares
from everlearn.data.reservoir import Reservoir
from everlearn.data.streaming import StreamedBlocks
from everlearn.errors import DataError, RunError


def packed(size: int = 7, seed: int = 0, name: str = "a") -> PackedBlocks:
    ids = np.arange(size * 4, dtype=np.int32).reshape(size, 4)
    return PackedBlocks({"input_ids": ids, "segments": np.zeros_like(ids)}, seed, name)


def numbers(blocks: PackedBlocks, count: int) -> list[int]:
    return [int(next(blocks)["input_ids"][0]) // 4 for _ in range(count)]


def test_every_pass_gives_every_block_once_in_an_order_of_its_own():
    blocks = packed()
    passes = [numbers(blocks, 7) for _ in range(4)]
    assert all(sorted(order) == list(range(7)) for order in passes)
    assert len({tuple(order) for order in passes}) == 4
    assert passes[2] == packed().order(2).tolist()


def test_the_order_depends_on_seed_and_name_alone():
    assert numbers(packed(), 20) == numbers(packed(), 20)
    assert numbers(packed(), 20) != numbers(packed(seed=1), 20)
    assert numbers(packed(), 20) != numbers(packed(name="b"), 20)


@given(st.integers(0, 30), st.integers(1, 9))
def test_the_state_gives_the_same_continuation(before, size):
    blocks, other = packed(size), packed(size)
    numbers(blocks, before)
    other.load_state_dict(json.loads(json.dumps(blocks.state_dict())))
    assert numbers(blocks, 20) == numbers(other, 20)


def test_fresh_is_independent_and_in_another_order():
    blocks = packed(50)
    numbers(blocks, 3)
    state = blocks.state_dict()
    fresh = blocks.fresh(0)
    order = numbers(fresh, 50)
    assert sorted(order) == list(range(50))
    assert order != numbers(packed(50), 50), "the run's own seed must not repeat the training order"
    assert blocks.state_dict() == state
    assert fresh.fingerprint == blocks.fingerprint


def test_blocks_are_copies():
    blocks = packed()
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
    assert packed().block_tokens == 4


def test_fingerprints_follow_content():
    assert packed().fingerprint == packed(seed=9).fingerprint
    assert packed(7).fingerprint != packed(8).fingerprint
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
        packed().load_state_dict({"pass": 1})


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> dict[str, Corpus]:
    folder = tmp_path_factory.mktemp("corpora")
    lines = [json.dumps({"text": text, "answer": text[:9]}) + "\n" for text in tiny.texts(23, words=12)]
    (folder / "a.jsonl").write_text("".join(lines[:11]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("".join(lines[11:]).encode()))
    return {
        "plain": Corpus(path=str(folder), streaming=True),
        "shuffled": Corpus(path=str(folder), streaming=True, shuffle_buffer=5),
        "examples": Corpus(path=str(folder), streaming=True, target_column="answer", shuffle_buffer=2),
    }


@pytest.fixture(autouse=True)
def small_lots(monkeypatch):
    """Lots of 4 documents, so that a pass has several."""
    monkeypatch.setattr(streaming, "CHUNK", 4)


def stream(corpus: Corpus, kind="decoder", seed=0, **options) -> StreamedBlocks:
    return StreamedBlocks(corpus, tiny.tokenizer(), kind, 16, seed, **options)


def plain(blocks) -> list[dict[str, list[int]]]:
    return [{key: row.tolist() for key, row in block.items()} for block in blocks]


def test_a_pass_is_what_packing_at_once_gives(corpora):
    texts = [Document(text) for text in tiny.texts(23, words=12)]
    expected = plain(tiny.pack(texts, 16, kind="decoder"))
    found = plain(islice(stream(corpora["plain"]), 2 * len(expected)))
    assert found == [*expected, *expected], "the remainder is dropped and the next pass starts anew"


def test_held_out_documents_are_left_out(corpora):
    texts = [Document(text) for text in tiny.texts(23, words=12)]
    kept = [document for document in texts if not is_held_out(document, 0.4)]
    assert 0 < len(kept) < len(texts)
    expected = plain(tiny.pack(kept, 16, kind="decoder"))
    assert plain(islice(stream(corpora["plain"], held_out_share=0.4), len(expected))) == expected


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.integers(0, 90),
    again=st.integers(0, 5),
    which=st.sampled_from(["plain", "shuffled", "examples"]),
    kind=st.sampled_from(["encoder", "decoder", "encoder-decoder"]),
)
def test_the_state_of_a_stream_gives_the_same_continuation(corpora, before, again, which, kind):
    kind = "encoder-decoder" if which == "examples" and kind == "encoder" else kind
    kind = "encoder" if which != "examples" and kind == "encoder-decoder" else kind
    first = stream(corpora[which], kind, held_out_share=0.1)
    list(islice(first, before))
    second = stream(corpora[which], kind, held_out_share=0.1)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.state_dict() == first.state_dict()
    list(islice(first, again)), list(islice(second, again))
    third = stream(corpora[which], kind, held_out_share=0.1)
    third.load_state_dict(json.loads(json.dumps(second.state_dict())))
    assert plain(islice(first, 40)) == plain(islice(third, 40))


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.integers(0, 60))
def test_a_mixture_of_streams_is_resumed_exactly(corpora, before):
    def mixture() -> Mixture:
        inner = Mixture([("p", stream(corpora["plain"]), 2), ("s", stream(corpora["shuffled"]), 1)], "inner")
        return Mixture([("new", inner, 0.7), ("old", stream(corpora["shuffled"], seed=3), 0.3)])

    first, second = mixture(), mixture()
    list(islice(first, before))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert plain(islice(first, 50)) == plain(islice(second, 50))


def test_the_shuffle_buffer_changes_the_order_and_loses_nothing(corpora):
    in_order = plain(islice(stream(corpora["plain"]), 60))
    shuffled = plain(islice(stream(corpora["shuffled"]), 55))
    assert shuffled != in_order[:55]
    assert all(shuffled.count(block) <= in_order.count(block) for block in shuffled)
    assert shuffled == plain(islice(stream(corpora["shuffled"]), 55))
    other = stream(corpora["shuffled"]).fresh(0)
    assert plain(islice(other, 55)) != shuffled
    assert other.fingerprint == stream(corpora["shuffled"]).fingerprint


def test_streamed_blocks_are_copies(corpora):
    first = stream(corpora["plain"])
    block = next(first)
    block["input_ids"][:] = -1
    second = stream(corpora["plain"])
    second.load_state_dict(first.state_dict())
    assert plain(islice(first, 5)) == plain(islice(second, 5))
    assert all(np.all(block["input_ids"] >= 0) for block in islice(first, 80))


def test_a_stream_smaller_than_a_block_is_an_error(tmp_path):
    (tmp_path / "small.txt").write_text("the\n")
    with pytest.raises(DataError, match=r"'stream' has 4 tokens .*fewer than one block \(`data.block_size: 16`\)"):
        next(stream(Corpus(path=str(tmp_path / "small.txt"))))


def constant(name: str, size: int = 5, width: int = 8) -> PackedBlocks:
    ids = np.full((size, width), ord(name[0]), np.int32) + np.arange(size, dtype=np.int32)[:, None] * 1000
    return PackedBlocks({"input_ids": ids, "segments": np.zeros_like(ids)}, 0, name)


def mixture(shares: list[float], widths: int = 8) -> Mixture:
    return Mixture([(f"{chr(97 + i)}", constant(chr(97 + i), 5, widths), share) for i, share in enumerate(shares)])


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


def annealed(first: list[float], last: list[float], blocks: int) -> Mixture:
    parts = [(chr(97 + i), constant(chr(97 + i)), share) for i, share in enumerate(first)]
    return Mixture(parts, anneal=Anneal({chr(97 + i): share for i, share in enumerate(last)})).along(blocks)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 5), st.integers(1, 60), st.integers(0, 2**32))
def test_shares_that_change_are_exact_to_one_block_at_every_prefix(count, blocks, seed):
    generator = np.random.default_rng(seed)
    first, last = (generator.dirichlet(np.ones(count)) for _ in range(2))
    mixed = annealed(list(first), list(last), blocks)
    due = np.zeros(count)
    for row in range(blocks + 10):
        done = min(1.0, row / max(1, blocks - 1))
        due += 8 * ((1 - done) * first + done * last)
        next(mixed)
        assert np.abs(np.array(list(mixed.tokens.values())) - due).max() <= 8 * (1 + 1e-9)
        assert list(mixed.asked.values()) == pytest.approx(due / due.sum())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 60))
def test_shares_that_change_go_on_from_their_state(before):
    first, second = (annealed([0.5, 0.25, 0.25], [0.25, 0.0, 0.75], 50) for _ in range(2))
    list(islice(first, before))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    pairs = zip(islice(first, 60), islice(second, 60), strict=True)
    assert all(np.array_equal(a["input_ids"], b["input_ids"]) for a, b in pairs)
    assert first.asked == second.asked
    assert first.fingerprint == second.fingerprint != mixture([0.5, 0.25, 0.25]).fingerprint
    assert first.fingerprint != annealed([0.5, 0.25, 0.25], [0.25, 0.0, 0.75], 51).fingerprint


def test_an_independent_pass_has_the_mean_of_shares_that_change():
    """Its beginning, which importance is measured on, then stands for all of the domain."""
    for first, last in (([0.75, 0.25], [0.25, 0.75]), ([1.0, 0.0], [0.0, 1.0])):
        mixed = annealed(first, last, 50).fresh(1)
        assert mixed.asked == {"a": 0.5, "b": 0.5}
        list(islice(mixed, 20))
        assert mixed.tokens == {"a": 80, "b": 80}
    once = [chr(block["input_ids"][0] % 1000) for block in annealed([0.9, 0.1], [0.1, 0.9], 99).once(3)]
    assert abs(once[:4].count("a") - 2) <= 1


def test_a_share_may_begin_or_end_at_nothing():
    for first, last in (([1.0, 0.0], [0.5, 0.5]), ([0.5, 0.5], [1.0, 0.0])):
        mixed = annealed(first, last, 40)
        list(islice(mixed, 40))
        assert mixed.tokens == {"a": 240, "b": 80}
    with pytest.raises(DataError, match="must be above 0"):
        annealed([1.0, 0.0], [1.0, 0.0], 40)


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
def test_the_state_of_a_mixture_gives_the_same_continuation(before, shares):
    first, second = mixture(shares), mixture(shares)
    list(islice(first, before))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    pairs = zip(islice(first, 40), islice(second, 40), strict=True)
    assert all(np.array_equal(a["input_ids"], b["input_ids"]) for a, b in pairs)
    assert first.realised == second.realised


def test_facts_about_a_mixture():
    mixed = Mixture([("new", constant("n", 90), 9), ("old", constant("o", 4), 1)])
    assert mixed.asked == {"new": 0.9, "old": 0.1}
    assert mixed.realised == {"new": 0, "old": 0}
    assert mixed.size == 100, "a pass is over when the first constant has been passed once"
    assert mixed.block_tokens == 8
    assert Mixture([("a", constant("a"), 1), ("b", constant("b", 5, 9), 1)]).block_tokens is None
    fresh = mixed.fresh(0)
    assert fresh.asked == mixed.asked
    assert fresh.fingerprint == mixed.fingerprint
    assert mixed.fingerprint != Mixture([("new", constant("n", 90), 8), ("old", constant("o", 4), 1)]).fingerprint


def test_bad_mixtures_and_foreign_states_are_refused():
    with pytest.raises(DataError, match="different names"):
        Mixture([("a", constant("a"), 1), ("a", constant("b"), 1)])
    with pytest.raises(DataError, match="different names"):
        Mixture([])
    for share in (0, -1, float("nan")):
        with pytest.raises(DataError, match="share of 'a'"):
            Mixture([("a", constant("a"), share)])
    with pytest.raises(RunError, match=r"sources \['a'\]; this one has \['a', 'b'\]"):
        mixture([1, 1]).load_state_dict(mixture([1]).state_dict())


def test_tokens_of_every_source_are_counted_also_where_shares_are_of_rows():
    inner = Mixture([("x", constant("x", 6, 4), 0.5), ("y", constant("y", 6, 4), 0.5)])
    joined = Concatenation([("short", inner, 12), ("long", constant("long", 4, 32), 4)], 0)
    blocks = list(islice(joined, 16))
    said = {each["source"]: each for each in shares(joined)}
    assert {name: each["tokens"] for name, each in said.items()} == {"short.x": 24, "short.y": 24, "long": 128}
    assert said["long"]["realised"] == 4 / 16
    assert sum(map(tokens_in, blocks)) == sum(each["tokens"] for each in said.values())


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


class Rows:
    """A stand-in for an objective: ids and the row numbers they were collated with."""

    def collate(self, blocks, rows):
        ids = torch.from_numpy(np.stack([block["input_ids"] for block in blocks]))
        return {"input_ids": ids, "rows": torch.tensor(rows)}


def numbered(size: int = 11):
    def part(name: str) -> PackedBlocks:
        ids = np.arange(size * 2, dtype=np.int32).reshape(size, 2) + 100 * ord(name)
        return PackedBlocks({"input_ids": ids, "segments": np.zeros_like(ids)}, 0, name)

    return Mixture([("a", part("a"), 2), ("b", part("b"), 1)])


def rows_of(loader) -> list[tuple[int, int]]:
    return [
        (int(row), int(ids[0])) for batch in loader for row, ids in zip(batch["rows"], batch["input_ids"], strict=True)
    ]


def test_ranks_share_the_rows_of_one_order():
    whole = rows_of(BlockLoader(numbered(), Rows(), 6, 5))
    assert [row for row, _ in whole] == list(range(30))
    parts = [rows_of(BlockLoader(numbered(), Rows(), 2, 5, rank, 3)) for rank in range(3)]
    assert sorted(row for part in parts for row in part) == whole
    assert [row for row, _ in parts[1]] == [6 * i + j for i in range(5) for j in (2, 3)]
    assert rows_of(BlockLoader(numbered(), Rows(), 3, 10)) == whole, "accumulation changes nothing either"


def test_it_works_through_a_dataloader_and_ends():
    loader = BlockLoader(numbered(), Rows(), 2, 4)
    batches = list(DataLoader(loader, batch_size=None))
    assert len(batches) == len(loader) == len(DataLoader(loader, batch_size=None)) == 4
    assert batches[0]["input_ids"].shape == (2, 2)
    assert list(loader) == []


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 7))
def test_any_batch_up_to_the_last_anchor_can_be_the_next(read, back, every):
    whole = rows_of(BlockLoader(numbered(), Rows(), 2, 40))
    loader = BlockLoader(numbered(), Rows(), 2, 40)
    loader.ANCHOR_EVERY = every
    for _ in zip(range(read), loader, strict=False):
        pass
    batch = max(loader.index - min(back, every), 0)
    state = json.loads(json.dumps(loader.state_dict(batch)))
    other = BlockLoader(numbered(), Rows(), 2, 40)
    other.load_state_dict(state)
    assert other.index == batch
    assert other.state_dict()["batch"] == batch
    assert rows_of(other) == whole[2 * batch :]


def test_a_batch_that_is_not_remembered_is_an_error():
    loader = BlockLoader(numbered(), Rows(), 1, 400)
    for _ in zip(range(350), loader, strict=False):
        pass
    with pytest.raises(RunError, match="batch 10 is not known; batches 200 to 350 are"):
        loader.state_dict(10)
    with pytest.raises(RunError, match="batch 351"):
        loader.state_dict(351)


def test_worker_processes_are_refused():
    with pytest.raises(DataError, match="dataloader_num_workers"):
        list(DataLoader(BlockLoader(numbered(), Rows(), 1, 2), batch_size=None, num_workers=1))


def test_sampling_takes_a_part_of_a_pass_of_its_own():
    blocks = PackedBlocks({"input_ids": np.arange(20, dtype=np.int32).reshape(10, 2)}, 0)
    before = blocks.state_dict()
    options = {"blocks": 7, "batch_size": 3, "seed": 5, "device": "cpu"}
    batches = list(sample_batches(blocks, Rows(), **options))
    assert [len(batch["rows"]) for batch in batches] == [3, 3, 1]
    assert blocks.state_dict() == before
    seen = torch.cat([batch["input_ids"][:, 0] for batch in batches])
    assert len(seen.unique()) == 7
    next(blocks)
    assert torch.equal(seen, torch.cat([b["input_ids"][:, 0] for b in sample_batches(blocks, Rows(), **options)]))
    options["blocks"] = 99
    assert sum(len(batch["rows"]) for batch in sample_batches(blocks, Rows(), **options)) == 10


def test_plain_text_beside_answers_is_learnt_everywhere() -> None:
    ids = np.arange(4, dtype=np.int32)
    plain = {"input_ids": ids, "segments": ids * 0}
    answer = {**plain, "labels": np.array([-100, -100, 2, 3], np.int32)}
    for blocks in ([plain, answer], [answer, plain]):
        labels = stack(blocks)["labels"]
        assert [row.tolist() for row in labels] == [block.get("labels", ids).tolist() for block in blocks]
    assert set(stack([plain])) == set(plain)
