"""Every method in every trainer of TRL; ``python tests/protect_page.py`` writes the table into docs/trainers.md."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import re
import tempfile
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers

import tiny
import tried_table
import trl_trainers
from everlearn.errors import EverlearnError
from everlearn.methods import build
from everlearn.methods.base import REGISTRY, names
from everlearn.protecting import protect

PAGE = Path(__file__).parents[1] / "docs" / "trainers.md"
TRAINERS = trl_trainers.TRAINERS
OPTIONS: dict[str, dict[str, Any]] = {
    "das": {"general": "none"},  # the model has no dropout
    "budget": {"general": 0.5, "earlier": 0.5, "rank": 2, "probe": 2, "checks": 1},
    "multi_task_adaptation": {"balance": "fixed"},
}
"""Options without which a method does not begin on this model; few rows wherever it measures."""


def methods() -> list[str]:
    """Return the names of all methods, without variants, which are other options of them."""
    return sorted(set(names()) & set(REGISTRY))


def spec(name: str) -> dict[str, Any]:
    """Return a method with options for few rows."""
    chosen = {"name": name, **OPTIONS.get(name, {})}
    if "samples" in type(build(name).config).model_fields:
        chosen["samples"] = 2
    return chosen


def outcome(method: str, kind: str) -> str:
    """Return "yes" if a method is at work in two trainings after another, or else the sentence that refuses it."""
    root = _root()
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory(dir=root) as memory:
        for seed in (0, 1):
            trainer = _refused(kind) or trl_trainers.make(kind, root, seed=seed, max_steps=1 + seed)
            try:
                text = {} if kind == "reward" else {"general": tiny.texts(30, 5)}
                protect(trainer, [spec(method)], memory=Path(memory) / "memory", **text)
            except EverlearnError as error:
                _unused[kind] = trainer
                return str(error)
            try:
                trainer.train()
            except EverlearnError as error:
                return str(error)
    return "yes"


_unused: dict[str, Any] = {}


def _refused(kind: str) -> Any:
    """Return a trainer whose protection was refused, which is as new."""
    return _unused.pop(kind, None)


@functools.cache
def _root() -> Path:
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    return Path(tempfile.mkdtemp(prefix="protect-page-"))


def generic(method: str, sentence: str) -> str:
    """Return a sentence without the name of the method."""
    return sentence.replace(f"Method '{method}'", "The method")


@functools.cache
def outcomes(method: str) -> tuple[str, ...]:
    """Return what became of a method in each trainer."""
    return tuple(generic(method, outcome(method, kind)) for kind in TRAINERS)


def table() -> list[str]:
    """Return the lines of the page: a table, the reasons in it, and the methods that no trainer can have."""
    found = {method: outcomes(method) for method in methods()}
    nowhere: dict[str, list[str]] = {}
    rows, reasons = [], list[str]()
    for method, cells in found.items():
        if len(set(cells)) == 1 and cells[0] != "yes":
            nowhere.setdefault(cells[0], []).append(f"`{method}`")
            continue
        reasons += [cell for cell in dict.fromkeys(cells) if cell != "yes" and cell not in reasons]
        shown = [cell if cell == "yes" else f"({reasons.index(cell) + 1})" for cell in cells]
        rows.append(f"| `{method}` | {' | '.join(shown)} |")
    head = [f"| method | {' | '.join(TRAINERS)} |", "|---" * (len(TRAINERS) + 1) + "|"]
    numbered = [f"{number}. {_printed(reason)}" for number, reason in enumerate(reasons, 1)]
    listed = [f"* {', '.join(names)}: {_printed(reason)}" for reason, names in nowhere.items()]
    return [*head, *rows, "", *numbered, "", "In none of them:", "", *listed]


def _printed(sentence: str) -> str:
    return re.sub(r"'(\w+)'", r"`\1`", sentence)


def committed() -> list[str]:
    """Return the lines of the committed page."""
    return tried_table.lines_of(PAGE)


def main() -> None:
    """Try everything and write the table into the page."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    tried_table.write(PAGE, table())


if __name__ == "__main__":
    main()
