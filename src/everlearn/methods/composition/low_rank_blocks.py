"""Low-rank blocks of several domains beside linear layers, mixed by the weights of a text.

PEFT's LoRA is not used: it has one adapter per row, or the sum of several, but no trained weights that differ between
rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everlearn.errors import ModelError
from everlearn.methods.composition.composed import Learnt, Modules
from everlearn.methods.engine.attachment import frozen
from everlearn.model.lora_targets import Targets, sizes_of, targets_of
from everlearn.model.structure import architecture_of


def places_for_blocks(model: nn.Module, targets: Targets) -> list[str]:
    """Return the paths of the layers that get blocks.

    Raises:
        ModelError: there is none; or the model is recurrent, while the weights are computed for all tokens at once.
    """
    if any(stack.recurrent for stack in architecture_of(model).stacks):
        raise ModelError(
            f"'{type(model).__name__}' reads one token at a time, so its layers cannot get blocks that are mixed for "
            "each token. Choose another `model.path`, or another method."
        )
    return targets_of(model, targets)


OWN = "own"
"""Name of the trained block, as PEFT names adapters."""


class LowRankBlocks(Modules):
    """y ← y + s Σ_i w_i B_i A_i x at some linear layers.

    Args:
        model: the model whose layers get blocks; it may be on the meta device.
        targets: the layers.
        r: rank of a block.
        scale: s.
        dropout: dropout on x.
        earlier: the learnt blocks of domains 1 to t−1.
    """

    def __init__(
        self, model: nn.Module, targets: Targets, r: int, scale: float, dropout: float, earlier: Sequence[Learnt]
    ) -> None:
        super().__init__()
        self.paths = places_for_blocks(model, targets)
        self.layers = nn.ModuleList(
            LayerBlocks(*sizes_of(model.get_submodule(path)), r, scale, dropout, _matrices(earlier, number))
            for number, path in enumerate(self.paths)
        )

    def place(self, model: nn.Module) -> None:
        for path, layer in zip(self.paths, self.layers, strict=True):
            model.get_submodule(path).register_forward_hook(layer.hook)  # type: ignore[arg-type]

    def low_rank(self) -> dict[str, str]:
        return {path: f"layers.{number}" for number, path in enumerate(self.paths)}

    def mix(self, weights: Tensor | None) -> None:
        for layer in self.layers:
            layer.weights = weights  # type: ignore[assignment]


class LayerBlocks(nn.Module):
    """The blocks of one layer: A [r, d_in] and B [d_out, r] are trained, those of earlier domains are frozen.

    The trained matrices have PEFT's names, and the output of this module is that of the complete layer, as code that
    observes low-rank matrices expects (the masks of MIGU).
    """

    def __init__(
        self, inputs: int, outputs: int, r: int, scale: float, dropout: float, earlier: Sequence[tuple[Tensor, Tensor]]
    ) -> None:
        super().__init__()
        a, b = torch.empty(r, inputs), torch.zeros(outputs, r)
        nn.init.kaiming_uniform_(a, a=math.sqrt(5))
        self.lora_A, self.lora_B = nn.ModuleDict({OWN: LowRankMatrix(a)}), nn.ModuleDict({OWN: LowRankMatrix(b)})
        self.before_a, self.before_b = frozen(a for a, _ in earlier), frozen(b for _, b in earlier)
        self.scale, self.dropout, self.out_features = scale, nn.Dropout(dropout), outputs
        self.weights: Tensor | None = None

    def hook(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Add the blocks to the output of the layer; a forward hook."""
        return None if self.weights is None else self(inputs[0], output)

    def forward(self, x: Tensor, output: Tensor) -> Tensor:
        """Return y + s Σ_i w_i B_i A_i x."""
        a, b, weights = self.lora_A[OWN], self.lora_B[OWN], cast(Tensor, self.weights)
        x = self.dropout(x.to(cast(LowRankMatrix, a).weight.dtype))
        seen: Tensor = a(x)
        own: Tensor = b(seen * weights[..., -1:].to(seen.dtype))
        if len(self.before_a):
            seen = F.linear(x, torch.cat(list(self.before_a))).unflatten(-1, (len(self.before_a), -1))
            mixed = (seen * weights[..., :-1, None].to(seen.dtype)).flatten(-2)
            own = own + F.linear(mixed, torch.cat(list(self.before_b), 1))
        return output + self.scale * own.to(output.dtype)


class LowRankMatrix(nn.Module):
    """x ↦ W x, W [d_out, d_in]; a linear layer with given initial weights, which draws no random numbers."""

    bias = None

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight, self.out_features = nn.Parameter(weight), len(weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def _matrices(earlier: Sequence[Learnt], layer: int) -> list[tuple[Tensor, Tensor]]:
    """Return A and B of the earlier domains."""
    a, b = (f"layers.{layer}.lora_{side}.{OWN}.weight" for side in "AB")
    return [(learnt[a], learnt[b]) for learnt in earlier]
