"""`protect` in a Trainer under FSDP2, where a process has a shard of each weight while it trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import Trainer

from everlearn.errors import MethodError
from everlearn.methods.base import Method
from everlearn.model.adapted import is_adapted
from everlearn.model.vocabulary_head import unwrap
from everlearn.run.dry_run import why_not_sharded


def check_sharded(trainer: Trainer, methods: Sequence[Method], stop_then: str | None) -> None:
    """Check that `protect` supports the model, the methods and the options in a Trainer under FSDP.

    Args:
        trainer: the trainer, before its model is sharded.
        methods: the methods.
        stop_then: what happens beyond a bound of `stop`; None without `stop`.

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
    if stop_then not in (None, "warn"):
        raise MethodError(
            f"`stop_then='{stop_then}'` goes back to an earlier step, for which the Trainer would divide a model that "
            "FSDP has divided already. Use 'warn', or train with DDP."
        )
    for method in methods:
        if is_adapted(model) and method.needs.memory in ("statistics", "parameters"):
            raise MethodError(
                f"Method '{method.label}' cannot act on adapters under FSDP: the weight W + s B A that it reads needs "
                "all of A and B, and a process has a part of them. Train with DDP."
            )
