"""A share of replay that changes along a domain: resumed to the same weights, and accounted for."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import STEPS, Killer, assert_same, elsewhere, kill_and_resume, recipe

from everlearn.commands.plan import make_plan
from everlearn.evaluation.results import Results
from everlearn.learner import ContinualLearner

pytestmark = pytest.mark.usefixtures("no_report")


def test_killed_and_resumed_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = recipe(tmp_path, "gpt2", method={"name": "replay", "share": {"start": 0.9, "end": 0.1}})
    whole = elsewhere(broken, tmp_path / "whole")
    ContinualLearner(whole).run()
    kill_and_resume(Killer(monkeypatch), broken, ["step 2.3", "checkpoint 2.4"])
    assert_same(broken.folder(), whole.folder())
    old = next(share for share in Results.load(whole.folder()).mixture if share.source == "earlier domains")
    assert old.asked == pytest.approx(0.5)
    assert abs(old.realised - 0.5) <= 1 / (STEPS * 4)


def test_plan_names_published_shares_with_their_source(tmp_path: Path) -> None:
    notes = make_plan(recipe(tmp_path, "gpt2", method="replay"), measure=False).notes
    assert sum("arXiv 2403.08763" in note or "arXiv 2407.17467" in note for note in notes) == 2
    assert not any("arXiv" in note for note in make_plan(recipe(tmp_path, "gpt2"), measure=False).notes)
