"""Locate the attention heads, neurons, projections and the vocabulary head of a model.

A *unit* is an attention head, a feed-forward neuron or an output neuron. A *site* is a group of units that are scaled
together: the heads of one attention block, the neurons of one layer, the outputs of one layer. Multiplying a unit by a
gate and differentiating with respect to the gate gives the importance of the unit (arXiv 2302.03241, eq. 3); scaling
the gradients of the parameters that belong to a unit protects it (same paper, eq. 4).

    head     scales the head's context vector: the input of the attention's output projection
    neuron   scales the first feed-forward projection before the activation; in a gated feed-forward (Llama, Gemma,
             ModernBERT …) the product that enters the second projection
    output   scales the second feed-forward projection before dropout and residual

Names of modules and parameters are those of the model that was passed in, including PEFT adapters and wrappers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from everlearn.errors import MethodError, ModelError, did_you_mean
from everlearn.model.architectures import (
    Architecture,
    Attention,
    FeedForward,
    Kind,
    Stack,
    Tokens,
    register_architecture,
)
from everlearn.model.depth import layers_of
from everlearn.model.finding import find, join, transformers_model
from everlearn.model.structure import architecture_of, kind_of_config

__all__ = [
    "Anatomy",
    "Architecture",
    "Attention",
    "Component",
    "FeedForward",
    "Owned",
    "Projection",
    "Site",
    "Stack",
    "anatomy",
    "head_path",
    "kind_of",
    "register_architecture",
]


@dataclass(frozen=True)
class Owned:
    """A parameter whose entries along one dimension belong to the units of a site.

    Attributes:
        parameter: its name in ``model.named_parameters()``.
        dim: the dimension along which the units run.
        dims: number of dimensions of the parameter.
        group: number of units that share the same entries (query heads per key-value head).
        each: number of adjacent entries per unit (or group).
        tile: number of repetitions of the whole sequence of units (3 in a fused query-key-value projection).
        then: further sequences of the same units in the same dimension, each with its own (group, each): keys and
            values behind the queries of a fused projection with fewer key-value heads (Phi-3).
    """

    parameter: str
    dim: int
    dims: int
    group: int = 1
    each: int = 1
    tile: int = 1
    then: tuple[tuple[int, int], ...] = ()

    def factors(self, units: Tensor) -> Tensor:
        """Expand factors per unit, [units], to a tensor that broadcasts to the parameter.

        Entries that several units share take the smallest factor, which is 1 minus the largest importance: a key-value
        head that any of its query heads needs is protected.
        """
        runs = [(self.group, self.each)] * self.tile + list(self.then)
        values = torch.cat([units.view(-1, group).amin(1).repeat_interleave(each) for group, each in runs])
        return values.view([-1 if dim == self.dim else 1 for dim in range(self.dims)])


@dataclass(frozen=True)
class Site:
    """One group of gated units.

    Attributes:
        name: stable name, such as "layers.0.attention.heads", "decoder.1.cross_attention.heads".
        kind: the kind of the units.
        units: number of units.
        width: features per unit (the head size; 1 for neurons and outputs).
        module: path of the module whose input or output is multiplied by the gate.
        where: whether the gate applies to the input or the output of the module.
        owned: the parameters that belong to the units (arXiv 2302.03241, eq. 4): queries, keys and values by rows, the
            attention's output projection by columns and without its bias, both feed-forward projections by rows.
    """

    name: str
    kind: Literal["head", "neuron", "output"]
    units: int
    width: int
    module: str
    where: Literal["input", "output"]
    owned: tuple[Owned, ...]


Component = Literal[
    "query", "key", "value", "query_key_value", "attention_output", "feed_forward_in", "feed_forward_out"
]
"""Role of a projection; an architecture that fuses query, key and value has one projection for the three."""


@dataclass(frozen=True)
class Projection:
    """A linear layer of an attention or a feed-forward block.

    Attributes:
        component: the role of the projection.
        tokens: the tokens that it is applied to: the input of the model, or the answer (in the decoder of an
            encoder-decoder).
    """

    component: Component
    tokens: Tokens


@dataclass(frozen=True)
class Anatomy:
    """The structure of a model.

    Attributes:
        kind: encoder, decoder or encoder-decoder.
        sites: the gated units, from the first layer to the last.
        head: path of the first module of the vocabulary head, which takes the last hidden state; "" if there is none.
        linears: the projections of all attention and feed-forward blocks by path (`nn.Linear`, `Conv1D` or a PEFT layer
            around one), from the first layer to the last.
    """

    kind: Kind
    sites: tuple[Site, ...]
    head: str
    linears: Mapping[str, Projection]

    def parameter_factors(self, unit_factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert factors per unit to factors per parameter.

        Args:
            unit_factors: site name → factors, [units]; the parameters of other sites are not scaled.

        Returns:
            By parameter name, a tensor that broadcasts to the parameter. If several sites own a parameter, their
            factors are multiplied. With LoRA, the rows of B and the columns of A belong to the units of the layer
            around them; the other factor of the product is shared by all units and is not scaled.

        Raises:
            MethodError: there is no such site, or the number of units is wrong.
        """
        check_units(self.sites, unit_factors)
        result: dict[str, Tensor] = {}
        for site in self.sites:
            if site.name not in unit_factors:
                continue
            for owned in site.owned:
                factors = owned.factors(unit_factors[site.name])
                known = result.get(owned.parameter)
                result[owned.parameter] = factors if known is None else known * factors
        return result


