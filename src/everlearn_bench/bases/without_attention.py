"""Causal language models without attention: the common base of the LSTM and the CNN.

They are the base models of a study (Arora, Rahimi and Baldwin, *Does an LSTM forget more than a CNN?*, ALTA 2019) as
ordinary transformers models. A text is read from its first token to its last. Documents that share a row do not see
each other: a document begins where positions do not count on, and no state is carried over into it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    SequenceClassifierOutputWithPast,
)
from transformers.utils import can_return_tuple

from everlearn.model.architectures import Architecture, FeedForward, Stack, register_architecture
from everlearn.model.finding import CACHES, cache_in
from everlearn.model.packed_rows import documents, so_far

Pooling = Literal["last", "max", "mean"]
State = tuple[Tensor, ...]
"""State of a layer after the text so far, from which it can continue."""
CACHE = next(name for name in CACHES if name in BaseModelOutputWithPast.__dataclass_fields__)
"""What the installed transformers calls the states in the outputs of a model."""


@strict
class NoAttentionConfig(PreTrainedConfig):
    """Configuration of a model without attention; ``bos_token_id`` etc. are as in every transformers model."""

    keys_to_ignore_at_inference: ClassVar[list[str]] = [CACHE]

    vocab_size: int = 12288
    hidden_size: int = 256
    """Size of embeddings and hidden states."""
    intermediate_size: int = 1024
    """Cells of an LSTM's layer, filters of a CNN's."""
    num_hidden_layers: int = 2
    pooling: Pooling = "last"
    """How a text is pooled to one vector: its last token's, or the maximum or mean of all."""
    dropout: float = 0.1
    """Dropout on embeddings and on the output of each layer."""
    initializer_range: float = 0.02
    use_cache: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None


class NoAttentionLayer(GradientCheckpointingLayer):
    """One layer with a residual connection."""

    def __init__(self, config: NoAttentionConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, document: Tensor, before: State | None = None) -> tuple[Tensor, State]:
        """Return the output of the layer and its state.

        Args:
            hidden: [B, S, H].
            document: document number of each token, [B, S].
            before: the state after the preceding tokens; the first token here continues their document.
        """
        added, state = self.read(self.norm(hidden), document, before)
        return hidden + self.dropout(added), state

    def read(self, x: Tensor, document: Tensor, before: State | None) -> tuple[Tensor, State]:
        """Return the residual update, [B, S, H], and the state after the last token."""
        raise NotImplementedError


class NoAttentionPreTrained(PreTrainedModel):
    """Base class with the attributes that transformers requires."""

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    # There is no attention, so every attention kernel is supported.
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    layer: ClassVar[type[NoAttentionLayer]]

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)


class NoAttentionModel(NoAttentionPreTrained):
    """Embeddings, layers and a final norm."""

    def __init__(self, config: NoAttentionConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(self.layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size)
        self.gradient_checkpointing = False
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        **caches: Any,
    ) -> BaseModelOutputWithPast:
        """Run the model; arguments are as in transformers, [B, S] each.

        Args:
            input_ids: token ids.
            attention_mask: marks padding, on either side; a mask with other dimensions is ignored.
            position_ids: a document begins where they do not count on; without them a row is one document.
            inputs_embeds: embeddings in place of `input_ids`, [B, S, H].
            use_cache: whether to return the states of the layers.
            output_hidden_states: whether to return the hidden states of all layers.
            caches: `cache` (or `past_key_values`): the states of the layers after the preceding tokens. Other arguments
                that transformers gives are ignored.
        """
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        document, before = documents_of(x, position_ids, attention_mask), cache_in(caches)
        hidden = self.dropout(x)
        seen, states = [hidden], []
        for number, layer in enumerate(self.layers):
            hidden, state = layer(hidden, document, before[number] if before else None)
            seen.append(hidden)
            states.append(state)
        seen[-1] = hidden = self.norm(hidden)
        keep = self.config.use_cache if use_cache is None else use_cache
        return BaseModelOutputWithPast(
            last_hidden_state=hidden,
            hidden_states=tuple(seen) if output_hidden_states else None,
            **{CACHE: states if keep and not self.training else None},  # type: ignore[arg-type]
        )


