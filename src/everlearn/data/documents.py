"""Read the documents of a corpus, local or remote, in order, each with the position of the next one."""

from __future__ import annotations

import filecmp
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from everlearn import wording
from everlearn.data import hub
from everlearn.data.blocks import hash_of
from everlearn.data.corpus import Corpus, Document, Domain
from everlearn.data.messages import Message, messages_in, tools_in
from everlearn.data.readers import read_rows, resolve_files, stored_columns
from everlearn.data.row_formats import LABEL
from everlearn.data.rows import text_in
from everlearn.data.text_template import filled, is_template
from everlearn.data.whole_files import advice_on_empty
from everlearn.errors import DataError
from everlearn.files import digest

DIGEST_UP_TO = 64 * 2**20
"""Largest file, in bytes, whose content is part of a fingerprint; of larger ones size and modification time are."""


class Skipped:
    """Counts the rows that are left out: without text (null, blank, or without the column), or with undesired answers.

    Attributes:
        rows: number of rows without text so far.
        first: place of the first one.
        undesired: number of rows that are marked as answers that are not desired.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.first = ""
        self.undesired = 0

    def add(self, where: str) -> None:
        """Count one row."""
        self.rows += 1
        self.first = self.first or where

    def __str__(self) -> str:
        return "" if not self.rows else f"{wording.count(self.rows, 'row')} without text, the first at {self.first}"


def _document(values: Mapping[str, Any], corpus: Corpus, where: str) -> Document | None:
    """Return the document in a row; None when it is blank."""
    form = corpus.form
    if form is not None and not form.only_chat(values):
        prompt, answer = form.example(values, where)
        return Document(prompt, answer, form.messages(values, where)) if answer else None
    if form is not None:
        return _chat(form.messages(values, where), form.tools(values, where))
    if corpus.messages_column is not None:
        messages = messages_in(values[corpus.messages_column], corpus.messages_column, where)
        tools = corpus.tools_column
        return _chat(messages, () if tools is None else tools_in(values[tools], tools, where))
    text = _text(values, corpus.text_column, where)
    if corpus.target_column is None:
        return Document(text) if text.strip() else None
    target = _text(values, corpus.target_column, where)
    return Document(text, target) if text.strip() and target.strip() else None


def _text(values: Mapping[str, object], column: str, where: str) -> str:
    """Return the text in a column, or that of a template."""
    return text_in(filled(column, values, where) if is_template(column) else values[column], column, where)


def _chat(messages: tuple[Message, ...], tools: tuple[dict[str, Any], ...]) -> Document | None:
    """Return a chat as a document; None when the assistant says nothing that is learnt."""
    texts = ["\n".join(each.text_and_calls for each in messages if each.learnt is own) for own in (False, True)]
    return Document(texts[0], texts[1], messages, tools, only_chat=True) if texts[1].strip() else None


def _rows(corpus: Corpus, position: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str, dict[str, Any]]]:
    if corpus.on_hub:
        yield from hub.read(corpus, position)
        return
    files = local_files(corpus)
    first, row, offset = (int(position.get(key, 0)) for key in ("file", "row", "offset"))
    one_row = corpus.documents == "file"
    for index in range(first, len(files)):
        arguments = (corpus.columns, row, offset, one_row)
        for record in read_rows(files[index], *arguments, optional=corpus.optional, limits=corpus.limits, gaps=True):
            behind = {"file": index, "row": record.next_row, "offset": record.next_offset}
            yield record.values, record.where, behind
        row = offset = 0


def _documents(
    corpus: Corpus, position: Mapping[str, Any], skipped: Skipped
) -> Iterator[tuple[Document, dict[str, Any]]]:
    count, limit = int(position.get("documents", 0)), corpus.max_documents
    if limit is not None and count >= limit:
        return
    for values, where, behind in _rows(corpus, position):
        if corpus.form is not None and corpus.form.undesired(values, where):
            skipped.undesired += 1
            continue
        document = _document(values, corpus, where)
        if document is None:
            skipped.add(where)
            continue
        count += 1
        yield document, {**behind, "documents": count}
        if limit is not None and count >= limit:
            return


def read_documents(
    corpus: Corpus, *, position: Mapping[str, Any] | None = None, skipped: Skipped | None = None
) -> Iterator[tuple[Document, dict[str, Any]]]:
    """Yield every document that is not blank, in order, each with the position of the next one.

    Args:
        corpus: the corpus to read.
        position: JSON from an earlier call, from which to continue. Local files: file number, row and byte offset; hub
            streams: the state of the ``datasets.IterableDataset``.
        skipped: counts the rows that are left out.

    Raises:
        DataError: the corpus is missing, empty, binary or damaged, or a column is missing or holds no text.
    """
    position = dict(position or {})
    nonempty = int(position.get("documents", 0)) > 0
    skipped = skipped or Skipped()
    for item in _documents(corpus, position, skipped):
        nonempty = True
        yield item
    if not nonempty:
        each = "its row" if skipped.rows == 1 else f"each of its {skipped.rows:,} rows"
        rows = f": {each} is null or blank there" if skipped.rows else ""
        if skipped.undesired:
            rows = f": '{LABEL}' is false in {wording.count(skipped.undesired, 'row')}{rows}"
        raise DataError(
            f"`path: {corpus.path}` is empty: it holds no document with text in it{rows}."
            f"{advice_on_empty(skipped.first)}"
        )


def first_row(corpus: Corpus) -> Mapping[str, Any]:
    """Return the first row of a corpus; of columns that are not read, there may be the names alone."""
    values: Mapping[str, Any] = next((values for values, *_ in _rows(corpus, {})), {})
    there = () if corpus.on_hub else stored_columns(local_files(corpus)[0])
    return {**dict.fromkeys(there), **values}


def local_files(corpus: Corpus) -> list[Path]:
    """Return the files of a local corpus.

    Raises:
        DataError: there is none; the sentence names the nearest file.
    """
    return resolve_files(corpus.path, split=corpus.split)


def check_corpus(corpus: Corpus) -> None:
    """Check at little cost that a corpus can be read: its files or hub entry, its columns, one document of each file.

    Raises:
        DataError: it cannot; the sentence says why.
    """
    if isinstance(corpus, Domain) and corpus.sources:
        for part in corpus.parts:
            check_corpus(part)
            if corpus.held_out_corpus is not None:
                check_apart(part, corpus.held_out_corpus)
        return
    held_out = corpus.held_out_corpus if isinstance(corpus, Domain) else None
    if held_out is not None:
        check_apart(corpus, held_out)
    if corpus.on_hub:
        hub.check(corpus)
    else:
        # A folder of thousands of files is looked at in part: the rest is read, and checked, when it is tokenised.
        nonempty = False
        for file in local_files(corpus)[:32]:
            one = corpus.model_copy(update={"path": str(file)})
            nonempty = next(_documents(one, {}, Skipped()), None) is not None or nonempty
        if not nonempty:
            next(read_documents(corpus))
    if held_out is not None:
        check_corpus(held_out)


def check_apart(corpus: Corpus, held_out: Corpus) -> None:
    """Refuse held-out text that is the training text itself: the same file under any name, or the same content.

    Raises:
        DataError: it is; the sentence names both files.
    """
    if corpus.on_hub or held_out.on_hub:
        if (corpus.path, corpus.subset, corpus.split) == (held_out.path, held_out.subset, held_out.split):
            raise DataError(f"`validation: {held_out.split}` is the split that is trained on. Name another one.")
        return
    if same := same_file(local_files(corpus), local_files(held_out)):
        one, other = same
        how = f"{one}, which is" if one == other else f"{other}, which is the same file as {one},"
        raise DataError(
            f"`validation: {held_out.path}` holds {how} trained on: nothing would be held out. Name a file of its own, "
            "or a share such as 0.05."
        )


def same_file(some: Sequence[Path], others: Sequence[Path]) -> tuple[Path, Path] | None:
    """Return a file of each list that are the same, on the disk or byte for byte; None if there are none."""
    known = {(facts.st_dev, facts.st_ino): file for file in some for facts in [file.stat()]}
    sizes: dict[int, list[Path]] = {}
    for file in some:
        sizes.setdefault(file.stat().st_size, []).append(file)
    for file in others:
        facts = file.stat()
        if (twin := known.get((facts.st_dev, facts.st_ino))) is not None:
            return twin, file
        for twin in sizes.get(facts.st_size, []) if facts.st_size else ():
            if filecmp.cmp(twin, file, shallow=False):
                return twin, file
    return None


def corpus_fingerprint(corpus: Corpus) -> str:
    """Return a hash of a corpus; it depends on the documents, not on the location of their files.

    Files up to 64 MB count by content, larger ones by size and time of change, hub data by id and commit.
    """
    if isinstance(corpus, Domain) and corpus.sources:
        return hash_of(*((source.weight, corpus_fingerprint(source)) for source in corpus.sources))
    settings = corpus.model_dump(include={"text_column", "target_column", "max_documents", "documents"})
    # Options with their default value are left out, so that the fingerprint does not change when an option is added.
    others = ("messages_column", "tools_column", "keep_last", "fill_in_middle")
    settings |= {key: getattr(corpus, key) for key in others if getattr(corpus, key)}
    if corpus.form is not None:
        settings["row_format"] = asdict(corpus.form)
    if corpus.on_hub:
        return hash_of(settings, corpus.path, corpus.subset, corpus.split, corpus.revision, *hub.version(corpus))
    contents = []
    for file in local_files(corpus):
        facts = file.stat()
        small = facts.st_size <= DIGEST_UP_TO
        contents.append(digest(file) if small else f"{facts.st_size} {facts.st_mtime_ns}")
    return hash_of(settings, *contents)
