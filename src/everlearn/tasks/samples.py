"""What a model says of a few held-out texts: the words it puts into blanks, how it goes on, what it answers.

Which texts, and where their blanks are, follows from the name of the set alone, so every checkpoint of every run is
asked the same. They are for reading, not for scoring: no metric is made of them. The texts stand in the file, in plain
words, so that a page can show them (`evaluation.samples: 0` keeps them out of both).
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
"""Words that are kept for a blank, the likeliest first."""
_WINDOW, _BLANKS, _APART = 48, 5, 4
"""Tokens of a passage with blanks, how many of its words are one, and how far apart they are."""
_PROMPT, _WRITTEN = 32, 24
"""Tokens that a decoder is given, and writes at most; an answer is as long at most."""
_PAD_TO = 8


@dataclass(frozen=True)
class Sample:
    """One text that a model is asked.

    Attributes:
        shown: what a reader sees: text, truth, text, truth … text; of a continuation or an answer `[text, truth, ""]`.
        block: the row that the model reads.
        at: positions of the blanks; of what is written, where it begins.
    """

    shown: tuple[str, ...]
    block: Block
    at: tuple[int, ...]


@register_kind()
class Samples(HeldOutText):
    """Asks for the words of a few held-out texts.

    Args:
        path: where the held-out blocks are kept.
        domain: whose text it is; None for general text.
        count: how many texts.
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
        """What is said: an example is a blank, or a text that is gone on with.

        Of a cell `texts` hold what was said (of a blank one guess a line, the likeliest first), the outcome `likely`
        [TOP, n] the probability of each guess (0 where something is written), `truth` [n] that of the true word,
        `given["text"]` [n] the number of the text, and the facts `form` and `shown` what stands around it.
        """
        form, choose, ask = _FORMS[type(conditions.objective)]
        order = np.random.Generator(np.random.PCG64(seed_for("samples", self.name)))
        blocks = self.held_out.blocks
        chosen = order.permutation(len(blocks))[: self.count]
        questions = [choose(block, conditions) for block in blocks.take(np.sort(chosen))]
        questions = [question for question in questions if question.at]
        said: list[tuple[str, list[float], float]] = []
        numbers: list[int] = []
        with at_rest(models_of(predictor), conditions.device, conditions.bf16):
            for number, question in enumerate(questions):
                found = ask(predictor, question, conditions)
                said += found
                numbers += [number] * len(found)
        return Cell(
            self.kind,
            self.name,
            conditions.row,
            {
                "likely": np.array([each[1] for each in said], np.float64).reshape(len(said), TOP).T,
                "truth": np.array([each[2] for each in said], np.float64),
            },
            {"text": np.array(numbers, np.int64)},
            {"form": form, "shown": [list(question.shown) for question in questions]},
            texts=tuple(each[0] for each in said),
            fingerprint=self.fingerprint(),
        )


# -- blanks -------------------------------------------------------------------------------------------------------


def _with_blanks(block: Block, conditions: Conditions) -> Sample:
    """A passage from the beginning of a document where there is one, and some of its whole words as blanks."""
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
        # What a tokenizer makes of a token depends on what is before it: texts are cut, not put together.
        before, behind = _text(ids[start:i], conditions), _text(ids[start : i + 1], conditions)
        shown[-1] = before[len(_text(ids[start:last], conditions)) :]
        truth = behind[len(before) :]
        shown[-1] += truth[: len(truth) - len(truth.lstrip())]
        shown += [truth.strip(), ""]
        last = i + 1
    shown[-1] = _text(ids[start:end], conditions)[len(_text(ids[start:last], conditions)) :]
    return Sample(_one_line(shown), block, tuple(at))


def _is_word(ids: np.ndarray, i: int, end: int, conditions: Conditions) -> bool:
    """Whether a token is a word of three letters or more by itself."""
    if i + 1 >= end or i == 0:
        return False
    own, following = _piece(ids, i, conditions), _piece(ids, i + 1, conditions)
    begins = own[:1].isspace() and len(own.strip()) >= 3 and own.strip().isalpha()
    return begins and not following[:1].isalnum()


def _piece(ids: np.ndarray, i: int, conditions: Conditions, token: int | None = None) -> str:
    """What a token (another one than is there) adds to the text, with the blank before it."""
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
    said = []
    for row, i in enumerate(question.at):
        guesses = [_piece(ids.numpy(), i, conditions, int(token)).strip() for token in best.indices[row]]
        lines = "\n".join(" ".join(guess.split()) for guess in guesses)
        said.append((lines, best.values[row].tolist(), float(likely[row, ids[i]])))
    return said


# -- continuations and answers ------------------------------------------------------------------------------------


def _to_go_on_with(block: Block, conditions: Conditions) -> Sample:
    """The beginning of a document; what follows is the truth."""
    start, end = _longest(block)
    cut = start + min(_PROMPT, (end - start) // 2)
    return _continued(block, start, cut, min(cut + _WRITTEN, end), conditions)


def _to_answer(block: Block, conditions: Conditions) -> Sample:
    """A prompt; its answer is the truth. Of examples that share a row the first whole one."""
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
            return _continued(block, int(own[0]), int(answered[0]), int(answered[-1]) + 1, conditions)
    return Sample(("", "", ""), block, ())


def _continued(block: Block, start: int, cut: int, end: int, conditions: Conditions) -> Sample:
    ids = block["input_ids"]
    prompt, whole = _text(ids[start:cut], conditions), _text(ids[start:end], conditions)
    row = {name: array[start:cut] for name, array in block.items()}
    return Sample(_one_line([prompt, whole.removeprefix(prompt), ""]), row, (cut - start,) if cut > start else ())


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
    # An encoder-decoder was trained to write its tokenizer's first special tokens too.
    most = _WRITTEN + (0 if left else len(encoder.prefix))
    (written,) = predictor.generate(inputs, max_new_tokens=most, stop=stop)
    prompt = _text(ids, conditions) if left else ""
    text = _text([*(ids if left else []), *written], conditions).removeprefix(prompt)
    return [(_one_line([text])[0].strip(), [0.0] * TOP, 0.0)]


# -- both ---------------------------------------------------------------------------------------------------------


def _longest(block: Block) -> tuple[int, int]:
    """Where the longest document of a row begins and ends; of those that begin in the row if one is long enough."""
    segments = block["segments"]
    starts = np.flatnonzero(np.diff(segments, prepend=segments[0] - 1))
    pieces = list(zip(starts.tolist(), [*starts[1:].tolist(), len(segments)], strict=True))
    whole = [piece for piece in pieces[1:] if piece[1] - piece[0] >= _PROMPT]
    return max(whole or pieces, key=lambda piece: piece[1] - piece[0])


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
    """Where the samples of a held-out set after a row are kept; `folder` is the run's ``evaluation``."""
    return folder / f"stage-{row:02d}" / "samples" / f"{name}.safetensors"
