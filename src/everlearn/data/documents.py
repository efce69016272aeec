"""The documents of a corpus, wherever it lies: in order, each with the position behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everlearn.data import hub
from everlearn.data.blocks import hash_of
from everlearn.data.corpus import Corpus, Document, Domain
from everlearn.data.readers import read_rows, resolve_files
from everlearn.errors import DataError
from everlearn.files import digest

DIGEST_UP_TO = 64 * 2**20
"""Bytes up to which a file's content is part of a fingerprint; larger files count by size and time of change."""


def _string(value: object, column: str, where: str) -> str:
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        raise DataError(f"{where}: column '{column}' must hold text; it holds {kind} ({str(value)[:40]}).")
    try:
        value.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, which JSON can carry and UTF-8 cannot.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def _document(values: Mapping[str, object], corpus: Corpus, where: str) -> Document | None:
    """The document in a row; None when it is blank."""
    text = _string(values[corpus.text_column], corpus.text_column, where)
    if corpus.target_column is None:
        return Document(text) if text.strip() else None
    target = _string(values[corpus.target_column], corpus.target_column, where)
    return Document(text, target) if text.strip() and target.strip() else None


def _rows(corpus: Corpus, position: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str, dict[str, Any]]]:
    if corpus.on_hub:
        yield from hub.read(corpus, position)
        return
    files = local_files(corpus)
    first, row, offset = (int(position.get(key, 0)) for key in ("file", "row", "offset"))
    for index in range(first, len(files)):
        for found in read_rows(files[index], corpus.columns, row, offset, whole=corpus.documents == "file"):
            behind = {"file": index, "row": found.next_row, "offset": found.next_offset}
            yield found.values, found.where, behind
        row = offset = 0


def _documents(corpus: Corpus, position: Mapping[str, Any]) -> Iterator[tuple[Document, dict[str, Any]]]:
    count, limit = int(position.get("documents", 0)), corpus.max_documents
    if limit is not None and count >= limit:
        return
    for values, where, behind in _rows(corpus, position):
        document = _document(values, corpus, where)
        if document is None:
            continue
        count += 1
        yield document, {**behind, "documents": count}
        if limit is not None and count >= limit:
            return


def read_documents(
    corpus: Corpus, *, position: Mapping[str, Any] | None = None
) -> Iterator[tuple[Document, dict[str, Any]]]:
    """Every document that is not blank, in order, each with the position behind it.

    Args:
        corpus: what to read.
        position: JSON from an earlier call: reading goes on there. Local files: file number, row and byte offset;
            hub streams: the state of the ``datasets.IterableDataset``.

    Raises:
        DataError: the corpus is missing, empty, binary or damaged, or a column is missing or holds no text.
    """
    position = dict(position or {})
    found = int(position.get("documents", 0)) > 0
    for item in _documents(corpus, position):
        found = True
        yield item
    if not found:
        raise DataError(f"`path: {corpus.path}` is empty: it holds no document with text in it.")


def local_files(corpus: Corpus) -> list[Path]:
    """The files of a local corpus.

    Raises:
        DataError: there is none; the sentence names the nearest file.
    """
    return resolve_files(corpus.path)


def check_corpus(corpus: Corpus) -> None:
    """Find out cheaply whether a corpus can be read: its files or hub entry, its columns, one document of each file.

    Raises:
        DataError: it cannot; the sentence says why.
    """
    if corpus.on_hub:
        hub.check(corpus)
    else:
        # A folder of thousands of files is looked at in part: the rest is read, and checked, when it is tokenised.
        found = False
        for file in local_files(corpus)[:32]:
            one = Corpus(**{**corpus.model_dump(include=set(Corpus.model_fields)), "path": str(file)})
            found = next(_documents(one, {}), None) is not None or found
        if not found:
            next(read_documents(corpus))
    held_out = corpus.held_out_corpus if isinstance(corpus, Domain) else None
    if held_out is not None:
        check_corpus(held_out)


def corpus_fingerprint(corpus: Corpus) -> str:
    """The same documents have the same fingerprint, wherever their files lie.

    Files up to 64 MB count by content, larger ones by size and time of change, hub data by id and commit.
    """
    settings = corpus.model_dump(include={"text_column", "target_column", "max_documents", "documents"})
    if corpus.on_hub:
        return hash_of(settings, corpus.path, corpus.subset, corpus.split, corpus.revision, *hub.version(corpus))
    contents = []
    for file in local_files(corpus):
        facts = file.stat()
        small = facts.st_size <= DIGEST_UP_TO
        contents.append(digest(file) if small else f"{facts.st_size} {facts.st_mtime_ns}")
    return hash_of(settings, *contents)
