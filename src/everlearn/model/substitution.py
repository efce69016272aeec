"""Other tensors in the place of a module's parameters for the time of a pass.

An attribute of an object is found before ``nn.Module`` looks for a parameter of that name. So a tensor laid there is
what the module's own ``forward`` reads, while parameters, ``state_dict``, optimizer, DDP and FSDP2 see no change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from torch import Tensor, nn


def substituted(module: nn.Module) -> dict[str, Tensor]:
    """What stands in the place of parameters just now, by the parameter's name in the module."""
    own = vars(module)
    return {leaf: own[leaf] for leaf in module._parameters if leaf in own}


@contextlib.contextmanager
def substituting(module: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside, the module's ``forward`` reads these tensors instead of its parameters of those names."""
    before = substituted(module)
    vars(module).update(values)
    try:
        yield
    finally:
        for leaf in values:
            vars(module).pop(leaf, None)
        vars(module).update(before)
