"""Methods in a plain PyTorch loop with the caller's model, data and loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError, RunError
from everlearn.methods.base import Method
from everlearn.methods.engine.processes import processes, rank
from everlearn.methods.engine.protection import overrides
from everlearn.model.vocabulary_head import unwrap
from everlearn.protecting.domain import ProtectedDomain, scaled_sum
from everlearn.protecting.external_data import Collator
from everlearn.protecting.held_out import HeldOutTexts, OneText, held_out_texts
from everlearn.protecting.report import ProtectionReport

Loss = Callable[[nn.Module, dict[str, Any]], Tensor]


def own_loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    """Return the loss that a transformers model computes from labels."""
    loss: Tensor = model(**batch).loss
    return loss


class ProtectedLoop:
    """A context manager for one domain in a plain loop: take batches from :attr:`data` and losses from :meth:`loss`.

    Masks are applied by hooks of ``optimizer.step()``, so that a loop cannot forget them.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        methods: Sequence[str | Mapping[str, Any] | Method],
        memory: str | Path,
        *,
        data: Any,
        collate: Collator,
        loss: Loss = own_loss,
        steps: int = 0,
        batch_size: int = 8,
        domain: str | None = None,
        seed: int = 0,
        resume: str | Path | None = None,
        held_out: HeldOutTexts | None = None,
        general: OneText | None = None,
        tokenizer: Any = None,
    ) -> None:
        self._model, self._optimizer, self._loss, self._resume = model, optimizer, loss, resume
        self._domain = ProtectedDomain(
            unwrap(model),
            methods,
            memory,
            dataset=data,
            collator=collate,
            tokenizer=tokenizer,
            domain=domain,
            batch_size=batch_size,
            rows_per_step=batch_size * processes(),
            steps=steps,
            seed=seed,
            held_out=held_out_texts(held_out, model, tokenizer),
            general=general,
        )
        for method in self._domain.protection.methods:
            if overrides(method, "schedule"):
                raise MethodError(
                    f"Method '{method.label}' chooses the learning rate's schedule, which a plain loop steps itself. "
                    "Use it in a Trainer, or with `everlearn run`."
                )
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        missing = [name for name, p in unwrap(model).named_parameters() if p.requires_grad and id(p) not in known]
        if missing:
            raise MethodError(
                f"The optimizer does not hold '{missing[0]}', which is trainable: it was made for another model, or "
                "before the model was changed. Make it of the model's parameters, or freeze what is not trained."
            )
        self._handles: list[Any] = []
        self._data: Any = None
        self._taken = self._ready = False
        self._computed = 0
        self.parts: dict[str, Tensor] = {}
        """The methods' losses in the last :meth:`loss`, for a log."""
        self.own: Tensor | None = None
        """The loop's own loss in the last :meth:`loss`, without them, for a log."""

    @property
    def data(self) -> Any:
        """The dataset to train on: the original, or a list with old examples mixed in.

        Raises:
            RunError: the ``with`` block has not begun.
        """
        self._inside("data")
        self._taken = True
        return self._data

    def loss(self, batch: dict[str, Any]) -> Tensor:
        """Return the loop's own loss on a batch plus the losses of all methods; call ``backward`` on it.

        Under gradient accumulation, divide it like your own.

        Args:
            batch: a batch from the collator, on the device of the model.
        """
        self._inside("loss")
        if not self._taken and self._data is not self._domain.examples.dataset:
            raise RunError("A method mixes other examples in: train on `protected.data`, not on your own dataset.")
        if self._ready:  # clipped and not stepped: a gradient scaler has skipped the step
            self._computed, self._ready = 0, False
        read = self._domain.read(batch)
        own, extra = self._domain.beside(self._model, read, lambda: self._loss(self._model, batch))
        self.own, self.parts = own.detach(), {name: value.detach() for name, value in extra.items()}
        self._computed += 1
        return own + scaled_sum(extra, own)

    def clip(self, max_norm: float) -> Tensor:
        """Clip the gradients after the methods have changed them; use it in place of ``clip_grad_norm_``."""
        self._act()
        return torch.nn.utils.clip_grad_norm_(self._model.parameters(), max_norm)

    def save_state(self, folder: str | Path) -> None:
        """Save the state of the methods beside your own checkpoint, for ``protect(…, resume=folder)``."""
        self._inside("save_state")
        if rank() == 0:
            self._domain.save_state(Path(folder))

    def __enter__(self) -> ProtectedLoop:
        if self._domain.begun:
            raise RunError("This domain has begun already. For the next one call `protect` again.")
        if self._resume is not None:
            self._domain.load_state(Path(self._resume))
        self._data = self._domain.begin()
        chosen = self._domain.protection.optimizer(self._optimizer)
        if chosen is not self._optimizer:
            raise MethodError(
                "A method replaces the optimizer, which a plain loop holds itself. Use it in a Trainer, or with "
                "`everlearn run`."
            )
        self._handles = [
            self._optimizer.register_step_pre_hook(self._before),
            self._optimizer.register_step_post_hook(self._after),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if kind is not None:
            self._domain.abandon()
            return
        if not self._domain.stage.step:
            self._domain.abandon()
            raise RunError(
                "The optimizer that `protect` was given has made no step, so nothing was learnt that is worth "
                "remembering. Step with that one, inside the `with` block."
            )
        self._domain.finish(rank() == 0)
        if processes() > 1:
            torch.distributed.barrier()

    @property
    def report(self) -> ProtectionReport:
        """The report of the domain, available after the ``with`` block: print it, or use its ``to_dict()``."""
        return self._domain.report

    def _inside(self, what: str) -> None:
        if not self._handles:
            raise RunError(f"`protected.{what}` belongs inside `with protect(…) as protected:`.")

    def _act(self) -> None:
        if not self._computed:
            raise RunError(
                "The optimizer steps without a loss of `protected.loss(batch)` since its last step, so the methods had "
                "no part in it. Take the loss from there."
            )
        if not self._ready:
            self._domain.protection.after_backward()
        self._ready = True

    def _before(self, *_: Any) -> None:
        self._act()
        self._domain.protection.before_update()

    def _after(self, *_: Any) -> None:
        self._domain.protection.after_update()
        self._computed, self._ready = 0, False
