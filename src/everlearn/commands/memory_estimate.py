"""Estimate the memory that training needs, for `everlearn plan` and for the batch size that `everlearn init` writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from everlearn.methods.cost import Cost
from everlearn.model.quantising import quantised_bytes
from everlearn.model.vocabulary_head import LOGITS_PER_CHUNK, text_config
from everlearn.run.disk import Sizes

ACTIVATION_BYTES = 34
"""Bytes of activations per layer, token and hidden feature in 16 bits, without attention scores (arXiv 2205.05198,
eq. 2); twice that in float32."""


def memory_held(
    model: nn.Module,
    sizes: Sizes,
    costs: Mapping[str, Cost],
    *,
    rows: int,
    block_size: int,
    half: bool = False,
    small_adam: bool = False,
    quantised: dict[str, Any] | None = None,
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes by use, at the peak of a step, and while a method measures between two domains.

    Args:
        model: a model on any device; its weights are not read.
        sizes: numbers of parameters of the run.
        costs: method → its cost.
        rows: rows in a batch of one device.
        block_size: tokens in a row.
        half: whether the computation is in 16 bits.
        small_adam: whether the optimizer's state has 8 bits per number.
        quantised: options of quantisation of the weights, if any.
    """
    config: Any = model.config if hasattr(model.config, "hidden_size") else text_config(model)
    layers = int(getattr(config, "num_hidden_layers", 0)) + int(getattr(config, "num_decoder_layers", None) or 0)
    per_row = layers * block_size * int(config.hidden_size) * ACTIVATION_BYTES
    trained = sizes.trained(len(sizes.stages))
    wider = 1 + sum(cost.passes_per_step for cost in costs.values())
    weights = 4 * sizes.stages[-1] if quantised is None else quantised_bytes(model, quantised)
    logits = min(LOGITS_PER_CHUNK, rows * block_size * int(config.vocab_size))
    kept = {
        "weights": weights + 4 * sizes.added,
        "Adam": (2 if small_adam else 8) * trained,
        "methods": sum(cost.memory_bytes for cost in costs.values()),
    }
    steps = kept | {
        "gradients": 4 * trained,
        "activations (rough)": int(rows * wider * per_row * (1 if half else 2)) + 8 * logits,
    }
    # Methods measure one after the other, in float32; the optimizer's state is kept meanwhile.
    most = max((cost.measuring_bytes for cost in costs.values()), default=0)
    measuring = kept | {"activations (rough)": 2 * rows * per_row + 8 * logits, "what is measured": most}
    return steps, measuring if most else {}


def memory_free() -> tuple[int | None, str]:
    """Return the free memory for training in bytes, or None if unknown, and the name of its device."""
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        return free, torch.cuda.get_device_name()
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
        limit = Path("/sys/fs/cgroup/memory.max")  # of a container
        if limit.is_file() and (text := limit.read_text().strip()).isdigit():
            free = min(free, int(text))
    except (OSError, StopIteration, ValueError):
        return None, "this machine"
    return free, "this machine"
