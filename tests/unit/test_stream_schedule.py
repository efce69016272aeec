"""Schedules of the stream against closed forms, anneals that the next domain passes by, and Adam's first steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import get_scheduler

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.base import Method
from everlearn.methods.engine.protection import Protection, check_carrying, check_methods, overrides
from everlearn.methods.tricks.stream_schedule import StreamSchedule

RATE = 3e-4
MODEL = tiny.model()


def _rates(method: Method, domains: list[int], theirs: str = "constant", **kinds: Any) -> list[list[float]]:
    """The rate of every step of every domain."""
    found = []
    for index, steps in enumerate(domains, 1):
        stage = stages.stage(MODEL, index, steps=steps)
        protection = Protection([method], stage)
        optimizer = protection.optimizer(torch.optim.SGD(stage.model.parameters(), lr=RATE))
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
    constant = 0.2 * RATE
    for t, rate in enumerate(rates):
        if t < 10:
            expected = RATE * t / 10
        elif t < 40:
            x = (t - 10) / (40 - 10)
            h = [1 / math.sqrt(1 + 10 * y) - 1 for y in (x, 1)]
            expected = {
                "cosine": constant + (RATE - constant) / 2 * (1 + math.cos(math.pi * x)),
                "inverse_sqrt": RATE + (constant - RATE) * h[0] / h[1],
                "linear": RATE + (constant - RATE) * x,
            }[cooling]
        else:
            expected = constant
        assert rate == pytest.approx(expected, rel=1e-12), t


def test_shares_are_of_the_first_domain() -> None:
    rates = _rates(build({"name": "infinite_schedule", "warmup": 0.25, "cooldown": 0.5}), [8, 100])
    assert rates[0][:3] == pytest.approx([0, RATE / 2, RATE])
    assert rates[0][6:] + rates[1] == [0.1 * RATE] * 102


def test_an_anneal_goes_down_by_equal_factors_and_costs_the_stream_no_time() -> None:
    options = {"warmup": 2, "cooldown": 8, "constant": 0.5, "minimum": 0.05, "anneal": 0.25, "release": ["d2"]}
    first, second, third = _rates(build({"name": "infinite_schedule", **options}), [6, 16, 4])
    x = 4 / 8
    assert second[0] == pytest.approx(RATE * (0.5 + 0.25 * (1 + math.cos(math.pi * x)))), "d1 has no anneal"
    assert second[4:13] == pytest.approx([0.5 * RATE] * 9)
    assert second[12:] == pytest.approx([0.5 * RATE * (0.05 / 0.5) ** (j / 4) for j in range(4)])
    assert third == pytest.approx([0.5 * RATE] * 4)
    assert len(first) == 6


def test_the_inverse_square_root_and_its_linear_cooldowns() -> None:
    options = {"warmup": 4, "minimum": 0.1, "anneal": 5}
    first, second = _rates(build({"name": "inverse_sqrt_schedule", **options}), [20, 20])

    def trunk(t: int) -> float:
        return RATE * t / 4 if t < 4 else 0.9 * RATE * math.sqrt(4 / t) + 0.1 * RATE

    assert first[:15] == pytest.approx([trunk(t) for t in range(15)])
    assert first[15:] == pytest.approx([trunk(15) + (0.1 * RATE - trunk(15)) * j / 5 for j in range(5)])
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
            decayed = 0.1 * RATE + 0.9 * RATE / 2 * (1 + math.cos(math.pi * x))
            assert rate == pytest.approx(RATE * t / 3 if t < 3 else decayed)


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
    with pytest.raises(MethodError, match=r"`train.lr_scheduler_type` is one that measures"):
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
    optimizer = protection.optimizer(torch.optim.SGD(stage.model.parameters(), lr=RATE))
    schedule = protection.schedule(get_scheduler("constant", optimizer))
    for _ in range(5):
        optimizer.step()
        schedule.step()
    rates = sorted({group["lr"] for group in optimizer.param_groups}, reverse=True)
    assert rates == pytest.approx([RATE / 1.5**depth for depth in range(len(rates))])
    assert len(rates) > 2
    with pytest.raises(MethodError, match=r"'stream_schedule'|'ulmfit'.*schedule"):
        check_methods([build("ulmfit"), StreamSchedule()], stages.setting(tiny.model(), both))


def test_options_that_do_nothing_are_refused() -> None:
    for options, said in (
        ({"shape": "autoregressive", "anneal": 0.1}, r"'anneal': it does nothing with `shape: autoregressive`, which"),
        ({"shape": "inverse_sqrt", "constant": 0.3}, r"'constant': it does nothing with `shape: inverse_sqrt`"),
        ({"shape": "train", "warmup": 3}, r"'warmup': it does nothing with `shape: train`, which reads none"),
        ({"release": ["d1"]}, r"'release': with `shape: infinite` it is of the `anneal`, which is 0"),
        ({"minimum": 0}, r"'minimum': must be above 0"),
        ({"minimum": 0.1}, r"'minimum': with `shape: infinite` it is of the `anneal`, which is 0"),
    ):
        with pytest.raises(MethodError, match=said):
            StreamSchedule(**options)
    for name in ("infinite_schedule", "autoregressive_schedule", "inverse_sqrt_schedule"):
        resolved = build(name).config.model_dump(mode="json")
        assert build({"name": name, **resolved}).config == build(name).config


@pytest.mark.parametrize("option", ["gather", "anneal"])
def test_what_takes_a_whole_domain_is_refused(option: str) -> None:
    with pytest.raises(MethodError, match=rf"'{option}': 4 steps leave nothing of the 4 of domain 'd2' to learn"):
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
    with pytest.raises(MethodError, match="'inc_lora' those are not the model's own"):
        check_methods([annealed, build("inc_lora")], stages.setting(tiny.model(), [build("inc_lora"), annealed]))
    with pytest.raises(MethodError, match=r"`optimizer: carry`.*start from other weights"):
        check_carrying([annealed])
    check_carrying([plain])
