"""Small files of the tasks of `standard-cl` and `long-sequence`, for tests: published ones, or copies."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import tiny
from everlearn.suites.continual_tasks.tasks import TASKS


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
