"""Importance measured on a model that FSDP2 has divided is that of the complete model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stages
import tiny
from everlearn import files
from everlearn.errors import MethodError
from everlearn.importance import gradient_moment, labels_of_the_model
from everlearn.model.objectives import Objective, make_objective
from everlearn.model.sharding import divided, is_divided, local, whole
from two_processes import in_two_processes

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "squares": ("llama", {"power": 2}),
    "sizes": ("llama", {"power": 1}),
    "tied": ("gpt2", {"power": 2}),
    "batches": ("llama", {"power": 2, "batch_means": True}),
    "some": ("llama", {"names": ["model.layers.1.mlp.up_proj.weight", "lm_head.weight"]}),
}
"""Name → architecture and how importance is measured."""
ROWS = (3, 3, 1)
"""Of the batches: neither they nor their sum can be shared out evenly."""


def model_of(architecture: str) -> nn.Module:
    return tiny.model(architecture, dropout=0.0).eval()


def batches(objective: Objective) -> Iterator[dict[str, Tensor]]:
    blocks, at = stages.blocks(sum(ROWS), 1), 0
    for rows in ROWS:
        yield objective.collate(blocks[at : at + rows], range(at, at + rows))
        at += rows


def measured(model: nn.Module, **how: Any) -> dict[str, Tensor]:
    objective = make_objective(None, model, tiny.tokenizer())
    return gradient_moment(model, batches(objective), objective.per_sample_loss, **how)


def of_the_model(model: nn.Module) -> dict[str, Tensor]:
    """With labels of the model, for which there is a pass without gradients before."""
    objective = make_objective(None, model, tiny.tokenizer())
    drawn = labels_of_the_model(model, batches(objective), objective, 1)
    return gradient_moment(model, drawn, objective.per_sample_loss)


def overflowing(model: nn.Module) -> dict[str, Tensor]:
    objective = make_objective(None, model, tiny.tokenizer())

    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return objective.per_sample_loss(model, batch) * torch.inf

    return gradient_moment(model, batches(objective), loss)


def half(rank: int, folder: Path) -> None:
    """Measure on shards; only the first process keeps what it gathers."""
    found: dict[str, Tensor] = {}
    for case, (architecture, how) in {**CASES, "drawn": ("llama", {})}.items():
        model = model_of(architecture)
        with divided(model) as parts:
            assert is_divided(parts)
            assert not is_divided(model)
            importance = of_the_model(parts) if case == "drawn" else measured(parts, **how)
            assert all(weight.grad is None for weight in parts.parameters())
        for name, value in importance.items():
            assert local(value).numel() <= (value.numel() + 1) // 2 + value[0].numel()
            found[f"{case}/{name}"] = whole(value)
    with divided(model) as parts, pytest.raises(MethodError, match="is not finite"):
        overflowing(parts)
    if rank == 0:
        files.save_tensors(folder / "found.safetensors", found, {})


@pytest.mark.distributed
def test_two_processes_with_shards_measure_what_one_measures(tmp_path: Path) -> None:
    in_two_processes(half, tmp_path)
    found = files.load_tensors(tmp_path / "found.safetensors")
    for case, (architecture, how) in CASES.items():
        expected = measured(model_of(architecture), **how)
        assert {name for name in found if name.startswith(f"{case}/")} == {f"{case}/{name}" for name in expected}
        for name, value in expected.items():
            torch.testing.assert_close(found[f"{case}/{name}"], value, rtol=1e-4, atol=1e-6 * float(value.max()))
    for name, value in of_the_model(model_of("llama")).items():
        torch.testing.assert_close(found[f"drawn/{name}"], value, rtol=1e-4, atol=1e-6 * float(value.max()))
