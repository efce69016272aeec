"""Methods at test: each text and task is read with what the method puts back; earlier checkpoints come from disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from small_runs import corpus, labelled, recipe
from torch import Tensor, nn

import stages
import tiny
from everlearn.commands.export import export
from everlearn.data.corpus import Domain
from everlearn.errors import DataError, EverlearnError, RunError
from everlearn.learner import ContinualLearner
from everlearn.methods import REGISTRY, Method, Needs, Reading, Stage, register
from everlearn.methods.engine.attachment import Attachment
from everlearn.methods.sequential import Sequential
from everlearn.predictors import Checkpoint, PerplexityEnsemble
from methods_of_other_kinds import registered


class Mute(Attachment):
    """Silences the second feed-forward projection of every layer."""

    def place(self, model: nn.Module) -> None:
        for name, module in model.named_modules():
            if name.endswith("output.dense") and "attention" not in name:
                module.register_forward_hook(self.silence)

    def silence(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """The forward hook."""
        return output * 0


class Muted(Method):
    """Silent on the domains that it knows."""

    name = "muted_test"
    title = "Muted"
    paper = "https://example.org"
    needs = Needs(domain_id_test=True)
    seen: ClassVar[list[tuple[str, str | None, tuple[str, ...], int]]] = []

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        rows = sum(len(batch["labels"]) for batch in reading.batches(3))
        self.seen.append((type(model).__name__, reading.domain, reading.learnt, rows))
        assert not hasattr(model, "everlearn_muted_test"), "the copy is fresh"
        if reading.domain in reading.learnt:
            Mute().attach(model, self.name)
        return model


@pytest.fixture
def muted() -> Any:
    register(Muted)
    Muted.seen.clear()
    yield Muted
    del REGISTRY[Muted.name]


def test_held_out_text_and_end_tasks_are_read_with_the_method(muted: Any, tmp_path: Path) -> None:
    data = tmp_path / "labelled"
    data.mkdir()
    task = {"name": "word", "domain": "first", "train": str(labelled(data, "train", 24)), "epochs": 1}
    task |= {"test": str(labelled(data, "test", 12)), "max_length": 32}
    made = recipe(tmp_path, method=muted.name, end_tasks=[task])
    results = ContinualLearner(made).run()
    language, classifier = "RobertaForMaskedLM", "RobertaForSequenceClassification"
    rows = {row: [entry for entry in muted.seen if len(entry[2]) == row] for row in range(3)}
    assert [entry[:2] for entry in rows[0] if entry[0] == language] == [(language, "first"), (language, "second")]
    assert any(entry[0] == classifier and entry[1] == "first" for entry in rows[2])
    assert all(entry[3] >= 1 for entry in muted.seen), "there is text to recognise a domain by"

    plain = ContinualLearner(recipe(tmp_path / "plain", method="sequential", end_tasks=[task])).run()
    ours, theirs = results.matrices["loss"].values, plain.matrices["loss"].values
    assert ours[0] == theirs[0], "nothing is learnt yet, so nothing is added"
    assert ours[1][0] != theirs[1][0], "the first domain is muted"
    assert ours[1][1] == theirs[1][1], "the second is not learnt yet"


@pytest.mark.parametrize(
    "method", ["sequential", "hat", {"name": "dap_prompt", "n_tokens": 4}, {"name": "adapter_cl", "choose": "domain"}]
)
def test_the_model_that_was_scored_is_to_be_had(method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    general = {"path": str(corpus(tmp_path / "data", "other")), "validation": 0.15}
    scores = ContinualLearner(recipe(tmp_path, method=method, general=general)).run().matrices["loss"].values
    for path in (tmp_path / "data").iterdir():  # whatever is needed is in the run folder
        path.unlink()
    learner = ContinualLearner.open(tmp_path / "run")
    scorer, found, loaded = learner.scorer(), {}, []
    model_after = learner.model_after
    monkeypatch.setattr(learner, "model_after", lambda row: loaded.append(row) or model_after(row))
    for row, after in ((1, "first"), (2, "second"), (2, None)):
        for column, domain in enumerate(("first", "second", None)):
            loaded.clear()
            model = learner.tested(domain, after)
            assert loaded == [row]
            assert not model.training
            cell = scorer._losses(model, domain or "general")
            found[row, column] = float(cell["nats"].sum() / cell["items"].sum())
            assert found[row, column] == pytest.approx(scores[row][column], rel=1e-6)
    plain = learner.model_after(2)
    adds = any(name.startswith("everlearn_") for name, _ in learner.tested("first").named_modules())
    assert adds == (method != "sequential")
    assert not any(name.startswith("everlearn_") for name, _ in plain.named_modules())


def test_what_cannot_be_had_is_a_sentence(tmp_path: Path) -> None:
    learner = ContinualLearner(recipe(tmp_path, method="dap_adapter"))
    with pytest.raises(RunError, match="'second' is not learnt yet: `everlearn resume"):
        learner.tested("first")
    learner.run()
    for wrong in ({"domain": "frist"}, {"after": "frist"}):
        with pytest.raises(RunError, match=r"The run has no domain 'frist'\. Did you mean 'first'\?"):
            learner.tested(**wrong)
    with pytest.raises(DataError, match=r"there is no general text \(`general`\)"):
        learner.scorer()._blocks(None)  # for methods that select by a text: a classifier's of AdapterCL
    shutil.rmtree(learner.folder.stage(2, "second"))  # as `everlearn bench` leaves a finished cell
    more = Domain(name="third", path=str(corpus(tmp_path / "data", "third")))
    for needs_it in (lambda: learner.tested("first"), lambda: learner.learn(more)):
        with pytest.raises(RunError, match=r"'second' was learnt, but its model is no longer in .*`--keep`"):
            needs_it()
    assert not learner.tested("first", after="first").training


def test_after_mixed_precision_methods_measure_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[torch.dtype]] = {"step": [], "end": []}

    def precision(stage: Stage) -> torch.dtype:
        found = []
        hook = stage.model.lm_head.dense.register_forward_hook(lambda _, __, output: found.append(output.dtype))
        with torch.no_grad(), torch.autocast(tiny.DEVICE.type, enabled=False):
            stage.objective.hidden(stage.model, {"input_ids": torch.arange(5, 29, device=tiny.DEVICE)[None]})
        hook.remove()
        return found[0]

    monkeypatch.setattr(Sequential, "after_step", lambda self, stage: seen["step"].append(precision(stage)))
    monkeypatch.setattr(Sequential, "end_domain", lambda self, stage: seen["end"].append(precision(stage)))
    ContinualLearner(recipe(tmp_path, train={"bf16": True, "max_steps": 1})).run()
    assert seen == {"step": [torch.bfloat16] * 2, "end": [torch.float32] * 2}


def test_rounding_in_mixed_precision_is_no_drift(tmp_path: Path) -> None:
    """A budget looks at where a domain begins: nothing has been lost there."""
    train = {"bf16": True, "max_steps": 2, "per_device_train_batch_size": 4}
    budget = {"name": "budget", "general": None, "earlier": 0.05, "samples": 4, "probe": 4, "checks": 1}
    learner = ContinualLearner(recipe(tmp_path, train=train, method=budget))
    learner.run()
    lines = [json.loads(line) for line in (learner.folder.path / "metrics.jsonl").read_text().splitlines()]
    looks = [line["drift"]["earlier"] for line in lines if "drift" in line]
    assert abs(looks[0]["measured"]) < 1e-6
    assert abs(looks[1]["measured"]) > 1e-6, "and after a step something was"


pytestmark = pytest.mark.usefixtures("no_report")


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    """The methods that only the tests have are known by name."""
    with registered():
        yield


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether all parameters are equal, bit for bit."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(stages.equal(a, b) for a, b in pairs)


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
    scorer, (base, *models) = learner.scorer(), [learner.checkpoints(3).on(tiny.DEVICE)[k] for k in range(3)]
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
