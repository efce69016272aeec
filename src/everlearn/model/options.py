"""The `model` group of a recipe."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator, model_validator

from everlearn.model.quantising import check_options
from everlearn.options import Options


class Model(Options):
    """The language model that is trained."""

    path: str | None = None
    """Hub id or local folder of the base model; leave out to start from random weights with `config`."""
    config: dict[str, Any] | None = None
    """With `path`: fields of its configuration to change, for example `{hidden_dropout_prob: 0.0}`. Without, for random
    weights: `model_type` and any field of that architecture's configuration."""
    tokenizer: str | None = None
    """Hub id or folder of the tokenizer; that of the model by default."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    attn_implementation: (
        Literal["sdpa", "eager", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attention_4"] | None
    ) = None
    """Attention kernel, as transformers names it; by default the one that transformers chooses for the model."""
    quantization_config: dict[str, Any] | None = None
    """Train adapters on a copy of the weights in 4 or 8 bits (QLoRA), by the names of transformers'
    `BitsAndBytesConfig`: `{load_in_4bit: true, bnb_4bit_quant_type: nf4}`. Needs a method that trains adapters and
    `pip install 'everlearn[quantized]'`. What was learnt is added to the float32 weights."""
    frozen: tuple[str, ...] = ()
    """Parameters that are never trained on a domain: names with wildcards (`"*.bias"`), or layers as named by
    `everlearn analyse` (`embeddings`, `layers.0`, `head`). Parameters that methods add are trained nevertheless, and
    fine-tuning on end tasks trains all."""
    trust_remote_code: bool = False
    """Run model code that comes with the checkpoint. Only for repositories that you have read."""

    @field_validator("quantization_config")
    @classmethod
    def _by_their_names(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            check_options(value)
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Model:
        if self.path is None and self.config is None:
            raise ValueError("give `path` (a pre-trained model) or `config` (random weights)")
        if self.path is not None:
            if self.config is not None and "model_type" in self.config:
                raise ValueError("`config.model_type` is for random weights; leave it out, or leave out `path`")
            return self
        if self.config is not None and "model_type" not in self.config:
            raise ValueError("`config` needs `model_type`, for example roberta")
        if self.tokenizer is None:
            raise ValueError("`config` needs `tokenizer` beside it")
        return self
