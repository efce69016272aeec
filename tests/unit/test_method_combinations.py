"""Methods that do not work together are refused before anything is trained, in whatever order they are listed."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import Reading, build
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.model.head import logits_of
from everlearn.model.objectives import IGNORE

REFUSED = [
    (("ewc", "hat"), "'ewc' protects the model's own weights, but what method 'hat' adds"),
    (("ewc_released", "demix"), "'ewc_released' protects the model's own weights, but what method 'demix' adds"),
    (("ewc", "dap_prompt"), "'ewc' protects the model's own weights, but what method 'dap_prompt' adds"),
    (("demix", "das"), "'demix' freezes the model, so method 'das' has nothing to hold back"),
    (("hat_adapter", "das_without_contrast"), "'hat_adapter' freezes the model, so method 'das_without_contrast' has"),
    (("demix", "migu"), "'demix' freezes the model, so method 'migu' has nothing to hold back"),
    (("demix", "hat"), "'demix' trains nothing but what it adds, so method 'hat' could not"),
    (("l2_sp", "dap_prompt"), "'l2_sp' protects the model's own weights, but what method 'dap_prompt' adds"),
    (("forget_me_not", "hat"), "'forget_me_not' protects the model's own weights, but what method 'hat' adds"),
    (("ewc", "rewc"), r"'ewc' is listed 2 times \(`method`: '(ewc|rewc)', '(ewc|rewc)'\)"),
    (("hat", "hat_all"), r"'hat' is listed 2 times \(`method`: 'hat(_all)?', 'hat(_all)?'\)"),
]
ALLOWED = [
    ("das", "hat"),
    ("das", "replay"),
    ("demix", "das_without_soft_mask"),
    ("demix", "kd"),
    ("ewc", "replay"),
    ("ewc", "l2_sp"),
    ("si", "mas"),
    ("inc_lora", "migu"),
]


def check(names: tuple[str, ...]) -> None:
    """Check a list of methods on a model with dropout."""
    methods = [build(name) for name in names]
    check_methods(methods, stages.setting(tiny.model(dropout=0.1), methods))


@pytest.mark.parametrize(("pair", "sentence"), REFUSED)
def test_refused_in_both_orders(pair: tuple[str, str], sentence: str) -> None:
    for names in itertools.permutations(pair):
        with pytest.raises(MethodError, match=rf"{sentence}.*(Remove one of them.*|List it once)\.$"):
            check(names)


def test_the_sentence_names_the_keys() -> None:
    with pytest.raises(MethodError, match=r"Remove one of them from `method`, or set `strength: 0`\.$"):
        check(("demix", "das"))
    with pytest.raises(MethodError, match=r"Remove one of them from `method`\.$"):
        check(("demix", "migu"))


@pytest.mark.parametrize("pair", ALLOWED)
def test_others_work_together(pair: tuple[str, str]) -> None:
    for names in itertools.permutations(pair):
        check(names)


@pytest.mark.parametrize("beside", ["lifelong_moe", "moe_lora"])
@pytest.mark.parametrize("teaches", [{"name": "lwf"}, {"name": "kd_logits"}, {"name": "kd_logits", "top_k": 200}])
def test_a_teacher_has_what_others_keep_beside_the_plain_model(beside: str, teaches: dict[str, Any]) -> None:
    """What earlier domains taught experts is part of what the stream's model says before the next domain."""
    model, kept, method = tiny.model("gpt2"), build(beside), build(teaches)
    stages.learn([kept, method], stages.stage(model, 1, "causal"))
    stage = stages.stage(model, 2, "causal", steps=3)
    stage.rows_per_step = 4
    reading = Reading("d2", ("d1",), stage.objective, lambda: model, stage.batches, stage.checkpoints)
    batch = next(stage.batches(4))
    plain, right = copy.deepcopy(model), kept.test_model(copy.deepcopy(model), reading).eval()
    apart = stage.objective.per_sample_loss(plain, batch) - stage.objective.per_sample_loss(right, batch)
    assert apart.abs().max() > 1e-3
    protection = Protection([kept, method], stage)
    protection.begin()
    [view] = method.views(stage, batch)
    wrong, losses = (
        stage.objective.forward(one.eval(), batch, [view]).view_losses[0].sum().item() for one in (plain, right)
    )
    entropy = (method.config.temperature == 2) and _entropy(stage, right, batch)
    assert losses - entropy == pytest.approx(0, abs=1e-4)
    assert wrong - entropy > 1e-4
    protection.end()


def _entropy(stage: Any, model: Any, batch: dict[str, Any]) -> float:
    """Of a model's answers at a temperature of 2, summed over the labels: what LwF's cross-entropy is at least."""
    logits = logits_of(model, stage.objective.label_features(model, batch))[(batch["labels"] != IGNORE).flatten()]
    p = (logits.detach().double() / 2).softmax(-1)
    return float(-(p * p.log()).sum())


@pytest.mark.parametrize("names", list(itertools.permutations(("demix", "das_without_soft_mask"))))
def test_a_contrast_trains_adapters_beside_a_frozen_model(names: tuple[str, str]) -> None:
    model, methods = tiny.model(dropout=0.1), [build(name) for name in names]
    start = stages.weights(model)
    parts = [stages.learn(methods, stages.stage(model, index, steps=2))[-1] for index in (1, 2)]
    assert all(float(part["das/contrast"]) > 0 for part in parts)
    assert all((stages.weights(model)[name] == value).all() for name, value in start.items())
