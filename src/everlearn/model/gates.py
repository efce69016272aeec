"""Gates: factors on heads, neurons and outputs, applied by hooks, for all rows or for each row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.pytorch_utils import Conv1D

from everlearn.errors import MethodError
from everlearn.model.anatomy import Site, anatomy, check_units

Values = Mapping[str, Tensor]
Rows = list[tuple[slice, Tensor]]
"""Groups of consecutive rows with factors [units] each; other rows have exactly 1."""
Placed = Mapping[str, Tensor] | Mapping[str, Rows]


class Gates:
    """Multiply the units of a model by gates inside a ``with`` block.

        with Gates(model) as gates:
            gates.set({"layers.0.ffn.neurons": factors})
            model(**inputs)

    Without values the hooks pass activations through unchanged. A layer under gradient checkpointing remembers the
    gates of its forward pass and uses them again when the backward pass recomputes it, even after the block was left.

    Args:
        model: with or without a distributed wrapper: the hooks are on the projections inside.
        sites: which sites may be gated; None for all of them.
    """

    def __init__(self, model: nn.Module, sites: Sequence[Site] | None = None) -> None:
        self._modules = _modules_of(model) if sites is None else _find(model, sites)
        self.sites = tuple(site for site, _ in self._modules)
        self._checkpointed = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False) is True]
        self._values: Placed | None = None
        self._count = 0
        self._depth = 0
        self._undo = contextlib.ExitStack()

    def set(self, values: Values | None) -> None:
        """Use these gates from now on.

        Args:
            values: site name → factors, [units] for all rows or [rows, units] for each row of the pass; other sites
                keep their gates. None switches every gate off. Gates are cast to the type of the activation.

        Raises:
            MethodError: there is no such site, or the number of units is wrong.
        """
        check_units(self.sites, values or {})
        self._values = values or None

    def set_rows(self, parts: Sequence[tuple[int, Values | None]]) -> None:
        """Use these gates for consecutive groups of rows from now on; see :func:`row_gates`."""
        rows: dict[str, Rows] = {}
        start = 0
        for count, values in parts:
            check_units(self.sites, values or {})
            for name, gate in (values or {}).items():
                if gate.dim() != 1:
                    raise MethodError(f"Gates of '{name}' must be one factor per unit, not shape {tuple(gate.shape)}.")
                rows.setdefault(name, []).append((slice(start, start + count), gate))
            start += count
        self._values, self._count = rows or None, start

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
        # The output of a linear layer is a new tensor that no backward pass needs, so it may be changed in place.
        fresh = site.where == "output" and type(module) in (nn.Linear, Conv1D)

        def gated(activation: Tensor) -> Tensor | None:
            gate = self._values.get(site.name) if self._values else None
            if gate is None or isinstance(gate, Tensor):
                return None if gate is None else activation * _spread(gate, activation, site)
            return _scale_rows(activation if fresh else activation.clone(), gate, site, self._count)

        def on_input(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            replaced = gated(args[0])
            return None if replaced is None else (replaced, *args[1:])

        def on_output(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor | None:
            return gated(output)

        if site.where == "input":
            return module.register_forward_pre_hook(on_input)
        return module.register_forward_hook(on_output)

    def _remembering(self, checkpoint: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a checkpoint function so that recomputed segments use the gates of their forward pass."""

        def checkpoint_with_gates(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            values = self._values, self._count

            def segment(*inputs: Any, **options: Any) -> Any:
                with self._as_they_were(values):
                    return function(*inputs, **options)

            return checkpoint(segment, *args, **kwargs)

        return checkpoint_with_gates

    @contextlib.contextmanager
    def _as_they_were(self, values: tuple[Placed | None, int]) -> Iterator[None]:
        with self:
            now = self._values, self._count
            self._values, self._count = values
            try:
                yield
            finally:
                self._values, self._count = now


_KNOWN: WeakKeyDictionary[nn.Module, list[tuple[Site, nn.Module]]] = WeakKeyDictionary()


def _modules_of(model: nn.Module) -> list[tuple[Site, nn.Module]]:
    """Return every site with its module; cached until a module is replaced.

    The lookup costs more than applying the gates, and the contrastive loss gates at each step.
    """
    known = _KNOWN.get(model)
    if known is None or any(_at(model, site.module) is not module for site, module in known):
        known = _KNOWN[model] = _find(model, anatomy(model).sites)
    return known


def _find(model: nn.Module, sites: Sequence[Site]) -> list[tuple[Site, nn.Module]]:
    return [(site, model.get_submodule(site.module)) for site in sites]


def _at(model: nn.Module, path: str) -> nn.Module | None:
    module: Any = model
    for part in path.split("."):
        module = getattr(module, part, None)
    return module


def _spread(gate: Tensor, activation: Tensor, site: Site) -> Tensor:
    """Expand factors, [units] or [rows, units], to the features of an activation, [rows, …, features]."""
    gate = gate.to(activation)
    if site.width > 1:
        gate = gate.repeat_interleave(site.width, -1)
    if gate.dim() == 2 and activation.dim() == 2:
        # A layer that flattens rows and positions (OPT): repeat each row's factors for each of its tokens.
        return gate.repeat_interleave(len(activation) // len(gate), 0)
    return gate if gate.dim() == 1 else gate.view(len(gate), *[1] * (activation.dim() - 2), gate.shape[-1])


def _scale_rows(activation: Tensor, runs: Rows, site: Site, count: int) -> Tensor:
    """Scale some rows of an activation in place, and the same rows of its gradient.

    A product with a gate for every row would read and write all rows, which mostly have 1, in both directions: with
    three plain rows to each gated one that is 4 to 8 % of a training step on a CPU.
    """
    tokens = len(activation) // count if activation.dim() == 2 else 1  # where a layer flattens rows and positions
    factors = [(slice(rows.start * tokens, rows.stop * tokens), _spread(gate, activation, site)) for rows, gate in runs]
    # Through `data`, because autograd would replace an in-place change of a part by copies of the whole tensor.
    for rows, factor in factors:
        activation.data[rows].mul_(factor)

    def scale(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()  # it may be another tensor's gradient too
        for rows, factor in factors:
            gradient[rows].mul_(factor)
        return gradient

    if activation.requires_grad:
        activation.register_hook(scale)
    return activation


@contextlib.contextmanager
def row_gates(model: nn.Module, parts: Sequence[tuple[int, Values | None]]) -> Iterator[None]:
    """Gate some rows of a forward pass and leave the others exactly as they are.

    The gates are constants: no gradient reaches them.

    Args:
        model: the model, wrapped or not.
        parts: for each group of consecutive rows: the number of rows, and factors [units] by site (exactly 1 for None
            or a site that is not named).

    Raises:
        MethodError: there is no such site, or the number of units is wrong.
    """
    with Gates(model) as gates:
        gates.set_rows(parts)
        yield
