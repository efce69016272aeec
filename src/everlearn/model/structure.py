"""The structure of any language model: its entry in the table of architectures, or what is found in its modules."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from everlearn.errors import ModelError
from everlearn.model.architectures import Architecture, Kind, registered
from everlearn.model.finding import detect_architecture, transformers_model

_CLASSES: dict[Kind, Any] = {
    "encoder": AutoModelForMaskedLM,
    "decoder": AutoModelForCausalLM,
    "encoder-decoder": AutoModelForSeq2SeqLM,
}
_ARCHITECTURES: dict[tuple[str, str], Architecture] = {}
_KEPT = 64


def kind_of_config(config: Any) -> Kind:
    """Return the kind of the language model that a configuration describes.

    For an architecture that is not registered, the kind follows from the language-model classes that transformers has
    for the type; a type with a masked and a causal class is an encoder unless ``is_decoder`` is set.

    Raises:
        ModelError: transformers has no language-model class for it.
    """
    model_type, own = str(config.model_type), getattr(config, "auto_map", None) or {}
    if (entry := registered(model_type)) is not None:
        return entry.kind
    if getattr(config, "is_encoder_decoder", False) and (
        model_type in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES or "AutoModelForSeq2SeqLM" in own
    ):
        return "encoder-decoder"
    masked = model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES or "AutoModelForMaskedLM" in own
    if masked and not getattr(config, "is_decoder", False):
        return "encoder"
    decoders = (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    if any(model_type in names for names in decoders) or "AutoModelForCausalLM" in own:
        return "decoder"
    raise ModelError(
        f"A '{model_type}' (`model.path`) is no language model: transformers has no class for it with a masked, causal "
        "or text-to-text head. Choose a language model; docs/add-an-architecture.md says how to add a type of your own."
    )


def language_model_class(config: Any) -> Any:
    """Return the class of transformers that loads the language model of a configuration.

    A vision-language model is loaded complete, and trained as a text model: the causal class that some types also have
    would leave the vision out.
    """
    kind = kind_of_config(config)
    return AutoModelForImageTextToText if kind == "decoder" and sees(config.model_type) else _CLASSES[kind]


def sees(model_type: str) -> bool:
    """Return whether transformers has a vision-language class for a type."""
    return model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES


def architecture_of(model: nn.Module) -> Architecture:
    """Return the architecture of a model, with or without wrappers, adapters and a language-model head.

    Raises:
        ModelError: it is no language model of transformers.
    """
    inner = transformers_model(model)[1]
    # FSDP2 puts a class of its own before the model's.
    own = next(each for each in type(inner).__mro__ if not each.__name__.startswith("FSDP"))
    return _architecture(inner.config, own.__name__, lambda config: own._from_config(config))  # type: ignore[attr-defined]


def architecture_for(config: Any) -> Architecture:
    """Return the architecture of the language model that a configuration describes; see :func:`architecture_of`."""
    return _architecture(config, "", language_model_class(config).from_config)


def _architecture(config: Any, owner: str, build: Any) -> Architecture:
    if (entry := registered(str(config.model_type))) is not None:
        return entry
    # Found in a copy without adapters and attachments, so that it depends on the configuration alone.
    key = owner, repr(config.to_dict())
    if key not in _ARCHITECTURES:
        kind = kind_of_config(config)
        with torch.device("meta"):
            plain = build(copy.deepcopy(config))
        if len(_ARCHITECTURES) >= _KEPT:
            _ARCHITECTURES.pop(next(iter(_ARCHITECTURES)))
        _ARCHITECTURES[key] = detect_architecture(plain, kind)
    return _ARCHITECTURES[key]
