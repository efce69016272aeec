"""Score texts after prompts by their likelihood: shared by the tasks that generate nothing.

If the model allows it, all texts after one prompt are scored in one pass that reads the prompt once
(:mod:`everlearn.model.shared_prompt`).
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
from everlearn.model.shared_prompt import after_one_prompt, can_share_prompts
from everlearn.predictors.predictor import Checkpoint, Predictor
from everlearn.tasks.prompted import SMALLEST, Asking, padded

PAD_TO, PAD_LABELS_TO = 32, 8
"""Multiples to which rows are padded, since on CPU each new matrix shape is compiled and cached."""

MOST_BEHIND = 1024
"""Maximum number of tokens of all options that share one reading of their prompt. The attention mask grows with its
square; beyond this it costs more than reading the prompt for each option."""

Batch = dict[str, Tensor]
Pair = tuple[str, str]
"""A prompt, and a text after it."""


class Option(NamedTuple):
    """One row: a text after its prompt.

    Attributes:
        question: number of its question.
        number: number of the option within the question.
        prompt: token ids of the prompt, with special tokens.
        ids: token ids of the text.
        masks: for a masked model, the number of masks after the prompt; the same for all options of a question.
    """

    question: int
    number: int
    prompt: list[int]
    ids: list[int]
    masks: int = 0


def rows_of(
    asking: Asking, questions: Iterable[Sequence[Pair]], separator: str | None, *, leave_out: bool = False
) -> list[list[Option]]:
    """Return the options of each question as rows of token ids.

    Args:
        asking: the predictor with its limits and tokenizer.
        questions: for each question its options, each with the prompt before it.
        separator: text between prompt and option; None for a blank, or for nothing if both are tokenised apart.
        leave_out: skip questions whose options leave no room for the prompt, unless that would skip all.

    Raises:
        ModelError: the options of a question leave no room for its prompt.
    """
    apart = isinstance(asking.conditions.objective, TextToText | Masked)
    between = separator if separator is not None else "" if apart else " "
    encode, rows_of_questions, questions = asking.encoder, [], list(questions)
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
        rows_of_questions.append(
            [Option(number, i, asking.prompt(one, room), own, masks) for i, (one, own) in enumerate(rows)]
        )
    return rows_of_questions if rows_of_questions or not leave_out else rows_of(asking, questions, separator)


def scored(asking: Asking, predictor: Predictor, questions: Sequence[list[Option]]) -> Iterator[tuple[Option, float]]:
    """Yield each option with its nats, −log p(option | prompt); options of a question come one after another.

    Raises:
        TrainingDiverged: a loss is not a number.
    """
    how = asking.conditions
    shared = _shares_prompts(asking, predictor, questions)
    make = (_SHARED if shared else _APART)[asking.kind]
    with asking():
        for chunk in _batches(questions, how.batch_size, shared):
            batch = make(chunk, asking, how.batch_size)
            losses = predictor.label_losses({k: v.to(torch.device(how.device)) for k, v in batch.items()})
            options = [option for question in chunk for option in question]
            for option, nats in zip(options, _sums(losses.double().cpu(), chunk, shared, asking.kind), strict=False):
                if np.isnan(nats):
                    raise TrainingDiverged(
                        f"The model's loss on an option of end task '{asking.task.name}' is not a number: its weights "
                        "are broken. Lower `train.learning_rate` and run the stage again."
                    )
                yield option, nats


def _together(encode: Any, pairs: Sequence[Pair]) -> tuple[list[list[int]], list[list[int]]]:
    """Tokenise prompt and option as one text; return the tokens of the prompt and those after it.

    An option can merge with the prompt's last token, so that nothing is left after the prompt. All options of that
    prompt are then scored from that token on.
    """
    befores, joined = (encode(texts) for texts in ([p.rstrip() for p, _ in pairs], [p + o for p, o in pairs]))
    cuts: dict[str, int] = {}
    for (prompt, _), before, ids in zip(pairs, befores, joined, strict=True):
        cuts[prompt] = max(0, min(cuts.get(prompt, len(before)), len(before), len(ids) - 1))
    cut = [(ids[: cuts[prompt]], ids[cuts[prompt] :]) for (prompt, _), ids in zip(pairs, joined, strict=True)]
    return [before for before, _ in cut], [ids for _, ids in cut]


def _shares_prompts(asking: Asking, predictor: Predictor, questions: Sequence[list[Option]]) -> bool:
    """Return whether each prompt is read once for all its options.

    This needs a single checkpoint whose architecture allows it, and the same prompt for all options of a question.
    """
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
    """Yield batches of questions of similar length; a question with more options than rows gets its own batch.

    A question takes one row if its prompt is read once, and otherwise a row for each option.
    """
    length = {id(q): max(len(option.prompt) + len(option.ids) for option in q) for q in questions}
    chunk: list[list[Option]] = []
    taken = 0
    for question in sorted(questions, key=lambda q: -length[id(q)]):
        needed = 1 if shared else len(question)
        if chunk and taken + needed > rows:
            yield chunk
            chunk, taken = [], 0
        chunk.append(question)
        taken += needed
    yield chunk


def _sums(losses: Tensor, chunk: list[list[Option]], shared: bool, kind: Kind) -> list[float]:
    """Return the nats of each option of a batch."""
    if not shared or kind == "encoder-decoder":
        sums: list[float] = losses.sum(1).tolist()
        return sums
    parts = zip(losses, ([len(option.ids) for option in question] for question in chunk), strict=False)
    return [float(part.sum()) for row, sizes in parts for part in row[: sum(sizes)].split(sizes)]


def _one_row(chunk: list[list[Option]], asking: Asking, rows: int) -> Batch:
    """Make a decoder's batch with a row for each question: the prompt and its options one after another."""
    option_tokens = [[token for option in question for token in option.ids] for question in chunk]
    sequences = [[*question[0].prompt, *own] for question, own in zip(chunk, option_tokens, strict=True)]
    labels = padded(option_tokens, IGNORE, PAD_LABELS_TO, count=rows)
    ids, places = padded(sequences, asking.encoder.pad, PAD_TO, count=rows), torch.zeros_like(labels)
    masks, positions = [], []
    for number in range(rows):
        question = chunk[number] if number < len(chunk) else []
        prompt, sizes = len(question[0].prompt) if question else 0, [len(option.ids) for option in question]
        mask, position = after_one_prompt(prompt, sizes, ids.shape[1])
        masks.append(mask)
        positions.append(position)
        start = prompt
        for size, label in zip(sizes, accumulate(sizes, initial=0), strict=False):
            # The first token of each option is predicted at the prompt's last token, every other at the token before
            # it.
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


