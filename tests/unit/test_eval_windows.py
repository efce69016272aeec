"""Perplexity in windows against a reference that predicts one token at a time, and the rule that divides by what was
scored."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiny
from everlearn.data.blocks import PackedBlocks
from everlearn.data.corpus import Document
from everlearn.data.windows import Windows
from everlearn.evaluation import METRICS, text_cell
from everlearn.model.objectives import make_objective
from everlearn.predictors import block_losses

SIZE, END = 24, 2


@pytest.fixture(scope="module")
def model():
    return tiny.model("gpt2").double()


@pytest.fixture(scope="module")
def blocks() -> PackedBlocks:
    """Documents of 8 to 40 tokens in rows of 24: most go on in the next row; one ends exactly where a row does."""
    found = list(tiny.pack(map(Document, tiny.texts(9, words=25)), SIZE, kind="decoder"))[:6]
    found[2]["input_ids"][-1] = END
    return PackedBlocks.from_blocks(found, 0)


def documents(blocks: PackedBlocks) -> tuple[np.ndarray, np.ndarray]:
    """The whole text, and the number of each token's document."""
    ids = np.concatenate([block["input_ids"] for block in blocks.take(range(len(blocks)))])
    numbers = np.cumsum(np.concatenate([[0], ids[:-1] == END]))
    return ids, numbers


def one_at_a_time(model, context: np.ndarray, target: int) -> float:
    """−log p(target | context) from a pass of its own."""
    with torch.no_grad():
        logits = model(torch.from_numpy(context[None].astype(np.int64))).logits[0, -1]
    return float(torch.logsumexp(logits, 0) - logits[target])


@pytest.mark.parametrize("stride", [1, 5, 16, 24])
@pytest.mark.parametrize("isolate", [True, False])
def test_windows_equal_a_reference_of_one_token_at_a_time(model, blocks, stride, isolate):
    ids, numbers = documents(blocks)
    nats, count, done = 0.0, 0, 0
    for start in range(0, len(ids) - SIZE + 1, stride):
        for at in range(max(done, start + 1), start + SIZE):
            begin = start if not isolate else max(start, int(np.flatnonzero(numbers == numbers[at])[0]))
            if begin < at:
                nats += one_at_a_time(model, ids[begin:at], ids[at])
                count += 1
        done = start + SIZE
    objective = make_objective(None, model, tiny.tokenizer(), isolate=isolate)
    found = block_losses(model, Windows(blocks, stride, END), objective, batch_size=4)
    assert int(found.items.sum()) == count
    assert found.nats.sum() == pytest.approx(nats, rel=1e-6)  # probabilities are of float32
    cell = text_cell(found.nats, found.items, 4.0)
    assert METRICS["perplexity"].score(cell) == pytest.approx(np.exp(nats / count), rel=1e-6)


def test_without_overlap_windows_are_the_blocks(model, blocks):
    objective = make_objective(None, model, tiny.tokenizer())
    plain = block_losses(model, blocks, objective, batch_size=4)
    windows = block_losses(model, Windows(blocks, SIZE, END), objective, batch_size=4)
    assert np.array_equal(plain.nats, windows.nats)
    assert np.array_equal(plain.items, windows.items)


def test_every_token_is_scored_once_and_the_first_of_a_document_never(blocks):
    ids, numbers = documents(blocks)
    windows, times = Windows(blocks, 7, END), np.zeros(len(ids), int)
    objective = make_objective(None, tiny.model("gpt2"), tiny.tokenizer())
    for number, window in enumerate(windows.take(range(len(windows)))):
        labels = objective.collate([window], [0])["labels"][0]
        at = number * 7 + 1 + np.flatnonzero(labels.numpy()[:-1] != -100)
        times[at] += 1
        assert np.array_equal(ids[number * 7 : number * 7 + SIZE], window["input_ids"])
        inside = numbers[number * 7 : number * 7 + SIZE]
        assert np.array_equal(window["segments"], inside - inside[0])
    covered = (len(windows) - 1) * 7 + SIZE
    first = np.append(True, numbers[1:] != numbers[:-1])
    assert times.max() == 1
    # A document of which a window holds the first token alone has no target there: no other token is left out.
    assert (times[:covered] == ~first[:covered]).all()
