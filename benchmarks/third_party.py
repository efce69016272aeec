"""Install everlearn and the package of the guides by pip in a new environment, use all of it, and record that.

    python benchmarks/third_party.py scratch --record docs/results/third-party.md

The environment has everlearn's wheel, links to what that declares (`tests/installed.py`) and the wheel of
`examples/everlearn-example`; both are built without a network. Corpora are documentation of Python's standard library,
the model is one that the wheel brings.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import readme_commands as shown

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import installed  # noqa: E402

EXAMPLE = ROOT / "examples" / "everlearn-example"
RECIPE = """\
model: suite:docs/base
domains:
- {name: argparse, path: data/argparse.jsonl, validation: 0.2}
- {name: email, path: data/email.jsonl, validation: 0.2}
end_tasks:
- {name: word-order, kind: pairs, test: data/pairs.jsonl, domain: argparse}
method: {name: near_base, strength: 0.5}
data: {block_size: 64}
train: {max_steps: 4, per_device_train_batch_size: 8, use_cpu: true}
evaluation: {blocks: 8}
run: {name: first}
"""
PHI = {"model_type": "phi", "architectures": ["PhiForCausalLM"], "vocab_size": 99, "hidden_size": 32}
PHI |= {"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
ON_PAGE = ("bits per token", "Pairs right", "Lost in the last stage", "Gained at the end", "Order of the stages")
ASKED = " ".join(f"-e {words!r}" for words in ON_PAGE)
COMMANDS = (
    ("everlearn methods | grep -A1 near_base", "the method, in the capability table"),
    (
        "everlearn schema | grep -o -e method_near_base -e end_task_pairs | sort -u",
        "both in the schema",
    ),
    ("everlearn run recipe.yaml --quiet", "the method trains, the end task and the metrics are measured"),
    ("everlearn report runs/first --output page.html", "what they measured"),
    (f"grep -o {ASKED} page.html | sort -u", "metrics, quantity, figure, section"),
    ("everlearn analyse norms runs/first", "the analysis"),
    ("everlearn inspect phi --json | grep kind", "the architecture"),
    ("everlearn sweep recipe.yaml --methods sequential,near_base --set train.max_steps=2 --quiet", "a grid of it"),
    ("everlearn bench weather --methods sequential,near_base --seeds 0 --quiet", "the suite"),
    ("everlearn hello --name you", "the command"),
    ("python -m pip uninstall --yes --quiet everlearn-example", "without it again"),
    ("everlearn methods near_base", "what is said then"),
)
"""Command → what of the package it shows."""
FAILS = {11: 2}
"""Place of a command → the exit code that is right for it, where it is not 0."""


def environment(folder: Path) -> tuple[Path, list[tuple[str, str]]]:
    """Make the environment; return its bin folder, and what was done with pip: command and outcome."""
    copy = folder / "everlearn"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy / name)
    shutil.copytree(EXAMPLE, folder / "everlearn-example", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    offline = "--no-build-isolation --no-deps --no-index"
    done = []
    for name in ("everlearn", "everlearn-example"):
        words = f"pip wheel {offline} --wheel-dir dist ./{name}"
        done.append((words, _pip(words, folder)))
    (wheel,), (own,) = folder.glob("dist/everlearn-[0-9]*.whl"), folder.glob("dist/everlearn_example-*.whl")
    programs = installed.environment_of_links(folder / "environment", wheel)
    subprocess.run([programs / "python", "-m", "ensurepip"], check=True, capture_output=True)
    words = f"pip install --no-deps --no-index dist/{own.name}"
    done.append((words, _pip(words, folder, programs / "python")))
    return programs, done


def _pip(words: str, folder: Path, python: str | Path = sys.executable) -> str:
    ran = subprocess.run([python, "-m", *words.split()], cwd=folder, check=True, capture_output=True, text=True)
    return next(line for line in reversed(ran.stdout.splitlines()) if line.startswith("Successfully"))


def make_inputs(folder: Path) -> None:
    """Write the recipe, its corpora and pairs, the settings of the suite, and a model's configuration."""
    (folder / "data").mkdir(parents=True)
    texts = {module: shown.documentation(module) for module in ("argparse", "email")}
    for module, documents in texts.items():
        lines = (json.dumps({"text": text}) for text in documents)
        (folder / "data" / f"{module}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    sentences = [text.splitlines()[0] for text in texts["argparse"]]
    pairs = (json.dumps({"good": each, "bad": " ".join(reversed(each.split()))}) for each in sentences[:20])
    (folder / "data" / "pairs.jsonl").write_text("\n".join(pairs) + "\n", encoding="utf-8")
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    (folder / "phi").mkdir()
    (folder / "phi" / "config.json").write_text(json.dumps(PHI), encoding="utf-8")


def run_all(programs: Path, folder: Path) -> list[shown.Outcome]:
    """Run the commands in a folder with the inputs."""
    outcomes = []
    for command, what in COMMANDS:
        began = time.monotonic()
        done = shown.call(programs, folder, command)
        seconds = time.monotonic() - began
        outcomes.append(shown.Outcome(command, what, done.returncode, seconds, done.stdout.replace(str(folder), ".")))
        print(f"{done.returncode}  {seconds:5.0f} s  {command}", flush=True)
    return outcomes


def is_right(outcomes: list[shown.Outcome]) -> bool:
    """Return whether each command ended as it has to."""
    return [each.code for each in outcomes] == [FAILS.get(place, 0) for place in range(len(outcomes))]


def record(installs: list[tuple[str, str]], outcomes: list[shown.Outcome], python: str) -> str:
    """Return the record as Markdown."""
    parts = [
        "# A third-party package in a new environment",
        "Written by `benchmarks/third_party.py`: [the package of the guides]"
        "(../../examples/everlearn-example/README.md),\n"
        "installed by pip beside everlearn in an environment that has what everlearn declares and nothing else\n"
        f"({python}), and each kind of thing that it brings in use. Nothing is downloaded. Corpora are\n"
        "documentation of Python's standard library. Seconds are of a shared machine.",
        "Built and installed:",
        "```text\n" + "\n".join(f"$ {command}\n{outcome}" for command, outcome in installs) + "\n```",
        "The recipe:",
        f"```text\n{RECIPE}```",
    ]
    for each in outcomes:
        parts.append(f"## `{each.command}`\n\n{each.change}: exit code {each.code}, {each.seconds:.0f} s")
        lines = [line.rstrip() for line in each.output.splitlines() if line.strip()]
        if lines:
            kept = [*(["…"] if len(lines) > shown.LONGEST else []), *lines[-shown.LONGEST :]]
            parts.append("```text\n" + "\n".join(kept) + "\n```")
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new folder to work in")
    parser.add_argument("--record", type=Path, help="file to write the record to")
    options = parser.parse_args()
    if options.folder.exists():
        parser.error(f"{options.folder} is there already; name a new folder")
    options.folder.mkdir(parents=True)
    folder = options.folder.resolve()
    programs, installs = environment(folder)
    make_inputs(folder / "work")
    outcomes = run_all(programs, folder / "work")
    if options.record and is_right(outcomes):
        python = shown.call(programs, folder, "python --version").stdout.strip()
        options.record.write_text(record(installs, outcomes, python), encoding="utf-8")
    return int(not is_right(outcomes))


if __name__ == "__main__":
    sys.exit(main())
