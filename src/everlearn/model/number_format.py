"""Write the weights of a saved model in another number format."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor

from everlearn import files
from everlearn.errors import ModelError

NumberFormat = Literal["float32", "bfloat16", "float16"]
_INDEX = "*.safetensors.index.json"
_KEYS = ("dtype", "torch_dtype")


def recast(folder: Path, dtype: NumberFormat) -> None:
    """Round all weights of a model or adapter that ``save_pretrained`` has written, in place, file by file.

    The configuration is changed too, since ``from_pretrained`` loads the format that it names.

    Raises:
        ModelError: a weight is too large for the format.
    """
    torch_dtype, size = getattr(torch, dtype), 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        tensors = {name: _rounded(name, tensor, torch_dtype) for name, tensor in files.load_tensors(path).items()}
        files.save_tensors(path, tensors, metadata)
        size += sum(tensor.nbytes for tensor in tensors.values())
    for path in folder.glob(_INDEX):
        index = files.read_json(path)
        files.write_json(path, index | {"metadata": index.get("metadata", {}) | {"total_size": size}})
    config = folder / "config.json"
    if config.is_file():
        files.write_json(config, _named(files.read_json(config), dtype))


def _rounded(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    rounded = tensor.to(dtype)
    if not bool(torch.isfinite(rounded).all()) and bool(torch.isfinite(tensor).all()):
        raise ModelError(
            f"'{name}' has values up to {float(tensor.abs().max()):.3g}, which {str(dtype).removeprefix('torch.')} "
            "cannot hold. Export in bfloat16 or float32 (`--dtype`)."
        )
    return rounded


def _named(raw: Any, dtype: str) -> Any:
    """Return a configuration with the new format wherever it names one."""
    if not isinstance(raw, dict):
        return raw
    return {key: dtype if key in _KEYS and value is not None else _named(value, dtype) for key, value in raw.items()}
