"""SiATL: add the loss of the language model to that of the task, and unfreeze layers from the top."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from everlearn.errors import MethodError
from everlearn.methods.base import Batch, MethodConfig, Needs, Setting, Stage, View, register
from everlearn.methods.engine.attachment import refuse_frozen_model
from everlearn.methods.tricks.depth import Thaws, scaled_rates
from everlearn.model.anatomy import kind_of
from everlearn.model.depth import depth_groups
from everlearn.model.objectives import IGNORE, Outputs, row_means

Share = Annotated[float, Field(ge=0, le=1)]


@register
class SiATL(Thaws):
    """SiATL (arXiv 1902.10547, eq. 5): L = L_task + γ(t) · L_LM, and sequential unfreezing.

    L_task is the loss of the answers; L_LM is next-token prediction on the prompts, the text of the task itself, in the
    same pass; γ decreases exponentially over a domain. First the last layer and the head are trained, then the layers
    below, then the embeddings too. A stream of plain text has no task besides language modelling, and an
    encoder-decoder has no next-token prediction on its input: both are refused.
    """

    name = "siatl"
    title = "SiATL"
    summary = "adds a language-model loss on the prompts, with gradual unfreezing"
    paper = "https://arxiv.org/abs/1902.10547"
    needs = Needs(anatomy=True, objectives=frozenset({"text-to-text"}))
    identity: ClassVar[dict[str, Any] | None] = {"auxiliary": 0, "unfreeze": (0, 0)}

    class Config(MethodConfig):
        auxiliary: float = Field(0.2, ge=0, allow_inf_nan=False)
        """γ at the first step of a domain; 0 omits the loss of the language model. The authors' code starts with
        exp(−1.6) = 0.202."""
        auxiliary_end: float = Field(0.1, gt=0, allow_inf_nan=False)
        """γ at the last step. The authors' code reaches exp(−2.3) = 0.100 in the 15th epoch and stays there."""
        unfreeze: tuple[Share, Share] = (1 / 15, 4 / 15)
        """Shares of a domain's steps after which the layers below the last, and the embeddings, are trained. The
        defaults are those of the authors' code (2nd and 5th of 15 epochs). (0, 0): all from the beginning."""
        pretrained_rate: float = Field(1.0, gt=0, le=1)
        """Learning rate below the last layer, as a share of `train.learning_rate`. The authors' code uses other
        optimizers there, which correspond to no share."""

    config: Config

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if kind_of(setting.model) != "decoder":
            raise MethodError(
                f"Method '{self.label}' trains next-token prediction on prompts, which an encoder-decoder does not do. "
                "Choose a decoder (`model.path`)."
            )
        refuse_frozen_model(self, setting)

    def gamma(self, step: int, steps: int) -> float:
        """Return γ of a step, counted from 0."""
        start, end = self.config.auxiliary, self.config.auxiliary_end
        return start * (end / start) ** (step / max(1, steps - 1)) if start else 0.0

    def parameter_groups(self, stage: Stage, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        embeddings, layers, _ = _three(stage)
        parameters, rate = dict(stage.model.named_parameters()), self.config.pretrained_rate
        return scaled_rates(groups, {id(parameters[name]): rate for name in (*embeddings, *layers)})

    def begin_training(self, stage: Stage) -> None:
        (embeddings, layers, _), (first, second) = _three(stage), self.config.unfreeze
        self.thaw(stage, [(layers, int(first * stage.steps)), (embeddings, int(second * stage.steps))])

    def views(self, stage: Stage, batch: Batch) -> list[View]:
        """Return the tokens of the prompts as labels in the batch's own pass."""
        if not self.config.auxiliary:
            return []
        labels, positions = prompt_labels(batch)
        return [View(None, labels=labels, positions=positions)]

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return γ · L_LM, averaged over the tokens of a row and over rows."""
        losses = outputs.view_losses[0] if outputs.view_losses else None
        if losses is None:
            return {}
        return {"language_model": self.gamma(stage.step, stage.steps) * row_means(losses, prompt_labels(batch)[0])}


def prompt_labels(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return labels, the next token if it is part of a prompt and IGNORE otherwise, and positions, both [B, S].

    The first token of an example is not predicted. Padding is recognised because it has no answer.

    Args:
        batch: packed prompts and answers: `input_ids` and `position_ids` [B, S], `labels` and `positions` [B, K].
    """
    ids, begins = batch["input_ids"], batch["position_ids"] == 0
    answered = torch.zeros_like(ids).scatter_add_(1, batch["positions"], (batch["labels"] != IGNORE).long()) > 0
    example = begins.cumsum(1) - 1
    answers = torch.zeros_like(ids).scatter_add_(1, example, answered.long()).gather(1, example)
    predicted = torch.zeros_like(begins)
    predicted[:, :-1] = ~begins[:, 1:] & ~answered[:, :-1] & (answers[:, :-1] > 0)
    following = ids.roll(-1, 1)
    return following.masked_fill(~predicted, IGNORE), torch.arange(ids.shape[1], device=ids.device).expand_as(ids)


def _three(stage: Stage) -> tuple[list[str], list[str], list[str]]:
    """Return the trained parameters in three parts: embeddings, lower layers, the last layer and the head."""
    trained = {name for name, p in stage.model.named_parameters() if p.requires_grad}
    embeddings, *layers, last, head = ([n for n in names if n in trained] for names in depth_groups(stage.model))
    return embeddings, [name for names in layers for name in names], [*last, *head]
