"""A function in both processes of a group, forked from a process that has imported everything once."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

PROCESSES = 2
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
"""What hides GPUs from several processes: they talk by gloo, and one GPU serves one of them."""
IMPORTED = ["imported_first", "everlearn.learner", "tiny"]


def in_two_processes(work: Callable[[int, Path], None], folder: Path) -> None:
    """Call ``work(rank, folder)`` in two processes, and end when both have.

    Args:
        work: a function of a module.
        folder: of their own; what they find goes there.
    """
    multiprocessing.set_forkserver_preload(IMPORTED)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in HIDDEN.items():
            patch.setenv(name, value)  # the server that both are forked from keeps it
        torch.multiprocessing.start_processes(_process, (work, folder), nprocs=PROCESSES, start_method="forkserver")


def _process(rank: int, work: Callable[[int, Path], None], folder: Path) -> None:
    gc.freeze()
    gc.enable()
    torch.set_num_threads(1)
    world = str(PROCESSES)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=PROCESSES)
    work(rank, folder)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
