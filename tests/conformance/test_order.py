"""The order in a list of methods decides nothing."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import REGISTRY, Method, Reading, build
from everlearn.methods.averaging.wise_ft import WiSEFT
from everlearn.methods.engine import protection
from everlearn.methods.engine.protection import check_methods
from methods_of_other_kinds import OTHERS, registered

OPTIONS: dict[str, dict[str, Any]] = {
    "budget": {"samples": 4, "probe": 4, "checks": 2},
    "das": {"general": "corpus_loss", "samples": 4},
    "ewc": {"protect_base": True, "samples": 4, "strength": 10.0},
    "clora": {"lora_dropout": 0.0},
    "corda": {"samples": 4},
    "forget_me_not": {"samples": 4},
    "inc_lora": {"lora_dropout": 0.0},
    "k_adapter": {"adapter_dropout": 0.0},
    "inf_lora": {"samples": 4},
    "lora": {"lora_dropout": 0.0},
    "lora_null": {"samples": 4},
    "mas": {"protect_base": True, "samples": 4},
    "moe_lora": {"lora_dropout": 0.0},
    "o_lora": {"lora_dropout": 0.0, "lambda_2": 0.1},
    "classic": {"contrast_dropout": 0.0},
    "dap_prompt": {"n_tokens": 4},
    "derpp": {"capacity": 8},
    "multi_task_adaptation": {"samples": 4},
    "migu": {"skip_first_domain": False},
    "replay": {"capacity": 8, "share": 0.3},
    "sparse_memory": {"accessed": 4, "slots": 16},
}
"""Quick, with a measurement at the beginning where there is one, and without dropout."""
DOMAINS = 2
LONGEST = 6
"""Methods in a list: many losses take many steps' time."""
APART = {("budget", "forget_me_not")}
"""In a list with others, what is left is more than the rounding of two losses: a list of their own."""


