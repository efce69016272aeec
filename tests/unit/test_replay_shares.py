"""The share of old text in what is trained on: within 0.1 %, streamed or packed, resumed, on two processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import stages
import tiny
from everlearn.data import PackedBlocks
from everlearn.data.blocks import Block, BlockSource
from everlearn.data.corpus import Corpus
from everlearn.data.loader import BlockLoader
from everlearn.data.mixing import Mixture
from everlearn.data.packing import blocks_of
from everlearn.data.streaming import StreamedBlocks
from everlearn.methods.base import Memory
from everlearn.methods.rehearsal.replay import Replay
from everlearn.model.objectives import make_objective

OLD, S = 3, 16
"""A token that no text has; tokens in a row."""
BATCHES, ROWS = 40, 16


def _new(folder: Path, streaming: bool) -> BlockSource:
    texts = tiny.texts(40, words=30)
    if not streaming:
        return PackedBlocks.from_blocks(blocks_of(texts, tiny.tokenizer(), "decoder", S), 0, "d2")
    path = folder / "new.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    corpus = Corpus(path=str(path), streaming=True, shuffle_buffer=5)
    return StreamedBlocks(corpus, tiny.tokenizer(), "decoder", S, 0, name="d2")


def _mixed(folder: Path, streaming: bool, share: float) -> BlockSource:
    """The second domain with replay of a first one, which was nothing but one token."""
    ids = np.full((20, S), OLD, np.int32)
    old: list[Block] = [{"input_ids": row, "segments": np.zeros_like(row)} for row in ids]
    method = Replay(share=share)
    stage = stages.stage(tiny.model("gpt2"), 1, "causal")
    stage.source = PackedBlocks.from_blocks(old, 0, "d1")
    method.end_domain(stage)
    copy = Replay(share=share)
    copy.load_memory(Memory(method.memory().tensors, json.loads(json.dumps(method.memory().facts))))
    second = stages.stage(tiny.model("gpt2"), 2, "causal")
    return copy.training_data(_new(folder, streaming), second)


@pytest.mark.parametrize("streaming", [False, True], ids=["packed", "streamed"])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.25])
def test_what_two_processes_train_on(tmp_path: Path, streaming: bool, share: float) -> None:
    """Each token of each batch is counted, on both processes, which stop half-way and go on from a saved state."""
    objective = make_objective("causal", tiny.model("gpt2"), tiny.tokenizer())
    old = total = 0
    for rank in (0, 1):
        saved = None
        for upto in (BATCHES // 2 + 1, BATCHES):
            source = _mixed(tmp_path, streaming, share)
            loader = BlockLoader(source, objective, ROWS, BATCHES, rank, 2)
            if saved is not None:
                loader.load_state_dict(json.loads(saved))
            for batch in loader:
                old += int((batch["input_ids"] == OLD).sum())
                total += batch["input_ids"].numel()
                if loader.index == upto:
                    break
            saved = json.dumps(loader.state_dict())
        assert isinstance(source, Mixture)
        assert source.realised["earlier domains"] == pytest.approx(share, abs=1e-3)
    assert total == 2 * BATCHES * ROWS * S
    assert old / total == pytest.approx(share, abs=1e-3)
    assert old == source.tokens["earlier domains"], "what is reported is what was trained on"
