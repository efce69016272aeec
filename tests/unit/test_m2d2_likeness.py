"""How alike texts and domains are: shingles, near copies, hashed tf-idf, an encoder's means, and orders by likeness."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

import tiny
from everlearn.errors import RecipeError
from everlearn_bench.suites.m2d2 import embedding, ordering
from everlearn_bench.suites.m2d2.domain_names import Branch
from everlearn_bench.suites.m2d2.duplicates import Duplicates, Match, jaccard, shingles_of


def slow_jaccard(one: str, other: str) -> float:
    """From the definition: sets of five words in a row."""
    first, second = ({tuple(w[i : i + 5]) for i in range(len(w) - 4)} for w in (one.split(), other.split()))
    return len(first & second) / len(first | second)


def test_shingles_jaccard_and_minima_are_those_of_the_definition() -> None:
    drawn = random.Random(1)
    words = [f"w{drawn.randrange(500)}" for _ in range(300)]
    finder = Duplicates(0.8)
    for changed in (0, 3, 20, 60):
        other = list(words)
        for place in drawn.sample(range(300), changed):
            other[place] = f"x{place}"
        one, two = shingles_of(words), shingles_of(other)
        wanted = slow_jaccard(" ".join(words), " ".join(other))
        assert jaccard(one, two) == pytest.approx(wanted)
        equal = (finder.signature(one) == finder.signature(two)).mean()  # an estimate of it from 120 minima
        assert equal == pytest.approx(wanted, abs=4 * 0.5 / 120**0.5)
    assert len(shingles_of(["a", "b"])) == 1


def test_copies_and_near_copies_are_found_and_others_are_not() -> None:
    drawn = random.Random(2)
    texts = [" ".join(f"w{drawn.randrange(300)}" for _ in range(150)) for _ in range(60)]
    finder = Duplicates(0.8)
    assert [finder.add(text) for text in texts] == [None] * 60
    assert finder.last == 59
    assert finder.add(texts[7].upper().replace(" ", ", ")) == Match(7, True)
    found = missed = 0
    for number, text in enumerate(texts):
        words = text.split()
        for place in drawn.sample(range(150), 2):
            words[place] = "changed"
        match = finder.add(" ".join(words))
        if slow_jaccard(text, " ".join(words)) >= 0.8:
            found, missed = found + (match == Match(number, False)), missed + (match is None)
    assert found > 50
    assert missed <= 1  # 0.2 % of pairs at the threshold are never compared
    assert Duplicates(1).add(texts[0]) is None
    short = "too short to be compared"
    assert (finder.add(short), finder.add(short)) == (None, None)


def test_similar_is_greedy_inside_groups_of_super_domains() -> None:
    """Against a plain search written from the description."""
    drawn = np.random.default_rng(3)
    branches = {f"d{n}": Branch(f"s{n % 2}", f"g{n % 6}", 2) for n in range(24)}
    vectors = {name: drawn.normal(size=5) for name in branches}
    start = drawn.normal(size=5)

    def cos(one: np.ndarray, other: np.ndarray) -> float:
        return float(one @ other) / float(np.sqrt((one**2).sum() * (other**2).sum()))

    wanted: list[str] = []
    for top in ("s0", "s1"):
        left = sorted({s.group for s in branches.values() if s.super_domain == top})
        at_group, at = start, start
        while left:
            mean = {g: np.mean([vectors[n] for n in branches if branches[n].group == g], 0) for g in left}
            group = sorted(left, key=lambda g: -cos(mean[g], at_group))[0]
            at_group = mean[group]
            left.remove(group)
            inside = [n for n in branches if branches[n].group == group]
            while inside:
                nearest = sorted(inside, key=lambda n: -cos(vectors[n], at))[0]
                at = vectors[nearest]
                inside.remove(nearest)
                wanted.append(nearest)
    found = ordering.similar(branches, vectors, start)
    assert list(found) == wanted
    assert ordering.swapped(found, branches) == (*found[12:], *found[:12])
    assert set(ordering.similar(branches, vectors, None)) == set(branches)


def test_hashed_tf_idf_is_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"a": ["tea tea cake", "cake"], "b": ["tea bread!"]}
    total, frequency = 3, {"tea": 2, "cake": 2, "bread": 1}

    def document(text: str) -> dict[str, float]:
        words = re.findall("[a-z]+", text)
        raw = {w: (1 + np.log(words.count(w))) * np.log((1 + total) / (1 + frequency[w])) for w in words}
        norm = np.sqrt(sum(value**2 for value in raw.values()))
        return {word: value / norm for word, value in raw.items()}

    wanted = {name: [document(text) for text in rows] for name, rows in texts.items()}
    found = embedding.hashed_tf_idf(texts)
    for name, rows in wanted.items():
        mean = sorted(sum(row.get(word, 0.0) for row in rows) / len(rows) for word in frequency)
        assert np.sort(found[name])[-3:] == pytest.approx(mean)
    assert embedding.cosine(found["a"], found["a"]) == pytest.approx(1)
    assert embedding.cosine(found["a"], 0 * found["a"]) == 0


def test_an_encoder_gives_means_of_normalised_vectors(tmp_path: Path) -> None:
    model = tiny.model("roberta")
    model.save_pretrained(tmp_path / "encoder")
    tiny.tokenizer().save_pretrained(tmp_path / "encoder")
    texts = tiny.texts(3, words=6)
    found = embedding.by_encoder(str(tmp_path / "encoder"))({"a": texts, "b": texts[:1]})
    one = embedding.by_encoder(str(tmp_path / "encoder"))({str(n): [text] for n, text in enumerate(texts)})
    assert np.linalg.norm(found["b"]) == pytest.approx(1, abs=1e-5)
    assert found["a"] == pytest.approx(sum(one.values()) / 3, abs=1e-5)  # padding makes no difference
    with pytest.raises(RecipeError, match=r"`suite.embedding` is '.*none', which cannot be loaded"):
        embedding.by_encoder(str(tmp_path / "none"))({"a": texts})
