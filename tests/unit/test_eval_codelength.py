"""Online codelength, by hand and on a task that is learnt."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import tiny
from everlearn.errors import DataError
from everlearn.evaluation import METRICS
from everlearn.evaluation.task import Conditions, task_config
from everlearn.predictors import Checkpoint
from everlearn.tasks.codelength import Codelength, by_part, cuts
from everlearn.tasks.labelled import CodelengthTask

HOW = Conditions("base", tiny.tokenizer(), None, batch_size=4, seeds=(3, 4, 5))


def config(folder, labels, **options):
    rows = [{"text": text, "label": label} for text, label in labels]
    path = folder / "labelled.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return CodelengthTask(name="t", train=str(path), **options)


def test_cuts_are_those_of_the_paper():
    assert cuts(1000) == [1, 2, 4, 8, 16, 32, 62, 125, 250, 500, 1000]
    assert cuts(20) == [1, 2, 5, 10, 20], "those that fall together are one"
    assert cuts(2) == [1, 2]


def test_bits_are_those_of_a_learner_that_can_be_followed_by_hand(tmp_path, monkeypatch):
    """It counts: p(y) = (times seen + 1) / (seen + 3), Laplace's rule; every prefix gets the same budget."""
    rng = np.random.default_rng(0)
    labels = rng.choice(["x", "y", "z"], 40, p=[0.8, 0.1, 0.1]).tolist()
    task = Codelength(config(tmp_path, [(f"text {i}", label) for i, label in enumerate(labels)], steps=7))
    asked = []

    def counting(predictor, tokenizer, task, train, test, steps, *, seed, **_):
        asked.append((seed, steps, train.texts, test.texts))
        counts = np.bincount(train.labels, minlength=3) + 1
        return np.tile(counts / counts.sum(), (len(test), 1))

    monkeypatch.setattr("everlearn.tasks.codelength.probabilities_after", counting)
    cell = task.measure(Checkpoint(None), HOW)
    total = 0.0
    for number, seed in enumerate(HOW.seeds):
        mine = [each for each in asked if each[0] == seed]
        assert [len(each[2]) for each in mine] == [1, 2, 5, 10, 20]
        assert all(steps == 7 for _, steps, _, _ in mine)
        first = mine[-1][2]
        assert all(first[: len(train)] == train for _, _, train, _ in mine), "one order, longer and longer"
        assert not any(set(train) & set(new) for _, _, train, new in mine), "predicted before it is learnt"
        bits = math.log2(3)  # of the first example
        for _, _, train, new in mine:
            seen = [labels[int(text.split()[1])] for text in train]
            for text in new:
                label = labels[int(text.split()[1])]
                bits -= math.log2((seen.count(label) + 1) / (len(seen) + 3))
        assert cell["code_bits"][number].sum() == pytest.approx(bits, rel=1e-12)
        total += bits
    assert len({tuple(each[2]) for each in asked if len(each[2]) == 20}) == 3, "another order for each seed"
    assert METRICS["codelength"].score(cell) == pytest.approx(total / (3 * 40))
    assert not METRICS["codelength"].higher_is_better
    assert by_part(cell)[0] == pytest.approx(math.log2(3))
    assert len(by_part(cell)) == len(cell.facts["cuts"]) == 6
    assert not METRICS["accuracy"].applies(cell)


def test_a_certain_mistake_costs_many_bits_and_no_infinity(tmp_path, monkeypatch):
    task = Codelength(config(tmp_path, [("a", "x"), ("b", "y")]))
    monkeypatch.setattr("everlearn.tasks.codelength.probabilities_after", lambda *a, **_: np.eye(2)[a[3].labels[:1]])
    bits = task.measure(Checkpoint(None), HOW)["code_bits"]
    assert np.allclose(np.sort(bits), [1, 1022])


def test_a_task_that_can_be_learnt_is_shorter_than_the_uniform_code(tmp_path):
    examples = [(" ".join([word] * 6), label) for word, label in [("axes", "x"), ("matrix", "y")] * 32]
    task = Codelength(config(tmp_path, examples, steps=32, learning_rate=0.003, batch_size=8))
    steps: list[int] = []
    how = Conditions("base", tiny.tokenizer(), None, batch_size=4, seeds=(1,), progress=steps.append)
    cell = task.measure(Checkpoint(tiny.model("roberta")), how)
    again = task.measure(Checkpoint(tiny.model("roberta")), how)
    assert np.array_equal(cell["code_bits"], again["code_bits"])
    assert METRICS["codelength"].score(cell) < 0.5 < 1 == cell.facts["uniform"]
    assert by_part(cell)[-1] < 0.5
    half = len(steps) // 2
    assert steps[:half] == steps[half:] == list(range(1, task.work(1).units + 1))


def test_its_options_are_its_own(tmp_path):
    one = config(tmp_path, [("a", "x"), ("b", "x")])
    with pytest.raises(DataError, match="two are needed"):
        Codelength(one).check()
    made = task_config({"kind": "codelength", "name": "t", "train": "a.jsonl"}, "end_tasks.0")
    assert (made.steps, made.files) == (100, made.files)
    with pytest.raises(Exception, match=r"Unknown key `end_tasks.0.epochs`"):
        task_config({"kind": "codelength", "name": "t", "train": "a.jsonl", "epochs": 3}, "end_tasks.0")
