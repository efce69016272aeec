"""Programs that a model writes and that are run, and texts after several contexts: by definition and on files."""

from __future__ import annotations

import copy
import gzip
import json
import os
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from everlearn.data.tokenize import Encoder
from everlearn.errors import DataError, ModelError, RecipeError
from everlearn.evaluation import METRICS, Cell, make_task
from everlearn.evaluation.metrics import metrics_of
from everlearn.evaluation.task import Conditions, task_config
from everlearn.model.objectives import make_objective
from everlearn.predictors import Checkpoint, Predictor
from everlearn_bench.code_tasks.sandbox import Verdict, check_available
from everlearn_bench.code_tasks.sandbox.calls import SandboxError
from everlearn_bench.code_tasks.task import pass_at
from everlearn_bench.suites.code import VARIABLE

BESIDE = Path(__file__).parents[2].parent / "shared" / "data"
HUMANEVAL = Path(os.environ.get(VARIABLE, BESIDE)) / "eval" / "humaneval.jsonl.gz"
ADD = {
    "prompt": 'def add(a, b):\n    """The sum."""\n',
    "entry_point": "add",
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(0, 0) == 0\n",
}
TWICE = {
    "prompt": "from typing import List\n\n\ndef twice(xs: List[int]) -> List[int]:\n",
    "entry_point": "twice",
    "canonical_solution": "    return [2 * x for x in xs]\n",
    "test": "def check(candidate):\n    assert candidate([1]) == [2]\n",
}


@pytest.fixture
def sandbox() -> None:
    try:
        check_available()
    except SandboxError as error:
        pytest.skip(str(error))


def written(folder: Path, rows: list[dict[str, Any]], name: str = "test.jsonl") -> str:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def asked(test: str, **options: Any) -> Any:
    return make_task(task_config({"name": "asked", "test": test, **options}, "end_tasks.0"))


def programs(folder: Path, rows: list[dict[str, Any]] | None = None, **options: Any) -> Any:
    options = {"kind": "code", "run_code": True, "max_new_tokens": 24, **options}
    return asked(written(folder, rows or [ADD, TWICE]), **options)


def lively(architecture: str = "llama") -> Any:
    model = tiny.model(architecture)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return model


TOKENIZER = copy.deepcopy(tiny.tokenizer())
TOKENIZER.model_max_length = 128


def how(model: Any, objective: str | None = None, batch_size: int = 5, **options: Any) -> Conditions:
    made = make_objective(objective, model, TOKENIZER)
    return Conditions(row="base", tokenizer=TOKENIZER, objective=made, batch_size=batch_size, **options)


class Scripted(Predictor):
    """Writes what it is told, problem by problem; scores as the model does."""

    def __init__(self, model: Any, rests: dict[str, list[str]]) -> None:
        self.model, self.rests = model, rests

    def write(self, inputs: Any, ending: Any) -> list[list[int]]:
        encode, found = Encoder(TOKENIZER, "decoder"), []
        for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
            prompt = TOKENIZER.decode(ids[mask.bool()], skip_special_tokens=True)
            found.append(encode([self.rests[prompt].pop(0)])[0])
        return found

    def label_losses(self, batch: Any) -> torch.Tensor:
        return make_objective(None, self.model, TOKENIZER).forward(self.model, batch).losses


# -- pass@k -------------------------------------------------------------------------------------------------------


def test_pass_at_k_is_the_share_of_draws_with_a_right_one() -> None:
    for programs_, right, k in ((5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 6), (7, 1, 7)):
        draws = list(combinations([True] * right + [False] * (programs_ - right), k))
        assert pass_at(k, programs_, right) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_what_was_written_is_run_on_the_tests(tmp_path: Path, sandbox: None) -> None:
    task = programs(tmp_path)
    script = {
        ADD["prompt"]: ["    return a + b\n\n\ndef other():\n    return (\n"],
        TWICE["prompt"]: ["    return xs\n"],
    }
    told: list[int] = []
    cell = task.measure(Scripted(tiny.model("llama"), script), how(tiny.model("llama"), progress=told.append))
    assert cell.texts == ("    return a + b\n\n", "    return xs\n")  # cut before the next function
    assert cell["verdicts"].tolist() == [[Verdict.PASSED, Verdict.WRONG]]
    assert cell["pass_at_1"].tolist() == [1, 0]
    assert METRICS["pass_at_1"].score(cell) == 0.5
    assert cell.facts["entry_points"] == ["add", "twice"]
    assert cell.facts["verdicts"][Verdict.WRONG] == "wrong"
    assert [metric.name for metric in metrics_of([cell])] == ["pass_at_1", "solution_bits_per_byte"]
    assert told == list(range(1, task.work(1).units + 1))
    cell.save(tmp_path / "cell.safetensors")
    again = Cell.load(tmp_path / "cell.safetensors")
    assert again.same_examples(cell)
    assert again.texts == cell.texts


