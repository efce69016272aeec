"""The suites of fine-tuning tasks: standard-cl, long-sequence and glue."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest

import continual_tasks as small
import glue_files
import tiny
from bench_suite import keys_of
from everlearn.config.recipe import Recipe, parse
from everlearn.errors import DataError, RecipeError
from everlearn.grid import Grid
from everlearn.grid.rows import our_name, resolve
from everlearn.learner import ContinualLearner
from everlearn.methods import names
from everlearn.tasks.glue_formats import FORMATS
from everlearn_bench.suites import find_suite, locate, overlay_of
from everlearn_bench.suites.cache import read_lines
from everlearn_bench.suites.continual_tasks import VARIABLE, files, prompt, task_file
from everlearn_bench.suites.continual_tasks.hub import SETS
from everlearn_bench.suites.continual_tasks.hub_samples import ON_HUB, drawn
from everlearn_bench.suites.continual_tasks.systems import COMPONENTS, GROUPS, ON_GRADIENT, SELECTORS, SYSTEMS, VARIED
from everlearn_bench.suites.continual_tasks.tasks import GLUE_ONLY, TASKS, TWICE
from everlearn_bench.suites.glue.systems import SYSTEMS as REMEDIES

# -- Suites `standard-cl` and `long-sequence`: examples, prompts, splits, recipes, rows of the table; data of the Hub --


STANDARD, LONG = find_suite("standard-cl"), find_suite("long-sequence")
BESIDE = Path(__file__).parents[2].parent / "shared" / "data"
DATA = Path(os.environ.get(VARIABLE, BESIDE))
needs_data = pytest.mark.skipif(not (DATA / "tasks").is_dir(), reason=f"no data: set {VARIABLE}")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Published files of three tasks, copies of the others."""
    folder = tmp_path / "data"
    for name in TASKS:
        (small.publish if name in ("amazon", "mnli", "copa") else small.copied)(folder, name)
    return folder


def rows(name: str, part: str, data: Path, **options: Any) -> list[dict[str, Any]]:
    return list(read_lines(task_file(name, part, data, **options)))


def made(order: Any, place: Path, suite: Any = STANDARD, **changes: Any) -> Recipe:
    return parse(keys_of(suite, order, place, **changes))