def _one_encoding(chunk: list[list[Option]], asking: Asking, rows: int) -> Batch:
    """Make an encoder-decoder's batch with an encoder row for each question and a decoder row for each option."""
    options = [option for question in chunk for option in question]
    count = rows * max(map(len, chunk))
    batch = _encoder_decoder(options, asking, count)
    prompts = [question[0].prompt for question in chunk]
    batch["input_ids"] = padded(prompts, asking.encoder.pad, PAD_TO, count=rows)
    batch["attention_mask"] = padded([[1] * len(prompt) for prompt in prompts], 0, PAD_TO, count=rows)
    batch["attention_mask"][len(chunk) :, 0] = 1
    of = [number for number, question in enumerate(chunk) for _ in question]
    return batch | {PROMPT_OF: torch.tensor(of + [0] * (count - len(of)))}


def _rows(make: Callable[[list[Option], Asking, int], Batch]) -> Callable[[list[list[Option]], Asking, int], Batch]:
    """Turn a function for a list of options into one for a list of questions, with a row for each option."""
    return lambda chunk, asking, rows: make([option for question in chunk for option in question], asking, rows)


def _decoder(chunk: list[Option], asking: Asking, rows: int) -> Batch:
    """Make a decoder's batch with a row for each option, after its prompt."""
    labels = padded([option.ids for option in chunk], IGNORE, PAD_LABELS_TO, count=rows)
    ids = padded([[*option.prompt, *option.ids] for option in chunk], asking.encoder.pad, PAD_TO, count=rows)
    # The label at t is predicted at t - 1. Padding comes after the row, so no token attends to it.
    starts = torch.tensor([len(option.prompt) - 1 for option in chunk] + [0] * (rows - len(chunk)))
    places = (starts[:, None] + torch.arange(labels.shape[1])).masked_fill(labels == IGNORE, 0)
    return {
        "input_ids": ids,
        "position_ids": torch.arange(ids.shape[1]).expand_as(ids).contiguous(),
        "positions": places,
        "labels": labels,
    }


def _masked(chunk: list[list[Option]], asking: Asking, rows: int) -> Batch:
    """Make a masked model's batch with a row for each question: the prompt and the masks shared by its options."""
    labels = padded(
        [[t for option in question for t in option.ids] for question in chunk], IGNORE, PAD_LABELS_TO, count=rows
    )
    places, sequences = torch.zeros_like(labels), []
    for number, question in enumerate(chunk):
        prompt, masks = question[0].prompt, [asking.encoder.tokenizer.mask_token_id] * question[0].masks
        sequences.append([*prompt, *masks, *asking.encoder.suffix])
        at = [len(prompt) + place for option in question for place in range(len(option.ids))]
        places[number, : len(at)] = torch.tensor(at)
    seen = padded([[1] * len(row) for row in sequences], 0, PAD_TO, count=rows)
    seen[len(chunk) :, 0] = 1  # a row that attends to nothing would give NaN
    ids = padded(sequences, asking.encoder.pad, PAD_TO, count=rows)
    return {"input_ids": ids, "attention_mask": seen, "positions": places, "labels": labels}


def _encoder_decoder(chunk: list[Option], asking: Asking, rows: int) -> Batch:
    """Make an encoder-decoder's batch: prompts for the encoder, options for the decoder."""
    labels = padded([option.ids for option in chunk], IGNORE, PAD_LABELS_TO, count=rows)
    pad, start = asking.encoder.pad, getattr(asking.conditions.objective, "decoder_start", None)
    shifted = labels.new_full(labels.shape, start if start is not None else pad)
    shifted[:, 1:] = labels[:, :-1].masked_fill(labels[:, :-1] == IGNORE, pad)
    mask = padded([[1] * len(option.prompt) for option in chunk], 0, PAD_TO, count=rows)
    mask[len(chunk) :, 0] = 1  # a row that attends to nothing would give NaN
    ids = padded([option.prompt for option in chunk], pad, PAD_TO, count=rows)
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": shifted, "labels": labels}


def _masked_apart(chunk: list[list[Option]], asking: Asking, rows: int) -> Batch:
    return _masked([[option] for question in chunk for option in question], asking, rows)


_APART = {"decoder": _rows(_decoder), "encoder": _masked_apart, "encoder-decoder": _rows(_encoder_decoder)}
_SHARED = {"decoder": _one_row, "encoder": _masked, "encoder-decoder": _one_encoding}
