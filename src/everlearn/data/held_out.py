"""Which of a corpus' own documents are held out: by a hash of their text, or the end of the corpus."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from everlearn.data.corpus import Corpus, Document, is_held_out
from everlearn.data.documents import read_documents

ENDS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"[.!?…。]['\")\]]*\s+"), re.compile(r"\s+"))
"""Where a text may be cut, the best first: behind a paragraph, a line, a sentence, a word."""
FAR = 4
"""How many times more or less text than the share asks for may be held out (:func:`is_far`)."""


class OwnHeldOut:
    """Splits a corpus' documents into those to learn from and those to measure on.

    A document is held out by a hash of its text: the split does not depend on order, and duplicates are on one side.
    Where that holds out far more or less text than the share asks for, as in a corpus that is one long text or in which
    one document is longer than all others together, the end of the corpus is held out instead, from the end of a
    paragraph, line or sentence on; nothing of it is learnt.
    """

    def __init__(self, corpus: Corpus, share: float) -> None:
        """Measure the share that the hash would hold out; a stream, which is read once, is split by the hash alone."""
        self.corpus, self.share = corpus, share
        self.kept_characters = self._needs_end() if share > 0 and not corpus.streaming else None
        """Length of the text before the end that is held out; None where documents are held out by their hash."""

    def _needs_end(self) -> float | None:
        total = held = 0
        for document, _ in read_documents(self.corpus):
            total += len(document.whole)
            held += len(document.whole) if is_held_out(document, self.share) else 0
        return (1 - self.share) * total if is_far(held / total, self.share) else None

    def parted(self, documents: Iterable[Document]) -> Iterator[tuple[Document, bool]]:
        """Yield each document, or piece of one, and whether it is held out."""
        if self.kept_characters is None:
            for document in documents:
                yield document, is_held_out(document, self.share)
            return
        before = 0
        for document in documents:
            behind = before + len(document.whole)
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


def is_far(held_out: float, asked: float) -> bool:
    """Return whether the held-out and training shares of the text are far from the configured ones.

    Args:
        held_out: share of the text that is held out.
        asked: the configured share.
    """
    return not asked / FAR <= held_out <= asked * FAR or (1 - held_out) * FAR < 1 - asked


def cut(text: str, at: int, around: int) -> tuple[str, str]:
    """Cut a text in two, at the best place not further than `around` characters from `at`, or else right there."""
    low, high = max(1, at - around), min(len(text) - 1, at + around)
    for end in ENDS:
        places = [match.end() for match in end.finditer(text, low, high)]
        if places:
            place = min(places, key=lambda place: abs(place - at))
            return text[:place], text[place:]
    return text[:at], text[at:]
