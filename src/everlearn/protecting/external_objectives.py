"""The objectives that read the batches of another trainer: of reward models, embedding models and language models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everlearn.data.blocks import Block
from everlearn.errors import DataError, MethodError
from everlearn.model.anatomy import kind_of
from everlearn.model.finding import transformers_model
from everlearn.model.objectives import Batch, Objective
from everlearn.model.training_mode import evaluating
from everlearn.model.vocabulary_head import LogitLoss, output_head
from everlearn.protecting.external_data import Collator
from everlearn.protecting.external_text import ExternalCausal, ExternalMasked, ExternalObjective, ExternalTextToText

IDS = "_input_ids"
"""End of the names of an embedding model's texts in a batch."""


@dataclass(frozen=True)
class ExternalScores(ExternalObjective):
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


@dataclass(frozen=True)
class ExternalEmbeddings(ExternalObjective):
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
        model = cast(nn.Module, self.model)
        with evaluating(model), torch.no_grad():
            lengths = [vectors.norm(dim=-1) for vectors in self._embeddings(model, batch)]
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


_OF_KIND: dict[str, type[ExternalObjective]] = {
    "encoder": ExternalMasked,
    "decoder": ExternalCausal,
    "encoder-decoder": ExternalTextToText,
}


def external_objective(
    model: nn.Module, tokenizer: Any, collator: Collator, text: Objective | None = None
) -> ExternalObjective:
    """Return the objective that reads the batches for a model; arguments as for :class:`ExternalObjective`.

    Raises:
        MethodError: the model is neither a language model, nor a reward model, nor an embedding model.
    """
    if output_head(model) is not None:
        return _OF_KIND[kind_of(model)](tokenizer=tokenizer, model=model, collator=collator, text=text)
    if hasattr(model, "encode"):
        return ExternalEmbeddings(tokenizer=tokenizer, model=model, collator=collator)
    if transformers_model(model)[1].config.num_labels == 1:
        return ExternalScores(tokenizer=tokenizer, model=model, collator=collator)
    raise MethodError(
        "`protect` needs a language model, a reward model with one score or an embedding model of Sentence "
        f"Transformers, and '{type(model).__name__}' is none of them."
    )
