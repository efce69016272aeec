"""A suite of three tiny domains with end tasks, for the tests of ``everlearn bench``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tiny
from everlearn_bench.suites import Published, Suite, overlay_of
from everlearn_bench.suites.six_domains.published import GROUPS, PAPER_NAMES

DOMAINS = ("a", "b", "c")
STEPS = 2


def _lines(path: Path, rows: list[dict[str, Any]]) -> str:
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def keys_of(
    suite: Suite,
    order: Any = 0,
    place: Path | None = None,
    method: Any = ({"name": "sequential"},),
    tokens: int | None = None,
    suite_keys: Any = None,
    **changes: Any,
) -> dict[str, Any]:
    """The recipe of a run on a suite whose data are at a place, with changes as in a settings file."""
    bound = suite.on(overlay_of({"model": "m", "suite": suite_keys, **changes}, tokens), place)
    return bound.recipe(order, method=method, seed=3, name="x", folder=Path("x"))


class TinySuite(Suite):
    """Random models, nonsense text; `folder` holds everything."""

    name = "tiny"
    orders: Mapping[int, Sequence[str]] = {0: DOMAINS, 1: ("c", "a", "b")}
    published = Published("a paper", ("F1", "accuracy"), {"sequential": (50.0, None)}, "Invented.")
    groups = GROUPS
    paper_names = PAPER_NAMES

    def __init__(self, folder: Path) -> None:
        super().__init__()
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

    def template(self) -> dict[str, Any]:
        return {
            "model": str(self.model),
            "domains": [self.corpus(each) for each in DOMAINS],
            "general": self.corpus("general"),
            "end_tasks": [self.task(each) for each in DOMAINS],
            "data": {"block_size": 32, "cache": str(self.folder / "cache")},
            "train": {
                "max_steps": STEPS,
                "warmup_steps": 1,
                "per_device_train_batch_size": 2,
                "learning_rate": 1e-3,
                "logging_steps": 1,
                "save_strategy": "no",
            },
            "evaluation": {"blocks": 4, "batch_size": 4, "end_task_seeds": 2},
        }

    def finish(self, raw: dict[str, Any]) -> None:
        raw["run"]["notes"] = ["Invented text."]
