"""Progressive Prompts: a new prompt for each domain in front of the frozen prompts of all earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.methods.base import Cost, MethodConfig, Needs, Reading, Stage, Variant, register
from everlearn.methods.engine.attachment import attach_at_test, detach, frozen
from everlearn.methods.prompts.soft_prompt import (
    PromptMethod,
    SoftPrompt,
    check_memory,
    check_stage_length,
    word_embeddings,
)
from everlearn.methods.state import Tensors


@register
class ProgressivePrompts(PromptMethod):
    """Progressive Prompts (arXiv 2301.12314, §3): in domain t a text X is read with the prompts of all domains so far.

        [P_t; P_{t−1}; …; P_1; X],   each P_i n vectors of the size of the embeddings

    Only P_t is trained, initialised with n random word embeddings. The model and earlier prompts never change, so the
    checkpoint remains the base model, bit for bit. With `bottleneck`, P_t = θ + MLP(θ) while it is trained (two layers
    with a ReLU between; §3.2); the MLP is dropped when the domain ends.

    The encoder of an encoder-decoder reads the prompts, and its decoder attends to their encoding. Rows grow by n
    positions with each domain, which makes steps increasingly expensive.
    """

    name = "progressive_prompts"
    title = "Progressive Prompts"
    summary = "a new prompt before all earlier ones"
    paper = "https://arxiv.org/abs/2301.12314"
    needs = Needs(extra_parameters=True, peft=False, anatomy=True, memory="parameters")
    variants = (
        Variant(
            "progressive_prompts_by_domain",
            "Progressive Prompts (domain id)",
            "At test time a text is read with the prompts of the domains learnt up to its own, as after its domain.",
            {"read": "own"},
        ),
    )

    class Config(MethodConfig):
        n_tokens: int = Field(10, ge=1)
        """n, the number of vectors of each domain's prompt (10 in the authors' example)."""
        bottleneck: int | None = Field(None, ge=1)
        """Width of the residual MLP (800 in the authors' code); by default the vectors themselves are trained, as in
        the code without its option."""
        learning_rate: float | None = Field(0.3, gt=0, allow_inf_nan=False)
        """Learning rate of the prompt, with the schedule of the run; the authors use 0.3. null:
        `train.learning_rate`."""
        weight_decay: float | None = Field(1e-5, ge=0, allow_inf_nan=False)
        """Weight decay of the prompt; the authors use 1e-5. null: `train.weight_decay`."""
        read: Literal["all", "own"] = "all"
        """Prompts at test time: `all` for every text, as in the released code; or, with `own` (which needs a domain id
        and forgets nothing), those of the domains up to that of the text, and none for text of no learnt domain."""
        freeze_base_at_end_task: bool = False
        """Fine-tune only the classification head: prompts and model are frozen."""

    config: Config
    _prompts = Tensors(listed="domains", dims=2)
    """The prompt of each domain."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.needs = replace(type(self).needs, domain_id_test=self.config.read == "own")

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of the prompt and its MLP; one prompt is stored for each domain."""
        n, features = self.config.n_tokens, word_embeddings(model).shape[1]
        inner = self.config.bottleneck or 0
        return Cost(
            memory_bytes=4 * n * features,
            disk_bytes_per_domain=4 * n * features,
            parameters=n * features + (2 * features * inner + inner + features if inner else 0),
        )

    def attach(self, stage: Stage) -> None:
        check_stage_length(self, stage, self.config.n_tokens * (len(self._prompts) + 1))
        for prompt in self._prompts.values():
            check_memory(self, stage.model, prompt)
        words = word_embeddings(stage.model)
        drawn = torch.randint(len(words), (self.config.n_tokens,)).to(words.device)
        new = ProgressivePrompt(words[drawn].detach(), list(self._prompts.values()), self.config.bottleneck)
        new.attach(stage.model, self.name, freeze=True)

    def detach(self, stage: Stage) -> None:
        """Keep the prompt including its MLP, and restore the base model."""
        trained: ProgressivePrompt = detach(stage.model, self.name)
        self._prompts[stage.domain] = trained.own().detach().cpu().clone()

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        """Attach all prompts, or those up to the text's own domain; fine-tuning may change the last of them."""
        known = list(self._prompts)
        if self.config.read == "own":
            known = known[: known.index(reading.domain) + 1] if reading.domain in self._prompts else []
        if not known:
            return model
        *earlier, last = (self._prompts[domain] for domain in known)
        for vectors in (*earlier, last):
            check_memory(self, model, vectors)
        prompt = ProgressivePrompt(last, earlier)
        return attach_at_test(prompt, model, self.name, freeze=self.config.freeze_base_at_end_task)


class ProgressivePrompt(SoftPrompt):
    """[P_t; P_{t−1}; …; P_1] in front of every row.

    Args:
        vectors: initial values of P_t, [n, E].
        earlier: P_1 to P_{t−1}, in this order; never trained.
        bottleneck: width of the residual MLP over `vectors`; None for no MLP.
    """

    def __init__(self, vectors: Tensor, earlier: Sequence[Tensor], bottleneck: int | None = None) -> None:
        super().__init__(vectors)
        features = vectors.shape[1]
        self.earlier = frozen(earlier)
        self.mlp: nn.Module | None = None
        if bottleneck is not None:
            self.mlp = nn.Sequential(nn.Linear(features, bottleneck), nn.ReLU(), nn.Linear(bottleneck, features))

    def own(self) -> Tensor:
        """Return P_t, [n, E]."""
        changed: Tensor = self.vectors if self.mlp is None else self.vectors + self.mlp(self.vectors)
        return changed

    def prompt(self) -> Tensor:
        return torch.cat([self.own(), *list(self.earlier)[::-1]])

    @property
    def taken_positions(self) -> int:
        return len(self.vectors) + sum(len(prompt) for prompt in self.earlier)
