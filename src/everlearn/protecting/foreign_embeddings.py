"""The objective of embedding models, whose loss compares the examples of a batch with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from everlearn.data.blocks import Block
from everlearn.errors import DataError, MethodError
from everlearn.model.objectives import Batch
from everlearn.model.training_mode import evaluating
from everlearn.model.vocabulary_head import LogitLoss
from everlearn.protecting.foreign_data import Collator
from everlearn.protecting.foreign_text import Theirs

IDS = "_input_ids"


@dataclass(frozen=True)
class TheirEmbeddings(Theirs):
    """The objective of embedding models: an example is several texts (``anchor_input_ids``, ``positive_input_ids``, …).

    A single example has no loss. MAS uses the embeddings as the output of the model.
    """

    name: ClassVar[str] = "masked"
    has_losses: ClassVar[bool] = False

    def read(self, batch: Mapping[str, Any]) -> Batch:
        """Return the texts of a batch, with one placeholder label for each example.

        Raises:
            DataError: it has no texts.
        """
        texts = [name.removesuffix(IDS) for name in batch if name.endswith(IDS)]
        if not texts:
            raise DataError(
                "`protect` reads the batches of an embedding model as texts (`…_input_ids`), and this one has "
                f"{', '.join(sorted(batch)) or 'nothing'}. Use the collator of Sentence Transformers."
            )
        rows = {f"{text}_{part}": batch[f"{text}_{part}"] for text in texts for part in ("input_ids", "attention_mask")}
        return {**rows, "labels": rows[f"{texts[0]}{IDS}"].new_zeros(len(rows[f"{texts[0]}{IDS}"]), 1)}

    def collate(self, blocks: Sequence[Block], rows: Sequence[int]) -> Batch:
        """Return the texts of examples."""
        return self.read(cast(Collator, self.collator)(list(blocks)))

    def check_measurable(self, batch: Batch) -> None:
        with evaluating(self._trained), torch.no_grad():
            lengths = [vectors.norm(dim=-1) for vectors in self._embeddings(self._trained, batch)]
        if all(torch.allclose(each, each.new_ones(()), atol=1e-4) for each in lengths):
            raise MethodError(
                "This model divides embeddings by their length, so that how much the length depends on a weight is no "
                "importance. Protect it with 'l2_sp' or 'si', or leave the normalisation to the loss."
            )

    def per_sample_loss(self, model: nn.Module, batch: Mapping[str, Tensor], loss: LogitLoss | None = None) -> Tensor:
        """Return the mean of `loss`, a function of embeddings, over the texts of each example.

        Raises:
            MethodError: the loss of single examples is requested.
        """
        if loss is None:
            raise MethodError("The loss of an embedding model compares examples, so that a single one has none.")
        labels = batch["labels"][:, 0]
        return torch.stack([loss(v, labels, slice(0, len(v))) for v in self._embeddings(model, batch)]).mean(0)

    def _embeddings(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """Yield the embeddings of each text of the examples, [rows, H]."""
        for text in (name.removesuffix(IDS) for name in batch if name.endswith(IDS)):
            inputs = {part: batch[f"{text}_{part}"] for part in ("input_ids", "attention_mask")}
            vectors: Tensor = model(inputs)["sentence_embedding"].float()
            yield vectors

    @property
    def _trained(self) -> nn.Module:
        return cast(nn.Module, self.model)
