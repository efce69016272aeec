"""Small files of the tasks of `standard-cl` and `long-sequence`, for tests: published ones, or copies."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets

import tiny
from everlearn_bench.suites.continual_tasks.hub import SETS
from everlearn_bench.suites.continual_tasks.tasks import TASKS


def examples(name: str, count: int, seed: int = 0) -> list[dict[str, str]]:
    """Nonsense with the task's labels, each about equally often."""
    task = TASKS[name]
    return [
        {"text": f"{task.opening}{text} {i}", "label": task.labels[i % len(task.labels)]}
        for i, text in enumerate(tiny.texts(count, seed, words=12))
    ]


def publish(folder: Path, name: str, train: int = 20, test: int = 6) -> None:
    """The files of the published repository."""
    place = folder / "CL_Benchmark" / TASKS[name].group / TASKS[name].dataset
    place.mkdir(parents=True)
    for part, count, seed in (("train", train, 1), ("test", test, 2)):
        rows = [{"sentence": row["text"], "label": row["label"]} for row in examples(name, count, seed)]
        (place / f"{part}.json").write_text(json.dumps(rows), encoding="utf-8")


def copied(folder: Path, name: str, count: int = 12) -> None:
    """A re-split copy, whose texts lack the opening of the published ones."""
    place = folder / "tasks" / TASKS[name].copy
    place.mkdir(parents=True)
    for seed, part in enumerate(("train", "dev", "test")):
        rows = examples(name, count, seed)
        lines = [row | {"text": row["text"].removeprefix(TASKS[name].opening)} for row in rows]
        (place / f"{part}.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(r) + "\n" for r in lines).encode()))


def on_hub(
    folder: Path, name: str, parts: Mapping[str, Sequence[Mapping[str, Any]]], names: Sequence[str] | None = None
) -> Path:
    """A copy of a task's set in a data folder, in the layout of the hub: a card, and a Parquet file a part.

    Args:
        folder: the data folder.
        name: of the task.
        parts: part → rows.
        names: of the label's classes; None where the label is no class.
    """
    found, subset = folder / "hub" / SETS[name].path, SETS[name].subset or "default"
    (found / subset).mkdir(parents=True, exist_ok=True)
    files = "".join(f"  - split: {part}\n    path: {subset}/{part}-*\n" for part in parts)
    card = found / "README.md"
    others = card.read_text().removesuffix("---\n") if card.is_file() else "---\nconfigs:\n"
    card.write_text(f"{others}- config_name: {subset}\n  data_files:\n{files}---\n")
    for part, rows in parts.items():
        table = datasets.Dataset.from_list([dict(row) for row in rows])
        if names is not None:
            table = table.cast_column(SETS[name].label, datasets.ClassLabel(names=list(names)))
        table.to_parquet(found / subset / f"{part}-00000-of-00001.parquet")
    return found
