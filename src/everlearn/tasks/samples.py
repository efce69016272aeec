"""Generate samples for a few held-out texts: words for blanks, continuations or answers.

The choice of texts and blanks depends on the name of the set only, so every checkpoint of every run gets the same ones.
Samples are for reading: no metric is computed from them. The file holds the texts in plain words, which the report
shows (`evaluation.samples: 0` leaves them out of both).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from everlearn import wording
from everlearn.data.blocks import Block, hash_of
from everlearn.data.tokenize import Encoder
from everlearn.evaluation.cell import Cell
from everlearn.evaluation.task import Conditions, Work, register_kind
from everlearn.model.anatomy import kind_of
from everlearn.model.objectives import IGNORE, Causal, Masked, Objective, TextToText
from everlearn.predictors.predictor import Predictor, at_rest, models_of
from everlearn.seeding import seed_for
from everlearn.tasks.held_out import HeldOutText
from everlearn.tasks.prompted import padded

BLANKS, CONTINUATION, ANSWER = "blanks", "continuation", "answer"
TOP = 3
"""Number of words that are kept for a blank, the likeliest first."""
_WINDOW, _BLANKS, _APART = 48, 5, 4
"""Tokens of a passage with blanks; its maximum number of blanks; the minimum distance between two."""
_PROMPT, _WRITTEN = 32, 24
"""Maximum tokens of a decoder's prompt, and of its continuation or an answer."""
_PAD_TO = 8


@dataclass(frozen=True)
class Sample:
    """One text for which a model gives a sample.

    Attributes:
        shown: displayed parts: text, truth, text, truth … text; for a continuation or an answer `[text, truth, ""]`.
        block: the row that the model reads.
        at: positions of the blanks, or the position at which generation begins.
    """

    shown: tuple[str, ...]
    block: Block
    at: tuple[int, ...]


