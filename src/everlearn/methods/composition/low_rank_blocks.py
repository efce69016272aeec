"""Low-rank blocks of several domains beside linear layers, mixed by a text's weights.

PEFT's LoRA is not used: it has one adapter for a row, or the sum of several, but no weights that differ from row to row
and that are trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everlearn.errors import ModelError
from everlearn.methods.composition.composed import Learnt, Modules
from everlearn.methods.engine.attachment import frozen
from everlearn.model.architectures import architecture_of
from everlearn.model.objectives import config_of
from everlearn.model.targets import Targets, sizes_of, targets_of


def places_for_blocks(model: nn.Module, targets: Targets) -> list[str]:
    """Paths of the layers that get blocks.

    Raises:
        ModelError: there is none; or they see one token at a time, and the weights are of all tokens.
    """
    if any(stack.recurrent for stack in architecture_of(config_of(model).model_type).stacks):
        raise ModelError(
            f"'{type(model).__name__}' reads one token at a time, so blocks that are mixed for each token cannot stand "
            "beside its layers. Choose another `model.path`, or another method."
        )
    return targets_of(model, targets)


class LowRankBlocks(Modules):
    """y ← y + s Σ_i w_i B_i A_i x at each of some linear layers.

    Args:
        model: whose layers get blocks; it may be on the meta device.
        targets: which layers.
        r: rank of a block.
        scale: s.
        dropout: on x.
        earlier: what domains 1 to t−1 have learnt.
    """

    def __init__(
        self, model: nn.Module, targets: Targets, r: int, scale: float, dropout: float, earlier: Sequence[Learnt]
    ) -> None:
        super().__init__()
        self.paths = places_for_blocks(model, targets)
        self.layers = nn.ModuleList(
            LayerBlocks(*sizes_of(model.get_submodule(path)), r, scale, dropout, [_of(one, number) for one in earlier])
            for number, path in enumerate(self.paths)
        )

    def place(self, model: nn.Module) -> None:
        for path, layer in zip(self.paths, self.layers, strict=True):
            model.get_submodule(path).register_forward_hook(layer.hook)  # type: ignore[arg-type]

    def mix(self, weights: Tensor | None) -> None:
        for layer in self.layers:
            layer.weights = weights  # type: ignore[assignment]


class LayerBlocks(nn.Module):
    """The blocks of one layer: A [r, d_in] and B [d_out, r] are trained, those of earlier domains stand beside them."""

    def __init__(
        self, inputs: int, outputs: int, r: int, scale: float, dropout: float, earlier: Sequence[tuple[Tensor, Tensor]]
    ) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.empty(r, inputs)), nn.Parameter(torch.zeros(outputs, r))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        self.before_a, self.before_b = frozen(a for a, _ in earlier), frozen(b for _, b in earlier)
        self.scale, self.dropout = scale, nn.Dropout(dropout)
        self.weights: Tensor | None = None

    def hook(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Forward hook of the layer."""
        if self.weights is None:
            return None
        x = self.dropout(inputs[0].to(self.a.dtype))
        seen = F.linear(x, torch.cat([*self.before_a, self.a])).unflatten(-1, (self.weights.shape[-1], -1))
        mixed = (seen * self.weights[..., None].to(seen.dtype)).flatten(-2)
        added = F.linear(mixed, torch.cat([*self.before_b, self.b], 1))
        return output + self.scale * added.to(output.dtype)


def _of(learnt: Learnt, layer: int) -> tuple[Tensor, Tensor]:
    return learnt[f"layers.{layer}.a"], learnt[f"layers.{layer}.b"]
