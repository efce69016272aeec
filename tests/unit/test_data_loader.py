from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from everlearn.data.blocks import PackedBlocks
from everlearn.data.loader import BlockLoader, sample_batches
from everlearn.data.mixing import Mixture
from everlearn.errors import DataError, RunError


class Rows:
    """A stand-in for an objective: ids and the row numbers they were collated with."""

    def collate(self, blocks, rows):
        ids = torch.from_numpy(np.stack([block["input_ids"] for block in blocks]))
        return {"input_ids": ids, "rows": torch.tensor(rows)}


def source(size: int = 11):
    def part(name: str) -> PackedBlocks:
        ids = np.arange(size * 2, dtype=np.int32).reshape(size, 2) + 100 * ord(name)
        return PackedBlocks({"input_ids": ids, "segments": np.zeros_like(ids)}, 0, name)

    return Mixture([("a", part("a"), 2), ("b", part("b"), 1)])


def rows_of(loader) -> list[tuple[int, int]]:
    return [
        (int(row), int(ids[0])) for batch in loader for row, ids in zip(batch["rows"], batch["input_ids"], strict=True)
    ]


def test_ranks_share_the_rows_of_one_order():
    whole = rows_of(BlockLoader(source(), Rows(), 6, 5))
    assert [row for row, _ in whole] == list(range(30))
    parts = [rows_of(BlockLoader(source(), Rows(), 2, 5, rank, 3)) for rank in range(3)]
    assert sorted(row for part in parts for row in part) == whole
    assert [row for row, _ in parts[1]] == [6 * i + j for i in range(5) for j in (2, 3)]
    assert rows_of(BlockLoader(source(), Rows(), 3, 10)) == whole, "accumulation changes nothing either"


def test_it_works_through_a_dataloader_and_ends():
    loader = BlockLoader(source(), Rows(), 2, 4)
    batches = list(DataLoader(loader, batch_size=None))
    assert len(batches) == len(loader) == len(DataLoader(loader, batch_size=None)) == 4
    assert batches[0]["input_ids"].shape == (2, 2)
    assert list(loader) == []


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 7))
def test_any_batch_up_to_the_last_anchor_can_be_the_next(read, back, every):
    whole = rows_of(BlockLoader(source(), Rows(), 2, 40))
    loader = BlockLoader(source(), Rows(), 2, 40)
    loader.ANCHOR_EVERY = every
    for _ in zip(range(read), loader, strict=False):
        pass
    batch = max(loader.index - min(back, every), 0)
    state = json.loads(json.dumps(loader.state_dict(batch)))
    other = BlockLoader(source(), Rows(), 2, 40)
    other.load_state_dict(state)
    assert other.index == batch
    assert other.state_dict()["batch"] == batch
    assert rows_of(other) == whole[2 * batch :]


def test_a_batch_that_is_not_remembered_is_an_error():
    loader = BlockLoader(source(), Rows(), 1, 400)
    for _ in zip(range(350), loader, strict=False):
        pass
    with pytest.raises(RunError, match="batch 10 is not known; batches 200 to 350 are"):
        loader.state_dict(10)
    with pytest.raises(RunError, match="batch 351"):
        loader.state_dict(351)


def test_worker_processes_are_refused():
    with pytest.raises(DataError, match="dataloader_num_workers"):
        list(DataLoader(BlockLoader(source(), Rows(), 1, 2), batch_size=None, num_workers=1))


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
