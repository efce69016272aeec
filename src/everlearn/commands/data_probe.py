"""Examine a corpus for `everlearn init`: its columns, how much text it has, and whether it looks English."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from everlearn.config.addresses import located
from everlearn.data.broken_lines import lines_are_parts
from everlearn.data.chats import ChatFormat, uses_template
from everlearn.data.columns import Columns, choose_columns, first_rows, nested_texts, text_columns
from everlearn.data.corpus import Corpus, Domain
from everlearn.data.documents import Skipped, local_files, read_documents
from everlearn.data.held_out import OwnHeldOut
from everlearn.data.readers import format_of
from everlearn.data.tokenize import Kind
from everlearn.data.whole_files import WHOLE

UNREAD = 20
"""Minimum mean number of characters with which a column besides prompt and answer counts as text, not as an id."""
SAMPLE = 200
"""Number of documents that are kept to count tokens and to recognise the language."""
MOST_BYTES = 64 * 2**20
"""Maximum bytes of text that are counted; a larger corpus is reported as larger than this."""
SMALL = 2**20
"""Largest corpus, in bytes, whose held-out text is counted; that of a larger one fills a row in any case."""
HELD_OUT: float = Domain.model_fields["validation"].default
"""Share of a corpus that is held out by default."""
HUB_DOCUMENTS = 1000
"""Number of documents that are read from a dataset on the hub."""
PAGES = (".md", ".rst")
"""File types that a recipe reads by line by default, though lines of a Markdown page are hardly documents."""
FUNCTION_WORDS = {
    *("the", "of", "and", "to", "a", "that", "it", "is", "was", "for", "on", "with", "as", "be", "by", "this", "are"),
    *("from", "or", "which", "you", "not", "have", "at", "but", "they", "his"),
}
"""Common English words that carry no meaning of their own."""
ENGLISH = 0.15
"""Minimum share of these words in a text that counts as English: English prose has a quarter or more, and other
languages, which share a few of these words, less than a twentieth."""
_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Probe:
    """Facts about a corpus.

    Attributes:
        path: the path as the user wrote it.
        columns: the columns to read.
        documents: number of documents that were counted.
        text_bytes: bytes of their text in UTF-8.
        complete: whether everything was counted; false if :data:`MOST_BYTES` was reached.
        longest: characters of the example that one in twenty exceeds, prompt and answer together.
        sample: the first documents, prompt and answer joined.
        held_out: the text that is held out by default; None for a large corpus.
        unread: columns of text beside those of prompts and answers.
        nested: dotted name of a text inside a column that is longer than the text that is read; "" if there is none.
        undesired: rows that are left out because their answers are marked as not desired, as far as was read.
        pages: whether it has several files, some pages and the others code, or files of text whose lines are parts of
            documents: each file is then a document.
        broken: whether the lines of its one file look like parts of documents.
        glued: whether there is no white space between a prompt and its answer, which are joined as they are.
    """

    path: str
    columns: Columns
    documents: int
    text_bytes: int
    complete: bool
    longest: int
    sample: tuple[str, ...]
    held_out: tuple[str, ...] | None = None
    unread: tuple[str, ...] = ()
    glued: bool = False
    nested: str = ""
    undesired: int = 0
    pages: bool = False
    broken: bool = False

    @property
    def keys(self) -> dict[str, str]:
        """Return the keys of the recipe with which the corpus is read as it was here."""
        return {**self.columns.keys, **({"documents": "file"} if self.pages else {})}

    @property
    def english(self) -> bool:
        """Return whether the sample looks English, judged by its share of function words."""
        words = _WORD.findall(" ".join(self.sample).lower())
        return sum(word in FUNCTION_WORDS for word in words) >= max(1.0, ENGLISH * len(words))


def probe(
    path: str,
    key: str,
    task: str | None = None,
    learner: str | None = None,
    tokenizer: Any | None = None,
    kind: Kind = "decoder",
) -> Probe:
    """Choose the columns of a corpus to read, and measure its size, from its first documents.

    Args:
        path: a file, a folder, a glob, a ``suite:`` address, or the id of a dataset on the hub.
        key: the option in which the user named the corpus, for errors.
        task: `sft` reads prompts and answers, `pretrain` reads text; None chooses by the columns.
        learner: subject of error messages, such as "An encoder-decoder model", if the model can only learn prompts and
            answers; None for other models.
        tokenizer: the model's tokenizer, whose template formats chats.
        kind: kind of the model.

    Raises:
        ModelError: the corpus consists of chats, and the tokenizer has no chat template.
        DataError: the corpus cannot be read, or has no column of text, or no prompts and answers although `task` is
            `sft`.
    """
    place = located(path, key)
    looked_at = first_rows(place, key)
    columns = choose_columns(looked_at, path, task, learner, kind == "decoder")
    corpus = Corpus(path=place, **columns._asdict())
    files = [] if corpus.on_hub else local_files(corpus)
    written = [bool({*file.suffixes} & {*PAGES}) for file in files]
    pages = len(files) > 1 and any(written)
    pages = pages and all(page or format_of(file) in WHOLE for page, file in zip(written, files, strict=True))
    broken = not pages and lines_are_parts(files, corpus.limits)
    pages = pages or (broken and len(files) > 1)
    if pages:
        corpus = corpus.model_copy(update={"documents": "file"})
    if corpus.on_hub:
        corpus = corpus.model_copy(update={"streaming": True, "max_documents": HUB_DOCUMENTS})
    documents, text_bytes, complete = 0, 0, not corpus.on_hub
    sizes: list[int] = []
    sample: list[str] = []
    chats = ChatFormat(tokenizer) if tokenizer is not None and uses_template(corpus, tokenizer, kind) else None
    apart = False
    skipped = Skipped()
    for document, _ in read_documents(corpus, skipped=skipped):
        if document.only_chat and chats is None and tokenizer is not None:
            ChatFormat(tokenizer)  # says that there is no template
        text = document.full_text if chats is None else chats.text(document.messages, document.tools)
        apart = apart or document.only_chat or _apart(document.text, document.target)
        documents += 1
        text_bytes += len(text.encode())
        sizes.append(len(text))
        if len(sample) < SAMPLE:
            sample.append(text[:4000])
        if text_bytes >= MOST_BYTES:
            complete = False
            break
    longest = sorted(sizes)[int(0.95 * len(sizes))]
    form = columns.form
    examples = columns.target_column is not None or (form is not None and not form.chat)
    unread = text_columns(looked_at, UNREAD) - {*corpus.columns, *corpus.optional} if examples else set()
    glued = examples and chats is None and not (apart or (form is not None and form.separated))
    held_out = _held_out(corpus) if complete and text_bytes <= SMALL else None
    rest = tuple(sorted(unread))
    longer, nested = max(nested_texts(looked_at), default=(0, ""))
    if columns.answers or longer <= sum(len(str(row.get(columns.text_column) or "")) for row in looked_at):
        nested = ""
    return Probe(
        path,
        columns,
        documents,
        text_bytes,
        complete,
        longest,
        tuple(sample),
        held_out,
        rest,
        glued,
        nested,
        skipped.undesired,
        pages,
        broken and not pages,
    )


def _held_out(corpus: Corpus) -> tuple[str, ...]:
    """Return the text that is held out by default."""
    documents = (document for document, _ in read_documents(corpus))
    return tuple(document.full_text for document, held in OwnHeldOut(corpus, HELD_OUT).parted(documents) if held)


def _apart(prompt: str, answer: str | None) -> bool:
    """Return whether white space separates a prompt from its answer."""
    return prompt[-1:].isspace() or (answer or "")[:1].isspace()
