"""Two reports on real text: two methods, and three methods with three seeds each; their numbers, sizes and a picture.

    python benchmarks/reports.py --data FOLDER [--runs runs/reports] [--output docs/results/reports.md]

FOLDER holds ``domains/NAME/{train,validation}.jsonl.gz`` and ``D0/wikipedia/…``. A run that is there is not
made again.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from everlearn import files
from everlearn.config import recipe as recipes
from everlearn.learner import ContinualLearner
from everlearn.model.loading import quiet
from everlearn.report import Comparison, compare, markdown, page
from everlearn.report.html import top_figure
from everlearn.run.progress import Terminal

DOMAINS = {"restaurants": "yelp_restaurants", "medicine": "pubmed_rct", "shakespeare": "shakespeare"}
METHODS: dict[str, dict[str, Any]] = {
    "plain": {"name": "sequential"},
    "replay": {"name": "replay", "share": 0.25, "source": "both"},
    "ewc": {"name": "ewc"},
}
SETTING: dict[str, Any] = {
    "data": {"block_size": 128},
    "train": {"max_steps": 90, "warmup_steps": 10, "learning_rate": 5e-4},
    "evaluation": {"blocks": 48, "every": 18},
}
NINE = SETTING | {"train": SETTING["train"] | {"bf16": True}}
"""Nine runs take a while; where a processor multiplies bf16 they take half of it."""
LIGHT = {
    "paper": "#fdfdfb", "faint": "#63676d", "rule": "#d9dadb", "loss": "176 92 8", "gain": "0 110 120",
    "series-0": "#0072b2", "series-1": "#d55e00", "series-2": "#00866a",
}  # fmt: skip
"""The page's colours, for a picture that stands alone."""


def run(data: Path, folder: Path, setting: dict[str, Any], method: dict[str, Any], seed: int) -> Path:
    """One run, made or taken to its end."""

    def corpus(name: str, place: str) -> dict[str, Any]:
        text = {"train": "path", "validation": "validation"}
        return {"name": name, "max_documents": 4000} | {
            key: str(data / "domains" / place / f"{part}.jsonl.gz") for part, key in text.items()
        }

    shared = {"per_device_train_batch_size": 16, "logging_steps": 10, "save_strategy": "no"}
    raw = setting | {
        "model": "benchmarks/bases/english",
        "domains": [corpus(*names) for names in DOMAINS.items()],
        "general": {
            "name": "wikipedia",
            "path": str(data / "D0/wikipedia/validation.jsonl.gz"),
            "validation": str(data / "D0/wikipedia/test.jsonl.gz"),
        },
        "method": method,
        "train": setting["train"] | shared,
        "run": {"name": folder.name, "folder": str(folder), "seed": seed},
    }
    learner = ContinualLearner(recipes.parse(raw), reporter=Terminal())
    learner.resume() if learner.folder.recipe_file.exists() else learner.run()
    return folder


def picture(comparison: Comparison) -> str:
    """The first picture of a page as a file of its own: its colours and font are inside."""
    (plate,) = top_figure(comparison)
    svg = re.sub(r"var\(--([\w-]+)\)", lambda match: LIGHT[match[1]], str(plate.svg)).replace("currentColor", "#1d1f22")
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()  # type: ignore[union-attr]
    space = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
    paper = f'<rect width="100%" height="100%" fill="{LIGHT["paper"]}"/>'
    return svg.replace("<svg ", space, 1).replace(">\n", f">\n{paper}\n", 1) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/reports"))
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    quiet()
    two = [run(chosen.data, chosen.runs / f"two-{name}", SETTING, METHODS[name], 0) for name in ("plain", "ewc")]
    nine = [
        run(chosen.data, chosen.runs / f"{name}-{seed}", NINE, method, seed)
        for seed in range(3)
        for name, method in METHODS.items()
    ]
    parts = []
    for title, runs in (("Two methods", two), ("Three methods, three seeds each", nine)):
        comparison = compare(runs)
        text = page(comparison)
        files.write_text(chosen.runs / f"{len(runs)}.html", text)
        parts.append(f"# {title}\n\nThe page has {len(text.encode()) / 1000:.0f} kB.\n\n{markdown(comparison)}")
    print("\n".join(parts))
    if chosen.output:
        files.write_text(chosen.output.with_suffix(".numbers.md"), "\n".join(parts))
        files.write_text(chosen.output.with_suffix(".svg"), picture(compare(two)))


if __name__ == "__main__":
    main()
