"""The logged `loss` is the objective's, whatever methods add; what they add stands beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import STEPS, recipe
from torch import Tensor

from everlearn.learner import ContinualLearner
from everlearn.methods.engine.protection import Protection
from everlearn.run.progress import Logged, Reporter

METHODS: dict[str, tuple[str, Any, str]] = {
    "a penalty": ("gpt2", {"name": "mas", "samples": 8, "strength": 1e4}, "mas/penalty"),
    "a view": ("roberta", {"name": "das", "samples": 8, "general": "none"}, "das/contrast"),
    "a teacher": ("gpt2", "kd", "kd/divergence"),
    "nothing": ("gpt2", "replay", ""),
}


class Lines(Reporter):
    """Keeps what a person is told at each logging step."""

    def __init__(self) -> None:
        self.lines: list[Logged] = []

    def log(self, at: Logged) -> None:
        self.lines.append(at)


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize("case", METHODS)
def test_loss_is_the_mean_nats_of_the_step_and_what_methods_add_has_names_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    passes: list[tuple[float, int, float]] = []
    forward = Protection.forward

    def watched(self: Protection, model: Any, batch: dict[str, Tensor]) -> Any:
        outputs, extra = forward(self, model, batch)
        added = sum(float(value.detach()) for value in extra.values())
        passes.append((float(outputs.losses.detach().sum()), int(outputs.items), added))
        return outputs, extra

    monkeypatch.setattr(Protection, "forward", watched)
    architecture, method, added = METHODS[case]
    reporter = Lines()
    learner = ContinualLearner(recipe(tmp_path, architecture, method), reporter=reporter)
    learner.run()
    lines = learner.folder.metrics()
    assert len(lines) == len(reporter.lines) == 2 * STEPS
    expected = [
        ((one[0] + two[0]) / (one[1] + two[1]), (one[2] + two[2]) / 2)
        for one, two in zip(passes[::2], passes[1::2], strict=True)
    ]
    for line, shown, (loss, more) in zip(lines, reporter.lines, expected, strict=True):
        assert line["loss"] == pytest.approx(loss, rel=1e-5)
        assert (shown.loss, shown.added) == (line["loss"], line.get("loss_added"))
        if added in line:
            assert line["loss_added"] == pytest.approx(more, rel=1e-4)
            assert line["loss_added"] == pytest.approx(sum(v for k, v in line.items() if "/" in k), rel=1e-6)
        else:
            assert more == 0
            assert "loss_added" not in line
    if added:
        assert lines[-1][added] > (1 if case == "a penalty" else 0)
    if case == "a penalty":
        facts = json.loads((learner.folder.path / "stage-02-second" / "stage.json").read_text())
        assert facts["final_loss"] == lines[-1]["loss"]
