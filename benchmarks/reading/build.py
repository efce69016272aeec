"""Write questions of reading comprehension, with answers that stand in the text, from a corpus.

    python benchmarks/reading/build.py DATA runs/reading

From `DATA/D0/books` and `DATA/domains/pubmed_rct` it writes `<corpus>-{train,validation}.jsonl` and prints how many are
right by chance and by taking the option that the passage has most often. A question is a passage and the beginning of
its next sentence; the answer is the word that follows, which occurs in the passage. Beside it are four other words of
the passage to choose from (the form of the Children's Book Test, arXiv 1511.02301, with the word at the end).
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

CORPORA = {"books": "D0/books", "pubmed": "domains/pubmed_rct"}
COUNTS = {"train": 2000, "validation": 300}
WORDS = 50
"""Largest number of words of passage and question."""
FREQUENT = 1000
"""Number of the most frequent words of both corpora, which are no answers."""
OPTIONS = 5
WORD = re.compile(r"[a-z]{5,}")


def words(text: str) -> list[str]:
    """Return the words that could be answers, in lower case."""
    return WORD.findall(text.lower())


def texts(data: Path, corpus: str, split: str) -> Iterator[str]:
    """Yield the documents of a part of a corpus."""
    with gzip.open(data / CORPORA[corpus] / f"{split}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield " ".join(json.loads(line)["text"].split())


def question(document: str, frequent: set[str], draw: random.Random) -> dict[str, Any] | None:
    """Return a question about a place in a document; None if the place has none.

    The place is drawn, then the last word before it that occurred earlier becomes the answer.
    """
    tokens = document.split(" ")
    if len(tokens) < 2 * WORDS:
        return None
    at = draw.randrange(len(tokens) - WORDS)
    window = tokens[at : at + WORDS + 1]
    starts = [i + 1 for i, token in enumerate(window) if token.endswith((".", "?", "!"))]
    for end in range(len(window) - 1, WORDS // 2, -1):
        start = max((s for s in starts if s <= end - 3), default=0)
        answer = window[end].strip(".,;:!?()\"'").lower()
        own = {word for word in words(" ".join(window[:start])) if word not in frequent}
        others = sorted(own - {answer} - set(words(" ".join(window[start:end]))))
        if start and answer in own and len(others) >= OPTIONS - 1:
            options = [answer, *draw.sample(others, OPTIONS - 1)]
            draw.shuffle(options)
            counts = Counter(words(" ".join(window[:start])))
            most = max(options, key=lambda word: counts[word])
            return {"text": " ".join(window[:end]), "answer": answer, "options": options, "most": most}
    return None


def questions(data: Path, corpus: str, split: str, frequent: set[str]) -> Iterator[dict[str, Any]]:
    """Yield questions, documents in turn, without end."""
    draw, documents = random.Random(f"{corpus} {split}"), list(texts(data, corpus, split))
    while True:
        for document in documents:
            row = question(document, frequent, draw)
            if row is not None:
                yield row


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    counted: Counter[str] = Counter()
    for corpus in CORPORA:
        own = Counter(word for text in islice(texts(arguments.data, corpus, "train"), 2000) for word in words(text))
        counted.update({word: count / own.total() for word, count in own.items()})  # type: ignore[arg-type]
    frequent = {word for word, _ in counted.most_common(FREQUENT)}
    for corpus in CORPORA:
        for split, count in COUNTS.items():
            rows = list(islice(questions(arguments.data, corpus, split, frequent), count))
            lines = [json.dumps({key: row[key] for key in ("text", "answer", "options")}) for row in rows]
            (arguments.output / f"{corpus}-{split}.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
            share = sum(row["most"] == row["answer"] for row in rows) / count
            print(
                f"{corpus} {split}: {count} questions, chance {100 / OPTIONS:.0f} %, most frequent {100 * share:.1f} %"
            )


if __name__ == "__main__":
    main()
