"""Prediction ranks: TF-IDF by hand, contexts that end before an n-gram, ranks against a slow reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import tiny
from everlearn.data.blocks import PackedBlocks
from everlearn.data.corpus import Document
from everlearn.diagnostics.prediction_ranks import _median, keywords, occurrences, ranks_of
from everlearn.evaluation import Conditions
from everlearn.model.objectives import make_objective
from everlearn.predictors import Checkpoint

FILL = "it knew what the model learns before a domain keeps "
TEXTS = {
    "graphs": [FILL + "graphs nodes edges and graphs nodes edges again it knew"] * 6,
    "plots": [FILL + "plots figures axes and plots figures it knew"] * 4 + [FILL + "graphs are before a plots"] * 2,
}


def packed(name: str, kind: str = "decoder") -> PackedBlocks:
    return PackedBlocks.from_blocks(list(tiny.pack(map(Document, TEXTS[name]), 48, kind=kind)), 0, name)


def counted(text: str, ngram: str) -> int:
    return text.count(" " + ngram)


def test_keywords_have_the_largest_tf_idf_against_the_other_sets():
    sets = {name: packed(name) for name in TEXTS}
    tokenizer = tiny.tokenizer()
    found = keywords(sets, tokenizer, top=3, longest=2)
    (graphs,) = tokenizer(" graphs", add_special_tokens=False)["input_ids"]
    (nodes,) = tokenizer(" nodes", add_special_tokens=False)["input_ids"]
    text = ["".join(tokenizer.decode(block["input_ids"])) for block in sets["graphs"].take(range(len(sets["graphs"])))]
    joined = " ".join(text)
    # `nodes` stands in no document of the other set, so it weighs more than `graphs`, which stands in some.
    assert (nodes,) in found["graphs"]
    others = sets["plots"].arrays
    documents = {
        (row, int(segment)): set(others["input_ids"][row][others["segments"][row] == segment].tolist())
        for row in range(len(others["input_ids"]))
        for segment in np.unique(others["segments"][row])
    }
    df = sum(graphs in words for words in documents.values())
    assert 0 < df < len(documents)
    weight = {
        "nodes": counted(joined, "nodes") * math.log(1 + len(documents)),
        "graphs": counted(joined, "graphs") * math.log((1 + len(documents)) / (1 + df)),
    }
    assert weight["nodes"] > weight["graphs"]
    every = keywords(sets, tokenizer, top=100, longest=1)["graphs"]
    assert every.index((nodes,)) < every.index((graphs,))
    # What nearly every document of the other set has weighs little.
    (model,) = tokenizer(" model", add_special_tokens=False)["input_ids"]
    assert every.index((model,)) > every.index((graphs,))
    assert all(len(ngram) <= 2 for each in found.values() for ngram in each)


def test_contexts_end_just_before_and_lie_in_one_document():
    blocks = packed("graphs")
    words = keywords({"graphs": blocks, "plots": packed("plots")}, tiny.tokenizer())["graphs"]
    places = occurrences(blocks, words, 1000)
    ids, segments = blocks.arrays["input_ids"], blocks.arrays["segments"]
    assert places == sorted(set(places))
    for row, at, length in places:
        assert tuple(ids[row, at : at + length].tolist()) in words
        assert len(set(segments[row, at - 8 : at + length].tolist())) == 1
    some = occurrences(blocks, words, 5)
    assert len(some) == 5
    assert set(some) <= set(places)
    assert occurrences(blocks, [], 5) == []


@pytest.mark.parametrize("architecture", ["gpt2", "roberta"])
def test_ranks_are_those_of_a_pass_of_its_own(architecture):
    model, tokenizer = tiny.model(architecture), tiny.tokenizer()
    blocks = packed("graphs", "decoder" if architecture == "gpt2" else "encoder")
    objective = make_objective(None, model, tokenizer)
    how = Conditions("base", tokenizer, objective, batch_size=3)
    places = occurrences(blocks, keywords({"graphs": blocks, "plots": packed("plots")}, tokenizer)["graphs"], 7)
    found = ranks_of(Checkpoint(model, objective), blocks, places, how)
    for rank, (row, at, length) in zip(found, places, strict=True):
        ids = torch.from_numpy(blocks.arrays["input_ids"][row].astype(np.int64))
        with torch.no_grad():
            if architecture == "gpt2":
                start = int(np.flatnonzero(blocks.arrays["segments"][row] == blocks.arrays["segments"][row][at])[0])
                logits = model(ids[None, start:at]).logits[0, -1]
            else:
                shown = ids.clone()
                shown[at : at + length] = tokenizer.mask_token_id
                logits = model(shown[None]).logits[0, at]
        assert rank == 1 + sum(float(each) > float(logits[ids[at]]) for each in logits)


def test_places_of_one_row_are_drawn_together() -> None:
    """Forty rows of which each repeats one value nine times tell no more than forty values."""
    values = np.random.default_rng(0).normal(size=40)
    alone = _median(values, range(40), "a")
    repeated = _median(np.repeat(values, 9), np.repeat(np.arange(40), 9).tolist(), "a")
    assert repeated.value == pytest.approx(alone.value, abs=0.2)
    widths = [each.interval[1] - each.interval[0] for each in (alone, repeated) if each.interval is not None]
    assert 0.7 < widths[1] / widths[0] < 1.4
