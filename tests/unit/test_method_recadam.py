"""RecAdam against algorithm 1 written out in float64, and the ways in which it goes wrong elsewhere."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.engine.protection import Protection
from everlearn.methods.tricks.recadam import RecAdam

RATE, DECAY, BETAS, EPSILON = 0.02, 0.1, (0.9, 0.999), 1e-8


class Loop:
    """A stage in float64 whose gradients are given."""

    def __init__(self, method: RecAdam, index: int = 1, steps: int = 8, **options: Any) -> None:
        self.model = tiny.model().double()
        self.stage = stages.stage(self.model, index, steps=steps)
        self.stage.checkpoints = stages.checkpoints(self.model, index)
        self.protection = Protection([method], self.stage)
        self.protection.begin()
        self.parameters = dict(self.model.named_parameters())
        settings = {"lr": RATE, "weight_decay": DECAY, "betas": BETAS, "eps": EPSILON} | options
        groups = [{"params": list(reversed(self.parameters.values()))}]  # matching by order would go wrong
        self.optimizer = self.protection.optimizer(torch.optim.AdamW(groups, **settings))
        self.protection.start()

    def step(self, gradients: dict[str, Tensor] | None) -> None:
        for name, parameter in self.parameters.items():
            parameter.grad = None if gradients is None else gradients[name].clone()
        with self.protection.update():
            self.optimizer.step()


def gradients(model: torch.nn.Module, step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {n: torch.randn(p.shape, generator=generator, dtype=p.dtype) for n, p in model.named_parameters()}


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("pulls", ["beside", "after"])
def test_the_step_is_the_algorithm(pulls: str) -> None:
    k, t0, gamma = 0.7, 3.0, 12.0
    loop = Loop(RecAdam(k=k, t0=t0, gamma=gamma, pulls=pulls))
    theta = stages.weights(loop.model)
    anchor = copy.deepcopy(theta)
    first, second = ({name: torch.zeros_like(value) for name, value in theta.items()} for _ in range(2))
    for t in range(1, 7):
        share, given = logistic(k * (t - t0)), gradients(loop.model, t)
        for name, g in given.items():
            first[name] = BETAS[0] * first[name] + (1 - BETAS[0]) * g
            second[name] = BETAS[1] * second[name] + (1 - BETAS[1]) * g * g
            m, v = first[name] / (1 - BETAS[0] ** t), second[name] / (1 - BETAS[1] ** t)
            adam = RATE * m / (v.sqrt() + EPSILON)
            pull = (1 - share) * RATE * gamma
            old = theta[name]
            if pulls == "beside":
                theta[name] = (old - pull * (old - anchor[name])) * (1 - RATE * DECAY) - share * adam
            else:
                moved = old - share * adam
                theta[name] = (moved - pull * (moved - anchor[name])) * (1 - RATE * DECAY)
        loop.step(given)
        for name, parameter in loop.parameters.items():
            torch.testing.assert_close(parameter.detach(), theta[name], rtol=1e-9, atol=1e-11)
        assert [group["lr"] for group in loop.optimizer.param_groups] == [RATE]
        assert [group["weight_decay"] for group in loop.optimizer.param_groups] == [DECAY]


def test_lambda_is_a_half_at_t0_and_goes_from_0_to_1() -> None:
    stage = stages.stage(tiny.model(), 1, steps=200)
    assert RecAdam(t0=7, k=0.3).share(stage, 6) == 0.5
    assert RecAdam(t0=7, k=0.3).share(stage, 9) == pytest.approx(logistic(0.9))
    method = RecAdam()
    assert method.share(stage, 0) < 1e-4
    assert method.share(stage, 99) == 0.5
    assert method.share(stage, 199) > 1 - 1e-4
    assert RecAdam(k=1, t0=1e6).share(stage, 0) == 0, "no overflow"


@pytest.mark.parametrize("missing", [False, True])
def test_without_gradients_the_way_back_is_geometric(missing: bool) -> None:
    """Not where a gradient is None: no optimizer moves such a parameter, which another method may have frozen."""
    loop = Loop(RecAdam(strength=0.25, k=1, t0=1000, anchor="base"), index=2, weight_decay=0.0)
    anchor = dict(loop.stage.checkpoints[0].named_parameters())
    distance = {name: (p - anchor[name]).detach() for name, p in loop.parameters.items()}
    for t in range(1, 4):
        loop.step(None if missing else {name: torch.zeros_like(p) for name, p in loop.parameters.items()})
        for name, p in loop.parameters.items():
            left = 1 if missing else 0.75**t
            torch.testing.assert_close((p - anchor[name]).detach(), left * distance[name], rtol=1e-6, atol=1e-9)


def test_a_domain_begins_with_its_own_weights_and_leaves_them_slowly() -> None:
    """Nothing is drawn at random (the authors' script does unless it is told not to), and at θ* no rounding moves."""
    loop = Loop(RecAdam(k=1, t0=1000), weight_decay=0.0)
    start = stages.weights(tiny.model())
    for t in range(3):
        loop.step(gradients(loop.model, t))
    assert all(torch.equal(p.detach().float(), start[name]) for name, p in loop.parameters.items())


def test_the_pull_follows_the_rate_and_stays_below_1() -> None:
    for rate in (2e-5, 1e-2, 3.0):
        loop = Loop(RecAdam(strength=0.1, k=1, t0=1000), lr=rate)
        assert loop.optimizer._terms(rate)[1] == pytest.approx(0.1)
        assert loop.optimizer._terms(rate / 4)[1] == pytest.approx(0.025), "in warm-up too"
    for options, sentence in (
        ({"strength": 1}, "'strength': "),
        ({"k": 0}, "'k': "),
        ({"pulls": "linear"}, "'pulls': "),
        ({"anneal": "sigmoid"}, "no option 'anneal'"),
        ({"strength": 0.5, "gamma": 3}, "`gamma` and `strength` say the same"),
    ):
        with pytest.raises(MethodError, match=sentence):
            RecAdam(**options)


def test_a_published_gamma_at_another_rate_is_a_sentence() -> None:
    released = build("recadam_released")
    assert released.config.gamma * 2e-5 == pytest.approx(0.1)
    Loop(released, lr=2e-5)
    sentence = (
        r"'recadam_released', option 'gamma': γ = 5000 at the learning rate 0.02 and 1 − λ = 1 takes a step 100 times "
        r".*diverges\. Set `gamma` below 50, or `strength`.*\.$"
    )
    with pytest.raises(MethodError, match=sentence):
        Loop(build("recadam_released"))
    loop = Loop(RecAdam(gamma=40.0, k=1, t0=1000))
    loop.optimizer.param_groups[0]["lr"] *= 2  # a schedule that rises above the rate that it began with
    with pytest.raises(MethodError, match=r"at the learning rate 0\.04"):
        loop.step(None)


def test_a_domain_that_ends_before_its_middle_is_noted() -> None:
    """The published t₀ in a domain of a few steps: nothing is learnt, for the weights do not leave the anchor."""
    published = build({"name": "recadam_released", "gamma": 5.0})  # for the learning rate of the loop
    stage = stages.stage(tiny.model(), 1, steps=8)
    start = stages.weights(stage.model)
    stages.learn([published], stage, weight_decay=0)
    moved = max(float((p.detach() - start[name]).abs().max()) for name, p in stage.model.named_parameters())
    assert moved < 1e-6
    assert stage.notes == [
        "Method 'recadam_released', option 't0': λ is ½ at step 250, and 'd1' has 8: it is held back to its end, where "
        "λ is 3.1e-11. Set `t0` below 8, or to null, the middle of a domain."
    ]
    for options, noted in (({"t0": 8}, True), ({"t0": 7}, False), ({}, False), ({"t0": 8, "strength": 0}, False)):
        stage = stages.stage(tiny.model(), 1, steps=8)
        protection = Protection([RecAdam(**options)], stage)
        protection.begin()
        protection.start()
        assert bool(stage.notes) == noted


def test_what_is_frozen_or_of_another_method_is_not_pulled() -> None:
    model = tiny.model()
    stage = stages.stage(model, 1)
    frozen = model.get_parameter("lm_head.dense.weight").requires_grad_(False)
    protection = Protection([build("recadam"), build("hat")], stage)
    protection.begin()
    asked = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    groups = protection.optimizer(asked).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    pulled = [names[id(p)] for group in groups if group["recalled"] for p in group["params"]]
    free = [names[id(p)] for group in groups if not group["recalled"] for p in group["params"]]
    assert free
    assert all("everlearn_hat" in name for name in free)
    assert len(pulled) + len(free) + 1 == len(names)
    assert names[id(frozen)] not in pulled + free


def test_the_anchor_is_where_the_domain_began_or_the_base_model() -> None:
    found = {}
    for anchor in ("last", "base"):
        method = RecAdam(anchor=anchor)
        assert method.needs.base_model == (anchor == "base")
        stage = stages.stage(tiny.model(), 2)
        Protection([method], stage).begin()
        found[anchor] = method._anchors
        wanted = stage.checkpoints[-1 if anchor == "last" else 0]
        assert all(torch.equal(value, wanted.get_parameter(name)) for name, value in method._anchors.items())
    assert not all(torch.equal(value, found["base"][name]) for name, value in found["last"].items())


def test_what_is_saved_is_the_state_of_the_optimizer_that_was_asked_for() -> None:
    """Half of a stage, saved, and gone on with in new objects: the anchor is the start of the stage all the same."""
    whole, half = (Loop(RecAdam(k=1.0)) for _ in range(2))
    for t in range(6):
        whole.step(gradients(whole.model, t))
        if t < 3:
            half.step(gradients(half.model, t))
    state = copy.deepcopy(half.optimizer.state_dict())
    assert {key for each in state["state"].values() for key in each} == {"exp_avg", "exp_avg_sq", "step"}
    resumed = Loop(RecAdam(k=1.0))  # begins with the weights of the start, like a resumed run
    with torch.no_grad():
        for name, parameter in resumed.parameters.items():
            parameter.copy_(half.parameters[name])
    resumed.optimizer.load_state_dict(state)
    resumed.stage.step = 3
    for t in range(3, 6):
        resumed.step(gradients(resumed.model, t))
    assert all(torch.equal(p, whole.parameters[name]) for name, p in resumed.parameters.items())


def test_it_stays_nearer_than_plain_training() -> None:
    far = []
    for strength in (0, 0.5):
        model = tiny.model()
        start = stages.weights(model)
        stages.learn([RecAdam(strength=strength, k=0.01, t0=100)], stages.stage(model, 1, steps=8))
        far.append(sum(float((p.detach() - start[name]).square().sum()) for name, p in model.named_parameters()))
    assert far[1] < 0.3 * far[0]
