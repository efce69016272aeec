"""Methods of `tricks/` against their equations in float64: mixout, RecAdam, Reptile, SiATL."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.base import Stage
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.methods.tricks.mixout import Mixout, linear_weights
from everlearn.methods.tricks.recadam import RecAdam
from everlearn.methods.tricks.reptile import Reptile
from everlearn.methods.tricks.siatl import SiATL, prompt_labels
from everlearn.model.depth import depth_groups
from everlearn.model.objectives import IGNORE
from everlearn.model.training_mode import dropout_rates

LAYER = "roberta.encoder.layer.0.attention.self.query.weight"


def begun(name: str = "mixout", architecture: str = "roberta", **options: Any) -> tuple[Mixout, Stage]:
    """A method in the second domain, whose model has moved on from the base model's."""
    method: Any = build({"name": name} | options)
    stage = stages.stage(tiny.model(architecture, dropout=0.1).double(), 2, tiny.objective_of(architecture))
    method.begin_domain(stage)
    return method, stage


def draws(mix: Any, weight: Tensor, count: int) -> Tensor:
    torch.manual_seed(0)
    return torch.stack([mix(weight) for _ in range(count)])


@pytest.mark.parametrize("mask", ["inputs", "entries"])
@pytest.mark.parametrize("p", [0.5, 0.7, 0.9])
def test_expectation_and_variance(mask: str, p: float) -> None:
    method, stage = begun(probability=p, mask=mask)
    u = method._anchors[LAYER]
    w = u + torch.linspace(-1, 2, u.numel(), dtype=u.dtype).view_as(u)
    found = draws(method.transforms(stage)[LAYER], w, 4000)
    error = (p / (1 - p)) ** 0.5 * (w - u).abs() / 4000**0.5
    assert ((found.mean(0) - w).abs() <= 6 * error + 1e-12).all()
    torch.testing.assert_close(found.var(0), p / (1 - p) * (w - u) ** 2, rtol=0.35, atol=1e-6)
    # ((1 − M) w + M u − p u) / (1 − p) has two values.
    assert torch.minimum((found - u).abs(), (found - (w - p * u) / (1 - p)).abs()).max() < 1e-9
    torch.testing.assert_close(draws(method.transforms(stage)[LAYER], u, 3), u.expand(3, -1, -1), rtol=0, atol=0)


@pytest.mark.parametrize(("architecture", "name", "dim"), [("roberta", LAYER, 1), ("gpt2", "h.0.mlp.c_fc.weight", 0)])
def test_an_input_unit_is_mixed_with_all_that_leaves_it(architecture: str, name: str, dim: int) -> None:
    name = name if architecture == "roberta" else f"transformer.{name}"
    method, stage = begun(architecture=architecture)
    u = method._anchors[name]
    torch.manual_seed(0)
    mixed = method.transforms(stage)[name](u + 1.0)
    from_anchor = mixed == u
    assert 0 < from_anchor.sum() < from_anchor.numel()
    assert (from_anchor.all(1 - dim) == from_anchor.any(1 - dim)).all()
    method, stage = begun("mixconnect", architecture)
    single = method.transforms(stage)[name](u + 1.0) == u
    assert not (single.all(1 - dim) == single.any(1 - dim)).all()


def test_gradient_is_that_of_finite_differences_and_the_released_one_is_too_small() -> None:
    for name, factor in (("mixout", 1.0), ("mixout_released", 0.1)):
        method, stage = begun(name, probability=0.9)
        mix, u = method.transforms(stage)[LAYER], method._anchors[LAYER]
        w = (u + 0.5).requires_grad_()
        direction = torch.linspace(-1, 1, u.numel(), dtype=u.dtype).view_as(u)

        def value(weight: Tensor, mix: Any = mix) -> Tensor:
            torch.manual_seed(3)
            return mix(weight).sin().sum()

        value(w).backward()
        step = 1e-6
        difference = (value(w.detach() + step * direction) - value(w.detach() - step * direction)) / (2 * step)
        assert abs(difference) > 1e-3
        torch.testing.assert_close((w.grad * direction).sum(), factor * difference, rtol=1e-6, atol=1e-9)
        kept = w.grad != 0
        slope = (mix_once(mix, w.detach()) - u)[kept] / 0.5
        torch.testing.assert_close(slope, torch.full_like(slope, 10.0))


