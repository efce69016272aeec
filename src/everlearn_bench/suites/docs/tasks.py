"""The end tasks: predict the subpackage that a docstring belongs to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from everlearn_bench.suites.docs.reading import Doc

MOST_CLASSES = 8
FEWEST_DOCUMENTS = 60
"""Documents that a subpackage must have to be a class."""
PER_CLASS = {"train": 60, "test": 30}
"""Documents of a class at most. Test documents are held out from the domain's training text too."""
MOST_CHARACTERS = 1200


def classes(docs: Iterable[Doc]) -> list[str]:
    """Return the most frequent subpackages, at most 8 with at least 60 documents each, sorted by name."""
    counts = Counter(doc.subpackage for doc in docs if doc.subpackage)
    frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_CLASSES]
    return sorted(name for name, count in frequent if count >= FEWEST_DOCUMENTS)


def examples(library: str, docs: list[Doc], part: str) -> list[dict[str, str]]:
    """Return labelled texts of one library.

    Args:
        library: name of the library, which is removed from the texts with that of the subpackage.
        docs: its documents, ordered by their hashes.
        part: ``train`` (documents of the training split) or ``test`` (of the other two).

    Returns:
        Rows with ``text`` (at most 1,200 characters) and ``label``, ordered by hashes.
    """
    labels = classes(docs)
    hide = _hider(library, labels)
    taken: Counter[str] = Counter()
    rows = []
    for doc in docs:
        if doc.subpackage not in labels or (doc.split == "train") != (part == "train"):
            continue
        if taken[doc.subpackage] < PER_CLASS[part]:
            taken[doc.subpackage] += 1
            rows.append({"text": hide.sub("", doc.text)[:MOST_CHARACTERS], "label": doc.subpackage})
    return rows


def _hider(library: str, labels: list[str]) -> re.Pattern[str]:
    """Return a pattern for names of subpackages in a path, which would reveal the answer.

    ``scipy.stats.norm`` becomes ``scipy.norm``, ``from scipy import stats`` ``from scipy import`` and ``stats.norm``
    ``norm``; the word "stats" in a sentence stays.
    """
    names = {re.escape(part) for label in labels for part in label.split(".")}
    part = "(?:" + "|".join(sorted(names, key=lambda name: (-len(name), name))) + r")\b"
    return re.compile(
        rf"(?<=\bimport ){part}|(?<=\b{re.escape(library)})(?:\.{part})+|\.{part}(?=\.)|\b{part}\.(?=[A-Za-z_])"
    )
