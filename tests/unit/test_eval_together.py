"""Held-out text measured in several ways: batches scored together, windows, perplexity, codelength, content tokens."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import tiny
from everlearn.data.blocks import PackedBlocks
from everlearn.data.corpus import Document
from everlearn.data.windows import Windows
from everlearn.errors import DataError, TrainingDiverged
from everlearn.evaluation import METRICS, Cell, Conditions, text_cell
from everlearn.evaluation.metrics import metrics_of
from everlearn.evaluation.task import task_config
from everlearn.model.objectives import make_objective
from everlearn.model.training_mode import evaluating
from everlearn.predictors import Checkpoint, block_losses
from everlearn.tasks.batched_scoring import measure_together
from everlearn.tasks.codelength import Codelength, cuts
from everlearn.tasks.held_out import HeldOut, HeldOutText, without_content
from everlearn.tasks.labelled import CodelengthTask

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


SIZE, END = 24, 2


@pytest.fixture(scope="module")
def model():
    return tiny.model("gpt2").double()


@pytest.fixture(scope="module")
def cut_blocks() -> PackedBlocks:
    """Documents of 8 to 40 tokens in rows of 24: most go on in the next row; one ends exactly where a row does."""
    found = list(tiny.pack(map(Document, tiny.texts(9, words=25)), SIZE, kind="decoder"))[:6]
    found[2]["input_ids"][-1] = END
    return PackedBlocks.from_blocks(found, 0)


def documents(cut_blocks: PackedBlocks) -> tuple[np.ndarray, np.ndarray]:
    """The whole text, and the number of each token's document."""
    ids = np.concatenate([block["input_ids"] for block in cut_blocks.take(range(len(cut_blocks)))])
    numbers = np.cumsum(np.concatenate([[0], ids[:-1] == END]))
    return ids, numbers


def one_at_a_time(model, context: np.ndarray, target: int) -> float:
    """−log p(target | context) from a pass of its own."""
    with torch.no_grad():
        logits = model(torch.from_numpy(context[None].astype(np.int64))).logits[0, -1]
    return float(torch.logsumexp(logits, 0) - logits[target])


@pytest.mark.parametrize("stride", [1, 5, 16, 24])
@pytest.mark.parametrize("isolate", [True, False])
def test_windows_equal_a_reference_of_one_token_at_a_time(model, cut_blocks, stride, isolate):
    ids, numbers = documents(cut_blocks)
    nats, count, done = 0.0, 0, 0
    for start in range(0, len(ids) - SIZE + 1, stride):
        for at in range(max(done, start + 1), start + SIZE):
            begin = start if not isolate else max(start, int(np.flatnonzero(numbers == numbers[at])[0]))
            if begin < at:
                nats += one_at_a_time(model, ids[begin:at], ids[at])
                count += 1
        done = start + SIZE
    objective = make_objective(None, model, tiny.tokenizer(), isolate=isolate)
    found = block_losses(model, Windows(cut_blocks, stride, END), objective, batch_size=4)
    assert int(found.items.sum()) == count
    assert found.nats.sum() == pytest.approx(nats, rel=1e-6)  # probabilities are of float32
    cell = text_cell(found.nats, found.items, 4.0)
    assert METRICS["perplexity"].score(cell) == pytest.approx(np.exp(nats / count), rel=1e-6)


def test_without_overlap_windows_are_the_blocks(model, cut_blocks):
    objective = make_objective(None, model, tiny.tokenizer())
    plain = block_losses(model, cut_blocks, objective, batch_size=4)
    windows = block_losses(model, Windows(cut_blocks, SIZE, END), objective, batch_size=4)
    assert np.array_equal(plain.nats, windows.nats)
    assert np.array_equal(plain.items, windows.items)


def test_every_token_is_scored_once_and_the_first_of_a_document_never(cut_blocks):
    ids, numbers = documents(cut_blocks)
    windows, times = Windows(cut_blocks, 7, END), np.zeros(len(ids), int)
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


class Blocks:
    """Fixed random_blocks, taken by number."""

    def __init__(self, ids):
        self.ids = ids

    def __len__(self):
        return len(self.ids)

    def take(self, indices):
        return [{"input_ids": self.ids[i]} for i in indices]


