"""Learning rates by depth and over a stream."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.base import Method, Stage
from everlearn.methods.engine.protection import Protection, check_carrying, check_methods, overrides
from everlearn.methods.tricks.stream_schedule import StreamSchedule
from everlearn.methods.tricks.ulmfit import ULMFiT, slanted
from everlearn.model.depth import depth_groups

# -- ULMFiT: rates by depth, the triangle, and what it means to be frozen ----------------------------------------------


RATE = 0.01


def rates(method: ULMFiT, stage: Stage) -> dict[str, float]:
    groups = method.parameter_groups(stage, [{"params": list(stage.model.parameters()), "lr": RATE}])
    names = {id(p): name for name, p in stage.model.named_parameters()}
    return {names[id(p)]: group["lr"] for group in groups for p in group["params"]}


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_parameters_by_depth(architecture: str) -> None:
    model = tiny.model(architecture)
    embeddings, *layers, head = depth_groups(model)
    assert sorted([*embeddings, *head, *(n for names in layers for n in names)]) == sorted(
        name for name, _ in model.named_parameters()
    )
    assert len(layers) == (4 if architecture in ("t5", "bart") else 2)
    for names in layers:
        numbers = {part for name in names for part in name.split(".") if part.isdigit()} & {"0", "1"}
        assert len(names) > 3
        assert len(numbers) >= 1
    output = model.get_output_embeddings().weight
    assert any(model.get_parameter(name) is output for name in head)
    inputs = model.get_input_embeddings().weight
    assert inputs is output or any(model.get_parameter(name) is inputs for name in embeddings)


def test_depths_of_a_model_with_adapters() -> None:
    stage = stages.stage(tiny.model("gpt2"), 1, "causal")
    stages.begin([IncLoRA()], stage)
    _, first, second, _ = depth_groups(stage.model)
    assert all(".h.0." in name for name in first)
    assert all(".h.1." in name for name in second)
    parts = ULMFiT().parts(stage)
    assert [by for _, by in parts] == [2.6, 1.0], "only what is trained has a rate"
    assert all("lora" in name for names, _ in parts for name in names)


def test_each_depth_has_the_rate_above_it_over_2_6() -> None:
    stage = stages.stage(tiny.model("llama"), 1, "causal")
    found = rates(ULMFiT(), stage)
    for below, above in zip(depth_groups(stage.model), depth_groups(stage.model)[1:], strict=False):
        assert {found[name] for name in above} == {found[above[0]]}
        assert found[below[0]] * 2.6 == pytest.approx(found[above[0]])
    assert found["lm_head.weight"] == RATE


def test_rates_of_the_released_code() -> None:
    stage = stages.stage(tiny.model("llama", num_hidden_layers=3), 1, "causal")
    depths = depth_groups(stage.model)
    for name, divisors in (
        ("ulmfit_lm_released", (6, 6, 3, 1, 2)),
        ("ulmfit_classifier_released", tuple(2.6**power for power in (4, 3, 2, 1, 0))),
    ):
        found = rates(build(name), stage)
        assert [RATE / found[names[0]] for names in depths] == pytest.approx(divisors)
    with pytest.raises(MethodError, match="'divisors"):
        ULMFiT(divisors=(0, 1))
    with pytest.raises(MethodError, match="'divisors': must be two or more"):
        ULMFiT(divisors=(1,))


def test_the_triangle() -> None:
    steps, f, ratio = 50, 0.1, 32
    found = [slanted(t, steps, f, ratio) for t in range(steps)]
    cut = math.floor(steps * f)
    for t, value in enumerate(found):  # eq. 3 as it is printed; T f is a whole number
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / f - 1))
        assert value == pytest.approx((1 + p * (ratio - 1)) / ratio)
    assert found[0] == pytest.approx(1 / ratio)
    assert found[cut] == max(found) == 1
    assert found[-1] == pytest.approx(1 / ratio, abs=0.03)


@pytest.mark.parametrize("steps", [1, 2, 7, 19, 33])
def test_rates_are_never_negative(steps: int) -> None:
    """As printed, p falls below 0 where T f is no whole number: at T = 19 the last rate is −0.9 η_max."""
    assert all(1 / 32 <= slanted(t, steps, 0.1, 32) <= 1 for t in range(steps))


def schedule(method: ULMFiT, steps: int) -> list[float]:
    stage = stages.stage(tiny.model("llama", num_hidden_layers=3), 1, "causal", steps=steps)
    protection = Protection([method], stage)
    optimizer = protection.optimizer(torch.optim.SGD(stage.model.parameters(), lr=RATE))
    made = protection.schedule(LambdaLR(optimizer, lambda step: 0.5))
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[-1]["lr"] / RATE)
        optimizer.step()
        made.step()
    return found


def test_one_triangle_or_one_for_each_phase() -> None:
    assert schedule(ULMFiT(), 20) == pytest.approx([slanted(t, 20, 0.1, 32) for t in range(20)])
    assert schedule(ULMFiT(ratio=None), 3) == [0.5] * 3, "the schedule of `train`"
    phases = [slanted(t, 6, 1 / 3, 8) for t in range(6)]
    rest = [slanted(t, 12, 1 / 8, 8) for t in range(12)]
    released = build("ulmfit_classifier_released")
    assert schedule(released, 24) == pytest.approx([*phases, *phases, *rest])


def test_parts_thaw_from_the_head_down() -> None:
    stage = stages.stage(tiny.model(), 1, steps=40)
    assert ULMFiT().starts(stage, 5) == [20, 15, 10, 5, 0]
    assert ULMFiT(unfreeze=1, alone=2).starts(stage, 5) == [40, 40, 40, 20, 0]
    assert ULMFiT(unfreeze=0).starts(stage, 5) == [0] * 5
    assert ULMFiT().starts(stage, 1) == [0]
    assert ULMFiT(alone=9).starts(stage, 3) == [20, 10, 0]


def test_frozen_means_that_nothing_happens() -> None:
    """No weight decay, no momentum, no moments, no part in clipping; the first step after the thaw is Adam's first."""
    model = tiny.model("llama")
    stage = stages.stage(model, 1, "causal", steps=8)
    start, parts = stages.weights(model), ULMFiT().parts(stage)
    starts = ULMFiT().starts(stage, len(parts))
    assert starts == [4, 2, 1, 0]
    thaws = {name: begin for (names, _), begin in zip(parts, starts, strict=True) for name in names}
    before: dict[str, torch.Tensor] = {}

    def look(protection: Protection, _: object) -> None:
        step, optimizer = stage.step, stage.optimizer
        for name, parameter in model.named_parameters():
            if step < thaws[name]:
                assert parameter.grad is None, "not in the norm that clipping looks at"
                assert parameter not in optimizer.state
            if step <= thaws[name]:
                assert torch.equal(parameter, start[name])
            if step == thaws[name]:
                before[name] = parameter.grad.clone()

    def after(protection: Protection, _: object) -> None:
        look(protection, _)
        if stage.step == 2:
            first.update({n: p.detach().clone() for n, p in model.named_parameters() if thaws[n] == 1})

    first: dict[str, torch.Tensor] = {}
    stages.learn([ULMFiT(decay=1, ratio=None)], stage, each=after, lr=1e-3, weight_decay=0.1)
    assert first
    for name, value in first.items():
        gradient = before[name]
        expected = start[name] * (1 - 1e-4) - 1e-3 * gradient / (gradient.abs() + 1e-8)
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)
    assert all(not torch.equal(p, start[name]) for name, p in model.named_parameters())


