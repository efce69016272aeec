"""Ctrl-C, SIGTERM, SIGHUP and damaged checkpoints: saved, said how to go on, the same weights in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cli_project import Project
from everlearn import files
from everlearn.evaluation.results import Results
from everlearn.run import interruption

pytestmark = pytest.mark.usefixtures("signals_as_in_a_terminal")


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped_and_resumed(everlearn: Project, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    everlearn.saves()
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
    everlearn.saves()
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

    monkeypatch.setattr("everlearn.commands.saved_tables.methods", interrupted)
    stopped = everlearn("methods")
    assert stopped.code == 130
    assert stopped.err.startswith("Stopped.")


PHASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "loading": ("everlearn.run.open_run.load_model", ("run", "recipe.yaml")),
    "checks": ("everlearn.run.checks._methods", ("validate", "recipe.yaml")),
    "tokenising": ("everlearn.run.open_run.prepare", ("run", "recipe.yaml")),
    "plan": ("everlearn.run.open_run.prepare", ("plan", "recipe.yaml")),
    "survey": ("everlearn.commands.data_report.load_skeleton", ("data", "recipe.yaml")),
    "evaluate": (
        "everlearn.tasks.held_out.HeldOutText.measure",
        ("evaluate", "{models}/roberta", "--on", "recipe.yaml"),
    ),
    "a grid": ("everlearn.run.open_run.prepare", ("sweep", "recipe.yaml", "--methods", "sequential")),
}
"""Phase → what it calls, and a command that comes by."""
IN_A_RUN: dict[str, str] = {
    "held-out text": "everlearn.run.row_scorer.RowScorer._measure_together",
    "importance": "everlearn.methods.penalties.ewc.EWC.end_domain",
    "the page": "everlearn.report.write_report",
}
"""The same once the run folder is there."""


def sends(number: int) -> Callable[..., None]:
    def send(*_: object, **__: object) -> None:
        os.kill(os.getpid(), number)
        raise AssertionError("the signal was not heard")

    return send


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_outside_of_training_ends_in_a_sentence(
    everlearn: Project, monkeypatch: pytest.MonkeyPatch, phase: str, number: int
) -> None:
    place, command = PHASES[phase]
    monkeypatch.setattr(place, sends(number))
    before = signal.getsignal(number)
    stopped = everlearn(*(word.format(models=everlearn.models) for word in command))
    assert stopped.code == 130
    assert stopped.err.splitlines()[-1].startswith("Stopped.")
    assert "resume" not in stopped.err, "there is no run yet"
    assert "Traceback" not in stopped.err
    assert signal.getsignal(number) is before
    assert not list(everlearn.folder.rglob(f"{files.PARTIAL}*"))


def test_a_signal_between_stages_names_the_run_to_resume(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    everlearn.saves()
    everlearn.recipe["method"] = [{"name": "ewc", "samples": 8}]
    assert everlearn("run", "recipe.yaml", "run.name=whole").code == 0
    command: tuple[str, ...] = ("run", "recipe.yaml")
    for place in IN_A_RUN.values():
        with monkeypatch.context() as patched:
            patched.setattr(place, sends(signal.SIGTERM))
            stopped = everlearn(*command)
        assert stopped.code == 130
        assert "`everlearn resume runs/first`" in stopped.err.splitlines()[-1]
        assert "Traceback" not in stopped.err
        command = ("resume", "runs/first")
    assert everlearn(*command).code == 0
    for stage in ("stage-01-a", "stage-02-b"):
        name = f"{stage}/model.safetensors"
        assert files.digest(everlearn.run_folder / name) == files.digest(everlearn.folder / "runs" / "whole" / name)


def test_sigterm_before_anything_is_loaded(everlearn: Project) -> None:
    everlearn.write()
    code = (
        "import os, signal, sys\n"
        "from everlearn import cli\n"
        "original = cli.application\n"
        "def application(words=()):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return original(words)\n"
        "cli.application = application\n"
        "sys.exit(cli.main(['run', 'recipe.yaml']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.startswith("Stopped.")
    assert done.stderr.count("\n") == 1


def test_nohup_stays_nohup(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signal_at(2, signal.SIGHUP, monkeypatch):
            assert everlearn("run", "recipe.yaml").code == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_help_does_not_load_torch() -> None:
    code = (
        "import sys; from everlearn.cli import main; main(['--help']); main(['plna'])\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), 'heavy'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_domain_of_two_sources_is_learnt_resumed_and_accounted_for(everlearn: Project) -> None:
    everlearn.recipe["domains"] = [
        {"name": "a", "sources": [{"path": "a.jsonl", "weight": 3}, {"path": "b.jsonl"}], "validation": 0.2}
    ]
    everlearn.recipe["general"] = {"path": "b.jsonl", "validation": 0.2}
    outcome = everlearn("run", "recipe.yaml")
    assert outcome.code == 0, outcome
    results = Results.load(everlearn.run_folder)
    shares = {share.source: (share.asked, share.realised) for share in results.mixture}
    assert shares == {"a": (0.75, 0.75), "b": (0.25, 0.25)}  # 4 steps of 4 rows
    note = "'a' and 'general' read the same file"
    assert any(note in sentence for sentence in results.notes)
    assert outcome.err.count(note) == 1
    assert note in (everlearn.run_folder / "report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    assert everlearn.call("resume", str(everlearn.run_folder)).code == 0