@register_kind()
class Samples(HeldOutText):
    """Generate samples for a few held-out texts.

    Args:
        path: file with the held-out blocks.
        domain: the domain of the text; None for general text.
        count: number of texts.
    """

    kind = "samples"

    def __init__(self, path: Path, domain: str | None, count: int) -> None:
        super().__init__(path, domain)
        self.count = count

    def check(self) -> str:
        return f"{wording.count(self.count, 'text')} to read"

    def fingerprint(self) -> str:
        return hash_of(self.kind, super().fingerprint(), self.count)

    def work(self, seeds: int) -> Work:
        tokens = self.held_out.blocks.block_tokens or 0
        return Work(units=self.count, rows=self.count * _WRITTEN, tokens=tokens // _WRITTEN)

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        """Return the samples as a cell whose examples are blanks, continuations or answers.

        `texts` holds the samples (for a blank one guess a line, the likeliest first), the outcome `likely` [TOP, n] the
        probability of each guess (0 for generated text), `truth` [n] that of the true word, `given["text"]` [n] the
        number of the text, and the facts `form` and `shown` the text around each sample.
        """
        order = np.random.Generator(np.random.PCG64(seed_for("samples", self.name)))
        blocks = self.held_out.blocks
        answered = isinstance(conditions.objective, Causal) and "labels" in blocks.arrays
        form, choose, ask = _FORMS[TextToText if answered else type(conditions.objective)]
        chosen = order.permutation(len(blocks))[: self.count]
        questions = [choose(block, conditions) for block in blocks.take(np.sort(chosen))]
        questions = [question for question in questions if question.at]
        samples: list[tuple[str, list[float], float]] = []
        numbers: list[int] = []
        with at_rest(models_of(predictor), conditions.device, conditions.bf16):
            for number, question in enumerate(questions):
                answers = ask(predictor, question, conditions)
                samples += answers
                numbers += [number] * len(answers)
        return Cell(
            self.kind,
            self.name,
            conditions.row,
            {
                "likely": np.array([each[1] for each in samples], np.float64).reshape(len(samples), TOP).T,
                "truth": np.array([each[2] for each in samples], np.float64),
            },
            {"text": np.array(numbers, np.int64)},
            {"form": form, "shown": [list(question.shown) for question in questions]},
            texts=tuple(each[0] for each in samples),
            fingerprint=self.fingerprint(),
        )


# -- blanks -------------------------------------------------------------------------------------------------------


def _with_blanks(block: Block, conditions: Conditions) -> Sample:
    """Choose a passage, from the beginning of a document if possible, and some of its words as blanks."""
    ids = block["input_ids"]
    start, end = _longest(block)
    end = min(end, start + _WINDOW)
    special = set(conditions.tokenizer.all_special_ids)
    places = [i for i in range(start, end) if int(ids[i]) not in special]
    words = [i for i in places if _is_word(ids, i, end, conditions)] or places
    random = np.random.Generator(np.random.PCG64(seed_for("blanks", ids[start:end].tolist())))
    at: list[int] = []
    for i in random.permutation(words).tolist():
        if len(at) < _BLANKS and all(abs(i - other) >= _APART for other in at):
            at.append(i)
    at.sort()
    shown, last = [""], start
    for i in at:
        # The text of a token depends on the tokens before it, so decoded texts are cut rather than joined.
        before, behind = _text(ids[start:i], conditions), _text(ids[start : i + 1], conditions)
        shown[-1] = before[len(_text(ids[start:last], conditions)) :]
        truth = behind[len(before) :]
        shown[-1] += truth[: len(truth) - len(truth.lstrip())]
        shown += [truth.strip(), ""]
        last = i + 1
    shown[-1] = _text(ids[start:end], conditions)[len(_text(ids[start:last], conditions)) :]
    return Sample(_one_line(shown), block, tuple(at))


def _is_word(ids: np.ndarray, i: int, end: int, conditions: Conditions) -> bool:
    """Return whether a token is by itself a word of at least three letters."""
    if i + 1 >= end or i == 0:
        return False
    own, following = _piece(ids, i, conditions), _piece(ids, i + 1, conditions)
    begins = own[:1].isspace() and len(own.strip()) >= 3 and own.strip().isalpha()
    return begins and not following[:1].isalnum()


def _piece(ids: np.ndarray, i: int, conditions: Conditions, token: int | None = None) -> str:
    """Return the text that a token adds, with the blank before it; `token` replaces the token at `i`."""
    before = ids[max(0, i - 1) : i]
    joined = _text([*before, ids[i] if token is None else token], conditions)
    return joined[len(_text(before, conditions)) :]


def _fill(predictor: Predictor, question: Sample, conditions: Conditions) -> list[tuple[str, list[float], float]]:
    batch = conditions.objective.collate([question.block], [0])
    at = torch.tensor(question.at)
    ids = torch.from_numpy(question.block["input_ids"].astype(np.int64))
    masked = ids.clone()
    masked[at] = conditions.tokenizer.mask_token_id
    batch |= {"input_ids": masked[None], "positions": at[None], "labels": ids[at][None]}
    device = torch.device(conditions.device)
    likely = predictor.likely({key: value.to(device) for key, value in batch.items()})[0].exp().cpu()
    best = likely.topk(TOP, -1)
    samples = []
    for row, i in enumerate(question.at):
        guesses = [_piece(ids.numpy(), i, conditions, int(token)).strip() for token in best.indices[row]]
        lines = "\n".join(" ".join(guess.split()) for guess in guesses)
        samples.append((lines, best.values[row].tolist(), float(likely[row, ids[i]])))
    return samples


# -- continuations and answers ------------------------------------------------------------------------------------


def _to_go_on_with(block: Block, conditions: Conditions) -> Sample:
    """Take the beginning of a document as the prompt; the truth is what follows it."""
    start, end = _longest(block)
    cut = start + min(_PROMPT, (end - start) // 2)
    return _continued(block, start, cut, min(cut + _WRITTEN, end), conditions)


def _to_answer(block: Block, conditions: Conditions) -> Sample:
    """Take a prompt, with its answer as the truth; in a row of several examples, the first complete one.

    A row of plain text, in a set with answers, is treated as by :func:`_to_go_on_with`.
    """
    labels = block["labels"]
    if "segments" not in block:
        right = labels[labels != IGNORE]
        shown = _one_line([_text(block["input_ids"], conditions), _text(right, conditions), ""])
        return Sample(shown, block, (len(block["input_ids"]),))
    segments = block["segments"]
    for segment in dict.fromkeys(segments.tolist()):
        own = np.flatnonzero(segments == segment)
        answered = own[labels[own] != IGNORE]
        if len(answered) and answered[0] > own[0]:
            first = answered[answered - answered[0] == np.arange(len(answered))]  # of a chat the first turn
            return _continued(block, int(own[0]), int(first[0]), int(first[-1]) + 1, conditions)
    return (
        _to_go_on_with(block, conditions) if (labels == block["input_ids"]).all() else Sample(("", "", ""), block, ())
    )


def _continued(block: Block, start: int, cut: int, end: int, conditions: Conditions) -> Sample:
    ids = block["input_ids"]
    prompt, text = _text(ids[start:cut], conditions), _text(ids[start:end], conditions)
    row = {name: array[start:cut] for name, array in block.items()}
    return Sample(_one_line([prompt, text.removeprefix(prompt), ""]), row, (cut - start,) if cut > start else ())


def _go_on(predictor: Predictor, question: Sample, conditions: Conditions) -> list[tuple[str, list[float], float]]:
    kind = kind_of(models_of(predictor)[0])
    encoder = Encoder(conditions.tokenizer, kind)
    ids, left = question.block["input_ids"].tolist(), kind == "decoder"
    inputs = {
        "input_ids": padded([ids], encoder.pad, _PAD_TO, left=left),
        "attention_mask": padded([[1] * len(ids)], 0, _PAD_TO, left=left),
    }
    inputs = {key: value.to(torch.device(conditions.device)) for key, value in inputs.items()}
    stop = [] if encoder.end is None else [encoder.end]
    # An encoder-decoder learnt to generate its tokenizer's leading special tokens too.
    most = _WRITTEN + (0 if left else len(encoder.prefix))
    (written,) = predictor.generate(inputs, max_new_tokens=most, stop=stop)
    prompt = _text(ids, conditions) if left else ""
    text = _text([*(ids if left else []), *written], conditions).removeprefix(prompt)
    return [(_one_line([text])[0].strip(), [0.0] * TOP, 0.0)]


# -- both ---------------------------------------------------------------------------------------------------------


def _longest(block: Block) -> tuple[int, int]:
    """Return start and end of the row's longest document.

    Documents that begin within the row are preferred if one of them is long enough.
    """
    segments = block["segments"]
    starts = np.flatnonzero(np.diff(segments, prepend=segments[0] - 1))
    pieces = list(zip(starts.tolist(), [*starts[1:].tolist(), len(segments)], strict=True))
    complete = [piece for piece in pieces[1:] if piece[1] - piece[0] >= _PROMPT]
    return max(complete or pieces, key=lambda piece: piece[1] - piece[0])


def _text(ids: Sequence[int] | np.ndarray, conditions: Conditions) -> str:
    text: Any = conditions.tokenizer.decode(
        [int(i) for i in ids], skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return str(text)


def _one_line(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple("".join(" " if character.isspace() else character for character in text) for text in texts)


_Choose = Callable[[Block, Conditions], Sample]
_Ask = Callable[[Predictor, Sample, Conditions], list[tuple[str, list[float], float]]]
_FORMS: dict[type[Objective], tuple[str, _Choose, _Ask]] = {
    Masked: (BLANKS, _with_blanks, _fill),
    Causal: (CONTINUATION, _to_go_on_with, _go_on),
    TextToText: (ANSWER, _to_answer, _go_on),
}


def samples_path(folder: Path, row: int, name: str) -> Path:
    """Return the file of a held-out set's samples in a row; `folder` is the run's ``evaluation``."""
    return folder / f"stage-{row:02d}" / "samples" / f"{name}.safetensors"