# -- Schedules of the stream against closed forms, anneals that the next domain passes by, and Adam's first steps ------


RATE_STREAM_SCHEDULE = 3e-4
MODEL = tiny.model()


def _rates(method: Method, domains: list[int], theirs: str = "constant", **kinds: Any) -> list[list[float]]:
    """The rate of every step of every domain."""
    found = []
    for index, steps in enumerate(domains, 1):
        stage = stages.stage(MODEL, index, steps=steps)
        protection = Protection([method], stage)
        optimizer = protection.optimizer(torch.optim.SGD(stage.model.parameters(), lr=RATE_STREAM_SCHEDULE))
        own = get_scheduler(theirs, optimizer, num_training_steps=steps, **{"num_warmup_steps": 0} | kinds)
        schedule, rates = protection.schedule(own), []
        for _ in range(steps):
            rates.append(stage.learning_rate)
            optimizer.step()
            schedule.step()
        found.append(rates)
        stage.step = steps
        method.end_domain(stage)
        if memory := method.memory():
            method.load_memory(memory)
    return found


@pytest.mark.parametrize("cooling", ["cosine", "inverse_sqrt", "linear"])
def test_infinite_comes_down_once_and_stays(cooling: str) -> None:
    """Ibrahim et al. (2024): T_w = 10, T_cd = 40, in a first domain of 30 steps: the cooldown ends in the second."""
    method = build({"name": "infinite_schedule", "warmup": 10, "cooldown": 30, "cooling": cooling, "constant": 0.2})
    rates = [rate for domain in _rates(method, [30, 20, 5]) for rate in domain]
    constant = 0.2 * RATE_STREAM_SCHEDULE
    for t, rate in enumerate(rates):
        if t < 10:
            expected = RATE_STREAM_SCHEDULE * t / 10
        elif t < 40:
            x = (t - 10) / (40 - 10)
            h = [1 / math.sqrt(1 + 10 * y) - 1 for y in (x, 1)]
            expected = {
                "cosine": constant + (RATE_STREAM_SCHEDULE - constant) / 2 * (1 + math.cos(math.pi * x)),
                "inverse_sqrt": RATE_STREAM_SCHEDULE + (constant - RATE_STREAM_SCHEDULE) * h[0] / h[1],
                "linear": RATE_STREAM_SCHEDULE + (constant - RATE_STREAM_SCHEDULE) * x,
            }[cooling]
        else:
            expected = constant
        assert rate == pytest.approx(expected, rel=1e-12), t


