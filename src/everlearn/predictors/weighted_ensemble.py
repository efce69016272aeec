"""Mix several predictors with weights that depend on how well each predicts the visible text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from everlearn.model.objectives import IGNORE, Masked, Objective
from everlearn.model.vocabulary_head import running_sums
from everlearn.predictors.decoding import Continuation
from everlearn.predictors.ensemble import together, weighted
from everlearn.predictors.predictor import Batch, Predictor, Tune
from everlearn.predictors.text_router import texts_of

EVERY = 7
"""In a masked row, members are evaluated on every seventh visible token, which is about the share of masked ones."""


@dataclass(frozen=True)
class PerplexityEnsemble(Predictor):
    """p = Σ_m w_m p_m with w = softmax(−nats / temperature), nats the mean loss of member m on the visible text.

    The visible text never contains the predicted token, unlike in
    :class:`~everlearn.predictors.text_router.TextRouter`:

    - each label of a decoder has its own weights, from the tokens of its document before it (equal ones if there are
      none);
    - in a masked row, some of the unmasked tokens are masked too, and the weights are from the losses on those, in a
      separate pass;
    - a text to classify, or a prompt, is read completely; the weights of a prompt are used for its complete answer.

    Attributes:
        members: the predictors, at least one.
        objective: objective of the run.
        temperature: temperature of the weights; at 0 only the members with the lowest loss have a weight.
        choosers: language models of the members, in their order, if the members are classifiers; the members
            themselves by default.
    """

    members: tuple[Predictor, ...]
    objective: Objective
    temperature: float = 0.0
    choosers: tuple[Predictor, ...] = ()

    def label_losses(self, batch: Batch) -> Tensor:
        losses = torch.stack([member.label_losses(batch) for member in self.members])
        # Without positions every token has a label, so the losses of all earlier tokens are known already.
        known = None if "positions" in batch else losses
        return -weighted(-losses, self.weights(batch, known).to(losses.dtype))

    def likely(self, batch: Batch) -> Tensor:
        likely = torch.stack([member.likely(batch) for member in self.members])
        return weighted(likely, self.weights(batch)[..., None])

    def fine_tuned(self, tune: Tune) -> Predictor:
        return replace(self, members=tuple(member.fine_tuned(tune) for member in self.members), choosers=self.members)

    def class_probabilities(self, inputs: Batch) -> Tensor:
        probabilities = torch.stack([member.class_probabilities(inputs) for member in self.members])
        return weighted(probabilities.log(), self.weights(inputs)).exp()

    def values(self, inputs: Batch) -> Tensor:
        values = torch.stack([member.values(inputs) for member in self.members])
        return (self.weights(inputs).exp() * values).sum(0)

    def continuation(self, inputs: Batch) -> Continuation:
        weights = self.weights(inputs)
        return together(self.members, inputs, lambda likely: weighted(likely, weights))

    def weights(self, batch: Batch, known: Tensor | None = None) -> Tensor:
        """Return the logarithms of the weights, [M, B, K or 1] float64: for each label, or one for a row.

        Args:
            batch: the rows to predict.
            known: losses of all tokens of a decoder's rows, [M, B, S], if they are known already.
        """
        if "decoder_input_ids" in batch or getattr(self.objective, "decoder_start", None) is not None:
            raise self._cannot("cannot weigh by an encoder-decoder, which does not predict its prompts")
        readers = self.choosers or self.members
        if "labels" in batch and not isinstance(self.objective, Masked):
            first = _first(batch)
            text = {**self.objective.inputs(batch), "labels": _following(batch["input_ids"], first)}
            each = known if known is not None else torch.stack([reader.label_losses(text) for reader in readers])
            nats = _before(each.double(), first)
            if "positions" in batch:
                nats = nats.gather(2, batch["positions"].expand(len(nats), -1, -1))
        else:
            texts = [*self._texts(batch)]
            nats = torch.stack([torch.cat([reader.row_losses(text) for text in texts]) for reader in readers])
            nats = nats.double()[..., None]
        if self.temperature > 0:
            return torch.log_softmax(-nats / self.temperature, 0)
        least = (nats == nats.amin(0)).double()
        return (least / least.sum(0)).log()

    def _texts(self, batch: Batch) -> Iterator[Batch]:
        """Yield batches whose labels determine the weights for rows without answers."""
        if "labels" not in batch:
            yield from texts_of(batch["input_ids"], batch["attention_mask"].bool(), self.objective)
            return
        ids, labelled = batch["input_ids"], batch["labels"] != IGNORE
        special = torch.tensor(self.objective.tokenizer.all_special_ids, device=ids.device)
        visible = ~torch.isin(ids, special)
        rows = torch.nonzero(labelled)[:, 0]
        visible[rows, batch["positions"][labelled]] = False  # a label may be at an unchanged or random token
        chosen = visible & (visible.cumsum(1) % EVERY == 0)
        count = max(1, int(chosen.sum(1).max()))
        places = torch.argsort(chosen.long(), dim=1, descending=True, stable=True)[:, :count]
        yield {
            **self.objective.inputs(batch),
            "input_ids": ids.masked_fill(chosen, self.objective.tokenizer.mask_token_id),
            "positions": places,
            "labels": torch.where(chosen, ids, IGNORE).gather(1, places),
        }


def _first(batch: Batch) -> Tensor:
    """Return the start of each token's document, [B, S]; in packed rows a document ends where positions restart."""
    ids, places = batch["input_ids"], batch.get("position_ids")
    index = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    begins = torch.zeros_like(index)
    if places is not None:
        begins[:, 1:] = torch.where(places[:, 1:] != places[:, :-1] + 1, index[:, 1:], 0)
    return begins.cummax(1).values


def _following(ids: Tensor, first: Tensor) -> Tensor:
    """Return the next token of each token's document as its label, [B, S]."""
    labels = torch.full_like(ids, IGNORE)
    labels[:, :-1] = torch.where(first[:, 1:] == first[:, :-1], ids[:, 1:], IGNORE)
    return labels


def _before(losses: Tensor, first: Tensor) -> Tensor:
    """Return the mean of the losses before each token in its document, [M, B, S]; 0 if there are none."""
    total = running_sums(losses) - losses
    total = total - total.gather(2, first.expand_as(total))
    read = torch.arange(losses.shape[2], device=losses.device) - first
    return total / read.clamp(min=1)
