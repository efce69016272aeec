"""Compile the layers of a model for the training of a stage (`train.torch_compile`).

The loss is computed inside the forward pass, at the labels of each batch, so the whole step would be compiled again and
again. The layers take most of the time, and each is compiled by itself, in place: names, checkpoints and saved models
do not change, layers of one class share what is compiled, and so do the stages of a run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._inductor import config as inductor
from transformers.modeling_layers import GradientCheckpointingLayer

from everlearn.config.arguments import COMPILING
from everlearn.errors import MethodError, ModelError, RecipeError, first_line
from everlearn.methods.base import Method
from everlearn.methods.engine.protection import overrides

INSIDE = ("attach", "transforms", "views")
"""Hooks of methods that act inside the forward pass, or make it read other rows."""


def compile_options(train: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of `torch.compile` in a `train` group; None if nothing is compiled.

    As in TrainingArguments a backend or a mode alone switches it on, and the backend is inductor by default.
    """
    on, backend, mode = (train.get(name) for name in COMPILING)
    return {"backend": backend or "inductor", "mode": mode} if on or backend or mode else None


def check_compiling(train: Mapping[str, Any], model: nn.Module, methods: Sequence[Method], sharded: bool) -> None:
    """Refuse to compile what would then compute something else.

    Args:
        train: the `train` group of a domain.
        model: the model.
        methods: the methods of the run.
        sharded: whether FSDP or DeepSpeed distributes the weights.

    Raises:
        RecipeError: the backend or mode is unknown, or weights are distributed.
        MethodError: a method acts inside the forward pass.
        ModelError: the model has no layers that are compiled one by one.
    """
    options = compile_options(train)
    if options is None:
        return
    for method in methods:
        if acting := next((hook for hook in INSIDE if overrides(method, hook)), None):
            raise MethodError(
                f"`train.torch_compile` compiles the layers once, and method '{method.label}' acts inside the forward "
                f"pass at each step (`{acting}`), which compiled layers would not see. Leave it out, or take a method "
                "that acts on weights, gradients or data."
            )
    if sharded:
        raise RecipeError("`train.torch_compile` does not go together with `train.fsdp` here. Leave one of them out.")
    if not layers_of(model):
        raise ModelError(
            f"`train.torch_compile`: '{type(model).__name__}' has no layers that can be compiled one by one. Leave it "
            "out."
        )
    try:
        torch.compile(nn.Identity(), **options)
    except Exception as error:  # torch's own classes, which differ between versions
        settings = ", ".join(f"`train.torch_compile_{name}: {value}`" for name, value in options.items() if value)
        raise RecipeError(f"{settings} cannot be used: {first_line(error).rstrip('.')}.") from None


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a transformers model."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


@contextlib.contextmanager
def compiled_layers(model: nn.Module, train: Mapping[str, Any]) -> Iterator[None]:
    """Compile the layers of a model inside the block, if `train` asks for it.

    Dropout draws the random numbers that it draws without compilation, so results differ by rounding only.

    Raises:
        MethodError: something is hooked into a layer, which a compiled pass may not see.
    """
    options = compile_options(train)
    if options is None:
        yield
        return
    layers = layers_of(model)

    def check_hooks(*_: Any) -> None:
        """Look at the first pass: methods place their hooks right before it."""
        first.remove()
        for module in (inside for layer in layers for inside in layer.modules()):
            if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
                raise MethodError(
                    "`train.torch_compile` compiles the layers once, and a method reads or changes what they compute "
                    "(such as 'migu', which measures outputs). Leave `train.torch_compile` out."
                )

    first = model.register_forward_pre_hook(check_hooks)
    for layer in layers:
        layer.compile(**options)
    try:
        with inductor.patch(fallback_random=True):
            yield
    finally:
        first.remove()
        for layer in layers:
            layer._compiled_call_impl = None