class Where(NamedTuple):
    """What methods act on together, and the pairs that are tried there: all, or those of one method."""

    architecture: str
    objective: str
    of: str = ""

    def pairs(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Those to try among these methods."""
        return [pair for pair in itertools.combinations(names, 2) if self.of in ("", *pair)]


PLACES = [Where("roberta", "masked"), Where("gpt2", "text-to-text", of="siatl")]
"""SiATL learns prompts and answers with a decoder only, so its pairs have a place of their own."""


def listed(names: tuple[str, ...]) -> list[Method]:
    """The methods, in this order."""
    return [build({"name": name, **OPTIONS.get(name, {})}) for name in names]


def results(names: tuple[str, ...], dropout: float, where: Where = PLACES[0]) -> dict[str, Tensor]:
    """Weights and memories after a short stream, the methods acting in the order of the names."""
    methods, model = listed(names), tiny.placed(where.architecture, dropout=dropout)
    for index in range(1, DOMAINS + 1):
        stage = stages.stage(model, index, where.objective, general=True, steps=2)
        stages.learn(methods, stage, optimizer=torch.optim.SGD, lr=0.1)
        model = stage.model
    found = stages.weights(model)
    for method in methods:
        found |= {f"{method.name}: {name}": value.clone() for name, value in method.memory().tensors.items()}
    return found


@functools.cache
def plain(where: Where) -> PreTrainedModel:
    """The model that methods are checked against, which leaves it as it is."""
    return tiny.model(where.architecture)


@functools.cache
def refusal(names: tuple[str, ...], where: Where) -> str:
    """Why these methods may not act together; nothing where they may."""
    methods = listed(names)
    try:
        check_methods(methods, stages.setting(plain(where), methods, where.objective, general=True))
    except MethodError as error:
        return str(error)
    return ""


@functools.cache
def groups(where: Where) -> list[tuple[str, ...]]:
    """Lists of methods that act together, as few as found quickly, in which every pair that is not refused occurs.

    A list against its reverse is every pair of it against its reverse, at the price of one.
    """
    pairs = {pair for pair in itertools.combinations(sorted(REGISTRY), 2) if not refusal(pair, where)}
    left = pairs & set(where.pairs(sorted(REGISTRY)))
    found = sorted(left & APART)
    left -= APART
    pairs -= APART
    known = pairs | {pair[::-1] for pair in pairs}
    while left:
        group = min(left)
        while True:
            fit = [name for name in sorted(REGISTRY) if all((name, other) in known for other in group)]
            gain = {name: sum(tuple(sorted((name, other))) in left for other in group) for name in fit}
            wanted = sorted((name for name in fit if gain[name]), key=lambda name: -gain[name])
            more = next((name for name in wanted if not refusal((*group, name), where)), None)
            if more is None or len(group) == LONGEST:
                break
            group = (*group, more)
        found.append(group)
        left -= {tuple(sorted(pair)) for pair in itertools.combinations(group, 2)}
    return found


@pytest.fixture(autouse=True)
def known() -> Any:
    """The methods of the tests have names."""
    with registered():
        yield


@pytest.mark.parametrize("first", sorted(REGISTRY | OTHERS))
def test_phases_leave_nothing_to_the_order(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the engine takes methods as they are listed: what is left is the rounding of a sum of losses.

    Without dropout, whose draws belong to rows, and the rows of two methods' views change places. Groups by their first
    method, so that a worker looks for them when it runs this file, and not when it collects it.
    """
    monkeypatch.setattr(protection, "in_order", list)
    for where in PLACES:
        for group in groups(where):
            if group[0] == first and (different := differences(group, where)):
                # The rounding of many losses; pairs have that of two.
                guilty = [pair for pair in where.pairs(group) if differences(pair, where)]
                assert not guilty, f"the order decides in {'+'.join(group)}: {different}"


@functools.cache
def differences(names: tuple[str, ...], where: Where) -> list[str]:
    """What the order of the names decides."""
    one, other = results(names, 0.0, where), results(names[::-1], 0.0, where)
    assert one.keys() == other.keys()
    return [name for name, value in one.items() if not torch.allclose(other[name], value, rtol=1e-4, atol=1e-6)]


@pytest.mark.parametrize("where", PLACES, ids=lambda where: where.objective)
def test_what_may_not_act_together_is_refused_with_a_sentence(where: Where) -> None:
    for pair in where.pairs(sorted(REGISTRY)):
        if why := refusal(pair, where):
            assert any(f"'{name}'" in why for name in pair), f"{pair}: {why}"
            assert why.endswith("."), f"{pair}: {why}"


@pytest.mark.parametrize("pair", [("dap_adapter", "derpp"), ("das", "hat"), ("hat", "kd"), ("das", "derpp")])
def test_lists_in_either_order_are_the_same_run_bit_for_bit(pair: tuple[str, ...]) -> None:
    """The engine takes methods by their names, so dropout, and the order of sums, are the same too."""
    one, other = results(pair, 0.1), results(pair[::-1], 0.1)
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_outputs_are_stored_with_the_adapter_that_was_trained() -> None:
    adapter, derpp = build("dap_adapter"), build({"name": "derpp", "capacity": 8})
    stage = stages.stage(tiny.model(), 1, steps=4)
    stages.learn([adapter, derpp], stage, lr=0.1)
    reading = Reading("d1", ("d1",), stage.objective, lambda: stage.model, stage.batches)
    with torch.no_grad():
        found = {}
        for name, model in (
            ("base", stage.model),
            ("adapted", adapter.test_model(copy.deepcopy(stage.model), reading)),
        ):
            found[name] = derpp._hidden_states(stages.stage(model.eval(), 1), list(range(8)))
    stored = derpp.memory().tensors["hidden"]
    torch.testing.assert_close(stored, found["adapted"])
    assert not torch.allclose(stored, found["base"], atol=1e-3)


def test_no_two_methods_choose_the_same_thing() -> None:
    sentence = r"'wise_ft' sets the weights that a domain ends with, and so does 'twice'\. Remove one of them"

    class Twice(WiSEFT):
        """Another of its kind."""

        name = "twice"

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.label = "twice"

    methods = [build("wise_ft"), Twice()]
    with pytest.raises(MethodError, match=sentence):
        check_methods(methods, stages.setting(tiny.model(), methods))
