"""How likely a model finds texts after prompts: what the kinds share that score texts and do not write any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from everlearn.errors import TrainingDiverged
from everlearn.evaluation.asking import Asking, padded
from everlearn.evaluation.predictor import Predictor
from everlearn.model.objectives import IGNORE, Masked, Objective, TextToText

PAD_TO, PAD_LABELS_TO = 32, 8
"""Few widths: on CPU every new matrix shape is compiled and kept."""

Pair = tuple[str, str]
"""A prompt, and a text after it."""


class Option(NamedTuple):
    """A row: a text after its prompt.

    Attributes:
        question: number of the question that it belongs to.
        number: of the option.
        prompt: token ids before it, special ones included.
        ids: its token ids.
    """

    question: int
    number: int
    prompt: list[int]
    ids: list[int]


def rows_of(asking: Asking, questions: Iterable[Sequence[Pair]], separator: str | None) -> list[list[Option]]:
    """Rows of each question.

    Args:
        asking: who is asked.
        questions: the options of each, with the prompt before each.
        separator: between prompt and option; when None a blank, and nothing where both are tokenised apart.

    Raises:
        ModelError: the options of a question leave no room for its prompt.
    """
    apart = isinstance(asking.conditions.objective, TextToText | Masked)
    between = separator if separator is not None else "" if apart else " "
    encode, found = asking.encoder, []
    ending = encode.suffix if asking.kind == "encoder-decoder" else []
    if apart and asking.kind == "decoder" and encode.end is not None:
        ending = [encode.end]
    begin = encode.prefix if asking.kind == "encoder-decoder" else []
    for number, pairs in enumerate(questions):
        spaced = [(prompt, between + option) for prompt, option in pairs]
        if apart:
            befores, ids = encode([prompt for prompt, _ in spaced]), encode([option for _, option in spaced])
        else:
            befores, ids = _together(encode, spaced)
        ids = [[*begin, *own, *ending] for own in ids]
        room = asking.room(max(map(len, ids)), f"Shorten the options of question {number + 1}.")
        rows = zip(befores, ids, strict=True)
        found.append([Option(number, i, asking.prompt(before, room), own) for i, (before, own) in enumerate(rows)])
    return found


def scored(asking: Asking, predictor: Predictor, questions: Sequence[list[Option]]) -> Iterator[tuple[Option, float]]:
    """Each option with its nats, −log p(option | prompt); the options of a question come one after another.

    Raises:
        TrainingDiverged: one is not a number.
    """
    how = asking.conditions
    with asking():
        for lot in _batches(questions, how.batch_size):
            batch = _batch(lot, asking, how.batch_size)
            found = predictor.label_losses({k: v.to(torch.device(how.device)) for k, v in batch.items()})
            for option, nats in zip(lot, found.double().sum(1).tolist(), strict=False):
                if np.isnan(nats):
                    raise TrainingDiverged(
                        f"The model's loss on an option of end task '{asking.task.name}' is not a number: its weights "
                        "are broken. Lower `train.learning_rate` and run the stage again."
                    )
                yield option, nats


def _together(encode: Any, pairs: Sequence[Pair]) -> tuple[list[list[int]], list[list[int]]]:
    """Tokens of prompt and option as one text: those of the prompt alone, and what the whole has behind them.

    Where an option has grown into the prompt's last word and nothing is behind, all options of that prompt are scored
    from that word on.
    """
    befores, whole = (encode(texts) for texts in ([p.rstrip() for p, _ in pairs], [p + o for p, o in pairs]))
    cuts: dict[str, int] = {}
    for (prompt, _), before, ids in zip(pairs, befores, whole, strict=True):
        cuts[prompt] = max(0, min(cuts.get(prompt, len(before)), len(before), len(ids) - 1))
    cut = [(ids[: cuts[prompt]], ids[cuts[prompt] :]) for (prompt, _), ids in zip(pairs, whole, strict=True)]
    return [before for before, _ in cut], [ids for _, ids in cut]


def _batches(questions: Sequence[list[Option]], rows: int) -> Iterator[list[Option]]:
    """Questions of similar length, as many as have room; one with more options than rows has a batch of its own."""
    length = {id(q): max(len(option.prompt) + len(option.ids) for option in q) for q in questions}
    lot: list[Option] = []
    for question in sorted(questions, key=lambda q: -length[id(q)]):
        if lot and len(lot) + len(question) > rows:
            yield lot
            lot = []
        lot += question
    yield lot


def _batch(lot: list[Option], asking: Asking, rows: int) -> dict[str, Tensor]:
    """A batch as the objective reads it, filled up with empty rows."""
    labels = padded([option.ids for option in lot], IGNORE, PAD_LABELS_TO, count=rows)
    pad = asking.encoder.pad
    if asking.kind == "encoder-decoder":
        return _encoder_decoder(lot, labels, pad, asking.conditions.objective, rows)
    if asking.kind == "encoder":
        return _masked(lot, labels, asking, rows)
    ids = padded([[*option.prompt, *option.ids] for option in lot], pad, PAD_TO, count=rows)
    # The label at t is predicted at t - 1; what pads a row stands behind it and is not seen.
    starts = torch.tensor([len(option.prompt) - 1 for option in lot] + [0] * (rows - len(lot)))
    places = (starts[:, None] + torch.arange(labels.shape[1])).masked_fill(labels == IGNORE, 0)
    return {
        "input_ids": ids,
        "position_ids": torch.arange(ids.shape[1]).expand_as(ids).contiguous(),
        "positions": places,
        "labels": labels,
    }


def _masked(lot: list[Option], labels: Tensor, asking: Asking, rows: int) -> dict[str, Tensor]:
    """An option's tokens are all masked, as when they were learnt: as many as it has."""
    mask, behind = [asking.encoder.tokenizer.mask_token_id], asking.encoder.suffix
    whole = [[*option.prompt, *mask * len(option.ids), *behind] for option in lot]
    starts = torch.tensor([len(option.prompt) for option in lot] + [0] * (rows - len(lot)))
    seen = padded([[1] * len(row) for row in whole], 0, PAD_TO, count=rows)
    seen[len(lot) :, 0] = 1  # a row that attends to nothing would be no number
    return {
        "input_ids": padded(whole, asking.encoder.pad, PAD_TO, count=rows),
        "attention_mask": seen,
        "positions": (starts[:, None] + torch.arange(labels.shape[1])).masked_fill(labels == IGNORE, 0),
        "labels": labels,
    }


def _encoder_decoder(lot: list[Option], labels: Tensor, pad: int, objective: Objective, rows: int) -> dict[str, Tensor]:
    start = getattr(objective, "decoder_start", None)
    shifted = labels.new_full(labels.shape, start if start is not None else pad)
    shifted[:, 1:] = labels[:, :-1].masked_fill(labels[:, :-1] == IGNORE, pad)
    mask = padded([[1] * len(option.prompt) for option in lot], 0, PAD_TO, count=rows)
    mask[len(lot) :, 0] = 1  # a row that attends to nothing would be no number
    ids = padded([option.prompt for option in lot], pad, PAD_TO, count=rows)
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": shifted, "labels": labels}
