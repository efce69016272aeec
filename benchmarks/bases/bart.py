"""Where the encoder-decoder begins: a BART-type model made of a pre-trained RoBERTa-type encoder (arXiv 1907.12461).

BART has RoBERTa's layers, so the encoder is RoBERTa's, output for output. The decoder is one layer (arXiv 2006.10369:
a deep encoder needs no deep decoder): RoBERTa's first self-attention, its words and its vocabulary head. Copied weights
alone never taught a small decoder to look at its prompt: there is little to be gained from a prompt whose words are
averaged, and nothing that says where to look. So the cross-attention begins with both:

* **Where**: query and key are the part of a state that tells one sentinel from another, so each gap's answer looks at
  that gap.
* **What**: the value is what RoBERTa's vocabulary head makes of a mask's state before its nonlinearity, so the decoder
  begins with the encoder's own guess.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import BartConfig, BartForConditionalGeneration

from everlearn.seeding import seeded

SHARPNESS = 3.0
"""Scale of queries and keys: a gap's own sentinel gets the largest share of the attention, not all of it."""
DAMPED = 0.1
"""Scale of what the decoder's feed-forward adds: RoBERTa's knows nothing of what the cross-attention has read."""


def begun_from(roberta: Any, mask: int, sentinels: int) -> BartForConditionalGeneration:
    """A model that gives RoBERTa's encoder outputs, with one decoder layer that reads them, in float32.

    Args:
        roberta: ``RobertaForMaskedLM``.
        mask: id of its mask token; each sentinel begins as that word and a random vector.
        sentinels: number of entries behind its vocabulary, at most the features of an attention head.
    """
    old, layers = roberta.config, roberta.roberta.encoder.layer
    config = BartConfig(
        vocab_size=old.vocab_size + sentinels,
        d_model=old.hidden_size,
        encoder_layers=old.num_hidden_layers,
        decoder_layers=1,
        **{f"{stack}_attention_heads": old.num_attention_heads for stack in ("encoder", "decoder")},
        **{f"{stack}_ffn_dim": old.intermediate_size for stack in ("encoder", "decoder")},
        max_position_embeddings=old.max_position_embeddings - old.pad_token_id - 1,
        dropout=0.0,
        bos_token_id=old.bos_token_id,
        pad_token_id=old.pad_token_id,
        eos_token_id=old.eos_token_id,
        decoder_start_token_id=old.eos_token_id,
        forced_eos_token_id=None,
    )
    with seeded("bart", "start"):
        model = BartForConditionalGeneration(config).float().eval()
        apart = torch.randn(sentinels, config.d_model)
    with torch.no_grad():
        encoder, decoder = model.model.encoder, model.model.decoder
        words = roberta.roberta.embeddings.word_embeddings.weight
        apart *= words.std()
        model.model.shared.weight.copy_(torch.cat([words, words[mask] + apart]))
        for stack in (encoder, decoder):
            _copy_embeddings(stack, roberta.roberta.embeddings, old.pad_token_id)
        for layer, source in zip(encoder.layers, layers, strict=True):
            _copy_layer(layer, source)
        last = decoder.layers[0]
        _copy_layer(last, layers[0])
        last.fc2.weight.mul_(DAMPED)
        last.fc2.bias.mul_(DAMPED)
        _same(last.final_layer_norm, roberta.lm_head.layer_norm)
        _start_reading(last.encoder_attn, apart / apart.norm(dim=1, keepdim=True), roberta.lm_head.dense)
    return model


def _start_reading(attention: Any, apart: Tensor, dense: nn.Linear) -> None:
    """Each head looks where the same of the directions `apart`, [sentinels, H], is; `dense` is what it passes on."""
    for projection in (attention.q_proj, attention.k_proj):
        nn.init.zeros_(projection.weight)
        nn.init.zeros_(projection.bias)
        for rows in projection.weight.split(attention.head_dim):
            rows[: len(apart)] = SHARPNESS * apart
    _same(attention.v_proj, dense)
    nn.init.eye_(attention.out_proj.weight)
    nn.init.zeros_(attention.out_proj.bias)


def _copy_embeddings(stack: Any, source: Any, padding: int) -> None:
    """Both types number a text's first token 2, RoBERTa behind the padding token's number, BART by its offset."""
    positions = source.position_embeddings.weight[padding + 1 :] + source.token_type_embeddings.weight[0]
    stack.embed_positions.weight[stack.embed_positions.offset :] = positions
    _same(stack.layernorm_embedding, source.LayerNorm)


def _copy_layer(layer: Any, source: Any) -> None:
    """Self-attention and feed-forward, which are the same function in both."""
    inner, outer = source.attention.self, source.attention.output
    for mine, other in (
        (layer.self_attn.q_proj, inner.query),
        (layer.self_attn.k_proj, inner.key),
        (layer.self_attn.v_proj, inner.value),
        (layer.self_attn.out_proj, outer.dense),
        (layer.self_attn_layer_norm, outer.LayerNorm),
        (layer.fc1, source.intermediate.dense),
        (layer.fc2, source.output.dense),
        (layer.final_layer_norm, source.output.LayerNorm),
    ):
        _same(mine, other)


def _same(mine: nn.Module, source: nn.Module) -> None:
    mine.load_state_dict(source.state_dict())