def check_units(sites: tuple[Site, ...], values: Mapping[str, Tensor]) -> None:
    """Raise ``MethodError`` unless every name is a site and every last dimension is its number of units."""
    units = {site.name: site.units for site in sites}
    for name, value in values.items():
        if name not in units:
            raise MethodError(f"The model has no unit site '{name}'.{did_you_mean(name, units)}")
        if value.shape[-1:] != (units[name],):
            raise MethodError(
                f"Unit site '{name}' has {units[name]} units, but the values for it have shape {tuple(value.shape)}. "
                "Importance belongs to the model that it was measured on."
            )


def anatomy(model: nn.Module) -> Anatomy:
    """Analyse the structure of a model.

    Args:
        model: a transformers model, with or without a language-model head, PEFT adapters or a distributed wrapper. Only
            its structure is read, so it may be on the meta device. Nothing is cached: adapters may be added and removed
            between calls.

    Raises:
        ModelError: it is no language model, or its modules differ from the entry in the table of architectures.
    """
    path, inner = transformers_model(model)
    architecture = architecture_of(inner)
    sites: list[Site] = []
    linears: dict[str, Projection] = {}
    for stack, at, layers in layers_of(model):
        for index, _ in enumerate(layers):
            layer = _Layer(model, f"{at}.{index}", f"{stack.name}.{index}", stack)
            for attention in filter(layer.has, stack.attentions):
                sites += layer.heads(attention, _heads(inner, stack))
                linears |= {layer.at(path): each for path, each in _projections(attention, stack.tokens)}
            for block in layer.feed_forward:
                sites += layer.neurons_and_outputs(block)
                widening = Projection("feed_forward_in", stack.tokens)
                linears |= {layer.at(projection): widening for projection in layer.widening(block)}
                linears[layer.at(block.output)] = Projection("feed_forward_out", stack.tokens)
            linears |= layer.others()
    if not linears:
        raise ModelError(
            f"'{type(inner).__name__}' (`model`) has none of the layers of a '{inner.config.model_type}' model: no "
            "linear layers of attention or feed-forward blocks are found, which this `method` needs. Choose a method "
            "that needs none, such as `mas`, or another model; if it has such layers, describe them "
            "(docs/add-an-architecture.md)."
        )
    head = join(path, architecture.head) if architecture.head else ""
    return Anatomy(architecture.kind, tuple(sites), head if head and find(model, head) is not None else "", linears)


_COMPONENTS: Mapping[int, tuple[Component, ...]] = {
    1: ("query_key_value",),
    2: ("query", "value"),  # keys and values of one latent vector (DeepSeek)
    3: ("query", "key", "value"),
}


def _heads(model: PreTrainedModel, stack: Stack) -> int:
    """Return the number of heads in a stack; parts of a model may have configurations of their own."""
    config: Any = getattr(model.config, stack.name, None) or model.config.get_text_config(decoder=True)
    return int(config.num_attention_heads)


def _projections(attention: Attention, tokens: Tokens) -> Iterator[tuple[str, Projection]]:
    for path, component in zip(attention.inputs, _COMPONENTS[len(attention.inputs)], strict=True):
        read: Tokens = "input" if attention.crosses and component in ("key", "value") else tokens
        yield path, Projection(component, read)
    yield attention.output, Projection("attention_output", tokens)


def head_path(model: nn.Module) -> str:
    """Return the path of the first module of the vocabulary head, which takes the last hidden state.

    Raises:
        ModelError: the model has no vocabulary head.
    """
    path, inner = transformers_model(model)
    head = join(path, architecture_of(inner).head)
    if find(model, head) is None:
        raise ModelError(
            f"'{type(inner).__name__}' has no vocabulary head ('{head}' is missing). Choose a checkpoint with a "
            "language-model head (`model.path`)."
        )
    return head


def kind_of(model: nn.Module) -> Kind:
    """Return the kind of a model: encoder, decoder or encoder-decoder.

    Raises:
        ModelError: it is no language model of transformers.
    """
    return kind_of_config(transformers_model(model)[1].config)


