"""Linear layers that PEFT gives no adapter of their own."""

from __future__ import annotations

from torch import nn

from everlearn.model.routing import has_experts
from everlearn.model.vocabulary_head import config_of, text_config

_STATE_SPACE = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
_FUSED_IN_KERNELS = ("out_proj", "conv1d")
_OF_EXPERTS = ("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")


def refused_by_peft(model: nn.Module, path: str) -> str:
    """Return why PEFT puts no adapter beside a linear layer; "" if it does.

    Args:
        model: a plain model.
        path: path of the layer.
    """
    leaf = path.rpartition(".")[2]
    if config_of(model).model_type in _STATE_SPACE and leaf in _FUSED_IN_KERNELS:
        return "its weight is read by kernels that bypass adapters"
    if has_experts(text_config(model)) and leaf in _OF_EXPERTS:
        return "PEFT treats layers of that name as experts, which are one tensor and not linear layers"
    return ""
