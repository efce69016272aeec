"""Penalties as importance × anchor × norm: each part against its formula in float64, and what goes wrong without it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from penalty_stages import domain, doubled, kept, moved, penalty
from torch import nn

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.base import Memory
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.methods.penalties.norms import NORMS

SPECS = ["ewc", "ewc_separate", "ewc_normalised", "rewc", "aewc", "l2", "l2_sp", "si", "mas"]


# -- norms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "formula"),
    [
        ("quadratic", lambda f, d: 0.5 * (f * d**2).sum()),
        ("root", lambda f, d: ((f * d**2).sum() + 1e-8) ** 0.5),
        ("absolute", lambda f, d: (f * d.abs()).sum()),
    ],
)
def test_a_norm_and_its_gradient_are_the_formula(norm: str, formula) -> None:
    generator = torch.Generator().manual_seed(0)
    importance, anchor = torch.rand(7, 3, generator=generator), torch.randn(7, 3, generator=generator)
    weight = (anchor + 0.1 * torch.randn(7, 3, generator=generator)).requires_grad_()
    with torch.no_grad():
        weight[0] = anchor[0]  # at the anchor every norm is flat
    slow = weight.detach().double().requires_grad_()
    expected = formula(importance.double(), slow - anchor.double())
    chosen = NORMS[norm]
    value = chosen.of(chosen.terms.apply(weight, importance, anchor))
    (gradient,) = torch.autograd.grad(value, weight)
    (wanted,) = torch.autograd.grad(expected, slow)
    torch.testing.assert_close(value.double(), expected.detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient.double(), wanted, rtol=1e-5, atol=1e-8)
    assert torch.equal(gradient[0], torch.zeros(3))
    at_rest = chosen.terms.apply(anchor.clone().requires_grad_(), importance, anchor)
    (still,) = torch.autograd.grad(chosen.of(at_rest), at_rest)
    assert torch.isfinite(still), "the root has no slope at 0 without its epsilon"


@pytest.mark.parametrize(
    ("norm", "formula"),
    [("quadratic", lambda f, d: 0.5 * f * d**2), ("absolute", lambda f, d: f * d.abs())],
)
def test_the_pull_minimises_the_penalty_beside_the_distance_moved(norm: str, formula) -> None:
    """argmin over z of penalty(z) + ½ (z − Δ)², by trying every z of a fine grid."""
    grid = torch.linspace(-3, 3, 60001, dtype=torch.float64)
    for moved_by in (-2.0, -0.3, 0.0, 0.7, 2.5):
        for pull in (0.0, 0.5, 4.0, 1e6):
            best = grid[(formula(pull, grid) + 0.5 * (grid - moved_by) ** 2).argmin()]
            found = NORMS[norm].pulled(torch.tensor(moved_by).double(), torch.tensor(pull).double())
            assert float(found) == pytest.approx(float(best), abs=1e-4)


# -- anchors --------------------------------------------------------------------------------------------------


def test_last_means_one_thing() -> None:
    """The model that a domain begins with, which the first domain has too; penalties know only what was learnt."""
    for name in SPECS:
        with pytest.raises(MethodError, match=r"'anchor'.*'last'"):
            build({"name": name, "anchor": "last"})


@pytest.mark.parametrize("accumulate", ["sum", "mean"])
@pytest.mark.parametrize("follow", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("spec", ["ewc_separate", {"name": "l2", "anchor": "separate"}])
def test_separate_anchors_are_the_exact_sum_of_quadratics(spec, follow: float, accumulate: str) -> None:
    spec = ({"name": spec} if isinstance(spec, str) else spec) | {"follow": follow}
    method, model = build({**spec, "strength": 50.0, "accumulate": accumulate}), tiny.model()
    each = []
    for index in (1, 2, 3):
        single, twin = build({**spec, "anchor": "online", "follow": 0}), tiny.model()
        stage = stages.stage(model, index)
        Protection([method], stage).begin()
        moved(model, seed=index)
        twin.load_state_dict(model.state_dict())
        stages.end([single], stages.stage(twin, index))  # the importance of this domain alone
        stages.end([method], stage)
        now = doubled(model)
        for n in now if each else ():
            middle = sum(f[n] * a[n] for f, a in each) / sum(f[n] for f, _ in each)
            shift = follow * (now[n] - middle).nan_to_num(0.0)  # what nothing holds has no middle
            for _, a in each:
                a[n] = a[n] + shift
        each.append(({n: v.double() for n, v in kept(single, type(single)._importance.key.rstrip("/")).items()}, now))
    anchors = sum(value.numel() for value in kept(method, "anchor").values())
    assert anchors == sum(p.numel() for p in model.parameters()), "one anchor, however many domains"
    copy = build({**spec, "strength": 50.0, "accumulate": accumulate})
    copy.load_memory(method.memory())
    for size in (0.0, 0.05):
        moved(model, size, seed=8)
        now = doubled(model)
        slow = sum(25.0 * (f[n] * (now[n] - a[n]) ** 2).sum() for f, a in each for n in now)
        slow = slow / 3 if accumulate == "mean" else slow
        value = penalty(copy, model)
        torch.testing.assert_close(value.double().detach(), slow, rtol=1e-4, atol=0)
        model.zero_grad()
        value.backward()
        for name, parameter in model.named_parameters():
            wanted = sum(50.0 * f[name] * (now[name] - a[name]) for f, a in each)
            wanted = wanted / 3 if accumulate == "mean" else wanted
            nothing = 1e-5 * float(wanted.abs().max())
            torch.testing.assert_close(parameter.grad.double(), wanted, rtol=2e-3, atol=nothing)


def test_anchors_that_follow_all_the_way_are_the_last_weights() -> None:
    """Between separate anchors and online ones: with `follow: 1` the gradients are those of the online penalty."""
    gradients = []
    for spec in ({"anchor": "separate", "follow": 1}, {"anchor": "online"}):
        method, model = build({"name": "ewc", "strength": 50.0, **spec}), tiny.model()
        for index in (1, 2, 3):
            stage = stages.stage(model, index)
            Protection([method], stage).begin()
            moved(model, seed=index)
            stages.end([method], stage)
        moved(model, 0.05, seed=8)
        penalty(method, model).backward()
        gradients.append([p.grad for p in model.parameters()])
    for mine, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-6 * float(wanted.abs().max()))


def test_one_anchor_at_the_last_weights_is_another_function() -> None:
    """Online EWC is not the sum of quadratics: a test that could not tell them apart would show nothing."""
    values = []
    for anchor in ("online", "separate"):
        method, model = build({"name": "ewc", "anchor": anchor, "samples": 4}), tiny.model()
        for index in (1, 2):
            domain(method, model, index)
        values.append(penalty(method, model).item())
    assert values[0] == 0
    assert values[1] > 0


def test_online_ewc_fades_what_it_knew_by_gamma() -> None:
    known = {}
    for decay in (0.25, 1.0, 0.0):
        method, model = build({"name": "ewc", "decay": decay, "samples": 4}), tiny.model()
        for index in (1, 2):
            domain(method, model, index)
        known[decay] = {n: v for n, v in method.memory().tensors.items() if n.startswith("fisher/")}
    for name, alone in known[0.0].items():
        first = known[1.0][name] - alone
        torch.testing.assert_close(known[0.25][name], 0.25 * first + alone, rtol=1e-5, atol=1e-9)


def test_l2_sp_holds_the_base_for_the_whole_stream_and_leaves_vectors_free() -> None:
    method, model = build({"name": "l2_sp", "strength": 0.3}), tiny.model()
    base = doubled(model)
    for index in (1, 2):
        domain(method, model, index)
    slow = sum(0.15 * ((p - base[n]) ** 2).sum() for n, p in doubled(model).items() if p.dim() > 1)
    torch.testing.assert_close(penalty(method, model).double().detach(), slow, rtol=1e-5, atol=0)
    last, model = build({"name": "l2", "strength": 0.3}), tiny.model()
    for index in (1, 2):
        domain(last, model, index)
    assert penalty(last, model).item() == 0
    start = doubled(model)
    Protection([last], stage := stages.stage(model, 3)).begin()
    moved(model)
    slow = sum(0.15 * ((p - start[n]) ** 2).sum() for n, p in doubled(model).items())
    found = Protection([last], stage).forward(model, next(stage.batches(2)))[1]["l2/penalty"]
    torch.testing.assert_close(found.double().detach(), slow, rtol=1e-5, atol=0)


@pytest.mark.parametrize("exclude", ["embeddings", "head", "vectors"])
def test_what_is_excluded_moves_freely(exclude: str) -> None:
    method, model = build({"name": "l2", "exclude": [exclude]}), tiny.model("gpt2")
    stages.end([method], stages.stage(model, 1, "causal"))
    free = {name for name, _ in model.named_parameters()} - kept(method, "ones").keys()
    if exclude == "vectors":
        assert free == {name for name, p in model.named_parameters() if p.dim() < 2}
    else:  # tied: the embedding is the head
        assert "transformer.wte.weight" in free
        assert ("transformer.wpe.weight" in free) == (exclude == "embeddings")


# -- scales ---------------------------------------------------------------------------------------------------


def test_normalised_importance_has_mean_one_or_maxima_one() -> None:
    found = {}
    for how in ("none", "mean", "max"):
        method, model = build({"name": "ewc", "samples": 4, "normalise": how}), tiny.model()
        domain(method, model, 1)
        found[how] = {n: v.double() for n, v in method.memory().tensors.items() if n.startswith("fisher/")}
        if how == "mean":
            numbers = sum(value.numel() for value in found["none"].values())
            mean = float(sum(value.sum() for value in found["none"].values()) / numbers)
            assert method.memory().facts["means"] == [pytest.approx(mean, rel=1e-5)]
    largest = max(float(value.max()) for value in found["none"].values())
    for name, value in found["none"].items():
        torch.testing.assert_close(found["mean"][name], value / mean, rtol=1e-4, atol=0)
        rounding = value.max() < 1e-12 * largest
        assert rounding == ("key.bias" in name), "no attention depends on a key's bias"
        relative = torch.zeros_like(value) if rounding else value / value.max()
        torch.testing.assert_close(found["max"][name], relative, rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spec", [{"name": "mas"}, {"name": "ewc", "importance": "absolute"}, {"name": "ewc"}])
@pytest.mark.parametrize("arch", ["roberta", "bert", "qwen2"])
def test_rounding_is_not_made_the_largest_importance(arch: str, spec: dict[str, Any], dtype: torch.dtype) -> None:
    """The gradient of a key's bias is 0 but for rounding, except where positions are rotations."""
    model = tiny.model(arch)
    moved(model, 0.1)
    method = build({**spec, "samples": 6, "normalise": "max"})
    domain(method, model.to(dtype), 1, "causal" if arch == "qwen2" else "masked")
    importance = {n: v for n, v in method.memory().tensors.items() if n.startswith(type(method)._importance.key)}
    assert any(name.endswith(("key.bias", "k_proj.bias")) for name in importance)
    for name, value in importance.items():
        assert float(value.max()) == (0 if name.endswith("key.bias") else 1), name


