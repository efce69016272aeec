"""InfLoRA against its formulas in float64: which directions are trained, which are kept, and what does not change."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.adapters.inf_lora import InfLoRA
from everlearn.methods.adapters.low_rank import matrix_of
from everlearn.methods.engine.protection import check_methods

R, ROWS = 4, 6
FIRST = "roberta.encoder.layer.0.attention.self.query"
"""It reads embeddings, which no adapter changes."""


def make(**options: Any) -> InfLoRA:
    method = build({"name": "inf_lora", "r": R, "samples": ROWS, **options})
    assert isinstance(method, InfLoRA)
    return method


def inputs_of(stage: Any, model: Any, paths: list[str]) -> dict[str, Tensor]:
    """H of each layer: what it reads of the first rows of the domain, [d_in, tokens] in float64, all rows at once."""
    seen: dict[str, list[Tensor]] = {path: [] for path in paths}
    handles = [
        model.get_submodule(path).register_forward_hook(
            lambda _, inputs, __, path=path: seen[path].append(inputs[0].detach().flatten(0, 1).double())
        )
        for path in paths
    ]
    was = model.training
    with torch.no_grad():
        for batch in stage.batches(ROWS):
            stage.objective.forward(model.eval(), batch)
    model.train(was)
    for handle in handles:
        handle.remove()
    return {path: torch.cat(rows).T for path, rows in seen.items()}


def kept_after(space: Tensor, h: Tensor, threshold: float) -> Tensor:
    """M with as few singular vectors of (I − M Mᵀ) H as make it hold a share of ‖H‖², added one by one."""
    left, _, _ = torch.linalg.svd(h - space @ space.T @ h, full_matrices=False)
    for i in range(left.shape[1]):
        if (space.T @ h).square().sum() >= threshold * h.square().sum():
            break
        space = torch.cat([space, left[:, i : i + 1]], dim=1)
    return space


@pytest.mark.parametrize("architecture", ["roberta", "gpt2"])
@pytest.mark.parametrize("threshold", [0.5, 0.9])
def test_directions_are_those_of_the_paper(architecture: str, threshold: float) -> None:
    """Three domains: A from singular vectors of what M leaves of H before a domain, M from H after it."""
    model, method = tiny.model(architecture), make(threshold=threshold, target_modules="attention")
    paths = method._targets(model)
    spaces = {path: torch.zeros(len(matrix_of(model.get_submodule(path)).T), 0).double() for path in paths}
    for index in (1, 2, 3):
        stage = stages.stage(model, index, tiny.objective_of(architecture))
        before = inputs_of(stage, model, paths)
        trained: dict[str, Tensor] = {}

        def look(*_: Any, stage: Any = stage, trained: dict[str, Tensor] = trained) -> None:
            for path in paths:
                layer = stage.model.get_base_model().get_submodule(path)
                trained[path] = layer.lora_A["default"].weight.detach().double()

        stages.learn([method], stage, each=look)
        model = stage.model
        after = inputs_of(stage, model, paths)
        for path in paths:
            space, h, a = spaces[path], before[path], trained[path]
            left, sizes, _ = torch.linalg.svd(h - space @ space.T @ h, full_matrices=False)
            torch.testing.assert_close(a @ a.T, torch.eye(R).double(), rtol=0, atol=1e-5)
            torch.testing.assert_close((a @ left[:, :R]).abs().diagonal(), torch.ones(R).double(), rtol=0, atol=1e-2)
            assert (a @ h).square().sum() >= (1 - 1e-5) * sizes[:R].square().sum(), "the leading ones"
            assert (a @ space).abs().max() < 1e-5 if space.shape[1] else True
            spaces[path] = kept_after(space, after[path], threshold)
            found = method._space[path].double()
            assert found.shape == spaces[path].shape
            torch.testing.assert_close(found @ found.T, spaces[path] @ spaces[path].T, rtol=0, atol=1e-4)


def test_answers_to_what_earlier_domains_read_do_not_change() -> None:
    """One row of 24 tokens leaves 8 of 32 directions; a layer that reads embeddings answers it as before."""
    seen = {}
    for name in ("inf_lora", "inc_lora"):
        options = {"samples": 1, "threshold": 0.999999} if name == "inf_lora" else {}
        method = build({"name": name, "r": R, **options})
        model = tiny.model()
        first = stages.stage(model, 1, count=1)
        stages.learn([method], first)
        h = inputs_of(first, first.model, [FIRST])[FIRST]
        before = matrix_of(first.model.get_submodule(FIRST)).double().clone()
        second = stages.stage(first.model, 2, steps=8)
        stages.learn([method], second)
        changed = matrix_of(second.model.get_submodule(FIRST)).double() - before
        assert changed.norm() > 1e-2
        seen[name] = float((changed @ h).norm() / changed.norm())
    assert seen["inf_lora"] < 0.01 < 0.1 < seen["inc_lora"]


def test_only_b_is_trained() -> None:
    stage, method = stages.stage(tiny.model()), make()
    stages.begin([method], stage)
    trained = {name: p for name, p in stage.model.named_parameters() if p.requires_grad}
    assert all("lora_B" in name for name in trained)
    assert sum(p.numel() for p in trained.values()) == method.cost(tiny.model()).parameters


def test_a_resumed_domain_has_the_same_directions() -> None:
    """Whatever text is there to read by now."""
    first, second = stages.stage(tiny.model()), stages.stage(tiny.model())
    method, resumed = make(), make()
    stages.begin([method], first)
    resumed.load_memory(method.memory())
    second.source = stages.source("other", 12, 7)
    stages.begin([resumed], second)
    theirs = stages.weights(second.model)
    assert all(torch.equal(value, theirs[key]) for key, value in stages.weights(first.model).items())
    stages.end([resumed], second)
    assert not any(key.startswith("/rows/") for key in resumed.memory().tensors)


def test_without_free_directions_the_adapter_has_a_smaller_rank() -> None:
    model, method = tiny.model(), make(threshold=0.9999, samples=12)
    for index in (1, 2):
        stage = stages.stage(model, index)
        stages.learn([method], stage)
        model = stage.model
    notes = [note for note in stage.notes if "that rank" in note]
    assert notes
    assert all("'inf_lora': inputs of earlier domains use all but" in note for note in notes)
    path = next(path for path in method._targets(model) if f"'{path}'" in notes[0])
    rank = 32 - method._space[path].shape[1]
    assert rank < R
    own = method._adapters["d2"][f"base_model.model.{path}.lora_A.weight"]
    assert torch.linalg.matrix_rank(own) < R
    assert own.isfinite().all()


def test_refusals() -> None:
    model = tiny.model()
    for options, words in (
        ({"use_dora": True}, "option 'use_dora': a learnt magnitude changes the answers"),
        ({"r": 33}, "option 'r': a layer with 32 inputs.*Set it to 32 or less"),
    ):
        method = make(**options)
        with pytest.raises(MethodError, match=words):
            check_methods([method], stages.setting(model, [method]))
    with pytest.raises(MethodError, match="'threshold'"):
        make(threshold=1.0)
    method = make()
    stages.learn([method], stages.stage(copy.deepcopy(model)))
    other = make(target_modules="attention")
    other.load_memory(method.memory())
    with pytest.raises(MethodError, match="'inf_lora' remembers inputs of other layers"):
        other.begin_domain(stages.stage(model, 2))
