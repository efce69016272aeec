"""Decide which documents of a corpus are held out: by a hash of their text, or those at the end of the corpus."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from everlearn.data.corpus import Corpus, Document, Domain, is_held_out
from everlearn.data.documents import read_documents

ENDS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"[.!?…。]['\")\]]*\s+"), re.compile(r"\s+"))
"""Where a text may be cut, best first: after a paragraph, a line, a sentence, a word."""
FAR = 4
"""Largest ratio between the held-out share of the text and the configured share (:func:`is_far`)."""


class OwnHeldOut:
    """Splits a corpus' documents into training and held-out documents.

    A document is held out by a hash of its text, so the split does not depend on order, and duplicates are on the same
    side. If that holds out far more or less text than configured, as in a corpus that is one long text or in which one
    document is longer than all others together, the end of the corpus is held out instead, beginning after a paragraph,
    line or sentence.
    """

    def __init__(self, corpus: Corpus, share: float) -> None:
        """Measure the share that the hash would hold out; a stream, which is read once, is split by the hash alone."""
        self.corpus, self.share = corpus, share
        self.kept_characters = self._needs_end() if share > 0 and not corpus.streaming else None
        """Number of characters before the held-out end; None if documents are held out by their hash."""

    def _needs_end(self) -> float | None:
        total = held = 0
        for document, _ in read_documents(self.corpus):
            total += len(document.full_text)
            held += len(document.full_text) if is_held_out(document, self.share) else 0
        return (1 - self.share) * total if is_far(held / total, self.share) else None

    def parted(self, documents: Iterable[Document]) -> Iterator[tuple[Document, bool]]:
        """Yield each document, or piece of one, and whether it is held out."""
        if self.kept_characters is None:
            for document in documents:
                yield document, is_held_out(document, self.share)
            return
        before = 0
        for document in documents:
            behind = before + len(document.full_text)
            if behind <= self.kept_characters or (before == 0 and document.target is not None):
                yield document, False
            elif before >= self.kept_characters or document.target is not None:
                yield document, True
            else:
                first, rest = cut(
                    document.text, round(self.kept_characters) - before, round(self.share * len(document.text))
                )
                for piece, held in ((first, False), (rest, True)):
                    if piece.strip():
                        yield Document(piece), held
            before = behind


def documents_of(corpus: Domain, held_out: bool = False) -> Iterator[Document]:
    """Yield a domain's training documents, or its held-out ones."""
    for part in corpus.parts:
        if held_out and part.held_out_corpus is not None:
            yield from (document for document, _ in read_documents(part.held_out_corpus))
            continue
        documents = (document for document, _ in read_documents(part))
        for document, held in OwnHeldOut(part, part.held_out_share).parted(documents):
            if held == held_out:
                yield document


def is_far(held_out: float, configured: float) -> bool:
    """Return whether the held-out and training shares of the text are far from the configured ones.

    Args:
        held_out: share of the text that is held out.
        configured: the configured share.
    """
    return not configured / FAR <= held_out <= configured * FAR or (1 - held_out) * FAR < 1 - configured


def cut(text: str, at: int, around: int) -> tuple[str, str]:
    """Cut a text in two at the best place within `around` characters of `at`, or at `at` if there is none."""
    low, high = max(1, at - around), min(len(text) - 1, at + around)
    for end in ENDS:
        places = [match.end() for match in end.finditer(text, low, high)]
        if places:
            place = min(places, key=lambda place: abs(place - at))
            return text[:place], text[place:]
    return text[:at], text[at:]