@pytest.mark.parametrize("apply_to", ["loss", "update"])
def test_a_pull_reaches_the_weights_unclipped_and_no_strength_makes_it_diverge(apply_to: str) -> None:
    """SGD with λ η F far above 2: steps along the penalty's gradient overshoot, implicit ones do not."""
    method, model = build({"name": "l2", "strength": 1e3, "apply_to": apply_to, "protect_base": True}), tiny.model()
    start = doubled(model)
    stage = stages.stage(model, 1, steps=4)
    stages.learn([method], stage, optimizer=torch.optim.SGD, lr=0.01)
    away = max(float((p - start[n]).abs().max()) for n, p in doubled(model).items())
    assert (away < 0.01) == (apply_to == "update")
    assert any("diverge" in note for note in stage.notes) == (apply_to == "loss")


def test_clipping_shrinks_the_task_beside_a_strong_penalty_in_the_loss() -> None:
    """Why `apply_to: update` is there: in the loss what is left of the task's gradient depends on λ."""
    left = {}
    for apply_to in ("loss", "update"):
        method, model = build({"name": "l2", "strength": 1e4, "apply_to": apply_to}), tiny.model()
        domain(method, model, 1)
        stage = stages.stage(model, 2)
        protection = Protection([method], stage)
        protection.begin()
        protection.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        moved(model, 0.01)
        batch = next(stage.batches(4))
        loss, parts = protection.loss(model, batch)
        loss.backward()
        assert ("l2/penalty" in parts) == (apply_to == "loss")
        whole = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        model.zero_grad()
        protection.stage.objective.forward(model, batch).loss.backward()
        task = float(nn.utils.clip_grad_norm_(model.parameters(), 1e9))
        left[apply_to] = min(1.0, 1.0 / whole) * task
    assert left["loss"] < 0.1 * left["update"]


