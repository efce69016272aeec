"""Walk as a new user from an empty folder to an exported model, and record every command with its output.

python benchmarks/walk.py MODEL DATA [--steps 40] [--output docs/results/walk.md]

MODEL is a folder of a real pretrained decoder (SmolLM2-135M-Instruct, see benchmarks/real-models), DATA the folder
of the corpora (docs/data-sources.md). The walk works in an empty folder (`--folder`), into which the corpora
are copied, so that its commands read as a user would type them. The commands are those of README and
docs/quickstart.md; only the number of steps is made smaller. A command that fails ends the walk, and the page says so.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from everlearn import files

CORPORA = {
    "german.jsonl.gz": "domains/german_news/train.jsonl.gz",
    "medical.jsonl.gz": "domains/pubmed_rct/train.jsonl.gz",
    "plays.jsonl.gz": "domains/shakespeare/train.jsonl.gz",
    "wikipedia.jsonl.gz": "D0/wikipedia/train.jsonl.gz",
    "unseen-wikipedia.jsonl.gz": "D0/wikipedia/test.jsonl.gz",
    "unseen-german.jsonl.gz": "domains/german_news/validation.jsonl.gz",
}
MODEL = "SmolLM2-135M-Instruct"
LONGEST = 60
"""Lines of an output that the page shows; of a longer one the beginning and the end."""


@dataclass(frozen=True)
class Step:
    """One command of the walk, and why a user types it."""

    why: str
    command: str


def steps(number: int) -> list[Step]:
    """Return the walk, with so many training steps a domain."""
    return [
        Step(
            "Ask the model and the data for a recipe.",
            f"everlearn init recipe.yaml --model {MODEL} --domain german=data/german.jsonl.gz "
            "--domain medical=data/medical.jsonl.gz --general data/wikipedia.jsonl.gz",
        ),
        Step("See what was written.", "cat recipe.yaml"),
        Step("Check everything without training.", "everlearn validate recipe.yaml"),
        Step("Look at the data.", "everlearn data recipe.yaml"),
        Step("Ask what it will take.", f"everlearn plan recipe.yaml train.max_steps={number}"),
        Step("Train.", f"everlearn run recipe.yaml train.max_steps={number} run.name=protected"),
        Step(
            "The same without protection.",
            f"everlearn run recipe.yaml method=sequential train.max_steps={number} run.name=plain",
        ),
        Step(
            "Months later: one more domain, without the old text.",
            f"everlearn learn runs/protected --domain plays=data/plays.jsonl.gz train.max_steps={number}",
        ),
        Step(
            "The same for the model without protection.",
            f"everlearn learn runs/plain --domain plays=data/plays.jsonl.gz train.max_steps={number}",
        ),
        Step("Compare.", "everlearn report runs/plain runs/protected --output comparison.html"),
        Step(
            "What did the model forget?",
            f"everlearn diff {MODEL} runs/protected/stage-03-plays --text wikipedia=data/unseen-wikipedia.jsonl.gz "
            "--text german=data/unseen-german.jsonl.gz --output diff.html",
        ),
        Step("Give the model away.", "everlearn export runs/protected/stage-03-plays exported"),
        Step(
            "It loads without everlearn.",
            "python -c \"from transformers import AutoModelForCausalLM as M; m = M.from_pretrained('exported'); "
            'print(type(m).__name__, m.dtype, sum(p.numel() for p in m.parameters()))"',
        ),
    ]


def walk(folder: Path, number: int) -> str:
    """Run all commands in `folder`; return the page's part about them."""
    parts, typed = [], 0
    environment = os.environ | {"COLUMNS": "120", "TERM": "dumb"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for step in steps(number):
        began = time.perf_counter()
        process = subprocess.run(shlex.split(step.command), cwd=folder, env=environment, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        print(f"{process.returncode}  {seconds:6.1f} s  {step.command}", flush=True)
        typed += step.command.startswith("everlearn")
        output = process.stdout if step.command.startswith("cat") else process.stderr + process.stdout
        parts.append(
            f"### {step.why}\n\n```\n{step.command}\n```\n\n{_time(seconds)}, exit code {process.returncode}.\n"
        )
        parts.append(f"```text\n{shortened(plain(output, folder))}\n```\n")
        if process.returncode:
            parts.append("**The walk ended here.**\n")
            break
    lines = f"The user typed {typed} commands of everlearn and edited no line of the recipe.\n"
    return "\n".join([lines, *parts])


def plain(text: str, folder: Path) -> str:
    """Return an output without terminal codes, progress that was written over, and the folder's place."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace(str(folder), ".")
    return "\n".join(line.rsplit("\r", 1)[-1].rstrip() for line in text.splitlines()).strip()


def shortened(text: str) -> str:
    """Return a long output without its middle."""
    lines = text.splitlines()
    if len(lines) <= LONGEST:
        return text
    half = LONGEST // 2
    return "\n".join([*lines[:half], f"… {len(lines) - 2 * half} lines …", *lines[-half:]])


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--folder", type=Path, default=Path("runs/walk"), help="Made anew.")
    parser.add_argument("--output", type=Path, default=Path("docs/results/walk.md"))
    options = parser.parse_args()
    folder = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "data").mkdir(parents=True)
    for name, file in CORPORA.items():
        shutil.copyfile(options.data / file, folder / "data" / name)
    (folder / MODEL).symlink_to(options.model.resolve())
    about = (
        "# From an empty folder to an exported model\n\n"
        f"Written by `benchmarks/walk.py`: every command that a new user types, with what it printed. The model is "
        f"{MODEL}; the text is German news, medical abstracts and, later, plays; general text is Wikipedia. "
        f"{options.steps} steps a domain, {os.cpu_count()} cores shared with other work, no GPU.\n\n"
    )
    files.write_text(options.output, about + walk(folder, options.steps))


if __name__ == "__main__":
    main()
