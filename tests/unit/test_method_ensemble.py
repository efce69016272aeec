"""An ensemble along the stream: where a domain starts, who answers, and what does not go together."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import Reading, build
from everlearn.methods.composition.ensemble import DomainEnsemble
from everlearn.methods.engine.protection import check_methods
from everlearn.methods.stage import Checkpoints
from everlearn.predictors import Checkpoint, Ensemble, PerplexityEnsemble
from everlearn.predictors.predictor import models_of


@pytest.mark.parametrize("start", ["base", "previous"])
def test_a_domain_starts_from_the_base_model_or_from_the_one_before(start: Any) -> None:
    model, method = tiny.model(), DomainEnsemble(start=start)
    assert method.needs.base_model == (start == "base")
    base = stages.weights(model)
    models: list[Any] = [copy.deepcopy(model)]
    for index in (1, 2):
        at = stages.stage(model, index)
        at.checkpoints = Checkpoints(index, lambda number: copy.deepcopy(models[number]))
        stages.begin([method], at)
        before = base if start == "base" else dict(models[-1].named_parameters())
        assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
        stages.end([method], at)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01)
        models.append(copy.deepcopy(model))
    assert not method.memory()


@pytest.mark.parametrize("combine", ["by_perplexity", "by_confidence", "by_entropy", "confident", "mean"])
def test_the_domains_models_answer_together(combine: Any) -> None:
    models = [tiny.model(seed=seed) for seed in range(4)]
    at = stages.stage(models[3], 3)
    checkpoints = Checkpoints(4, lambda number: models[number])
    batches = at.batches
    reading = Reading(None, ("d1", "d2", "d3"), at.objective, lambda: models[3], batches, checkpoints)
    method = DomainEnsemble(combine=combine, temperature=0.5)
    found: Any = method.test_predictor(Checkpoint(models[3], at.objective), reading)
    assert models_of(found) == models[1:], "one of each domain, and not the base model"
    if combine == "by_perplexity":
        assert (type(found), found.temperature) == (PerplexityEnsemble, 0.5)
    else:
        assert (type(found), found.mix) == (Ensemble, combine)
    alone: Any = method.test_predictor(
        Checkpoint(models[0], at.objective), Reading(None, (), at.objective, lambda: models[0], batches, checkpoints)
    )
    batch = next(at.batches(4))
    with torch.no_grad():
        expected = at.objective.forward(models[0], batch).losses
        torch.testing.assert_close(alone.label_losses(batch).float(), expected)


def check(names: list[str], architecture: str = "roberta", **options: Any) -> None:
    methods = [build({"name": name, **(options if name == "ensemble" else {})}) for name in names]
    model: nn.Module = tiny.model(architecture, dropout=0.1)
    check_methods(methods, stages.setting(model, methods, tiny.objective_of(architecture)))


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(MethodError, match=r"'T5.*' does not predict its prompts.*Set `combine: by_confidence`"):
        check(["ensemble"], "t5")
    check(["ensemble"], "t5", combine="by_confidence")
    with pytest.raises(MethodError, match=r"'ensemble' answers with the checkpoints.*method 'dap_adapter' reads"):
        check(["ensemble", "dap_adapter"])
    with pytest.raises(MethodError, match=r"'elle'.*Remove one of them"):
        check(["ensemble", "elle"])
    for other in ("replay", "das", "inc_lora"):
        check([other, "ensemble"])