@pytest.mark.parametrize(
    "other", [{"name": "migu", "threshold": 0.9}, {"name": "mofo", "fraction": 0.1}, {"name": "ulmfit", "decay": 1}]
)
@pytest.mark.parametrize("mine", [{"name": "l2", "apply_to": "update", "strength": 10}, "recadam"])
def test_what_another_method_holds_back_is_not_pulled(mine: Any, other: dict[str, Any]) -> None:
    if mine == "recadam":
        mine = {"name": "recadam", "anchor": "base", "t0": 100, "strength": 0.3}
    methods, model = [build(mine), build(other)], tiny.model()
    domain(methods[0], model, 1)
    stage = stages.stage(model, 2)
    protection = Protection(methods, stage)
    protection.begin()
    optimizer = protection.optimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
    moved(model, 0.05)
    before = stages.weights(model)
    protection.loss(model.train(), next(stage.batches(4)))[0].backward()
    protection.after_backward()
    with protection.update():
        optimizer.step()
    held = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert bool(held) == (other["name"] == "ulmfit")
    still = {name: parameter == before[name] for name, parameter in model.named_parameters()}
    assert all(bool(still[name].all()) for name in held)
    masks = {name: factor for _, mask in protection._masks for name, factor in mask.factors.items()}
    assert bool(masks) == (not held)
    for name, factor in masks.items():
        factor = factor() if callable(factor) else factor
        assert bool(still[name][factor.expand_as(still[name]) == 0].all()), name
    assert not all(bool(same.all()) for same in still.values())


