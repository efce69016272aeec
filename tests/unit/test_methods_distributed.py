"""Methods on two processes give what one process gives: the contrast, MIGU in all its forms, MoFO, the penalties."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.base import Memory, Method, build
from everlearn.methods.composition.mocl import MoCL
from everlearn.methods.engine.protection import Protection
from everlearn.methods.masks.das import DAS
from everlearn.methods.masks.migu import MIGU
from everlearn.methods.masks.mofo import MoFO
from everlearn.model.anatomy import anatomy
from everlearn.model.sharding import whole
from two_processes import PROCESSES, in_two_processes


def _das(**options: Any) -> list[Method]:
    method = DAS(general="none", strength=0, **options)
    generator = torch.Generator().manual_seed(1)
    maps = {s.name: torch.rand(s.units, generator=generator) for s in anatomy(tiny.model()).sites}
    method.load_memory(Memory({f"accumulated/{name}": value for name, value in maps.items()}, {"domains": ["d1"]}))
    return [method]


def _migu(lora: bool = False, blocks: bool = False, **options: Any) -> list[Method]:
    beside: list[Method] = [IncLoRA(lora_dropout=0.0, r=4)] if lora else []
    beside += [MoCL(module="lora", lora_dropout=0.0, r=4)] if blocks else []
    return [*beside, MIGU(apply_to="gradient", **options)]


MIGUS: dict[str, dict[str, Any]] = {
    "migu": {},
    "migu_kept_rows": {"gradient_of": "kept-rows"},
    "migu_random": {"selector": "random"},
    "migu_weight": {"selector": "weight"},
    "migu_gradient": {"selector": "gradient"},
    "migu_lora": {"lora": True},
    "migu_lora_gradient": {"lora": True, "selector": "gradient"},
    "migu_blocks": {"blocks": True},
    "migu_head": {"components": ("head", "query"), "mask_bias": True},
}


def _penalty(name: str = "ewc", **options: Any) -> list[Method]:
    method = build({"name": name, "strength": 10.0, **options})
    generator = torch.Generator().manual_seed(2)
    tensors, importance = {}, inspect.getattr_static(method, "_importance").key
    for key, parameter in tiny.model().named_parameters():
        shape = () if name == "l2" else parameter.shape
        tensors[f"{importance}{key}"] = torch.rand(shape, generator=generator)
        tensors[f"anchor/{key}"] = parameter.detach() + 0.1 * torch.randn(parameter.shape, generator=generator)
    method.load_memory(Memory(tensors, {"domains": ["d1"]}))
    return [method]


def _gradients(methods: list[Method], wrap: str = "none", rows: slice = slice(None)) -> dict[str, torch.Tensor]:
    """Masked gradients of one batch's whole loss, and its parts."""
    stage = stages.stage(tiny.model(), 2)
    stages.begin(methods, stage)
    model = stage.model.train()
    # B starts at zero, and so does the gradient of A: rows of B alone would be compared.
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) / 8
    model = _wrapped(model, wrap)
    protection = Protection(methods, stage)
    batch = {name: value[rows] for name, value in next(stage.batches(4)).items()}
    loss, parts = protection.loss(model, batch)
    loss.backward()
    protection.after_backward()
    result = {f"parts {name}": value for name, value in parts.items() if name != "loss"}
    for name, parameter in stage.model.named_parameters():
        gradient = parameter.grad
        result[name] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return result


def _step(methods: list[Method], wrap: str = "none", rows: slice = slice(None)) -> dict[str, torch.Tensor]:
    """Weights and memory after one step."""
    stage = stages.stage(tiny.model(), 2)
    stages.begin(methods, stage)
    model = _wrapped(stage.model.train(), wrap)
    protection = Protection(methods, stage)
    optimizer = protection.optimizer(torch.optim.SGD(stage.model.parameters(), lr=0.1))
    protection.loss(model, {name: value[rows] for name, value in next(stage.batches(4)).items()})[0].backward()
    protection.after_backward()
    with protection.update():
        optimizer.step()
    result = {name: value for method in methods for name, value in method.memory().tensors.items()}
    result |= {f"s of {m.name}": torch.tensor(m.memory().facts["s"]) for m in methods if "s" in m.memory().facts}
    for name, parameter in stage.model.named_parameters():
        value = parameter.detach()
        result[name] = whole(value)
    return result


def _wrapped(model: torch.nn.Module, wrap: str) -> torch.nn.Module:
    if wrap == "ddp":
        return DistributedDataParallel(model)
    if wrap == "fsdp":
        for layer in [
            module for name, module in model.named_modules() if name.rpartition(".")[0].endswith("encoder.layer")
        ]:
            fully_shard(layer)
        fully_shard(model)
    return model


STEPS: dict[str, Any] = {
    "si": partial(_penalty, "si", damping=1e-3),
    "si pulled": partial(_penalty, "si", damping=1e-3, apply_to="update"),
    "aewc pulled": partial(_penalty, "aewc", apply_to="update", strength=0.01),
    "multi_task_adaptation": lambda: [build({"name": "multi_task_adaptation", "drift": 0, "rate": 0.5})],
}
"""What a step leaves: path, pulled weights, the balance of two tasks."""