def test_shares_are_of_the_first_domain() -> None:
    rates = _rates(build({"name": "infinite_schedule", "warmup": 0.25, "cooldown": 0.5}), [8, 100])
    assert rates[0][:3] == pytest.approx([0, RATE_STREAM_SCHEDULE / 2, RATE_STREAM_SCHEDULE])
    assert rates[0][6:] + rates[1] == [0.1 * RATE_STREAM_SCHEDULE] * 102


def test_an_anneal_goes_down_by_equal_factors_and_costs_the_stream_no_time() -> None:
    options = {"warmup": 2, "cooldown": 8, "constant": 0.5, "minimum": 0.05, "anneal": 0.25, "release": ["d2"]}
    first, second, third = _rates(build({"name": "infinite_schedule", **options}), [6, 16, 4])
    x = 4 / 8
    assert second[0] == pytest.approx(RATE_STREAM_SCHEDULE * (0.5 + 0.25 * (1 + math.cos(math.pi * x)))), (
        "d1 has no anneal"
    )
    assert second[4:13] == pytest.approx([0.5 * RATE_STREAM_SCHEDULE] * 9)
    assert second[12:] == pytest.approx([0.5 * RATE_STREAM_SCHEDULE * (0.05 / 0.5) ** (j / 4) for j in range(4)])
    assert third == pytest.approx([0.5 * RATE_STREAM_SCHEDULE] * 4)
    assert len(first) == 6


def test_the_inverse_square_root_and_its_linear_cooldowns() -> None:
    options = {"warmup": 4, "minimum": 0.1, "anneal": 5}
    first, second = _rates(build({"name": "inverse_sqrt_schedule", **options}), [20, 20])

    def trunk(t: int) -> float:
        return (
            RATE_STREAM_SCHEDULE * t / 4
            if t < 4
            else 0.9 * RATE_STREAM_SCHEDULE * math.sqrt(4 / t) + 0.1 * RATE_STREAM_SCHEDULE
        )

    assert first[:15] == pytest.approx([trunk(t) for t in range(15)])
    assert first[15:] == pytest.approx([trunk(15) + (0.1 * RATE_STREAM_SCHEDULE - trunk(15)) * j / 5 for j in range(5)])
    assert second[:15] == pytest.approx([trunk(t) for t in range(15, 30)]), "from before the anneal"


def test_peaks_fall_as_the_authors_recursion_has_them() -> None:
    """The numbers of the paper's setting, from one cosine over i + 1 rounds."""
    rates = _rates(build({"name": "autoregressive_schedule", "warmup": 0.1}), [20] * 6)
    peaks = [3.0e-4, 1.65e-4, 9.75e-5, 6.95e-5, 5.58e-5, 4.81e-5]
    assert [each[2] for each in rates] == pytest.approx(peaks, abs=1e-7)
    for each in rates:
        assert each[:2] == pytest.approx([0, each[2] / 2])
        low = 3e-5
        for step in range(2, 20):
            x = (step - 2) / 18
            assert each[step] == pytest.approx(low + (each[2] - low) / 2 * (1 + math.cos(math.pi * x)))


