"""Continual fine-tuning on tasks as a user types it: one command, tiny models, two tasks, a handful of steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import continual_tasks as small
from cli_project import Project
from everlearn_bench.suites import SUITES
from everlearn_bench.suites.continual_tasks.suite import StandardCL
from everlearn_bench.suites.sources import Fetchable

TASKS = ("copa", "mnli")
SETTINGS = {
    "data": {"block_size": 64},
    "domains": {"*": {"max_documents": 8}},
    "train": {
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-3,
    },
    "evaluation": {"blocks": 2},
}


class TwoTasks(StandardCL):
    """Two of the tasks, in both orders."""

    name = "two-tasks"
    orders = {1: TASKS, 2: TASKS[::-1]}  # noqa: RUF012 - see Suite
    sources = (Fetchable("a", "http://127.0.0.1:9/a", "none"),)


@pytest.fixture
def data(everlearn: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setitem(SUITES, "two-tasks", TwoTasks())
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in TASKS:
        small.publish(everlearn.folder / "data", name)
    return everlearn.folder / "data"


def bench(everlearn: Project, model: str, methods: str, *words: str, **settings: Any) -> Any:
    (everlearn.folder / "tasks.yaml").write_text(yaml.safe_dump(SETTINGS | settings))
    shared = ("--seeds", "0", "--settings", "tasks.yaml", "--data", "data", "--json")
    done = everlearn(
        "bench", "two-tasks", "--methods", methods, "--model", str(everlearn.models / model), *shared, *words
    )
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_one_command_runs_an_order(everlearn: Project, data: Path) -> None:
    value = bench(
        everlearn,
        "t5",
        "ft,inc_lora+migu,mtl,per_task,constant",
        *("--orders", "2", "-o", "page.md", "--claims", "c.md"),
        end_tasks={"*": {"max_test": 4}},
        grid={"rows": {"inc_lora+migu": {"train.learning_rate": 0.01}}},
    )
    assert [cell["state"] for cell in value["cells"]] == ["done"] * 5
    assert [line["title"] for line in value["lines"]] == [
        "Most frequent label",
        "FT",
        "IncLoRA + MIGU",
        "One model per task (PerTaskFT)",
        "All tasks at once (MTL)",
    ]
    numbers = {line["entry"]: line["numbers"] for line in value["lines"]}
    assert {"accuracy", "accuracy_micro", "accuracy_bwt", "accuracy_fwt_over_all"} <= set(numbers["sequential"])
    assert numbers["mtl"].keys() >= {"accuracy", "accuracy_micro", "bits"}
    cell = json.loads((everlearn.folder / "bench/two-tasks/inc_lora+migu-order2-seed0.json").read_text())
    assert cell["domains"] == ["mnli", "copa"]
    table = cell["matrices"]["exact_match"]
    assert (table["rows"], table["columns"]) == (["base", "mnli", "copa"], ["mnli", "copa"])
    assert len(table["cells"]) == 6
    assert all(0 <= value <= 1 for _, _, value, *_ in table["cells"])
    assert cell["grid"]["options"]["train.learning_rate"] == 0.01
    assert cell["grid"]["examples"]["mnli"] == 4
    page = (everlearn.folder / "page.md").read_text()
    assert "### End tasks along the stream (accuracy)" in page
    assert "### Beside the MIGU paper on " in page
    assert "not measured yet" in (everlearn.folder / "c.md").read_text()


def test_a_decoder_chooses_the_likeliest_label(everlearn: Project, data: Path) -> None:
    value = bench(everlearn, "llama", "migu,constant", suite={"answers": "chosen"}, end_tasks={"*": {"max_test": 4}})
    assert [line["title"] for line in value["lines"]] == ["Most frequent label", "FT + MIGU"]
    cell = json.loads((everlearn.folder / "bench/two-tasks/migu-order1-seed0.json").read_text())
    assert "macro_f1" not in cell["matrices"]
    assert set(cell["matrices"]["choice_accuracy"]["columns"]) == {"copa", "mnli"}
    assert value["lines"][1]["numbers"].keys() >= {"accuracy", "accuracy_learnt", "accuracy_micro"}


def test_an_encoder_is_given_a_head(everlearn: Project, data: Path) -> None:
    value = bench(
        everlearn,
        "roberta",
        "ft",
        suite={"answers": "head"},
        end_tasks={"*": {"max_train": 8, "max_test": 4, "epochs": 0.9}},
    )
    assert value["lines"][0]["numbers"].keys() >= {"accuracy", "bits"}
    (everlearn.folder / "bare.yaml").write_text("{grid: {rows: {nothing: {train.learning_rate: 1}}}}")
    words = ("bench", "two-tasks", "--methods", "ft", "--model", "m", "--data", "data", "--settings", "bare.yaml")
    everlearn.fails(*words, says=("`grid.rows` names 'nothing'",))


def test_fetching_from_nowhere_says_where_to_get_it(everlearn: Project, data: Path) -> None:
    everlearn.fails(
        *("bench", "two-tasks", "--data", "fetch"),
        says=("http://127.0.0.1:9/a could not be fetched", "CL_Benchmark", "github.com/cmnfriend/O-LoRA"),
    )
    everlearn.fails("bench", "docs", "--data", "fetch", says=("`docs` has nothing to fetch",))
