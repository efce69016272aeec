"""Define the corpus and the domain of a recipe."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from everlearn.data.folders import SPLITS
from everlearn.data.messages import Message
from everlearn.data.mixing import Annealed, ends_of
from everlearn.data.readers import FORMATS
from everlearn.data.remote import is_remote, without_query
from everlearn.data.row_formats import ROW_FORMATS, RowFormat
from everlearn.data.text_files import COMPRESSIONS, Limits
from everlearn.data.text_template import columns_in, is_template
from everlearn.options import Options, slug

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


HANDED_DOWN = (
    "text_column",
    "target_column",
    "messages_column",
    "tools_column",
    "row_format",
    "keep_last",
    "documents",
    "streaming",
    "fill_in_middle",
)
"""Keys that the sources of a domain inherit from it."""
_PROMPTS = ("text_column", "target_column", "keep_last")
_CHATS = ("messages_column", "tools_column")
_FORMS = {
    "messages_column": (*_PROMPTS, "row_format", "fill_in_middle"),
    "target_column": (*_CHATS, "row_format", "fill_in_middle"),
    "row_format": ("text_column", "target_column", *_CHATS, "fill_in_middle"),
}
"""Key for chats, for prompts with answers or for rows of a common kind → keys that have no effect beside it."""


class Document(NamedTuple):
    """One text, a prompt and its answer, or a chat.

    For a chat, `text` holds the messages that are not learnt and `target` those that are.

    Attributes:
        text: the text, or the prompt.
        target: the answer.
        messages: the messages of a chat; of a prompt and its answer too, if they can be written as a chat.
        tools: the tools of a chat.
        only_chat: whether nothing but a chat template can write it.
    """

    text: str
    target: str | None = None
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    only_chat: bool = False

    @property
    def full_text(self) -> str:
        """The text, or prompt and answer joined."""
        return self.text if self.target is None else f"{self.text}{self.target}"


class Reads(Options):
    """Base class of recipe groups that name files and read them within the recipe's limits."""

    _limits: Limits = PrivateAttr(default_factory=Limits)

    @property
    def limits(self) -> Limits:
        """Limits for a row and for the decompressed file (`data.max_row_bytes`, `data.max_expansion`)."""
        return self._limits

    def limited(self, limits: Limits) -> None:
        """Set the limits under which the files are read."""
        self._limits = limits


