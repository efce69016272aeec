"""Score held-out text before and after a protected training, to measure what the model has forgotten."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from everlearn.data.blocks import Block, PackedBlocks
from everlearn.data.columns import HELD_OUT_SPLITS, text_corpus
from everlearn.data.corpus import Corpus, Document
from everlearn.data.documents import read_documents
from everlearn.data.packing import Packer, chunks, make_packer, packer_of
from everlearn.data.readers import FORMATS
from everlearn.data.text_files import COMPRESSIONS
from everlearn.data.tokenize import Encoder
from everlearn.errors import DataError, MethodError
from everlearn.evaluation import METRICS, Cell
from everlearn.evaluation.cell import text_cell
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.held_out_rows import facts_of_rows
from everlearn.model.anatomy import kind_of
from everlearn.model.objectives import Objective, make_objective
from everlearn.model.training_mode import as_its_class_computes
from everlearn.model.vocabulary_head import output_head, unwrap
from everlearn.options import path_or_id
from everlearn.predictors.block_losses import block_losses
from everlearn.run.forgetting_guard import MEASURE, worse
from everlearn.tasks.held_out import HeldOut

OneText = str | Path | Sequence[str] | Sequence[Path]
HeldOutTexts = OneText | Mapping[str, OneText]
"""A file or folder of text, several of them, or texts; or several of these by name."""
ROWS, LONGEST = 256, 512
"""Largest number of rows of a text that are scored, evenly spread over it; largest number of tokens of a row."""
MOST_GENERAL = 10_000
"""Largest number of rows of general text."""


@dataclass(frozen=True)
class Forgetting:
    """What a model has forgotten on one text.

    Attributes:
        name: name of the text.
        before: bits per byte before the domain was learnt.
        after: bits per byte after it.
        forgotten: after minus before, with its 95 % interval (paired bootstrap over documents, or over rows if there
            are few documents); above 0 means worse.
        rows: number of scored rows.
        since_base: the same difference to the base model, before the first domain; None in the first domain, or if
            this text was not scored then.
    """

    name: str
    before: float
    after: float
    forgotten: Estimate
    rows: int
    since_base: Estimate | None = None

    def __str__(self) -> str:
        sign = self.forgotten.sign
        what = {1: "was forgotten", -1: "got better", 0: "did not clearly change"}.get(
            2 if sign is None else sign, "changed"
        )
        since = "" if self.since_base is None else f" Since the base model: {_change(self.since_base)}."
        return (
            f"'{self.name}' {what}: {_change(self.forgotten)}, {self.before:.4f} before and {self.after:.4f} "
            f"after, {self.rows:,} rows.{since}"
        )


def _change(change: Estimate) -> str:
    between = f" ({change.interval[0]:+.4f} to {change.interval[1]:+.4f})" if change.interval else ""
    return f"{change.value or 0.0:+.4f} bits per byte{between}"


class ScoredText:
    """One text as rows, with the losses of the model on them before the training.

    Raises:
        DataError: the text is shorter than a row or cannot be read, or the model reads no plain text.
    """

    def __init__(self, name: str, text: Any, model: nn.Module, tokenizer: Any) -> None:
        self.name, self._objective = name, make_objective(None, model, tokenizer)
        kind, place = kind_of(model), f"`held_out` ('{name}')"
        encoder, packer, rows = rows_of_text(place, text, self._objective, model, answers=kind == "decoder")
        blocks = PackedBlocks.from_blocks(rows, 0, name)
        chosen = np.unique(np.linspace(0, len(blocks) - 1, min(ROWS, len(blocks))).astype(int))
        # A decoder predicts the end of each text, an encoder no special token.
        width = packer.count.bytes_per_label(0 if kind == "encoder" else 1)
        facts = facts_of_rows(blocks, chosen, encoder, width, in_order=True)
        self.held_out = HeldOut(PackedBlocks.from_blocks(blocks.take(chosen), 0, name), width, facts)
        self._before: Cell | None = None
        self.base: Cell | None = None
        """The scores of the base model; None in the first domain, or if the text was not scored then."""

    def __len__(self) -> int:
        return len(self.held_out.blocks)

    @property
    def before(self) -> Cell:
        """The scores before the training.

        Raises:
            MethodError: there are none yet.
        """
        if self._before is None:
            raise MethodError("The held-out text was not scored before the training.")
        return self._before

    def measure(self, model: nn.Module, batch_size: int, bf16: bool) -> None:
        """Score the text before the training, once."""
        if self._before is None:
            self._before = self.score(model, batch_size, bf16)

    def score(self, model: nn.Module, batch_size: int, bf16: bool) -> Cell:
        """Return the losses of a model on the text."""
        core = unwrap(model)
        with as_its_class_computes(core):
            losses = block_losses(core, self.held_out.blocks, self._objective, batch_size=batch_size, bf16=bf16)
        properties = self.held_out.row_properties(losses.items)
        return text_cell(losses.nats, losses.items, self.held_out.bytes_per_token, given=properties, task=self.name)

    def forgetting(self, model: nn.Module, batch_size: int, bf16: bool) -> Forgetting:
        """Score the text again, and return the change."""
        score, after = METRICS[MEASURE].score, self.score(model, batch_size, bf16)
        change, base = worse(self.before, after, self.name), self.base
        since = worse(base, after, self.name) if base is not None and base.same_examples(after) else None
        return Forgetting(self.name, score(self.before), score(after), change, len(self), since)


def held_out_texts(held_out: HeldOutTexts | None, model: nn.Module, tokenizer: Any) -> list[ScoredText]:
    """Tokenise the texts that will be scored.

    Raises:
        MethodError: there is no tokenizer, or the model does not predict text.
        DataError: a text cannot be used.
    """
    if held_out is None:
        return []
    _refuse_text("held_out", unwrap(model), tokenizer)
    named = held_out if isinstance(held_out, Mapping) else {"held-out text": held_out}
    return [ScoredText(name, text, unwrap(model), tokenizer) for name, text in named.items()]


def general_text(general: OneText | None, model: nn.Module, tokenizer: Any, seed: int) -> PackedBlocks | None:
    """Tokenise the text on which methods measure general knowledge, at most its first 10,000 rows.

    Raises:
        MethodError: there is no tokenizer, or the model does not predict text.
        DataError: the text cannot be used.
    """
    if general is None:
        return None
    _refuse_text("general", model, tokenizer)
    _, _, rows = rows_of_text("`general`", general, make_objective(None, model, tokenizer), model, ("train",))
    return PackedBlocks.from_blocks(islice(rows, MOST_GENERAL), seed, "general text")


def rows_of_text(
    place: str,
    text: Any,
    objective: Objective,
    model: nn.Module,
    splits: Sequence[str] = HELD_OUT_SPLITS,
    answers: bool = False,
) -> tuple[Encoder, Packer, Iterator[Block]]:
    """Return the packed rows of a text, with the encoder and the packer, which counts documents and tokens.

    Args:
        place: origin of the text, for error messages.
        text: texts or files.
        objective: the objective of plain text.
        model: the model, which bounds the tokens of a row.
        splits: split to read of a folder whose file names indicate splits; of several, the first that exists.
        answers: whether files may have chats, or prompts with answers, of which only the answers count.

    Raises:
        DataError: the text is shorter than a row or cannot be read.
    """
    size = min(LONGEST, objective.longest_input(model) or LONGEST)
    encoder = Encoder(objective.tokenizer, kind_of(model))
    corpora = _corpora(place, text, splits, answers)
    kinds = {corpus.answers for corpus in corpora or ()}
    if len(kinds) > 1:
        raise DataError(
            f"{place} has plain text and answers, which are scored apart: give each a name of its own, as in "
            '`held_out={"text": …, "chats": …}`.'
        )
    of_answers = corpora is not None and kinds == {True}
    packer = (
        packer_of(corpora[0], encoder, size, where=place)
        if corpora and of_answers
        else make_packer(encoder, size, examples=False)
    )
    rows = _packed(packer, _documents(text, corpora), of_answers)
    if (first := next(rows, None)) is None:
        raise DataError(f"{place} has {packer.count.tokens:,} tokens, fewer than a row ({size}). Give more text.")
    return encoder, packer, chain([first], rows)


def _refuse_text(key: str, model: nn.Module, tokenizer: Any) -> None:
    if output_head(model) is None:
        raise MethodError(
            f"`{key}` is text, which '{type(model).__name__}' does not predict: it has no vocabulary head. Leave it "
            "out."
        )
    if kind_of(model) == "encoder-decoder":
        raise DataError(f"`{key}` is plain text, which an encoder-decoder does not learn. Leave it out.")
    if not hasattr(tokenizer, "encode"):
        raise MethodError(
            f"`{key}` is text, which needs the model's tokenizer: give the Trainer its `processing_class`, or "
            "`protect` a `tokenizer`."
        )


def _packed(packer: Packer, documents: Iterator[Document], rest: bool) -> Iterator[Block]:
    """Yield the rows of documents; with `rest` also those that are not full."""
    for chunk in chunks(documents):
        yield from packer.feed(chunk)
    if rest:
        yield from packer.finish()


def _corpora(place: str, text: Any, splits: Sequence[str], answers: bool) -> list[Corpus] | None:
    """Return the files of one text, with the columns to read; None if it is not in files.

    Raises:
        DataError: it is neither texts nor files, or a file cannot be read.
    """
    key = place.split("`")[1]
    paths = [text] if isinstance(text, str | Path) else _paths(place, _listed(place, text))
    if paths is None:
        return None
    return [text_corpus(path_or_id(path, key), key, splits=splits, answers=answers) for path in paths]


def _documents(text: Any, corpora: Sequence[Corpus] | None) -> Iterator[Document]:
    """Yield the documents of one text, or of its files."""
    if corpora is None:
        yield from (Document(each) for each in text if each.strip())
        return
    for corpus in corpora:
        yield from (document for document, _ in read_documents(corpus))


def _listed(place: str, text: Any) -> list[str | Path]:
    """Return the members of a list, each a text or a file."""
    listed: list[Any] = [text] if isinstance(text, Mapping) or not isinstance(text, Iterable) else list(text)
    for each in listed:
        if not isinstance(each, str | Path):
            raise DataError(
                f"{place} must be texts, or the paths of files, and `{type(each).__name__}` is among "
                'them. Of rows, give the text alone: `[row["text"] for row in rows]`.'
            )
    return listed


def _paths(place: str, listed: Sequence[str | Path]) -> Sequence[str | Path] | None:
    """Return the members of a list if they are files, and None if they are texts."""
    files = [each for each in listed if isinstance(each, Path) or _names_a_file(each)]
    if files and len(files) < len(listed):
        raise DataError(
            f"{place} has both texts and files ('{files[0]}'). Give one kind; `held_out` takes each under a "
            'name of its own: `held_out={"files": […], "texts": […]}`.'
        )
    return files or None


def _names_a_file(text: str) -> bool:
    """Return whether a string has the suffix of a text file, and no whitespace or exists as a file."""
    if not text.lower().endswith((*FORMATS, *COMPRESSIONS)):
        return False
    return not re.search(r"\s", text) or os.path.isfile(text)  # False for a text that is too long for a path
