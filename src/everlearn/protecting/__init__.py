"""The methods in other people's trainers and loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import nn
from transformers import Trainer

from everlearn.errors import MethodError
from everlearn.methods.base import Method

if TYPE_CHECKING:
    from everlearn.protecting.loop import ProtectedLoop

Methods = Sequence[str | Mapping[str, Any] | Method]


@overload
def protect(
    trainer: Trainer, methods: Methods, /, *, memory: str | Path, domain: str | None = None, held_out: Any = None
) -> Trainer: ...
@overload
def protect(
    model: nn.Module, optimizer: torch.optim.Optimizer, methods: Methods, /, *, memory: str | Path, **options: Any
) -> ProtectedLoop: ...
def protect(target: Any, /, *rest: Any, memory: str | Path, **options: Any) -> Any:
    """Let methods protect what a model knows while somebody else's code trains it.

        protect(trainer, ["das", "ewc"], memory="memory/").train()

        with protect(model, optimizer, ["ewc"], memory="memory/", data=data, collate=collate) as protected:
            for batch in DataLoader(protected.data, 8, shuffle=True, collate_fn=collate):
                protected.loss(batch).backward()
                optimizer.step()
                optimizer.zero_grad()

    Model, data, collator and loss stay the caller's. The memory is loaded before and written after; the next call with
    the same folder is the next domain. It ends with a short report (``trainer.protection_report()``,
    ``protected.report``): what was protected, penalties and masks at work, where the memory is and, with `held_out`,
    how many bits per byte of that text were forgotten.

    Args:
        target: a ``transformers.Trainer`` (TRL's among them), which is changed in place and returned; or a model, with
            its optimizer as the next argument.
        rest: the methods: names, mappings with ``name`` and options, or methods (after the optimizer, if there is one).
        memory: folder of what the methods know of earlier domains.
        options: ``domain``, a name (numbered when left out); ``held_out``, text that nothing learns (texts, a file, or
            several of these by name), which is scored before and after. For a loop also: ``tokenizer``, which that
            text needs; ``data``, the dataset; ``collate``, makes a batch of a list of examples; ``loss(model, batch)``,
            a scalar (the model's own when left out); ``steps`` of the domain; ``batch_size`` when something is
            measured; ``seed``; ``resume``, a folder written by ``protected.save_state``.

    Raises:
        MethodError: a method cannot work there; the sentence says why.
        DataError: the dataset or the collator's batches are of no use to a method.
    """
    if isinstance(target, Trainer) and len(rest) == 1 and set(options) <= {"domain", "held_out"}:
        from everlearn.protecting.trainer import protect_trainer

        return protect_trainer(target, _listed(rest[0]), memory, **options)
    if isinstance(target, nn.Module) and len(rest) == 2 and isinstance(rest[0], torch.optim.Optimizer):
        from everlearn.protecting.loop import ProtectedLoop

        return ProtectedLoop(target, rest[0], _listed(rest[1]), memory, **options)
    raise MethodError(
        "`protect` takes a Trainer and methods, or a model, its optimizer and methods: protect(trainer, ['das'], "
        "memory='memory/') or protect(model, optimizer, ['das'], memory='memory/', data=…, collate=…)."
    )


def _listed(methods: Any) -> Methods:
    if isinstance(methods, str | Mapping | Method):
        return [methods]
    return list(methods)
