"""Methods on two processes give what one process gives: DDP for the contrast and MIGU, FSDP2 for EWC's penalty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import stages
import tiny
from everlearn.methods.base import Memory, Method
from everlearn.methods.engine.protection import Protection
from everlearn.methods.masks.das import DAS
from everlearn.methods.masks.migu import MIGU
from everlearn.methods.penalties.ewc import EWC
from everlearn.model.anatomy import anatomy

PROCESSES = 2


def _das(**options: Any) -> list[Method]:
    method = DAS(general="none", strength=0, **options)
    generator = torch.Generator().manual_seed(1)
    maps = {s.name: torch.rand(s.units, generator=generator) for s in anatomy(tiny.model()).sites}
    method.load_memory(Memory({f"accumulated/{name}": value for name, value in maps.items()}, {"domains": ["d1"]}))
    return [method]


def _migu() -> list[Method]:
    return [MIGU(apply_to="gradient")]


def _ewc() -> list[Method]:
    method = EWC(strength=10.0)
    generator = torch.Generator().manual_seed(2)
    tensors = {}
    for name, parameter in tiny.model().named_parameters():
        tensors[f"fisher/{name}"] = torch.rand(parameter.shape, generator=generator)
        tensors[f"anchor/{name}"] = parameter.detach() + 0.1 * torch.randn(parameter.shape, generator=generator)
    method.load_memory(Memory(tensors, {"domains": ["d1"]}))
    return [method]


def _gradients(methods: list[Method], wrap: str = "none", rows: slice = slice(None)) -> dict[str, torch.Tensor]:
    """Masked gradients of one batch's whole loss, and its parts."""
    stage = stages.stage(tiny.model(), 2)
    stages.begin(methods, stage)
    model = stage.model.train()
    if wrap == "ddp":
        model = DistributedDataParallel(model)
    if wrap == "fsdp":
        for layer in model.roberta.encoder.layer:
            fully_shard(layer)
        fully_shard(model)
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


def _process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=PROCESSES)
    mine = slice(rank * 2, rank * 2 + 2)
    results = {
        "das": _gradients(_das(), "ddp", mine),
        # The released gather: every process has the whole loss but only its own gradient, so λ W does what λ should.
        "das_local": _gradients(_das(gather_grad="local", contrast=PROCESSES), "ddp", mine),
        "migu": _gradients(_migu(), "ddp", mine),
        "ewc": _gradients(_ewc(), "fsdp", mine),
    }
    torch.save(results, f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(_process, (str(folder),), nprocs=PROCESSES)
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(PROCESSES)]


@pytest.mark.distributed
@pytest.mark.parametrize(("name", "make"), [("das", _das), ("das_local", _das), ("migu", _migu), ("ewc", _ewc)])
def test_two_processes_give_the_gradients_of_one(name: str, make, results: list[dict]) -> None:
    whole = _gradients(make())
    for result in (part[name] for part in results):
        assert result.keys() == whole.keys()
        for key, value in whole.items():
            if not key.startswith("parts") or name == "ewc":
                torch.testing.assert_close(
                    result[key], value, rtol=1e-4, atol=1e-6, msg=lambda m, key=key: f"{key}: {m}"
                )
    parts = [part[name].get("parts das/contrast") for part in results]
    if name == "das":  # each process reports the mean over its own rows
        torch.testing.assert_close(sum(parts) / PROCESSES, whole["parts das/contrast"])
