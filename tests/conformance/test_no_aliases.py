"""Every method and variant learns something of its own: no two give the same model at test."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import Tensor, nn

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import Method, Reading, build, names

QUICK = {"samples": 8, "capacity": 16, "n_tokens": 4}
"""Options that make a method fast on tiny models, where it has them."""
OPTIONS = {"replay_sample": {"sample": 0.3}, "continual_t0": {"sample": 0.5}, "recadam_released": {"gamma": 5.0}}
OPTIONS |= {name: {"every": 1} for name in ("reptile", "reptile_released")} | {"forever": {"sample": 0.5, "warm_up": 1}}
"""Where a default means nothing on twelve rows, or belongs to another learning rate."""
LATER = {"ewc_separate", "o_lora_long_sequence"}
"""Differ from another one from a later domain on."""
SCHEDULES = {"stream_schedule", "infinite_schedule", "autoregressive_schedule"}
ELSEWHERE = {"lifelong_moe", "selective_init", *SCHEDULES}
"""Works on other encoders; begins with the last model, as all others do, where that is the one that knows most; decide
learning rates alone, and nobody asks for a schedule here."""
WRITING = {name for name in names() if "masked" not in build(name).needs.objectives}
"""Need a model that writes, and this one fills masks."""
DOMAINS = ("d1", "d2", None)
"""What is read at test: both learnt domains, and general text."""


def make(name: str) -> Method:
    """A method with its own defaults, but fast."""
    known = type(build(name).config).model_fields
    quick = {key: value for key, value in QUICK.items() if key in known}
    return build({"name": name} | quick | OPTIONS.get(name, {}))


def as_tested(method: Method, model: nn.Module, domain: str | None) -> nn.Module:
    """A copy of the checkpoint, as the method reads a text of a domain with it."""
    stage = stages.stage(model, int(domain[1:]) if domain else 9)
    reading = Reading(domain, ("d1", "d2"), stage.objective, lambda: model, stage.batches)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return method.test_model(copy.deepcopy(model), reading).eval()


def fingerprint(name: str) -> Tensor:
    """Losses on texts of both domains and of none, after both were learnt, [texts · rows]."""
    method, model = make(name), tiny.model("roberta", dropout=0.1)
    for index in (1, 2):
        stage = stages.stage(model, index, general=True)
        stages.learn([method], stage)
        model = stage.model
    losses = []
    for domain in DOMAINS:
        tested = as_tested(method, model, domain)
        batch = next(stages.stage(model, int(domain[1:]) if domain else 9).batches(4))
        with torch.no_grad():
            losses.append(stages.stage(model).objective.per_sample_loss(tested, batch))
    return torch.cat(losses)


def test_no_two_methods_give_the_same_model() -> None:
    found: dict[str, Tensor] = {}
    refused = []
    for name in sorted(set(names()) - LATER - WRITING - ELSEWHERE):
        try:
            found[name] = fingerprint(name)
        except MethodError as error:
            refused.append(f"{name}: {error}")
    assert not refused, "every other method works on an encoder"
    same = [(a, b) for a, b in itertools.combinations(found, 2) if torch.equal(found[a], found[b])]
    assert same == []
