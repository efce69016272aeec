"""The base model's tokenizer: byte-level BPE trained on general documentation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from everlearn.errors import DataError

VOCABULARY = 8192
POSITIONS = 256
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""In RoBERTa's order (arXiv 1907.11692 and its released vocabulary); <mask> follows at once instead of coming last."""


def train_tokenizer(general_train: Path, out: Path, vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Train the tokenizer and save it to a folder that ``AutoTokenizer`` loads without everlearn.

    The same text gives the same files.

    Args:
        general_train: JSON lines with ``text``.
        out: folder for ``tokenizer.json`` and ``tokenizer_config.json``.
        vocabulary: entries, special tokens and the 256 bytes included.

    Raises:
        DataError: the file is missing.
    """
    if not general_train.is_file():
        raise DataError(f"{general_train} is missing: build the suite `docs` first.")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = [AddedToken(token, lstrip=token == "<mask>", normalized=False, special=True) for token in SPECIAL_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_texts(general_train), trainer)
    core.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token=special[-1],
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(out)
    return tokenizer


def _texts(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]
