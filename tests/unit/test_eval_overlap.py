"""Exact match, token F1 and ROUGE-L against slow references written from their definitions."""

from __future__ import annotations

import functools
import itertools
import random

import pytest

from everlearn.tasks.text_match import exact_match, longest_common_subsequence, rouge_l, squad_normalised, token_f1


def slow_lcs(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Lin (2004): the longest common subsequence, by the recursion that defines it."""

    @functools.cache
    def length(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return 0
        if one[i - 1] == other[j - 1]:
            return length(i - 1, j - 1) + 1
        return max(length(i - 1, j), length(i, j - 1))

    return length(len(one), len(other))


def test_common_subsequence_is_exact() -> None:
    generator = random.Random(0)
    seen = set()
    for _ in range(400):
        words = "abcdefgh"[: generator.randint(1, 8)]
        one, other = (tuple(generator.choices(words, k=generator.randint(0, 90))) for _ in range(2))
        found = longest_common_subsequence(one, other)
        assert found == slow_lcs(one, other)
        seen.add(found)
    assert len(seen) > 30
    for one, other in itertools.product(itertools.product("ab", repeat=4), repeat=2):
        assert longest_common_subsequence(one, other) == slow_lcs(one, other)


def test_rouge_l_is_the_formula() -> None:
    generator = random.Random(1)
    for _ in range(50):
        one, other = (generator.choices(["the", "cat", "sat", "on", "mat"], k=generator.randint(1, 12)) for _ in "ab")
        lcs = slow_lcs(tuple(one), tuple(other))
        recall, precision = lcs / len(other), lcs / len(one)
        expected = 0.0 if lcs == 0 else (1 + 1) * recall * precision / (recall + precision)
        assert rouge_l(" ".join(one), [" ".join(other)]) == pytest.approx(expected, abs=1e-12)
    # The paper's example.
    assert rouge_l("police kill the gunman", ["police killed the gunman"]) == pytest.approx(3 / 4)
    assert rouge_l("the gunman kill police", ["police killed the gunman"]) == pytest.approx(2 / 4)
    assert rouge_l("Über-Größe, 3!", ["über größe 3"]) == 1.0, "letters of any alphabet, no punctuation, no case"
    assert rouge_l("...", ["word"]) == rouge_l("word", ["..."]) == 0.0


def slow_f1(answer: str, right: str) -> float:
    """Matches words one by one."""
    left, hits = squad_normalised(right).split(), 0
    mine = squad_normalised(answer).split()
    total = len(mine) + len(left)
    for word in mine:
        if word in left:
            left.remove(word)
            hits += 1
    precision, recall = hits / max(len(mine), 1), hits / max(total - len(mine), 1)
    return 0.0 if hits == 0 else 2 * precision * recall / (precision + recall)


def test_token_f1_is_the_formula() -> None:
    generator = random.Random(2)
    words = ["the", "Cat", "cat.", "sat", "on", "mat!", "mat"]
    values = set()
    for _ in range(200):
        one, other = (" ".join(generator.choices(words, k=generator.randint(2, 9))) for _ in "ab")
        if squad_normalised(one) and squad_normalised(other):
            found = token_f1(one, [other])
            assert found == pytest.approx(slow_f1(one, other), abs=1e-12)
            values.add(round(found, 6))
    assert len(values) > 10


def test_normalisation_and_several_right_answers() -> None:
    assert squad_normalised("  The  U.S.A.,\n an   Apple ") == "usa apple"
    assert exact_match(" a\n b ", ["a b"]) == 1.0
    assert exact_match("A b", ["a b"]) == 0.0
    assert exact_match("The cat!", ["cat"]) == 0.0
    assert exact_match("The cat!", ["cat"], "squad") == 1.0
    assert exact_match("The cat!", ["cat"], "words") == 0.0
    assert exact_match("the  Cat", ["The cat!"], "words") == 1.0
    assert exact_match("a", ["A"], "words") == 1.0
    assert exact_match("x", ["y", "x"]) == 1.0
    assert token_f1("a cat", ["dog", "the cat sat"]) == pytest.approx(2 / 3)
    assert rouge_l("two", ["one", "one two"]) == pytest.approx(2 / 3)
    assert token_f1("the", ["a"]) == 1.0, "two texts without words are the same, as in SQuAD 2.0"
    assert token_f1("the", ["cat"]) == 0.0
