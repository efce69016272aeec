"""Parameters that a recipe leaves untrained (`model.frozen`)."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from everlearn.errors import ModelError, did_you_mean
from everlearn.model.depth import places
from everlearn.model.structure import architecture_of


def frozen_parameters(model: nn.Module, patterns: Sequence[str]) -> list[nn.Parameter]:
    """Return the parameters that match some patterns; a parameter that two modules share is frozen in both.

    Args:
        model: the model, before any method adds modules to it.
        patterns: names with wildcards (``*.bias``), or layers as `everlearn analyse` names them: ``embeddings``,
            ``layers.0``, ``head``, ``other``.

    Raises:
        ModelError: a pattern matches nothing, or nothing is left to train.
    """
    parameters = dict(model.named_parameters())
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    where = places(shapes, architecture_of(model)) if patterns else {}
    frozen: dict[str, nn.Parameter] = {}
    for pattern in patterns:
        own = {name: p for name, p in parameters.items() if fnmatchcase(name, pattern) or where[name][0] == pattern}
        if not own:
            layers = dict.fromkeys(layer for layer, _ in where.values())
            near = did_you_mean(pattern, [*layers, *parameters])
            raise ModelError(
                f"`model.frozen` names '{pattern}', which is no layer and no parameter of the model."
                f"{near if near.startswith(' Did') else did_you_mean(pattern, layers)}"
            )
        frozen |= own
    if len(frozen) == len(parameters):
        raise ModelError(f"`model.frozen` leaves nothing to train: {', '.join(patterns)}. Leave one of them out.")
    return list(frozen.values())
