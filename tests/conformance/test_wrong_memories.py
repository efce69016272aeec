"""Memories of methods: wrong ones are refused with a sentence, and no two methods learn the same."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from test_conformance import ONCE, make, model_for, stage_for
from torch import Tensor, nn

import stages
import tiny
from everlearn import files
from everlearn.errors import EverlearnError, MethodError
from everlearn.methods import REGISTRY, Memory, Method, Reading, build, names
from everlearn.methods.engine.protection import Protection
from everlearn.run.stage_files import load_memories, save_memories
from everlearn.seeding import seed_for

SMALL: dict[str, dict[str, Any]] = {
    "budget": {"samples": 4, "probe": 4, "checks": 2},
    "elle": {"prompts": True},
    "kd": {"compare": "queue", "queue": 6},
    "multi_task_adaptation": {"balance": "uncertainty", "samples": 4},
    "stream_schedule": {"shape": "infinite", "anneal": 1},
}
"""Options with which a method remembers all that it can, or is quick."""
OBJECTIVE = {"lfpt5": "causal"}
CASES = [(name, OBJECTIVE.get(name, sorted(REGISTRY[name].needs.objectives)[-1])) for name in sorted(REGISTRY)]
CASES += [(name, objective) for name, (objective, _) in ONCE.items()]
EACH = 3
"""Keys that each fault is tried on, drawn by a seed."""
BLIND = {"segments", "constant", "steps", "checks", "ratio", "nearest", "means", "s", "clock"}
"""Ends of keys that may be there or not: what is noted only when it is not 0, columns that not every text has."""
SINGLE = ("queue", "prompt")
"""Tensors that are all there is, so that without them nothing seems to be remembered."""
UNSEEN = ("lifelong_moe",)
"""Methods in which nothing says which tensors there are: each domain has experts under numbers of its own."""
NULLABLE = ("first", "measured_before")


class Remembered(NamedTuple):
    """What a method remembers inside its second domain and after it, and what the two go on with."""

    name: str
    inside: tuple[Memory, Any]
    after: tuple[Memory, Any]
    stage: Any


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def remembered(request: pytest.FixtureRequest) -> Remembered:
    """Each method, once."""
    name, objective = request.param
    options = SMALL.get(name, {})
    method, model = make(name, objective, **options), model_for(name, objective)
    inside: Memory = Memory()
    for index in (1, 2):
        stage = stage_for(model, index, objective, [method])
        before = copy.deepcopy(model)

        def look(protection: Protection, _: dict[str, Tensor]) -> None:
            nonlocal inside
            if protection.stage.step == protection.stage.steps - 2:
                inside = copy.deepcopy(method.memory())

        stages.learn([method], stage, each=look)
        model = stage.model
    return Remembered(name, (inside, before), (copy.deepcopy(method.memory()), model), (objective, options))


def faults(memory: Memory, seed: int) -> Iterator[tuple[str, str, Memory]]:
    """What can be wrong: a word for it, the key, and the memory."""
    generator = np.random.default_rng(seed)

    def some(keys: list[str]) -> list[str]:
        return [keys[at] for at in generator.permutation(len(keys))[:EACH]]

    def tensors(key: str, value: Tensor | None) -> Memory:
        changed = {**memory.tensors, key: value}
        return Memory({k: v for k, v in changed.items() if v is not None}, copy.deepcopy(memory.facts))

    for key in some(sorted(memory.tensors)):
        value = memory.tensors[key]
        domains = memory.facts.get("domains", memory.facts.get("adapters", []))
        # What a domain has is compared with what another one has.
        alone = len(domains) == 1 and key.startswith(f"{domains[0]}/")
        if key.rpartition("/")[2] not in {*BLIND, *SINGLE} and not alone:
            yield "missing", key, tensors(key, None)
        if not alone:
            yield "shape", key, tensors(key, value[None].repeat(2, *[1] * value.dim()))
        other = value.to(torch.int64) if value.is_floating_point() else value.float()
        yield "dtype", key, tensors(key, other)
        if value.is_floating_point():
            for number in (float("nan"), float("inf")):
                yield str(number), key, tensors(key, torch.full_like(value, number))
    if memory:
        yield "extra", "unknown", tensors("unknown/to/it", torch.ones(2))
        yield "extra", "unknown", Memory(dict(memory.tensors), {**memory.facts, "unknown": 1})
    for key, value in memory.facts.items():
        if key not in BLIND:
            yield "missing", key, Memory(dict(memory.tensors), {k: v for k, v in memory.facts.items() if k != key})
        for wrong in ("text", 3, [3], {"a": "b"}, float("nan"), True, None):
            taken = (isinstance(wrong, dict) and key == "config") or (wrong is None and key in NULLABLE)
            if not taken and not like(wrong, value):
                yield f"{wrong!r}", key, Memory(dict(memory.tensors), {**memory.facts, key: wrong})
        if isinstance(value, list) and value and key in ("domains", "adapters"):
            yield "list", key, Memory(dict(memory.tensors), {**memory.facts, key: [*value, 5]})


def like(wrong: Any, value: Any) -> bool:
    """Return whether a value is of a type that JSON takes for the other's."""
    number = isinstance(wrong, int | float) and wrong == wrong and not isinstance(wrong, bool)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number
    if isinstance(value, list):
        return isinstance(wrong, list) and all(like(w, v) for w in wrong for v in value[:1])
    return type(wrong) is type(value) and not isinstance(value, dict)


