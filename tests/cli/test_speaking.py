"""What the command line says while it works, what a program gets from it, and what the shell completes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_project import Project
from everlearn.cli import main
from everlearn.cli.methods import names
from everlearn.config.recipe import parse
from everlearn.errors import Interrupted
from everlearn.learner import ContinualLearner
from everlearn.methods import names as registered
from everlearn.run.forecast import AROUND, PASSES, ROWS, SAMPLES, SETS
from everlearn.run.trainer import StageTrainer

LINE = re.compile(
    r"^\d\d:\d\d:\d\d  (\w+ \d/\d)  step (\d/\d)  loss \d+\.\d+  learning rate \S+  [\d,]+ tokens/s  "
    r"(?:stage ~\S+ \S+ left  )?run ~\S+ \S+ left$",
    re.MULTILINE,
)


def test_a_line_for_each_logging_step(everlearn: Project) -> None:
    everlearn.recipe["train"]["logging_steps"] = 2
    outcome = everlearn("run", "recipe.yaml")
    assert outcome.code == 0
    assert LINE.findall(outcome.err) == [("a 1/2", "2/4"), ("a 1/2", "4/4"), ("b 2/2", "2/4"), ("b 2/2", "4/4")]
    assert not LINE.search(outcome.out)


def test_quiet_says_where_the_report_is_and_nothing_else(everlearn: Project) -> None:
    outcome = everlearn("run", "recipe.yaml", "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (0, "Report: runs/first/report.html\n", "")
    outcome = everlearn("resume", "runs/first", "-q")
    assert (outcome.code, outcome.out, outcome.err) == (0, "Report: runs/first/report.html\n", "")
    everlearn.fails("resume", "runs/none", "--quiet", says=("runs/none",))


def test_the_result_for_a_program(everlearn: Project, finished_run: Path) -> None:
    shutil.copytree(finished_run, everlearn.run_folder)
    outcome = everlearn("learn", "runs/first", "--domain", "c=c.jsonl", "--json")
    found = json.loads(outcome.out)
    assert (found["folder"], found["report"]) == ("runs/first", "runs/first/report.html")
    assert found["domains"] == ["a", "b", "c"]
    assert LINE.search(outcome.err)
    reported = json.loads(everlearn.call("report", "runs/first", "--json").out)
    assert {key: found[key] for key in reported} == reported
    assert json.loads(everlearn("resume", "runs/first", "--json").out) == found
    assert json.loads(everlearn("run", "recipe.yaml", "train.optim=admw", "--json").out)["error"].startswith("`train.o")


def test_alone_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr()
    assert "Usage: everlearn" in shown.out
    assert "--install-completion" in shown.out
    assert shown.err == ""


COMPLETIONS = {
    "everlearn re": {"resume", "report", "repair"},
    "everlearn run --": {"--quiet", "--json", "--import", "--help"},
    "everlearn methods das_r": {"das_random", "das_released"},
}


def test_the_shell_completes_and_loads_no_torch() -> None:
    ask = (
        "import contextlib, os, sys\n"
        "from everlearn.cli import main\n"
        "for words in sys.argv[1:]:\n"
        "    os.environ['COMP_WORDS'], os.environ['COMP_CWORD'] = words, str(len(words.split(' ')) - 1)\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        main([])\n"
        "    print()\n    print('==')\n"
        "print('torch' in sys.modules)\n"
    )
    told = os.environ | {"_EVERLEARN_COMPLETE": "complete_bash"}
    shown = subprocess.run(
        [sys.executable, "-c", ask, *COMPLETIONS], capture_output=True, text=True, env=told, check=True
    )
    *found, torch = shown.stdout.split("==")
    assert [set(text.split()) for text in found] == list(COMPLETIONS.values())
    assert torch.strip() == "False"


def test_the_names_that_are_completed_are_all_the_methods() -> None:
    assert names("") == sorted(registered())
    assert names("ewc_") == ["ewc_normalised", "ewc_released", "ewc_separate"]


def logged(run: Path, key: str) -> list[tuple[int, int, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["stage"], line["step"], line[key]) for line in lines if key in line]


@contextlib.contextmanager
def stopped_at_step_3() -> Iterator[None]:
    """Somebody presses Ctrl-C in the third step of every stage that is trained inside."""
    original = StageTrainer.on_step_end

    def stopped(self: StageTrainer) -> None:
        original(self)
        if self.state.global_step == 3:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StageTrainer, "on_step_end", stopped)
        yield


def test_the_epoch_is_the_number_of_passes_and_goes_on_after_a_resume(everlearn: Project) -> None:
    everlearn.recipe["method"] = {"name": "replay", "share": 0.5}
    everlearn.recipe["evaluation"]["every"] = 1
    with stopped_at_step_3():
        assert everlearn("run", "recipe.yaml").code == 130
    assert everlearn("resume", "runs/first").code == 0
    learner = ContinualLearner.open(everlearn.run_folder)
    size = learner.prepared("a").train.size
    assert size is not None
    epochs = logged(everlearn.run_folder, "epoch")
    assert [(stage, step) for stage, step, _ in epochs] == [(s, step) for s in (1, 2) for step in (1, 2, 3, 4)]
    assert [epoch for stage, _, epoch in epochs if stage == 1] == pytest.approx([4 * s / size for s in (1, 2, 3, 4)])
    # Half of what the second domain is trained on is of the first: two rows of four a step are its own.
    second = [epoch * learner.prepared("b").train.size for stage, _, epoch in epochs if stage == 2]  # type: ignore[operator]
    assert second == pytest.approx([2, 4, 6, 8])
    tokens = logged(everlearn.run_folder, "tokens")
    assert [count for stage, _, count in tokens if stage == 1] == sorted({c for stage, _, c in tokens if stage == 1})


def test_when_a_run_is_over_nothing_is_ahead(everlearn: Project) -> None:
    everlearn.recipe["end_tasks"] = [{"name": "t", "train": "train.jsonl", "test": "test.jsonl", "epochs": 1}]
    everlearn.recipe["evaluation"]["alone"] = True
    learner = ContinualLearner(parse(everlearn.recipe))
    with stopped_at_step_3(), pytest.raises(Interrupted):
        learner.run()
    resumed = ContinualLearner.open(learner.folder.path)
    resumed.resume()
    assert {kind: amount for kind, amount in resumed.forecast.ahead.items() if amount} == {}
    assert set(resumed.forecast.ahead) == {ROWS, PASSES, AROUND, SETS, SAMPLES, "t"}