class NextToken:
    """A causal stand-in; row r has labels at its first 3 + r % 4 positions only. Remembers the rows it was given."""

    def __init__(self):
        self.rows = []

    def collate(self, random_blocks, rows):
        self.rows.append(list(rows))
        ids = torch.from_numpy(np.stack([block["input_ids"] for block in random_blocks])).long()
        labels = torch.full_like(ids, -100)
        for i, row in enumerate(rows):
            labels[i, : 3 + row % 4] = ids[i, 1 : 4 + row % 4]
        return {"input_ids": ids, "labels": labels}

    def items(self, batch):
        return (batch["labels"] != -100).sum(1)

    def per_sample_loss(self, model, batch):
        logits = model(batch["input_ids"]).logits.float()
        losses = F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
        return losses.sum(1) / self.items(batch)


@pytest.fixture
def random_blocks():
    return Blocks(np.random.default_rng(0).integers(5, 300, (10, 12)).astype(np.int32))


def test_sums_are_right(make_model, random_blocks):
    model, objective = make_model("gpt2"), NextToken()
    found = block_losses(model, random_blocks, objective, batch_size=4)
    assert objective.rows == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert found.items.tolist() == [3 + row % 4 for row in range(10)]
    logits = model(torch.from_numpy(random_blocks.ids).long()).logits.double().log_softmax(-1)
    for row in range(10):
        count = 3 + row % 4
        expected = -sum(logits[row, t, random_blocks.ids[row, t + 1]].item() for t in range(count))
        assert found.nats[row] == pytest.approx(expected, rel=1e-5)


def test_batch_size_and_number_of_blocks_change_nothing_else(make_model, random_blocks):
    model = make_model("gpt2")
    seen = []
    all_of_them = block_losses(model, random_blocks, NextToken(), batch_size=10)
    few = block_losses(model, random_blocks, NextToken(), batch_size=3, max_blocks=5, progress=seen.append)
    assert seen == [3, 5]
    np.testing.assert_allclose(few.nats, all_of_them.nats[:5], rtol=1e-5)
    assert len(block_losses(model, random_blocks, NextToken(), batch_size=3, max_blocks=99).nats) == 10


def test_dropout_is_off_and_every_module_keeps_its_mode(make_model, random_blocks):
    model = make_model("gpt2", dropout=0.5).train()
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    a, b = (block_losses(model, random_blocks, NextToken(), batch_size=5).nats for _ in range(2))
    np.testing.assert_array_equal(a, b)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_mode_comes_back_after_an_error(make_model):
    model = make_model("gpt2").train()

    def fail():
        with evaluating(model):
            assert not model.training
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert model.training


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "t5"])
def test_with_the_real_objectives(architecture, make_model, tokenizer):
    rng = np.random.default_rng(0)
    rows = rng.integers(5, 300, (6, 16)).astype(np.int32)
    extra = {"labels": rows[:, :5]} if architecture == "t5" else {"segments": np.zeros((6, 16), np.int32)}
    held_out = PackedBlocks({"input_ids": rows, **extra}, seed=0)
    model = make_model(architecture)
    objective = make_objective(None, model, tokenizer)
    found = block_losses(model, held_out, objective, batch_size=4)
    assert found.items.tolist() == [{"roberta": 2, "gpt2": 15, "t5": 5}[architecture]] * 6
    np.testing.assert_allclose(found.nats / found.items, np.log(384), rtol=0.3)
    again = block_losses(model, held_out, objective, batch_size=5)
    np.testing.assert_allclose(again.nats, found.nats, rtol=1e-5)


def test_the_model_can_be_trained_afterwards(make_model, random_blocks):
    model = make_model("llama").train()
    block_losses(model, random_blocks, NextToken(), batch_size=5)
    model(torch.from_numpy(random_blocks.ids).long()).logits.sum().backward()


def test_bf16_is_close(make_model, random_blocks):
    model = make_model("gpt2")
    full, half = (block_losses(model, random_blocks, NextToken(), batch_size=5, bf16=on).nats for on in (False, True))
    assert not np.array_equal(full, half)
    np.testing.assert_allclose(half, full, rtol=0.02)