class Corpus(Reads):
    """Text to learn from: local files, or a data set of the hub."""

    path: str = Field(min_length=1)
    """A file, a folder, a glob, a URL (`https://…`, `s3://…`), or a hub id `owner/name`. Formats: txt, md, rst, jsonl,
    json, csv, tsv, parquet, arrow, feather, source code, ipynb, html, pdf; compressed with gz, bz2, xz or zst."""
    subset: str | None = None
    """Configuration name of a hub data set."""
    split: str = "train"
    """Split of a hub data set, or of a folder in which the names of files or of their folders tell splits."""
    revision: str | None = None
    """Commit, tag or branch of a hub data set."""
    text_column: str = "text"
    """Column with the text (with `target_column`: the prompt); or a template of columns and of values inside them, in
    braces: `"{title}\\n\\n{document.body}"`."""
    target_column: str | None = None
    """Column with the answer; makes examples of which only the answer is learnt. Text and answer are joined as they
    are: put the space or line end between them into one of the two."""
    messages_column: str | None = None
    """Column with a chat, in place of the others: a list of messages, each with `role` and `content` (or `from` and
    `value`). It is written by the tokenizer's chat template, and what the assistant says is learnt; for decoders."""
    tools_column: str | None = None
    """With `messages_column`: column with the tools that a chat may call, as a list of JSON schemas or as JSON text."""
    row_format: Literal[tuple(ROW_FORMATS)] | None = None  # type: ignore[valid-type]
    """Kind of the rows, in place of the names of columns: `alpaca`, `dolly`, `messages`, `sharegpt`, `question-answer`
    and others. What is asked and answered is written by the tokenizer's chat template, or else by the published plain
    template of the kind; only the answers are learnt."""
    keep_last: int = Field(default=0, ge=0)
    """With `target_column`: number of tokens at the end of a prompt that are kept if it is too long for a row; the
    tokens before them are cut. With 0 the end is cut."""
    streaming: bool = False
    """Tokenise while training instead of once before it: nothing is stored, the order is that of the files."""
    shuffle_buffer: int = Field(default=0, ge=0)
    """Blocks held back and drawn from at random, for streaming only; 0 keeps the order."""
    max_documents: int | None = Field(default=None, ge=1)
    """Read only the first documents, at most this number."""
    documents: Literal["line", "file"] = "line"
    """Whether a line or a whole file is one document; for txt, md and rst."""
    fill_in_middle: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    """Share of the documents that are learnt as prefix, suffix and middle (arXiv 2207.14255), with the tokenizer's own
    tokens for these; for decoders of code. Held-out text is not rearranged."""
    _beside_answers: bool = PrivateAttr(default=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        if self.form is not None:
            return self.form.columns
        if self.messages_column is not None:
            return (self.messages_column, *([] if self.tools_column is None else [self.tools_column]))
        names = [column for column in (self.text_column, self.target_column) if column is not None]
        return tuple(dict.fromkeys(n for each in names for n in (columns_in(each) if is_template(each) else (each,))))

    @property
    def optional(self) -> tuple[str, ...]:
        """The columns that are read where they exist."""
        return () if self.form is None else self.form.optional

    @property
    def form(self) -> RowFormat | None:
        """The kind of the rows, if it is one by name."""
        return ROW_FORMATS.get(self.row_format or "")

    @property
    def answers(self) -> bool:
        """Return whether only a part of each document is learnt: an answer, or the assistant's messages."""
        return any(key is not None for key in (self.target_column, self.messages_column, self.row_format))

    @property
    def beside_answers(self) -> bool:
        """Whether this is plain text in a domain whose other sources have answers; its rows get labels like theirs."""
        return self._beside_answers

    @field_validator("text_column", "target_column")
    @classmethod
    def _template(cls, value: str | None) -> str | None:
        if value is not None and is_template(value) and not columns_in(value):
            raise ValueError(f"'{value}' names no column: write `{{column}}`")
        return value

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.messages_column is not None and self.target_column is not None:
            raise ValueError("`messages_column` and `target_column` are two forms of answers: remove one of them")
        if self.answers and self.fill_in_middle:
            raise ValueError("`fill_in_middle` is for plain text, and this corpus has answers: remove it")
        for key in _FORMS["row_format"] if self.row_format is not None else ():
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"`{key}` has no effect beside `row_format`: remove one of them")
        if self.messages_column is not None and (self.text_column != "text" or self.keep_last):
            key = "keep_last" if self.keep_last else "text_column"
            raise ValueError(f"`{key}` has no effect beside `messages_column`: remove it")
        if self.tools_column is not None and self.messages_column is None:
            raise ValueError("`tools_column` has no effect without `messages_column`: remove it")
        return self

    @property
    def on_hub(self) -> bool:
        """Return whether `path` is a hub id: it looks like one and no local file has that name."""
        endings = (*FORMATS, *COMPRESSIONS)
        looks_so = bool(HUB_ID.fullmatch(self.path)) and not self.path.lower().endswith(endings)
        return looks_so and not Path(self.path).exists()


class Source(Corpus):
    """One of several corpora that make up a domain."""

    weight: Annotated[float, Field(gt=0)] | Annealed = 1.0
    """Its share of the domain's tokens, relative to the weights of the other sources. `{start: 3, end: 1}` changes the
    shares linearly, from those of the first values at the first row of the domain to those of the last ones."""


