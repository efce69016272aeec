"""The objectives of language models in an external trainer, which read its batches as text with labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everlearn.data.blocks import Block
from everlearn.errors import DataError
from everlearn.model.objectives import IGNORE, Batch, Objective
from everlearn.protecting.external_data import Collator


def as_text(batch: Mapping[str, Any]) -> Batch:
    """Return a batch as text with labels for tokens, -100 where nothing is learnt.

    Preferences (``completion_mask``) and generated answers (``prompt_ids``, ``completion_ids``) have no labels; then
    the labels are the tokens of the answers.

    Raises:
        DataError: the batch has another format.
    """
    tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    labels = tensors.get("labels")
    if labels is not None and labels.dim() == 2 and "input_ids" in tensors:
        return tensors
    if {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask"} <= tensors.keys():
        ids, seen = (
            torch.cat([tensors[f"{part}_{of}"] for part in ("prompt", "completion")], 1) for of in ("ids", "mask")
        )
        learnt = torch.cat([torch.zeros_like(tensors["prompt_mask"]), tensors["completion_mask"]], 1)
    elif {"input_ids", "attention_mask", "completion_mask"} <= tensors.keys():
        ids, seen, learnt = (tensors[name] for name in ("input_ids", "attention_mask", "completion_mask"))
    else:
        raise DataError(
            "`protect` needs batches with `input_ids` and with `labels` for tokens [rows, tokens], -100 where nothing "
            f"is learnt, or with a `completion_mask`; this one has {', '.join(sorted(tensors)) or 'no tensors'}. Use a "
            "collator for language modelling."
        )
    return {"input_ids": ids, "attention_mask": seen, "labels": ids.masked_fill(learnt == 0, IGNORE)}


@dataclass(frozen=True)
class ExternalObjective(Objective):
    """An objective that reads the batches of an external collator.

    For measurements (importance, Fisher information) the loss of a row is its mean nats per label, as in the standard
    collators and Trainers, even if the training loss is another one (label smoothing, DFT, preferences, a function of
    the user). Of a pair of answers the chosen one is measured.

    Attributes:
        model: the unwrapped model.
        collator: makes a batch of a list of blocks (:meth:`Examples.taken_by`).
        text: reads rows of plain text, which everlearn has packed.
    """

    has_losses: ClassVar[bool] = True
    """Whether a single example has a loss."""

    isolate: bool = False
    model: nn.Module | None = None
    collator: Collator | None = None
    text: Objective | None = None

    def read(self, batch: Mapping[str, Any]) -> Batch:
        """Convert a batch to the format of everlearn.

        Raises:
            DataError: it is not text with labels.
        """
        return self._read(as_text(batch))

    def _read(self, batch: Batch) -> Batch:
        raise NotImplementedError

    def collate(self, blocks: Sequence[Block], rows: Sequence[int]) -> Batch:
        """Apply the external collator to blocks: one row for each.

        Raises:
            DataError: the collator does not make one row of one example.
        """
        if self.text is not None and "segments" in blocks[0]:
            return self.text.collate(blocks, rows)
        batch = cast(Collator, self.collator)(list(blocks))
        converted = self.read(batch)
        count = len(converted["labels"])
        if count == 2 * len(blocks) and "completion_mask" in batch:
            return {name: value[: len(blocks)] for name, value in converted.items()}  # the chosen ones come first
        return converted if count == len(blocks) else self._apart(blocks)

    def check_measurable(self, batch: Batch) -> None:
        """Raise ``MethodError`` if measurements on such batches would be meaningless; it may run the model."""

    def flattens(self, blocks: Sequence[Block]) -> bool:
        """Return whether the collator puts several examples into one row (padding-free batches)."""
        return len(self.read(cast(Collator, self.collator)(list(blocks)))["labels"]) < len(blocks)

    def _apart(self, blocks: Sequence[Block]) -> Batch:
        """Collate each block separately and pad the rows, because a flat batch does not separate its examples."""
        alone = [self.read(cast(Collator, self.collator)([block])) for block in blocks]
        if any(len(row["labels"]) != 1 for row in alone):
            raise DataError(
                f"The collator makes {len(alone[0]['labels'])} rows of one example, so nothing can be measured for "
                "each. Make one row of each example."
            )
        width = max(row["input_ids"].shape[1] for row in alone)
        names = [name for name, value in alone[0].items() if value.shape == alone[0]["input_ids"].shape]
        return {
            name: torch.cat(
                [F.pad(r[name], (0, width - r[name].shape[1]), value=IGNORE * (name == "labels")) for r in alone]
            )
            for name in names
        }

    def reseeded(self, *parts: object) -> Objective:
        reseeded = super().reseeded(*parts)
        return reseeded if self.text is None else replace(cast(Any, reseeded), text=self.text.reseeded(*parts))


@dataclass(frozen=True)
class ExternalMasked(ExternalObjective):
    """The objective of masked models: labels at the masked positions hold the text before masking."""

    name: ClassVar[str] = "masked"

    def options(self) -> dict[str, Any]:
        return {}

    def _read(self, batch: Batch) -> Batch:
        labels = batch["labels"]
        labelled = labels != IGNORE
        count = max(1, int(labelled.sum(1).max()))
        positions = labelled.int().argsort(dim=1, descending=True, stable=True)[:, :count]
        plain = torch.where(labelled, labels, batch["input_ids"])
        return {**batch, "plain_ids": plain, "positions": positions, "labels": labels.gather(1, positions)}


@dataclass(frozen=True)
class ExternalCausal(ExternalObjective):
    """The objective of decoders; labels are shifted by the model, so the label at t is predicted at t − 1."""

    name: ClassVar[str] = "causal"

    def _read(self, batch: Batch) -> Batch:
        shifted = torch.full_like(batch["labels"], IGNORE)
        shifted[:, :-1] = batch["labels"][:, 1:]
        return {**batch, "labels": shifted}


@dataclass(frozen=True)
class ExternalTextToText(ExternalObjective):
    """The objective of encoder-decoders, whose labels are the answers."""

    name: ClassVar[str] = "text-to-text"

    def _read(self, batch: Batch) -> Batch:
        if "decoder_input_ids" in batch:
            return batch
        core: Any = self.model
        return {**batch, "decoder_input_ids": core.prepare_decoder_input_ids_from_labels(labels=batch["labels"])}
