"""Make a transformer wider and deeper while preserving its function.

It follows Net2Net (arXiv 1511.05641) and ELLE (arXiv 2203.06311, §3.2).

**Width.** Every new feature, head or neuron copies an old one: with a map g from new to old units, parameters that
write a unit are copied, W'[i, ·] = W[g(i), ·], and those that read it divide their weight among the copies, W'[·, i] =
W[·, g(i)] / |{j : g(j) = g(i)}|. That is exact for heads, neurons and every projection. Normalisations use the mean and
variance of the widened hidden state, which are unchanged if every feature has the same number of copies: so no feature
is copied twice before each was copied once, and growing by a whole multiple of the hidden size is exact. In between it
is an approximation (as in the paper), which ELLE's recovery corrects. The vocabulary projection may be the embedding
itself, whose columns must not be divided; its share is moved to the normalisation before it.

**Depth.** A new layer is a copy of a layer, inserted after it. That is an approximation. If the normalisation precedes
a block (GPT-2, Llama) the copy may write zeros at first (``new_layers="identity"``), which is exact.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from everlearn.errors import ModelError
from everlearn.model.anatomy import Anatomy, Owned, Site, anatomy
from everlearn.model.structure import architecture_of
from everlearn.model.vocabulary_head import config_of, output_head

NewLayers = Literal["copy", "identity"]


@dataclass(frozen=True)
class Form:
    """Properties of an architecture that growth needs, beyond its anatomy.

    Attributes:
        last_norm: path of the normalisation before the vocabulary projection.
        pre_norm: whether blocks normalise their input (and not the residual sum).
        neurons: configuration key of the number of feed-forward neurons.
    """

    last_norm: str
    pre_norm: bool
    neurons: str = "intermediate_size"


FORMS: Mapping[str, Form] = {
    "bert": Form("cls.predictions.transform.LayerNorm", pre_norm=False),
    "roberta": Form("lm_head.layer_norm", pre_norm=False),
    "xlm-roberta": Form("lm_head.layer_norm", pre_norm=False),
    "gpt2": Form("transformer.ln_f", pre_norm=True, neurons="n_inner"),
    **{name: Form("model.norm", pre_norm=True) for name in ("llama", "mistral", "qwen2")},
}
"""Architectures that can grow, by ``config.model_type``."""


@dataclass(frozen=True)
class Grown:
    """A larger model.

    Attributes:
        model: a model of the same class with its own configuration, for ``save_pretrained`` and ``from_pretrained``.
        hidden: for each feature of its hidden state, the old feature that it copies, [H'].
        origins: for each of its layers, the old layer that it copies.
    """

    model: nn.Module
    hidden: Tensor
    origins: tuple[int, ...]


def form_of(model: nn.Module) -> Form:
    """Return how the architecture of a model grows.

    Raises:
        ModelError: it cannot grow.
    """
    kind = config_of(model).model_type
    if kind not in FORMS:
        raise ModelError(f"A '{kind}' model cannot be grown; supported are {', '.join(sorted(FORMS))}.")
    return FORMS[kind]


def key_value_heads(model: nn.Module) -> int:
    """Return the number of heads that can be copied one by one: key-value heads in grouped-query attention."""
    config = config_of(model)
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def grown_config(model: nn.Module, layers: Sequence[int] = (), heads: int = 0) -> Any:
    """Return the configuration of a model after :func:`grow`.

    As in ELLE, heads keep their size, and hidden state and neurons keep their proportion to the number of heads. In
    grouped-query attention a head is a key-value head with all its queries.
    """
    form, config, known = form_of(model), copy.deepcopy(config_of(model)), anatomy(model)
    width = next(site.width for site in known.sites if site.kind == "head")
    neurons = next(site.units for site in known.sites if site.kind == "neuron")
    before, queries = key_value_heads(model), config.num_attention_heads
    hidden = config.hidden_size // before * (before + heads)
    setattr(config, form.neurons, round(neurons * hidden / config.hidden_size))
    config.hidden_size = hidden
    config.num_attention_heads = queries // before * (before + heads)
    if getattr(config, "num_key_value_heads", None) is not None:
        config.num_key_value_heads = before + heads
    if hasattr(config, "head_dim"):
        config.head_dim = width
    origins = _origins(model, layers)
    config.num_hidden_layers = len(origins)
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = [config.layer_types[layer] for layer in origins]
    return config


def added_parameters(model: nn.Module, layers: int = 0, heads: int = 0) -> int:
    """Return the number of parameters that :func:`grow` adds; nothing is allocated."""
    owner: Any = type(model)
    with torch.device("meta"):
        larger = owner._from_config(grown_config(model, (0,) * layers, heads))
    return sum(p.numel() for p in larger.parameters()) - sum(p.numel() for p in model.parameters())


def choose_layers(lineage: Sequence[int], count: int) -> tuple[int, ...]:
    """Choose layers to copy at random, always among those whose ancestors have the fewest copies (ELLE, §3.2).

    Args:
        lineage: for each layer, the layer of the first model that it descends from.
        count: number of layers; a layer is chosen twice only after all were chosen once.
    """
    copies = Counter(lineage)
    chosen = []
    for _ in range(count):
        fewest = min(copies[ancestor] for ancestor in lineage)
        candidates = [layer for layer, ancestor in enumerate(lineage) if copies[ancestor] == fewest]
        layer = candidates[int(torch.randint(len(candidates), ()))]
        copies[lineage[layer]] += 1
        chosen.append(layer)
    return tuple(chosen)


def copy_map(old: int, new: int) -> Tensor:
    """Return g, the old unit of each of `new` units, [new]: the old ones, then random ones, copied equally often."""
    parts = [torch.arange(old)]
    while sum(map(len, parts)) < new:
        parts.append(torch.randperm(old))
    return torch.cat(parts)[:new]


@torch.no_grad()
def grow(
    model: nn.Module,
    layers: Sequence[int] = (),
    heads: int = 0,
    *,
    noise: float = 0.0,
    new_layers: NewLayers = "copy",
) -> Grown:
    """Return a wider and deeper copy of a model; it uses torch's random generator.

    Args:
        model: a model with a language-model head; it is not changed.
        layers: numbers of the layers to copy, with repetitions.
        heads: number of heads to add in every layer (see :func:`grown_config`); hidden state and neurons grow in
            proportion.
        noise: standard deviation of noise on weights that read copies, so that a unit and its copy can diverge (0.01 in
            ELLE's code). With noise nothing is exact.
        new_layers: ``identity`` makes new layers write zeros at first.

    Raises:
        ModelError: the architecture cannot grow, or ``identity`` is requested for one that normalises after its blocks.
    """
    form, known = form_of(model), anatomy(model)
    if new_layers == "identity" and layers and not form.pre_norm:
        raise ModelError(
            f"New layers of a '{config_of(model).model_type}' model cannot be identities, because it normalises the "
            "sum after each block. Use copies."
        )
    old: Any = model
    origins, config = _origins(model, layers), grown_config(model, layers, heads)
    grown: Any = type(old)._from_config(config, dtype=old.dtype, attn_implementation=old.config._attn_implementation)
    hidden = copy_map(old.config.hidden_size, config.hidden_size)
    stack = f"{old.base_model_prefix}.{architecture_of(old).stacks[0].layers}"
    weights = dict(old.named_parameters(remove_duplicate=False))
    neurons = next(site.units for site in anatomy(grown).sites if site.kind == "neuron")
    units = [_units(old, known, f"{stack}.{layer}.", heads, neurons) for layer in origins]
    # Projections that write to the hidden state: after the heads and after the neurons.
    writers = {site.module for site in known.sites if site.kind in ("head", "output")}
    silent = writers if new_layers == "identity" else set()
    for name, parameter in grown.named_parameters():
        source, copied = name, False
        maps: Maps = {}
        if name.startswith(f"{stack}."):
            number, _, rest = name.removeprefix(f"{stack}.").partition(".")
            source = f"{stack}.{origins[int(number)]}.{rest}"
            maps, copied = units[int(number)], origins[int(number)] in origins[: int(number)]
        parameter.requires_grad_(weights[source].requires_grad)
        if copied and source.rpartition(".")[0] in silent:
            parameter.zero_()
            continue
        value = weights[source].detach().cpu()
        for axis in _axes(old, source, form, hidden, maps):
            value = axis.widen(value, noise)
        if value.shape != parameter.shape:
            raise ModelError(f"'{name}' should grow to {tuple(parameter.shape)}, but becomes {tuple(value.shape)}.")
        parameter.copy_(value)
    if getattr(old, "generation_config", None) is not None:
        grown.generation_config = copy.deepcopy(old.generation_config)
    return Grown(grown.to(old.device).train(old.training), hidden, origins)


@dataclass(frozen=True)
class _Axis:
    """One dimension of a parameter: the old entry that each new one copies, and whether it is read or written."""

    dim: int
    index: Tensor
    read: bool

    def widen(self, value: Tensor, noise: float) -> Tensor:
        before = value.shape[self.dim]
        value = value.index_select(self.dim, self.index)
        if not self.read or len(self.index) == before:
            return value
        shape = [-1 if dim == self.dim else 1 for dim in range(value.dim())]
        value = value / torch.bincount(self.index, minlength=before)[self.index].view(shape)
        if noise > 0 and value.dim() > 1:
            new = (torch.arange(len(self.index)) >= before).view(shape)
            value = value + noise * torch.randn(value.shape).to(value.dtype) * new
        return value


Maps = Mapping[tuple[str, Literal["read", "write"]], Tensor]
"""(Path of a projection, read or write) → the map of its units, if they are not the hidden state."""


def _axes(model: nn.Module, name: str, form: Form, hidden: Tensor, maps: Maps) -> Iterator[_Axis]:
    """Yield the dimensions of a parameter that grow."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if isinstance(module, nn.Embedding):
        yield _Axis(1, hidden, read=False)
    elif module is output_head(model):
        if leaf == "weight":  # its inputs are divided in the normalisation before it
            yield _Axis(1, hidden, read=False)
    elif isinstance(module, (nn.Linear, Conv1D)):
        writes, reads = (1, 0) if isinstance(module, Conv1D) else (0, 1)
        yield _Axis(writes if leaf == "weight" else 0, maps.get((path, "write"), hidden), read=False)
        if leaf == "weight":
            yield _Axis(reads, maps.get((path, "read"), hidden), read=True)
    elif type(module).__name__.endswith("Norm"):
        yield _Axis(0, hidden, read=path == form.last_norm)


def _units(model: nn.Module, known: Anatomy, prefix: str, heads: int, neurons: int) -> Maps:
    """Return how the heads and neurons of one layer are copied."""
    maps: dict[tuple[str, Literal["read", "write"]], Tensor] = {}
    before = key_value_heads(model)
    sites = [site for site in known.sites if site.module.startswith(prefix)]
    for site in sites:
        if site.kind == "head":
            chosen = copy_map(before, before + heads)
        elif site.kind == "neuron":
            chosen = copy_map(site.units, neurons)
            maps[next(other.module for other in sites if other.kind == "output"), "read"] = chosen
        else:
            continue
        for owned in site.owned:
            path = owned.parameter.rpartition(".")[0]
            reads = site.kind == "head" and path == site.module
            maps[path, "read" if reads else "write"] = _entries(owned, site, chosen)
    return maps


def _entries(owned: Owned, site: Site, chosen: Tensor) -> Tensor:
    """Expand a map of units to the entries of a parameter that belong to them."""
    old = int(chosen.max()) + 1
    groups = site.units // owned.group
    each = groups // old * owned.each
    entries = (chosen[:, None] * each + torch.arange(each)).flatten()
    return torch.cat([entries + tile * groups * owned.each for tile in range(owned.tile)])


def _origins(model: nn.Module, layers: Sequence[int]) -> tuple[int, ...]:
    """Return the old layer of each new one; copies follow their original."""
    return tuple(i for i in range(config_of(model).num_hidden_layers) for _ in range(1 + list(layers).count(i)))
