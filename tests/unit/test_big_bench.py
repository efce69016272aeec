"""BIG-bench tasks and the match of texts that they score by, against hand-made numbers."""

from __future__ import annotations

import functools
import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from everlearn.errors import DataError, ModelError, RecipeError
from everlearn.evaluation import METRICS, Cell, make_task
from everlearn.evaluation.metrics import metrics_of
from everlearn.evaluation.resampling import resample
from everlearn.evaluation.task import Conditions, task_config
from everlearn.model.objectives import make_objective
from everlearn.predictors import Checkpoint
from everlearn.tasks.big_bench_reader import BigBenchTask, read_big_bench
from everlearn.tasks.text_match import exact_match, longest_common_subsequence, rouge_l, squad_normalised, token_f1

EXAMPLES = [
    {"input": "What is 2 plus 3?", "target_scores": {"5": 1, "6": 0, "23": 0}},
    {"input": "What is 1 plus 1?", "target_scores": {"3": 0, "2": 1}},
    {"input": "What is 4 plus 4?", "target_scores": {"7": 0, "8": 1, "9": 0, "44": 0}},
]
TASK = {"name": "sums", "metrics": ["multiple_choice_grade"], "preferred_score": "multiple_choice_grade"}


def kept(folder: Path, raw: dict[str, Any], name: str = "task.json") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(raw), encoding="utf-8")
    return str(folder)


def asked(test: str, **options: Any) -> Any:
    return make_task(task_config({"kind": "big-bench", "name": "sums", "test": test, **options}, "end_tasks.0"))


def how(model: Any) -> Conditions:
    return Conditions("base", tiny.tokenizer(), make_objective(None, model, tiny.tokenizer()), batch_size=4)


def lively(architecture: str = "llama") -> Any:
    model = tiny.model(architecture)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return model


def test_an_example_is_shown_as_the_benchmark_shows_it(tmp_path: Path) -> None:
    (subtask,) = read_big_bench(BigBenchTask(name="sums", test=kept(tmp_path, {**TASK, "examples": EXAMPLES})))
    first = subtask.examples[0]
    head, *options = first.prompt.removesuffix("\nA: ").split("\n  choice: ")
    assert head == "\nQ: What is 2 plus 3?"
    assert sorted(options) == ["23", "5", "6"]  # in a random order
    assert (first.options, first.scores, first.targets) == (("5", "6", "23"), (1.0, 0.0, 0.0), ("5",))
    own = {
        "task_prefix": "Sums.\n",
        "example_input_prefix": "<",
        "example_output_prefix": "> ",
        "append_choices_to_input": False,
        "few_shot_example_separator": "|",
    }
    folder = kept(tmp_path / "own", {**TASK, **own, "examples": EXAMPLES})
    (subtask,) = read_big_bench(BigBenchTask(name="sums", test=folder, shots=2))
    shown = {"<What is 2 plus 3?> 5", "<What is 1 plus 1?> 2", "<What is 4 plus 4?> 8"}
    for example in subtask.examples:
        *before, last = example.prompt.removeprefix("Sums.\n").split("|")
        assert last.endswith("> ")
        assert {*before, last + example.targets[0]} == shown
    again = read_big_bench(BigBenchTask(name="sums", test=folder, shots=2))
    assert again[0].examples == subtask.examples


