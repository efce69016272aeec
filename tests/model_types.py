"""Tiny configurations of current model types, from the classes of transformers: two layers, 32 wide."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig

import tiny

TOKENS = tiny.VOCABULARY
_SPECIAL = {"vocab_size": TOKENS, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_LONG = {"max_position_embeddings": 128}
_ENCODER = {**_SMALL, **_LONG, "type_vocab_size": 1}
_GROUPED = {**_SMALL, **_LONG, "num_key_value_heads": 2}
_HEADS = {**_GROUPED, "head_dim": 8}
_EXPERTS = {**_HEADS, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_ROUTED = {**_EXPERTS, "num_experts": 4}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 1}
_BART = {
    **{f"{stack}_layers": 2 for stack in ("encoder", "decoder")},
    **{f"{stack}_attention_heads": 4 for stack in ("encoder", "decoder")},
    **{f"{stack}_ffn_dim": 48 for stack in ("encoder", "decoder")},
    "d_model": 32,
    "forced_eos_token_id": None,
    "decoder_start_token_id": 2,
    **_LONG,
}
_HYBRID = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "shared_expert_intermediate_size": 24,
}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_TOWER = {**_HEADS, "rope_parameters": {**_ROPE, "mrope_section": [1, 1, 2]}}
_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
_T5_GEMMA = {**_HEADS, "sliding_window": 16, "query_pre_attn_scalar": 8}

ENCODERS: dict[str, dict[str, Any]] = {
    "albert": {**_ENCODER, "embedding_size": 16},
    "bert": _ENCODER,
    "camembert": _ENCODER,
    "deberta": {**_ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0},
    "deberta-v2": {**_ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, **_LONG},
    "electra": {**_ENCODER, "embedding_size": 32},
    "esm": {**_ENCODER, "position_embedding_type": "absolute"},
    "eurobert": _HEADS,
    "longformer": {**_ENCODER, "attention_window": 8},
    "mobilebert": {**_ENCODER, "embedding_size": 16, "true_hidden_size": 16, "intra_bottleneck_size": 16},
    "modernbert": {**_SMALL, **_LONG, "cls_token_id": 0, "sep_token_id": 2, "local_attention": 16},
    "mpnet": _ENCODER,
    "roberta": _ENCODER,
    "xlm-roberta": _ENCODER,
    "xmod": {**_ENCODER, "languages": ["en_XX", "de_DE"], "default_language": "en_XX"},
}
DECODERS: dict[str, dict[str, Any]] = {
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "cohere": _GROUPED,
    "deepseek_v3": {
        **_SMALL,
        **_LONG,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 24,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
    "deepseek_v4": {
        **_EXPERTS,
        "num_key_value_heads": 1,
        "n_routed_experts": 4,
        "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention"],
        "mlp_layer_types": ["moe", "moe"],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        "q_lora_rank": 8,
        "o_lora_rank": 8,
        "o_groups": 2,
        "qk_rope_head_dim": 4,
        "index_head_dim": 8,
        "index_n_heads": 2,
        "index_topk": 4,
        "sliding_window": 16,
        "hc_mult": 2,
    },
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    "gemma": _HEADS,
    "gemma2": {**_HEADS, "sliding_window": 16},
    "gemma3": {
        "text_config": {**_HEADS, **_SPECIAL, "sliding_window": 16},
        "vision_config": {**_SMALL, "num_hidden_layers": 1, "image_size": 16, "patch_size": 8},
        "mm_tokens_per_image": 4,
        "image_token_index": 5,
        "boi_token_index": 6,
        "eoi_token_index": 7,
    },
    "gemma3n_text": {
        **_HEADS,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": TOKENS,
        "laurel_rank": 4,
        "altup_num_inputs": 2,
        "activation_sparsity_pattern": [0.0, 0.0],
    },
    "gemma3_text": {**_HEADS, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "gemma4_text": {
        **_GROUPED,
        "sliding_window": 16,
        "vocab_size_per_layer_input": TOKENS,
        "hidden_size_per_layer_input": 8,
    },
    "glm4": _HEADS,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "gpt_neox": {**_SMALL, **_LONG},
    "gpt_oss": {**_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    "granite": {**_GROUPED, "logits_scaling": 4.0},
    "lfm2": {**_GROUPED, "layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
    "llama": _HEADS,
    "llama4": {
        "text_config": {
            **_HEADS,
            **_SPECIAL,
            "intermediate_size_mlp": 48,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "attention_chunk_size": 64,
        },
        "vision_config": {
            **_SMALL,
            "num_hidden_layers": 1,
            "image_size": 16,
            "patch_size": 8,
            "vision_output_dim": 32,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
            "intermediate_size": 128,
        },
        "image_token_index": 5,
        "boi_token_index": 6,
        "eoi_token_index": 7,
    },
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "mamba2": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "state_size": 8,
        "num_heads": 8,
        "head_dim": 8,
        "n_groups": 2,
        "chunk_size": 16,
    },
    "mllama": {
        "text_config": {**_GROUPED, **_SPECIAL, "cross_attention_layers": [1], "rope_parameters": _ROPE},
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_global_layers": 1,
            "attention_heads": 2,
            "image_size": 16,
            "patch_size": 8,
            "vision_output_dim": 32,
            "max_num_tiles": 1,
            "supported_aspect_ratios": [[1, 1]],
            "intermediate_layers_indices": [0],
        },
    },
    "modernbert-decoder": {**_SMALL, **_LONG, "cls_token_id": 0, "sep_token_id": 2, "local_attention": 16},
    "mistral": {**_HEADS, "sliding_window": None},
    "mixtral": {**_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2},
    "olmo2": _GROUPED,
    "olmoe": {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2},
    "opt": {**_SMALL, **_LONG, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "phi": {**_SMALL, **_LONG},
    "phi3": _GROUPED,
    "qwen2": _HEADS,
    "qwen2_5_vl": {
        "text_config": {**_TOWER, **_SPECIAL},
        "vision_config": _VISION,
        "image_token_id": 5,
        "video_token_id": 6,
        "vision_start_token_id": 7,
        "vision_end_token_id": 8,
    },
    "qwen2_moe": {**_EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 24},
    "qwen3": _HEADS,
    "qwen3_5": {
        "text_config": {**_HEADS, **_SPECIAL, **_HYBRID},
        "vision_config": {**_VISION, "num_position_embeddings": 16, "patch_size": 8},
        "image_token_id": 5,
        "video_token_id": 6,
        "vision_start_token_id": 7,
        "vision_end_token_id": 8,
    },
    "qwen3_moe": _ROUTED,
    "qwen3_next": {**_ROUTED, **_HYBRID},
    "recurrent_gemma": {
        **_GROUPED,
        "lru_width": 32,
        "attention_window_size": 16,
        "block_types": ["recurrent", "attention"],
    },
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 2, "context_length": 64, "rescale_every": 0},
    "smollm3": _GROUPED,
    "stablelm": _GROUPED,
    "starcoder2": _GROUPED,
}
ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    "bart": _BART,
    "fsmt": {**_BART, "langs": ["en", "de"], "src_vocab_size": TOKENS, "tgt_vocab_size": TOKENS},
    "mbart": _BART,
    "mt5": _T5,
    "t5": _T5,
    "t5gemma": {
        "encoder": {**_T5_GEMMA, **_SPECIAL},
        "decoder": {**_T5_GEMMA, **_SPECIAL, "cross_attention_hidden_size": 32},
    },
}
TYPES = {**ENCODERS, **DECODERS, **ENCODER_DECODERS}
_RATES = ("dropout", "dropout_prob", "pdrop", "dropout_rate")


def configuration(model_type: str, **changes: Any) -> Any:
    """Return a tiny configuration without dropout."""
    config = AutoConfig.for_model(model_type, **{**_SPECIAL, **TYPES[model_type], **changes})
    for name, value in vars(config).items():
        if isinstance(value, float) and name.endswith(_RATES):
            setattr(config, name, 0.0)
    return config