def test_the_published_streams() -> None:
    """Table 7 of arXiv 2406.17245; sizes of the published files."""
    assert STANDARD.orders[1] == ("dbpedia", "amazon", "yahoo", "agnews")
    assert [STANDARD.orders[2][2:], STANDARD.orders[3]] == [
        ("agnews", "yahoo"),
        ("yahoo", "amazon", "agnews", "dbpedia"),
    ]
    assert " ".join(LONG.orders[4]) == (
        "mnli cb wic copa qqp boolqa rte imdb yelp amazon sst-2 dbpedia agnews multirc yahoo"
    )
    assert " ".join(LONG.orders[6][:4]) == "yelp amazon mnli cb"
    assert sum(TASKS[name].test for name in STANDARD.domains) == 30_400
    assert sum(TASKS[name].test for name in LONG.domains) == 70_861
    steps = {order: sum(-(-TASKS[name].train // 64) for name in tasks) for order, tasks in LONG.orders.items()}
    assert steps[4] == 879
    assert sum(-(-TASKS[name].train // 64) for name in STANDARD.domains) == 518
    twice = {order: -(-TASKS[TWICE[tasks]].train // 64) for order, tasks in LONG.orders.items() if order > 4}
    assert {order: steps[order] + more for order, more in twice.items()} == {5: 911, 6: 926}


def test_a_prompt_names_task_and_data_set_unless_told_otherwise() -> None:
    task = TASKS["amazon"]
    whole = prompt(task, "Title: t\nText: x").split("\n")
    assert whole[:2] == ["Task:SC", "Dataset:amazon"]
    assert whole[2].endswith("from the option.")
    assert whole[3:] == ["Option: very negative, negative, neutral, positive, very positive ", "Title: t", "Text: x",
                         "Answer:"]  # fmt: skip
    assert prompt(task, "x", names=False).startswith(whole[2])
    assert prompt(TASKS["copa"], "Which?") == "Task:COPA\nDataset:COPA\nWhich?\nAnswer:"
    assert prompt(TASKS["copa"], "Which?", names=False) == "Which?\nAnswer:"


def test_development_examples_are_held_out_of_the_training_file(data: Path) -> None:
    parts = {part: rows("amazon", part, data) for part in files.PARTS}
    assert {part: len(found) for part, found in parts.items()} == {"train": 18, "dev": 2, "test": 6}
    texts = {part: {row["prompt"] for row in found} for part, found in parts.items()}
    assert not (texts["train"] | texts["dev"]) & texts["test"]
    assert not texts["train"] & texts["dev"]
    assert all(row["text"] == f"{row['prompt']} {row['answer']}" for row in parts["train"])
    copied = {part: rows("yelp", part, data) for part in files.PARTS}
    assert {part: len(found) for part, found in copied.items()} == dict.fromkeys(files.PARTS, 12)
    assert all("\nText: " in row["prompt"] for row in copied["train"])
    assert not files.proxy("amazon", data)
    assert files.proxy("yelp", data) == f"{TASKS['yelp'].proxy}; not the examples of the published numbers"
    assert rows("yelp", "test", data, names=False)[0]["prompt"] in copied["test"][0]["prompt"]


@pytest.mark.parametrize("name", ["amazon", "yelp"])
def test_no_text_is_in_two_parts(data: Path, name: str) -> None:
    """Published files, and copies, that repeat texts: the tested ones are neither learnt nor developed on."""
    found = files.published(TASKS[name], data) or files.copies(TASKS[name], data)
    plain = files.parted(name, found)
    for row in (plain["dev"][0], plain["train"][0]):  # both are test examples, too
        if found[-1].suffix == ".json":
            told = [*json.loads(found[-1].read_text()), {"sentence": row["text"], "label": TASKS[name].labels[0]}]
            found[-1].write_text(json.dumps(told))
        else:
            line = json.dumps({"text": row["text"], "label": TASKS[name].labels[0]}) + "\n"
            found[-1].write_bytes(found[-1].read_bytes() + gzip.compress(line.encode()))
    parts = files.parted(name, found)
    assert [parts["train"], parts["dev"]] == [plain["train"][1:], plain["dev"][1:]]
    assert len(parts["test"]) == len(plain["test"]) + 2


def test_what_has_no_label_is_left_out_and_another_label_is_refused(data: Path) -> None:
    place = data / "CL_Benchmark/NLI/MNLI/test.json"
    found = [{"sentence": "a", "label": "-"}, {"sentence": "b", "label": "entailment"}]
    place.write_text(json.dumps(found))
    assert [row["answer"] for row in rows("mnli", "test", data)] == ["entailment"]
    place.write_text(json.dumps([{"sentence": "a", "label": "perhaps"}]))
    with pytest.raises(DataError, match=r"has the label 'perhaps', but those of MNLI are neutral, entailment, contra"):
        rows("mnli", "test", data)
    place.write_text(json.dumps([{"text": "a"}]))
    with pytest.raises(DataError, match=r"test.json holds no examples of 'MNLI': KeyError"):
        rows("mnli", "test", data)
    with pytest.raises(
        DataError, match=rf"'cb' needs its examples, and '.*' has none of them \(no `tasks/long15_cb`\). Set {VARIABLE}"
    ):
        rows("cb", "test", data / "tasks")


def test_labels_are_spelt_as_published(data: Path) -> None:
    yahoo = TASKS["yahoo"]
    assert yahoo.label("entertainment and Music") == "Entertainment & Music"
    assert yahoo.label("science") == "Science & Mathematics"
    assert yahoo.label("computers and internet") == "Computers & Internet"
    assert yahoo.label("politics and government") == "Politics & Government"
    assert yahoo.label("cooking") is None


def test_a_recipe_has_the_released_settings_and_measures_the_whole_matrix(data: Path) -> None:
    recipe = made(1, data)
    assert recipe.objective == "text-to-text"
    assert [domain.name for domain in recipe.domains] == list(STANDARD.orders[1])
    train = recipe.train
    assert (train["learning_rate"], train["num_train_epochs"], train["lr_scheduler_type"]) == (1e-4, 1, "constant")
    assert train["per_device_train_batch_size"] * train["gradient_accumulation_steps"] == 64
    assert (train["weight_decay"], train["max_grad_norm"], recipe.data.block_size) == (0.0, 1.0, 512)
    assert recipe.evaluation.end_tasks == "every"
    assert {domain.keep_last for domain in recipe.domains} == {task.keep_last for task in recipe.end_tasks} == {8}
    task = recipe.end_tasks[1]
    assert (task.kind, task.max_new_tokens, task.match) == ("text-to-text", None, "words")
    assert task.labels == TASKS["amazon"].labels
    assert [note.split("'")[1] for note in recipe.run.notes if note.startswith("Proxy")] == ["dbpedia", "yahoo"]
    assert "the test files again" in recipe.run.notes[-1]


def test_settings_of_a_recipe(data: Path) -> None:
    recipe = made(
        ("copa", "amazon"), data, LONG, suite_keys={"names": False, "answers": "chosen"}, train={"max_steps": 3},
        domains={"*": {"max_documents": 5, "keep_last": 0}}, end_tasks={"*": {"max_test": 4, "keep_last": 0}},
        evaluation={"blocks": 2, "end_tasks": "diagonal"},
    )  # fmt: skip
    assert (recipe.train["max_steps"], recipe.domains[0].max_documents, recipe.domains[0].keep_last) == (3, 5, 0)
    assert not next(read_lines(Path(recipe.domains[0].path)))["prompt"].startswith("Task:")
    assert [(task.kind, task.max_test) for task in recipe.end_tasks] == [("choice", 4)] * 2
    assert recipe.evaluation.end_tasks == "diagonal"
    head = made(
        ("copa",), data, LONG, suite_keys={"answers": "head"}, evaluation={"end_task_seeds": 2},
        end_tasks={"*": {"epochs": 6, "max_train": 7}},
    )  # fmt: skip
    assert (head.objective, head.domains[0].target_column, head.domains[0].text_column) == ("masked", None, "text")
    task = head.end_tasks[0]
    assert (task.kind, task.epochs, task.max_train, task.label_column) == ("classification", 6, 7, "answer")
    assert (head.evaluation.end_tasks, head.evaluation.end_task_seeds) == ("diagonal", 2)
    third = made(5, data, LONG)
    assert {domain.name: third.train_of(domain.name)["num_train_epochs"] for domain in third.domains}["wic"] == 2
    assert [domain.name for domain in third.domains if domain.train] == ["wic"]
    assert [domain.name for domain in made(6, data, LONG).domains if domain.train] == ["mnli"]
    assert not any(domain.train for domain in made(6, data, LONG, train={"max_steps": 3}).domains)


@pytest.mark.parametrize(
    ("order", "settings", "sentence"),
    [
        (7, {}, r"`standard-cl` has no order 7; it has 1, 2, 3"),
        (("amazonn",), {}, r"has no domain 'amazonn'. Did you mean 'amazon'"),
        (("amazon", "amazon"), {}, r"each once \(got amazon, amazon\)"),
        (1, {"suite_keys": {"answers": "said"}}, r"`suite.answers` in the settings must be "),
        (1, {"suite_keys": {"answers": "head"}, "end_tasks": {"*": {"keep_last": 0}}}, "Unknown key .*keep_last"),
        (1, {"end_tasks": {"*": {"epochs": 3}}}, r"Unknown key `end_tasks.0.epochs`"),
    ],
)
def test_what_a_recipe_refuses(data: Path, order: Any, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        made(order, data, **settings)
    with pytest.raises(RecipeError, match="needs a base model: `--model`"):
        made(1, data, model=None)


def test_addresses(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"`continual-tasks` brings no data along. Set .*`--data fetch`"):
        locate("standard-cl/amazon/train.jsonl")
    monkeypatch.setenv(VARIABLE, str(data))
    assert len(list(read_lines(locate("standard-cl/amazon/train.jsonl")))) == 18
    with pytest.raises(RecipeError, match=r"no 'amazon/tain.jsonl'. Did you mean 'amazon/train.jsonl'"):
        locate("standard-cl/amazon/tain.jsonl")


def test_rows_of_the_table() -> None:
    """Whatever the paper calls a row; every row has a method that is there."""
    assert [entry.name for entry in resolve(["FT", "FT+MIGU", "PerTaskFT", "MTL", "FTReplay"], STANDARD)] == [
        "sequential", "migu", "per_task", "mtl", "replay",
    ]  # fmt: skip
    (entry,) = resolve(["IncLoRA + MIGU"], LONG)
    assert [method["name"] for method in entry.methods] == ["inc_lora", "migu"]
    assert (entry.title, dict(entry.changes)) == ("IncLoRA + MIGU", {"train.learning_rate": 1e-3})
    everything = {entry.name for entry in resolve(["all"], STANDARD)}
    assert {"constant", "none", "sequential", "migu", "inc_lora+migu", "per_task", "mtl"} <= everything
    assert everything >= SYSTEMS.keys() - VARIED.keys()
    assert not everything & VARIED.keys()
    asked = [entry.name for entry in resolve(["migu-on-gradient"], STANDARD)]
    assert asked == ["sequential", "migu", "lora", "lora+migu", *ON_GRADIENT]
    assert all(row.methods[-1]["apply_to"] == "gradient" for row in ON_GRADIENT.values())
    for group, rows in (("migu-selectors", SELECTORS), ("migu-components", COMPONENTS)):
        assert [entry.name for entry in resolve([group], STANDARD)] == ["sequential", "migu", *rows]
    assert dict(SELECTORS["migu_by_weight"].methods[0]) == {"name": "migu", "threshold": 0.7, "selector": "weight"}
    assert COMPONENTS["migu_of_ffn"].methods[0]["components"] == ["feed_forward_in", "feed_forward_out"]
    assert {method["name"] for row in SYSTEMS.values() for method in row.methods} <= set(names())
    assert all(our_name(name, STANDARD) == name for name in GROUPS["all"])
    for suite in (STANDARD, LONG):
        assert suite.published is not None
        assert set(suite.published.rows) <= {*SYSTEMS, "per_task", "mtl"}
    thresholds = {name: row.methods[-1].get("threshold") for name, row in SYSTEMS.items() if name.endswith("migu")}
    assert thresholds == {
        "migu": 0.7, "replay+migu": 0.7, "lora+migu": 0.7, "inc_lora+migu": 0.7, "o_lora+migu": 0.05,
        "lora+replay+migu": 0.4,
    }  # fmt: skip
    for suite, tasks in ((STANDARD, 4), (LONG, 15)):
        (mixture,) = resolve(["moe_lora"], suite)
        assert mixture.methods == ({"name": "moe_lora", "experts": tasks},), "as many experts as tasks"


def test_options_of_a_method_count_in_every_row_that_has_it(data: Path, tmp_path: Path) -> None:
    """What a user says of a method is more than the suite's own defaults for it."""
    said = {"model": "m", "grid": {"methods": {"migu": {"threshold": 0.3}, "moe_lora": {"top_k": 3}}}}
    rows = resolve(["migu", "o_lora+migu", "moe_lora", "lora"], STANDARD)
    grid = Grid(STANDARD.on(overlay_of(said), data), rows, [1], [0], tmp_path / "results", tmp_path / "runs")
    assert [cell.methods for cell in grid.cells] == [
        ({"name": "migu", "threshold": 0.3},),
        ({"name": "o_lora"}, {"name": "migu", "threshold": 0.3}),
        ({"name": "moe_lora", "experts": 4, "top_k": 3},),
        ({"name": "lora"},),
    ]


def test_published_means_are_means() -> None:
    """Of the orders, as far as the paper is consistent: FT's long mean is 68.3 where its orders give 68.6."""
    for suite in (STANDARD, LONG):
        assert suite.published is not None
        for name, (*orders, mean) in suite.published.rows.items():
            if None not in orders and (suite, name) != (LONG, "sequential"):
                assert sum(orders) / 3 == pytest.approx(mean, abs=0.11), name


def test_claims_name_rows_that_can_be_there() -> None:
    for suite in (STANDARD, LONG):
        assert suite.claims is not None
        assert suite.claims.these_tasks
        for claim in suite.claims.claims:
            for asked in claim.questions:
                assert {asked.entry, asked.other} <= {*SYSTEMS, "per_task", "mtl", None}


@needs_data
@pytest.mark.parametrize("name", sorted({*TASKS} - {*GLUE_ONLY}))
def test_the_copies_beside_us_are_read(name: str) -> None:
    found = files.parted(name, files.copies(TASKS[name], DATA))
    assert all(found.values())
    assert {row["label"] for row in found["train"]} <= set(TASKS[name].labels)
    assert len(found["train"]) <= TASKS[name].train


@pytest.fixture(autouse=True)
def own_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Published sizes of 20 and 6."""
    for name, task in TASKS.items():
        monkeypatch.setitem(TASKS, name, type(task)(**vars(task) | {"train": 20, "test": 6}))


def invented(count: int, fields: Sequence[str], classes: int, part: str = "", label: str = "label") -> list[Any]:
    """Rows that differ, with labels in turn; of no class where there is none."""
    return [{key: f"{key} {part}{i}" for key in fields} | {label: i % classes if classes else -1} for i in range(count)]


def read(name: str, data: Path, seed: int = 0) -> list[list[dict[str, str]]]:
    return [json.loads(file.read_text()) for file in drawn(name, data, seed)]


def test_every_task_has_a_set() -> None:
    """With the fields that its text needs; every label that is called otherwise there is one of the task's."""
    assert set(SETS) == {*LONG.domains, *FORMATS}
    for name, place in SETS.items():
        assert [key for _, key, _, _ in string.Formatter().parse(place.text) if key]
        assert set(place.labels.values()) <= set(TASKS[name].labels), name
        assert place.test == "test" or place.path in ("nyu-mll/glue", "aps/super_glue")


@pytest.mark.usefixtures("few")
def test_a_pair_task_whose_test_part_has_no_labels(tmp_path: Path) -> None:
    """The part for validation is tested; labels go by their names, whatever their numbers are."""
    fields, names = ("sentence1", "sentence2"), ["not_entailment", "entailment"]
    parts = {part: invented(40, fields, 2, part) for part in ("train", "validation")}
    small.on_hub(tmp_path, "rte", parts | {"test": invented(9, fields, 0, "test")}, names)
    train, test = read("rte", tmp_path)
    assert [len(train), len(test)] == [20, 6]
    for part, rows in (("train", train), ("validation", test)):
        for row in rows:
            number = int(row["sentence"].rsplit(part)[-1])
            assert row["sentence"] == f"sentence 1: sentence1 {part}{number}\nsentence 2: sentence2 {part}{number}"
            assert row["label"] == ("entailment" if number % 2 else "contradiction")
    parted = {part: list(read_lines(task_file("rte", part, tmp_path))) for part in files.PARTS}
    assert {part: len(rows) for part, rows in parted.items()} == {"train": 18, "dev": 2, "test": 6}
    assert parted["test"][0]["prompt"].startswith("Task:NLI\nDataset:RTE\n")
    assert {row["answer"] for row in parted["train"]} == {"entailment", "contradiction"}


@pytest.mark.usefixtures("few")
def test_the_draw_depends_on_its_seed_alone(tmp_path: Path) -> None:
    parts = {part: invented(60, ("text",), 2, part) for part in ("train", "test")}
    for folder in ("one", "other"):
        small.on_hub(tmp_path / folder, "imdb", parts, ["neg", "pos"])
    one = read("imdb", tmp_path / "one")
    assert read("imdb", tmp_path / "other") == one
    assert read("imdb", tmp_path / "one", seed=1) != one
    texts = [[row["sentence"] for row in rows] for rows in one]
    assert [len(set(rows)) for rows in texts] == [20, 6]
    assert texts[0] != sorted(texts[0], key=lambda text: int(text.removeprefix("text train"))), "not the first ones"


@pytest.mark.usefixtures("few")
def test_texts_have_the_published_form(tmp_path: Path) -> None:
    def only(name: str, row: dict[str, Any], names: Sequence[str] | None = None) -> tuple[str, str]:
        small.on_hub(tmp_path, name, {"train": [row], SETS[name].test: [row]}, names)
        ((found,), _) = read(name, tmp_path)
        return found["sentence"], found["label"]

    row: dict[str, Any] = {"premise": "It {rained}.", "choice1": "I got wet.", "choice2": "I slept.", "label": 1}
    assert only("copa", row | {"question": "effect"}, ["choice1", "choice2"]) == (
        'Which sentence is the effect of "It {rained}."? Choose one between A and B.\nA: I got wet.\nB: I slept.', "B",
    )  # fmt: skip
    row = {"paragraph": "p", "question": "q", "answer": "a", "idx": {"paragraph": 0, "answer": 1}, "label": 1}
    assert only("multirc", row, ["False", "True"]) == ("paragraph: p\nquestion: q\ncandidate answer: a", "True")
    row = {"word": "go", "sentence1": "Go.", "sentence2": "I go.", "start1": 0, "label": 0}
    assert only("wic", row, ["False", "True"]) == ("word: go\nGo.\nI go.", "False")
    row = {"title": "T", "content": " T is.", "label": 1}
    assert only("dbpedia", row, ["Film", "WrittenWork"]) == ("Title: T\nText:  T is.\n", "Written Work")
    row = {"class_index": 2, "review_title": None, "review_text": "Bad."}
    assert only("amazon", row) == ("Title: \nText: Bad.\n", "negative")
    row = {"topic": 0, "question_title": "T?", "question_content": "c", "best_answer": "a"}
    assert only("yahoo", row, ["Family & Relationships"]) == ("Title: T?\nText: c a\n", "Family & Relationships")


@pytest.mark.usefixtures("few")
def test_what_a_set_may_not_hold(tmp_path: Path) -> None:
    rows = invented(3, ("text",), 2)
    small.on_hub(tmp_path / "label", "agnews", {"train": rows, "test": rows}, ["World", "Weather"])
    with pytest.raises(
        DataError, match=r"'fancyzhx/ag_news' has the label 'Weather', but those of agnews are World, S"
    ):
        drawn("agnews", tmp_path / "label")
    # Numbers without names would have to be trusted.
    small.on_hub(tmp_path / "number", "agnews", {"train": rows, "test": rows})
    with pytest.raises(DataError, match=r"has the label '[01]', but those of agnews are"):
        drawn("agnews", tmp_path / "number")
    rows = invented(3, ("premise",), 2)
    small.on_hub(tmp_path / "field", "cb", {"train": rows, "validation": rows}, ["entailment", "neutral"])
    with pytest.raises(DataError, match=r"'aps/super_glue' \(cb\) has no field 'hypothesis'; its fields are 'premise'"):
        drawn("cb", tmp_path / "field")
    rows = invented(3, ("text",), 0)
    small.on_hub(tmp_path / "none", "imdb", {"train": rows, "test": rows}, ["neg", "pos"])
    with pytest.raises(
        DataError, match=r"part 'train' of the hub's set 'stanfordnlp/imdb' has no example with a label"
    ):
        drawn("imdb", tmp_path / "none")
    assert drawn("subj", ON_HUB) == drawn("cb", tmp_path) == ()


def test_without_network_the_sentence_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"'aps/super_glue' cannot be reached.*`hub/<owner>/<name>`.*`--data fetch`"):
        task_file("cb", "train", files.data_folder("hub"))


@pytest.mark.usefixtures("few")
def test_proxies_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the published files come before what is drawn."""
    rows = invented(8, ("premise", "hypothesis"), 2)
    small.on_hub(tmp_path, "cb", {"train": rows, "validation": rows[:2]}, ["entailment", "neutral"])
    small.publish(tmp_path, "copa")
    small.on_hub(tmp_path, "copa", {"train": rows}, ["choice1", "choice2"])
    made = keys_of(LONG, ("cb", "copa"), tmp_path)
    assert made["run"]["notes"][:-1] == [
        "Proxy task 'cb': drawn from the hub's set 'aps/super_glue' (cb), not the published examples."
    ]
    monkeypatch.setenv(VARIABLE, "hub")
    assert files.data_folder() == files.data_folder("hub") == ON_HUB
    assert all(files.proxy(name, ON_HUB).startswith("drawn from the hub's set") for name in LONG.domains)


# -- The suite `glue`: single tasks that a masked model answers, beside the text that it was pre-trained on ------------


GLUE = find_suite("glue")


@pytest.fixture
def data_of_glue(tmp_path: Path) -> Path:
    """Copies of the tasks, and two sources of general text."""
    folder = tmp_path / "data"
    for name in GLUE.domains:
        small.copied(folder, name)
    for seed, source in enumerate(("books", "wikipedia")):
        for part, count in (("train", 30), ("validation", 6)):
            place = folder / "D0" / source / f"{part}.jsonl.gz"
            place.parent.mkdir(parents=True, exist_ok=True)
            lines = (json.dumps({"text": text}) for text in tiny.texts(count, seed + 10 * count))
            place.write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


def made_of_glue(order: Any, place: Path, folder: Path, method: str = "sequential", **settings: Any) -> Recipe:
    keys = keys_of(GLUE, order, place, REMEDIES[method].methods, **settings)
    return parse(keys | {"run": keys["run"] | {"folder": str(folder)}})


def test_a_recipe_is_one_task_and_general_text(data_of_glue: Path) -> None:
    recipe = made_of_glue(2, data_of_glue, Path("x"))
    assert [domain.name for domain in recipe.domains] == ["mnli"]
    assert recipe.objective == "masked"
    assert recipe.domains[0].target_column == "answer"
    assert recipe.general is not None
    assert recipe.general.path == str(data_of_glue / "D0" / "*" / "train.jsonl.gz")
    [task] = recipe.end_tasks
    assert (task.kind, task.choices) == ("choice", ("neutral", "entailment", "contradiction"))
    assert tuple(GLUE.first) == (
        "sst-2", "mnli", "qqp", "rte", "subj", "trec", "cola", "mrpc", "sts-b", "qnli", "wnli",
    )  # fmt: skip
    assert set(GLUE.first) == {*FORMATS, "subj", "trec"}
    assert len(made_of_glue(GLUE.first, data_of_glue, Path("x")).end_tasks) == 11, "the base model is asked every task"
    shutil.rmtree(data_of_glue / "tasks" / "trec")
    assert "trec" not in GLUE.on(overlay_of({}), data_of_glue).first, "of which there are no examples"
    with pytest.raises(DataError, match=r"'trec' needs its examples, and .* \(no `tasks/trec`\)"):
        made_of_glue(6, data_of_glue, Path("x"))
    own = made_of_glue(1, data_of_glue, Path("x"), general={"path": "mine.txt", "validation": 0.1})
    assert own.general is not None
    assert own.general.path == "mine.txt"


def test_the_nine_tasks_are_scored_as_glue_scores_them(data_of_glue: Path) -> None:
    for task in made_of_glue(GLUE.first, data_of_glue, Path("x")).end_tasks:
        expected = {
            "cola": ("matthews",),
            "sts-b": ("pearson", "spearman"),
            "mrpc": ("accuracy", "positive_f1"),
            "qqp": ("accuracy", "positive_f1"),
            "subj": (),
            "trec": (),
        }
        assert task.scores == expected.get(task.name, ("accuracy",)), task.name
    assert TASKS["qqp"].labels[-1] == TASKS["mrpc"].labels[-1] == "True", "the class of F1"


def test_the_suite_reads_glues_published_files(tmp_path: Path) -> None:
    glue_files.publish(tmp_path / "GLUE")
    assert GLUE.on(overlay_of({}), tmp_path).first == tuple(name for name in GLUE.first if name in FORMATS)
    expected = {
        "cola": ("CoLA", "Text: The cat that I fed slept.", "acceptable"),
        "mrpc": (
            "PI",
            'sentence 1: He said the shop " was open .\nsentence 2: The shop " was open , he said .',
            "True",
        ),
        "sts-b": ("STS", "sentence 1: A man rides.\nsentence 2: A man is riding.", "4.8"),
        "qnli": ("QNLI", "question: Who built it?\nsentence: It was built by Ann.", "True"),
        "wnli": ("NLI", "sentence 1: Ann sold her car to Bo.\nsentence 2: Bo has a car.", "entailment"),
        "rte": ("NLI", "sentence 1: Ann sold her car to Bo.\nsentence 2: Bo has a car.", "entailment"),
        "qqp": ("QQP", "first sentence: How do I bake bread?\nsecond sentence: How is bread baked?", "True"),
    }
    for name, (group, text, answer) in expected.items():
        [found] = [row for row in rows(name, "test", tmp_path) if text in row["prompt"]]
        assert found["answer"] == answer
        assert found["prompt"].startswith(f"Task:{group}\nDataset:{TASKS[name].dataset}\n")
        assert ("Option:" in found["prompt"]) == (name != "sts-b")
        assert files.proxy(name, tmp_path) == ("" if name in GLUE_ONLY else NOT_THE_SAMPLE)
    assert len(rows("mnli", "test", tmp_path)) == 3, "the matched part"


@pytest.mark.parametrize(("task", "scores"), [("cola", {"matthews"}), ("sts-b", {"pearson", "spearman"})])
def test_a_run_has_glues_scores(task: str, scores: set[str], data_of_glue: Path, tmp_path: Path) -> None:
    tiny.model("roberta").save_pretrained(tmp_path / "m")
    tiny.tokenizer().save_pretrained(tmp_path / "m")
    recipe = made_of_glue(
        [task], data_of_glue, tmp_path / "run", model=str(tmp_path / "m"), data={"block_size": 64},
        evaluation={"blocks": 4}, train={"max_steps": 2, "per_device_train_batch_size": 4},
    )  # fmt: skip
    results = ContinualLearner(recipe).run()
    assert scores | {"glue_score", "choice_accuracy"} <= set(results.matrices)
    assert list(results.matrices).index("glue_score") < list(results.matrices).index("choice_accuracy"), "it leads"
    for row in range(2):
        parts = [results.matrices[name].values[row][0] or 0 for name in scores]
        assert results.matrices["glue_score"].values[row][0] == pytest.approx(sum(parts) / len(parts))


NOT_THE_SAMPLE = "GLUE's published files, of which the published examples are a sample"


def test_values_of_the_hub_are_rounded(tmp_path: Path) -> None:
    values = (0.0, 1.25, 3.8, 4.95, -1.0)
    parts = [{"sentence1": f"a {value}", "sentence2": "b", "label": value} for value in values]
    small.on_hub(tmp_path, "sts-b", {"train": parts, "validation": parts})
    train, _ = read("sts-b", tmp_path)
    found = {row["sentence"].split()[3]: row["label"] for row in train}
    assert found == {"0.0": "0.0", "1.25": "1.2", "3.8": "3.8", "4.95": "5.0"}
    small.on_hub(tmp_path / "other", "sts-b", {"train": [parts[0] | {"label": 5.4}], "validation": parts})
    with pytest.raises(DataError, match=r"\(stsb\) has the label '5\.4', but those of STS-B are 0\.0, 0\.2"):
        read("sts-b", tmp_path / "other")


def test_what_a_recipe_of_glue_refuses(data_of_glue: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"`suite\.answers` in the settings must be 'chosen'"):
        made_of_glue(1, data_of_glue, tmp_path, suite_keys={"answers": "head"})
    with pytest.raises(RecipeError, match=r"Unknown key `end_tasks\.0\.learning_rate`"):
        made_of_glue(1, data_of_glue, tmp_path, end_tasks={"*": {"learning_rate": 1e-3}})
    with pytest.raises(RecipeError, match="has no domain 'sst2'"):
        made_of_glue(["sst2"], data_of_glue, tmp_path)
    with pytest.raises(DataError, match="has no general text"):
        made_of_glue(1, small_folder(tmp_path), tmp_path)


def small_folder(tmp_path: Path) -> Path:
    for name in GLUE.domains:
        small.copied(tmp_path / "other", name)
    return tmp_path / "other"


def test_rows_are_methods_that_there_are() -> None:
    for name, system in REMEDIES.items():
        assert [entry.title for entry in resolve([name], GLUE)] == [system.title]
        assert {method["name"] for method in system.methods} <= {*names()}


def test_a_task_is_learnt_and_pre_training_measured(data_of_glue: Path, tmp_path: Path) -> None:
    tiny.model("roberta").save_pretrained(tmp_path / "m")
    tiny.tokenizer().save_pretrained(tmp_path / "m")
    recipe = made_of_glue(
        1, data_of_glue, tmp_path / "run", "ewc", model=str(tmp_path / "m"), data={"block_size": 64},
        evaluation={"blocks": 4}, grid={"importance_samples": 4},
        train={"max_steps": 3, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1,
               "learning_rate": 1e-2},
    )  # fmt: skip
    results = ContinualLearner(recipe).run()
    assert results.matrices["choice_accuracy"].values[1][0] is not None
    bits = results.matrices["bits_per_byte"]
    assert bits.columns == ["sst-2", "general"]
    before, after = bits.values[0], bits.values[1]
    assert after[0] < before[0], "answers are learnt"  # type: ignore[operator]
    assert after[1] != before[1], "general text is measured as masked text"


def test_general_text_of_examples_isolates_them_too(tmp_path: Path) -> None:
    """Packed beside each other, an encoder would read the prompts and answers of the others."""
    tiny.model("roberta").save_pretrained(tmp_path / "m")
    tiny.tokenizer().save_pretrained(tmp_path / "m")
    examples = tmp_path / "examples.jsonl"
    examples.write_text("".join(json.dumps({"prompt": text, "answer": "yes"}) + "\n" for text in tiny.texts(8, 1)))
    recipe = parse(
        {
            "model": {"path": str(tmp_path / "m")},
            "domains": [{"name": "plain", "path": str(examples), "text_column": "prompt"}],
            "general": {"path": str(examples), "text_column": "prompt", "target_column": "answer"},
            "run": {"folder": str(tmp_path / "run"), "name": "x"},
        }
    )
    objective: Any = ContinualLearner(recipe).setting().objective
    assert objective.isolate