@pytest.mark.parametrize(
    ("mine", "left"),
    [
        ({"name": "l2", "anchor": "base", "apply_to": "update", "strength": 10}, 1 / 1.1),
        ({"name": "recadam", "anchor": "base", "k": 1, "t0": 100, "strength": 0.3}, 0.7),
        ({"name": "l2", "anchor": "base", "strength": 10}, 1),
    ],
)
def test_a_mask_on_gradients_is_no_mask_on_a_pull(mine: dict[str, Any], left: float) -> None:
    """It scales what the optimizer reads. Rows without a gradient go as far as they are pulled, and not at all where
    the penalty is in the loss."""
    masking = {"name": "migu", "threshold": 0.9, "apply_to": "gradient", "skip_first_domain": False}
    methods, model = [build(mine), build(masking)], tiny.model()
    anchor, stage = stages.weights(model), stages.stage(model)
    protection = Protection(methods, stage)
    protection.begin()
    optimizer = protection.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    moved(model, 0.05)
    before = stages.weights(model)
    protection.loss(model.train(), next(stage.batches(4)))[0].backward()
    protection.after_backward()
    with protection.update():
        optimizer.step()
    masks = {name: factor for _, mask in protection._masks for name, factor in mask.factors.items()}
    assert masks
    for name, factor in masks.items():
        held = factor.expand_as(anchor[name]) == 0
        now = model.get_parameter(name).detach()[held]
        pulled = anchor[name] + left * (before[name] - anchor[name])
        torch.testing.assert_close(now, pulled[held], rtol=1e-5, atol=1e-6)


def test_a_pull_that_would_miss_the_optimizers_weights_is_an_error() -> None:
    method, model = build({"name": "l2", "apply_to": "update", "protect_base": True}), tiny.model()
    protection = Protection([method], stages.stage(model, 1))
    protection.begin()
    protection.optimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))
    protection.start()
    with pytest.raises(MethodError, match="'apply_to': 'update' must pull the tensors that the optimizer"):
        protection.after_update()


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [{"name": "infinite_schedule", "anneal": 0.5}, {"name": "selective_init"}])
@pytest.mark.parametrize("name", ["ewc", "ewc_separate", "l2", "si", "mas", "budget", "forget_me_not"])
def test_the_end_of_a_domain_is_not_held_where_the_next_one_starts_elsewhere(name: str, start: dict[str, Any]) -> None:
    """With an anneal, the anchor would be the released weights, and each domain begin with a pull back to them."""
    model, others = tiny.model(), [build(start), build({"name": "infinite_schedule"})]
    for other, refused in zip(others, (True, False), strict=True):
        methods = [build(name), other]
        with pytest.raises(MethodError, match=f"'{name}' keeps.*'{other.label}'.*Remove") if refused else nullcontext():
            check_methods(methods, stages.setting(model, methods, general=True))
    methods = [build("l2_sp"), build(start)]
    check_methods(methods, stages.setting(model, methods))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"name": "rewc", "anchor": "separate"}, "'rewc'|'ewc'.*'anchor': 'separate' needs `norm: quadratic`"),
        ({"name": "aewc", "anchor": "separate"}, "'anchor': 'separate' needs `norm: quadratic`"),
        ({"name": "rewc", "apply_to": "update"}, "'apply_to': 'update' needs"),
        ({"name": "mas", "follow": 0.5}, "option 'follow': '0.5' needs `anchor: separate`"),
        ({"name": "l2", "decay": 0.5}, "'accumulate': 'mean' needs `decay: 1`"),
        ({"name": "si", "anchor": "base"}, "'anchor'"),
        (
            {"name": "ewc", "anchor": "base", "decay": 0.3},
            "'decay': 0.3 has no effect.*importance once.*Leave it at 1.0",
        ),
        ({"name": "ewc", "anchor": "base", "accumulate": "mean"}, "'accumulate': 'mean' has no effect"),
        ({"name": "mas", "anchor": "base", "protect_base": True}, "'protect_base': True has no effect"),
        ({"name": "l2", "normalise": "max"}, "'normalise': 'max' has no effect.*every weight is 1"),
        ({"name": "l2_sp", "normalise": "mean"}, "'normalise': 'mean' has no effect"),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_a_sentence(spec: dict, says: str) -> None:
    with pytest.raises(MethodError, match=says):
        build(spec)