def test_broken_weights_are_said(make_model, random_blocks):
    model = make_model("gpt2")
    with torch.no_grad():
        model.transformer.ln_f.weight.fill_(float("nan"))
    with pytest.raises(TrainingDiverged, match="held-out block 0"):
        block_losses(model, random_blocks, NextToken(), batch_size=5)


HOW = Conditions("base", tiny.tokenizer(), None, batch_size=4, seeds=(3, 4, 5))


def by_part(cell: Cell) -> list[float]:
    """Return the mean bits per label of each part: log₂ |Y| first, last of a model tuned on half of the examples."""
    return [float(cell["code_bits"][cell["part"] == part].mean()) for part in range(len(cell.facts["cuts"]))]


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


TEXTS = ["the model learns — the the the graph, graph... \n\n 42\n"] * 30


@pytest.fixture(scope="module")
def text_blocks() -> PackedBlocks:
    return PackedBlocks.from_blocks(list(tiny.pack(map(Document, TEXTS), 32, kind="decoder")), 0, "a")


def test_frequent_types_formatting_and_special_tokens_are_no_content(text_blocks):
    tokenizer = tiny.tokenizer()
    types = np.unique(text_blocks.arrays["input_ids"])
    texts = {int(token): tokenizer.decode([int(token)]) for token in types}
    none = {token for token in texts if without_content(text_blocks, tokenizer, 0)[token]}
    assert {text.strip() for token, text in texts.items() if token in none} >= {"", ",", ".", "</s>"}
    assert not any(any(map(str.isalnum, texts[token])) for token in none - set(tokenizer.all_special_ids))
    one = {token for token in texts if without_content(text_blocks, tokenizer, 1)[token]}
    assert {texts[token].strip() for token in one - none} == {"the"}
    assert without_content(text_blocks, tokenizer, 10_000)[types.tolist()].all()


@pytest.mark.parametrize("architecture", ["gpt2", "roberta"])
def test_the_loss_over_content_by_hand(text_blocks, tmp_path, architecture):
    model, tokenizer = tiny.model(architecture), tiny.tokenizer()
    objective = make_objective(None, model, tokenizer)
    HeldOut(text_blocks, 4.0).save(tmp_path / "a.safetensors")
    how = Conditions("base", tokenizer, objective, batch_size=3)
    task = HeldOutText(tmp_path / "a.safetensors", "a", content=1)
    found = task.measure(Checkpoint(model, objective), how)
    batch = objective.collate(text_blocks.take(range(len(text_blocks))), range(len(text_blocks)))
    losses, labels = objective.forward(model, batch).losses.detach().double(), batch["labels"]
    kept = (labels >= 0) & ~without_content(text_blocks, tokenizer, 1)[labels.clamp(min=0)]
    assert 0 < kept.sum() < (labels >= 0).sum()
    assert METRICS["content_loss"].score(found) == pytest.approx(float(losses[kept].mean()), rel=1e-6)
    plain = HeldOutText(tmp_path / "a.safetensors", "a")
    assert METRICS["loss"].score(found) == pytest.approx(
        METRICS["loss"].score(plain.measure(Checkpoint(model, objective), how)), rel=1e-6
    )
    found.save(tmp_path / "cell.safetensors")
    kept_cell = Cell.load(tmp_path / "cell.safetensors")
    assert [metric.name for metric in metrics_of([kept_cell])] == [
        "bits_per_byte", "loss", "perplexity", "content_loss",
    ]  # fmt: skip
    assert task.fingerprint() != plain.fingerprint()


def test_a_set_without_content_has_no_such_score(text_blocks, tmp_path):
    model, tokenizer = tiny.model("gpt2"), tiny.tokenizer()
    objective = make_objective(None, model, tokenizer)
    HeldOut(text_blocks, 4.0).save(tmp_path / "a.safetensors")
    task = HeldOutText(tmp_path / "a.safetensors", "a", content=10_000)
    found = task.measure(Checkpoint(model, objective), Conditions("base", tokenizer, objective, batch_size=3))
    assert np.isnan(METRICS["content_loss"].score(found))
