"""What a run needs of this machine's devices, before anything is computed on them."""

from __future__ import annotations

import os

import torch

from everlearn.errors import RecipeError
from everlearn.wording import count


def check_devices(cpu: bool) -> None:
    """Refuse more processes on this machine than it has accelerators.

    Raises:
        RecipeError: a process would have no accelerator of its own.
    """
    processes, devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.accelerator.device_count()
    if not cpu and 0 < devices < processes:
        raise RecipeError(
            f"Each process needs an accelerator of its own, and this machine has {devices} for "
            f"{count(processes, 'process')}. Start no more than {devices} (`torchrun --nproc-per-node {devices}`), or "
            "set `train.use_cpu: true`."
        )
