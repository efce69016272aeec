"""Apply the methods in the trainers and loops of other libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import nn
from transformers import Trainer

from everlearn.errors import MethodError
from everlearn.methods.base import Method

if TYPE_CHECKING:
    from everlearn.protecting.loop import ProtectedLoop

STOP = {"stop", "stop_every", "stop_then", "stop_notify"}
OF_A_TRAINER = {"domain", "held_out", "general", *STOP}
Methods = Sequence[str | Mapping[str, Any] | Method]


@overload
def protect(
    trainer: Trainer,
    methods: Methods,
    /,
    *,
    memory: str | Path,
    domain: str | None = None,
    held_out: Any = None,
    general: Any = None,
    stop: float | Mapping[str, float] | None = None,
    stop_every: int = 50,
    stop_then: Literal["end", "lower", "warn"] = "end",
    stop_notify: str | Sequence[str] | None = None,
) -> Trainer: ...
@overload
def protect(
    model: nn.Module, optimizer: torch.optim.Optimizer, methods: Methods, /, *, memory: str | Path, **options: Any
) -> ProtectedLoop: ...
def protect(target: Any, /, *rest: Any, memory: str | Path, **options: Any) -> Any:
    """Protect what a model knows with continual-learning methods while other code trains it.

        protect(trainer, ["das", "ewc"], memory="memory/").train()

        with protect(model, optimizer, ["ewc"], memory="memory/", data=data, collate=collate) as protected:
            for batch in DataLoader(protected.data, 8, shuffle=True, collate_fn=collate):
                protected.loss(batch).backward()
                optimizer.step()
                optimizer.zero_grad()

    Model, data, collator and loss remain those of the caller. The memory is loaded before the training and written
    after it; the next call with the same folder is the next domain. The training ends with a short report
    (``trainer.protection_report()``, ``protected.report``): what was protected, the values of penalties and masks, the
    folder of the memory and, with `held_out`, how many bits per byte were forgotten on that text.

    Args:
        target: a ``transformers.Trainer`` (TRL's among them), which is changed in place and returned; or a model, with
            its optimizer as the next argument.
        rest: the methods: names, mappings with ``name`` and options, or method objects (after the optimizer, if there
            is one).
        memory: folder of the methods' memory of earlier domains.
        options: ``domain``, a name (numbered by default); ``held_out``, text that is not trained on (texts, a file, or
            several of these by name), which is scored before and after; ``general``, text that the model knows (texts
            or a file), on which methods measure what to protect of it before the first domain. For a Trainer also:
            ``stop``, the bits per byte that held-out text may get worse (a number, or one by name); ``stop_every``, the
            steps between two measurements (50); ``stop_then``, what happens beyond a bound: the training ends with the
            weights of its best step (``"end"``), goes on from there at half the rate (``"lower"``) or only tells
            (``"warn"``); ``stop_notify``, a webhook or a command that is told. For a loop also: ``tokenizer``, which
            text needs; ``data``, the dataset; ``collate``, a function from a list of examples to a batch;
            ``loss(model, batch)``, a scalar (the model's own by default); ``steps`` of the domain; ``batch_size`` for
            measurements; ``seed``; ``resume``, a folder written by ``protected.save_state``.

    Raises:
        MethodError: a method cannot work there; the message says why.
        DataError: a method cannot use the dataset or the batches of the collator.
    """
    if isinstance(target, Trainer) and len(rest) == 1 and set(options) <= OF_A_TRAINER:
        from everlearn.protecting.trainer import protect_trainer

        return protect_trainer(target, _listed(rest[0]), memory, **options)
    if isinstance(target, nn.Module) and len(rest) == 2 and isinstance(rest[0], torch.optim.Optimizer):
        from everlearn.protecting.loop import ProtectedLoop

        if of_trainers := sorted(STOP & set(options)):
            raise MethodError(
                f"`{of_trainers[0]}` works with a Trainer only: a plain loop decides itself when it ends."
            )
        return ProtectedLoop(target, rest[0], _listed(rest[1]), memory, **options)
    raise MethodError(
        "`protect` takes a Trainer and methods, or a model, its optimizer and methods: protect(trainer, ['das'], "
        "memory='memory/') or protect(model, optimizer, ['das'], memory='memory/', data=…, collate=…)."
    )


def _listed(methods: Any) -> Methods:
    if isinstance(methods, str | Mapping | Method):
        return [methods]
    return list(methods)
