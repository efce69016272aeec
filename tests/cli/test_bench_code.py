"""``everlearn bench code``: a small causal model learns code; what it solves and what it forgets meanwhile."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import tiny
from bench_suite import keys_of
from cli_project import Project
from everlearn.comparison.during_training import axes, moments
from everlearn.comparison.runs import read_run
from everlearn.config.recipe import Recipe, parse
from everlearn.errors import DataError, RecipeError
from everlearn.evaluation import Cell, task_path
from everlearn.evaluation.results import Waypoint
from everlearn.grid import load_results
from everlearn.grid.rows import resolve
from everlearn.learner import ContinualLearner
from everlearn_bench.code_tasks.sandbox import check_available
from everlearn_bench.code_tasks.sandbox.calls import SandboxError
from everlearn_bench.suites import find_suite
from everlearn_bench.suites import locate as located
from everlearn_bench.suites.code import VARIABLE, build, corpus

STEPS = 4
SMALL = {"data": {"block_size": 32}, "train": {"max_steps": STEPS, "per_device_train_batch_size": 2}}
NOT_RUN = {"end_tasks": {"humaneval": {"run_code": False}}}
ADD = {
    "task_id": "a/0",
    "prompt": "def add(a, b):\n",
    "entry_point": "add",
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
}


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def data(everlearn: Project) -> Path:
    """Own small files in the places of the evaluation sets, and a random model."""
    folder, texts = everlearn.folder / "data", tiny.texts(30, 5, words=8)
    choices = [
        {"query": text, "choices": ["rows", "columns", "the mean"], "gold": i % 3} for i, text in enumerate(texts)
    ]
    lines(folder / "eval/humaneval.jsonl", [ADD, {**ADD, "entry_point": "sub", "prompt": "def sub(a, b):\n"}])
    lines(folder / "eval/hellaswag_1000.jsonl", choices[:20])
    lines(folder / "eval/arc_challenge.jsonl", choices[10:])
    lines(
        folder / "eval/winogrande.jsonl",
        [
            {"context_options": ["a graph", "a plot"], "continuation": text, "gold": i % 2}
            for i, text in enumerate(texts)
        ],
    )
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.model_max_length = 128
    tiny.model("llama").save_pretrained(everlearn.folder / "model")
    tokenizer.save_pretrained(everlearn.folder / "model")
    lines(everlearn.folder / "code.jsonl", [{"text": f"def f{i}():\n    return {i}\n"} for i in range(200)])
    settings = {
        "data": {"block_size": 32}, "evaluation": {"blocks": 4}, "domains": {"code": {"path": "code.jsonl"}},
        "end_tasks": {"humaneval": {"max_new_tokens": 8}},
        "train": {"max_steps": STEPS, "per_device_train_batch_size": 2, "learning_rate": 0.01, "logging_steps": 1},
    }  # fmt: skip
    (everlearn.folder / "small.yaml").write_text(json.dumps(settings))
    return folder


def recipe(everlearn: Project, place: Path, name: str = "run", **changes: Any) -> dict[str, Any]:
    own = {"code": {"path": str(everlearn.folder / "code.jsonl")}}
    given = {"model": str(everlearn.folder / "model"), "domains": own, "train": {"max_steps": STEPS}, **NOT_RUN}
    keys = keys_of(find_suite("code"), 0, place, **given | changes)
    return keys | {"run": keys["run"] | {"name": name, "seed": 1, "folder": str(everlearn.folder / name)}}


def test_both_curves_from_one_command(everlearn: Project, data: Path) -> None:
    try:
        check_available()
    except SandboxError as error:
        pytest.skip(str(error))
    words = ("bench", "code", "--methods", "sequential,migu", "--seeds", "0", "--model", "model", "--data", "data")
    done = everlearn(*words, "--settings", "small.yaml", "--run-code", "--json")
    assert done.code == 0, done.err
    value = json.loads(done.out)
    assert [cell["state"] for cell in value["cells"]] == ["done", "done"]
    for line in value["lines"]:
        assert line["numbers"]["pass_at_1"]["value"] == 0.0
        assert {"kept", "kept_forgotten", "solution_bits_per_byte", "bits_learnt"} <= line["numbers"].keys()
    cell = json.loads((everlearn.folder / "bench/code/migu-order0-seed0.json").read_text())
    points = cell["grid"]["points"]
    assert [point["tokens"] for point in points] == [64 * step for step in range(1, STEPS)]  # each but the last
    for point in points:
        assert point["learnt"].keys() >= {"bits_per_byte", "pass_at_1", "solution_bits_per_byte"}
        assert point["kept"]["choice_accuracy_per_byte"].keys() == {"hellaswag", "winogrande", "arc_challenge"}
    own, plain = (moments(each) for each in load_results(everlearn.folder / "bench/code"))
    assert [point.tokens for point in own] == [64 * step for step in range(STEPS + 1)]
    assert plain[0] == own[0]
    assert plain[-1] != own[-1]  # the one domain is masked from its first step
    page = (everlearn.folder / "bench/code/index.html").read_text()
    assert "What is learnt, and tasks of no domain, at the end" in page
    assert "a line a run, from the base model (0, 0)" in page
    assert "2 ways to learn 1 domain</h1>" in page
    assert all(f"</b> {title}</span>" in page for title in ("Sequential", "MIGU"))
    assert "Effect of the order" not in page
    assert "Beside MIGU, EMNLP 2024, Llama-2-7B" in page
    assert "A small base model solves no problem of HumanEval" in page
    judged = everlearn("bench", "code", "--show", "--claims", "claims.md")
    assert judged.code == 0, judged.err
    assert "kept more of general abilities" in (everlearn.folder / "claims.md").read_text()
    runs = [f"runs/bench-code/{name}-order0-seed0/run" for name in ("sequential", "migu")]
    assert everlearn("report", *runs, "-o", "report.html").code == 0
    report = (everlearn.folder / "report.html").read_text()
    assert "<h3>Learning against forgetting while training</h3>" in report
    assert report.count("a line a run, from the base model (0, 0)") >= 3  # of code, of pass@1, of solutions


def test_text_is_drawn_against_text_too() -> None:
    learnt = {"bits_per_byte": {"code": 2.0}, "pass_at_1": {"humaneval": 0.0}}
    answers = {"choice_accuracy_per_byte": {"hellaswag": 0.25}}
    bits, accuracy = "bits_per_byte", "choice_accuracy_per_byte"
    found = axes(Waypoint(tokens=0.0, learnt=learnt, kept={"bits_per_byte": {"general": 1.5}, **answers}))
    assert [(own.learnt[0], own.kept[0]) for own in found] == [(bits, accuracy), ("pass_at_1", accuracy), (bits, bits)]
    assert found[-1].labels == ("bits/byte learnt (code)", "bits/byte forgotten (general)")
    assert [own.kept[0] for own in axes(Waypoint(tokens=0.0, learnt=learnt, kept=answers))] == [accuracy, accuracy]


def test_asking_inside_a_stage_changes_no_training_and_says_what_the_cells_say(everlearn: Project, data: Path) -> None:
    weights, ends = [], []
    for name, every in (("asked", 1), ("again", 3), ("not", None)):
        raw = recipe(everlearn, data, name, **SMALL)
        raw["evaluation"] |= {"tasks_every": every, "every": None}
        raw["data"]["cache"] = str(everlearn.folder / "cache")
        ContinualLearner(parse(raw)).run()
        folder = everlearn.folder / name
        weights.append((folder / "stage-01-code" / "model.safetensors").read_bytes())
        found = [
            line for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if "tasks" in line
        ]
        assert [line["step"] for line in found] == ([] if every is None else list(range(every, STEPS, every)))
        assert all("bits_per_byte" not in line for line in found)
        along = moments(read_run(folder))
        assert len(along) == (0 if every is None else 2 + len(found))
        if along:
            ends.append(along[-1])
            base = Cell.load(task_path(folder / "evaluation", 0, "humaneval"))
            bits = base["solution_nats"].sum() / base["solution_bytes"].sum() / 0.6931471805599453
            assert along[0].learnt["solution_bits_per_byte"]["humaneval"] == pytest.approx(bits, rel=1e-6)
            assert along[0].kept["choice_accuracy"].keys() == {"hellaswag", "winogrande", "arc_challenge"}
    assert weights[0] == weights[1] == weights[2]
    assert ends[0] == ends[1]


def test_plan_counts_what_is_asked_inside(everlearn: Project, data: Path) -> None:
    raw = recipe(everlearn, data, data={"block_size": 32})
    (everlearn.folder / "code.yaml").write_text(json.dumps(raw))
    before = json.loads(everlearn("plan", "code.yaml", "evaluation.tasks_every=null", "--no-measure", "--json").out)
    after = json.loads(everlearn("plan", "code.yaml", "--no-measure", "--json").out)
    assert after["evaluation"]["tasks"] == before["evaluation"]["tasks"] + 4 * (STEPS - 1)


# -- what is refused ----------------------------------------------------------------------------------------------


def test_running_programs_must_be_asked_for(everlearn: Project, data: Path) -> None:
    words = ("bench", "code", "--methods", "sequential", "--model", "model", "--data", "data")
    everlearn.fails(*words, says=("runs programs that the model writes, in a sandbox", "--run-code", "--no-run-code"))
    task = {"kind": "code", "name": "h", "test": str(data / "eval/humaneval.jsonl")}
    raw = recipe(everlearn, data) | {"end_tasks": [task]}
    with pytest.raises(RecipeError, match=r"`end_tasks.0` .*: end task 'h' runs programs .* `run_code: true`"):
        parse(raw)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": None}, r"needs a base model: `--model`"),
        (
            {"domains": {"cod": {"path": "x"}}},
            r"`domains.cod` in the settings: the suite has code.*Did you mean 'code'",
        ),
        ({"tokens": 1}, r"less than one step"),
    ],
)
def test_settings_that_do_not_fit(change: dict[str, Any], sentence: str, everlearn: Project, data: Path) -> None:
    with pytest.raises(RecipeError, match=sentence):
        recipe(everlearn, data, **change)


@pytest.mark.parametrize("name", ["docs", "six-domains"])
def test_other_suites_have_no_programs(name: str) -> None:
    with pytest.raises(RecipeError, match=rf"no end task of the suite `{name}` has programs"):
        find_suite(name).programs()


def test_orders_addresses_and_files(everlearn: Project, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = find_suite("code")
    with pytest.raises(RecipeError, match="no order 1; it has 0"):
        suite.chosen(1)
    with pytest.raises(RecipeError, match=r"has no domain 'a'"):
        suite.chosen(("a", "b"))
    with pytest.raises(RecipeError, match=r"has no 'trian.jsonl'.*Did you mean 'train.jsonl'"):
        located("code/trian.jsonl")
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(DataError, match=r"`code` brings no data along\. Set EVERLEARN_CODE, or `--data`"):
        located("code/humaneval.jsonl")
    monkeypatch.setenv(VARIABLE, str(data / "nowhere"))
    with pytest.raises(DataError, match=r"EVERLEARN_CODE is '.*nowhere', and there is no such folder"):
        located("code/humaneval.jsonl")
    monkeypatch.setenv(VARIABLE, str(data))
    assert located("code/hellaswag.jsonl") == data / "eval/hellaswag_1000.jsonl"
    (data / "eval/winogrande.jsonl").unlink()
    with pytest.raises(DataError, match=r"needs '.*winogrande.jsonl.gz' \(or .jsonl\)"):
        recipe(everlearn, data)


def test_general_text_is_taken_where_there_is_some(everlearn: Project, data: Path) -> None:
    assert "general" not in recipe(everlearn, data)
    for part in ("train", "validation"):
        lines(data / f"D0/wikipedia/{part}.jsonl", [{"text": "some text"}])
    assert recipe(everlearn, data)["general"]["path"] == str(data / "D0/wikipedia/train.jsonl")
    own = {"code": {"path": "x", "target_column": "answer"}}
    made = recipe(everlearn, data, domains=own, general="y")
    assert (made["objective"], made["general"]["path"]) == ("text-to-text", "y")
    assert recipe(everlearn, data)["objective"] == "causal"


def test_tasks_every_needs_a_task_that_is_asked_as_it_is(everlearn: Project) -> None:
    everlearn.recipe["evaluation"] = {"tasks_every": 2}
    with pytest.raises(
        RecipeError, match=r"`evaluation.tasks_every` evaluates end tasks during a stage, but `end_tasks` has"
    ):
        parse(everlearn.recipe)


def test_functions_of_installed_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path))
    monkeypatch.setattr(corpus, "HELD_OUT", 30)
    monkeypatch.setattr(corpus, "MOST", 60_000)
    made = build(("jinja2",))
    parts = {
        part: [json.loads(line)["text"] for line in (made / f"{part}.jsonl").read_text().splitlines()]
        for part in ("train", "validation")
    }
    assert all(len(texts) > 5 for texts in parts.values())
    assert not set(parts["train"]) & set(parts["validation"])
    for text in (*parts["train"], *parts["validation"]):
        assert text.startswith("def ")
        compile(text, "function", "exec")
        assert corpus.SHORTEST <= len(text) <= corpus.LONGEST
    before = made.stat().st_mtime_ns
    assert build(("jinja2",)) == made
    assert made.stat().st_mtime_ns == before
    with pytest.raises(DataError, match="reads the functions of 'nothing_of_this_name', which is not installed"):
        build(("nothing_of_this_name",))
    assert list(corpus.functions("def broken(:")) == []


def test_the_recipe_of_the_suite_is_the_papers_where_it_says_something(everlearn: Project, data: Path) -> None:
    made: Recipe = parse(recipe(everlearn, data, train={}, tokens=16 * 512 * 50))
    train = made.train
    assert (train["max_steps"], train["learning_rate"], train["lr_scheduler_type"]) == (50, 5e-4, "cosine")
    assert (train["warmup_steps"], train["weight_decay"], train["adam_beta2"]) == (5, 0.0, 0.95)
    assert made.evaluation.tasks_every == made.evaluation.every == 7
    kinds = {task.name: (task.kind, task.domain) for task in made.end_tasks}
    assert kinds == {
        "humaneval": ("code", "code"),
        "hellaswag": ("choice", None),
        "winogrande": ("schema", None),
        "arc_challenge": ("choice", None),
    }


def test_the_papers_own_pair_is_masked_from_its_first_step(everlearn: Project, data: Path) -> None:
    """What the paper calls FT is LoRA; there is one domain, and MIGU leaves no first one alone."""
    code = find_suite("code")
    (row,) = resolve(["LoRA+MIGU"], code)
    made = keys_of(code, 0, data, row.methods, domains={"code": {"path": "code.jsonl"}}, **NOT_RUN)
    assert made["method"] == [{"name": "lora"}, {"name": "migu", "skip_first_domain": False}]


def test_the_papers_numbers_and_claims_are_about_lora_and_full_fine_tuning_is_named_as_ours() -> None:
    code = find_suite("code")
    assert code.published is not None
    assert code.claims is not None
    assert code.published.rows == {"lora": (58.4,), "lora+migu": (59.4,)}
    pairs = {
        (claim.sentence.startswith("Our addition: "), asked.entry, asked.other)
        for claim in code.claims.claims
        for asked in claim.questions
    }
    assert pairs == {(False, "lora+migu", "lora"), (True, "migu", "sequential")}
