"""Walk as a new user from an empty folder to an exported model, and record every command with its output.

python benchmarks/walk.py MODEL DATA --commit COMMIT [--output docs/results/walk.md]

MODEL is a folder of a real pretrained decoder (SmolLM2-135M-Instruct, see benchmarks/real-models), DATA the folder
of the corpora (docs/data-sources.md). The walk works in an empty folder (`--folder`), into which the corpora
are copied, so that its commands read as a user would type them. The commands are those of README and
docs/quickstart.md. What `init` wrote is then made small enough for a processor: `EDITS` says which lines, and they are
counted as written by the user. A command that fails ends the walk, and the page says so. It is run in an environment
that has the wheel and what it declares, so COMMIT names what the wheel was built from.
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
    "wikipedia.jsonl.gz": "D0/wikipedia/validation.jsonl.gz",
    "unseen-wikipedia.jsonl.gz": "D0/wikipedia/test.jsonl.gz",
    "unseen-german.jsonl.gz": "domains/german_news/validation.jsonl.gz",
}
MODEL = "SmolLM2-135M-Instruct"
EDITS = {
    "samples: 50": "samples: 16",
    "block_size: 512": "block_size: 128",
    "num_train_epochs: 1": "max_steps: 8",
    "per_device_train_batch_size: 16": "per_device_train_batch_size: 4",
    "run:": "evaluation: {blocks: 16}\nrun:",
}
"""In the recipe: what stands in a line → what the user makes of it; a line begins at its key, and its comment stays."""
LONGEST = 60
"""Lines of an output that the page shows; of a longer one the beginning and the end."""


@dataclass(frozen=True)
class Step:
    """One command of the walk, and why a user types it; without a command, the edits of the recipe."""

    why: str
    command: str = ""


PLAYS = "--domain plays=data/plays.jsonl.gz"
STEPS = (
    Step(
        "Write a recipe for the model and the data",
        f"everlearn init recipe.yaml --model {MODEL} --domain german=data/german.jsonl.gz "
        "--domain medical=data/medical.jsonl.gz --general data/wikipedia.jsonl.gz",
    ),
    Step("See what was written", "cat recipe.yaml"),
    Step("Make it small enough for one busy core"),
    Step("Check everything without training", "everlearn validate recipe.yaml"),
    Step("Look at the data", "everlearn data recipe.yaml"),
    Step("Ask what it will take", "everlearn plan recipe.yaml"),
    Step("Train", "everlearn run recipe.yaml"),
    Step("The same without protection", "everlearn run recipe.yaml method=sequential run.name=plain"),
    Step("Months later: one more domain, without the old text", f"everlearn learn runs/first {PLAYS}"),
    Step("The same for the run without protection", f"everlearn learn runs/plain {PLAYS}"),
    Step("Compare", "everlearn report runs/plain runs/first --output comparison.html"),
    Step(
        "What did the model forget?",
        f"everlearn diff {MODEL} runs/first/stage-03-plays --text wikipedia=data/unseen-wikipedia.jsonl.gz "
        "--text german=data/unseen-german.jsonl.gz --blocks 16 --block-size 128 --output diff.html",
    ),
    Step("Give the model away", "everlearn export runs/first exported"),
    Step(
        "It loads without everlearn",
        "python -c \"from transformers import AutoModelForCausalLM as M; m = M.from_pretrained('exported'); "
        'print(type(m).__name__, m.dtype, sum(p.numel() for p in m.parameters()))"',
    ),
)


def walk(folder: Path) -> str:
    """Take all steps in `folder`; return the page's part about them."""
    parts = []
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {"COLUMNS": "120", "TERM": "dumb", "HF_HUB_OFFLINE": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for step in STEPS:
        parts.append(f"## {step.why}\n")
        if not step.command:
            parts.append(f"```diff\n{edit(folder / 'recipe.yaml')}\n```\n")
            continue
        began = time.perf_counter()
        done = subprocess.run(shlex.split(step.command), cwd=folder, env=environment, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        print(f"{done.returncode}  {seconds:6.1f} s  {step.command}", flush=True)
        parts.append(f"```\n{step.command}\n```\n\n{_time(seconds)}, exit code {done.returncode}\n")
        parts.append(f"```text\n{shortened(plain(done.stderr + done.stdout, folder))}\n```\n")
        if done.returncode:
            parts.append("**The walk ended here.**\n")
            break
    return "\n".join(parts)


def edit(recipe: Path) -> str:
    """Change the lines of a recipe that `EDITS` says; return which, as `diff` shows them."""
    changed = []
    lines = recipe.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        for old, new in EDITS.items():
            if line.partition("#")[0].lstrip().startswith(old) or (old in line and line.startswith("method:")):
                lines[number] = line.replace(old, new.ljust(len(old)))
                changed += [f"-{line}", *(f"+{each}" for each in lines[number].splitlines())]
    recipe.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return "\n".join(changed)


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
    parser.add_argument("--commit", required=True)
    parser.add_argument("--folder", type=Path, default=Path("runs/walk"), help="Made anew.")
    parser.add_argument("--output", type=Path, default=Path("docs/results/walk.md"))
    options = parser.parse_args()
    folder = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "data").mkdir(parents=True)
    for name, file in CORPORA.items():
        shutil.copyfile(options.data / file, folder / "data" / name)
    (folder / MODEL).symlink_to(options.model.resolve())
    typed = sum(step.command.startswith("everlearn") for step in STEPS)
    about = (
        "# From an empty folder to an exported model\n\n"
        f"Written by `benchmarks/walk.py`: every command that a new user types, with what it printed. The model "
        f"is {MODEL}, a real pretrained one; the text is German news, medical abstracts and, later, plays; general "
        f"text is Wikipedia. Commit {options.commit}, installed from its wheel; one core that other work shared.\n\n"
        f"The user wrote no line to get a recipe that passes `validate`, then made {len(EDITS)} lines small enough for "
        f"one core, and typed {typed} commands of everlearn. So few steps teach little: this page shows the "
        "commands; its numbers mean little.\n\n"
    )
    files.write_text(options.output, about + walk(folder))


if __name__ == "__main__":
    main()
