"""Put a trained base model into the package: ``python -m everlearn.suites.docs.ship STAGE_FOLDER`` (see ``make base``).

The weights are stored in bf16 to stay small; training always starts from their float32 values. Dropout, which was off
while pre-training, is on in the shipped configuration: DAS measures general importance by it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from everlearn.files import digest, write_json
from everlearn.loading import load_weights
from everlearn.suites.docs import base_path

DROPOUT = 0.1
LIMIT = 12 * 10**6


def ship(stage: Path) -> Path:
    """Copy a stage's model into the package in bf16, with its checksum; the tokenizer is there already.

    Returns:
        The file with the weights.
    """
    model: Any = load_weights(str(stage), "encoder")
    model.config.hidden_dropout_prob = DROPOUT
    model.bfloat16().save_pretrained(base_path())
    weights = base_path() / "model.safetensors"
    if weights.stat().st_size > LIMIT:
        raise SystemExit(f"{weights} has {weights.stat().st_size} bytes; at most {LIMIT} are shipped.")
    write_json(base_path() / "checksum.json", {weights.name: digest(weights)})
    return weights


if __name__ == "__main__":
    print(ship(Path(sys.argv[1])))
