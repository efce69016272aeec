from __future__ import annotations

import gzip
import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tiny
from everlearn.data import streaming
from everlearn.data.corpus import Corpus, Document, is_held_out
from everlearn.data.mixing import Mixture
from everlearn.data.streaming import StreamedBlocks
from everlearn.errors import DataError


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
def test_the_state_gives_the_same_continuation(corpora, before, again, which, kind):
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


def test_blocks_are_copies(corpora):
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