def mix_once(mix: Any, weight: Tensor) -> Tensor:
    torch.manual_seed(3)
    return mix(weight)


def test_in_evaluation_nothing_is_mixed_and_in_training_something_is() -> None:
    method, model = Mixout(anchor="base"), tiny.model()
    stage = stages.stage(model, 2)
    batch = next(stage.batches(4))
    plain = stage.objective.forward(model, batch).losses
    protection = Protection([method], stage)
    protection.begin()
    protection.start()
    assert torch.equal(stage.objective.forward(model, batch).losses, plain)
    assert not torch.allclose(stage.objective.forward(model.train(), batch).losses, plain, atol=1e-4)
    nothing = Mixout(probability=0)
    nothing.begin_domain(stage)
    assert nothing.transforms(stage) == {}


@pytest.mark.parametrize("name", ["mixout", "mixconnect", "mixout_released"])
def test_costs_the_anchor_and_what_a_pass_keeps_for_the_backward_pass(name: str) -> None:
    method, stage = begun(name, "llama")
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for path, mix in method.transforms(stage).items():
            keep(mix(stage.model.get_parameter(path)))  # the layer's own product keeps it
    held = sum(tensor.untyped_storage().nbytes() for tensor in [*kept.values(), *method._anchors.values()])
    assert method.cost(stage.model).memory_bytes == pytest.approx(held, rel=0.05)


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "llama", "t5"])
def test_matrices_of_linear_layers_are_mixed(architecture: str) -> None:
    model = tiny.model(architecture)
    found = {name for name, _, _ in linear_weights(model)}
    assert all(model.get_parameter(name).dim() == 2 for name in found)
    left = {name for name, p in model.named_parameters() if p.dim() == 2} - found
    assert all(any(word in name for word in ("embed", "wte", "wpe", "shared", "relative")) for name in left)
    assert ("lm_head.weight" in found) == (architecture == "llama"), "a head of its own, that no embedding shares"


@pytest.mark.parametrize("dropout", [False, True])
def test_it_takes_the_place_of_dropout_for_a_domain(dropout: bool) -> None:
    model = tiny.model("t5", dropout=0.1)
    rates = [(name, rate) for _, name, rate in dropout_rates(model)]
    seen = []
    stages.learn(
        [Mixout(dropout=dropout)],
        stages.stage(model, 1, "text-to-text", steps=1),
        each=lambda *_: seen.append([(name, rate) for _, name, rate in dropout_rates(model)]),
    )
    assert seen == [rates if dropout else []]
    assert [(name, rate) for _, name, rate in dropout_rates(model)] == rates
    assert len(rates) > 5


def test_it_stays_nearer_to_the_base_model() -> None:
    far = []
    for p in (0, 0.9):
        model = tiny.model()
        stages.learn([], stages.stage(model, 1))
        base = stages.weights(model)
        stages.learn([Mixout(probability=p)], stages.stage(model, 2, steps=12), lr=3e-3, weight_decay=0.0)
        moved = [(w.detach() - base[name]).square().sum() for name, w, _ in linear_weights(model)]
        far.append(float(torch.stack(moved).sum()))
    assert far[1] < far[0]


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
        ({"strength": 0.5, "gamma": 3}, "`gamma` and `strength` set the same"),
    ):
        with pytest.raises(MethodError, match=sentence):
            RecAdam(**options)


