"""A PEFT adapter on disk: what a stream has changed in its base model, for ``PeftModel.from_pretrained(base, folder)``.

A stage folder holds it beside the merged weights (``adapter/``) or, where these are not kept, in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftModel
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils.peft_utils import find_adapter_config_file

from everlearn import files
from everlearn.errors import ModelError, RunError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BESIDE = "adapter"
"""Folder of the adapter inside a stage that has its merged weights too."""
TASKS = {"decoder": "CAUSAL_LM", "encoder-decoder": "SEQ_2_SEQ_LM"}
"""PEFT's task by the kind of model; it has none for masked language models."""


@dataclass(frozen=True)
class PeftAdapter:
    """The difference between a stage's model and the base model.

    Attributes:
        config: as PEFT takes it; which model it is relative to is not in it.
        tensors: by PEFT's names, as ``get_peft_model_state_dict`` gives them.
        alone: whether it stands in place of the stage's model, or beside it.
    """

    config: LoraConfig
    tensors: Mapping[str, Tensor]
    alone: bool = False

    def save(self, stage: Path, base: str | None, revision: str | None = None) -> None:
        """Write it as PEFT does, the same bytes for the same adapter.

        Args:
            stage: a stage's folder.
            base: hub id or folder of the base model; None where it has no name.
            revision: of the base model's repository.
        """
        folder = stage if self.alone else stage / BESIDE
        raw = {key: _plain(value) for key, value in self.config.to_dict().items()}
        files.save_tensors(folder / WEIGHTS, self.tensors, {"format": "pt"})
        files.write_json(
            folder / CONFIG, dict(sorted((raw | {"base_model_name_or_path": base, "revision": revision}).items()))
        )


def _plain(value: Any) -> Any:
    """JSON; PEFT keeps names in sets, whose order changes from process to process."""
    if isinstance(value, set):
        return sorted(value)
    return getattr(value, "value", value)


def adapter_in(stage: Path) -> Path | None:
    """Where a stage's adapter is: beside the merged weights, in their place, or nowhere."""
    return next((place for place in (stage / BESIDE, stage) if (place / CONFIG).is_file()), None)


def base_of(path: str, revision: str | None = None) -> tuple[str, str | None] | None:
    """What the adapter in a folder or repository is relative to, and its revision; None where there is a whole model.

    Raises:
        ModelError: it does not say.
    """
    found = find_adapter_config_file(path, revision=revision)
    if found is None:
        return None
    raw = _read(Path(found))
    base = raw.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"'{path}' (`model.path`) is an adapter that does not name its base model. Put it into its {CONFIG} "
            "(`base_model_name_or_path`)."
        )
    return base, raw.get("revision")


def with_adapter(base: Callable[[], PreTrainedModel], path: str, revision: str | None = None) -> PreTrainedModel:
    """A base model with an adapter added to its weights: a plain model.

    Args:
        base: makes the model that the adapter is relative to, which is changed.
        path: folder or hub id of the adapter.
        revision: of the repository.
    """
    changed: Any = PeftModel.from_pretrained(base(), path, revision=revision)
    plain: PreTrainedModel = changed.merge_and_unload(safe_merge=True)
    plain.requires_grad_(True)
    return plain


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = files.read_json(path)
    except RunError as error:
        raise ModelError(str(error)) from None
    if not isinstance(raw, dict):
        raise ModelError(f"{path} is damaged: it holds no mapping.")
    return raw