class _Layer:
    """One layer of a stack; resolves its projections and describes its sites."""

    def __init__(self, model: nn.Module, path: str, name: str, stack: Stack) -> None:
        self.model, self.path, self.name, self.stack = model, path, name, stack

    def at(self, projection: str) -> str:
        return f"{self.path}.{projection}"

    def has(self, block: Attention | FeedForward) -> bool:
        """Return whether the layer has this block of its stack."""
        return self.stack.alike or find(self.model, self.at(block.output)) is not None

    @property
    def feed_forward(self) -> list[FeedForward]:
        """A list with the feed-forward block of the layer, or an empty list."""
        blocks = (self.stack.feed_forward, *self.stack.more)
        return [block for block in blocks if block is not None and self.has(block)][:1]

    def others(self) -> dict[str, Projection]:
        """Return the linear layers outside attention and feed-forward blocks; they are treated as feed-forward ones."""
        projections: dict[str, Projection] = {}
        for projection in self.stack.others:
            if find(self.model, self.at(projection)) is not None:
                inputs, outputs = self.size(projection)
                component: Component = "feed_forward_out" if outputs < inputs else "feed_forward_in"
                projections[self.at(projection)] = Projection(component, self.stack.tokens)
        return projections

    def size(self, projection: str) -> tuple[int, int]:
        """Return the number of input and output features of a projection, ignoring wrappers around it."""
        module = find(self.model, self.at(projection))
        for _, linear in _linears(module):
            features = linear.weight.shape if isinstance(linear, Conv1D) else (linear.in_features, linear.out_features)
            if not all(features):
                raise ModelError(f"The projection '{self.at(projection)}' has {tuple(features)} features.")
            return int(features[0]), int(features[1])
        raise ModelError(f"The model has no linear projection at '{self.at(projection)}', as its architecture should.")

    def widening(self, block: FeedForward) -> list[str]:
        """Return the widening projections that this configuration has."""
        return [projection for projection in block.inputs if find(self.model, self.at(projection)) is not None]

    def rows(
        self, projection: str, group: int = 1, each: int = 1, tile: int = 1, then: tuple[tuple[int, int], ...] = ()
    ) -> Iterator[Owned]:
        """Yield the parameters that belong to the output features of a projection: weight rows, bias, LoRA's B.

        Quantised weights are skipped: they are packed integers, which are not trained and need no protection.
        """
        for name, linear in _linears(find(self.model, self.at(projection))):
            if ".lora_A." in f".{name}." or not torch.is_floating_point(linear.weight):
                continue
            at = join(self.at(projection), name)
            yield Owned(f"{at}.weight", 1 if isinstance(linear, Conv1D) else 0, 2, group, each, tile, then)
            if linear.bias is not None:
                yield Owned(f"{at}.bias", 0, 1, group, each, tile, then)

    def columns(self, projection: str, each: int) -> Iterator[Owned]:
        """Yield the parameters that belong to the input features of a projection: weight columns, LoRA's A."""
        for name, linear in _linears(find(self.model, self.at(projection))):
            if ".lora_B." not in f".{name}." and torch.is_floating_point(linear.weight):
                at = join(self.at(projection), name)
                yield Owned(f"{at}.weight", 0 if isinstance(linear, Conv1D) else 1, 2, each=each)

    def heads(self, block: Attention, heads: int) -> list[Site]:
        """Return the site of an attention block's heads.

        The list is empty if the order of a fused projection's outputs is unknown, in an architecture without an entry.
        """
        features = self.size(block.output)[0]
        width = features // heads
        owned: list[Owned] = []
        for projection in block.inputs:
            out = self.size(projection)[1]
            # Key-value heads in a fused projection, which stand behind all queries.
            shared = (out - features) // (2 * width) if (out - features) % (2 * width) == 0 else 0
            if len(block.inputs) > 1:
                # A head may have more rows than its width: a gate beside its query (Qwen3-Next).
                own = heads if out >= features else out // width
                owned += self.rows(projection, group=heads // own, each=out // own)
            elif not self.stack.alike and out < 3 * features and shared and (shared == 1 or not block.interleaved):
                owned += self.rows(projection, each=width, then=((heads // shared, width),) * 2)
            elif out != 3 * features and not self.stack.alike:
                return []
            elif out != 3 * features:
                raise ModelError(
                    f"'{self.at(projection)}' gives {out} features, but query, key and value of {heads} heads with "
                    f"{width} features are {3 * features}: fused grouped-query attention is not supported."
                )
            elif block.interleaved:
                owned += self.rows(projection, each=3 * width)
            else:
                owned += self.rows(projection, each=width, tile=3)
        owned += self.columns(block.output, width)
        name = f"{self.name}.{block.name}.heads"
        return [Site(name, "head", heads, width, self.at(block.output), "input", tuple(owned))]

    def neurons_and_outputs(self, block: FeedForward) -> list[Site]:
        neurons, outputs = self.size(block.output)
        first = self.widening(block)
        repeats = [self.size(projection)[1] // neurons for projection in first]
        gated = sum(repeats) > 1
        owned = [
            owned for projection, tile in zip(first, repeats, strict=True) for owned in self.rows(projection, tile=tile)
        ]
        module, where = (block.output, "input") if gated else (first[0], "output")
        last = tuple(self.rows(block.output))
        return [
            Site(f"{self.name}.ffn.neurons", "neuron", neurons, 1, self.at(module), where, tuple(owned)),  # type: ignore[arg-type]
            Site(f"{self.name}.ffn.output", "output", outputs, 1, self.at(block.output), "output", last),
        ]


def _linears(module: nn.Module | None) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the linear layers at or inside a module with their relative paths; wrapped layers come before adapters."""
    for name, child in module.named_modules() if module is not None else ():
        if isinstance(child, (nn.Linear, Conv1D)):
            yield name, child  # type: ignore[misc]