def test_a_published_gamma_at_another_rate_is_a_sentence() -> None:
    released = build("recadam_released")
    assert released.config.gamma * 2e-5 == pytest.approx(0.1)
    Loop(released, lr=2e-5)
    sentence = (
        r"'recadam_released', option 'gamma': γ = 5000 at the learning rate 0.02 and 1 − λ = 1 moves weights by 100 "
        r"times their distance.*diverges\. Set `gamma` below 50, or `strength`.*\.$"
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
        "Method 'recadam_released', option 't0': λ is ½ at step 250, but 'd1' has 8: even at its end λ is 3.1e-11, so "
        "little is learnt. Set `t0` below 8, or to null, the middle of a domain."
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


def _flat(model: torch.nn.Module) -> np.ndarray:
    return np.concatenate([value.double().numpy().ravel() for value in stages.weights(model).values()])


def test_every_k_steps_a_part_of_the_way_back() -> None:
    """θ_prev + ε (θ_k − θ_prev), in float64 from the weights right before and after each update."""
    method, model, k, epsilon = Reptile(every=3, epsilon=0.25), tiny.model(), 3, 0.25
    seen: list[np.ndarray] = []
    gradients: list[np.ndarray] = []

    def watch(protection: Protection, _: object) -> None:
        seen.append(_flat(model))
        gradients.append(np.concatenate([p.grad.double().numpy().ravel() for p in model.parameters()]))

    stages.learn([method], stages.stage(model, 1, steps=8), optimizer=torch.optim.SGD, each=watch, lr=0.1)
    seen.append(_flat(model))
    previous = seen[0]
    for step in range(8):
        moved = seen[step] - 0.1 * gradients[step]
        if (step + 1) % k == 0:
            moved = previous = previous + epsilon * (moved - previous)
        np.testing.assert_allclose(seen[step + 1], moved, atol=1e-6)
    assert not method.memory()


def test_the_way_back_goes_on_after_a_resume() -> None:
    ways = []
    for stopped in (False, True):
        method, model = Reptile(every=4, epsilon=0.5), tiny.model()
        stage = stages.stage(model, 1, steps=6, batch_size=2)
        protection = Protection([method], stage)
        protection.begin()
        optimizer = protection.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step, batch in enumerate(stage.batches(12)):
            if step == 2 and stopped:
                memory = method.memory()
                method = Reptile(every=4, epsilon=0.5)
                method.load_memory(memory)
                protection = Protection([method], stage)
                protection.begin()
            protection.loss(model, batch)[0].backward()
            protection.after_backward()
            with protection.update():
                optimizer.step()
            optimizer.zero_grad()
        assert stage.step == 6
        ways.append(_flat(model))
    assert (ways[0] == ways[1]).all()


def test_a_domain_that_is_too_short_is_noted() -> None:
    stage = stages.stage(tiny.model(), 1, steps=4)
    stages.learn([build("reptile_released")], stage)
    assert stage.notes == [
        "Method 'reptile_released' steps back every 500 steps (`every`), but 'd1' has 4: its training was plain."
    ]


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_the_ends(epsilon: float) -> None:
    model, plain = tiny.model(), tiny.model()
    before = _flat(model)
    stages.learn([Reptile(every=2, epsilon=epsilon)], stages.stage(model, 1, steps=4))
    stages.learn([], stages.stage(plain, 1, steps=4))
    assert (_flat(model) == (before if epsilon == 0 else _flat(plain))).all()


PAD = 1
ROW = {  # two examples and what fills up the row: prompts 10 11 12 and 20 21, answers 13 14 and 22
    "input_ids": torch.tensor([[10, 11, 12, 13, 14, 20, 21, 22, PAD, PAD]]),
    "position_ids": torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1]]),
    "positions": torch.tensor([[2, 3, 6, 0]]),
    "labels": torch.tensor([[13, 14, 22, IGNORE]]),
}


def test_the_language_models_text_is_the_prompts() -> None:
    labels, positions = prompt_labels(ROW)
    assert labels.tolist() == [[11, 12, *[IGNORE] * 3, 21, *[IGNORE] * 4]]
    assert positions.tolist() == [list(range(10))]