def documents_of(x: Tensor, position_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor:
    """Return the document number of each token of `x`, [B, S]; the mask may also cover the preceding tokens."""
    if attention_mask is not None and attention_mask.dim() == 2:
        attention_mask = attention_mask[:, -x.shape[1] :]
    return documents({"inputs_embeds": x, "position_ids": position_ids, "attention_mask": attention_mask})


def pooled(values: Tensor, document: Tensor, how: Pooling, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Pool each document up to each token.

    Args:
        values: values of the tokens, [B, S, E].
        document: document number of each token, [B, S].
        how: the last value, the maximum or the mean.
        before: the state that an earlier call returned, to continue from.

    Returns:
        The pooled values, [B, S, E], and the state, [B, 1, E or E + 1].
    """
    if how == "last":
        return values, values[:, -1:]
    if how == "mean":  # sums and counts
        values = torch.cat([values, values.new_ones(*values.shape[:2], 1)], 2)
    if before is not None:
        values, document = torch.cat([before, values], 1), torch.cat([document[:, :1], document], 1)
    scanned = so_far(values, document, torch.maximum if how == "max" else torch.add)
    scanned = scanned if before is None else scanned[:, 1:]
    return scanned[..., :-1] / scanned[..., -1:] if how == "mean" else scanned, scanned[:, -1:]


class NoAttentionForCausalLM(NoAttentionPreTrained, GenerationMixin):
    """A language model with a vocabulary head."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012  as transformers has it
    body: ClassVar[type[NoAttentionModel]]

    def __init__(self, config: NoAttentionConfig) -> None:
        super().__init__(config)
        self.model = self.body(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the states are not keys and values

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Run the model as in :meth:`NoAttentionModel.forward`; labels [B, S] are shifted here, as in transformers."""
        outputs = self.model(input_ids, **options)
        logits = self.lm_head(outputs.last_hidden_state[:, -logits_to_keep:])
        loss = None if labels is None else self.loss_function(logits, labels, vocab_size=self.config.vocab_size)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, **{CACHE: cache_in(outputs)}
        )


class NoAttentionForSequenceClassification(NoAttentionPreTrained):
    """A text classifier: a linear layer on the pooled hidden states."""

    body: ClassVar[type[NoAttentionModel]]

    def __init__(self, config: NoAttentionConfig) -> None:
        super().__init__(config)
        self.num_labels = int(config.num_labels or 0)
        self.model = self.body(config)
        self.score = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **options: Any,
    ) -> SequenceClassifierOutputWithPast:
        """Classify texts, one per row, padded on either side.

        Arguments are as in :meth:`NoAttentionModel.forward`, and labels [B].
        """
        inputs = {"attention_mask": attention_mask, "position_ids": position_ids, **options, "use_cache": False}
        outputs = self.model(input_ids, **inputs)
        hidden = outputs.last_hidden_state
        texts, _ = pooled(hidden, documents_of(hidden, position_ids, attention_mask), self.config.pooling)
        last = torch.full_like(hidden[:, 0, 0], hidden.shape[1] - 1, dtype=torch.long)
        if attention_mask is not None:
            last = (attention_mask * torch.arange(hidden.shape[1], device=hidden.device)).argmax(1)
        logits = self.score(texts[torch.arange(len(texts), device=texts.device), last])
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutputWithPast(loss=loss, logits=logits, hidden_states=outputs.hidden_states)


def make_known(
    config: type[NoAttentionConfig],
    model: type[NoAttentionModel],
    causal: type[NoAttentionForCausalLM],
    classifier: type[NoAttentionForSequenceClassification],
    *projections: str,
    recurrent: bool = False,
) -> None:
    """Register the models with the Auto classes of transformers, and where their projections are.

    Args:
        config: their configuration.
        model: without a head.
        causal: the language model.
        classifier: the text classifier.
        projections: paths of a layer's projections, the output last.
        recurrent: whether a layer calls them once per token.
    """
    *inputs, output = projections
    stack = Stack("layers", (), FeedForward(tuple(inputs), output), recurrent=recurrent)
    register_architecture(config.model_type, Architecture("decoder", "lm_head", (stack,)))
    AutoConfig.register(config.model_type, config)
    AutoModel.register(config, model)
    AutoModelForCausalLM.register(config, causal)
    AutoModelForSequenceClassification.register(config, classifier)
