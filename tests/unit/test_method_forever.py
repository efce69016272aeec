"""FOREVER against its equations in float64, along the way that the weights really went."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import stages
import tiny
from everlearn.errors import EverlearnError, MethodError
from everlearn.methods import build
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.methods.rehearsal.forever import Clock, Forever

S, DAYS, BASE, GAMMA = 3, (1, 2, 3, 3.1, 6), 0.1, 2.0


def begun(**options) -> tuple[Forever, torch.nn.Module]:
    """After a first domain, six rows of which are kept."""
    method, model = (
        Forever(**{"sample": 0.5, "warm_up": S, "days": DAYS, "strength": BASE, "gamma": GAMMA} | options),
        tiny.model("gpt2"),
    )
    parts = stages.learn([method], stages.stage(model, 1, "causal", steps=S + 2))
    assert all(set(part) == {"loss"} for part in parts), "nothing is old yet"
    assert method._kept.domains == ["d1"] * 6
    return method, model


def test_replays_begin_at_days_of_the_weights_and_hold_them() -> None:
    method, model = begun()
    stage, way, lines = stages.stage(model, 2, "causal", steps=30), [], []
    stage.rows_per_step, stage.log = 4, lines.append

    def flat() -> np.ndarray:
        return np.concatenate([p.detach().double().numpy().ravel() for p in model.parameters()])

    # Long steps at first, and short ones later: the clock slows down.
    def see(protection: Protection, _: object) -> None:
        way.append(flat())
        protection.stage.optimizer.param_groups[0]["lr"] = 0.02 if len(way) < 12 else 0.005

    parts = stages.learn([method], stage, each=see)
    way.append(flat())
    moved = [float(np.linalg.norm(b - a)) for a, b in itertools.pairwise(way)]
    day = sum(moved[:S])
    mean, left, due, met, begins = day / S, 0, 0, 0, []
    for step, part in enumerate(parts, 1):  # what `part` was made of is known after the step before
        assert ("forever/replay" in part) == ("forever/anchor" in part) == (left > 0), step
        if left:
            beta = BASE * min(max(1 + GAMMA * (mean / (day / S) - 1), 0.5), 3.0)
            held = beta * float(np.square(way[step - 1] - way[0]).sum())
            assert float(part["forever/anchor"]) == pytest.approx(held, rel=1e-3)
            left, met = left - 1, met + 1
        if step > S:
            mean = 0.95 * mean + 0.05 * moved[step - 1]
        now = sum(sum(moved[:step]) >= d * day * (1 - 1e-6) for d in DAYS) if step >= S else 0
        if now > due:
            due, left = now, math.ceil(6 / 4)
            begins.append({"step": step, "replay_of_day": DAYS[now - 1]})
    assert lines == begins
    assert lines[0]["step"] == S
    assert 2 <= len(lines) < len(DAYS), "two days that are due at once are one replay"
    assert met >= 4
    assert method._clock == Clock()
    assert method._kept.domains == ["d1"] * 6 + ["d2"] * 6


def test_old_rows_are_kept_ones_and_count_as_the_batch_does() -> None:
    method, model = begun(strength=0)
    stage = stages.stage(model, 2, "causal", steps=9)
    protection = Protection([method], stage)
    protection.begin()
    batch = next(stage.batches(4))
    assert protection.forward(model.eval(), batch)[1] == {}
    method._clock.left = 1
    extra = protection.forward(model, batch)[1]
    assert set(extra) == {"forever/replay"}
    old = method.before_forward(stage, batch)
    kept = [block["input_ids"].tolist() for block in method._kept.blocks]
    assert all(row in kept for row in old["input_ids"].tolist())
    with torch.no_grad():
        expected = stage.objective.per_sample_loss(model, old).mean()
    torch.testing.assert_close(extra["forever/replay"].detach(), expected)


def test_a_domain_that_is_shorter_than_a_day_is_noted() -> None:
    method, model = begun(warm_up=20)
    stage = stages.stage(model, 2, "causal", steps=4)
    assert all(set(part) == {"loss"} for part in stages.learn([method], stage))
    assert stage.notes == [
        "Method 'forever' replays after 20 steps (`warm_up`) and later, and 'd2' has 4: nothing old was met in it."
    ]


def test_weights_that_stand_still_are_never_a_day_older() -> None:
    clock = Clock()
    for step in range(1, 9):
        clock.tick(step, 0.0, 2, (1, 2), 3)
    assert clock == Clock()
    assert clock.strength(0.5, 1.0, 2) == 0.5


def test_mistakes_are_sentences() -> None:
    for days in ((2, 1), (0.5, 2), (1, 1)):
        with pytest.raises(EverlearnError, match="option 'days': must grow, from 1 on"):
            build({"name": "forever", "days": days})
    methods = [Forever()]
    with pytest.raises(MethodError, match=r"'forever' does not work with encoder-decoder models.*Use 'replay'"):
        check_methods(methods, stages.setting(tiny.model("t5"), methods, "text-to-text"))
    method, model = begun()
    stage = stages.stage(model, 2, "causal")
    method._clock.left = 1
    batch = {name: value[:, :9] for name, value in next(stage.batches(4)).items()}
    with pytest.raises(MethodError, match=r"remembers rows of \d+ tokens, but those of domain 'd2' have 9"):
        method.before_forward(stage, batch)
