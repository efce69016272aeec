"""Byte-level BPE with RoBERTa's special tokens."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""In RoBERTa's order (arXiv 1907.11692 and its released vocabulary); <mask> follows at once instead of coming last."""


def train_tokenizer(texts: Iterable[str], out: Path, vocabulary: int, positions: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer and save it to a folder that ``AutoTokenizer`` loads without everlearn.

    The same texts give the same files.

    Args:
        texts: documents for counting pairs.
        out: folder for ``tokenizer.json`` and ``tokenizer_config.json``.
        vocabulary: size, including special tokens and the 256 bytes.
        positions: length of the model's longest input, including special tokens.
    """
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
    core.train_from_iterator(texts, trainer)
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
        model_max_length=positions,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(out)
    return tokenizer
