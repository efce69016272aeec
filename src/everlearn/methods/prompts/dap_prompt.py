"""DAP-Prompt: a soft prompt for each domain in front of a frozen model."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.methods.base import Cost, MethodConfig, Needs, register
from everlearn.methods.engine.attachment import attach_at_test, detach
from everlearn.methods.prompts.soft_prompt import (
    PromptMethod,
    SoftPrompt,
    check_memory,
    check_stage_length,
    word_embeddings,
)
from everlearn.methods.stage import Reading, Stage
from everlearn.methods.state import Tensors


@register
class DAPPrompt(PromptMethod):
    """Soft prompts (arXiv 2104.08691) trained on each domain, the baseline DAP-Prompt of DAS (arXiv 2302.03241).

    A domain has n vectors P, [n, E]; a text with token embeddings X is read as [P; X], and its last hidden states are
    those after P. Only P is trained on a domain, so the checkpoint remains the base model, bit for bit. P takes the
    first n positions of the model and the text the following ones. A text of no learnt domain is read without a prompt.

    Rows are longer by n tokens, which makes a step more expensive. Packed documents of a causal model all see P but not
    each other.
    """

    name = "dap_prompt"
    title = "DAP-Prompt"
    summary = "a soft prompt for each domain"
    paper = "https://arxiv.org/abs/2302.03241"
    needs = Needs(
        domain_id_test=True,
        extra_parameters=True,
        objectives=frozenset({"masked", "causal"}),
        peft=False,
        anatomy=True,
        memory="parameters",
    )

    class Config(MethodConfig):
        n_tokens: int = Field(100, ge=1)
        """n, the number of vectors."""
        initialise: Literal["vocabulary", "uniform"] = "vocabulary"
        """P is initialised with the embeddings of the first n tokens of the vocabulary, or uniformly in [-0.5, 0.5].
        The released repositories have both."""
        learning_rate: float | None = Field(0.3, gt=0, allow_inf_nan=False)
        """Learning rate of P, with the schedule of the run; null: `train.learning_rate`. 0.3 is used by the authors'
        code for DGA and recommended by 2104.08691; the paper states none."""
        freeze_base_at_end_task: bool = False
        """Fine-tune only the classification head, as in the released code: P and the model are frozen. The paper
        fine-tunes both."""

    config: Config
    _prompts = Tensors(listed="domains", dims=2)
    """The prompt of each domain."""

    def cost(self, model: nn.Module) -> Cost:
        added = self.config.n_tokens * word_embeddings(model).shape[1]
        return Cost(memory_bytes=4 * added, disk_bytes_per_domain=4 * added, parameters=added)

    def attach(self, stage: Stage) -> None:
        check_stage_length(self, stage, self.config.n_tokens)
        SoftPrompt(self._new(stage.model)).attach(stage.model, self.name, freeze=True)

    def detach(self, stage: Stage) -> None:
        self._prompts[stage.domain] = detach(stage.model, self.name).vectors.detach().cpu().clone()

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        """Attach the prompt of the text's domain, which fine-tuning may change; none for other text."""
        if reading.domain not in self._prompts:
            return model
        vectors = self._prompts[reading.domain]
        check_memory(self, model, vectors)
        return attach_at_test(SoftPrompt(vectors), model, self.name, freeze=self.config.freeze_base_at_end_task)

    def _new(self, model: nn.Module) -> Tensor:
        words = word_embeddings(model)
        if self.config.initialise == "uniform":
            return torch.rand(self.config.n_tokens, words.shape[1]) - 0.5
        first = torch.arange(self.config.n_tokens, device=words.device) % len(words)
        return words[first].detach().clone()
