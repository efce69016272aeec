"""`protect` in a Trainer under FSDP2, where a process has a shard of each weight while it trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import Trainer

from everlearn.errors import MethodError
from everlearn.methods.base import Method
from everlearn.methods.engine.protection import overrides
from everlearn.model.adapted import is_adapted
from everlearn.model.vocabulary_head import unwrap
from everlearn.run.dry_run import why_not_sharded

CANNOT = {
    "views": "reads further rows, or further losses of the same rows, in a pass of its own",
    "transforms": "computes with other weights than the model's",
    "final_weights": "ends with other weights, which would have to be sharded again",
    "references": "needs gradients of further rows",
}
"""Hooks that do not work in an external training under FSDP2, and why."""


def check_sharded(trainer: Trainer, methods: Sequence[Method], stops: bool) -> None:
    """Check that `protect` supports the model, the methods and the options in a Trainer under FSDP.

    Args:
        trainer: the trainer, before its model is sharded.
        methods: the methods.
        stops: whether `stop` is set.

    Raises:
        MethodError: something is not supported; the message says what, and what to do.
    """
    plugin: Any = trainer.accelerator.state.fsdp_plugin
    model: Any = unwrap(trainer.model)  # type: ignore[arg-type]  # it has one
    if plugin.fsdp_version != 2:
        raise MethodError(
            "FSDP 1 hides the weights that methods act on. Set `fsdp_version: 2` for accelerate (`version: 2` in "
            "`fsdp_config`), or train with DDP."
        )
    if why := why_not_sharded(model, methods):
        raise MethodError(f"FSDP cannot shard this training: {why}. Train with DDP.")
    if is_adapted(model):
        raise MethodError(
            "`protect` on a model with adapters does not work under FSDP: the weights that the adapters change are in "
            "parts. Train with DDP."
        )
    if stops:
        raise MethodError(
            "`stop` scores texts during the training, for which a process needs the whole model. Leave it out, or "
            "train with DDP."
        )
    for method in methods:
        for hook, why in CANNOT.items():
            if overrides(method, hook):
                raise MethodError(
                    f"Method '{method.label}' {why}, which `protect` cannot do under FSDP. Train with DDP, or use "
                    "`everlearn run`, which works with FSDP2 (`train.fsdp`)."
                )
