"""The objective of reward models, which score pairs of answers and have no vocabulary head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everlearn.data.blocks import Block
from everlearn.errors import DataError
from everlearn.model.anatomy import kind_of
from everlearn.model.objectives import Batch
from everlearn.model.vocabulary_head import LogitLoss
from everlearn.protecting.foreign_data import Collator
from everlearn.protecting.foreign_text import Theirs


@dataclass(frozen=True)
class TheirScores(Theirs):
    """The objective of reward models: a batch has the chosen answers of all pairs, then the rejected ones.

    A sample is a pair with the loss −log σ(r_chosen − r_rejected − margin), the negative log-likelihood of the
    preference (Bradley and Terry), so Fisher information is that of EWC. MAS uses both scores of a pair as the output.
    """

    name: ClassVar[str] = "causal"

    def read(self, batch: Mapping[str, Any]) -> Batch:
        """Return the rows of a batch, with one placeholder label each.

        Raises:
            DataError: it is not a batch of pairs.
        """
        tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
        if "labels" in tensors or "input_ids" not in tensors or len(tensors["input_ids"]) % 2:
            raise DataError(
                "`protect` reads the batches of a reward model as pairs: `input_ids` of the chosen answers, then of "
                f"the rejected ones, without `labels`; this one has {', '.join(sorted(tensors)) or 'no tensors'}. Use "
                "the collator of TRL's RewardTrainer."
            )
        rows: Batch = {name: tensors[name] for name in ("input_ids", "attention_mask") if name in tensors}
        return {**rows, "labels": tensors["input_ids"].new_zeros(len(tensors["input_ids"]), 1)}

    def options(self) -> dict[str, Any]:
        return {} if self.model is not None and kind_of(self.model) == "encoder" else super().options()

    def collate(self, blocks: Sequence[Block], rows: Sequence[int]) -> Batch:
        """Return one pair for each block, [pairs, 2, tokens]."""
        batch = cast(Collator, self.collator)(list(blocks))
        pairs = {name: torch.stack(value.chunk(2), 1) for name, value in self.read(batch).items()}
        margin = {"margin": batch["margin"]} if "margin" in batch else {}
        return {**pairs, "labels": pairs["labels"][:, 0], **margin}

    def per_sample_loss(self, model: nn.Module, batch: Mapping[str, Tensor], loss: LogitLoss | None = None) -> Tensor:
        """Return −log σ of the difference of scores for each pair; or the mean of `loss`, a function of scores."""
        inputs = {name: batch[name].flatten(0, 1) for name in ("input_ids", "attention_mask") if name in batch}
        scores: Tensor = model(**inputs, **self.options()).logits.float()
        if loss is None:
            chosen, rejected = scores.view(-1, 2).unbind(1)
            return -F.logsigmoid(chosen - rejected - batch.get("margin", 0.0))
        labels = batch["labels"].new_zeros(len(scores))
        return loss(scores, labels, slice(0, len(scores))).view(-1, 2).mean(1)
