"""Gates: factors on heads, neurons and outputs, put in place by hooks and different for each row if need be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from everlearn.anatomy import Site, anatomy, check_units
from everlearn.errors import MethodError

Values = Mapping[str, Tensor]


class Gates:
    """Multiplies the units of a model by gates while it is entered.

        with Gates(model) as gates:
            gates.set({"layers.0.ffn.neurons": factors})
            model(**inputs)

    Without values the hooks hand activations on untouched. A layer under gradient checkpointing remembers the gates
    of its forward pass and sees them again when the backward pass recomputes it, even after the context was left.

    Args:
        model: without a distributed wrapper, or with one: the hooks sit on the projections inside.
        sites: which sites may be gated; None for all of them.
    """

    def __init__(self, model: nn.Module, sites: Sequence[Site] | None = None) -> None:
        self.sites = tuple(anatomy(model).sites if sites is None else sites)
        self._modules = [(site, model.get_submodule(site.module)) for site in self.sites]
        self._checkpointed = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False) is True]
        self._values: Values | None = None
        self._depth = 0
        self._undo = contextlib.ExitStack()

    def set(self, values: Values | None) -> None:
        """Take these gates from now on.

        Args:
            values: site name to factors, [units] for all rows or [rows, units] for each row of the pass; sites that
                are not named stay as they are. None switches every gate off. Gates are cast to the activation's type.

        Raises:
            MethodError: no such site, or the wrong number of units.
        """
        check_units(self.sites, values or {})
        self._values = values or None

    def __enter__(self) -> Gates:
        self._depth += 1
        if self._depth == 1:
            for site, module in self._modules:
                self._undo.callback(self._hook(site, module).remove)
            for module in self._checkpointed:
                checkpoint: Any = module._gradient_checkpointing_func
                module._gradient_checkpointing_func = self._remembering(checkpoint)  # type: ignore[assignment]
                self._undo.callback(setattr, module, "_gradient_checkpointing_func", checkpoint)
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._undo.close()
            self._values = None

    def _hook(self, site: Site, module: nn.Module) -> RemovableHandle:
        def on_input(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            gate = self._values.get(site.name) if self._values else None
            return None if gate is None else (_multiply(args[0], gate, site), *args[1:])

        def on_output(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor | None:
            gate = self._values.get(site.name) if self._values else None
            return None if gate is None else _multiply(output, gate, site)

        if site.where == "input":
            return module.register_forward_pre_hook(on_input)
        return module.register_forward_hook(on_output)

    def _remembering(self, checkpoint: Callable[..., Any]) -> Callable[..., Any]:
        """A checkpoint function whose segments carry their gates with them."""

        def checkpoint_with_gates(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            values = self._values

            def segment(*inputs: Any, **options: Any) -> Any:
                with self._as_they_were(values):
                    return function(*inputs, **options)

            return checkpoint(segment, *args, **kwargs)

        return checkpoint_with_gates

    @contextlib.contextmanager
    def _as_they_were(self, values: Values | None) -> Iterator[None]:
        with self:
            now, self._values = self._values, values
            try:
                yield
            finally:
                self._values = now


def _multiply(activation: Tensor, gate: Tensor, site: Site) -> Tensor:
    gate = gate.to(activation)
    if gate.dim() == 2:  # [rows, units] against [rows, …, features]
        gate = gate.view(len(gate), *[1] * (activation.dim() - 2), site.units)
    if site.width == 1:
        return activation * gate
    return (activation.unflatten(-1, (site.units, site.width)) * gate.unsqueeze(-1)).flatten(-2)


@contextlib.contextmanager
def row_gates(model: nn.Module, parts: Sequence[tuple[int, Values | None]]) -> Iterator[None]:
    """Gate some rows of a forward pass and leave the others exactly as they are.

    Args:
        model: the model, unwrapped or not.
        parts: for each run of rows, in order: how many, and factors [units] by site (None or a site that is not named:
            exactly 1).

    Raises:
        MethodError: no such site, or the wrong number of units.
    """
    with Gates(model) as gates:
        named = {name for _, values in parts if values for name in values}
        units = {site.name: site.units for site in gates.sites}
        for _, values in parts:
            check_units(gates.sites, values or {})
        rows: dict[str, Tensor] = {}
        for name in sorted(named):
            like = next(values[name] for _, values in parts if values and name in values)
            if like.dim() != 1:
                raise MethodError(f"Gates of '{name}' must be one factor per unit, not of shape {tuple(like.shape)}.")
            one = torch.ones_like(like, dtype=torch.float32)
            blocks = [
                (values[name].float() if values and name in values else one).expand(count, units[name])
                for count, values in parts
            ]
            rows[name] = torch.cat(blocks)
        gates.set(rows)
        yield