@pytest.mark.parametrize("name", SPECS)
def test_a_domain_learnt_in_two_parts_is_the_domain_learnt_at_once(name: str) -> None:
    """What memory holds inside a domain is all that the rest of it needs."""
    ends = []
    for stopped in (False, True):
        method, model = build({"name": name, **({} if name in ("l2", "l2_sp", "si") else {"samples": 4})}), tiny.model()
        stages.learn([method], stages.stage(model, 1, steps=2))
        stage = stages.stage(model, 2, steps=3)
        protection, data = Protection([method], stage), list(stage.batches(12))
        protection.begin()
        optimizer = protection.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2))
        for number, batch in enumerate(data):
            if stopped and number == 1:
                memory = Memory({n: v.clone() for n, v in method.memory().tensors.items()}, method.memory().facts)
                method = build({"name": name, **({} if name in ("l2", "l2_sp", "si") else {"samples": 4})})
                method.load_memory(memory)
                protection = Protection([method], stage)
                protection.begin()
                stage.step = 1
                protection.rows = 4
                stage.optimizer = optimizer
            protection.loss(model.train(), batch)[0].backward()
            protection.after_backward()
            with protection.update():
                optimizer.step()
            optimizer.zero_grad()
        protection.end()
        ends.append((stages.weights(model), method.memory().tensors))
    for whole, parts in zip(*ends, strict=True):
        assert whole.keys() == parts.keys()
        assert all(torch.equal(value, parts[key]) for key, value in whole.items())


def test_the_true_fisher_information_takes_labels_of_the_model() -> None:
    """The model's own draws, the same each time; others than the data's."""
    found = []
    for labels in ("model", "model", "data"):
        model = tiny.model()
        stage = stages.stage(model, 1, batch_size=4)
        method = build({"name": "ewc", "samples": 4, "labels": labels})
        stages.end([method], stage)
        found.append(kept(method, "fisher"))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert any(not torch.equal(found[0][name], found[2][name]) for name in found[0])


@pytest.mark.parametrize("apply_to", ["loss", "update"])
def test_beside_16_bit_weights_importance_and_anchors_stay_float32(apply_to: str) -> None:
    """Two anchors make a third one between them, which has no place in 16 bits; fp16 has none for small importance."""
    model = tiny.model().to(torch.float16)
    names = [name for name, _ in model.named_parameters()]
    generator = torch.Generator().manual_seed(0)
    values = {name: p.detach().float() for name, p in model.named_parameters()}
    importance = {name: 1e-9 * torch.rand(value.shape, generator=generator) for name, value in values.items()}
    anchor = {name: value + 1e-3 * torch.randn(value.shape, generator=generator) for name, value in values.items()}
    method = build({"name": "ewc_separate", "strength": 1e9, "apply_to": apply_to})
    tensors = {f"fisher/{name}": importance[name] for name in names}
    tensors |= {f"anchor/{name}": anchor[name] for name in names}
    method.load_memory(Memory(tensors, {"domains": ["d1"]}))
    stage = stages.stage(model, 2)
    stage.optimizer = torch.optim.SGD(model.parameters(), 1.0)
    method.begin_domain(stage)
    method.begin_training(stage)
    apart = {name: values[name].double() - anchor[name].double() for name in names}
    if apply_to == "loss":
        found = method.extra_losses(stage, {}, None)["penalty"]
        wanted = 0.5e9 * sum((importance[name].double() * apart[name] ** 2).sum() for name in names)
        torch.testing.assert_close(found.detach().double(), wanted, rtol=1e-5, atol=0)
    else:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        method.pull(stage)
        for name, parameter in model.named_parameters():
            pulled = anchor[name].double() + apart[name] / (1 + 1e9 * importance[name].double())
            torch.testing.assert_close(parameter.double(), pulled, rtol=1e-3, atol=1e-6)  # half's rounding
