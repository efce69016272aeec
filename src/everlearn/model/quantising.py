"""Models in 4 or 8 bits for training adapters (QLoRA), with the options of transformers' ``BitsAndBytesConfig``."""

from __future__ import annotations

import copy
import importlib.util
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import AutoQuantizationConfig

from everlearn.errors import ModelError, did_you_mean, first_line

INSTALL = "pip install 'everlearn[quantized]'"


def check_options(options: Mapping[str, Any]) -> BitsAndBytesConfig:
    """Return the quantisation configuration for the options in a recipe.

    Raises:
        ValueError: a name or value is not allowed, or the number of bits is missing.
    """
    known = {
        name: parameter.default
        for name, parameter in inspect.signature(BitsAndBytesConfig).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    for name in options:
        if name not in known:
            raise ValueError(f"BitsAndBytesConfig has no '{name}'.{did_you_mean(name, known)}".rstrip("."))
    try:
        config = BitsAndBytesConfig(**options)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"BitsAndBytesConfig does not take it: {error}") from None
    if config.bnb_4bit_quant_type not in ("fp4", "nf4"):
        raise ValueError(f"`bnb_4bit_quant_type` is fp4 or nf4, not {config.bnb_4bit_quant_type}")
    if not (config.load_in_4bit or config.load_in_8bit):
        raise ValueError("say into how many bits: `load_in_4bit: true` or `load_in_8bit: true`")
    return config


def unpacking(config: Any, path: str) -> dict[str, Any]:
    """Return the options of ``from_pretrained`` that unpack weights saved in few bits (FP8); {} for others.

    Args:
        config: configuration of the checkpoint.
        path: of the checkpoint, for the message.

    Raises:
        ModelError: transformers cannot unpack weights of this format, so they cannot be trained.
    """
    packed = getattr(config, "quantization_config", None)
    if packed is None:
        return {}
    try:
        own: Any = AutoQuantizationConfig.from_dict(dict(packed if isinstance(packed, Mapping) else packed.to_dict()))
    except (ValueError, TypeError, ImportError):  # of a format that this version of transformers does not know
        own = None
    if not hasattr(own, "dequantize"):
        raise ModelError(
            f"'{path}' (`model.path`) was saved in few bits (`quantization_config` of its configuration), and such "
            "weights cannot be trained. Name the checkpoint that it was made from; with `model.quantization_config` "
            "an adapter is trained beside its weights in few bits."
        )
    own.dequantize = True
    return {"quantization_config": own}


def check_installed() -> None:
    """Raise ``ModelError`` unless models can be quantised here."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError(f"`model.quantization_config` needs bitsandbytes, which is not installed: {INSTALL}.")


def quantised(model: PreTrainedModel, options: Mapping[str, Any], device: torch.device) -> PreTrainedModel:
    """Return a copy of a float32 model whose linear layers, except the output head, are in 4 or 8 bits.

    Everything else stays float32; 4-bit layers compute in float32 too unless `options` say otherwise
    (`bnb_4bit_compute_dtype`).

    Args:
        model: a model in memory, which is not changed.
        options: the options, as in :func:`check_options`.
        device: the device of the copy.

    Raises:
        ModelError: bitsandbytes is not installed, or cannot quantise this model here.
    """
    check_installed()
    return _quantised(model, check_options(options), device)


def quantised_like(model: nn.Module, other: Any) -> PreTrainedModel:
    """Return a copy of a float32 model, quantised like another model and on its device."""
    device = next(other.parameters()).device
    return _quantised(model, copy.deepcopy(other.config.quantization_config), device)


def _quantised(model: Any, config: BitsAndBytesConfig, device: torch.device) -> PreTrainedModel:
    try:
        quantised_model: PreTrainedModel = type(model).from_pretrained(
            None,
            config=copy.deepcopy(model.config),
            state_dict=dict(model.state_dict()),
            quantization_config=config,
            dtype=torch.float32,
            device_map={"": device},
        )
    except (ValueError, RuntimeError, ImportError) as error:
        why = first_line(error)
        raise ModelError(f"The model cannot be quantised (`model.quantization_config`): {why}") from error
    return quantised_model


def is_quantised(model: nn.Module) -> bool:
    """Return whether a model, or the model inside its adapters, was loaded in 4 or 8 bits."""
    return any(bool(getattr(module, "is_quantized", False)) for module in model.modules())


def in_full(model: Any) -> nn.Module:
    """Return the structure of a quantised model before quantisation, without weights (on the meta device)."""
    config = copy.deepcopy(model.config)
    vars(config).pop("quantization_config", None)
    with torch.device("meta"):
        full: nn.Module = type(model)(config)
    return full


def quantised_bytes(model: nn.Module, options: Mapping[str, Any]) -> int:
    """Estimate the size of the quantised weights in bytes; `model` may be on the meta device."""
    bits = 4 if check_options(options).load_in_4bit else 8
    getter = getattr(model, "get_output_embeddings", None)
    head = getter() if getter is not None else None
    packed = sum(
        module.get_parameter("weight").numel()
        for module in model.modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    )
    total = sum(parameter.numel() for parameter in model.parameters())
    return 4 * (total - packed) + packed * bits // 8