def _reference(model: torch.nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean over a row's prompt tokens, then rows; each document on its own, token by token."""
    rows = []
    for n in range(len(batch["input_ids"])):
        answered = {
            int(t) for t, label in zip(batch["positions"][n], batch["labels"][n], strict=True) if label != IGNORE
        }
        begins = [t for t in range(stages.S) if batch["position_ids"][n, t] == 0]
        nats = []
        for begin, end in zip(begins, [*begins[1:], stages.S], strict=True):
            ids = batch["input_ids"][n, begin:end]
            if not answered & set(range(begin, end)):
                continue
            logits = model(input_ids=ids[None], use_cache=False).logits[0]
            for t in range(begin, end - 1):
                if t not in answered:
                    nats.append(logits[t - begin].logsumexp(0) - logits[t - begin, ids[t - begin + 1]])
        rows.append(torch.stack(nats).mean())
    return torch.stack(rows).mean()


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_loss_and_gradient_are_the_equation(architecture: str) -> None:
    model = tiny.model(architecture)
    stage = stages.stage(model, 1, "text-to-text", steps=5)
    stage.step = 3
    protection = Protection([SiATL()], stage)
    protection.begin()
    batch = next(stage.batches(3))
    outputs, extra = protection.forward(model, batch)
    double = tiny.model(architecture).double()
    expected = 0.2 * 0.5 ** (3 / 4) * _reference(double, batch)
    torch.testing.assert_close(extra["siatl/language_model"].double(), expected, rtol=1e-5, atol=0)
    plain = stage.objective.forward(model, batch).losses
    torch.testing.assert_close(outputs.losses, plain, msg="the task's loss is what it was")
    extra["siatl/language_model"].backward()
    expected.backward()
    for (name, p), reference in zip(model.named_parameters(), double.parameters(), strict=True):
        torch.testing.assert_close(p.grad.double(), reference.grad, rtol=1e-3, atol=1e-6, msg=lambda m, n=name: n + m)


def test_gamma_falls_exponentially() -> None:
    method = SiATL()
    found = [method.gamma(step, 15) for step in range(15)]
    assert (found[0], found[-1]) == (pytest.approx(0.2), pytest.approx(0.1))
    assert {round(b / a, 12) for a, b in pairwise(found)} == {round(0.5 ** (1 / 14), 12)}
    released = SiATL(auxiliary=math.exp(-1.6), auxiliary_end=math.exp(-2.3))
    code = torch.linspace(-1.6, -2.3, 15, dtype=torch.float64).exp()
    assert [released.gamma(epoch, 15) for epoch in range(15)] == pytest.approx(code.tolist())
    assert SiATL(auxiliary=0).gamma(3, 15) == 0
    assert method.gamma(0, 1) == 0.2


def test_the_top_moves_first_and_the_embeddings_last() -> None:
    model = tiny.model("llama", num_hidden_layers=3)
    stage = stages.stage(model, 1, "text-to-text", steps=15)
    start, (embeddings, *layers, head) = stages.weights(model), depth_groups(model)
    thaws = dict.fromkeys([*layers[-1], *head], 0) | dict.fromkeys([*layers[0], *layers[1]], 1)
    thaws |= dict.fromkeys(embeddings, 4)
    moved: dict[str, int] = {}

    def look(*_: object) -> None:
        for name, p in model.named_parameters():
            if name not in moved and not torch.equal(p, start[name]):
                moved[name] = stage.step - 1

    stages.learn([SiATL()], stage, each=look)
    assert moved == thaws


def test_two_rates() -> None:
    stage = stages.stage(tiny.model("llama"), 1, "text-to-text")
    groups = SiATL(pretrained_rate=0.1).parameter_groups(stage, [{"params": list(stage.model.parameters()), "lr": 1.0}])
    below, *_, last, head = depth_groups(stage.model)
    rate = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert {rate[id(stage.model.get_parameter(name))] for name in below} == {0.1}
    assert {rate[id(stage.model.get_parameter(name))] for name in (*last, *head)} == {1.0}


@pytest.mark.parametrize(
    ("architecture", "objective", "sentence"),
    [
        ("roberta", "masked", "does not work with objective 'masked'; it works with text-to-text"),
        ("gpt2", "causal", "does not work with objective 'causal'; it works with text-to-text"),
        ("t5", "text-to-text", r"trains next-token prediction on prompts, which an encoder-decoder does not do"),
    ],
)
def test_streams_without_prompts_are_refused(architecture: str, objective: str, sentence: str) -> None:
    methods = [SiATL()]
    with pytest.raises(MethodError, match=f"'siatl' {sentence}"):
        check_methods(methods, stages.setting(tiny.model(architecture), methods, objective))
    with pytest.raises(MethodError, match="'siatl', option 'unfreeze"):
        SiATL(unfreeze=(0.5, 1.5))
