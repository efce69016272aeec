"""Quicker ways to a tiny model, from its files or from a seed.

Models on the meta device get no first weights: they have no values there, and a file's take their place. To draw them
all the same takes a fifth of the time in which a tiny model is loaded. And a run loads what it has loaded before, for
its checks, its stages and its scores: a copy takes a sixth of the time.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from accelerate.utils import imports
from torch import Tensor
from torch.nn import init

from everlearn.commands import memory_estimate
from everlearn.model import loading
from everlearn.run import open_run

DRAWING = ("kaiming_uniform_", "normal_", "ones_", "uniform_", "zeros_")


def without_first_weights(set_: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let PyTorch's functions pass tensors without values; `set_` may be that of a `MonkeyPatch`."""
    for name in DRAWING:
        set_(init, name, _where_there_are_values(getattr(init, name)))


def _where_there_are_values(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def drawn(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
        return tensor if tensor.is_meta else draw(tensor, *args, **options)

    return drawn


def without_stack_traces(set_: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let nothing be seeded of devices that are not there."""
    if not torch.accelerator.is_available():
        for device in (torch.cuda, torch.mtia, torch.xpu):
            set_(device, "manual_seed_all", lambda seed: None)


def without_searches(set_: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let accelerate search all paths for an optional package once, and not before every backward pass."""
    set_(imports, "_is_package_available", functools.cache(imports._is_package_available))


KEPT = 8
"""Models that were loaded last."""
SMALL = 1 << 20
"""Bytes of a tiny model's files."""


def with_copies(set_: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let runs copy a model that they have loaded from the same files, byte by byte, with the same arguments."""
    kept: OrderedDict[Any, Any] = OrderedDict()
    load = loading.load_weights

    def loaded(path: str, *arguments: Any, **named: Any) -> Any:
        files = _read(path)
        if files is None:
            return load(path, *arguments, **named)
        asked = [vars(each) if hasattr(each, "to_dict") else each for each in (*arguments, *named.items())]
        key = (str(path), files, pickle.dumps(asked))
        if key not in kept:
            model = load(path, *arguments, **named)
            kept[key] = copy.deepcopy(model)
            if len(kept) > KEPT:
                kept.popitem(last=False)
            return model
        kept.move_to_end(key)
        return copy.deepcopy(kept[key])

    for module in (loading, open_run):
        set_(module, "load_weights", loaded)


def _read(path: str) -> str | None:
    """A digest of all files of a tiny model; None of an adapter, and of what is no folder or large."""
    if not os.path.isdir(path):
        return None
    digest = hashlib.blake2b()
    with os.scandir(path) as found:
        entries = sorted((entry for entry in found if entry.is_file()), key=lambda entry: entry.name)
    if sum(entry.stat().st_size for entry in entries) > SMALL or any("adapter" in entry.name for entry in entries):
        return None
    for entry in entries:
        with open(entry.path, "rb") as file:
            content = file.read()
        digest.update(f"{entry.name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def with_peaks(set_: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let plans remember what a step holds at its peak, by all that it is traced of: no weights, and one full row."""
    known: dict[Any, Any] = {}
    estimate = memory_estimate.MemoryEstimate
    trace = estimate._trace

    def traced(self: Any, *asked: Any, **options: Any) -> Any:
        model, objective = self.model, self._objective
        tensors = [(name, value.shape, value.dtype, value.requires_grad) for name, value in model.named_parameters()]
        own = {name: value for name, value in vars(objective).items() if name != "tokenizer"}
        said = (model.config.to_json_string(), model.config._attn_implementation, type(objective), own)
        parts = ([type(part) for part in model.modules()], tensors, len(objective.tokenizer), self._block_size)
        key = repr((said, parts, asked, options))
        if key not in known:
            known[key] = trace(self, *asked, **options)
        return known[key]

    set_(estimate, "_trace", traced)
