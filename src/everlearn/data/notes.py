"""Notes on the text of a recipe for readers of its results: rows that are skipped, cut, or not held out.

`everlearn data`, `validate` and `run` give the same notes on the same text. Text that is both learnt and evaluated is
in :mod:`everlearn.data.leaks`.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from itertools import combinations, takewhile
from pathlib import Path

from everlearn import wording
from everlearn.data.broken_lines import broken_lines_note
from everlearn.data.columns import WRITE_PATHS, tree_in
from everlearn.data.corpus import Domain
from everlearn.data.documents import first_row, local_files, same_file
from everlearn.data.folders import inside, odd_note, odd_splits
from everlearn.data.held_out import is_far
from everlearn.data.packing import Count
from everlearn.data.prepare import Prepared
from everlearn.data.readers import folder_of, format_of
from everlearn.data.remote import is_remote
from everlearn.data.row_formats import LABEL
from everlearn.data.whole_files import advice_on_empty

NEARLY_BYTES = 1.5
"""Bytes a token below which a tokenizer splits text into nearly single bytes."""
OF_WORDS = 1000
"""Tokens from which on a vocabulary is one of parts of words, and not of bytes or characters."""


def notes_of(
    corpora: Sequence[Domain], prepared: Mapping[str, Prepared], block_size: int, vocabulary: int = 0
) -> list[str]:
    """Return the notes on the corpora of a run.

    Args:
        corpora: corpora of a recipe.
        prepared: corpora that have been read.
        block_size: tokens per row.
        vocabulary: tokens that the tokenizer knows; 0 if unknown.
    """
    read = [corpus for corpus in corpora if corpus.name in prepared]
    notes = [
        note
        for corpus in read
        for part in [prepared[corpus.name]]
        for left_out in [(part.skipped, part.end_held_out, block_size, part.undesired)]
        for note in notes_on(corpus, part.counts, *left_out, first_skipped=part.first_skipped, vocabulary=vocabulary)
    ]
    return [*unread_files(read), *notes, *same_files(read)]


def unread_files(corpora: Sequence[Domain]) -> list[str]:
    """Return notes on what is read: files left out, those of other splits, chats and parts of documents as text."""
    notes = []
    for part in (part for corpus in corpora for part in corpus.parts):
        if held := "" if part.answers else tree_in(first_row(part)):
            notes.append(
                f"'{part.name}' holds {held}: each text is learnt by itself, as plain text. To learn chats, "
                f"{WRITE_PATHS} (`row_format: messages`)."
            )
        if part.on_hub:
            continue
        if broken := broken_lines_note(part):
            notes.append(broken)
        if (place := folder_of(part.path)) is not None:
            other = part.held_out_corpus
            held_out = other.split if other is not None and other.path == part.path else ""
            notes += inside(place, format_of, part.split).notes(part.name, held_out)
        elif glob.has_magic(part.path) and not is_remote(part.path):
            root = Path(*takewhile(lambda each: not glob.has_magic(each), Path(part.path).expanduser().parts))
            files = [file.relative_to(root) for file in local_files(part)]
            odd = odd_splits(files, format_of, root, part.split)
            if odd and (len(odd) > 1 or len(files) > sum(map(len, odd.values()))):  # or else the split is what is meant
                notes.append(odd_note(part.name, odd, root))
    return notes


def notes_on(
    corpus: Domain,
    counts: Mapping[str, Count],
    skipped: int,
    end_held_out: bool,
    block_size: int,
    undesired: int = 0,
    about: bool = False,
    first_skipped: str = "",
    vocabulary: int = 0,
) -> list[str]:
    """Return the notes on one corpus.

    Args:
        corpus: the corpus.
        counts: packed rows and tokens by part (`train`, `validation`).
        skipped: rows without text.
        end_held_out: whether the end of the corpus is held out instead of a sample of documents.
        block_size: tokens per row.
        undesired: rows that are left out because their answers are marked as not desired.
        about: whether the numbers of tokens are estimates.
        first_skipped: place of the first row without text.
        vocabulary: tokens that the tokenizer knows; 0 if unknown.
    """
    name, notes = corpus.name, []
    if skipped:
        hold, were = ("holds", "was") if skipped == 1 else ("hold", "were")
        rows = wording.count(skipped, "row")
        advice = advice_on_empty(first_skipped)
        notes.append(f"{rows} of '{name}' {hold} no text (null or blank) and {were} skipped.{advice}")
    if undesired:
        notes.append(undesired_note(name, undesired))
    if end_held_out:
        notes.append(
            f"'{name}' has too few documents, or too unequal ones, to hold some of them out: the end of its text is "
            "held out instead."
        )
    if note := _share_note(corpus, counts):
        notes.append(note)
    count = sum(counts.values(), Count())
    if not corpus.answers and count.text_tokens and vocabulary >= OF_WORDS and count.bytes_per_token < NEARLY_BYTES:
        notes.append(
            f"A token stands for {count.bytes_per_token:.1f} bytes of '{name}': the tokenizer does not know this kind "
            "of text, so a row holds little of it, and learning it is slow. Take a model made for it, or give its "
            "words tokens of their own with `everlearn extend`."
        )
    if note := _cut_note(corpus, count, block_size, about):
        notes.append(note)
    if count.spelt:
        notes.append(
            f"{'About ' if about else ''}{wording.count(count.spelt, 'chat')} of '{name}' spell out special tokens of "
            "the model inside messages: they are read as text."
        )
    return notes


def undesired_note(name: str, rows: int) -> str:
    """Return a note on rows that are left out because their answers are marked as not desired."""
    return (
        f"'{name}': {wording.count(rows, 'row')} {wording.be(rows)} left out, because '{LABEL}' is false there: only "
        "desired answers are learnt. To learn from both, train with TRL's `KTOTrainer`, which `everlearn.protect` "
        "protects."
    )


def _share_note(corpus: Domain, counts: Mapping[str, Count]) -> str | None:
    """Warn if far more or less text is held out than requested; for a stream this is unknown."""
    train, held_out = (counts.get(part, Count()).text_bytes for part in ("train", "validation"))
    configured = corpus.held_out_share
    if not configured or corpus.streaming or not train + held_out:
        return None
    share = held_out / (train + held_out)
    if not is_far(share, configured):
        return None
    return (
        f"'{corpus.name}' holds out {wording.percent(share)} of its text, and `validation: {configured:g}` asks for "
        f"{wording.percent(configured)}: its documents differ too much in length. Split the long ones, or name a file "
        "of held-out text in `validation`."
    )


def _cut_note(corpus: Domain, count: Count, block_size: int, about: bool) -> str | None:
    """Return a note on the examples that do not fit into a row."""
    if not count.truncated:
        return None
    beginning = " first" if corpus.streaming else ""
    answers = f", {count.answers_cut:,} of them in their answer" if count.answers_cut else " in their prompt"
    keep = "" if corpus.keep_last or count.answers_cut == count.truncated else "; `keep_last` keeps a prompt's end"
    return (
        f"{'About ' if about else ''}{count.truncated:,} of the{beginning} "
        f"{wording.count(count.documents, 'example')} of "
        f"'{corpus.name}' are longer than a row and cut{answers}: a row has "
        f"{wording.count(block_size, 'token')} (`data.block_size`), "
        f"the longest example {count.longest:,}. Raise it as far as the model reads, or shorten them{keep}."
    )


def same_files(corpora: Sequence[Domain]) -> list[str]:
    """Return a sentence for each two corpora that read the same file."""
    files = [
        (corpus.name, [file for part in corpus.parts if not part.on_hub for file in local_files(part)])
        for corpus in corpora
        if corpus.continues is None
    ]
    return [
        f"'{one}' and '{other}' read the same file, {same[0]}."
        for (one, some), (other, others) in combinations(files, 2)
        if (same := same_file(some, others))
    ]
