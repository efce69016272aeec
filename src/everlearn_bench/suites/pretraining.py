"""Prepare and finish the pre-training of small encoders from scratch.

The functions train a tokenizer, create initial weights whose attention heads attend to neighbouring tokens, and save
the trained model in a folder small enough to be distributed with the source. Two base models were built with them: the
one of the demo (``everlearn_bench.suites.docs``) and the English encoder (``benchmarks/bases``).
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast, RobertaConfig

from everlearn.errors import EverlearnError
from everlearn.files import digest, write_json
from everlearn.model.loading import load_weights
from everlearn.seeding import seeded

OFFSETS = (-1, 1, -2, 2)
SHARPNESS = 1.4
"""Scale of queries and keys: the wanted neighbour gets most of the attention, not all of it."""
WORD_SCALE = 0.05


def start_model(config: RobertaConfig, *purpose: str) -> Any:
    """Return a masked language model of RoBERTa's type for pre-training, in float32; the same weights every time.

    Args:
        config: the shape of the model, with four attention heads. It is changed: dropout off, scale of the word
            embeddings.
        purpose: names the random stream, such as ``("english", "start")``.
    """
    # Dropout is off during pre-training: the text is seen about once, so there is nothing to regularise, and it saves a
    # fifth of the time (arXiv 2212.14034).
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    config.initializer_range = WORD_SCALE
    with seeded(*purpose):
        model = AutoModelForMaskedLM.from_config(config, dtype=torch.float32)
    width, heads = config.hidden_size, config.num_attention_heads
    rates = math.pi * (torch.arange(width // 2) + 0.5) / (width // 2)
    angles = torch.arange(config.max_position_embeddings)[:, None] * rates
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    with torch.no_grad():
        embeddings = model.roberta.embeddings
        embeddings.position_embeddings.weight.copy_(waves * WORD_SCALE * math.sqrt(2))
        attention = model.roberta.encoder.layer[0].attention.self
        size = width // heads
        for head, offset in enumerate(OFFSETS):
            # Each head takes every fourth frequency, so that each sees the whole range.
            pairs = torch.arange(head, width // 2, heads)
            rows = slice(head * size, (head + 1) * size)
            attention.query.weight[rows] = SHARPNESS * _rotation(pairs, rates[pairs] * offset, width)
            attention.key.weight[rows] = SHARPNESS * _rotation(pairs, torch.zeros(len(pairs)), width)
    return model


def _rotation(pairs: Tensor, angles: Tensor, width: int) -> Tensor:
    """Return a matrix that selects some (sine, cosine) pairs and rotates each by an angle, [2 * pairs, width]."""
    out = torch.zeros(2 * len(pairs), width)
    for row, (pair, angle) in enumerate(zip(pairs.tolist(), angles.tolist(), strict=True)):
        sine, cosine = 2 * pair, 2 * pair + 1
        # sin(a + t) = sin a cos t + cos a sin t, and cos(a + t) = cos a cos t - sin a sin t
        out[2 * row, sine], out[2 * row, cosine] = math.cos(angle), math.sin(angle)
        out[2 * row + 1, cosine], out[2 * row + 1, sine] = math.cos(angle), -math.sin(angle)
    return out


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
    with tempfile.TemporaryDirectory(dir=destination.parent) as build_folder:
        model.bfloat16().save_pretrained(build_folder)
        new = {path.name: path for path in Path(build_folder).iterdir()}
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
