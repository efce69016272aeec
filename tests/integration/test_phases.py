"""Everything that takes long has a name, a bar that gets to its end, and its part in the time left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from small_runs import corpus, labelled, recipe

from everlearn.learner import ContinualLearner
from everlearn.run.forecast import PASSES, ROWS, SETS
from everlearn.run.progress import Advance, Logged, Reporter


@dataclass
class Seen:
    """A phase: how many steps it has, what was told of them, and how many phases were open around it."""

    text: str
    total: int | None
    depth: int
    told: list[int] = field(default_factory=list)


class Recording(Reporter):
    """Keeps every phase, every estimate, and what the forecast holds at the first logging step."""

    def __init__(self) -> None:
        self.phases: list[Seen] = []
        self.estimates: list[float | None] = []
        self.first: dict[str, float] = {}
        self.learner: ContinualLearner | None = None
        self._open = 0

    @contextlib.contextmanager
    def activity(self, text: str, total: int | None) -> Iterator[Advance]:
        seen = Seen(text, total, self._open)
        self.phases.append(seen)
        self._open += 1
        try:
            yield seen.told.append
        finally:
            self._open -= 1

    def left(self, seconds: float | None) -> None:
        self.estimates.append(seconds)

    def log(self, at: Logged) -> None:
        if not self.first and self.learner is not None:
            forecast = self.learner.forecast
            self.first = {kind: forecast.seconds({kind: amount}) for kind, amount in forecast.ahead.items() if amount}
            self.first["all"] = at.run_left or 0.0


CASES: dict[str, tuple[str, Any, list[str]]] = {
    "mas": ("gpt2", {"name": "mas", "samples": 8}, ["Measuring importance: MAS on {}"] * 2),
    "ewc": ("gpt2", {"name": "ewc", "samples": 8, "protect_base": True}, ["Measuring importance: EWC on {}"] * 2),
    "das": ("roberta", {"name": "das", "samples": 8}, ["Measuring importance: DAS on {}"] * 2),
    "budget": ("gpt2", {"name": "budget", "samples": 8}, ["Measuring importance: Forgetting budget on {}"] * 2),
    "kd": (
        "gpt2",
        {"name": "kd", "compare": "logits", "teacher_dropout": False, "top_k": 4},
        ["Keeping the answers of the model before {}"] * 2,
    ),
    "generated": ("gpt2", {"name": "replay", "source": "generated"}, ["Writing text of its own before {}"] * 2),
}


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize("case", CASES)
def test_every_phase_gets_to_its_end_and_is_expected_from_the_start(tmp_path: Path, case: str) -> None:
    architecture, method, texts = CASES[case]
    reporter = Recording()
    task = {"train": str(labelled(tmp_path, "train", 8)), "test": str(labelled(tmp_path, "test", 4))}
    learner = reporter.learner = ContinualLearner(
        recipe(
            tmp_path,
            architecture,
            method,
            general={"name": "general", "path": str(corpus(tmp_path / "data", "general")), "validation": 0.15},
            end_tasks=[{"name": "words", **task, "epochs": 1, "batch_size": 8, "max_length": 16}],
            evaluation={"samples": 1, "end_task_seeds": 1, "every": 3, "end_tasks": "every"},
        ),
        reporter=reporter,
    )
    learner.run()
    names = [phase.text for phase in reporter.phases]
    for phase in reporter.phases:
        assert phase.told == sorted(phase.told), phase
        if phase.total is not None:
            assert phase.told[-1] == phase.total > 0, phase
    for text, domain in zip(texts, ("first", "second"), strict=True):
        assert text.format(domain) in names, names
    assert names[0] == "Checking recipe, model and data"
    assert {"Reading first", "Learning first (1/2)", "Learning second (2/2)"} < set(names)
    assert {"Saving first", "Loading the base model", "Loading the model after first"} < set(names)
    for where in ("the base model", "after first", "after second"):
        assert {f"Held-out text, {where}", f"End task words, {where}"} < set(names)
    assert "Scores after step 3" in names
    # Before any importance pass, the second row of scores or the second end task: all are in the estimate.
    assert min(reporter.first[kind] for kind in (ROWS, SETS, "words")) > 0
    assert sum(seconds for kind, seconds in reporter.first.items() if kind != "all") == pytest.approx(
        reporter.first["all"]
    )
    assert reporter.first[PASSES] > 0
    assert reporter.estimates[-1] == 0
    assert {kind: amount for kind, amount in learner.forecast.ahead.items() if amount} == {}
