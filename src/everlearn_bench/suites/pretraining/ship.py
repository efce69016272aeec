"""Save a trained model in a folder that is small enough for a repository."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from everlearn.errors import EverlearnError
from everlearn.files import digest, write_json
from everlearn.model.loading import load_weights

DROPOUT = 0.1
LIMIT = 12 * 10**6
"""Bytes of a shipped folder at most."""


def ship(stage: Path, destination: Path) -> Path:
    """Save the model of a stage in bf16, with its checksum; the tokenizer is in the destination already.

    Training always starts from the float32 values of these weights. Hidden dropout, which was off during pre-training,
    is on in the shipped configuration: DAS needs it to measure general importance.

    Args:
        stage: folder with a masked language model.
        destination: folder for ``config.json``, ``model.safetensors`` and ``checksum.json``.

    Returns:
        The file with the weights.

    Raises:
        EverlearnError: the folder would exceed 12 MB; it is left as it was.
    """
    model: Any = load_weights(str(stage))
    model.config.hidden_dropout_prob = DROPOUT
    destination.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as made:
        model.bfloat16().save_pretrained(made)
        new = {path.name: path for path in Path(made).iterdir()}
        kept = [path for path in destination.rglob("*") if path.is_file() and path.name not in new]
        size = sum(path.stat().st_size for path in [*new.values(), *kept])
        if size > LIMIT:
            raise EverlearnError(
                f"{destination} would hold {size} bytes; at most {LIMIT} are shipped. "
                "Choose a smaller `vocab_size` or fewer layers."
            )
        weights = destination / "model.safetensors"
        write_json(destination / "checksum.json", {weights.name: digest(new[weights.name])})
        for name, path in new.items():
            os.replace(path, destination / name)
    return weights
