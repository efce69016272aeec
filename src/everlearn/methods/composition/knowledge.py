"""Adapters that are small transformers, in chains beside a frozen model (K-Adapter, arXiv 2002.01808, section 3.2).

:class:`Chain` holds the adapters of a domain; :class:`Chains` applies one or several chains to a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everlearn.methods.composition.beside_layers import BesideLayers, layers_read, plain
from everlearn.methods.engine.attachment import computing_like
from everlearn.model.anatomy import kind_of

PROJECTION, INNER = 2e-4, 0.02
"""Standard deviations of initial weights: of the two projections of an adapter, and of its transformer layers (as in
BERT)."""


class KnowledgeLayer(nn.Module):
    """A layer of T: attention and feed-forward network, each with a residual connection and normalisation (as in BERT).

    Args:
        heads: number of attention heads.
        size: features per head; the layer has width heads · size, its feed-forward network four times that.
        dropout: on attention and before each residual sum.
    """

    def __init__(self, heads: int, size: int, dropout: float) -> None:
        super().__init__()
        width = heads * size
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.attended, self.passed = nn.LayerNorm(width), nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INNER)
                nn.init.zeros_(module.bias)

    def forward(self, hidden: Tensor, sees: Tensor) -> Tensor:
        """Apply the layer to [B, S, width] with the attention mask `sees`, [B, 1, S, S]."""
        query, key, value = (
            part(hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, sees, dropout)
        attention = self.output(context.transpose(1, 2).flatten(2))
        hidden = self.attended(hidden + F.dropout(attention, self.dropout, self.training))
        passed = self.outer(F.gelu(self.inner(hidden)))
        normalised: Tensor = self.passed(hidden + F.dropout(passed, self.dropout, self.training))
        return normalised


class KnowledgeAdapter(nn.Module):
    """W_up T(W_down x + b_down) + b_up, which the adapter adds to x.

    Args:
        features: H, the size of x.
        layers: number of layers of T, of the given heads, size and dropout (:class:`KnowledgeLayer`).
    """

    def __init__(self, features: int, heads: int, size: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(features, heads * size), nn.Linear(heads * size, features)
        self.layers = nn.ModuleList(KnowledgeLayer(heads, size, dropout) for _ in range(layers))
        for projection in (self.down, self.up):
            nn.init.normal_(projection.weight, std=PROJECTION)
            nn.init.zeros_(projection.bias)

    def forward(self, hidden: Tensor, sees: Tensor) -> Tensor:
        """Apply the adapter to [B, S, H] with the attention mask `sees`, [B, 1, S, S]."""
        inner = self.down(hidden)
        for layer in self.layers:
            inner = layer(inner, sees)
        added: Tensor = self.up(inner)
        return added


class Chain(nn.Module):
    """The adapters of one domain, and its gate.

    Args:
        adapters: in order of depth, lowest first.
        gated: number of features of H that the gate reads; 0 for no gate.
    """

    def __init__(self, adapters: Sequence[KnowledgeAdapter], gated: int) -> None:
        super().__init__()
        self.adapters = nn.ModuleList(adapters)
        self.gate = nn.Linear(gated, 1) if gated else None
        if self.gate is not None:
            nn.init.zeros_(self.gate.weight)
            nn.init.zeros_(self.gate.bias)

    def forward(self, states: Sequence[Tensor], sees: Tensor) -> tuple[Tensor, Tensor]:
        """Return C_K and C_K − Σ_i H[l_i], [B, S, H] each, for the hidden states at each depth."""
        carried = total = torch.zeros_like(states[0])
        for adapter, state in zip(self.adapters, states, strict=True):
            read = state + carried
            added = adapter(read, sees)
            carried, total = read + added, total + added
        return carried, total

    def change(self, states: Sequence[Tensor], sees: Tensor, last: Tensor) -> Tensor:
        """Return the sum of the adapters' outputs, [B, S, H], times σ(w · H + b) if there is a gate."""
        _, total = self(states, sees)
        return total if self.gate is None else torch.sigmoid(self.gate(last)) * total


class Chains(BesideLayers):
    """The chains of adapters with which a text is read: that of its domain, or all.

    Args:
        chains: at least one.
        depths: the depths of their adapters.
        features: H for a classifier, which reads W [H; C_K; …] + b; 0 for a language model, which reads a sum.
    """

    def __init__(self, chains: Sequence[Chain], depths: Sequence[int], features: int) -> None:
        super().__init__()
        self.chains = nn.ModuleList(chains)
        self.states = nn.ModuleList(HiddenState(depth) for depth in depths)
        self.fused: nn.Linear | None = None
        self.causal = False
        self.sees = torch.empty(0)
        if features:
            self.fused = nn.Linear((1 + len(chains)) * features, features)
            nn.init.zeros_(self.fused.bias)
            with torch.no_grad():
                self.fused.weight.copy_(torch.eye(features, self.fused.in_features))

    def place(self, model: nn.Module) -> None:
        self.causal = kind_of(model) == "decoder"
        for state in self.states:
            state.place(layers_read(model))  # type: ignore[operator]
        super().place(model)

    def read(self, reader: nn.Module, inputs: dict[str, Any], document: Tensor) -> None:
        sees = document[:, :, None] == document[:, None, :]
        self.sees = (sees.tril() if self.causal else sees)[:, None]

    def leave(self, hidden: Tensor) -> Tensor:
        states: list[Any] = [state.hidden for state in self.states]
        with computing_like(hidden):
            if self.fused is not None:
                outputs = [chain(states, self.sees)[0] for chain in self.chains]
                fused: Tensor = self.fused(torch.cat([hidden, *outputs], -1))
                return fused
            changes: list[Any] = [chain.change(states, self.sees, hidden) for chain in self.chains]  # type: ignore[operator]
            return hidden + torch.stack(changes).sum(0)


class HiddenState(nn.Module):
    """Captures H[l] of a pass: the input of layer l + 1, or the output of the last layer.

    Args:
        depth: l.
    """

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth
        self.hidden = torch.empty(0)

    def place(self, layers: nn.ModuleList) -> None:
        if self.depth == len(layers):
            layers[-1].register_forward_hook(self.leaving)
        else:
            layers[self.depth].register_forward_pre_hook(self.entering, with_kwargs=True)

    def entering(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Capture the input of the layer; a forward pre-hook."""
        self.hidden = args[0] if args else kwargs["hidden_states"]

    def leaving(self, layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Capture the output of the layer; a forward hook."""
        self.hidden = plain(output)
