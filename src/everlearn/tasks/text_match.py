"""Compare a generated answer with the right one: exact match, F1 over words, ROUGE-L, each in [0, 1].

With several right answers the best score counts. Each metric is the mean over examples of the outcome of the same name.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from everlearn.evaluation.metrics import register_mean

register_mean("exact_match", "Exact match", "exact_match")
register_mean("token_f1", "Token F1", "token_f1")
register_mean("rouge_l", "ROUGE-L", "rouge_l")

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WORD = re.compile(r"[^\W_]+")


def squad_normalised(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation, the articles a, an, the, and repeated blanks.

    This is the normalisation of SQuAD 1.1's evaluation script (Rajpurkar et al., arXiv 1606.05250, section 6.1).
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def words_of(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and repeated blanks; articles are kept.

    The continual fine-tuning benchmarks of O-LoRA (arXiv 2310.14152) and MIGU (arXiv 2406.17245) compare answers so.
    """
    return " ".join(text.lower().translate(_PUNCTUATION).split())


MATCHES: dict[str, Callable[[str], str]] = {
    "exact": lambda text: " ".join(text.split()),
    "words": words_of,
    "squad": squad_normalised,
}
"""Normal form of an answer; two texts with the same one count as the same answer."""


def exact_match(answer: str, right: Sequence[str], match: str = "exact") -> float:
    """Return 1 if the answer is one of the right ones in the normal form of :data:`MATCHES`, and 0 otherwise."""
    plain = MATCHES[match]
    return float(any(plain(answer) == plain(one) for one in right))


def token_f1(answer: str, right: Sequence[str]) -> float:
    """Return F1 of the words that two texts share as multisets, after SQuAD's normalisation: 2 c / (m + n).

    c is the number of common words; m and n are the numbers of words. If one of the texts has none, F1 is 1 if the
    other has none either, and 0 otherwise (SQuAD 2.0).
    """
    return max(_token_f1(squad_normalised(answer).split(), squad_normalised(one).split()) for one in right)


def rouge_l(answer: str, right: Sequence[str]) -> float:
    """Return ROUGE-L with β = 1: 2 LCS / (m + n), with LCS the longest common subsequence of words.

    C.-Y. Lin, ROUGE: A Package for Automatic Evaluation of Summaries, 2004, eq. 2 to 4: R = LCS/m, P = LCS/n, F = (1 +
    β²) R P / (R + β² P). Words are runs of letters and digits, in lower case and unstemmed; 0 if a text has none.
    """
    return max(_rouge_l(_WORD.findall(answer.lower()), _WORD.findall(one.lower())) for one in right)


def _token_f1(one: Sequence[str], other: Sequence[str]) -> float:
    if not one or not other:
        return float(one == other)
    return 2 * sum((Counter(one) & Counter(other)).values()) / (len(one) + len(other))


def _rouge_l(one: Sequence[str], other: Sequence[str]) -> float:
    return 2 * longest_common_subsequence(one, other) / (len(one) + len(other)) if one and other else 0.0


def longest_common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the exact length of the longest common subsequence, computing a row of the usual table at a time.

    Neighbours in a row differ by 0 or 1, so a row is stored as an integer with a bit for each word of `one`, which is 1
    if they do not differ (H. Hyyrö, Bit-Parallel LCS-length Computation Revisited, 2004, figure 2).
    """
    where: dict[str, int] = {}
    for place, word in enumerate(one):
        where[word] = where.get(word, 0) | 1 << place
    every = (1 << len(one)) - 1
    row = every
    for word in other:
        matches = row & where.get(word, 0)
        row = (row + matches | row - matches) & every
    return len(one) - row.bit_count()