def test_several_samples_give_pass_at_10(tmp_path: Path, sandbox: None) -> None:
    task = programs(tmp_path, [ADD], samples=10, temperature=0.5, solution_column=None)
    rests = ["    return a + b\n"] * 3 + ["    return 0\n"] * 7
    cell = task.measure(Scripted(tiny.model("llama"), {ADD["prompt"]: rests}), how(tiny.model("llama")))
    assert cell["verdicts"].shape == (10, 1)
    assert METRICS["pass_at_1"].score(cell) == pytest.approx(0.3)
    assert METRICS["pass_at_10"].score(cell) == 1
    assert "pass_at_100" not in cell


def test_reference_solutions_pass_and_broken_ones_do_not(tmp_path: Path, sandbox: None) -> None:
    task = programs(tmp_path)
    broken = ["    return None\n", "    return (\n"]
    found = task.verdicts([[problem.solution for problem in task.problems], broken])
    assert found["verdicts"].tolist() == [[0, 0], [Verdict.WRONG, Verdict.NO_PROGRAM]]
    assert found["pass_at_1"].tolist() == [0.5, 0.5]


@pytest.mark.skipif(not HUMANEVAL.is_file(), reason=f"no HumanEval: set {VARIABLE}")
def test_all_164_reference_solutions_of_humaneval_pass_and_none_that_returns_nothing(sandbox: None) -> None:
    task = asked(str(HUMANEVAL), kind="code", run_code=True, seconds=20)
    solutions = [problem.solution for problem in task.problems]
    assert len(solutions) == 164
    found = task.verdicts([solutions, ["    return None\n"] * 164])["verdicts"]
    assert (found[0] == Verdict.PASSED).all(), np.flatnonzero(found[0])
    assert not (found[1] == Verdict.PASSED).any()


# -- what is written ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_programs_do_not_depend_on_batches_and_end_at_stop_texts(architecture: str, tmp_path: Path) -> None:
    model = lively(architecture)
    rows = [{**ADD, "prompt": text} for text in tiny.texts(7, 3, words=12)]
    task = programs(tmp_path, rows, stop=[], max_new_tokens=20)
    task.verdicts = lambda rests, told=None: {"pass_at_1": np.zeros(len(rows))}  # nothing is run
    free = [
        task.measure(Checkpoint(model, how(model).objective), how(model, batch_size=size)).texts for size in (1, 3, 7)
    ]
    assert free[0] == free[1] == free[2]
    stop = free[0][2][4:7]
    assert stop
    ended = programs(tmp_path, rows, stop=[stop], max_new_tokens=20)
    ended.verdicts = task.verdicts
    assert ended.measure(Checkpoint(model, how(model).objective), how(model)).texts == tuple(
        text.partition(stop)[0] for text in free[0]
    )


def test_drawn_programs_are_seeded_by_problem_and_sample_and_follow_the_probabilities(tmp_path: Path) -> None:
    model = lively()
    rows = [{**ADD, "prompt": text} for text in tiny.texts(3, 3, words=12)]
    found: list[Any] = []
    for size, temperature in ((1, 0.7), (6, 0.7), (6, 0.2)):
        task = programs(tmp_path, rows, stop=[], samples=2, temperature=temperature, max_new_tokens=8)
        task.verdicts = lambda rests, told=None: found.append(rests) or {"pass_at_1": np.zeros(3)}
        task.measure(Checkpoint(model, how(model).objective), how(model, batch_size=size))
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]
    assert found[0] != found[2]
    from everlearn.predictors.decoding import Ending

    likely = torch.log(torch.tensor([[0.1, 0.6, 0.3]], dtype=torch.float64))
    draws = (torch.arange(1000, dtype=torch.float64) / 1000)[None]
    ending = Ending(1000, temperature=1.0, draws=draws)
    counts = np.bincount([int(ending.choose(likely, [torch.zeros(1)] * step)) for step in range(1000)])
    assert counts.tolist() == pytest.approx([100, 600, 300], abs=1)
    sharp = Ending(1000, temperature=0.5, draws=draws)
    counts = np.bincount([int(sharp.choose(likely, [torch.zeros(1)] * step)) for step in range(1000)])
    assert counts.tolist() == pytest.approx([1000 * p / 0.46 for p in (0.01, 0.36, 0.09)], abs=1)


