"""Find the activations of a training step without weights or data: run it on fake tensors, which have only shapes."""

from __future__ import annotations

import contextlib
import copy
import weakref
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.integrations import moe

from everlearn.data.blocks import Block
from everlearn.model.objectives import Objective
from everlearn.model.vocabulary_head import LOGITS_PER_CHUNK, config_of, text_config

PER_FEATURE = 34
"""Bytes per layer, token and hidden feature in 16 bits, without attention scores (arXiv 2205.05198, eq. 2): for models
whose pass depends on the values of their inputs (Longformer), which fake tensors do not have."""


class Traced(NamedTuple):
    """The peak memory of a forward and backward pass in bytes, without weights and gradients.

    Attributes:
        activations: the batch, what is kept for the backward pass, and intermediate results.
        copies: the copies of weights in 16 bits, which mixed precision keeps until the pass ends.
    """

    activations: int
    copies: int


def trace(
    model: nn.Module,
    objective: Objective,
    rows: int,
    block_size: int,
    *,
    half: bool,
    checkpointing: bool,
    shapes: nn.Module | None = None,
) -> Traced:
    """Trace a forward and backward pass; gradients are freed as soon as they are complete, and not counted.

    Args:
        model: a model on the meta device; it is not changed.
        objective: makes the batch and computes the loss.
        rows: rows of the batch, all full.
        block_size: tokens in a row.
        half: whether the computation is in 16 bits.
        checkpointing: whether layers are computed again in the backward pass.
        shapes: what :func:`without_numbers` made of the model, which all its traces can share; made anew by default.
    """
    batch = objective.collate([full_row(model, objective, block_size)] * rows, range(rows))
    traced: Any = without_numbers(model) if shapes is None else shapes
    fake: FakeTensorMode = next(traced.parameters()).fake_mode
    if checkpointing:
        traced.activation_checkpointing_enable()
    try:
        # The fused kernel with which mixtures of experts multiply float32 matrices has no fake form.
        unfused = mock.patch.object(moe, "_can_use_grouped_mm", return_value=False)
        with fake, torch.enable_grad(), unfused:
            inputs = {name: fake.from_tensor(value) for name, value in batch.items()}
            live = _Live(traced)
            for value in inputs.values():
                live.count(value)
            with live, contextlib.suppress(_HeadIsDone):
                with torch.autocast("cpu", torch.bfloat16, enabled=half):
                    outputs = objective.forward(traced, inputs)
                if not checkpointing and outputs.hidden.requires_grad:
                    outputs.hidden.register_hook(_stop)
                if outputs.losses.requires_grad:
                    outputs.losses.sum().backward()
            return live.peak
    except (DataDependentOutputException, DynamicOutputShapeException):
        return _by_formula(model, rows * block_size, half)
    finally:
        if checkpointing:
            traced.activation_checkpointing_disable()


def without_numbers(model: nn.Module) -> nn.Module:
    """Return a copy of a model on the meta device, in which fake tensors stand for the weights."""
    copied = copy.deepcopy(model)
    with FakeTensorMode(allow_non_fake_inputs=True):
        # Fake tensors are on the CPU, whose attention keeps no scores, as the kernels of accelerators do.
        copied.to_empty(device="cpu").train()
    for parameter in copied.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_forget)
    return copied


def _by_formula(model: Any, tokens: int, half: bool) -> Traced:
    config = model.config if hasattr(model.config, "hidden_size") else text_config(model)
    layers = int(config.num_hidden_layers) + int(getattr(config, "num_decoder_layers", None) or 0)
    logits = min(LOGITS_PER_CHUNK, tokens * int(config.vocab_size))
    kept = layers * tokens * int(config.hidden_size) * PER_FEATURE * (1 if half else 2)
    matrices = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    return Traced(kept + 8 * logits, 2 * matrices if half else 0)


def full_row(model: nn.Module, objective: Objective, size: int) -> Block:
    """Return a row of one text that has a label at every token."""
    special = set(objective.tokenizer.all_special_ids)
    ordinary = next(token for token in range(len(objective.tokenizer)) if token not in special)
    ids = np.full(size, ordinary, np.int32)
    other = {"labels": ids} if config_of(model).is_encoder_decoder else {"segments": np.zeros_like(ids)}
    return {"input_ids": ids, **other}


class _HeadIsDone(Exception):
    """The backward pass has reached the layers, which only free what they keep."""


def _stop(gradient: Tensor) -> None:
    raise _HeadIsDone


def _forget(parameter: Tensor) -> None:
    parameter.grad = None


class _Live(TorchDispatchMode):
    """Add up the bytes of all tensors that exist, and remember the largest sum."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._weights = {_place(parameter) for parameter in model.parameters()}
        self._known: set[int] = set()
        self._activations = self._copies = 0
        self.peak = Traced(0, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        copied = func is torch.ops.aten._to_copy.default and _place(args[0]) in self._weights
        for value in tree_leaves(out):
            if isinstance(value, Tensor):
                self.count(value, copied)
        return out

    def count(self, value: Tensor, copied: bool = False) -> None:
        """Count the memory of a tensor until it is freed."""
        place = _place(value)
        if place in self._weights or place in self._known:
            return
        storage = value.untyped_storage()
        self._known.add(place)
        self._add(storage.nbytes(), copied)
        weakref.finalize(storage, self._freed, place, storage.nbytes(), copied)
        if self._activations + self._copies > sum(self.peak):
            self.peak = Traced(self._activations, self._copies)

    def _freed(self, place: int, size: int, copied: bool) -> None:
        self._known.discard(place)
        self._add(-size, copied)

    def _add(self, size: int, copied: bool) -> None:
        if copied:
            self._copies += size
        else:
            self._activations += size


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
