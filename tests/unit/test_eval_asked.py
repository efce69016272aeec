"""End tasks that ask a language model as it is: written answers and options, on files, models and by definition."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

import tiny
from everlearn.data.text_template import columns_in
from everlearn.data.tokenize import Encoder
from everlearn.errors import DataError, EverlearnError, ModelError, RecipeError, TrainingDiverged
from everlearn.evaluation import METRICS, Cell, make_task
from everlearn.evaluation.metrics import metrics_of
from everlearn.evaluation.task import Conditions, task_config
from everlearn.model.objectives import make_objective
from everlearn.predictors import Checkpoint, Predictor
from everlearn.tasks.prompted import Asking
from everlearn.tasks.prompts import label_of


def lively(architecture: str) -> Any:
    model = tiny.model(architecture)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return model


def how(model: Any, objective: str | None = None, batch_size: int = 5, **options: Any) -> Conditions:
    made = make_objective(objective or None, model, tiny.tokenizer())
    return Conditions(row="base", tokenizer=tiny.tokenizer(), objective=made, batch_size=batch_size, **options)


def written(folder: Path, rows: list[dict[str, Any]], name: str = "test.jsonl") -> str:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def asked(test: str, **options: Any) -> Any:
    return make_task(task_config({"name": "asked", "test": test, **options}, "end_tasks.0"))


def answers(count: int = 12) -> list[dict[str, Any]]:
    return [{"text": text, "target": text.split()[0]} for text in tiny.texts(count, 5, words=25)]


class Scripted(Predictor):
    """Writes what it is told, in the order of the questions."""

    def __init__(self, model: Any, texts: list[str], prompts: list[str]) -> None:
        self.model, self.script = model, dict(zip(prompts, texts, strict=True))

    def generate(self, inputs: Any, *, max_new_tokens: int, stop: Any) -> list[list[int]]:
        encode, found = Encoder(tiny.tokenizer(), "decoder"), []
        for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
            prompt = tiny.tokenizer().decode(ids[mask.bool()], skip_special_tokens=True)
            found.append(encode([self.script[prompt]])[0])
        return found


# -- written answers ----------------------------------------------------------------------------------------------


def test_scores_are_those_of_the_texts(tmp_path: Path) -> None:
    rows = [
        {"q": "one", "target": "the cat"},
        {"q": "two", "target": ["dog", "hound"]},
        {"q": "three words", "target": 7},
        {"q": "four", "target": "a b c d"},
    ]
    prompts = [f"Q: {row['q']} A:" for row in rows]
    wrote = ["the  cat ", "hound", "7.5", "a x c"]
    task = asked(written(tmp_path, rows), kind="text-to-text", prompt="Q: {q} A:")
    model = tiny.model("llama")
    cell = task.measure(Scripted(model, wrote, prompts), how(model, batch_size=3))
    assert cell.texts == ("the  cat", "hound", "7.5", "a x c")
    assert cell.facts["targets"] == [["the cat"], ["dog", "hound"], ["7"], ["a b c d"]]
    assert cell["exact_match"].tolist() == [1, 1, 0, 0]
    assert cell["token_f1"].tolist() == pytest.approx([1, 1, 0, 2 * 1 / (2 + 3)])  # "a" is an article
    assert cell["rouge_l"].tolist() == pytest.approx([1, 1, 2 * 1 / (2 + 1), 2 * 2 / (3 + 4)])
    assert [metric.name for metric in metrics_of([cell])] == ["exact_match", "token_f1", "rouge_l"]
    assert METRICS["exact_match"].score(cell) == 0.5
    cell.save(tmp_path / "cell.safetensors")
    again = Cell.load(tmp_path / "cell.safetensors")
    assert again.texts == cell.texts
    assert again.same_examples(cell)
    other = asked(written(tmp_path, rows[:3], "other.jsonl"), kind="text-to-text", prompt="Q: {q} A:")
    assert other.fingerprint() != task.fingerprint() == asked(task.config.test, **_same(task)).fingerprint()


def _same(task: Any) -> dict[str, Any]:
    return task.config.model_dump(exclude={"name", "test"})


def test_labels_give_accuracy_and_macro_f1(tmp_path: Path) -> None:
    rows = [{"text": f"{i}", "target": target} for i, target in enumerate(("good", "bad", "very good", "good"))]
    options = {"kind": "text-to-text", "labels": ["good", "bad", "very good"]}
    task, model = asked(written(tmp_path, rows), **options), tiny.model("llama")
    cell = task.measure(Scripted(model, ["Good.", "goodness", "very good indeed", "bad"], list("0123")), how(model))
    assert cell["predictions"].tolist() == [[0, -1, 2, 1]]
    assert cell["truth"].tolist() == [0, 1, 2, 0]
    assert METRICS["accuracy"].score(cell) == 0.5
    assert METRICS["macro_f1"].score(cell) == pytest.approx((2 * 1 / (1 + 2) + 0 + 1) / 3)
    assert METRICS["exact_match"].score(cell) == 0.0
    assert metrics_of([cell])[0].name == "accuracy"


def test_a_label_is_what_an_answer_begins_with() -> None:
    labels = ("Science", "Science or Technology", "A", "Sci/Tech")
    begin = {"science": 0, "Science, of course": 0, "science or technology!": 1, "a": 2, "A. because": 2, "Sci/Tech": 3}
    begin |= {"": -1, "the science": -1, "scientific": -1, "Apple": -1, "or": -1}
    assert {answer: label_of(answer, labels) for answer in begin} == begin


@pytest.mark.parametrize("architecture", ["gpt2", "qwen2", "t5"])
@pytest.mark.parametrize("objective", ["causal", "text-to-text"])
def test_answers_do_not_depend_on_batches(architecture: str, objective: str, tmp_path: Path) -> None:
    if architecture == "t5" and objective == "causal":
        objective = "text-to-text"
    model, told = lively(architecture), []
    task = asked(written(tmp_path, answers()), kind="text-to-text", max_new_tokens=10)
    cells = [
        task.measure(Checkpoint(model), how(model, objective, size, progress=told.append)) for size in (1, 5, 12, 5)
    ]
    assert len(set(cells[0].texts)) > 6
    for cell in cells[1:]:
        assert cell.texts == cells[0].texts
    assert told[:12] == list(range(1, 13))
    assert task.work(1).units == 12
    # What the model reads is the prompt as in training: the first prompt, one by one, by hand.
    encode = Encoder(tiny.tokenizer(), "encoder-decoder" if architecture == "t5" else "decoder")
    ids = [*encode.prefix, *encode([task.questions[0].prompt])[0], *(encode.suffix if architecture == "t5" else [])]
    new = 10 + (len(encode.prefix) if architecture == "t5" else 0)
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), max_new_tokens=new, do_sample=False, eos_token_id=2, pad_token_id=1)
    wrote = out[0, 1 if architecture == "t5" else len(ids) :]
    wrote = wrote[: wrote.tolist().index(2)] if 2 in wrote.tolist() else wrote
    assert cells[0].texts[0] == tiny.tokenizer().decode(wrote, skip_special_tokens=True).strip()


def test_an_answer_ends_at_a_stop_text_and_long_prompts_lose_their_beginning(tmp_path: Path) -> None:
    model = tiny.model("llama")
    rows = [{"text": "end", "target": "yes"}]
    task = asked(written(tmp_path, rows), kind="text-to-text", stop=["\n", "Q:"])
    assert task.measure(Scripted(model, ["yes Q: more\nno"], ["end"]), how(model)).texts == ("yes",)

    class Seen(Predictor):
        def __init__(self) -> None:
            self.model, self.rows = model, []

        def generate(self, inputs: Any, **_: Any) -> list[list[int]]:
            self.rows = inputs["input_ids"][inputs["attention_mask"].bool()].tolist()
            return [[]]

    text = tiny.texts(1, 3, words=60)[0]
    task, seen = asked(written(tmp_path, [{"text": text, "target": "x"}]), kind="text-to-text", max_length=10), Seen()
    task.measure(seen, how(model))
    whole = Encoder(tiny.tokenizer(), "decoder")([text])[0]
    assert len(whole) > 20
    assert seen.rows == [0, *whole[-9:]]
    task = asked(written(tmp_path, rows), kind="text-to-text", max_new_tokens=60)
    with pytest.raises(ModelError, match=r"leaves 4 tokens for a prompt before the 60 .* Lower its `max_new_tokens`"):
        task.measure(seen, how(model))


# -- options ------------------------------------------------------------------------------------------------------


def choices(count: int = 9) -> list[dict[str, Any]]:
    """Of two to four options, of one word or several."""
    texts = tiny.texts(5 * count, 8, words=9)
    generator = np.random.default_rng(0)
    rows = []
    for i in range(count):
        options = texts[5 * i + 1 : 5 * i + 3 + i % 3]
        rows.append({"query": texts[5 * i], "choices": options, "gold": int(generator.integers(len(options)))})
    return rows


def slow_choice(model: Any, row: dict[str, Any], objective: str) -> list[tuple[float, int]]:
    """By definition, one option at a time: nats and number of its tokens."""
    if objective == "masked":
        return slow_masked_choice(model, row)
    kind = "encoder-decoder" if model.config.is_encoder_decoder else ""
    encode, found = Encoder(tiny.tokenizer(), kind or "decoder"), []
    for option in row["choices"]:
        if kind:
            ids = [*encode.prefix, *encode([row["query"]])[0], *encode.suffix]
            target = [*encode.prefix, *encode([option])[0], *encode.suffix]
            start = [model.config.decoder_start_token_id, *target[:-1]]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([start])).logits[0]
        else:
            if objective == "causal":
                before = encode([row["query"].rstrip()])[0]
                target = encode([row["query"] + " " + option])[0][len(before) :]
            else:
                before, target = encode([row["query"]])[0], [*encode([option])[0], encode.end]
            ids = [*encode.prefix, *before, *target]
            with torch.no_grad():
                logits = model(torch.tensor([ids]), use_cache=False).logits[0, -len(target) - 1 : -1]
        likely = torch.log_softmax(logits.double(), -1)
        found.append((-sum(float(likely[i, token]) for i, token in enumerate(target)), len(target)))
    return found


def slow_masked_choice(model: Any, row: dict[str, Any]) -> list[tuple[float, int]]:
    """The prompt, and masks for the longest option and its end, a multiple of eight."""
    encode, found = Encoder(tiny.tokenizer(), "encoder"), []
    masks = 8 * math.ceil(max(len(ids) + 1 for ids in encode(row["choices"])) / 8)
    for option in row["choices"]:
        before, target = [*encode.prefix, *encode([row["query"]])[0]], [*encode([option])[0], encode.suffix[0]]
        ids = [*before, *[tiny.tokenizer().mask_token_id] * masks, *encode.suffix]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, len(before) : len(before) + len(target)]
        likely = torch.log_softmax(logits.double(), -1)
        found.append((-sum(float(likely[i, token]) for i, token in enumerate(target)), len(target)))
    return found


@pytest.mark.parametrize(
    ("architecture", "objective"),
    [
        ("roberta", "masked"),
        ("bert", "masked"),
        ("gpt2", "causal"),
        ("gpt2", "text-to-text"),
        ("gemma2", "causal"),
        ("llama", "text-to-text"),
        ("t5", "text-to-text"),
    ],
)
def test_options_are_scored_by_definition(architecture: str, objective: str, tmp_path: Path) -> None:
    model, rows = lively(architecture), choices()
    task, conditions = asked(written(tmp_path, rows), kind="choice"), how(model, objective)
    cell = task.measure(Checkpoint(model, conditions.objective), conditions)
    assert cell["option_nats"].shape == (4, 9)
    scores: dict[str, list[bool]] = {
        "choice_accuracy": [],
        "choice_accuracy_per_byte": [],
        "choice_accuracy_per_token": [],
    }
    for number, row in enumerate(rows):
        nats, tokens = np.array(slow_choice(model, row, objective)).T
        bytes_ = np.array([len(option.encode()) for option in row["choices"]])
        assert cell["option_nats"][: len(nats), number] == pytest.approx(nats, rel=1e-4, abs=1e-4)
        assert cell["option_tokens"][: len(nats), number].tolist() == tokens.tolist()
        assert np.isinf(cell["option_nats"][len(nats) :, number]).all()
        for name, size in zip(scores, (np.ones_like(nats), bytes_, tokens), strict=True):
            scores[name].append(int(np.argmin(nats / size)) == row["gold"])
    for name, right in scores.items():
        assert METRICS[name].score(cell) == np.mean(right)
    assert len({tuple(right) for right in scores.values()}) > 1 or architecture != "gpt2", "normalising matters"
    assert {metric.name for metric in metrics_of([cell])} == set(scores)
    again = task.measure(Checkpoint(model, conditions.objective), how(model, objective, batch_size=2))
    assert again["option_nats"] == pytest.approx(cell["option_nats"], rel=1e-5), "a batch size changes nothing"
    model.register_forward_hook(lambda *_: None)  # what hooks into a model may look at a row as a whole
    apart = task.measure(Checkpoint(model, conditions.objective), conditions)
    assert apart["option_nats"] == pytest.approx(cell["option_nats"], rel=1e-5), "a prompt for all or for each option"


def test_an_option_that_grows_into_the_prompts_last_word_is_scored_with_it(tmp_path: Path) -> None:
    encode = Encoder(tiny.tokenizer(), "decoder")
    prompt, options = "the mode", ["l", "ls"]
    before, *whole = encode([prompt, *(prompt + option for option in options)])
    assert len(whole[0]) <= len(before), "nothing is behind the prompt"
    at = len(whole[0]) - 1
    model = lively("gpt2")
    task = asked(written(tmp_path, [{"query": prompt, "choices": options, "gold": 1}]), kind="choice", separator="")
    conditions = how(model, "causal")
    cell = task.measure(Checkpoint(model, conditions.objective), conditions)
    for number, ids in enumerate(whole):
        row = torch.tensor([[*encode.prefix, *ids]])
        with torch.no_grad():
            likely = torch.log_softmax(model(row, use_cache=False).logits[0].double(), -1)
        first = len(encode.prefix) + at
        nats = -sum(float(likely[place - 1, row[0, place]]) for place in range(first, row.shape[1]))
        assert nats > 0
        assert cell["option_nats"][number, 0] == pytest.approx(nats, rel=1e-4)
        assert cell["option_tokens"][number, 0] == len(ids) - at


@pytest.mark.parametrize(
    ("architecture", "objective"), [("gpt2", "text-to-text"), ("t5", "text-to-text"), ("roberta", "masked")]
)
def test_a_prompt_is_read_once_for_all_its_options(architecture: str, objective: str, tmp_path: Path) -> None:
    model = tiny.model(architecture)
    conditions = how(model, objective, batch_size=8)
    passes: list[tuple[int, int]] = []

    class Counted(Checkpoint):
        def label_losses(self, batch: Any) -> Any:
            found = super().label_losses(batch)
            passes.append((len(batch["input_ids"]), len(found)))
            return found

    task = asked(written(tmp_path, choices(8)), kind="choice")
    task.measure(Counted(model, conditions.objective), conditions)
    assert passes == [(8, 32 if architecture == "t5" else 8)], "a row for each question; T5's decoder: for each option"


def test_options_of_a_question_share_a_batch_and_shapes_are_few(tmp_path: Path) -> None:
    model = tiny.model("gpt2")
    model.register_forward_hook(lambda *_: None)
    conditions = how(model, batch_size=6)
    shapes, rows = set(), []

    class Counted(Checkpoint):
        def label_losses(self, batch: Any) -> Any:
            shapes.add((tuple(batch["input_ids"].shape), tuple(batch["labels"].shape)))
            rows.append(int((batch["labels"] != -100).any(1).sum()))
            return super().label_losses(batch)

    task = asked(written(tmp_path, choices(30)), kind="choice")
    task.measure(Counted(model, conditions.objective), conditions)
    assert sum(rows) == sum(len(question.answers) for question in task.questions)
    assert {shape[0][0] for shape in shapes} == {6}, "batches are filled up"
    assert len(shapes) <= 6
    assert min(rows[:-1]) >= 3, "no question is torn apart: a batch closes where the next one has no room"


def test_the_same_options_for_all_and_answers_by_text(tmp_path: Path) -> None:
    model = lively("gpt2")
    rows = [{"text": text, "label": "flow" if i % 3 else "axes"} for i, text in enumerate(tiny.texts(8, 2, words=12))]
    options = {"kind": "choice", "prompt": "{text}\nTopic:", "choices": ["axes", "flow"], "answer_column": "label"}
    task, conditions = asked(written(tmp_path, rows), **options), how(model)
    cell = task.measure(Checkpoint(model, conditions.objective), conditions)
    assert cell["right_option"].tolist() == [0, 1, 1, 0, 1, 1, 0, 1]
    for row, nats in zip(rows, cell["option_nats"].T, strict=True):
        slow = slow_choice(model, {"query": f"{row['text']}\nTopic:", "choices": ["axes", "flow"]}, "causal")
        assert nats.tolist() == pytest.approx([each for each, _ in slow], rel=1e-4)


def test_broken_weights_are_said(tmp_path: Path) -> None:
    model = tiny.model("gpt2")
    conditions = how(model)
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight.fill_(float("nan"))
    with pytest.raises(TrainingDiverged, match="is not a number"):
        asked(written(tmp_path, choices()), kind="choice").measure(Checkpoint(model, conditions.objective), conditions)


def test_a_masked_model_does_not_write(tmp_path: Path) -> None:
    model = tiny.model("roberta")
    task = asked(written(tmp_path, answers()), kind="text-to-text")
    with pytest.raises(ModelError, match="is of kind text-to-text, which needs a model that reads from left to right"):
        task.check_model("encoder")
    with pytest.raises(ModelError, match="fills masks and does not write"):
        task.measure(Checkpoint(model), how(model))


# -- what a user writes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kind": "text-to-txt"}, r"there is no kind of end task 'text-to-txt'\. Did you mean 'text-to-text'\?"),
        ({"max_new_token": 3}, r"Unknown key `end_tasks\.0\.max_new_token` .*Did you mean 'max_new_tokens'\?"),
        ({"max_new_tokens": 0}, r"`end_tasks\.0\.max_new_tokens` \(.* text-to-text\) must be 1 or more"),
        ({"prompt": "{text"}, r"`end_tasks\.0\.prompt` .*: '\{text' is no template"),
        ({"prompt": "{}"}, r"has a value without a name, or with a format"),
        ({"prompt": "{text!r}"}, r"has a value without a name, or with a format"),
        ({"stop": [""]}, r"`end_tasks\.0\.stop` .*: an empty text"),
        ({"prompt": "{txt}"}, r"has no column 'txt'.*Did you mean 'text'\?"),
        ({"target_column": "label"}, r"has no column 'label'"),
        ({"labels": ["yes", "no"]}, r"begins with none of end task 'asked''s `labels`: yes, no"),
        ({"test": "nowhere.jsonl"}, r"`test: nowhere\.jsonl`: there is no such file"),
        ({"kind": "choice", "choices": ["one"]}, r"two or more different options"),
        ({"kind": "choice", "prompt": "{text}"}, r"has no column 'choices'"),
        (
            {"kind": "choice", "prompt": "{n}", "choices_column": "target", "answer_column": "n"},
            r"a list of options",
        ),
    ],
)
def test_mistakes_are_sentences(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    rows = [{"text": text, "target": "word", "n": 0} for text in tiny.texts(3)]
    with pytest.raises(EverlearnError, match=sentence):
        asked(**{"test": written(tmp_path, rows), "kind": "text-to-text", **changes}).check()


def test_a_wrong_right_option_is_a_sentence(tmp_path: Path) -> None:
    for gold in (2, -1, 0.5, "b?", None, True):
        rows = [{"query": "q", "choices": ["a", "b"], "gold": gold}]
        with pytest.raises(DataError, match=r"must hold the right option's text, or its number from 0 to 1"):
            asked(written(tmp_path, rows), kind="choice").check()
    for gold in (1, "1", 1.0, "b"):
        rows = [{"query": "q", "choices": ["a", "b"], "gold": gold}]
        assert asked(written(tmp_path, rows), kind="choice").questions[0].right == 1


def test_a_prompt_is_a_template() -> None:
    assert columns_in("{{x}} {a} and {b}: {a}") == ("a", "b")
    with pytest.raises(RecipeError):
        task_config({"name": "x", "kind": "choice", "test": "t", "prompt": "}"}, "end_tasks.0")


def test_a_prompt_reads_values_inside_columns(tmp_path: Path) -> None:
    rows = [{"doc": {"title": "rain", "year": 1990.0}, "target": "wet"}, {"doc": "rain", "target": "wet"}]
    found = asked(written(tmp_path, rows[:1]), kind="text-to-text", prompt="{doc.title} of {doc.year}:").questions
    assert found[0].prompt == "rain of 1990:"
    with pytest.raises(DataError, match=r"'doc' holds str \('rain'\), which has no 'title' in it"):
        asked(written(tmp_path, rows), kind="text-to-text", prompt="{doc.title}:").check()


def test_a_prompt_reads_a_column_whose_name_has_dots(tmp_path: Path) -> None:
    """As in tables that were flattened; the name of a whole column comes first."""
    table = {"doc.title": ["rain"], "target": ["wet"]}
    parquet.write_table(pyarrow.table(table | {"doc": [{"title": "snow"}]}), tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("doc.title,target\nrain,wet\n", encoding="utf-8")
    for file in ("t.csv", "t.parquet"):
        found = asked(str(tmp_path / file), kind="text-to-text", prompt="{doc.title}:").questions
        assert [(each.prompt, each.answers) for each in found] == [("rain:", ("wet",))]


EVAL = Path(__file__).parents[3] / "shared" / "data" / "eval"
EVAL_SETS = {
    "hellaswag_1000": {"kind": "choice", "max_test": 4},
    "mmlu": {"kind": "choice", "prompt": "{query}\nAnswer:", "max_test": 4},
    "boolq": {"kind": "choice", "max_test": 2, "max_length": 40},
    "copa": {"kind": "choice", "max_test": 8},
    "lambada_openai": {"prompt": "{context}", "target_column": "continuation"},
    "triviaqa_sm_sub": {"prompt": "{context}", "target_column": "aliases", "match": "squad", "stop": ["\n"]},
    "bbh": {"prompt": "{input}", "target_column": "target"},
}


@pytest.mark.parametrize("name", EVAL_SETS)
def test_published_sets_are_read_as_they_are(name: str) -> None:
    path = EVAL / f"{name}.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"{path.name} is not here: public test sets are not part of the project")
    options = {"kind": "text-to-text", "max_test": 8, **EVAL_SETS[name]}
    if options["kind"] == "text-to-text":
        options["max_new_tokens"] = 4
    whole = asked(str(path), **{key: value for key, value in options.items() if key != "max_test"})
    assert len(whole.questions) >= 100
    model = tiny.model("llama", max_position_embeddings=1024)
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.model_max_length = 1024
    conditions = replace(how(model, batch_size=8), tokenizer=tokenizer)
    cell = asked(str(path), **options).measure(Checkpoint(model, conditions.objective), conditions)
    assert len(cell) == options["max_test"]
    leading = metrics_of([cell])[0]
    assert leading.name == ("choice_accuracy" if options["kind"] == "choice" else "exact_match")
    assert 0 <= leading.score(cell) <= 1


def test_answers_are_as_long_as_the_longest_label_and_one_more(tmp_path: Path) -> None:
    rows = [{"text": "x", "target": "good"}]
    labels, lengths = ["good", "matrix matrix matrix figure"], []

    class Counting(Scripted):
        def generate(self, inputs: Any, *, max_new_tokens: int, stop: Any) -> list[list[int]]:
            lengths.append(max_new_tokens)
            return super().generate(inputs, max_new_tokens=max_new_tokens, stop=stop)

    model = tiny.model("llama")
    task = asked(written(tmp_path, rows), kind="text-to-text", labels=labels, max_new_tokens=None, match="words")
    cell = task.measure(Counting(model, ["Good!"], ["x"]), how(model))
    assert lengths == [1 + len(Encoder(tiny.tokenizer(), "decoder")([labels[1]])[0])]
    assert cell["exact_match"].tolist() == [1.0]
    assert task.always("matrix")["exact_match"].tolist() == [0.0]
    with pytest.raises(RecipeError, match=r"`max_new_tokens: null` follows from the longest of `labels`"):
        asked(written(tmp_path, rows), kind="text-to-text", max_new_tokens=None)
    before = asked(written(tmp_path, rows), kind="text-to-text")
    assert "keep_last" not in before.config.marks  # marks of cells that an earlier version measured stay as they were
    assert "keep_last" in asked(written(tmp_path, rows), kind="text-to-text", keep_last=3).config.marks


@pytest.mark.parametrize("architecture", ["t5", "llama"])
def test_the_end_of_a_long_prompt_is_asked_where_that_is_wanted(architecture: str, tmp_path: Path) -> None:
    text = " ".join(["matrix"] * 30) + " Answer:"
    model = tiny.model(architecture)
    kind = "encoder-decoder" if architecture == "t5" else "decoder"
    encoder = Encoder(tiny.tokenizer(), kind)
    (ids,) = encoder([text])
    for last in (0, 4):
        task = asked(
            written(tmp_path, [{"text": text, "target": "a"}]), kind="text-to-text", max_length=16, keep_last=last
        )
        asking = Asking(task.config, Checkpoint(model), how(model, "text-to-text"))
        room = 16 - len(encoder.prefix) - (len(encoder.suffix) if kind == "encoder-decoder" else 0)
        if last:
            expected = [*ids[: room - last], *ids[-last:]]
        else:
            expected = ids[:room] if kind == "encoder-decoder" else ids[-room:]
        found = asking.prompt(ids, 16)[len(encoder.prefix) :]
        assert found[:room] == expected


def test_choosing_one_option_always(tmp_path: Path) -> None:
    rows = [{"query": "q", "gold": gold} for gold in ("a", "b", "b")]
    task = asked(written(tmp_path, rows), kind="choice", choices=["a", "b"])
    assert METRICS["choice_accuracy"].score(task.always("b")) == pytest.approx(2 / 3)
    assert METRICS["choice_accuracy"].score(task.always("c")) == pytest.approx(1 / 3)