def test_the_likeliest_option_is_chosen(tmp_path: Path) -> None:
    """Against log-probabilities of whole rows, one at a time, in float64."""
    model = lively()
    task = asked(kept(tmp_path, {**TASK, "examples": EXAMPLES, "append_choices_to_input": False}))
    cell = task.measure(Checkpoint(model, how(model).objective), how(model))
    double, encode = tiny.model("llama").double(), tiny.tokenizer()
    double.load_state_dict(model.double().state_dict())
    grades = []
    for example in EXAMPLES:
        nats = []
        prompt = f"\nQ: {example['input']}\nA:"
        for option in example["target_scores"]:
            before = encode(prompt, add_special_tokens=False)["input_ids"]
            ids = encode(f"{prompt} {option}", add_special_tokens=False)["input_ids"]
            row = torch.tensor([[encode.bos_token_id, *ids]])
            likely = torch.log_softmax(double(row).logits[0], -1)
            nats.append(-sum(likely[t, row[0, t + 1]].item() for t in range(len(before), len(ids))))
        chosen = list(example["target_scores"])[int(np.argmin(nats))]
        grades.append(float(example["target_scores"][chosen]))
        number = EXAMPLES.index(example)
        assert cell["option_nats"][: len(nats), number] == pytest.approx(nats, rel=1e-4)
    assert cell["grade"].tolist() == grades
    assert [metric.name for metric in metrics_of([cell])] == ["normalised", "multiple_choice_grade"]
    low = np.mean([1 / 3, 1 / 2, 1 / 4])
    assert METRICS["normalised"].score(cell) == pytest.approx(100 * (np.mean(grades) - low) / (1 - low))
    cell.save(tmp_path / "cell.safetensors")
    assert METRICS["normalised"].score(Cell.load(tmp_path / "cell.safetensors")) == METRICS["normalised"].score(cell)


def subtask_cell(scores: list[list[float]], low: list[float], high: list[float]) -> Cell:
    numbers = np.repeat(np.arange(len(scores)), [len(own) for own in scores])
    return Cell(
        "big-bench", "t", "base", {"score": np.concatenate(scores)}, {"subtask": numbers}, {"low": low, "high": high}
    )


def test_the_normalised_score_is_the_mean_over_subtasks_and_may_be_negative() -> None:
    """100 (s − low) / (high − low) of each, by hand."""
    cell = subtask_cell([[1, 0, 0, 0], [0.0, 10.0]], [0.5, 0.0], [1.0, 10.0])
    assert METRICS["normalised"].score(cell) == pytest.approx((100 * (0.25 - 0.5) / 0.5 + 100 * 5 / 10) / 2)
    assert METRICS["normalised"].score(subtask_cell([[0, 0]], [0.25], [1.0])) == pytest.approx(-100 / 3)
    metric = METRICS["normalised"]
    samples = resample([cell], [metric], seed=0, resamples=400)["normalised"].samples
    assert np.isfinite(samples).all()
    low, high = np.percentile(samples, [2.5, 97.5])
    assert low < metric.score(cell) < high


def test_a_folder_of_subtasks_is_one_task(tmp_path: Path) -> None:
    kept(tmp_path, {"name": "arithmetic", "metrics": [], "description": "what its subtasks have in common"})
    kept(tmp_path / "one_digit", {**TASK, "examples": EXAMPLES})
    kept(tmp_path / "two_digits", {**TASK, "examples": EXAMPLES[:2], "low_score": 0.1, "high_score": 0.9})
    task = asked(str(tmp_path), max_test=2)
    assert [subtask.name for subtask in task.subtasks] == ["one_digit", "two_digits"]
    assert len(task.shown) == 4
    assert task.limits[1] == (0.1, 0.9)
    assert "4 examples in 2 subtasks; multiple_choice_grade" in task.check()
    assert asked(str(tmp_path), low=0.0, high=2.0).limits == [(0.0, 2.0)] * 2