def test_a_solution_that_the_model_cannot_read_does_not_count(tmp_path: Path) -> None:
    model = lively()
    long = {**TWICE, "canonical_solution": "    return 2 * n\n" * 200}

    def measured(*rows: dict[str, Any]) -> Cell:
        task = programs(tmp_path, list(rows), run_code=False)
        return task.measure(Checkpoint(model, make_objective(None, model, TOKENIZER)), how(model))

    one, two = measured(ADD), measured(ADD, long)
    assert two["solution_nats"].tolist() == [pytest.approx(one["solution_nats"][0]), 0.0]
    assert two["solution_bytes"].tolist() == [one["solution_bytes"][0], 0]
    with pytest.raises(ModelError, match="Shorten the options of question 1"):
        measured(long)


def test_solutions_are_scored_as_one_text_with_their_prompts(tmp_path: Path) -> None:
    model = lively()
    task = programs(tmp_path, run_code=False)
    cell = task.measure(Checkpoint(model, make_objective(None, model, TOKENIZER)), how(model))
    assert cell.texts == ()
    assert [metric.name for metric in metrics_of([cell])] == ["solution_bits_per_byte"]
    assert task.notes() == ["The programs of 'asked' were not run (`run_code: false`): there is no pass@1."]
    nats, size = 0.0, 0
    encode = Encoder(TOKENIZER, "decoder")
    for row, own in zip((ADD, TWICE), cell["solution_nats"], strict=True):
        head = row["prompt"].rstrip()
        before, whole = encode([head, row["prompt"] + row["canonical_solution"]])
        assert whole[: len(before)] == before
        ids = torch.tensor([[*encode.prefix, *whole]])
        with torch.no_grad():
            likely = torch.log_softmax(model(ids).logits[0].double(), -1)
        start = len(encode.prefix) + len(before)
        slow = -sum(float(likely[at - 1, ids[0, at]]) for at in range(start, ids.shape[1]))
        assert own == pytest.approx(slow, rel=1e-5)
        nats, size = nats + slow, size + len((row["prompt"] + row["canonical_solution"])[len(head) :].encode())
    assert METRICS["solution_bits_per_byte"].score(cell) == pytest.approx(nats / np.log(2) / size, rel=1e-5)


# -- schemas ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["causal", "text-to-text"])
def test_a_schema_is_the_context_after_which_the_text_is_likeliest(objective: str, tmp_path: Path) -> None:
    """Partial scoring by hand: log p(text | context) for each context, one by one, in float64."""
    model, words = lively(), tiny.texts(8, 9, words=9)
    rows = [
        {"context_options": [f"{text} {a}", f"{text} {b} it"], "continuation": tail, "gold": i % 2}
        for i, (text, a, b, tail) in enumerate(zip(words, tiny.WORDS, tiny.WORDS[9:], words[::-1], strict=False))
    ]
    task = asked(written(tmp_path, rows), kind="schema")
    assert task.check() == "8 questions of 2 contexts"
    cells = [
        task.measure(Checkpoint(model, how(model, objective).objective), how(model, objective, size)) for size in (2, 5)
    ]
    encode, right = Encoder(TOKENIZER, "decoder"), []
    for i, row in enumerate(rows):
        scores = []
        for context in row["context_options"]:
            if objective == "causal":
                before, whole = encode([context, f"{context} {row['continuation']}"])
                own = whole[len(before) :]
            else:
                before, own = encode([context, row["continuation"]])
                own = [*own, encode.end]
            ids = torch.tensor([[*encode.prefix, *before, *own]])
            with torch.no_grad():
                likely = torch.log_softmax(model(ids).logits[0].double(), -1)
            start = ids.shape[1] - len(own)
            scores.append(sum(float(likely[at - 1, ids[0, at]]) for at in range(start, ids.shape[1])))
        assert [-cells[0]["option_nats"][k, i] for k in (0, 1)] == pytest.approx(scores, rel=1e-5)
        right.append(int(np.argmax(scores)) == row["gold"])
    for cell in cells:
        assert np.allclose(cell["option_nats"], cells[0]["option_nats"], rtol=1e-5)
        # The text is the same after each context, so its length changes no answer.
        assert {METRICS[f"choice_accuracy{per}"].score(cell) for per in ("", "_per_byte")} == {np.mean(right)}
    assert cells[0].kind == "schema"


