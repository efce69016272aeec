"""Methods that do not work together are refused before anything is trained, in whatever order they are listed."""

from __future__ import annotations

import itertools

import pytest

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.engine.protection import check_methods

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


@pytest.mark.parametrize("names", list(itertools.permutations(("demix", "das_without_soft_mask"))))
def test_a_contrast_trains_adapters_beside_a_frozen_model(names: tuple[str, str]) -> None:
    model, methods = tiny.model(dropout=0.1), [build(name) for name in names]
    start = stages.weights(model)
    parts = [stages.learn(methods, stages.stage(model, index, steps=2))[-1] for index in (1, 2)]
    assert all(float(part["das/contrast"]) > 0 for part in parts)
    assert all((stages.weights(model)[name] == value).all() for name, value in start.items())