def test_written_answers_are_cut_and_compared(tmp_path: Path) -> None:
    raw = {
        "metrics": ["exact_str_match", "bleurt", "rougeLsum"],
        "preferred_score": "bleurt",
        "examples": [{"input": "colour?", "target": ["red", "blue"]}, {"input": "sum?", "target": "12"}],
        "stop_string": "\n",
        "output_regex": r"[a-z0-9]+",
    }
    task = asked(kept(tmp_path, raw))
    assert task.measured == ["exact_str_match", "rouge_l"]
    assert task.notes() == ["End task 'sums' prefers bleurt; its normalised score is of exact_str_match."]
    (subtask,) = task.subtasks
    assert subtask.answer_in(" - red.\nblue") == "red"
    assert subtask.answer_in("!!") == ""
    plain = read_big_bench(
        BigBenchTask(name="t", test=kept(tmp_path / "b", {**raw, "stop_string": None, "output_regex": None}))
    )
    assert plain[0].answer_in(" 12; because") == "12"
    model = lively("gpt2")
    cell = task.measure(Checkpoint(model, how(model).objective), how(model))
    assert len(cell.texts) == 2
    assert [metric.name for metric in metrics_of([cell])] == ["normalised", "exact_match", "rouge_l"]
    assert METRICS["normalised"].score(cell) == 100 * METRICS["exact_match"].score(cell)


def test_masked_models_choose_and_do_not_write(tmp_path: Path) -> None:
    both = kept(tmp_path, {**TASK, "metrics": ["multiple_choice_grade", "exact_str_match"], "examples": EXAMPLES})
    with pytest.raises(ModelError, match="needs a model that reads from left to right"):
        asked(both).check_model("encoder")
    task = asked(both, metrics=["multiple_choice_grade"])
    task.check_model("encoder")
    model = lively("roberta")
    assert len(task.measure(Checkpoint(model, how(model).objective), how(model))) == 3