def _moved(wrap: str = "none", rows: slice = slice(None)) -> dict[str, torch.Tensor]:
    """Which entries MoFO's first step moves, 1 or 0, whole."""
    stage, methods = stages.stage(tiny.model(), 2), [MoFO(fraction=0.2)]
    before = stages.weights(stage.model)
    stages.begin(methods, stage)
    if wrap == "fsdp":
        fully_shard(stage.model)
    protection = Protection(methods, stage)
    optimizer = protection.optimizer(torch.optim.AdamW(stage.model.parameters(), lr=1e-2))
    batch = {name: value[rows] for name, value in next(stage.batches(4)).items()}
    protection.loss(stage.model.train(), batch)[0].backward()
    protection.after_backward()
    with protection.update():
        optimizer.step()
    return {name: (whole(p.detach()) != before[name]).float() for name, p in stage.model.named_parameters()}


def _process(rank: int, folder: Path) -> None:
    mine = slice(rank * 2, rank * 2 + 2)
    results = {
        "das": _gradients(_das(), "ddp", mine),
        # The released gather: every process has the whole loss but only its own gradient, so λ W does what λ should.
        "das_local": _gradients(_das(gather_grad="local", contrast=PROCESSES), "ddp", mine),
        "ewc": _gradients(_penalty(), "fsdp", mine),
        "rewc": _gradients(_penalty("rewc"), "fsdp", mine),
        "l2": _gradients(_penalty("l2"), "fsdp", mine),
        "mofo": _moved("fsdp", mine),
    }
    for name, make in STEPS.items():
        for wrap in ("ddp", "fsdp"):
            results[f"{wrap} {name}"] = _step(make(), wrap, mine)
    for name, options in MIGUS.items():
        for wrap in ("ddp", "fsdp"):
            results[f"{wrap} {name}"] = _gradients(_migu(**options), wrap, mine)
    results["unreached"] = _unreached()
    torch.save(results, folder / f"{rank}.pt")


def _unreached() -> dict[str, str]:
    """What is said when the optimizer was made before FSDP2 replaced the parameters, and of flat copies of them."""
    said = {}
    for form in ("stale", "flat"):
        stage = stages.stage(tiny.model(), 2)
        methods = _migu()
        stages.begin(methods, stage)
        protection = Protection(methods, stage)
        flat = torch.cat([parameter.detach().flatten() for parameter in stage.model.parameters()])
        steps = torch.optim.AdamW([flat] if form == "flat" else stage.model.parameters())
        protection.optimizer(steps)
        model: torch.nn.Module = stage.model.train()
        if form == "stale":
            fully_shard(model)
        else:
            model = DistributedDataParallel(model)
        batch = {name: value[:2] for name, value in next(stage.batches(4)).items()}
        protection.loss(model, batch)[0].backward()
        try:
            protection.after_backward()
        except MethodError as error:
            said[form] = str(error)
    return said


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("processes")
    in_two_processes(_process, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(PROCESSES)]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("das", _das),
        ("das_local", _das),
        ("ewc", _penalty),
        ("rewc", partial(_penalty, "rewc")),
        ("l2", partial(_penalty, "l2")),
        *((f"{wrap} {name}", partial(_migu, **options)) for name, options in MIGUS.items() for wrap in ("ddp", "fsdp")),
    ],
)
def test_two_processes_give_the_gradients_of_one(name: str, make, results: list[dict]) -> None:
    alone = _gradients(make())
    for result in (part[name] for part in results):
        assert result.keys() == alone.keys()
        for key, value in alone.items():
            if not key.startswith("parts") or name in ("ewc", "rewc", "l2"):
                torch.testing.assert_close(
                    result[key], value, rtol=1e-4, atol=1e-6, msg=lambda m, key=key: f"{key}: {m}"
                )
    if "migu" in name:
        found = {key: value for key, value in alone.items() if value is not None and not key.startswith("parts")}
        assert any((value == 0).flatten(1).all(1).any() for value in found.values() if value.dim() == 2), "masked rows"
    parts = [part[name].get("parts das/contrast") for part in results]
    if name == "das":  # each process reports the mean over its own rows
        torch.testing.assert_close(sum(parts) / PROCESSES, alone["parts das/contrast"])


@pytest.mark.distributed
def test_mofo_chooses_among_all_entries_of_a_sharded_parameter(results: list[dict]) -> None:
    """A threshold for each shard would move as many entries of the first rows as of the last."""
    alone, uneven = _moved(), 0
    for name, moved in alone.items():
        for result in results:
            # Sums of other order may exchange entries at the threshold.
            assert (result["mofo"][name] - moved).abs().sum() <= 2
        half = len(moved) // 2
        uneven += abs(float(moved[:half].sum() - moved[half : 2 * half].sum())) > 0.1 * float(moved.sum())
    assert uneven > len(alone) / 4


@pytest.mark.distributed
@pytest.mark.parametrize("name", [f"{wrap} {name}" for name in STEPS for wrap in ("ddp", "fsdp")])
def test_a_step_on_two_processes_leaves_what_one_leaves(name: str, results: list[dict]) -> None:
    alone = _step(STEPS[name.split(" ", 1)[1]]())
    for result in (part[name] for part in results):
        assert result.keys() == alone.keys()
        for key, value in alone.items():
            torch.testing.assert_close(result[key], value, rtol=1e-4, atol=1e-6, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.distributed
def test_a_mask_that_does_not_reach_the_optimizer_is_an_error_on_every_process(results: list[dict]) -> None:
    for result in results:
        assert result["unreached"].keys() == {"stale", "flat"}
        assert all("do not reach the optimizer" in sentence for sentence in result["unreached"].values())
