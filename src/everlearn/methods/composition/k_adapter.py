"""K-Adapter: a chain of small transformers for each domain beside a frozen model, fed by its hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from everlearn.errors import MethodError
from everlearn.methods.base import Cost, Method, MethodConfig, Needs, Reading, Setting, Stage, register
from everlearn.methods.composition.beside_layers import layers_read
from everlearn.methods.composition.knowledge import Chain, Chains, KnowledgeAdapter
from everlearn.methods.engine.attachment import (
    detach,
    fill,
    freeze_base,
    learnt_by,
    refuse_other_additions,
    refuse_without_attention,
)
from everlearn.methods.state import ByDomain
from everlearn.model.anatomy import anatomy
from everlearn.model.vocabulary_head import config_of


@register
class KAdapter(Method):
    """K-Adapter (arXiv 2002.01808, section 3): knowledge of a domain in adapters beside a frozen model.

    The chain of a domain has an adapter at each of some depths l_1 < … < l_K. With H[0] the embeddings, H[l] the output
    of layer l, and C_0 = 0,

        x_i = H[l_i] + C_{i−1},   C_i = x_i + W_up T_i(W_down x_i + b_down) + b_up

    where T_i are transformer layers, narrower than those of the model; W_down, W_up ~ N(0, 0.0002²), so that an adapter
    starts near the identity. The model is frozen, and each chain is trained alone. Attention inside an adapter has the
    mask of the model: no padding, no other document, in a decoder no later tokens.

    The input of a classifier is W [H; C_K; C'_K; …] + b over the active chains of a text, as published for several
    sources of knowledge; W is initialised so that this is H. The paper does not cover language models. Their head
    expects H, so its input is H + Σ (C_K − Σ_i H[l_i]), that is, H plus what the adapters have added, with a gate for
    each chain if `combine` is `gate`.
    """

    name = "k_adapter"
    title = "K-Adapter"
    summary = "a chain of small transformers for each domain, fed by hidden states"
    paper = "https://arxiv.org/abs/2002.01808"
    needs = Needs(domain_id_test=True, extra_parameters=True, peft=False, anatomy=True, memory="parameters")
    freezes = True

    class Config(MethodConfig):
        depths: list[int] | None = Field(None, min_length=1)
        """l_1, l_2, …: 0 is the embeddings, l the output of layer l. By default 0, one before the middle and two before
        the end: 0, 11, 22 of 24 layers, as in the authors' scripts (their page also mentions 23 for the last)."""
        transformer_layers: int = Field(2, ge=1)
        """Number of layers of T_i."""
        heads: int | None = Field(None, ge=1)
        """Attention heads of T_i, each as wide as those of the model; by default three quarters of the model's number
        (12 of 16)."""
        adapter_dropout: float = Field(0.1, ge=0, lt=1)
        """Dropout in T_i: on attention and before each residual sum."""
        combine: Literal["sum", "gate"] = "sum"
        """What a language model reads of a chain: the complete sum, or, token by token, σ(w · H + b) times it, with w
        and b trained with the chain from 0."""
        read: Literal["own", "all"] = "own"
        """At test time: the chain of the text's domain, none for text of no learnt domain; or all chains for every
        text, without a domain id."""
        freeze_adapters_at_end_task: bool = False
        """Fine-tune model, W and b with frozen chains, whose dropout stays active, as in the released code."""
        freeze_base_at_end_task: bool = False
        """Fine-tune chains, W, b and the classification head with a frozen model."""

    config: Config
    _learnt = ByDomain()
    """Every chain."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.needs = replace(type(self).needs, domain_id_test=self.config.read == "own")

    def check(self, setting: Setting) -> None:
        super().check(setting)
        refuse_other_additions(self, setting)
        refuse_without_attention(self, setting, "learns transformer layers of the model's shape")
        self._depths(setting.model)

    def cost(self, model: nn.Module) -> Cost:
        with torch.device("meta"):
            chain = self._chain(model)
        added = sum(parameter.numel() for parameter in chain.parameters())
        share = sum(p.numel() for p in layers_read(model).parameters())
        return Cost(
            memory_bytes=8 * added,
            disk_bytes_per_domain=4 * added,
            parameters=added,
            passes_per_step=round(added / share, 3),
        )

    def attach(self, stage: Stage) -> None:
        self._beside(stage.model, [self._chain(stage.model)]).attach(stage.model, self.name, freeze=True)

    def detach(self, stage: Stage) -> None:
        self._learnt[stage.domain] = learnt_by(dict(detach(stage.model, self.name).chains[0].named_parameters()))

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        """Attach the chain of the text's domain, or all of them; W and b if the model has no vocabulary head."""
        domains = [reading.domain] if self.config.read == "own" else list(self._learnt)
        kept = [self._learnt[domain] for domain in domains if domain in self._learnt]
        if kept:
            chains = [self._chain(model) for _ in kept]
            for chain, learnt in zip(chains, kept, strict=True):
                fill(dict(chain.named_parameters()), learnt, self)
                chain.requires_grad_(not self.config.freeze_adapters_at_end_task)
            if self.config.freeze_base_at_end_task:
                freeze_base(model)
            self._beside(model, chains).attach(model, self.name)
        return model

    def _chain(self, model: nn.Module) -> Chain:
        config, options = config_of(model), self.config
        size = config.hidden_size // config.num_attention_heads
        heads = options.heads or max(1, round(0.75 * config.num_attention_heads))
        adapters = [
            KnowledgeAdapter(config.hidden_size, heads, size, options.transformer_layers, options.adapter_dropout)
            for _ in self._depths(model)
        ]
        return Chain(adapters, config.hidden_size if options.combine == "gate" else 0)

    def _beside(self, model: nn.Module, chains: Sequence[Chain]) -> Chains:
        features = 0 if anatomy(model).head else config_of(model).hidden_size
        return Chains(chains, self._depths(model), features)

    def _depths(self, model: nn.Module) -> list[int]:
        """Return the depths of the adapters.

        Raises:
            MethodError: the model has no such depth, or they do not ascend.
        """
        count = len(layers_read(model))
        depths = self.config.depths or sorted({0, max(count // 2 - 1, 0), max(count - 2, 0)})
        if depths != sorted(set(depths)) or depths[0] < 0 or depths[-1] > count:
            raise MethodError(
                f"Method '{self.label}', option 'depths': must be increasing numbers from 0 to the model's {count} "
                f"layers (got {depths})."
            )
        return depths