@pytest.mark.parametrize(
    ("raw", "options", "sentence"),
    [
        ({"metrics": ["bleu"], "examples": EXAMPLES}, {}, "name no supported metric"),
        ({**TASK, "examples": []}, {}, "`examples` must be a list that is not empty"),
        ({"examples": EXAMPLES}, {}, "name no supported metric"),
        (
            {**TASK, "examples": [{"input": "?", "target_scores": {"a": 10**400, "b": 0}}]},
            {},
            "two or more options to numbers",
        ),
        ({"metrics": []}, {}, "it is not a JSON task of BIG-bench"),
        ({**TASK, "examples": [{"input": "x"}]}, {}, "example 1 has neither `target` nor `target_scores`"),
        ({**TASK, "examples": [{"input": "x", "target_scores": {"a": 1}}]}, {}, "map two or more options to numbers"),
        ({**TASK, "examples": [{"input": "x", "target": "a"}]}, {}, "needs `target_scores` in every example"),
        ({**TASK, "examples": EXAMPLES}, {"shots": 3}, "Set it to 2 or less"),
        ({**TASK, "examples": EXAMPLES}, {"low": 1.0}, "Set its `low` and `high`"),
        ({**TASK, "examples": EXAMPLES, "output_regex": "("}, {}, "is not a regular expression"),
        ([], {}, "holds no mapping with `examples`"),
        ({**TASK, "examples": EXAMPLES, "append_choices_to_input": "false"}, {}, "must be true or false.*got 'false'"),
    ],
)
def test_what_is_no_such_task_gets_a_sentence(tmp_path: Path, raw: Any, options: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        asked(kept(tmp_path, raw), **options).check()


def test_there_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is a folder without any `task\.json`"):
        asked(str(tmp_path)).check()
    with pytest.raises(DataError, match="there is no such file or folder"):
        asked(str(tmp_path / "sums.json")).check()
    with pytest.raises(RecipeError, match="must be below `high`"):
        asked(str(tmp_path), low=1.0, high=0.0)


def test_a_file_without_metrics_can_be_given_some(tmp_path: Path) -> None:
    task = asked(kept(tmp_path, {"examples": EXAMPLES}), metrics=["multiple_choice_grade"])
    assert task.check().startswith("3 examples; multiple_choice_grade")


def test_brackets_without_end_are_no_task(tmp_path: Path) -> None:
    (tmp_path / "task.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(DataError, match="is not valid JSON"):
        asked(str(tmp_path)).check()


def slow_lcs(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Lin (2004): the longest common subsequence, by the recursion that defines it."""

    @functools.cache
    def length(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return 0
        if one[i - 1] == other[j - 1]:
            return length(i - 1, j - 1) + 1
        return max(length(i - 1, j), length(i, j - 1))

    return length(len(one), len(other))


def test_common_subsequence_is_exact() -> None:
    generator = random.Random(0)
    seen = set()
    for _ in range(400):
        words = "abcdefgh"[: generator.randint(1, 8)]
        one, other = (tuple(generator.choices(words, k=generator.randint(0, 90))) for _ in range(2))
        found = longest_common_subsequence(one, other)
        assert found == slow_lcs(one, other)
        seen.add(found)
    assert len(seen) > 30
    for one, other in itertools.product(itertools.product("ab", repeat=4), repeat=2):
        assert longest_common_subsequence(one, other) == slow_lcs(one, other)


def test_rouge_l_is_the_formula() -> None:
    generator = random.Random(1)
    for _ in range(50):
        one, other = (generator.choices(["the", "cat", "sat", "on", "mat"], k=generator.randint(1, 12)) for _ in "ab")
        lcs = slow_lcs(tuple(one), tuple(other))
        recall, precision = lcs / len(other), lcs / len(one)
        expected = 0.0 if lcs == 0 else (1 + 1) * recall * precision / (recall + precision)
        assert rouge_l(" ".join(one), [" ".join(other)]) == pytest.approx(expected, abs=1e-12)
    # The paper's example.
    assert rouge_l("police kill the gunman", ["police killed the gunman"]) == pytest.approx(3 / 4)
    assert rouge_l("the gunman kill police", ["police killed the gunman"]) == pytest.approx(2 / 4)
    assert rouge_l("Über-Größe, 3!", ["über größe 3"]) == 1.0, "letters of any alphabet, no punctuation, no case"
    assert rouge_l("...", ["word"]) == rouge_l("word", ["..."]) == 0.0


def slow_f1(answer: str, right: str) -> float:
    """Matches words one by one."""
    left, hits = squad_normalised(right).split(), 0
    mine = squad_normalised(answer).split()
    total = len(mine) + len(left)
    for word in mine:
        if word in left:
            left.remove(word)
            hits += 1
    precision, recall = hits / max(len(mine), 1), hits / max(total - len(mine), 1)
    return 0.0 if hits == 0 else 2 * precision * recall / (precision + recall)


def test_token_f1_is_the_formula() -> None:
    generator = random.Random(2)
    words = ["the", "Cat", "cat.", "sat", "on", "mat!", "mat"]
    values = set()
    for _ in range(200):
        one, other = (" ".join(generator.choices(words, k=generator.randint(2, 9))) for _ in "ab")
        if squad_normalised(one) and squad_normalised(other):
            found = token_f1(one, [other])
            assert found == pytest.approx(slow_f1(one, other), abs=1e-12)
            values.add(round(found, 6))
    assert len(values) > 10


def test_normalisation_and_several_right_answers() -> None:
    assert squad_normalised("  The  U.S.A.,\n an   Apple ") == "usa apple"
    assert exact_match(" a\n b ", ["a b"]) == 1.0
    assert exact_match("A b", ["a b"]) == 0.0
    assert exact_match("The cat!", ["cat"]) == 0.0
    assert exact_match("The cat!", ["cat"], "squad") == 1.0
    assert exact_match("The cat!", ["cat"], "words") == 0.0
    assert exact_match("the  Cat", ["The cat!"], "words") == 1.0
    assert exact_match("a", ["A"], "words") == 1.0
    assert exact_match("x", ["y", "x"]) == 1.0
    assert token_f1("a cat", ["dog", "the cat sat"]) == pytest.approx(2 / 3)
    assert rouge_l("two", ["one", "one two"]) == pytest.approx(2 / 3)
    assert token_f1("the", ["a"]) == 1.0, "two texts without words are the same, as in SQuAD 2.0"
    assert token_f1("the", ["cat"]) == 0.0
