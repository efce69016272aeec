"""How likely a model finds texts after prompts: what the kinds share that score texts and do not write any.

Where a model allows it, the texts after one prompt are scored in one pass that reads the prompt once
(:mod:`everlearn.model.one_prompt`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from everlearn.data.packing import masks_for
from everlearn.errors import TrainingDiverged
from everlearn.model.anatomy import Kind
from everlearn.model.objectives import IGNORE, PROMPT_OF, Masked, TextToText
from everlearn.model.one_prompt import after_one_prompt, can_share_prompts
from everlearn.predictors.predictor import Checkpoint, Predictor
from everlearn.tasks.prompted import SMALLEST, Asking, padded

PAD_TO, PAD_LABELS_TO = 32, 8
"""Few widths: on CPU every new matrix shape is compiled and kept."""

MOST_BEHIND = 1024
"""Tokens of all options of a question that are read behind one prompt: in a longer row each would be held against all
others, and the mask alone would be larger than rows of their own."""

Batch = dict[str, Tensor]
Pair = tuple[str, str]
"""A prompt, and a text after it."""


class Option(NamedTuple):
    """A row: a text after its prompt.

    Attributes:
        question: number of the question that it belongs to.
        number: of the option.
        prompt: token ids before it, special ones included.
        ids: its token ids.
        masks: of a masked model: how many stand behind the prompt, the same for all options of a question.
    """

    question: int
    number: int
    prompt: list[int]
    ids: list[int]
    masks: int = 0


def rows_of(
    asking: Asking, questions: Iterable[Sequence[Pair]], separator: str | None, *, leave_out: bool = False
) -> list[list[Option]]:
    """Rows of each question.

    Args:
        asking: who is asked.
        questions: the options of each, with the prompt before each.
        separator: between prompt and option; when None a blank, and nothing where both are tokenised apart.
        leave_out: questions whose options leave no room for their prompt, as long as there are others.

    Raises:
        ModelError: the options of a question leave no room for its prompt.
    """
    apart = isinstance(asking.conditions.objective, TextToText | Masked)
    between = separator if separator is not None else "" if apart else " "
    encode, found, questions = asking.encoder, [], list(questions)
    ending = encode.suffix if asking.kind == "encoder-decoder" else []
    if apart and asking.kind == "decoder" and encode.end is not None:
        ending = [encode.end]
    if asking.kind == "encoder":
        ending = encode.answer_end
    begin = encode.prefix if asking.kind == "encoder-decoder" else []
    for number, pairs in enumerate(questions):
        spaced = [(prompt, between + option) for prompt, option in pairs]
        if apart:
            befores, ids = encode([prompt for prompt, _ in spaced]), encode([option for _, option in spaced])
        else:
            befores, ids = _together(encode, spaced)
        ids = [[*begin, *own, *ending] for own in ids]
        longest = max(map(len, ids))
        masks = masks_for(longest) if asking.kind == "encoder" else 0
        longest = max(longest, masks)
        if leave_out and asking.left(longest) < SMALLEST:
            continue
        room = asking.room(longest, f"Shorten the options of question {number + 1}.")
        rows = zip(befores, ids, strict=True)
        found.append([Option(number, i, asking.prompt(one, room), own, masks) for i, (one, own) in enumerate(rows)])
    return found if found or not leave_out else rows_of(asking, questions, separator)


def scored(asking: Asking, predictor: Predictor, questions: Sequence[list[Option]]) -> Iterator[tuple[Option, float]]:
    """Each option with its nats, −log p(option | prompt); the options of a question come one after another.

    Raises:
        TrainingDiverged: one is not a number.
    """
    how = asking.conditions
    shared = _shares_prompts(asking, predictor, questions)
    make = (_SHARED if shared else _APART)[asking.kind]
    with asking():
        for lot in _batches(questions, how.batch_size, shared):
            batch = make(lot, asking, how.batch_size)
            found = predictor.label_losses({k: v.to(torch.device(how.device)) for k, v in batch.items()})
            options = [option for question in lot for option in question]
            for option, nats in zip(options, _sums(found.double().cpu(), lot, shared, asking.kind), strict=False):
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


def _shares_prompts(asking: Asking, predictor: Predictor, questions: Sequence[list[Option]]) -> bool:
    """Whether a prompt is read once for all its options: whoever looks at rows as a whole needs them apart."""
    if not isinstance(predictor, Checkpoint) or max(map(len, questions), default=0) < 2:
        return False
    same = all(option.prompt == question[0].prompt for question in questions for option in question)
    if asking.kind == "encoder":  # all options of a question stand behind the same masks
        return same
    longest = max(len(option.prompt) + len(option.ids) for question in questions for option in question)
    if asking.kind == "decoder" and max(sum(len(o.ids) for o in question) for question in questions) > MOST_BEHIND:
        return False
    return same and can_share_prompts(predictor.model, longest)


def _batches(questions: Sequence[list[Option]], rows: int, shared: bool) -> Iterator[list[list[Option]]]:
    """Questions of similar length, as many as have room; one with more options than rows has a batch of its own.

    A question takes a row where its prompt is read once, else a row for each option.
    """
    length = {id(q): max(len(option.prompt) + len(option.ids) for option in q) for q in questions}
    lot: list[list[Option]] = []
    taken = 0
    for question in sorted(questions, key=lambda q: -length[id(q)]):
        needed = 1 if shared else len(question)
        if lot and taken + needed > rows:
            yield lot
            lot, taken = [], 0
        lot.append(question)
        taken += needed
    yield lot


def _sums(losses: Tensor, lot: list[list[Option]], shared: bool, kind: Kind) -> list[float]:
    """Nats of each option of a batch."""
    if not shared or kind == "encoder-decoder":
        sums: list[float] = losses.sum(1).tolist()
        return sums
    parts = zip(losses, ([len(option.ids) for option in question] for question in lot), strict=False)
    return [float(part.sum()) for row, sizes in parts for part in row[: sum(sizes)].split(sizes)]


def _one_row(lot: list[list[Option]], asking: Asking, rows: int) -> Batch:
    """Of a decoder: a row for each question, its options one after another behind the prompt."""
    wanted = [[token for option in question for token in option.ids] for question in lot]
    whole = [[*question[0].prompt, *own] for question, own in zip(lot, wanted, strict=True)]
    labels = padded(wanted, IGNORE, PAD_LABELS_TO, count=rows)
    ids, places = padded(whole, asking.encoder.pad, PAD_TO, count=rows), torch.zeros_like(labels)
    masks, positions = [], []
    for number in range(rows):
        question = lot[number] if number < len(lot) else []
        prompt, sizes = len(question[0].prompt) if question else 0, [len(option.ids) for option in question]
        mask, position = after_one_prompt(prompt, sizes, ids.shape[1])
        masks.append(mask)
        positions.append(position)
        start = prompt
        for size, label in zip(sizes, accumulate(sizes, initial=0), strict=False):
            # The first token of each text is predicted at the prompt's last one, every other at the one before it.
            places[number, label] = prompt - 1
            places[number, label + 1 : label + size] = torch.arange(start, start + size - 1)
            start += size
    return {
        "input_ids": ids,
        "attention_mask": torch.stack(masks)[:, None],
        "position_ids": torch.stack(positions),
        "positions": places,
        "labels": labels,
    }


def _one_encoding(lot: list[list[Option]], asking: Asking, rows: int) -> Batch:
    """Of an encoder-decoder: a row of the encoder for each question, one of the decoder for each option."""
    options = [option for question in lot for option in question]
    count = rows * max(map(len, lot))
    batch = _encoder_decoder(options, asking, count)
    prompts = [question[0].prompt for question in lot]
    batch["input_ids"] = padded(prompts, asking.encoder.pad, PAD_TO, count=rows)
    batch["attention_mask"] = padded([[1] * len(prompt) for prompt in prompts], 0, PAD_TO, count=rows)
    batch["attention_mask"][len(lot) :, 0] = 1
    of = [number for number, question in enumerate(lot) for _ in question]
    return batch | {PROMPT_OF: torch.tensor(of + [0] * (count - len(of)))}


def _rows(make: Callable[[list[Option], Asking, int], Batch]) -> Callable[[list[list[Option]], Asking, int], Batch]:
    """A row for each option."""
    return lambda lot, asking, rows: make([option for question in lot for option in question], asking, rows)


def _decoder(lot: list[Option], asking: Asking, rows: int) -> Batch:
    """An option behind its prompt."""
    labels = padded([option.ids for option in lot], IGNORE, PAD_LABELS_TO, count=rows)
    ids = padded([[*option.prompt, *option.ids] for option in lot], asking.encoder.pad, PAD_TO, count=rows)
    # The label at t is predicted at t - 1; what pads a row stands behind it and is not seen.
    starts = torch.tensor([len(option.prompt) - 1 for option in lot] + [0] * (rows - len(lot)))
    places = (starts[:, None] + torch.arange(labels.shape[1])).masked_fill(labels == IGNORE, 0)
    return {
        "input_ids": ids,
        "position_ids": torch.arange(ids.shape[1]).expand_as(ids).contiguous(),
        "positions": places,
        "labels": labels,
    }


def _masked(lot: list[list[Option]], asking: Asking, rows: int) -> Batch:
    """Of a masked model: a row for each question, its prompt and masks, of which every option is asked."""
    labels = padded(
        [[t for option in question for t in option.ids] for question in lot], IGNORE, PAD_LABELS_TO, count=rows
    )
    places, whole = torch.zeros_like(labels), []
    for number, question in enumerate(lot):
        prompt, masks = question[0].prompt, [asking.encoder.tokenizer.mask_token_id] * question[0].masks
        whole.append([*prompt, *masks, *asking.encoder.suffix])
        at = [len(prompt) + place for option in question for place in range(len(option.ids))]
        places[number, : len(at)] = torch.tensor(at)
    seen = padded([[1] * len(row) for row in whole], 0, PAD_TO, count=rows)
    seen[len(lot) :, 0] = 1  # a row that attends to nothing would be no number
    ids = padded(whole, asking.encoder.pad, PAD_TO, count=rows)
    return {"input_ids": ids, "attention_mask": seen, "positions": places, "labels": labels}


def _encoder_decoder(lot: list[Option], asking: Asking, rows: int) -> Batch:
    """Prompts for the encoder, options for the decoder."""
    labels = padded([option.ids for option in lot], IGNORE, PAD_LABELS_TO, count=rows)
    pad, start = asking.encoder.pad, getattr(asking.conditions.objective, "decoder_start", None)
    shifted = labels.new_full(labels.shape, start if start is not None else pad)
    shifted[:, 1:] = labels[:, :-1].masked_fill(labels[:, :-1] == IGNORE, pad)
    mask = padded([[1] * len(option.prompt) for option in lot], 0, PAD_TO, count=rows)
    mask[len(lot) :, 0] = 1  # a row that attends to nothing would be no number
    ids = padded([option.prompt for option in lot], pad, PAD_TO, count=rows)
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": shifted, "labels": labels}


def _masked_apart(lot: list[list[Option]], asking: Asking, rows: int) -> Batch:
    return _masked([[option] for question in lot for option in question], asking, rows)


_APART = {"decoder": _rows(_decoder), "encoder": _masked_apart, "encoder-decoder": _rows(_encoder_decoder)}
_SHARED = {"decoder": _one_row, "encoder": _masked, "encoder-decoder": _one_encoding}
