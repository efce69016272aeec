"""A router that selects for each text the predictor with the lowest perplexity on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from everlearn.model.objectives import IGNORE, Masked, Objective
from everlearn.predictors.decoding import Ending
from everlearn.predictors.predictor import Batch, Predictor, Tune


@dataclass(frozen=True)
class TextRouter(Predictor):
    """Reads each row with the member that has the lowest perplexity on it, without a domain id.

    This is AdapterCL (arXiv 2012.15504, eq. 6), or DEMIX (arXiv 2108.05036) with one expert at a time. The member is
    selected by the prompt, if a row has one (options, generated answers), or by the text to classify, never by the
    answer. Held-out text has no prompt: the member is selected by the scored row itself, so the loss is the smallest of
    the members' losses, which is slightly too small for short rows. Of equal members the first is selected.

    Attributes:
        members: the predictors to select from.
        objective: objective of the run.
        choosers: language models of the members, in their order, if the members are classifiers; the members
            themselves by default.
        classifies: the predictor that is fine-tuned instead of all members.
    """

    members: tuple[Predictor, ...]
    objective: Objective
    choosers: tuple[Predictor, ...] = ()
    classifies: Predictor | None = None

    def label_losses(self, batch: Batch) -> Tensor:
        if self._by_itself(batch):  # the losses that select the members are the result
            losses = torch.stack([member.label_losses(batch) for member in self.members])
            return losses[losses.double().sum(2).argmin(0), torch.arange(losses.shape[1], device=losses.device)]
        return self._routed(batch, lambda member, part: member.label_losses(part).float())

    def likely(self, batch: Batch) -> Tensor:
        return self._routed(batch, lambda member, part: member.likely(part))

    def fine_tuned(self, tune: Tune) -> Predictor:
        if self.classifies is not None:
            return self.classifies.fine_tuned(tune)
        return replace(self, members=tuple(member.fine_tuned(tune) for member in self.members), choosers=self.members)

    def class_probabilities(self, inputs: Batch) -> Tensor:
        return self._routed(inputs, lambda member, part: member.class_probabilities(part))

    def values(self, inputs: Batch) -> Tensor:
        return self._routed(inputs, lambda member, part: member.values(part))

    def write(self, inputs: Batch, ending: Ending) -> list[list[int]]:
        chosen = self.chosen(inputs)
        answers: list[list[int]] = [[]] * len(chosen)
        for member, rows in self._parts(chosen):
            written = member.write(_take(inputs, rows), ending.of(rows))
            for row, answer in zip(rows.tolist(), written, strict=True):
                answers[row] = answer
        return answers

    def chosen(self, batch: Batch) -> Tensor:
        """Return the number of the member that reads each row, [B]."""
        readers = self.choosers or self.members
        texts = [*self._texts(batch)]
        return torch.stack([torch.cat([reader.row_losses(text) for text in texts]) for reader in readers]).argmin(0)

    def _routed(self, batch: Batch, predict: Callable[[Predictor, Batch], Tensor]) -> Tensor:
        """Return the predictions for all rows, each by its member."""
        chosen = self.chosen(batch)
        parts = [(rows, predict(member, _take(batch, rows))) for member, rows in self._parts(chosen)]
        result = parts[0][1].new_empty(len(chosen), *parts[0][1].shape[1:])
        for rows, values in parts:
            result[rows] = values
        return result

    def _parts(self, chosen: Tensor) -> Iterator[tuple[Predictor, Tensor]]:
        """Yield each member with the numbers of its rows, if it has any."""
        for number, member in enumerate(self.members):
            rows = torch.nonzero(chosen == number).flatten()
            if len(rows):
                yield member, rows

    def _by_itself(self, batch: Batch) -> bool:
        """Return whether rows have no prompt, so that members are selected by the scored text."""
        masked = isinstance(self.objective, Masked)
        return "labels" in batch and (masked or "positions" not in batch) and "decoder_input_ids" not in batch

    def _texts(self, batch: Batch) -> Iterator[Batch]:
        """Yield batches whose labels are the tokens by which members are selected."""
        if self._by_itself(batch):
            yield batch
            return
        if "decoder_input_ids" in batch or getattr(self.objective, "decoder_start", None) is not None:
            raise self._cannot("cannot recognise a text by an encoder-decoder, which does not predict its prompts")
        ids = batch["input_ids"]
        if "positions" in batch:  # the prompt: all tokens up to the one from which the first label is predicted
            first = torch.where(batch["labels"] == IGNORE, ids.shape[1], batch["positions"]).amin(1)
            real = torch.arange(ids.shape[1], device=ids.device) <= first[:, None]
        else:
            real = batch["attention_mask"].bool()
        yield from texts_of(ids, real, self.objective)


def texts_of(ids: Tensor, real: Tensor, objective: Objective) -> Iterator[Batch]:
    """Yield batches whose labels are the texts themselves, for encoders and decoders.

    Args:
        ids: rows that are padded on either side, [B, S].
        real: mask of the tokens that are not padding, [B, S].
        objective: objective of the run; a masking one masks each row by its number.
    """
    if isinstance(objective, Masked):  # one row after the other: rows of a masked batch are equally long
        for number, (row, kept) in enumerate(zip(ids, real, strict=True)):
            text = row[kept].cpu().numpy().astype(np.int32)
            block = {"input_ids": text, "segments": np.zeros(len(text), np.int32)}
            batch = objective.collate([block], [number])
            yield {name: value.to(ids.device) for name, value in batch.items()}
        return
    order = torch.argsort(real.long(), dim=1, descending=True, stable=True)  # rows padded on the right
    ids, real = ids.gather(1, order), real.gather(1, order)
    labels = torch.full_like(ids, IGNORE)
    labels[:, :-1] = torch.where(real[:, 1:], ids[:, 1:], IGNORE)
    places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    yield {"input_ids": ids, "position_ids": places, "labels": labels}


def _take(inputs: Batch, rows: Tensor) -> Batch:
    return {name: value[rows] for name, value in inputs.items()}
