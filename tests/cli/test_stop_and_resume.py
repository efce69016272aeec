"""Ctrl-C, SIGTERM and damaged checkpoints: saved, said how to go on, the same weights in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cli_project import Project
from everlearn import files
from everlearn.run import interruption


@contextmanager
def signal_at(step: int, number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A real signal to this process at the end of a training step."""
    original = interruption._Callback.on_step_end

    def with_signal(self, args, state, control, **kwargs):
        if state.global_step == step:
            os.kill(os.getpid(), number)
        return original(self, args, state, control, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(interruption._Callback, "on_step_end", with_signal)
        yield


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_and_resumed(everlearn: Project, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    everlearn.recipe["method"] = [{"name": "das", "samples": 8}, "replay"]
    assert everlearn("run", "recipe.yaml", "run.name=whole").code == 0
    with signal_at(3, number, monkeypatch):
        stopped = everlearn("run", "recipe.yaml")
    assert stopped.code == 130
    assert "everlearn resume runs/first" in stopped.err
    assert "Traceback" not in stopped.err
    assert (everlearn.run_folder / "stage-01-a.training" / "checkpoint-3").is_dir()
    assert everlearn("resume", "runs/first").code == 0
    for stage in ("stage-01-a", "stage-02-b"):
        name = f"{stage}/model.safetensors"
        assert files.digest(everlearn.run_folder / name) == files.digest(everlearn.folder / "runs" / "whole" / name)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    everlearn: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with signal_at(3, signal.SIGTERM, monkeypatch):
        assert everlearn("run", "recipe.yaml").code == 130
    newest = everlearn.run_folder / "stage-01-a.training" / "checkpoint-3"
    (newest / "model.safetensors").write_bytes(b"no weights")
    outcome = everlearn("resume", "runs/first")
    assert outcome.code == 0
    assert "checkpoint-3" in outcome.err
    assert "damaged" in outcome.err


def test_ctrl_c_outside_training(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("everlearn.tools.describing.describe_all", interrupted)
    assert everlearn("methods").code == 130


def test_a_user_mistake_in_a_process_of_its_own(everlearn: Project) -> None:
    everlearn("--version")
    command = [sys.executable, "-c", "import sys; from everlearn.cli import main; sys.exit(main())"]
    done = subprocess.run([*command, "run", "recipe.yaml", "run.seed=-1"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Error: `run.seed`")
    assert "Traceback" not in done.stderr


def test_help_does_not_load_torch() -> None:
    code = (
        "import sys; from everlearn.cli import main; main(['--help']); main(['plna'])\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), 'heavy'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