def go_on(method: Method, memory: Memory, at: Any, index: int, kind: tuple[str, Any]) -> None:
    """Load a memory and begin a domain."""
    method.load_memory(memory)
    stage = stage_for(copy.deepcopy(at), index, kind[0], [method])
    stage.step = 2 if index == 2 else 0
    protection = Protection([method], stage)
    protection.begin()
    protection.start()


def test_a_wrong_memory_is_refused(remembered: Remembered) -> None:
    """Where it is loaded, or at the latest where the next domain begins."""
    objective, options = remembered.stage
    silent, tried = [], 0
    for index, (memory, model) in ((2, remembered.inside), (3, remembered.after)):
        for word, key, wrong in faults(memory, seed_for(0, remembered.name, index)):
            if word in ("missing", "shape") and key in memory.tensors and remembered.name in UNSEEN:
                continue
            tried += 1
            try:
                go_on(make(remembered.name, objective, **options), wrong, model, index, remembered.stage)
            except EverlearnError as error:
                silent += [] if str(error).endswith(".") else [f"{word} {key}: no sentence: {error}"]
            except Exception as error:  # the point of the test: Python's own errors are no sentences
                silent.append(f"{word} {key}: {type(error).__name__} {error}")
            else:
                silent.append(f"{word} {key}: taken")
    assert not silent, f"{len(silent)} of {tried}: " + "\n".join(silent)


def test_what_a_method_remembers_is_taken_back(remembered: Remembered) -> None:
    objective, options = remembered.stage
    for memory, _ in (remembered.inside, remembered.after):
        method = make(remembered.name, objective, **options)
        method.load_memory(Memory(dict(memory.tensors), copy.deepcopy(memory.facts)))
        again = method.memory()
        assert again.facts == memory.facts
        assert again.tensors.keys() == memory.tensors.keys()
        assert all(torch.equal(value, again.tensors[key]) for key, value in memory.tensors.items())


@pytest.mark.parametrize(
    ("tensors", "facts", "said"),
    [
        ({"x": torch.zeros(2)}, '{"domains": ["a"]}', "ewc.safetensors: 'x' is not part of this method's state"),
        ({}, '{"scales": 3}', "ewc.json: 'scales' is not part of this method's state"),
        ({}, '{"domains": 3}', "ewc.json: 'domains' must be a list"),
        ({}, '{"domains": ["a"]}', "'fisher/*' is missing"),
        ({"fisher/w": torch.zeros(2)}, '{"domains": ["a"]}', "ewc.safetensors: 'fisher/w' is not expected"),
        ({"fisher/w": torch.zeros(2), "anchor/w": torch.zeros(3)}, '{"domains": ["a"]}', "'fisher/w' must have shape"),
        ({"fisher/w": torch.full((2,), torch.nan), "anchor/w": torch.zeros(2)}, '{"domains": ["a"]}', "finite"),
        ({}, "[1, 2]", "must hold a mapping"),
        ({}, '{"domains": ["a"], "constant": NaN}', "'constant' must hold finite numbers"),
    ],
)
def test_the_sentence_names_file_and_key(tensors: Mapping[str, Tensor], facts: str, said: str, tmp_path: Path) -> None:
    if tensors:
        files.save_tensors(tmp_path / "ewc.safetensors", dict(tensors), {"method": "ewc"})
    (tmp_path / "ewc.json").write_text(facts)
    with pytest.raises(EverlearnError) as error:
        load_memories(tmp_path, [make("ewc", "masked")])
    assert said in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_a_refused_memory_changes_nothing() -> None:
    method = make("ewc", "masked")
    part = {"anchor/w": torch.ones(2), "fisher/w": torch.ones(2)}
    method.load_memory(Memory(part, {"domains": ["a"]}))
    with pytest.raises(MethodError):
        method.load_memory(Memory({"anchor/w": torch.zeros(3), "fisher/w": torch.ones(2)}, {"domains": ["b"]}))
    assert method.memory() == Memory(part, {"domains": ["a"]})


def test_nothing_is_saved_of_a_method_that_remembers_nothing(tmp_path: Path) -> None:
    save_memories(tmp_path, [make("ewc", "masked"), make("sequential", "masked")])
    assert not list(tmp_path.iterdir())


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


def with_few_rows(name: str) -> Method:
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
    method, model = with_few_rows(name), tiny.model("roberta", dropout=0.1)
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
