"""Common parts of methods that mix modules of domains: saving and loading modules, and selecting those of a text."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.base import Method, Reading, Setting
from everlearn.methods.composition.composed import Learnt
from everlearn.model.anatomy import kind_of


def learnt_by(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of all trained parameters of a module."""
    return {name: value.detach().cpu().clone() for name, value in module.named_parameters() if value.requires_grad}


def fill(module: nn.Module, learnt: Learnt, method: Method) -> None:
    """Load into a module what :func:`learnt_by` copied.

    Raises:
        MethodError: it belongs to another model or to other options.
    """
    own = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in learnt.items():
            if name not in own or own[name].shape != value.shape:
                raise MethodError(
                    f"Method '{method.label}' remembers '{name}' with shape {tuple(value.shape)}, which does not fit "
                    "this model. Its memory belongs to another model or other options of the method."
                )
            own[name].copy_(value)


def known_domains(learnt: Mapping[str, Learnt], reading: Reading, *, own: bool) -> list[str]:
    """Return the domains whose modules read a text: all, or with `own` those up to its own (none if not learnt)."""
    known = list(learnt)
    if not own:
        return known
    return [] if reading.domain not in learnt else known[: known.index(str(reading.domain)) + 1]


def check_rows(method: Method, setting: Setting) -> None:
    """Raise ``MethodError`` if the rows of an encoder hold several documents that must be isolated from each other."""
    if kind_of(setting.model) == "encoder" and setting.objective.isolate:
        raise MethodError(
            f"Method '{method.label}' weighs its modules for a row as a whole, which would tell the documents packed "
            "into it of each other. Set `data.isolate_documents: false`."
        )
