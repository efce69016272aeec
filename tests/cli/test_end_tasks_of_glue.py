"""GLUE's tasks from the command line: run, resume, evaluate."""

from __future__ import annotations

import json
import shutil

import pytest

import glue_files
from cli_project import Project
from everlearn.evaluation import Cell, Results, task_path


@pytest.fixture
def asked(everlearn: Project) -> Project:
    everlearn.recipe["domains"] = everlearn.recipe["domains"][:1]
    everlearn.recipe["evaluation"] |= {"blocks": 4, "end_task_seeds": 2}
    everlearn.recipe["train"]["max_steps"] = 2
    options = {"kind": "glue", "path": "GLUE", "epochs": 1, "max_length": 32, "learning_rate": 1e-3, "batch_size": 8}
    everlearn.recipe["end_tasks"] = [{"name": task, "task": task, **options} for task in ("cola", "sts-b")]
    for task in ("cola", "sts-b"):
        glue_files.learnable(everlearn.folder / "GLUE", task)
    return everlearn


def test_a_run_is_scored_saved_and_resumed(asked: Project) -> None:
    said = asked("validate", "recipe.yaml")
    assert said.code == 0, said.err
    assert "24 to learn from, 12 to test, 2 labels" in said.out
    assert "24 to learn from, 12 to test, values from 0 to 5" in said.out
    assert asked("run", "recipe.yaml").code == 0
    first = Results.load(asked.run_folder)
    assert first.matrices["glue_score"].columns == ["cola", "sts-b"]
    assert first.matrices["matthews"].columns == ["cola"]
    assert first.matrices["pearson"].columns == first.matrices["spearman"].columns == ["sts-b"]
    (cola, score), (_, after) = first.matrices["glue_score"].values
    parts = [first.matrices[name].cell(0, "sts-b").value for name in ("pearson", "spearman")]
    assert score == pytest.approx(sum(parts) / 2)  # type: ignore[arg-type]
    assert after is not None
    matthews = first.matrices["matthews"].cell(0, "cola").value
    assert cola == matthews
    mean = (cola + score) / 2  # type: ignore[operator]
    assert f"GLUE score at 'base', mean of 2 end tasks: {mean:.4f}." in first.notes
    cell = task_path(asked.run_folder / "evaluation", 1, "sts-b")
    values = Cell.load(cell)["values"]
    assert values.shape == (2, 12)
    shutil.rmtree(cell.parent)
    (asked.run_folder / "results.json").unlink()
    assert asked("resume", "runs/first").code == 0
    assert Cell.load(cell)["values"].tolist() == values.tolist()
    assert Results.load(asked.run_folder).matrices == first.matrices
    shown = asked("report", "runs/first", "--format", "markdown")
    assert shown.code == 0, shown.err


def test_existing_models_are_evaluated(asked: Project) -> None:
    found = asked("evaluate", f"base={asked.models / 'roberta'}", "--on", "recipe.yaml", "-o", "measured", "--json")
    assert found.code == 0, found.err
    tables = json.loads(found.out)["matrices"]
    assert [cell[:2] for cell in tables["glue_score"]["cells"]] == [["base", "cola"], ["base", "sts-b"]]


def test_a_missing_file_is_named_before_the_run(asked: Project) -> None:
    (asked.folder / "GLUE" / "CoLA" / "dev.tsv").unlink()
    asked.fails("run", "recipe.yaml", says=("dev.tsv", "CoLA"))
