"""Shares that change along a domain, of replay and of sources: resumed to the same weights, and accounted for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from small_runs import SAVING, STEPS, Killer, assert_same, corpus, elsewhere, kill_and_resume, recipe

from everlearn.commands.plan import make_plan
from everlearn.config.recipe import Recipe
from everlearn.evaluation.results import Results
from everlearn.learner import ContinualLearner
from everlearn.run.checks import checks

pytestmark = pytest.mark.usefixtures("no_report")


def replayed(folder: Path) -> Recipe:
    return recipe(folder, "gpt2", train=SAVING, method={"name": "replay", "share": {"start": 0.9, "end": 0.1}})


def weighted(folder: Path) -> Recipe:
    """Two sources in the second domain, of which one takes the place of the other, and replay beside them."""
    of = recipe(folder, "gpt2", train=SAVING, method={"name": "replay", "share": {"start": 0.5, "end": 0.1}})
    first, second = (domain.model_dump(mode="json") for domain in of.domains)
    weights = ({"start": 3, "end": 0}, {"start": 1, "end": 4})
    sources = [{"path": str(corpus(folder / "data", name)), "weight": weights[n]} for n, name in enumerate(("x", "y"))]
    return of.changed(domains=[first, {"name": second["name"], "sources": sources, "validation": 0.15}])


@pytest.mark.parametrize(
    ("case", "shares"),
    [
        (replayed, {"second": 0.5, "earlier domains": 0.5}),
        (weighted, {"second.x": 0.7 * 0.375, "second.y": 0.7 * 0.625, "earlier domains": 0.3}),
    ],
    ids=["a share of replay", "weights of sources"],
)
def test_killed_and_resumed_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Callable[[Path], Recipe], shares: dict[str, float]
) -> None:
    broken = case(tmp_path)
    whole = elsewhere(broken, tmp_path / "whole")
    ContinualLearner(whole).run()
    kill_and_resume(Killer(monkeypatch), broken, ["step 2.3", "checkpoint 2.4"])
    assert_same(broken.folder(), whole.folder())
    mixed = {share.source: share for share in Results.load(whole.folder()).mixture if share.stage == 2}
    assert {name: share.asked for name, share in mixed.items()} == pytest.approx(shares, abs=0.05)
    for share in mixed.values():
        assert abs(share.realised - share.asked) <= 2 / (STEPS * 4)


def test_the_checks_show_the_shares_of_sources(tmp_path: Path) -> None:
    shown = {check.name: check.detail for check in checks(ContinualLearner(weighted(tmp_path)))}
    (detail,) = (detail for detail in shown.values() if "75% to 0% x, 25% to 100% y" in detail)
    assert "held out" in detail


def test_plan_names_published_shares_with_their_source(tmp_path: Path) -> None:
    notes = make_plan(recipe(tmp_path, "gpt2", method="replay"), measure=False).notes
    assert sum("arXiv 2403.08763" in note or "arXiv 2407.17467" in note for note in notes) == 2
    assert not any("arXiv" in note for note in make_plan(recipe(tmp_path, "gpt2"), measure=False).notes)
