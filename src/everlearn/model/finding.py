"""Find the head, the layers and their projections in a model whose architecture is not registered.

Models of transformers name their modules differently, but have the same structure: a list of layers, each with
attention (projections for queries, keys and values, and one for the output) and a feed-forward block of linear layers,
the last of which returns to the hidden size. Everything else in a layer (a router, experts in one tensor, a
convolution, a state-space mixer) has no units; its linear layers are listed as `others`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from everlearn.errors import ModelError
from everlearn.model.architectures import Architecture, Attention, FeedForward, Kind, Stack


def transformers_model(model: nn.Module) -> tuple[str, PreTrainedModel]:
    """Return the path and the outermost transformers model inside PEFT, DDP or torch.compile.

    Raises:
        ModelError: there is none.
    """
    for path, module in model.named_modules():
        if isinstance(module, PreTrainedModel):
            return path, module
    raise ModelError(f"'{type(model).__name__}' is not a transformers model, so its heads and neurons cannot be found.")


def takes(model: nn.Module, argument: str) -> bool:
    """Return whether the forward pass of a model has an argument of this name."""
    return argument in inspect.signature(type(transformers_model(model)[1]).forward).parameters


CACHES = ("cache", "past_key_values")
"""Names of the argument and of the output with what a model keeps of the preceding tokens: since transformers 5.24, and
before."""


def cache_argument(model: nn.Module) -> str | None:
    """Return the name of the argument with which a model continues from its cache; None if it has none."""
    return next((name for name in CACHES if takes(model, name)), None)


def cache_in(values: Mapping[str, Any]) -> Any:
    """Return the cache among the outputs, or the keyword arguments, of a model; None if there is none."""
    return next((values[name] for name in CACHES if values.get(name) is not None), None)


def find(model: nn.Module, path: str) -> nn.Module | None:
    """Return the module at a path, or None."""
    for part in path.split(".") if path else ():
        child = getattr(model, part, None)
        if not isinstance(child, nn.Module):
            return None
        model = child
    return model


def join(path: str, name: str) -> str:
    """Join two module paths with a dot; either may be empty."""
    return f"{path}.{name}" if path and name else path or name


def text_tower(model: PreTrainedModel) -> nn.Module:
    """Return the part of a decoder that reads text: in a vision-language model not all of the base model."""
    tower: Any = model.get_decoder()
    # In some models the module of that name is the vocabulary head (ModernBERT's decoder).
    return tower if isinstance(tower, PreTrainedModel) else model.base_model


def output_embeddings(model: nn.Module) -> nn.Module | None:
    """Return the module that projects to the vocabulary, or None.

    Some models name the table of their answers' tokens instead (FSMT): then it is the linear layer of that shape.
    """
    get: Any = getattr(model, "get_output_embeddings", None)
    embeddings: nn.Module | None = None if get is None else get()
    if isinstance(embeddings, nn.Embedding):
        linears = (module for module in model.modules() if isinstance(module, nn.Linear))
        return next((linear for linear in linears if linear.weight.shape == embeddings.weight.shape), embeddings)
    return embeddings


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is a linear layer; some subclasses of one need another input (DeepSeek-V4's groups)."""
    if not isinstance(module, nn.Linear) or type(module).forward is nn.Linear.forward:
        return isinstance(module, (nn.Linear, Conv1D))
    with torch.no_grad(), contextlib.suppress(RuntimeError):
        output = module(module.weight.new_empty(1, 1, module.in_features))
        return isinstance(output, torch.Tensor) and output.shape == (1, 1, module.out_features)
    return False


_QUERY = ("q_proj", "query", "query_proj", "q", "q_lin", "q_b_proj")
_KEY = ("k_proj", "key", "key_proj", "k", "k_lin")
_VALUE = ("v_proj", "value", "value_proj", "v", "v_lin")
_KEY_VALUE = ("kv_b_proj",)
_FUSED = {"query_key_value": True, "in_proj": True, "qkv_proj": False, "Wqkv": False, "c_attn": False}
"""Names of fused projections, and whether their outputs are ordered head by head."""
_READS = ("q", "k", "v", "pos_")
"""Prefixes of names that an attention block's output projection never has."""
_ROUTERS = ("gate", "router", "shared_expert_gate")
_CROSS = ("cross", "encoder_attn", "EncDec")


