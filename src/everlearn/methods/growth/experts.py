"""Experts in place of the feed-forward networks of a model: more with each domain, all but the last frozen."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.adapters.bottleneck import feed_forward_outputs
from everlearn.methods.adapters.moe_lora import START, gates_of
from everlearn.methods.engine.attachment import Attachment
from everlearn.model.structure import architecture_of

TOKENS_TO = 64
"""An expert reads a multiple of this number of tokens, because a CPU compiles and caches every new matrix shape."""


def feed_forward_networks(model: nn.Module, label: str) -> list[str]:
    """Return the paths of the feed-forward networks, from the first layer to the last.

    Args:
        model: a plain model.
        label: label of the method, for the error message.

    Raises:
        MethodError: they are not separate modules in this architecture (BERT's include the residual sum).
    """
    for stack in architecture_of(model).stacks:
        block = stack.feed_forward
        network = "" if block is None or stack.more else block.output.rpartition(".")[0]
        if block is None or not network or not all(path.startswith(f"{network}.") for path in block.inputs):
            raise MethodError(
                f"Method '{label}' adds experts to each feed-forward network, which is not a separate module in "
                f"'{type(model).__name__}'. Choose a model like GPT-2, GPT-NeoX or Llama, T5, DistilBERT or ModernBERT "
                "(`model.path`), or 'moe_lora'."
            )
    return [site.module.rpartition(".")[0] for site in feed_forward_outputs(model)]


class ExpertLayer(nn.Module):
    """y = Σ_{e ∈ top-k} g_e E_e(x),   p = softmax([0, W_1 x, …, W_t x]),   g_e = p_e / Σ_{top-k} p.

    E_0 is the original feed-forward network, whose score is 0: only differences of scores matter. W_j has a row for
    each expert of domain j. The experts and rows of the last domain are trained.

    Args:
        network: E_0, of which new experts are copies.
        features: size of x.
        domains: t.
        experts: number of experts per domain.
        top_k: number of experts per token; all if there are fewer.
    """

    def __init__(self, network: nn.Module, features: int, domains: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(copy.deepcopy(network) for _ in range(domains * experts))
        self.gates = nn.ParameterList(
            nn.init.normal_(torch.empty(experts, features), std=START) for _ in range(domains)
        )
        self.top_k = min(top_k, 1 + len(self.experts))
        self.requires_grad_(False)
        self.experts[-experts:].requires_grad_(True)
        self.gates[-1].requires_grad_(True)

    def hook(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """Return the mixture in place of the output of E_0, [..., H]; a forward hook of E_0."""
        tokens = inputs[0].flatten(0, -2)
        scores = F.linear(tokens, torch.cat([*self.gates]).to(tokens.dtype)).float()
        gates, _ = gates_of(F.pad(scores, (1, 0)).softmax(-1), self.top_k)
        gates = gates.to(output.dtype)
        mixed = output.flatten(0, -2) * gates[:, :1]
        counts = (gates[:, 1:] > 0).sum(0).tolist()  # together, to synchronise with the device only once
        for gate, count, expert in zip(gates[:, 1:].unbind(1), counts, self.experts, strict=True):
            routed = _routed(gate, count)
            changes = expert(tokens[routed]) * gate[routed, None]
            mixed = mixed.index_add(0, routed, changes.to(mixed.dtype))
        return mixed.view_as(output)


def _routed(gate: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` tokens with a gate, and of others up to the next multiple of `TOKENS_TO`.

    At least one multiple is read, so that every expert takes part in the backward pass, as DDP requires.
    """
    rounded = -(-max(1, count) // TOKENS_TO) * TOKENS_TO
    return (gate > 0).to(torch.int8).argsort(descending=True, stable=True)[:rounded]


class GrowingExperts(Attachment):
    """The experts of all domains so far: an :class:`ExpertLayer` for each feed-forward network, given by its path."""

    def __init__(self, model: nn.Module, networks: list[str], domains: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.networks = networks
        sizes = [site.units for site in feed_forward_outputs(model)]
        self.layers = nn.ModuleList(
            ExpertLayer(model.get_submodule(path), size, domains, experts, top_k)
            for path, size in zip(networks, sizes, strict=True)
        )

    def place(self, model: nn.Module) -> None:
        for path, layer in zip(self.networks, self.layers, strict=True):
            model.get_submodule(path).register_forward_hook(layer.hook)  # type: ignore[arg-type]

    def attach(self, model: nn.Module, name: str, *, freeze: bool = False) -> None:
        """Attach the experts; the original feed-forward networks, the first experts, are always frozen."""
        super().attach(model, name, freeze=freeze)
        own = {f"{path}.{key}": p for path in self.networks for key, p in model.get_submodule(path).named_parameters()}
        held = {key: parameter for key, parameter in own.items() if parameter.requires_grad}
        for parameter in held.values():
            parameter.requires_grad_(False)
        self.frozen = (*self.frozen, *held)
