"""Sparse memory fine-tuning against a slow float64 reference written from the formula of arXiv 2510.15103."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.importance.accesses import accesses
from everlearn.methods import build
from everlearn.methods.base import Method, Stage
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.methods.masks.sparse_memory import SparseMemory, most_specific
from everlearn.model.content import CONTENT
from everlearn.model.objectives import IGNORE

RATE = 0.1
Slot = tuple[str, int]
LAYERS: dict[str, tuple[str, Callable[[int], str], tuple[str, ...], int]] = {
    "gpt2": ("causal", lambda i: f"transformer.h.{i}.mlp", ("c_fc", "c_proj"), 0),
    "llama": ("causal", lambda i: f"model.layers.{i}.mlp", ("gate_proj", "up_proj", "down_proj"), 1),
    "roberta": ("masked", lambda i: f"roberta.encoder.layer.{i}", ("intermediate.dense", "output.dense"), 1),
}
"""Objective; the feed-forward block of layer i; its widening projections and the output projection at its end; the
dimension along which the columns of the latter run."""


def method(**options: Any) -> SparseMemory:
    """A method with few slots, for tiny models."""
    return SparseMemory(**{"accessed": 4, "slots": 9, "background": 12, **options})


def blocks_of(architecture: str) -> list[str]:
    """The output projections of both layers."""
    _, at, projections, _ = LAYERS[architecture]
    return [f"{at(i)}.{projections[-1]}" for i in (0, 1)]


def accessed(model: nn.Module, architecture: str, stage: Stage, batch: dict[str, Tensor], k: int) -> list[list[Slot]]:
    """For each row of a batch the slots that its tokens access, one by one; padding reads nothing."""
    inputs: dict[str, Tensor] = {}
    handles = [
        model.get_submodule(path).register_forward_pre_hook(lambda _, x, path=path: inputs.update({path: x[0]}))
        for path in blocks_of(architecture)
    ]
    with torch.no_grad():
        model(**stage.objective.inputs(batch), **stage.objective.options())
    for handle in handles:
        handle.remove()
    rows: list[list[Slot]] = []
    for row in range(len(batch["input_ids"])):
        rows.append([])
        for path in blocks_of(architecture):
            for token in inputs[path][row].tolist():
                best = sorted(range(len(token)), key=lambda i: (-abs(token[i]), i))[:k]
                rows[-1] += [(path, i) for i in best]
    return rows


def best_slots(new: Sequence[Slot], background: Sequence[Sequence[Slot]], t: int) -> list[Slot]:
    """The t slots of highest TF-IDF, in Python's floats; of equal ones the first."""
    counts = Counter(new)
    scores = {}
    for slot, c in counts.items():
        document_frequency = sum(slot in set(text) for text in background)
        scores[slot] = c / sum(counts.values()) * math.log((len(background) + 1) / (document_frequency + 1))
    return sorted(scores, key=lambda slot: (-scores[slot], slot))[:t]


def reference(
    model: nn.Module, base: nn.Module, architecture: str, stage: Stage, batch: dict[str, Tensor], of: SparseMemory
) -> tuple[dict[str, Tensor], list[Slot]]:
    """The weights after one step of gradient descent, float64, and the slots that it moves."""
    options, (_, at, projections, dim) = of.config, LAYERS[architecture]
    background: list[list[Slot]] = []
    for part in stage.batches(options.background, stage.general):
        background += accessed(base, architecture, stage, part, options.accessed)
    new = [slot for row in accessed(model, architecture, stage, batch, options.accessed) for slot in row]
    chosen = best_slots(new, background, options.slots)
    model.zero_grad()
    stage.objective.forward(model, batch).loss.backward()
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for path, slot in chosen:
        gradient = model.get_parameter(f"{path}.weight").grad
        weights[f"{path}.weight"].select(dim, slot).sub_(RATE * gradient.select(dim, slot))
        if options.keys:
            block = next(at(i) for i in (0, 1) if path == f"{at(i)}.{projections[-1]}")
            for projection in projections[:-1]:
                for name, parameter in model.get_submodule(f"{block}.{projection}").named_parameters():
                    along = 1 - dim if parameter.dim() == 2 else 0
                    weights[f"{block}.{projection}.{name}"].select(along, slot).sub_(
                        RATE * parameter.grad.select(along, slot)
                    )
    return weights, chosen