class _Linear(NamedTuple):
    path: str
    inputs: int
    outputs: int

    @property
    def parent(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def leaf(self) -> str:
        return self.path.rpartition(".")[2]


def detect_architecture(model: PreTrainedModel, kind: Kind) -> Architecture:
    """Return the architecture of a plain model, which may be on the meta device."""
    base = model.base_model
    paths = {module: path for path, module in model.named_modules()}
    output = output_embeddings(model)
    head = "" if output is None else paths[output]
    if kind == "encoder" and output is not None and base is not model:
        # Modules that transform the hidden state before the output embeddings are siblings of the base model.
        own = [child for child in model.children() if child is not base and next(child.parameters(), None) is not None]
        head = paths[own[0]] if own else head
    tower = text_tower(model) if kind == "decoder" else base
    start = "" if base is model else f"{paths[base]}."
    stacks = tuple(_stack(path.removeprefix(start), layers, kind) for path, layers in _layer_lists(tower, paths[tower]))
    return Architecture(kind, head, stacks)


def _layer_lists(tower: nn.Module, at: str) -> Iterator[tuple[str, nn.ModuleList]]:
    """Yield the outermost lists of modules that hold linear layers, with their paths."""
    inside: list[str] = []
    for path, module in tower.named_modules():
        outermost = not any(path.startswith(f"{outer}.") for outer in inside)
        if isinstance(module, nn.ModuleList) and outermost and any(len(_linears(layer)) > 1 for layer in module):
            inside.append(path)
            yield join(at, path), module


def _stack(path: str, layers: nn.ModuleList, kind: Kind) -> Stack:
    attentions: dict[Attention, None] = {}
    blocks: dict[FeedForward, None] = {}
    others: dict[str, None] = {}
    for layer in layers:
        linears = _linears(layer)
        own = list(_attentions(linears))
        block = _feed_forward(layer, [each for each in linears if not _belongs(each, own)])
        used = {name for each in own for name in (*each.inputs, each.output)}
        used |= {*block.inputs, block.output} if block is not None else set()
        attentions |= dict.fromkeys(own)
        blocks |= dict.fromkeys([] if block is None else [block])
        rest = (each for each in linears if each.path not in used and each.leaf not in _ROUTERS)
        others |= dict.fromkeys(each.path for each in rest if min(each.inputs, each.outputs) > 1)
    answers = kind == "encoder-decoder" and "decoder" in path.split(".")
    name = "layers" if kind != "encoder-decoder" else "decoder" if answers else "encoder"
    return Stack(
        path,
        tuple(attentions),
        next(iter(blocks), None),
        name,
        "answer" if answers else "input",
        more=tuple(blocks)[1:],
        others=tuple(others),
        alike=False,
    )


def _linears(layer: nn.Module) -> list[_Linear]:
    linears = []
    for path, module in layer.named_modules():
        if not is_linear(module):
            continue
        if isinstance(module, nn.Linear):
            linears.append(_Linear(path, module.in_features, module.out_features))
        elif isinstance(module, Conv1D):
            linears.append(_Linear(path, module.nx, module.nf))
    return linears


def _attentions(linears: list[_Linear]) -> Iterator[Attention]:
    """Yield the attention blocks of a layer: projections with names for queries, keys and values beside each other."""
    for parent in dict.fromkeys(each.parent for each in linears):
        by_leaf = {each.leaf: each for each in linears if each.parent == parent}
        groups = [next((by_leaf[name] for name in names if name in by_leaf), None) for names in (_QUERY, _KEY, _VALUE)]
        fused = next((by_leaf[name] for name in _FUSED if name in by_leaf), None)
        latent = next((by_leaf[name] for name in _KEY_VALUE if name in by_leaf), None)
        if all(groups):
            inputs = [each for each in groups if each is not None]
        elif groups[0] is not None and latent is not None:
            inputs = [groups[0], latent]
        elif fused is not None and "att" in parent.lower():
            inputs = [fused]
        else:
            continue
        output = _output(parent, inputs, linears)
        if output is not None:
            name = "cross_attention" if any(part in parent for part in _CROSS) else "attention"
            yield Attention(
                tuple(each.path for each in inputs),
                output.path,
                name,
                interleaved=len(inputs) == 1 and _FUSED[inputs[0].leaf],
                crosses=name == "cross_attention",
            )


def _output(parent: str, inputs: list[_Linear], linears: list[_Linear]) -> _Linear | None:
    """Return an attention block's output projection: the first other one with the hidden size as its output.

    It is looked for in the module of the inputs, then in the module above (BERT has a separate module for the output).
    """
    known = {each.path for each in inputs}
    hidden = inputs[0].inputs
    for place in (parent, parent.rpartition(".")[0]):
        inside = [each for each in linears if not place or each.path.startswith(f"{place}.")]
        for each in inside if place else ():
            if each.path not in known and not each.leaf.startswith(_READS) and _leads_back(each, hidden, inputs):
                return each
    return None


def _leads_back(each: _Linear, hidden: int, inputs: list[_Linear]) -> bool:
    return each.outputs == hidden or inputs[0].leaf == "q_b_proj"


def _belongs(each: _Linear, attentions: list[Attention]) -> bool:
    """Return whether a linear layer is a part of an attention block."""
    parents = {path.rpartition(".")[0] for attention in attentions for path in attention.inputs}
    outputs = {attention.output for attention in attentions}
    return each.path in outputs or any(each.path.startswith(f"{parent}.") for parent in parents if parent)


def _feed_forward(layer: nn.Module, linears: list[_Linear]) -> FeedForward | None:
    """Return the feed-forward block of a layer; None if there is none, or several.

    Experts, shared ones included, do not count: each contributes only a part of the layer's output.
    """
    linears = [each for each in linears if "expert" not in each.path]
    blocks = []
    for parent in dict.fromkeys(each.parent for each in linears):
        group = [each for each in linears if each.parent == parent]
        parent_module = layer.get_submodule(parent)
        inside = sum(p.numel() for each in group for p in layer.get_submodule(each.path).parameters())
        if parent and inside == sum(p.numel() for p in parent_module.parameters()) and (block := _block(group)):
            blocks.append(block)
    if not blocks:
        direct = [each for each in linears if each.leaf not in _ROUTERS and _plain(layer, each)]
        block = _block(direct)
        blocks = [block] if block else []
    return blocks[0] if len(blocks) == 1 else None


def _plain(layer: nn.Module, each: _Linear) -> bool:
    """Return whether all siblings of a linear layer are linear layers and norms (no convolution, no mixer)."""
    beside = [child for child in layer.get_submodule(each.parent).modules() if not list(child.children())]
    return not any(isinstance(child, nn.Conv1d) for child in beside)


def _block(group: list[_Linear]) -> FeedForward | None:
    """Return the block of some linear layers, of which all but one widen the hidden state and one projects back."""
    for last in reversed(group):
        first = [each for each in group if each is not last]
        if first and all(e.inputs == last.outputs and e.outputs % last.inputs == 0 for e in first):
            return FeedForward(tuple(each.path for each in first), last.path)
    return None