class Domain(Corpus):
    """A named corpus (or text-to-text task) that is learnt in one stage."""

    path: str = ""
    """A file, a folder, a glob, a URL (`https://…`, `s3://…`), or a hub id `owner/name`. Formats: txt, md, rst, jsonl,
    json, csv, tsv, parquet, arrow, feather, source code, ipynb, html, pdf; compressed with gz, bz2, xz or zst. Or
    leave it out and name `sources`."""
    name: str
    """Letters, digits, '.', '-' and '_'; becomes part of file names."""
    sources: tuple[Source, ...] = ()
    """Several corpora instead of one `path`, each with a `weight`: its share of the tokens, whatever its size. A source
    has the keys of a corpus; it inherits the columns, `documents` and `streaming` of the domain."""
    validation: str | float | None = 0.05
    """What to measure on: a share of the documents, held out by a hash of their text (the same documents in any
    order; of a corpus of one or few documents, its end), a file of its own, for a hub data set the name of another
    split, or null for nothing. Of several sources, a share of each."""

    continues: str | None = None
    """An earlier domain that is learnt again here, with more steps or with new text. Keys that are left out are taken
    from that domain. Its held-out text is not learnt here either, and the model is scored on that text."""
    group: str | None = Field(default=None, min_length=1)
    """A group that it belongs to (a super-domain, such as `wiki`). It is part of the results, which can be averaged by
    group."""

    train: dict[str, Any] = Field(default={})
    """Training arguments of this domain alone, over the recipe's `train`: `{learning_rate: 1.0e-5}`."""

    @model_validator(mode="before")
    @classmethod
    def _handed_down(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or not isinstance(raw.get("sources"), list | tuple):
            return raw
        own = {key: raw[key] for key in HANDED_DOWN if key in raw}

        def with_inherited(source: dict[str, Any]) -> dict[str, Any]:
            """Return the keys that a source inherits: with chats none of prompts, and vice versa."""
            left = {key for form, keys in _FORMS.items() if source.get(form) is not None for key in keys}
            return {key: value for key, value in own.items() if key not in left} | source

        listed = raw["sources"]
        return raw | {"sources": [with_inherited(source) if isinstance(source, dict) else source for source in listed]}

    @model_validator(mode="after")
    def _path_or_sources(self) -> Domain:
        if self.continues is not None and not self.path and not self.sources:
            return self  # a recipe fills in those of the domain that is learnt again
        if bool(self.path) == bool(self.sources):
            both = "has both `path` and `sources`; keep one" if self.path else "needs a `path`, or `sources`"
            raise ValueError(f"domain '{self.name}' {both}")
        if self.sources:
            fields = type(self).model_fields
            for key in ("subset", "split", "revision", "max_documents", "shuffle_buffer"):
                if getattr(self, key) != fields[key].default:
                    raise ValueError(f"domain '{self.name}' has `sources`: `{key}` belongs to each of them")
            weights = [ends_of(source.weight) for source in self.sources]
            for number, ends in enumerate(weights):
                if not any(ends):
                    raise ValueError(f"`sources.{number}.weight` is 0 from start to end: remove the source")
            for place, values in zip(("start", "end"), zip(*weights, strict=True), strict=True):
                if not any(values):
                    raise ValueError(f"the `{place}` of every source's `weight` is 0: raise one of them")
        return self

    @property
    def learns(self) -> str:
        """The name of the domain that is learnt: its own, or of the one that it continues."""
        return self.name if self.continues is None else self.continues

    @property
    def held_out(self) -> bool:
        """Return whether models are scored on held-out text of this domain."""
        return bool(self.validation) and self.continues is None

    @property
    def answers(self) -> bool:
        """Return whether only a part of some document is learnt, in its sources too."""
        return any(source.answers for source in self.sources) or super().answers

    @property
    def parts(self) -> tuple[Domain, ...]:
        """Its sources, each as a separate domain `name.source`; without sources, the domain itself.

        If held-out text is in a file of its own, the first source has it.
        """
        if not self.sources:
            return (self,)
        domains: list[Domain] = []
        for source, name in zip(self.sources, self.source_names, strict=True):
            held_out = self.validation if not domains or not isinstance(self.validation, str) else None
            options = source.model_dump(exclude={"weight"})
            domains.append(Domain(name=f"{self.name}.{name}", validation=held_out, continues=self.continues, **options))
            domains[-1].limited(self.limits)
            domains[-1]._beside_answers = self.answers and not source.answers
        return tuple(domains)

    @property
    def source_names(self) -> list[str]:
        """A short name for each source, from its file or dataset; equal names are numbered."""
        stems = [
            re.sub(r"[^A-Za-z0-9_-]+", "-", Path(path).name.split(".")[0]).strip("-")
            for path in (without_query(each.path) if is_remote(each.path) else each.path for each in self.sources)
        ]
        return [
            f"{stem or 'source'}-{number}" if not stem or stems.count(stem) > 1 else stem
            for number, stem in enumerate(stems, 1)
        ]

    @field_validator("name")
    @classmethod
    def _slug(cls, value: str) -> str:
        return slug(value, "a domain's name")

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
        shared = {name: getattr(self, name) for name in HANDED_DOWN}
        named = Path(self.validation).expanduser()
        if self.on_hub and not named.exists() and "/" not in self.validation:
            shared |= {"path": self.path, "subset": self.subset, "split": self.validation, "revision": self.revision}
        elif self.validation in SPLITS.values() and not named.exists() and self._may_have_splits:
            shared |= {"path": self.path, "split": self.validation}
        elif named.is_dir() or Corpus(path=self.validation).on_hub:
            shared |= {"split": "validation"}
        corpus = Corpus(**{"path": self.validation} | shared)
        corpus.limited(self.limits)
        return corpus

    @property
    def _may_have_splits(self) -> bool:
        """Return whether `path` is a folder, or a URL, which may be one."""
        return is_remote(self.path) or Path(self.path).expanduser().is_dir()


def document_key(document: Document) -> int:
    """Return a number in [0, 2**64) that documents of the same text share, whatever their answers."""
    return text_key(document.text)


def text_key(text: str) -> int:
    """Return a number in [0, 2**64) that identical texts share."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def is_held_out(document: Document, share: float) -> bool:
    """Return whether a document belongs to the held-out share: a function of its text alone."""
    return share > 0 and document_key(document) < share * 2**64
