"""Every method on rows as chats have them: labels on a part of a row, padding at its end, plain text beside them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

import stages
import tiny
from everlearn.data import Block, PackedBlocks
from everlearn.errors import MethodError
from everlearn.methods import REGISTRY, build
from everlearn.methods.engine.protection import check_methods
from everlearn.model.objectives import IGNORE
from methods_of_other_kinds import OTHERS, registered

OPTIONS = {
    "forever": {"sample": 0.5, "warm_up": 1},
    "kd_logits": {"top_k": 8},
    "kd_seed": {"queue": 6},
    "lfpt5": {"n_tokens": 8, "pseudo_tokens": 12},
}
"""Options instead of the defaults, which are refused here or slow."""
ROUNDED = {"lifelong_moe"}
"""Methods whose parts read what fills a row in one matrix with text: nothing is learnt of it, but how many positions
there are decides on rounding and on dropout."""
METHODS = [*sorted(REGISTRY | OTHERS), "kd_logits", "kd_seed"]


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    """The methods that only the tests have are known by name."""
    with registered():
        yield


def chats(count: int, seed: int, padding: int) -> PackedBlocks:
    """Rows of two chats and padding, with labels on a part of each chat; every fourth is plain text, learnt everywhere.

    Args:
        count: number of rows.
        seed: of everything but the padding.
        padding: token of the padding.
    """
    generator = np.random.default_rng(seed)
    rows: list[Block] = []
    for number in range(count):
        ids = generator.integers(5, tiny.VOCABULARY, stages.S, dtype=np.int32)
        first, rest = generator.integers(6, 10), stages.S - generator.integers(2, 7)
        place = np.arange(stages.S)
        segments = ((place >= first).astype(np.int32) + (place >= rest)).astype(np.int32)
        said = ((place >= first - 3) & (place < first)) | ((place >= rest - 4) & (place < rest))
        labels = np.where(said, ids, IGNORE).astype(np.int32)
        ids = np.where(segments == 2, padding, ids).astype(np.int32)
        if number % 4 == 3:
            ids = labels = generator.integers(5, tiny.VOCABULARY, stages.S, dtype=np.int32)
            segments = np.minimum(segments, 1)
        rows.append({"input_ids": ids, "segments": segments, "labels": labels})
    return PackedBlocks.from_blocks(rows, seed, f"d{seed}")


def learnt(name: str, padding: int) -> dict[str, Tensor]:
    """The weights after two domains, and what the method keeps."""
    method = build({"name": name, **OPTIONS.get(name, {})})
    model = tiny.placed("gpt2", dropout=0.0 if name in ROUNDED else 0.1)
    for index in (1, 2):
        stage = stages.stage(model, index, "causal", general=True, steps=2)
        stage.source, stage.general = chats(12, index, padding), chats(12, 99, padding)
        if index == 1:
            try:
                check_methods([method], stages.setting(model, [method], "causal", general=True))
            except MethodError as error:
                pytest.skip(f"refused: {error}")
        # Adam would divide rounding by rounding where a gradient is zero.
        parts = stages.learn([method], stage, optimizer=torch.optim.SGD if name in ROUNDED else torch.optim.AdamW)
        assert len(parts) == 2
        assert all(bool(torch.isfinite(value).all()) for part in parts for value in part.values())
        model = stage.model
    return stages.weights(model) | {f"memory/{key}": value for key, value in method.memory().tensors.items()}


@pytest.mark.parametrize("name", METHODS)
def test_works_and_what_fills_a_row_changes_nothing(name: str) -> None:
    one, other = learnt(name, 1), learnt(name, 7)
    assert one.keys() == other.keys()
    if name in ROUNDED:
        for key, value in one.items():
            assert torch.allclose(value, other[key], rtol=1e-4, atol=1e-6), key
        return
    # Rows that are kept, and their hidden states, are kept with what fills them.
    kept = ("input_ids", "hidden")
    different = [key for key in one if not torch.equal(one[key], other[key]) and key.split("/")[-1] not in kept]
    assert not different, different[:5]
