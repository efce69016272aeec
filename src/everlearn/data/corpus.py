"""What a corpus and a domain are in a recipe."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from everlearn.data.readers import COMPRESSIONS, FORMATS

SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


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
