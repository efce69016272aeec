"""Experts in place of the feed-forward networks of a model: more with each domain, all but the last frozen."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

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


class Network(NamedTuple):
    """Paths of the first and the last module of a feed-forward network; the same path if it is one module."""

    first: str
    last: str

    def parts(self, model: nn.Module) -> list[nn.Module]:
        """Return its modules, in the order in which they compute."""
        return [model.get_submodule(path) for path in dict.fromkeys(self)]

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Return its parameters by their names in the model."""
        paths = zip(dict.fromkeys(self), self.parts(model), strict=True)
        return {f"{path}.{key}": value for path, module in paths for key, value in module.named_parameters()}


def feed_forward_networks(model: nn.Module, label: str) -> list[Network]:
    """Return the feed-forward networks, from the first layer to the last.

    That of BERT and its relatives is two modules: `intermediate`, with the activation, and the projection behind it,
    whose module also contains the residual sum.

    Args:
        model: a plain model.
        label: label of the method, for the error message.

    Raises:
        MethodError: they have no modules of their own in this architecture (in BART and OPT, layers compute them).
    """
    networks: list[Network] = []
    for stack in architecture_of(model).stacks:
        block = stack.feed_forward
        first = "" if block is None or stack.more else block.inputs[0].rpartition(".")[0]
        if block is None or not first or not all(path.startswith(f"{first}.") for path in block.inputs):
            raise MethodError(
                f"Method '{label}' adds experts to each feed-forward network, which has no modules of its own in "
                f"'{type(model).__name__}'. Choose a model like BERT, RoBERTa, ModernBERT, GPT-2, GPT-NeoX, Llama or "
                "T5 (`model.path`), or 'moe_lora'."
            )
        for site in feed_forward_outputs(model):
            if site.name.startswith(f"{stack.name}."):
                path = f"{site.module.removesuffix(block.output)}{first}"
                networks.append(Network(path, path if site.module.startswith(f"{path}.") else site.module))
    return networks


class ExpertLayer(nn.Module):
    """y = Σ_{e ∈ top-k} g_e E_e(x),   p = softmax([0, W_1 x, …, W_t x]),   g_e = p_e / Σ_{top-k} p.

    E_0 is the original feed-forward network, whose score is 0: only differences of scores matter. W_j has a row for
    each expert of domain j. The experts and rows of the last domain are trained.

    Args:
        network: the modules of E_0, of which new experts are copies.
        features: size of x.
        domains: t.
        experts: number of experts per domain.
        top_k: number of experts per token; all if there are fewer.
    """

    def __init__(self, network: list[nn.Module], features: int, domains: int, experts: int, top_k: int) -> None:
        super().__init__()
        one = network[0] if len(network) == 1 else nn.Sequential(*network)
        self.experts = nn.ModuleList(copy.deepcopy(one) for _ in range(domains * experts))
        self.gates = nn.ParameterList(
            nn.init.normal_(torch.empty(experts, features), std=START) for _ in range(domains)
        )
        self.top_k = min(top_k, 1 + len(self.experts))
        self.requires_grad_(False)
        self.experts[-experts:].requires_grad_(True)
        self.gates[-1].requires_grad_(True)
        self._read: Tensor | None = None

    def read(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Keep x until the output of E_0 is known; a forward pre-hook of its first module."""
        self._read = inputs[0]

    def hook(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """Return the mixture in place of the output of E_0, [..., H]; a forward hook of its last module."""
        assert self._read is not None
        tokens, self._read = self._read.flatten(0, -2), None
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
    """The experts of all domains so far: an :class:`ExpertLayer` for each feed-forward network."""

    def __init__(self, model: nn.Module, networks: list[Network], domains: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.networks = networks
        sizes = [site.units for site in feed_forward_outputs(model)]
        self.layers = nn.ModuleList(
            ExpertLayer(network.parts(model), size, domains, experts, top_k)
            for network, size in zip(networks, sizes, strict=True)
        )

    def place(self, model: nn.Module) -> None:
        for network, layer in zip(self.networks, self.layers, strict=True):
            model.get_submodule(network.first).register_forward_pre_hook(layer.read)  # type: ignore[arg-type]
            model.get_submodule(network.last).register_forward_hook(layer.hook)  # type: ignore[arg-type]

    def attach(self, model: nn.Module, name: str, *, freeze: bool = False) -> None:
        """Attach the experts; the original feed-forward networks, the first experts, are always frozen."""
        super().attach(model, name, freeze=freeze)
        own = {key: value for network in self.networks for key, value in network.parameters(model).items()}
        held = {key: parameter for key, parameter in own.items() if parameter.requires_grad}
        for parameter in held.values():
            parameter.requires_grad_(False)
        self.frozen = (*self.frozen, *held)