def test_choices_are_lm_evals_acc_and_acc_bytes(tmp_path: Path) -> None:
    """The formulas of lm_eval 0.4 for multiple choice: argmax of Σ log p, and of Σ log p for each UTF-8 byte."""
    model, words = lively("gpt2"), tiny.texts(10, 4, words=8)
    rows = [
        {"query": text, "choices": [tiny.WORDS[i], f"{words[i - 1]} é", words[i - 2]], "gold": i % 3}
        for i, text in enumerate(words)
    ]
    task = asked(written(tmp_path, rows), kind="choice", prompt="{query}\nAnswer:")
    cell = task.measure(Checkpoint(model, how(model).objective), how(model))
    encode, acc, by_bytes = Encoder(TOKENIZER, "decoder"), [], []
    for row in rows:
        context, sums = f"{row['query']}\nAnswer:", []
        for choice in row["choices"]:
            whole = encode([f"{context} {choice}"])[0]
            target = whole[len(encode([context])[0]) :]
            ids = torch.tensor([[*encode.prefix, *whole]])
            with torch.no_grad():
                likely = torch.log_softmax(model(ids).logits[0].double(), -1)
            places = range(ids.shape[1] - len(target), ids.shape[1])
            sums.append(sum(float(likely[at - 1, ids[0, at]]) for at in places))
        sizes = [len(choice.encode()) for choice in row["choices"]]
        acc.append(int(np.argmax(sums)) == row["gold"])
        by_bytes.append(int(np.argmax(np.array(sums) / sizes)) == row["gold"])
    assert METRICS["choice_accuracy"].score(cell) == np.mean(acc)
    assert METRICS["choice_accuracy_per_byte"].score(cell) == np.mean(by_bytes)


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"kind": "code"},
            r"`end_tasks.0` .*: end task 'asked' runs programs .* `run_code: true`, or measure .* `run_code: ",
        ),
        ({"kind": "code", "run_code": False, "solution_column": None}, r"measures nothing with `run_code: false`"),
        ({"kind": "code", "run_code": True, "samples": 2}, r"`samples: 2` would all be the same with `temperature: 0`"),
        ({"kind": "code", "run_code": True, "stop": [""]}, r"an empty text ends every program"),
        ({"kind": "code", "run_code": True, "megabytes": 1}, r"`end_tasks.0.megabytes` .* must be 128 or more"),
        ({"kind": "code", "run_cod": True}, r"Unknown key `end_tasks.0.run_cod` .*Did you mean 'run_code'"),
        ({"kind": "schema", "contexts": "a"}, r"Unknown key `end_tasks.0.contexts`"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=sentence):
        asked(written(tmp_path, [ADD]), **options)


@pytest.mark.parametrize(
    ("kind", "row", "sentence"),
    [
        ("code", {**ADD, "entry_point": "a b"}, r"column 'entry_point' must name a function \(got 'a b'\)"),
        ("code", {**ADD, "test": " "}, r"column 'test' must hold text"),
        ("code", {**ADD, "canonical_solution": 3}, r"column 'canonical_solution' must hold text \(got 3\)"),
        ("code", {"prompt": "a"}, r"'test'"),
        ("schema", {"context_options": ["a"], "continuation": "b", "gold": 0}, r"must hold a list of options"),
        ("schema", {"context_options": ["a", ""], "continuation": "b", "gold": 0}, r"has an empty option"),
        ("schema", {"context_options": ["a", "c"], "continuation": "b", "gold": 2}, r"number from 0 to 1 \(got 2\)"),
    ],
)
def test_examples_that_are_refused(kind: str, row: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    own = {"run_code": False} if kind == "code" else {}
    with pytest.raises(DataError, match=sentence):
        asked(written(tmp_path, [row]), kind=kind, **own).check()


def test_programs_are_not_run_where_the_sandbox_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from everlearn_bench.code_tasks.sandbox import running

    monkeypatch.setattr(running.sys, "platform", "win32")
    check_available.cache_clear()
    with pytest.raises(SandboxError, match="on Linux only"):
        programs(tmp_path).check()
    assert programs(tmp_path, run_code=False).check() == "2 programming problems"
    check_available.cache_clear()


def test_models_that_cannot_write_and_prompts_without_room(tmp_path: Path) -> None:
    for task in (programs(tmp_path), asked(written(tmp_path, [ADD], "s.jsonl"), kind="schema")):
        with pytest.raises(ModelError, match="needs a model that reads from left to right"):
            task.check_model("encoder")
    model = tiny.model("llama")
    with pytest.raises(
        ModelError, match=r"leaves 0 tokens for a prompt before the 500 .* Lower its `max_new_tokens` \(now 500"
    ):
        programs(tmp_path, max_new_tokens=500).measure(Checkpoint(model), how(model))


def test_every_option_that_scores_depend_on_is_in_the_fingerprint(tmp_path: Path) -> None:
    marks = {
        programs(tmp_path, **options).fingerprint()
        for options in ({}, {"run_code": False}, {"seconds": 9}, {"stop": ["x"]}, {"samples": 2, "temperature": 1})
    }
    assert len(marks) == 5
    assert programs(tmp_path, [ADD]).fingerprint() not in marks


def test_compressed_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "h.jsonl.gz").write_bytes(gzip.compress((json.dumps(ADD) + "\n").encode()))
    task = asked(str(tmp_path / "h.jsonl.gz"), kind="code", run_code=False)
    assert task.problems[0].program("    pass\n").endswith("check(add)\n")