def test_what_transformers_has_is_left_to_train() -> None:
    """Re-warming and re-decaying: `cosine_with_min_lr`, in every domain anew."""
    kinds = {"num_warmup_steps": 3, "scheduler_specific_kwargs": {"min_lr_rate": 0.1}}
    for rates in _rates(StreamSchedule(shape="train"), [12, 30], "cosine_with_min_lr", **kinds):
        for t, rate in enumerate(rates):
            x = (t - 3) / (len(rates) - 3)
            decayed = 0.1 * RATE_STREAM_SCHEDULE + 0.9 * RATE_STREAM_SCHEDULE / 2 * (1 + math.cos(math.pi * x))
            assert rate == pytest.approx(RATE_STREAM_SCHEDULE * t / 3 if t < 3 else decayed)


@pytest.mark.parametrize(("shape", "theirs"), [("train", "linear"), ("infinite", "constant")])
def test_adam_gathers_before_it_moves_anything(shape: str, theirs: str) -> None:
    still, plain = (_rates(StreamSchedule(shape=shape, gather=n), [10, 10], theirs) for n in (3, 0))
    for one, other in zip(still, plain, strict=True):
        assert one == [0, 0, 0, *other[3:]]
    model = tiny.model()
    stage, before = stages.stage(model, 1, steps=3), stages.weights(model)
    protection = Protection([StreamSchedule(shape="train", gather=2)], stage)
    optimizer = protection.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2))
    schedule = protection.schedule(get_scheduler("constant", optimizer))
    for batch in stage.batches(8):
        protection.loss(model, batch)[0].backward()
        protection.after_backward()
        with protection.update():
            optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    assert all(torch.equal(value, before[name]) for name, value in stages.weights(model).items())
    assert all(state["step"] == 2 and state["exp_avg_sq"].any() for state in optimizer.state.values())
    assert optimizer.param_groups[0]["lr"] == 1e-2


def test_a_schedule_that_measures_cannot_be_held_back() -> None:
    with pytest.raises(MethodError, match=r"`train.lr_scheduler_type` depends on measurements"):
        _rates(StreamSchedule(shape="train", gather=3), [4], "reduce_lr_on_plateau")


def test_the_next_domain_starts_from_the_weights_before_the_anneal() -> None:
    method, model = build({"name": "infinite_schedule", "anneal": 2, "release": ["d1", "d3"]}), tiny.model()
    trunk: dict[str, torch.Tensor] = {}

    def watch(protection: Protection, _: object) -> None:
        if protection.stage.step == 4:  # the fifth update is the first one of the anneal
            trunk.update(stages.weights(protection.stage.model))

    stages.learn([method], stages.stage(model, 1, steps=6), each=watch)
    released = stages.weights(model)
    assert any(not torch.equal(value, trunk[name]) for name, value in released.items())
    copy = build({"name": "infinite_schedule", "anneal": 2, "release": ["d1", "d3"]})
    copy.load_memory(method.memory())
    for each in (method, copy):
        stages.begin([each], stages.stage(model, 2))
        assert all(torch.equal(value, trunk[name]) for name, value in stages.weights(model).items())
    stages.learn([method], stages.stage(model, 2, steps=6))
    assert method.memory().facts == {"steps": 4 + 6, "first": 6}
    assert not method.memory().tensors, "a domain without an anneal is gone on from as it is"


def test_what_wise_ft_merges_beside_an_anneal_is_only_released() -> None:
    model, methods = tiny.model(), [StreamSchedule(anneal=0.25), build({"name": "wise_ft", "alpha": 0.5})]
    way = []
    stage = stages.stage(model, 1, steps=4)
    stages.learn(methods, stage, each=lambda *_: way.append(stages.weights(model)))
    released = stages.weights(model)
    stages.begin(methods, stages.stage(model, 2, steps=4))
    for name, value in stages.weights(model).items():
        assert torch.equal(value, way[3][name]), "learning goes on from before the last step, which was the anneal"
    assert any(not torch.equal(released[name], way[3][name]) for name in released)


