"""Mistakes that take more than one step to make; those of one step are in tests/mistakes."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest

from cli_project import Project


def test_errors_are_json_when_json_is_asked_for(everlearn: Project) -> None:
    outcome = everlearn.fails("methods", "ecw", "--json", says=("ecw",))
    assert "ecw" in json.loads(outcome.out)["error"]


def test_a_run_is_not_compared_with_itself(everlearn: Project, finished_run: Path) -> None:
    shutil.copytree(finished_run, everlearn.run_folder)
    (everlearn.folder / "link").symlink_to(everlearn.run_folder)
    for again in ("runs/first", "runs/../runs/first/", "link"):
        everlearn.fails("report", "runs/first", again, says=("'runs/first' is given twice", "Name each run once"))


def test_damaged_stage(everlearn: Project, finished_run: Path) -> None:
    shutil.copytree(finished_run, everlearn.run_folder)
    # A damaged stage is named, and nothing is deleted.
    weights = everlearn.run_folder / "stage-01-a" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    everlearn.fails("resume", "runs/first", says=("stage-01-a", "model.safetensors", "damaged"))
    assert weights.is_file()


def test_loss_that_is_not_finite(everlearn: Project) -> None:
    everlearn.recipe["train"] |= {"learning_rate": 2e9, "max_grad_norm": 0.0}
    everlearn.fails("run", "recipe.yaml", says=("'a'", "not finite from step", "train.learning_rate"))
    assert not (everlearn.run_folder / "stage-01-a").exists()


def test_full_disk(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from everlearn.run.trainer import StageTrainer

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(StageTrainer, "_save_rng_state", full)
        everlearn.fails("run", "recipe.yaml", says=("disk is full", "checkpoint-2", "everlearn resume"))
    assert everlearn("resume", "runs/first").code == 0


def test_full_disk_anywhere_else(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    monkeypatch.setattr("everlearn.commands.saved_tables.methods", full)
    everlearn.fails("methods", says=("disk is full", "somewhere"))


def test_an_unexpected_error_keeps_its_traceback(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("everlearn.commands.saved_tables.methods", broken)
    with pytest.raises(ZeroDivisionError):
        everlearn("methods")


def test_no_file_of_a_failed_command_is_left(everlearn: Project) -> None:
    everlearn.recipe["domains"][1]["path"] = "nowhere.jsonl"
    everlearn.fails("run", "recipe.yaml", says=("nowhere.jsonl",))
    everlearn.fails("plan", "recipe.yaml", "--no-measure", says=("nowhere.jsonl",))
    assert not Path("runs").exists()
