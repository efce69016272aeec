"""Substitute other tensors for the parameters of a module during a forward pass.

An attribute of an object is found before ``nn.Module`` looks for a parameter of that name. So a tensor that is set as
an attribute is what the module's own ``forward`` reads, while parameters, ``state_dict``, optimizer, DDP and FSDP2 see
no change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from torch import Tensor, nn


def substituted(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that are substituted for parameters now, by the name of the parameter in the module."""
    own = vars(module)
    return {leaf: own[leaf] for leaf in module._parameters if leaf in own}


@contextlib.contextmanager
def substituting(module: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Make the ``forward`` of a module read these tensors instead of its parameters inside the block."""
    before = substituted(module)
    vars(module).update(values)
    try:
        yield
    finally:
        for leaf in values:
            vars(module).pop(leaf, None)
        vars(module).update(before)
