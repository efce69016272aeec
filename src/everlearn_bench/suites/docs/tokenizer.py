"""The base model's tokenizer: byte-level BPE trained on general documentation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from everlearn.errors import DataError
from everlearn_bench.suites import pretraining

VOCABULARY = 8192
POSITIONS = 256


def train_tokenizer(general_train: Path, out: Path, vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Train the tokenizer and save it to a folder that ``AutoTokenizer`` loads without everlearn.

    The same text gives the same files.

    Args:
        general_train: JSON lines with ``text``.
        out: folder for ``tokenizer.json`` and ``tokenizer_config.json``.
        vocabulary: size, including special tokens and the 256 bytes.

    Raises:
        DataError: the file is missing.
    """
    if not general_train.is_file():
        raise DataError(f"{general_train} is missing: build the suite `docs` first.")
    return pretraining.train_tokenizer(_texts(general_train), out, vocabulary, POSITIONS)


def _texts(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]
