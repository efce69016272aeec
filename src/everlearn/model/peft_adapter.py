"""A PEFT adapter on disk: the change of the base model by a stream, for ``PeftModel.from_pretrained(base, folder)``.

A stage folder holds it beside the merged weights (``adapter/``) or, if these are not kept, in their place.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from peft import LoraConfig, PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils.peft_utils import find_adapter_config_file

from everlearn import files
from everlearn.errors import ModelError, RunError
from everlearn.model.routing import has_experts
from everlearn.model.vocabulary_head import config_of, text_config

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BESIDE = "adapter"
"""Folder of the adapter inside a stage that also has its merged weights."""
_MATRIX = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])\.[^.]+\.weight")
_DIRECTIONS = "_directions_of_merged_adapter"
TASKS = {"decoder": "CAUSAL_LM", "encoder-decoder": "SEQ_2_SEQ_LM"}
"""Kind of model → PEFT's task; it has none for masked language models."""


@dataclass(frozen=True)
class PeftAdapter:
    """The difference between the model of a stage and the base model.

    Attributes:
        config: PEFT's configuration, without the base model's name.
        tensors: by PEFT's names, as from ``get_peft_model_state_dict``.
        alone: whether it replaces the model of the stage instead of being stored beside it.
    """

    config: LoraConfig
    tensors: Mapping[str, Tensor]
    alone: bool = False

    def save(self, stage: Path, base: str | None, revision: str | None = None) -> None:
        """Save the adapter in PEFT's format; the same adapter gives the same bytes.

        Args:
            stage: the folder of a stage.
            base: hub id or folder of the base model; None if it has no name.
            revision: revision of the base model's repository.
        """
        folder = stage if self.alone else stage / BESIDE
        raw = {key: _plain(value) for key, value in self.config.to_dict().items()}
        files.save_tensors(folder / WEIGHTS, self.tensors, {"format": "pt"})
        files.write_json(
            folder / CONFIG, dict(sorted((raw | {"base_model_name_or_path": base, "revision": revision}).items()))
        )


def _plain(value: Any) -> Any:
    """Convert a value to JSON; PEFT keeps names in sets, whose order differs between processes."""
    if isinstance(value, set):
        return sorted(value)
    return getattr(value, "value", value)


def adapter_in(stage: Path) -> Path | None:
    """Return the adapter folder of a stage, beside the merged weights or in their place; None if there is none."""
    return next((place for place in (stage / BESIDE, stage) if (place / CONFIG).is_file()), None)


def base_of(path: str, revision: str | None = None) -> tuple[str, str | None] | None:
    """Return the base model and its revision for an adapter in a folder or repository; None for a complete model.

    Raises:
        ModelError: the adapter does not name its base model.
    """
    config_file = find_adapter_config_file(path, revision=revision)
    if config_file is None:
        return None
    raw = _read(Path(config_file))
    base = raw.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"'{path}' (`model.path`) is an adapter that does not name its base model. Put it into its {CONFIG} "
            "(`base_model_name_or_path`)."
        )
    return base, raw.get("revision")


def with_adapter(base: Callable[[], PreTrainedModel], path: str, revision: str | None = None) -> PreTrainedModel:
    """Return a plain model: a base model with the weights of an adapter merged into it.

    Args:
        base: loads the base model of the adapter, which is changed in place.
        path: folder or hub id of the adapter.
        revision: revision of the repository.
    """
    changed: Any = PeftModel.from_pretrained(base(), path, revision=revision)
    directions = {at: a.detach().clone() for at, a in matrices_of(changed, "A", trained=False).items()}
    plain = merged(changed)
    plain.requires_grad_(True)
    setattr(plain, _DIRECTIONS, directions)
    return plain


def holds_adapter(model: nn.Module) -> bool:
    """Return whether an adapter was merged into a model when it was loaded (:func:`with_adapter`)."""
    return hasattr(model, _DIRECTIONS)


def directions_of(model: nn.Module) -> dict[str, Tensor]:
    """Return A of the LoRA adapter that was merged into a model (:func:`with_adapter`), by path of the layer."""
    return dict(getattr(model, _DIRECTIONS, {}))


def matrices_of(model: nn.Module, which: Literal["A", "B"], trained: bool = True) -> dict[str, nn.Parameter]:
    """Return A or B of the LoRA adapters, by the path of their layer.

    Args:
        model: a model with adapters; without, there is nothing.
        which: the matrix.
        trained: whether to return the matrices of the adapter in training, or of frozen ones.
    """
    matrices = {}
    for name, parameter in model.named_parameters():
        if (match := _MATRIX.fullmatch(name)) and match[2] == which and parameter.requires_grad == trained:
            matrices[match[1]] = parameter
    return matrices


def merged(adapted: Any) -> PreTrainedModel:
    """Return the plain model of a PEFT model, with the adapters added to its weights; embeddings stay tied.

    For a model with two vocabulary tables (T5Gemma) PEFT assumes untied output embeddings and changes the
    configuration, which would untie them when the model is loaded; this is undone.
    """
    config = adapted.get_base_model().config
    tied = getattr(config, "tie_word_embeddings", None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*no longer tied after merging")
        plain: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
    output: Any = plain.get_output_embeddings()
    if tied and sum(one is output.weight for _, one in plain.named_parameters(remove_duplicate=False)) > 1:
        config.tie_word_embeddings = tied
    return plain


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = files.read_json(path)
    except RunError as error:
        raise ModelError(str(error)) from None
    if not isinstance(raw, dict):
        raise ModelError(f"{path} is damaged: it holds no mapping.")
    return raw


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
