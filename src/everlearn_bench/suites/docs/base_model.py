"""The base model of the demo: its tokenizer, byte-level BPE trained on general documentation, and initial weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedTokenizerFast

from everlearn.errors import DataError
from everlearn.files import damage, new_folder
from everlearn_bench.suites import pretraining
from everlearn_bench.suites.docs.corpus import cache_folder

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


def start_folder() -> Path:
    """Return the folder of the initial weights, in the format of ``save_pretrained``, built on first use."""
    folder = cache_folder().with_name("docs-start")
    if damage(folder) is not None:
        with new_folder(folder) as build_folder:
            start_model().save_pretrained(build_folder)
    return folder


def start_model() -> Any:
    """Return the initial model; it has the same weights every time."""
    return pretraining.start_model(AutoConfig.from_pretrained(Path(__file__).parent / "base"), "docs", "start")
