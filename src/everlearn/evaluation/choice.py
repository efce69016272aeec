"""The kind of end task in which the model chooses: the option that is likeliest after the prompt.

An option o of tokens o_1 … o_m after the prompt x has log p(o | x) = Σ_i log p(o_i | x, o_<i). The answer is the
option with the largest log p(o | x) (metric ``choice_accuracy``; lm_eval's acc), or with the largest log p(o | x) for
each byte of its UTF-8 text (``choice_accuracy_per_byte``; lm_eval's acc_norm, which counts characters: the same for
ASCII) or for each of its tokens (``choice_accuracy_per_token``; GPT-3, arXiv 2005.14165, section 2.4). Of equally good
options the first is chosen.

How prompt and option become tokens depends on what the model was trained on. Under a causal objective both are one
text: the option's tokens are those of the whole behind the prompt's, and blanks at the prompt's end belong to the
option (as in lm_eval). Under text-to-text they are tokenised apart, and an option is scored with the end of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from everlearn.data.blocks import hash_of
from everlearn.data.prompts import ChoiceTask, Question, read_choices
from everlearn.errors import TrainingDiverged
from everlearn.evaluation.asking import Asking, check_writes, padded
from everlearn.evaluation.cell import Cell
from everlearn.evaluation.metrics import Floats, Metric, register_metric
from everlearn.evaluation.predictor import Predictor
from everlearn.evaluation.task import Conditions, Task, Work, register_kind
from everlearn.model.anatomy import Kind
from everlearn.model.objectives import IGNORE, Objective, TextToText

PAD_TO, PAD_LABELS_TO = 32, 8
"""Few widths: on CPU every new matrix shape is compiled and kept."""
_BYTES_PER_TOKEN = 4
"""About, for a plan."""


class Option(NamedTuple):
    """A row: an option after its prompt.

    Attributes:
        question: number of the question.
        number: of the option.
        prompt: token ids before it, special ones included.
        ids: its token ids.
    """

    question: int
    number: int
    prompt: list[int]
    ids: list[int]


@register_kind(ChoiceTask)
class Choice(Task):
    """Scores the options of each question; all options of one are rows of the same batch."""

    kind = "choice"

    def __init__(self, config: ChoiceTask) -> None:
        self.name, self.domain, self.config = config.name, config.domain, config

    @cached_property
    def questions(self) -> list[Question]:
        """The examples; raises ``DataError``."""
        return read_choices(self.config)

    def check(self) -> str:
        counts = sorted({len(question.answers) for question in self.questions})
        return f"{len(self.questions):,} questions of {' or '.join(map(str, counts))} options"

    def check_model(self, kind: Kind) -> None:
        check_writes(self.config, kind)

    def fingerprint(self) -> str:
        return hash_of(self.kind, self.config.marks, [(q.prompt, q.answers, q.right) for q in self.questions])

    def texts(self) -> Sequence[str]:
        return [question.prompt for question in self.questions]

    def work(self, seeds: int) -> Work:
        rows = [len(f"{q.prompt}{option}".encode()) for q in self.questions for option in q.answers]
        return Work(units=len(self.questions), rows=len(rows), tokens=sum(rows) // (_BYTES_PER_TOKEN * len(rows)) + 1)

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        questions = self.questions
        nats = np.full((max(len(q.answers) for q in questions), len(questions)), np.inf)
        tokens, sizes = np.zeros(nats.shape, np.int64), np.zeros(nats.shape, np.int64)
        for number, question in enumerate(questions):
            sizes[: len(question.answers), number] = [len(option.encode()) for option in question.answers]
        asking = Asking(self.config, predictor, conditions)
        grouped = self._options(asking)
        done = 0
        with asking():
            for lot in _batches(grouped, conditions.batch_size):
                batch = _batch(lot, asking, conditions.batch_size)
                found = predictor.label_losses({k: v.to(torch.device(conditions.device)) for k, v in batch.items()})
                for option, loss in zip(lot, found.double().sum(1).tolist(), strict=False):
                    nats[option.number, option.question] = loss
                    tokens[option.number, option.question] = len(option.ids)
                done += len({option.question for option in lot})
                if conditions.progress is not None:
                    conditions.progress(done)
        if np.isnan(nats).any():
            raise TrainingDiverged(
                f"The model's loss on an option of end task '{self.name}' is not a number: its weights are broken. "
                "Lower `train.learning_rate` and run the stage again."
            )
        return Cell(
            self.kind,
            self.name,
            conditions.row,
            {"option_nats": nats, "option_tokens": tokens},
            {"right_option": np.array([q.right for q in questions], np.int64), "option_bytes": sizes},
            fingerprint=self.fingerprint(),
        )

    def always(self, answer: str) -> Cell:
        """What it would be worth to choose one answer always; of a question that has it not the first."""
        nats = np.full((max(len(q.answers) for q in self.questions), len(self.questions)), np.inf)
        for number, question in enumerate(self.questions):
            nats[question.answers.index(answer) if answer in question.answers else 0, number] = 0.0
        sizes = np.ones(nats.shape, np.int64)
        outcomes, right = {"option_nats": nats, "option_tokens": sizes}, [q.right for q in self.questions]
        given = {"right_option": np.array(right, np.int64), "option_bytes": sizes}
        return Cell(self.kind, self.name, answer, outcomes, given, fingerprint=self.fingerprint())

    def _options(self, asking: Asking) -> list[list[Option]]:
        """Rows of each question."""
        apart = isinstance(asking.conditions.objective, TextToText)
        between = self.config.separator if self.config.separator is not None else "" if apart else " "
        encode, found = asking.encoder, []
        ending = encode.suffix if asking.kind == "encoder-decoder" else [encode.end] if apart else []
        begin = encode.prefix if asking.kind == "encoder-decoder" else []
        for number, question in enumerate(self.questions):
            options = [between + option for option in question.answers]
            if apart:
                prompts, ids = encode([question.prompt]) * len(options), encode(options)
            else:
                prompts, ids = _together(encode, question.prompt, options)
            ids = [[*begin, *own, *ending] for own in ids]
            room = asking.room(max(map(len, ids)), f"Shorten the options of question {number + 1}.")
            rows = zip(prompts, ids, strict=True)
            found.append([Option(number, i, asking.prompt(before, room), own) for i, (before, own) in enumerate(rows)])
        return found


def _together(encode: Any, prompt: str, options: list[str]) -> tuple[list[list[int]], list[list[int]]]:
    """Tokens of prompt and option as one text: those of the prompt alone, and what the whole has behind them.

    Where an option has grown into the prompt's last word and nothing is behind, all are scored from that word on.
    """
    text = prompt.rstrip()
    before, *whole = encode([text, *(prompt + option for option in options)])
    at = max(0, min(len(before), *(len(ids) - 1 for ids in whole)))
    return [ids[:at] for ids in whole], [ids[at:] for ids in whole]


def _batches(questions: list[list[Option]], rows: int) -> Iterator[list[Option]]:
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


def _encoder_decoder(lot: list[Option], labels: Tensor, pad: int, objective: Objective, rows: int) -> dict[str, Tensor]:
    start = getattr(objective, "decoder_start", None)
    shifted = labels.new_full(labels.shape, start if start is not None else pad)
    shifted[:, 1:] = labels[:, :-1].masked_fill(labels[:, :-1] == IGNORE, pad)
    mask = padded([[1] * len(option.prompt) for option in lot], 0, PAD_TO, count=rows)
    mask[len(lot) :, 0] = 1  # a row that attends to nothing would be no number
    ids = padded([option.prompt for option in lot], pad, PAD_TO, count=rows)
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": shifted, "labels": labels}


def _accuracy(per: str | None) -> Any:
    def terms(cell: Cell) -> NDArray[Any]:
        nats = cell["option_nats"]
        size = np.ones_like(nats) if per is None else np.maximum(cell[per], 1)
        right = (np.argmin(nats / size, axis=0) == cell["right_option"]).astype(np.float64)
        return np.stack([right, np.ones_like(right)])[None]

    return terms


def _share(sums: Floats, cell: Cell) -> Floats:
    return np.asarray(sums[..., 0] / sums[..., 1])


for _name, _title, _per in (
    ("choice_accuracy", "Choice accuracy", None),
    ("choice_accuracy_per_byte", "Choice accuracy per byte", "option_bytes"),
    ("choice_accuracy_per_token", "Choice accuracy per token", "option_tokens"),
):
    _reads = ("option_nats", "right_option", *([_per] if _per else []))
    register_metric(Metric(_name, _title, "fraction", True, _reads, _accuracy(_per), _share))
