"""What the command line says, what a program gets from it, what it loads, and mistakes of more than one step."""

from __future__ import annotations

import contextlib
import errno
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
from everlearn.commands import describe, saved_tables
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
    everlearn.saves()
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
    everlearn.saves()
    learner = ContinualLearner(parse(everlearn.recipe))
    with stopped_at_step_3(), pytest.raises(Interrupted):
        learner.run()
    resumed = ContinualLearner.open(learner.folder.path)
    resumed.resume()
    assert {kind: amount for kind, amount in resumed.forecast.ahead.items() if amount} == {}
    assert set(resumed.forecast.ahead) == {ROWS, PASSES, AROUND, SETS, SAMPLES, "t"}


HEAVY = ("accelerate", "datasets", "jinja2", "matplotlib", "numpy", "pandas", "peft", "scipy", "torch", "transformers")
SCRIPT = """
import sys
from everlearn.cli import main

code = main(sys.argv[2:])
assert code == (2 if "nosuch" in sys.argv else 0)
loaded = set(sys.argv[1].split(",")) & set(sys.modules)
assert not loaded, sorted(loaded)
"""


def test_the_tables_are_what_the_classes_say() -> None:
    again = "run `python -m everlearn.commands.describe`"
    assert saved_tables.METHODS.read_text(encoding="utf-8") == describe.table_text(describe.describe_all()), again
    for table in (saved_tables.METHODS, saved_tables.RECIPE):
        assert not re.search(r":\w+:`", table.read_text(encoding="utf-8")), "the markup of docstrings"
    assert saved_tables.schema() == json.loads(json.dumps(describe.schema())), again


@pytest.mark.parametrize(
    ("words", "without"),
    [
        (["--help"], HEAVY),
        (["methods"], HEAVY),
        (["methods", "das", "--json"], HEAVY),
        (["methods", "nosuch"], HEAVY),
        (["analyse", "--help"], HEAVY),
        (["analyse", "nosuch", "runs/first"], HEAVY),
        (["schema"], HEAVY),
        (["init", "-"], HEAVY),
        (["init", "--all", "-"], HEAVY),
        (["init", "recipe.yaml"], HEAVY),
        (["init", "-", "--domain", "a=a.txt"], tuple(name for name in HEAVY if name != "numpy")),
        (["env"], tuple(name for name in HEAVY if name not in ("torch", "numpy"))),
    ],
    ids=" ".join,
)
def test_a_command_that_touches_no_model_loads_no_library_for_models(
    words: list[str], without: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("A document.\n\nAnother one.\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, ",".join(without), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr


def test_the_learner_loads_what_it_needs_to_train_and_no_more(everlearn: Project) -> None:
    """Torch, transformers and PEFT, and what they load; what draws and tests is loaded when that is asked for.

    In the same process, whose imports take seconds: a user's mistake is a sentence and an exit code there too.
    """
    script = (
        "import sys\nfrom everlearn import ContinualLearner, EverlearnError, RunResults, protect\n"
        "print(sorted({'lm_eval', 'matplotlib', 'peft.tuners.lora.corda', 'scipy.stats'} "
        "& set(sys.modules)))\n"
        "from everlearn.cli import main\nsys.exit(main())"
    )
    everlearn.write()
    words = [sys.executable, "-c", script, "run", "recipe.yaml", "run.seed=-1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stdout + done.stderr
    assert done.returncode == 2
    assert done.stderr.startswith("Error: `run.seed`")
    assert "Traceback" not in done.stderr


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

    everlearn.saves()
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
