"""Tiny models, tokenizers and texts that every test shares."""

from __future__ import annotations

import copy
import functools
import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from everlearn.data.blocks import Block
from everlearn.data.corpus import Document
from everlearn.data.packing import make_packer
from everlearn.data.tokenize import Encoder, Kind

DEVICE = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
"""Where models are trained in tests of trainings. Formulas are compared with their slow references on the CPU."""
USE_CPU = DEVICE.type == "cpu"
"""The Trainer's `use_cpu` in those tests. Two processes are always on the CPU (`two_processes.HIDDEN`)."""
VOCABULARY = 384
WORDS = [
    "the",
    "model",
    "learns",
    "a",
    "domain",
    "and",
    "keeps",
    "what",
    "it",
    "knew",
    "before",
    "while",
    "tensors",
    "flow",
    "graphs",
    "nodes",
    "edges",
    "integrals",
    "plots",
    "figures",
    "axes",
    "frames",
    "series",
    "index",
    "rows",
    "columns",
    "solve",
    "equation",
    "matrix",
    "vector",
    "random",
    "sample",
    "mean",
    "variance",
    "test",
]


def texts(count: int, seed: int = 0, words: int = 60) -> list[str]:
    """Reproducible nonsense of varying length."""
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(5, words))) + "." for _ in range(count)]


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with the special tokens of an encoder and of a decoder."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts(200), trainer)
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_max_length=64,
    )


_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
_GQA = {**_SMALL, "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 8}
ARCHITECTURES: dict[str, tuple[str, dict]] = {
    "roberta": ("masked", {**_SMALL, "max_position_embeddings": 130, "type_vocab_size": 1}),
    "bert": ("masked", {**_SMALL, "max_position_embeddings": 128}),
    "distilbert": (
        "masked",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 128},
    ),
    "gpt2": ("causal", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "gpt_neox": ("causal", {**_SMALL, "max_position_embeddings": 128}),
    "llama": ("causal", _GQA),
    "mistral": ("causal", {**_GQA, "sliding_window": None}),
    "qwen2": ("causal", _GQA),
    "qwen3": ("causal", _GQA),
    "gemma2": ("causal", _GQA),
    "t5": (
        "text-to-text",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 1},
    ),
    "bart": (
        "text-to-text",
        {
            **{f"{stack}_layers": 2 for stack in ("encoder", "decoder")},
            **{f"{stack}_attention_heads": 4 for stack in ("encoder", "decoder")},
            **{f"{stack}_ffn_dim": 64 for stack in ("encoder", "decoder")},
            "d_model": 32,
            "forced_eos_token_id": None,
            "max_position_embeddings": 128,
        },
    ),
}
_CLASSES = {"masked": AutoModelForMaskedLM, "causal": AutoModelForCausalLM, "text-to-text": AutoModelForSeq2SeqLM}


def pack(documents: Iterable[Document], size: int, *, kind: Kind, target_size: int | None = None) -> Iterator[Block]:
    """Blocks of documents, which all have a target or all have none."""
    documents = list(documents)
    examples = any(document.target is not None for document in documents)
    packer = make_packer(Encoder(tokenizer(), kind), size, examples=examples, target_size=target_size)
    return itertools.chain(packer.feed(documents), packer.finish())


def objective_of(architecture: str) -> str:
    """The objective that belongs to an architecture."""
    return ARCHITECTURES[architecture][0]


def model(architecture: str = "roberta", dropout: float = 0.0, seed: int = 0, **changes):
    """A random model: two layers, 32 wide, float32, in eval mode.

    Without changes it is a copy of one that was made once, in half the time; it leaves the generator as that one did.
    """
    if changes:
        return _new(architecture, dropout, seed, **changes)
    made, generator = _made(architecture, dropout, seed)
    torch.manual_seed(seed)
    torch.set_rng_state(generator)
    return copy.deepcopy(made)


def placed(architecture: str = "roberta", **options: Any) -> PreTrainedModel:
    """A random model on the device of trainings."""
    return model(architecture, **options).to(DEVICE)


def beside(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch on the device of a model."""
    device = next(model.parameters()).device
    return {name: value.to(device) for name, value in batch.items()}


@functools.cache
def _made(architecture: str, dropout: float, seed: int) -> tuple[PreTrainedModel, torch.Tensor]:
    return _new(architecture, dropout, seed), torch.get_rng_state()


def _new(architecture: str, dropout: float, seed: int, **changes: Any) -> PreTrainedModel:
    objective, options = ARCHITECTURES[architecture]
    config = AutoConfig.for_model(architecture, **{**_TOKENS, **options, **changes})
    for name in (
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "dropout",
        "attention_dropout",
        "resid_pdrop",
        "embd_pdrop",
        "attn_pdrop",
        "dropout_rate",
        "hidden_dropout",
        "classifier_dropout_prob",
    ):
        if hasattr(config, name):
            setattr(config, name, dropout)
    torch.manual_seed(seed)
    return _CLASSES[objective].from_config(config, dtype=torch.float32).eval()
