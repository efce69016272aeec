"""One pass over several held-out sets: the scores of each by itself, full batches, the same after an interruption."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiny
from everlearn.data.blocks import PackedBlocks
from everlearn.data.corpus import Document
from everlearn.errors import TrainingDiverged
from everlearn.evaluation import Conditions
from everlearn.model.objectives import make_objective
from everlearn.predictors import Checkpoint
from everlearn.tasks.batched_scoring import measure_together
from everlearn.tasks.held_out import HeldOut, HeldOutText

SIZES = {"a": 3, "b": 5, "c": 1, "d": 2}


class Counting(Checkpoint):
    """Remembers how many rows each batch had."""

    def row_losses(self, batch):
        ROWS.append(len(batch["labels"]))
        return super().row_losses(batch)


ROWS: list[int] = []


@pytest.fixture
def sets(tmp_path):
    for number, (name, size) in enumerate(SIZES.items()):
        texts = map(Document, tiny.texts(40, seed=number))
        blocks = list(tiny.pack(texts, 16, kind="decoder"))[:size]
        HeldOut(PackedBlocks.from_blocks(blocks, 0, name), 4.0).save(tmp_path / f"{name}.safetensors")
    return lambda **options: [HeldOutText(tmp_path / f"{name}.safetensors", name, **options) for name in SIZES]


def together(tasks, predictor, how, wanted=SIZES):
    cells = {}
    measure_together(
        ((task, task.name in wanted) for task in tasks), predictor, how, lambda c: cells.update({c.task: c})
    )
    return cells


@pytest.mark.parametrize("architecture", ["gpt2", "roberta"])
@pytest.mark.parametrize("content", [None, 2])
def test_each_set_scores_as_by_itself(sets, architecture, content):
    model, tokenizer = tiny.model(architecture), tiny.tokenizer()
    objective = make_objective(None, model, tokenizer)
    how = Conditions("base", tokenizer, objective, batch_size=4)
    predictor, tasks = Checkpoint(model, objective), sets(content=content)
    cells = together(tasks, predictor, how)
    assert list(cells) == list(SIZES)
    for task in tasks:
        alone = task.measure(predictor, how)
        assert cells[task.name].same_examples(alone)
        assert cells[task.name].outcomes.keys() == alone.outcomes.keys()
        for name, values in alone.outcomes.items():
            np.testing.assert_allclose(cells[task.name][name], values, rtol=1e-5)


def test_batches_are_full_and_do_not_depend_on_what_is_there_already(sets):
    model, tokenizer = tiny.model("gpt2"), tiny.tokenizer()
    objective = make_objective(None, model, tokenizer)
    how = Conditions("base", tokenizer, objective, batch_size=4)
    predictor = Counting(model, objective)
    ROWS.clear()
    whole = together(sets(), predictor, how)
    assert ROWS == [4, 4, 3]
    ROWS.clear()
    rest = together(sets(), predictor, how, wanted={"a", "d"})
    assert list(rest) == ["a", "d"]
    assert ROWS == [4, 3]
    assert all(np.array_equal(rest[name]["nats"], whole[name]["nats"]) for name in rest)
    assert together(sets(), predictor, how, wanted=()) == {}
    assert model.training is False
    assert torch.is_grad_enabled()


def test_broken_weights_are_told(sets):
    model, tokenizer = tiny.model("gpt2"), tiny.tokenizer()
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(float("nan"))
    objective = make_objective(None, model, tokenizer)
    with pytest.raises(TrainingDiverged):
        together(sets(), Checkpoint(model, objective), Conditions("base", tokenizer, objective, batch_size=4))
