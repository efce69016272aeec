"""A suite of three tiny domains with end tasks, for the tests of ``everlearn bench``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tiny
from everlearn.errors import RecipeError
from everlearn_bench.suites import Published, Settings, Suite
from everlearn_bench.suites.six_domains.published import GROUPS, PAPER_NAMES

DOMAINS = ("a", "b", "c")
STEPS = 2


def _lines(path: Path, rows: list[dict[str, Any]]) -> str:
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


class TinySuite(Suite):
    """Random models, nonsense text; `folder` holds everything."""

    name = "tiny"
    orders: Mapping[int, Sequence[str]] = {0: DOMAINS, 1: ("c", "a", "b")}
    published = Published("a paper", ("F1", "accuracy"), {"sequential": (50.0, None)}, "Invented.")
    groups = GROUPS
    paper_names = PAPER_NAMES

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / "model"
        if not self.model.is_dir():
            tiny.model("roberta", dropout=0.1).save_pretrained(self.model)
            tiny.tokenizer().save_pretrained(self.model)

    def corpus(self, name: str) -> dict[str, Any]:
        seed = sum(map(ord, name))
        rows = [{"text": text} for text in tiny.texts(40, seed, words=30)]
        held = [{"text": text} for text in tiny.texts(12, seed + 1000, words=30)]
        places = [self.folder / f"{name}.{part}.jsonl" for part in ("train", "validation")]
        return {"name": name, "path": _lines(places[0], rows), "validation": _lines(places[1], held)}

    def task(self, name: str) -> dict[str, Any]:
        files = []
        for part, other in (("train", 0), ("test", 500)):
            rows = [
                {"text": f"{text} {word}", "label": word}
                for i, text in enumerate(tiny.texts(24, seed=len(name) + other, words=5))
                for word in [("matrix", "figure")[i % 2]]
            ]
            files.append(_lines(self.folder / f"{name}.task.{part}.jsonl", rows))
        own = {"epochs": 1, "batch_size": 8, "max_length": 32, "f1": "micro" if name == "c" else "macro"}
        return {"name": name, "domain": name, "train": files[0], "test": files[1], **own}

    def recipe(
        self,
        order: int | Sequence[str],
        *,
        settings: Settings,
        data: Path | None,
        method: Sequence[Mapping[str, Any]],
        seed: int,
        name: str,
        folder: Path,
    ) -> dict[str, Any]:
        names = self.orders[order] if isinstance(order, int) else order
        if any(each not in DOMAINS for each in names):
            raise RecipeError("no such domain")
        steps = settings.steps or STEPS
        return {
            "model": settings.model or str(self.model),
            "domains": [self.corpus(each) for each in names],
            "general": self.corpus("general"),
            "end_tasks": [self.task(each) for each in names],
            "method": method,
            "data": {"block_size": 32, "cache": str(self.folder / "cache")},
            "train": {
                "max_steps": steps,
                "warmup_steps": 1,
                "per_device_train_batch_size": 2,
                "learning_rate": 1e-3,
                "logging_steps": 1,
                "save_steps": 1,
                **settings.train,
            },
            "evaluation": {"blocks": 4, "batch_size": 4, "end_task_seeds": 2},
            "run": {"name": name, "seed": seed, "folder": str(folder), "notes": ["Invented text."]},
        }
