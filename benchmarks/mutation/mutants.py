"""Mutate the penalties, the per-sample importance and the evaluation, and list the mutants that no test notices.

    python benchmarks/mutation/mutants.py penalties /tmp/mutants

needs `pip install mutmut` and takes the committed files of this repository; `evaluation` is the other group.
A mutant is one change of a function. Those that are run were drawn by a seed among all of a file whose functions a test
of the group's selection calls; words of messages are not mutated. GROUP.json has them with what became of each: run
again, the same mutants are run. Remove the file to draw others.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SEED = 29
STATUS = {0: "survived", 1: "noticed"}
"""Exit code of pytest → what that says of a mutant."""


@dataclass(frozen=True)
class Group:
    """Files that are mutated, and the tests that have to notice."""

    sources: Mapping[str, int]
    """Pattern of files → how many mutants of each are run."""
    tests: Sequence[str]
    slow: Sequence[str]
    """What the names of tests contain that take long beside what they add to the others."""


GROUPS = {
    "penalties": Group(
        {"methods/penalties/*.py": 4, "importance/per_sample.py": 16},
        ["test_penalties", "test_penalty_importances", "test_methods_penalties", "test_fisher", "test_method_budget"],
        [
            *("llama", "gemma2", "t5", "bart", "rounding", "starts_elsewhere", "padded", "calibrated", "kronecker"),
            *("expectation", "every_domain", "by_prediction", "binds", "never_reached", "two_processes", "go_together"),
            *("middle_of", "mistakes_are", "products_of", "no_more_rows"),
        ],
    ),
    "evaluation": Group(
        {"evaluation/*.py": 6},
        ["test_eval_metrics", "test_eval_results"],
        ["coverage", "covers", "simulation", "page_of"],
    ),
}


def main() -> None:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("folder", type=Path, help="where the clones are kept")
    parser.add_argument("--unnoticed", action="store_true", help="only the mutants that were not noticed before")
    arguments = parser.parse_args()
    group, clone = GROUPS[arguments.group], arguments.folder / arguments.group
    update(clone)
    configuration = (
        (HERE / "setup.cfg")
        .read_text(encoding="utf-8")
        .format(
            sources="".join(f"\n    src/everlearn/{pattern}" for pattern in group.sources),
            tests="".join(f"\n    tests/unit/{name}.py" for name in group.tests),
            slow=" or ".join(group.slow),
        )
    )
    (clone / "setup.cfg").write_text(configuration, encoding="utf-8")
    mutmut(clone, "nothing")  # makes the mutants, notes which tests call which function, and finds none of that name
    kept = HERE / f"{arguments.group}.json"
    verdicts: dict[str, str] = json.loads(kept.read_text()) if kept.is_file() else {}
    called = json.loads((clone / "mutants/mutmut-stats.json").read_text())["tests_by_mangled_function_name"]
    names = list(verdicts) or [
        name
        for pattern, number in group.sources.items()
        for path in sorted((clone / "mutants/src/everlearn").glob(f"{pattern}.meta"))
        for name in draw(path, called, number)
    ]
    names = [name for name in names if not arguments.unnoticed or verdicts[name] != "noticed"]
    mutmut(clone, *names)
    known = codes(clone)
    verdicts |= {name: STATUS.get(known[name], "not decided") for name in names}
    kept.write_text(json.dumps(verdicts, indent=1, ensure_ascii=False) + "\n")
    report(clone, verdicts)


def update(clone: Path) -> None:
    """Bring a clone to the commit of this checkout."""
    if not clone.exists():
        subprocess.run(["git", "clone", "-q", "--no-checkout", ROOT, clone], check=True)
    subprocess.run(["git", "fetch", "-q", ROOT, "HEAD"], cwd=clone, check=True)
    subprocess.run(["git", "checkout", "-q", "--detach", "FETCH_HEAD"], cwd=clone, check=True)


def mutmut(clone: Path, *names: str) -> None:
    """Run some mutants."""
    subprocess.run([sys.executable, "-m", "mutmut", "run", "--max-children", "1", *names], cwd=clone, check=False)


def draw(meta: Path, called: Mapping[str, Sequence[str]], number: int) -> list[str]:
    """Return the names of some mutants of a file."""
    every = json.loads(meta.read_text())["exit_code_by_key"]
    known = sorted(name for name in every if called.get(name.rpartition("__mutmut_")[0]))
    return random.Random(f"{SEED} {meta.name}").sample(known, min(number, len(known)))


def codes(clone: Path) -> dict[str, int | None]:
    """Return mutmut's code of every mutant."""
    files = (clone / "mutants/src").rglob("*.meta")
    return {name: code for path in files for name, code in json.loads(path.read_text())["exit_code_by_key"].items()}


def report(clone: Path, verdicts: Mapping[str, str]) -> None:
    """Print the changes that no test noticed, or that took too long."""
    for name, verdict in verdicts.items():
        if verdict != "noticed":
            print(f"{verdict}: {name}")
            subprocess.run([sys.executable, "-m", "mutmut", "show", name], cwd=clone, check=True)


if __name__ == "__main__":
    main()
