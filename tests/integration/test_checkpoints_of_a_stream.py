"""``stage.checkpoints`` and ``reading.checkpoints`` in a real run: from disk, sealed folders only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_runs import recipe
from torch import nn

from everlearn.commands.export import export
from everlearn.errors import EverlearnError, RunError
from everlearn.learner import ContinualLearner
from everlearn.methods.base import Method, Reading
from everlearn.methods.sequential import Sequential
from everlearn.predictors import Checkpoint, PerplexityEnsemble
from methods_of_other_kinds import registered

pytestmark = pytest.mark.usefixtures("no_report")


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    """The methods that only the tests have are known by name."""
    with registered():
        yield


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether all parameters are equal, bit for bit."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_they_are_the_models_of_the_stage_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, bool]] = []

    def see(self: Method, model: nn.Module, reading: Reading) -> nn.Module:
        last = reading.checkpoints[-1]
        seen.append((str(reading.domain), len(reading.checkpoints), same(reading.language_model().cpu(), last)))
        return model

    monkeypatch.setattr(Sequential, "test_model", see)
    monkeypatch.setattr(Sequential, "tested_as_saved", False)
    learner = ContinualLearner(recipe(tmp_path, method=["sequential", {"name": "wise_ft", "alpha": 0}]))
    learner.run()
    assert ("second", 3, True) in seen
    assert all(last_is_tested for _, _, last_is_tested in seen)
    models = learner.checkpoints(3)
    assert len(models) == 3
    assert same(models[0], learner.some_model())
    assert same(models[1], models[0]), "α = 0: every domain ends where it began"
    assert same(models[2], learner.load(learner.folder.stage(2, "second")))
    assert not models[2].training

    (learner.folder.stage(2, "second") / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(EverlearnError, match=r"model\.safetensors"):
        _ = models[2]
    assert same(models[1], models[0])


@pytest.mark.parametrize("name", ["stage_ensemble", "stage_by_text"])
def test_who_reads_all_of_them_wants_them_kept(tmp_path: Path, name: str) -> None:
    run = {"name": "run", "folder": str(tmp_path / "run"), "keep_stages": 2}
    with pytest.raises(EverlearnError, match=rf"'{name}' reads .*`run.keep_stages` is 2"):
        ContinualLearner(recipe(tmp_path, method=name, run=run)).run()
    assert not (tmp_path / "run").exists()


def test_an_ensemble_is_scored_with_all_models_and_exported_with_none(tmp_path: Path) -> None:
    learner = ContinualLearner(recipe(tmp_path, method="ensemble"))
    scores = learner.run().matrices["loss"].values
    scorer, (base, *models) = learner.scorer(), [learner.checkpoints(3)[k] for k in range(3)]
    objective = scorer.conditions(0).objective
    for row, members in ((0, [base]), (1, models[:1]), (2, models)):
        predictor = PerplexityEnsemble(tuple(Checkpoint(model, objective) for model in members), objective)
        for column, domain in enumerate(("first", "second")):
            cell = scorer.held_out(domain).measure(predictor, scorer.conditions(row))
            assert float(cell["nats"].sum() / cell["items"].sum()) == pytest.approx(scores[row][column], rel=1e-5)
    assert not same(models[0], models[1])
    for with_memory in (False, True):
        with pytest.raises(RunError, match=r"'ensemble' answers with the models of all domains, which no export holds"):
            export(learner.folder.path, tmp_path / "out", with_memory=with_memory)
