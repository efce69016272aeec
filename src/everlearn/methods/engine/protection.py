"""Methods at work: what a list of methods does to a step, for our trainer, another Trainer or a plain loop.

```python
protection = Protection([DAS(), Replay()], stage)
for batch in batches:
    loss, parts = protection.loss(model, batch)
    loss.backward()
    protection.mask_gradients()
    with protection.update():
        optimizer.step()
    optimizer.zero_grad()
```
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import TrainerCallback

from everlearn.errors import MethodError
from everlearn.methods.base import ApplyTo, Mask, Method, Setting, Stage
from everlearn.model.objectives import Outputs


def check_methods(methods: Sequence[Method], setting: Setting) -> None:
    """Refuse, before anything is trained, methods that do not fit the setting or each other.

    Raises:
        MethodError: the sentence names the method and what it does not work with.
    """
    for method in methods:
        labels = [f"'{other.label}'" for other in methods if other.name == method.name]
        if len(labels) > 1:
            raise MethodError(
                f"Method '{method.name}' is listed {len(labels)} times (`method`: {', '.join(labels)}). List it once."
            )
    for method in methods:
        method.check(setting)


class Protection:
    """A list of methods applied to the training of one stage.

    Args:
        methods: in order; masks multiply, losses add, views are run in one pass.
        stage: what the methods see.
        parameters: the model's parameters by name as the optimizer holds them; the stage's model when not given
            (FSDP2 keeps the names and shards the values in place).
    """

    def __init__(
        self, methods: Sequence[Method], stage: Stage, parameters: Mapping[str, nn.Parameter] | None = None
    ) -> None:
        self.methods = list(methods)
        self.stage = stage
        self._parameters = parameters
        self._masks: list[tuple[Method, Mask]] = []
        self._local: dict[int, tuple[Mask, list[tuple[nn.Parameter, Tensor]]]] = {}
        self._before: list[tuple[nn.Parameter, Tensor, Tensor]] = []
        for method in self.methods:
            method.begin_training(stage)

    # -- the step ---------------------------------------------------------------------------------------------

    def forward(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Outputs, dict[str, Tensor]]:
        """One forward pass for the batch and every method's views.

        Returns:
            The objective's outputs (without views) and the extra losses by "<method>/<loss>".
        """
        views = [method.views(self.stage, batch) for method in self.methods]
        outputs = self.stage.objective.forward(model, batch, [view for group in views for view in group])
        extra: dict[str, Tensor] = {}
        hidden, losses = iter(outputs.views), iter(outputs.view_losses)
        for method, group in zip(self.methods, views, strict=True):
            own = replace(outputs, views=[next(hidden) for _ in group], view_losses=[next(losses) for _ in group])
            for name, value in method.extra_losses(self.stage, batch, own).items():
                extra[f"{method.name}/{name}"] = value
        return replace(outputs, views=[], view_losses=[]), extra

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The whole loss of a batch, and its parts for the log."""
        outputs, extra = self.forward(model, batch)
        total = outputs.loss
        for value in extra.values():
            total = total + value
        return total, {"loss": outputs.loss.detach(), **{name: value.detach() for name, value in extra.items()}}

    def mask_gradients(self) -> None:
        """After backward, before clipping: ask every method for its mask; apply those that act on gradients."""
        self._masks = [(m, mask) for m in self.methods if (mask := m.mask(self.stage)) is not None]
        for parameter, factor in self._factors("gradient"):
            if parameter.grad is not None:
                local(parameter.grad).mul_(factor)

    def before_update(self) -> None:
        """Before ``optimizer.step()``: keep what the masks will partly restore."""
        held: dict[int, tuple[nn.Parameter, Tensor]] = {}
        for parameter, factor in self._factors("update"):
            previous = held.get(id(parameter))
            held[id(parameter)] = (parameter, factor if previous is None else previous[1] * factor)
        self._before = [(p, factor, local(p).detach().clone()) for p, factor in held.values() if p.requires_grad]

    def after_update(self) -> None:
        """After ``optimizer.step()``: take back the masked part of the update, whatever the optimizer made of it."""
        with torch.no_grad():
            for parameter, factor, old in self._before:
                # lerp is exact at both ends: a factor of 1 gives the new value and 0 the old one, bit for bit.
                torch.lerp(old, local(parameter), factor.expand_as(old), out=local(parameter))
        self._before = []
        for method in self.methods:
            method.after_step(self.stage)

    @contextlib.contextmanager
    def update(self) -> Iterator[None]:
        """Around ``optimizer.step()`` in a plain loop."""
        self.before_update()
        yield
        self.after_update()

    # -- masks ------------------------------------------------------------------------------------------------

    def _factors(self, apply_to: ApplyTo) -> Iterator[tuple[nn.Parameter, Tensor]]:
        for method, mask in self._masks:
            if mask.apply_to == apply_to:
                yield from self._localised(method, mask)

    def _localised(self, method: Method, mask: Mask) -> list[tuple[nn.Parameter, Tensor]]:
        """A mask beside the parameters that it belongs to; a constant mask is placed once."""
        known = self._local.get(id(method))
        if known is not None and known[0] is mask:
            return known[1]
        parameters = self._parameters or dict(self.stage.model.named_parameters())
        placed = []
        for name, factor in mask.factors.items():
            if name not in parameters:
                raise MethodError(f"Method '{method.name}' masks '{name}', which is no parameter of the model.")
            placed.append((parameters[name], shard_like(factor, parameters[name])))
        self._local[id(method)] = (mask, placed)
        return placed


def shard_like(values: Tensor, parameter: Tensor) -> Tensor:
    """`values`, which broadcast to a whole parameter, as this process holds the parameter: its device and its shard."""
    if isinstance(parameter, DTensor):
        whole = values.to(parameter.device).expand(parameter.shape).contiguous()
        shard = distribute_tensor(whole, parameter.device_mesh, parameter.placements).to_local()
        return shard.to(parameter.dtype)
    return values.to(device=parameter.device, dtype=parameter.dtype)


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor, outside autograd."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.data


class ProtectionCallback(TrainerCallback):
    """Lets masks act in somebody else's ``transformers.Trainer``.

    Extra losses need the training step: compute them with :meth:`Protection.loss` in your ``compute_loss``. Gradient
    masks act after clipping here, because that is where the public callback sits; update masks do not care.
    """

    def __init__(self, protection: Protection) -> None:
        self.protection = protection

    def on_pre_optimizer_step(self, *args: object, **kwargs: object) -> None:
        """Mask gradients and keep what an update mask will restore."""
        self.protection.mask_gradients()
        self.protection.before_update()

    def on_optimizer_step(self, *args: object, **kwargs: object) -> None:
        """Take back the masked part of the update."""
        self.protection.after_update()
