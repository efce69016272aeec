"""Commands that touch no model do not load what models need; what they read instead equals what the classes say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from everlearn.commands import describe, saved_tables

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


def test_the_learner_loads_what_it_needs_to_train_and_no_more(tmp_path: Path) -> None:
    """Torch, transformers and PEFT, and what they load; what draws and tests is loaded when that is asked for."""
    script = (
        "import sys\nfrom everlearn import ContinualLearner, EverlearnError, RunResults, protect\n"
        "print(sorted({'lm_eval', 'matplotlib', 'peft.tuners.lora.corda', 'scipy.stats'} "
        "& set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stdout + done.stderr
