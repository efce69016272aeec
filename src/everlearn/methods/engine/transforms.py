"""Parameter transforms: tensors that a forward pass reads instead of a parameter (Mixout, weight noise, blending)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.base import Transform
from everlearn.methods.stage import Stage
from everlearn.model.parameter_substitution import substituted
from everlearn.seeding import seeded


@dataclass
class _Placed:
    """A transform of one parameter."""

    method: str
    name: str
    function: Transform
    used: bool = False


class Transforms:
    """The transforms of all methods, active in every pass of the model of a stage in training mode.

    A hook before the forward pass of a module substitutes the transformed tensor for the parameter
    (:mod:`everlearn.model.parameter_substitution`), and a hook after it removes it. At that point FSDP2 has gathered
    the parameter; the recomputation of gradient checkpointing draws the same random numbers. Nothing is added to the
    state of the model.

    Args:
        transforms: name of each method and its transforms, in the order in which methods act.
        stage: the stage, whose model is ready for training.
        outside: a module of the model whose parameters may be read without calling it (the head, which TRL fuses with
            the loss): the substitution then lasts as long as the pass of the model.

    Raises:
        MethodError: two methods transform the same parameter, or there is no parameter of a name.
    """

    def __init__(
        self, transforms: Sequence[tuple[str, Mapping[str, Transform]]], stage: Stage, outside: nn.Module | None = None
    ) -> None:
        self._stage, self._outside = stage, outside
        self._placed: dict[str, _Placed] = {}
        self._hooks = ExitStack()
        for method, functions in transforms:
            for name, function in functions.items():
                if name in self._placed:
                    other = self._placed[name].method
                    raise MethodError(
                        f"Methods '{other}' and '{method}' both transform parameter '{name}'. Remove one of them."
                    )
                self._placed[name] = _Placed(method, name, function)
        if self._placed:
            self._place()

    def _place(self) -> None:
        parameters = dict(self._stage.model.named_parameters())
        for placed in self._placed.values():
            if placed.name not in parameters:
                raise MethodError(f"Method '{placed.method}' transforms '{placed.name}', which is not a parameter.")
        of = {id(parameters[name]): placed for name, placed in self._placed.items()}
        for module in self._stage.model.modules():
            # A tied parameter has several holders; each reads the same draw.
            own = {leaf: of[id(p)] for leaf, p in module._parameters.items() if id(p) in of}
            if own:
                called = self._stage.model if module is self._outside else module
                restore = functools.partial(_restore, module, tuple(own))
                self._hooks.callback(restore)  # after the hooks are removed: a pass may be interrupted (Ctrl-C)
                self._hooks.enter_context(called.register_forward_pre_hook(self._substitution(module, own)))
                self._hooks.enter_context(called.register_forward_hook(restore, always_call=True))

    def _substitution(self, module: nn.Module, own: Mapping[str, _Placed]) -> Callable[..., None]:
        def substitute(*_: Any) -> None:
            if module.training:
                for leaf, placed in own.items():
                    vars(module)[leaf] = self._transformed(placed, module._parameters[leaf])  # type: ignore[arg-type]

        return substitute

    def _transformed(self, placed: _Placed, parameter: Tensor) -> Tensor:
        placed.used, stage = True, self._stage
        with seeded(stage.seed, stage.index, "transform", stage.step, placed.method, placed.name):
            value = placed.function(parameter)
        if value.shape != parameter.shape:
            raise MethodError(
                f"Method '{placed.method}' transforms parameter '{placed.name}' with shape {tuple(parameter.shape)} to "
                f"shape {tuple(value.shape)}; the shape must not change."
            )
        return value

    def check_used(self) -> None:
        """Check after the first step that every transform was applied.

        Raises:
            MethodError: one was not, because another module than its owner reads the parameter.
        """
        for placed in self._placed.values():
            if not placed.used:
                raise MethodError(
                    f"Method '{placed.method}' transforms '{placed.name}', which is not read by the module that owns "
                    "it. Leave it out."
                )

    def remove(self) -> None:
        """Remove all hooks from the model."""
        self._hooks.close()
        self._placed.clear()


def _restore(module: nn.Module, leaves: tuple[str, ...], *_: Any) -> None:
    for leaf in substituted(module).keys() & set(leaves):
        del vars(module)[leaf]