def test_inside_an_anneal_both_beginnings_are_kept() -> None:
    """A stage that is resumed begins with the weights that it began with, not with those before its own anneal."""
    method, model = build({"name": "infinite_schedule", "anneal": 2}), tiny.model()
    stages.learn([method], stages.stage(model, 1, steps=6))
    start, kept = dict(method.memory().tensors), {}

    def watch(protection: Protection, _: object) -> None:
        kept[protection.stage.step] = set(method.memory().tensors)

    stages.learn([method], stages.stage(model, 2, steps=6), each=watch)
    names = {name.removeprefix("start/") for name in start}
    assert kept[3] == {f"start/{name}" for name in names}
    assert kept[4] == kept[5] == {f"{part}/{name}" for part in ("start", "trunk") for name in names}


def test_layer_wise_rates_go_beside_it() -> None:
    """ULMFiT's, without its own triangle and freezing."""
    both = [build({"name": "ulmfit", "decay": 1.5, "ratio": None, "unfreeze": 0}), build("infinite_schedule")]
    check_methods(both, stages.setting(tiny.model(), both))
    stage = stages.stage(tiny.model(), 1, steps=100)
    protection = Protection(both, stage)
    optimizer = protection.optimizer(torch.optim.SGD(stage.model.parameters(), lr=RATE_STREAM_SCHEDULE))
    schedule = protection.schedule(get_scheduler("constant", optimizer))
    for _ in range(5):
        optimizer.step()
        schedule.step()
    rates = sorted({group["lr"] for group in optimizer.param_groups}, reverse=True)
    assert rates == pytest.approx([RATE_STREAM_SCHEDULE / 1.5**depth for depth in range(len(rates))])
    assert len(rates) > 2
    with pytest.raises(MethodError, match=r"'stream_schedule'|'ulmfit'.*schedule"):
        check_methods([build("ulmfit"), StreamSchedule()], stages.setting(tiny.model(), both))


def test_options_that_do_nothing_are_refused() -> None:
    for options, said in (
        (
            {"shape": "autoregressive", "anneal": 0.1},
            r"'anneal': 0\.1 has no effect with `shape: autoregressive`",
        ),
        ({"shape": "inverse_sqrt", "constant": 0.3}, r"'constant': 0\.3 has no effect with `shape: inverse_sqrt`"),
        ({"shape": "train", "warmup": 3}, r"'warmup': 3\.0 has no effect with `shape: train`, which uses none"),
        ({"release": ["d1"]}, r"'release': .*'d1'.* has no effect with `shape: infinite` if `anneal` is 0"),
        ({"minimum": 0}, r"'minimum': must be above 0"),
        ({"minimum": 0.1}, r"'minimum': 0\.1 has no effect with `shape: infinite` if `anneal` is 0"),
    ):
        with pytest.raises(MethodError, match=said):
            StreamSchedule(**options)
    for name in ("infinite_schedule", "autoregressive_schedule", "inverse_sqrt_schedule"):
        resolved = build(name).config.model_dump(mode="json")
        assert build({"name": name, **resolved}).config == build(name).config


@pytest.mark.parametrize("option", ["gather", "anneal"])
def test_what_takes_a_whole_domain_is_refused(option: str) -> None:
    with pytest.raises(MethodError, match=rf"'{option}': 4 steps leave none of the 4 of domain 'd2' for training"):
        _rates(StreamSchedule(**{option: 4}), [6, 4])


def test_a_domain_that_was_stopped_early_took_fewer_steps() -> None:
    method = StreamSchedule(warmup=2, cooldown=8)
    stage = stages.stage(MODEL, 1, steps=20)
    stage.step = 6  # somebody else's trainer
    method.end_domain(stage)
    assert method.memory().facts == {"steps": 6, "first": 20}


def test_what_an_anneal_does_not_go_with() -> None:
    annealed, plain = StreamSchedule(anneal=0.2), StreamSchedule()
    assert overrides(annealed, "starting_weights")
    assert not overrides(plain, "starting_weights")
    with pytest.raises(MethodError, match="'inc_lora' trains other parameters"):
        check_methods([annealed, build("inc_lora")], stages.setting(tiny.model(), [build("inc_lora"), annealed]))
    with pytest.raises(MethodError, match=r"`optimizer: carry`.*starts that domain from other weights"):
        check_carrying([annealed])
    check_carrying([plain])
