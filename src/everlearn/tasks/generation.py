"""Evaluate generated answers: text to text, by batched greedy decoding.

Streams of tasks in the text-to-text form need this (arXiv 1910.10683; continual: 2310.14152). The model is trained on
each task as a domain, and is evaluated on all of them without further fine-tuning.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from everlearn.data.blocks import hash_of
from everlearn.evaluation.cell import Cell
from everlearn.evaluation.task import BYTES_PER_TOKEN, Conditions, Task, Work, register_kind
from everlearn.model.anatomy import Kind
from everlearn.predictors.predictor import Predictor
from everlearn.tasks.prompted import Asking, check_writes, padded
from everlearn.tasks.prompts import AnswerTask, Question, label_of, read_answers
from everlearn.tasks.text_match import exact_match, rouge_l, token_f1
from everlearn.wording import count

PAD_TO = 8


@register_kind(AnswerTask)
class Generation(Task):
    """Generate an answer to each prompt and compare it with the right one."""

    kind = "text-to-text"
    config: AnswerTask

    @cached_property
    def questions(self) -> list[Question]:
        """Return the examples; raise ``DataError`` if they cannot be read."""
        return read_answers(self.config)

    def check(self) -> str:
        return f"{count(len(self.questions), 'prompt')} with an answer"

    def check_model(self, kind: Kind) -> None:
        check_writes(self.config, kind)

    def fingerprint(self) -> str:
        return hash_of(self.kind, self.config.marks, [(q.prompt, q.answers) for q in self.questions])

    def texts(self) -> Sequence[str]:
        return [question.prompt for question in self.questions]

    def work(self, seeds: int) -> Work:
        prompts = [len(question.prompt.encode()) for question in self.questions]
        labels = max((len(label.encode()) for label in self.config.labels), default=0) // BYTES_PER_TOKEN + 1
        longest = sum(prompts) // (BYTES_PER_TOKEN * len(prompts)) + (self.config.max_new_tokens or labels)
        return Work(units=len(prompts), rows=len(prompts), tokens=longest)

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        return self.cell(self.answers(predictor, conditions), conditions.row)

    def always(self, answer: str) -> Cell:
        """Return the cell of a constant model, with the same answer to every prompt."""
        return self.cell([answer] * len(self.questions), answer)

    def cell(self, texts: Sequence[str], row: str) -> Cell:
        """Return the cell of these answers, one for each prompt."""
        config, pairs = self.config, [(text, q.answers) for text, q in zip(texts, self.questions, strict=True)]
        outcomes = {
            "exact_match": [exact_match(text, right, config.match) for text, right in pairs],
            "token_f1": [token_f1(text, right) for text, right in pairs],
            "rouge_l": [rouge_l(text, right) for text, right in pairs],
        }
        scores: dict[str, Any] = {name: np.array(values, np.float64) for name, values in outcomes.items()}
        properties: dict[str, Any] = {}
        facts: dict[str, Any] = {"targets": [list(right) for _, right in pairs]}
        if config.labels:
            scores["predictions"] = np.array([[label_of(text, config.labels) for text in texts]], np.int64)
            properties["truth"] = np.array([label_of(right[0], config.labels) for _, right in pairs], np.int64)
            facts |= {"classes": list(range(len(config.labels))), "labels": list(config.labels)}
        return Cell(
            self.kind,
            self.name,
            row,
            scores,
            properties,
            facts,
            texts=tuple(texts),
            fingerprint=self.fingerprint(),
        )

    def answers(self, predictor: Predictor, conditions: Conditions) -> list[str]:
        """Return the predictor's answer to each prompt, without surrounding white space."""
        return written(self.config, [question.prompt for question in self.questions], predictor, conditions)


def written(config: Any, prompts: Sequence[str], predictor: Predictor, conditions: Conditions) -> list[str]:
    """Generate the text after each prompt, up to the first of the task's `stop`, without surrounding white space.

    Args:
        config: options of the end task: those of :class:`Asks`, `max_new_tokens`, `labels` and `stop`.
        prompts: the prompts.
        predictor: the predictor to evaluate.
        conditions: conditions of the evaluation.
    """
    asking = Asking(config, predictor, conditions)
    encoder = asking.encoder
    # An encoder-decoder learnt to generate its tokenizer's leading special tokens too.
    limit = config.max_new_tokens or 1 + max(map(len, encoder(config.labels)))
    most = limit + (len(encoder.prefix) if asking.kind == "encoder-decoder" else 0)
    room = asking.room(most, f"Lower its `max_new_tokens` (now {limit}).")
    rows = [asking.prompt(ids, room) for ids in encoder(prompts)]
    stop = [] if encoder.end is None else [encoder.end]
    return [_text(ids, config.stop, conditions) for ids in continued(asking, predictor, rows, most, stop)]


def continued(
    asking: Asking, predictor: Predictor, rows: Sequence[list[int]], most: int, stop: Sequence[int]
) -> list[list[int]]:
    """Return greedy continuations of rows of token ids: at most `most` tokens, up to an id of `stop`."""
    how, pad = asking.conditions, asking.encoder.pad
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))  # rows of similar length share a batch
    continuations: list[list[int]] = [[]] * len(rows)
    left = asking.kind == "decoder"
    with asking():
        for start in range(0, len(order), how.batch_size):
            chosen = order[start : start + how.batch_size]
            batch = [rows[i] for i in chosen]
            inputs = {
                "input_ids": padded(batch, pad, PAD_TO, left=left),
                "attention_mask": padded([[1] * len(row) for row in batch], 0, PAD_TO, left=left),
            }
            inputs = {key: value.to(torch.device(how.device)) for key, value in inputs.items()}
            for i, ids in zip(chosen, predictor.generate(inputs, max_new_tokens=most, stop=stop), strict=True):
                continuations[i] = ids
            if how.progress is not None:
                how.progress(start + len(chosen))
    return continuations


def _text(ids: list[int], stop: Sequence[str], conditions: Conditions) -> str:
    text: Any = conditions.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    for end in stop:
        text = text.partition(end)[0]
    return str(text).strip()
