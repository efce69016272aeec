"""What a corpus and a domain are in a recipe, and the documents in them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from everlearn.data import hub
from everlearn.data.blocks import hash_of
from everlearn.data.readers import COMPRESSIONS, FORMATS, read_rows, resolve_files
from everlearn.errors import DataError
from everlearn.files import digest

SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
DIGEST_UP_TO = 64 * 2**20
"""Bytes up to which a file's content is part of a fingerprint; larger files count by size and time of change."""


class Document(NamedTuple):
    """One text, or a prompt and its answer."""

    text: str
    target: str | None = None


class Corpus(BaseModel):
    """Text to learn from: local files, or a data set of the hub."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    path: str = Field(min_length=1)
    """A file, a folder, a glob, or a hub id `owner/name`. Formats: txt, md, rst, jsonl, json, csv, tsv, parquet;
    compressed with gz, bz2, xz or zst."""
    subset: str | None = None
    """Configuration name of a hub data set."""
    split: str = "train"
    """Split of a hub data set."""
    revision: str | None = None
    """Commit, tag or branch of a hub data set."""
    text_column: str = "text"
    """Column with the text (with `target_column`: the prompt)."""
    target_column: str | None = None
    """Column with the answer; makes text-to-text examples, where only the answer is learnt. Text and answer are joined
    as they are: put the space or line end between them into one of the two."""
    streaming: bool = False
    """Tokenise while training instead of once before it: nothing is stored, the order is that of the files."""
    shuffle_buffer: int = Field(default=0, ge=0)
    """Blocks held back and drawn from at random, for streaming only; 0 keeps the order."""
    max_documents: int | None = Field(default=None, ge=1)
    """Read no more than the first so many documents."""
    documents: Literal["line", "file"] = "line"
    """Whether a line or a whole file is one document; for txt, md and rst."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (self.text_column,) if self.target_column is None else (self.text_column, self.target_column)

    @property
    def on_hub(self) -> bool:
        """Whether `path` is a hub id: it looks like one and no local file has that name."""
        endings = (*FORMATS, *COMPRESSIONS)
        looks_so = bool(HUB_ID.fullmatch(self.path)) and not self.path.lower().endswith(endings)
        return looks_so and not Path(self.path).exists()


class Domain(Corpus):
    """A named corpus (or text-to-text task) that is learnt in one go."""

    name: str
    """Letters, digits, '.', '-' and '_'; becomes part of file names."""
    validation: str | float | None = 0.05
    """What to measure on: a share of the documents, held out by a hash of their text (the same documents in any
    order), a file of its own, for a hub data set the name of another split, or null for nothing."""

    train: dict[str, Any] = {}
    """Training arguments of this domain alone, over the recipe's `train`: `{learning_rate: 1.0e-5}`."""

    @field_validator("name")
    @classmethod
    def _slug(cls, value: str) -> str:
        if not SLUG.fullmatch(value):
            raise ValueError(
                "a domain's name is made of letters, digits, '.', '-' and '_' and starts with a letter or digit"
            )
        return value

    @field_validator("validation")
    @classmethod
    def _share(cls, value: str | float | None) -> str | float | None:
        if isinstance(value, float) and not 0 < value < 1:
            raise ValueError("a held-out share lies between 0 and 1; use null to hold nothing out")
        return value

    @property
    def held_out_share(self) -> float:
        """Share of this corpus' own documents that are not trained on."""
        return self.validation if isinstance(self.validation, float) else 0.0

    @property
    def held_out_corpus(self) -> Corpus | None:
        """The separate corpus to measure on, when one is named."""
        if not isinstance(self.validation, str):
            return None
        shared = {name: getattr(self, name) for name in ("text_column", "target_column", "documents", "streaming")}
        if self.on_hub and not Path(self.validation).expanduser().exists():
            return Corpus(path=self.path, subset=self.subset, split=self.validation, revision=self.revision, **shared)
        return Corpus(path=self.validation, **shared)


def is_held_out(document: Document, share: float) -> bool:
    """Whether a document belongs to the held-out share: a function of its text alone."""
    if share <= 0:
        return False
    value = int.from_bytes(hashlib.blake2b(document.text.encode(), digest_size=8).digest(), "big")
    return value < share * 2**64


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
