"""Verify that the units found in a model satisfy a method's assumptions."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from everlearn.model.anatomy import Anatomy, anatomy, kind_of
from everlearn.model.architectures import registered
from everlearn.model.depth import layers_of
from everlearn.model.finding import transformers_model
from everlearn.model.gates import Gates
from everlearn.model.training_mode import evaluating

_TOKENS = [[10, 11, 12, 13, 14, 15]]


def why_without_units(model: nn.Module, kinds: Collection[str] = ("head", "neuron", "output")) -> str:
    """Return why the units of a plain model cannot be used; "" if they can.

    Registered architectures are known to have usable units. For others, gating units to zero must equal setting their
    parameters to zero, which is tested by forward passes; and if both heads and neurons are used, every matrix in a
    layer must belong to them.

    Args:
        model: a plain model; on the meta device nothing is computed.
        kinds: the kinds of units that are used.
    """
    inner = transformers_model(model)[1]
    if registered(str(inner.config.model_type)) is not None:
        return ""
    structure = anatomy(model)
    used = [site for site in structure.sites if site.kind in kinds]
    if not used:
        return "its layers have neither attention heads nor feed-forward neurons"
    owned = {own.parameter for site in structure.sites for own in site.owned}
    for _, path, _ in layers_of(model) if {"head", "neuron"} <= set(kinds) else ():
        for name, parameter in model.named_parameters():
            if name.startswith(f"{path}.") and parameter.dim() > 1 and name not in owned:
                return f"'{name}' belongs to no attention head and no feed-forward neuron"
    if next(inner.parameters()).device.type == "meta" or _are_their_parameters(inner, structure, kinds):
        return ""
    return "its units share parameters (a norm over all heads, for example)"


@torch.no_grad()
def _are_their_parameters(model: nn.Module, structure: Anatomy, kinds: Collection[str]) -> bool:
    values: dict[str, Tensor] = {}
    for site in structure.sites:
        if site.kind in kinds:
            group = max(own.then[0][0] if own.then else own.group for own in site.owned)
            values[site.name] = torch.ones(site.units)
            values[site.name][: group if site.kind == "head" else site.units // 2] = 0
    plain = _logits(model)
    with Gates(model) as gates:
        gates.set(values)
        gated = _logits(model)
    parameters = dict(model.named_parameters())
    before = {name: parameters[name].detach().clone() for name in structure.parameter_factors(values)}
    try:
        for name, factors in structure.parameter_factors(values).items():
            parameters[name].mul_(factors.to(parameters[name]))
        zeroed = _logits(model)
    finally:
        for name, value in before.items():
            parameters[name].copy_(value)
    return float((gated - zeroed).abs().max()) <= 1e-3 * float((gated - plain).abs().max())


def _logits(model: nn.Module) -> Tensor:
    ids = torch.tensor(_TOKENS, device=next(model.parameters()).device)
    more = {"decoder_input_ids": ids} if kind_of(model) == "encoder-decoder" else {}
    with evaluating(model):
        logits: Tensor = model(input_ids=ids, **more).logits.double()
    return logits
