"""What `everlearn init` finds out about a corpus: its columns, how much text it has, and whether it looks English."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everlearn.config.addresses import located
from everlearn.data import hub
from everlearn.data.corpus import Corpus
from everlearn.data.documents import read_documents
from everlearn.data.opening import Limits
from everlearn.data.readers import format_of, read_parquet, read_rows, resolve_files
from everlearn.errors import DataError

TEXT_COLUMNS = ("text", "content", "body", "document", "article", "abstract", "review", "passage")
"""Names that a column of text has; the first that is there is taken."""
PAIRS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("prompt", "answer"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("query", "response"),
    ("query", "answer"),
    ("input", "output"),
    ("input", "target"),
    ("inputs", "targets"),
    ("source", "target"),
    ("context", "continuation"),
)
"""Names that columns of a prompt and its answer have; the first pair that is there is taken."""
LOOKED_AT = 50
"""Rows whose columns are looked at."""
UNREAD = 20
"""Characters on average from which a column beside prompt and answer is text that is left out, and not an id."""
SAMPLE = 200
"""Documents that are kept to count tokens and to judge the language by."""
MOST_BYTES = 64 * 2**20
"""Bytes of text that are counted at most; of a larger corpus only that it is larger is said."""
HUB_DOCUMENTS = 1000
"""Documents that are read of a data set on the hub."""
FUNCTION_WORDS = {
    *("the", "of", "and", "to", "a", "that", "it", "is", "was", "for", "on", "with", "as", "be", "by", "this", "are"),
    *("from", "or", "which", "you", "not", "have", "at", "but", "they", "his"),
}
"""Common English words that carry no meaning of their own."""
ENGLISH = 0.15
"""Share of these among a text's words from which it counts as English: prose has a quarter or more, and other
languages, which share a few of these words, hardly a twentieth."""
_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Probe:
    """What was found out about a corpus.

    Attributes:
        path: as the user wrote it.
        text_column: the column to read.
        target_column: the column of the answer, where prompts and answers are learnt.
        documents: how many were counted.
        text_bytes: of UTF-8 in them.
        complete: whether everything was counted, or :data:`MOST_BYTES` was reached before.
        longest: characters of the example that one in twenty exceeds, prompt and answer together.
        sample: the first documents, prompt and answer joined.
        unread: columns of text beside a prompt and its answer.
        glued: nothing stands between a prompt and its answer.
    """

    path: str
    text_column: str
    target_column: str | None
    documents: int
    text_bytes: int
    complete: bool
    longest: int
    sample: tuple[str, ...]
    unread: tuple[str, ...] = ()
    glued: bool = False

    @property
    def english(self) -> bool:
        """Whether the sample looks English, by its share of function words."""
        words = _WORD.findall(" ".join(self.sample).lower())
        return sum(word in FUNCTION_WORDS for word in words) >= max(1.0, ENGLISH * len(words))


def probe(path: str, key: str, task: str | None = None) -> Probe:
    """Look into a corpus.

    Args:
        path: a file, a folder, a glob, a ``suite:`` address, or the id of a dataset on the hub.
        key: the option that names it, for errors.
        task: `sft` takes prompts and answers, `pretrain` takes text; None takes what the columns suggest.

    Raises:
        DataError: it cannot be read, or has no column of text, or no prompts and answers where they are asked for.
    """
    place = located(path, key)
    looked_at = list(_first_rows(place, key))
    text, target = choose_columns(looked_at, path, task)
    corpus = Corpus(path=place, text_column=text, target_column=target)
    if corpus.on_hub:
        corpus = corpus.model_copy(update={"streaming": True, "max_documents": HUB_DOCUMENTS})
    documents, text_bytes, complete = 0, 0, not corpus.on_hub
    sizes: list[int] = []
    sample: list[str] = []
    for document, _ in read_documents(corpus):
        whole = document.text + (document.target or "")
        documents += 1
        text_bytes += len(whole.encode())
        sizes.append(len(whole))
        if len(sample) < SAMPLE:
            sample.append(whole[:4000])
        if text_bytes >= MOST_BYTES:
            complete = False
            break
    longest = sorted(sizes)[int(0.95 * len(sizes))]
    unread = _text_columns(looked_at, UNREAD) - {text, target} if target is not None else set()
    glued = target is not None and not any(_apart(row.get(text), row.get(target)) for row in looked_at)
    return Probe(
        path, text, target, documents, text_bytes, complete, longest, tuple(sample), tuple(sorted(unread)), glued
    )


def choose_columns(rows: list[Mapping[str, Any]], path: str, task: str | None) -> tuple[str, str | None]:
    """Choose the columns of text, or of prompt and answer.

    Raises:
        DataError: there are none.
    """
    columns = _text_columns(rows)
    by_case = {name.lower(): name for name in sorted(columns)}
    pair = next(((by_case[a], by_case[b]) for a, b in PAIRS if a in by_case and b in by_case), None)
    text = next((by_case[name] for name in TEXT_COLUMNS if name in by_case), None)
    shown = ", ".join(f"'{name}'" for name in dict.fromkeys(name for row in rows for name in row)) or "none"
    if task == "sft" and pair is None:
        raise DataError(
            f"`--task sft` needs prompts and answers, but the columns of {path} are {shown}. Rename two of them to "
            "'prompt' and 'answer', or leave `--task` out and set `text_column` and `target_column` in the recipe."
        )
    if task != "pretrain" and pair is not None and (task == "sft" or text is None):
        return pair
    if text is None and columns:
        text = max(sorted(columns), key=lambda name: sum(len(str(row.get(name) or "")) for row in rows))
    if text is None:
        raise DataError(
            f"{path} has no column of text: its columns are {shown}. Write one line of JSON per document, as in "
            '{"text": "…"}, or {"prompt": "…", "answer": "…"}.'
        )
    return text, None


def _text_columns(rows: list[Mapping[str, Any]], shortest: int = 1) -> set[str]:
    """Columns that hold text in some row, and nothing else in any; of so many characters on average."""
    names = {name for row in rows for name in row}
    values = {name: [row[name] for row in rows if row.get(name)] for name in names}
    return {
        name
        for name, own in values.items()
        if own
        and all(isinstance(value, str) for value in own)
        and sum(len(value) for value in own) >= shortest * len(own)
    }


def _apart(prompt: Any, answer: Any) -> bool:
    """Whether a blank or a line end stands between a prompt and its answer."""
    return bool(re.search(r"\s$", str(prompt or ""))) or bool(re.match(r"\s", str(answer or "")))


def _first_rows(path: str, key: str) -> Iterator[Mapping[str, Any]]:
    """Yield the first rows, with all their columns."""
    if Corpus(path=path).on_hub:
        yield from itertools.islice(hub.load(Corpus(path=path, streaming=True)), LOOKED_AT)
        return
    file = resolve_files(path, key)[0]
    for number, row in enumerate(read_rows(file, _names(file), gaps=True), 1):
        yield row.values
        if number >= LOOKED_AT:
            return


def _names(file: Path) -> tuple[str, ...]:
    """Return the columns to ask a reader for so that it gives all of them: Parquet gives no others."""
    if format_of(file) != ".parquet":
        return ()
    missing = ("",)  # a table that lacks a column gives one row that names those there are
    return tuple(next(read_parquet(file, missing, 0, 0, Limits())).values)