@pytest.mark.parametrize("keys", [False, True], ids=["values", "keys too"])
@pytest.mark.parametrize("architecture", LAYERS)
def test_two_domains_of_one_step_are_the_formula(architecture: str, keys: bool) -> None:
    """The second ranks by accesses of the moved model, against a background that the base model was measured on."""
    objective = LAYERS[architecture][0]
    model, of = tiny.model(architecture, dropout=0.0), method(keys=keys)
    base, seen = copy.deepcopy(model).double(), []
    for index in (1, 2):
        stage = stages.stage(model, index, objective, general=True, steps=1)
        before = copy.deepcopy(model).double()
        batch: dict[str, Tensor] = {}
        stages.learn([of], stage, optimizer=torch.optim.SGD, lr=RATE, each=lambda _, its, to=batch: to.update(its))
        expected, chosen = reference(before, base, architecture, stage, batch, of)
        assert len(chosen) == 9
        for name, value in stage.model.named_parameters():
            torch.testing.assert_close(value.detach().double(), expected[name], rtol=1e-5, atol=1e-7)
        moved = {
            name
            for name, value in stage.model.named_parameters()
            if not torch.equal(value.double(), before.get_parameter(name))
        }
        assert len(moved) >= (3 if keys else 1)
        seen.append(sorted(chosen))
    assert seen[0] != seen[1], "the slots belong to the batch"


def test_the_background_decides_and_ranking_by_counts_alone_would_be_seen() -> None:
    model, of = tiny.model("gpt2", dropout=0.0), method()
    stage = stages.stage(model, 1, "causal", general=True, steps=1)
    batch = next(stage.batches(4))
    slow = copy.deepcopy(model).double()
    rows = [row for part in stage.batches(12, stage.general) for row in accessed(slow, "gpt2", stage, part, 4)]
    new = [slot for row in accessed(slow, "gpt2", stage, batch, 4) for slot in row]
    assert {slot for slot, _ in Counter(new).most_common(9)} != set(best_slots(new, rows, 9))
    Protection([of], stage).begin()
    df = Counter(slot for row in rows for slot in set(row))
    memory = of.memory()
    places = [(path, i) for path in blocks_of("gpt2") for i in range(128)]
    assert memory.tensors["background"].tolist() == [df[slot] for slot in places]
    assert memory.facts == {"rows": 12}


@pytest.mark.parametrize(
    ("counts", "rarity", "slots", "expected"),
    [
        ([4, 2, 1, 0], [0.0, 1.0, 1.0, 9.0], 2, [0, 1, 1, 0]),
        ([4, 2, 1, 0], [0.0, 1.0, 1.0, 9.0], 3, [1, 1, 1, 0]),
        ([4, 2, 1, 0], [1.0, 1.0, 1.0, 9.0], 100, [1, 1, 1, 0]),
        ([0, 3, 3, 3], [1.0, 1.0, 1.0, 1.0], 2, [0, 1, 1, 0]),
        ([0, 0, 0, 0], [1.0, 1.0, 1.0, 1.0], 2, [0, 0, 0, 0]),
    ],
)
def test_which_slots_are_trained(counts: list[int], rarity: list[float], slots: int, expected: list[int]) -> None:
    """Of equal ones the first, also where every background text accesses them; never one that the batch does not."""
    assert most_specific(torch.tensor(counts).float(), torch.tensor(rarity), slots).tolist() == expected


