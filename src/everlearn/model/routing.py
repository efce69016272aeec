"""The router loss of mixture-of-experts models."""

from __future__ import annotations

from typing import Any

from torch import Tensor

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def has_experts(config: Any) -> bool:
    """Return whether the configuration of a text model names more than one expert."""
    return any((getattr(config, name, None) or 0) > 1 for name in _EXPERTS)


def router_loss(output: Any, config: Any) -> Tensor | None:
    """Return the loss that balances the experts, with its coefficient, from a forward pass; None if there is none.

    A model computes it where its configuration has ``output_router_logits``, as in transformers' own training.

    Args:
        output: output of the model.
        config: config of its text model.
    """
    loss = getattr(output, "aux_loss", None)
    coefficient = float(getattr(config, "router_aux_loss_coef", 0) or 0)
    return loss * coefficient if isinstance(loss, Tensor) and coefficient else None


def router_note(config: Any) -> str | None:
    """Return a note on whether the router loss is trained; None for a model without experts.

    Args:
        config: config of a text model.
    """
    if not has_experts(config):
        return None
    coefficient = getattr(config, "router_aux_loss_coef", None)
    if coefficient is None:
        return (
            "The model has experts but no router loss in transformers: the router learns from the text alone, and "
            "what keeps the experts in balance (a selection bias, in DeepSeek-V3) stays as it was loaded."
        )
    if getattr(config, "output_router_logits", False):
        return f"The router loss, times {coefficient:g} (`router_aux_loss_coef`), is added to the loss of each step."
    return (
        "The router loss is not trained, as in transformers unless its configuration asks for it: "
        f"`model.config: {{output_router_logits: true}}` adds it, times {coefficient:g} (`router_aux_loss_coef`)."
    )