def test_accesses_are_by_size_and_of_text_only() -> None:
    activations = torch.tensor([[[3.0, -5.0, 1.0], [0.0, 0.0, 2.0]], [[1.0, 2.0, 3.0], [9.0, 9.0, 9.0]]])
    positions = torch.tensor([[True, True], [True, False]])
    expected = [[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]
    assert accesses(activations, 2, positions).tolist() == expected
    more = torch.cat([activations, torch.ones(3, 2, 3)])
    assert accesses(more, 2, positions).tolist() == expected, "rows of views follow those of the batch"
    assert accesses(more.flatten(0, 1), 2, positions).tolist() == expected


@pytest.mark.parametrize("keys", [False, True], ids=["values", "keys too"])
@pytest.mark.parametrize("architecture", [*LAYERS, "t5"])
def test_everything_else_stays_bit_for_bit(architecture: str, keys: bool) -> None:
    """Whatever the optimizer does: momentum and weight decay of AdamW too."""
    objective = LAYERS[architecture][0] if architecture in LAYERS else "text-to-text"
    model, of = tiny.model(architecture), method(keys=keys)
    stage = stages.stage(model, 1, objective, general=True, steps=3)
    steps: list[dict[str, Tensor]] = [stages.weights(model)]
    stages.learn([of], stage, weight_decay=0.1, each=lambda protection, _: steps.append(stages.weights(model)))
    steps.append(stages.weights(model))
    layers = of._layers
    values = {layer.values.parameter: layer.values.dim for layer in layers}
    rows = {own.parameter: own.dim for layer in layers for own in layer.keys} if keys else {}
    for before, after in itertools.pairwise(steps[1:]):
        slots = 0
        for name, value in after.items():
            changed = value != before[name]
            if name not in values | rows:
                assert not changed.any(), name
            elif name in values:
                slots += int(changed.any(1 - values[name]).sum())
        assert 0 < slots <= 9


def test_the_background_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, of = tiny.model(), method()
    first = stages.stage(model, 1, general=True, steps=1)
    stages.learn([of], first)
    before = copy.deepcopy(of.memory())
    second = stages.stage(first.model, 2, general=True, steps=1)
    monkeypatch.setattr("everlearn.methods.masks.sparse_memory.rows_with_access", None)
    stages.learn([of], second)
    assert of.memory().facts == before.facts
    assert torch.equal(of.memory().tensors["background"], before.tensors["background"])


def test_a_memory_of_another_model_is_refused() -> None:
    of, other = method(), method()
    Protection([of], stages.stage(tiny.model(), 1, general=True)).begin()
    other.load_memory(of.memory())
    larger = stages.stage(tiny.model(intermediate_size=128), 2, general=True)
    with pytest.raises(
        MethodError, match=r"counted accesses of 128 neurons .*, and the model has 256\. A memory belongs"
    ):
        Protection([other], larger).begin()


def chosen_slots(methods: Sequence[Method], checkpointing: bool = False, **changes: Any) -> Tensor:
    """Which values the first step of a decoder moves."""
    model = tiny.model("llama", dropout=0.0)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    stage = stages.stage(model, 1, "causal", general=True, steps=1)
    before = stages.weights(model)
    stages.learn(methods, stage, optimizer=torch.optim.SGD, lr=RATE)
    names = [f"{path}.weight" for path in blocks_of("llama")]
    return torch.stack([(stages.weights(stage.model)[name] != before[name]).any(0) for name in names])


def test_views_of_other_methods_and_recomputed_layers_are_not_counted() -> None:
    alone = chosen_slots([method()])
    assert alone.sum() == 9
    assert torch.equal(chosen_slots([method()], checkpointing=True), alone)
    contrast = build({"name": "das", "strength": 0, "contrast": 1.0, "general": "none"})
    assert torch.equal(chosen_slots([method(), contrast]), alone)


def test_what_fills_a_row_is_not_counted() -> None:
    """Neither in the background nor in the batch."""
    model = tiny.model("llama", dropout=0.0)
    stage = stages.stage(model, 1, "causal", general=True, steps=1)
    batch = next(stage.batches(4))
    text = torch.arange(stages.S)[None].expand(4, -1) < stages.S - 6
    batch = {
        **batch,
        CONTENT: text,
        "labels": batch["labels"].masked_fill(~text[:, : batch["labels"].shape[1]], IGNORE),
    }
    counts = []
    for filling in (7, 8):
        of = method()
        protection = Protection([of], stage)
        protection.begin()
        stage.model.train()
        loss, _ = protection.loss(model, {**batch, "input_ids": batch["input_ids"].masked_fill(~text, filling)})
        loss.backward()
        counts.append(of._accesses.take())
        model.zero_grad()
        protection.end()
    for path in blocks_of("llama"):
        assert torch.equal(counts[0][path], counts[1][path])
        assert counts[0][path].sum() == 4 * 4 * (stages.S - 6)


def refusal(methods: Sequence[Method], general: bool = True, architecture: str = "roberta") -> str:
    """The sentence with which methods are refused; "" if they are not."""
    model, objective = tiny.model(architecture), tiny.objective_of(architecture)
    try:
        check_methods(methods, stages.setting(model, methods, objective, general=general))
    except MethodError as error:
        return str(error)
    return ""


def test_the_advice_of_refusals_is_followed() -> None:
    assert refusal([method()], general=False).endswith("there is none. Name one (the recipe's own `general`).")
    assert not refusal([method()], general=True)
    said = refusal([method(accessed=64)])
    assert (
        "option 'accessed': with 64 every token would access all neurons of a layer that has 64. Set it to 63" in said
    )
    assert not refusal([method(accessed=63)])
    for other in ("lora", "dap_prompt", "hat", "lifelong_moe"):
        architecture = "gpt2" if other == "lifelong_moe" else "roberta"
        said = refusal([method(), build(other)], architecture=architecture)
        assert "'sparse_memory'" in said
        assert "Remove one of them" in said
        assert not refusal([method()], architecture=architecture)


@pytest.mark.parametrize("option", ["slots", "accessed", "background"])
def test_numbers_are_at_least_one(option: str) -> None:
    with pytest.raises(MethodError, match=rf"'sparse_memory', option '{option}'"):
        build({"name": "sparse_memory", option: 0})


def test_the_learnt_background_has_as_many_rows_as_there_are() -> None:
    of = method(background=1000)
    stage = stages.stage(tiny.model(), 1, general=True)
    Protection([of], stage).begin()
    assert of.memory().facts == {"rows": 12}
    assert any("'general' has 12 rows, fewer than the 1,000" in note for note in stage.notes)
