"""The study's claims, judged from hand-made cells: measures by hand, orders against each other, the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from everlearn.comparison.runs import Run
from everlearn.evaluation.quantities import QUANTITIES
from everlearn_bench.claims.judge import FAILS, HOLDS, MISSING, ask, judge, parts
from everlearn_bench.claims.page import page, question, write_claims
from everlearn_bench.suites import find_suite
from everlearn_bench.suites.claims import ClaimQuestion
from everlearn_bench.suites.m2d2.claims import study_claims
from grid_cells import cell_of, made_of

COUNT = 8


def streamed(order: int, seed: int, entry: str = "sequential", learnt: float = 1.0, late: float = 0.1) -> Run:
    """Domains learnt by `learnt`; each later stage costs 0.02, and `late` more from the fifth checkpoint on."""
    noise = np.random.default_rng([order, seed]).normal(0, 0.005, COUNT)
    names = [f"d{(number + 3 * order) % COUNT}" for number in range(COUNT)]
    values = np.full((COUNT + 1, COUNT), 4.0)
    for place in range(COUNT):
        for row in range(1, COUNT + 1):
            gap = row - (place + 1)
            own = 4.0 - learnt + noise[place]
            values[row, place] = 4.0 - 0.1 * order if gap < 0 else own + 0.02 * gap + late * (gap > 0 and row > 5)
    bits = {
        name: {"base": 4.0, "learnt": float(values[place + 1, place]), "final": float(values[-1, place])}
        for place, name in enumerate(names)
    }
    return cell_of(
        suite="docs", entry=entry, title=entry.upper(), order=order, seed=seed, domains=names, bits_per_byte=bits,
        matrix={"rows": ["base", *names], "columns": names, "values": values.tolist()}, settings={"model": "small"},
    )  # fmt: skip


def alone(seed: int, learnt: float) -> Run:
    bits = {f"d{number}": {"base": 4.0, "learnt": 4.0 - learnt, "final": 4.0 - learnt} for number in range(COUNT)}
    return cell_of(
        suite="docs", entry="separate", title="SEPARATE", order=None, seed=seed, domains=list(bits),
        bits_per_byte=bits, settings={"model": "small"},
    )  # fmt: skip


def test_measures_of_a_cell_by_hand() -> None:
    one = streamed(1, 0)
    for name, key in (("continual", "learnt"), ("lc", "gained"), ("fg", "forgotten")):
        own = parts(one, name)
        bits = made_of(one)["bits_per_byte"]
        assert own == pytest.approx({d: QUANTITIES[key].at(bits[d], False) for d in own})
        assert len(own) == COUNT - (name == "fg")
    assert parts(one, "fg") == pytest.approx({d: 0.02 * (COUNT - 1 - i) + 0.1 for i, d in enumerate(one.domains[:-1])})
    assert parts(one, "forward") == pytest.approx(dict.fromkeys(one.domains[1:], 0.1))
    first = np.mean([4 - one.matrices["bits_per_byte"].values[row][0] for row in range(2, COUNT + 1)])
    assert parts(one, "backward")[one.domains[0]] == pytest.approx(first)
    # Checkpoints 2 to 5 against 6 to 8, at the gaps that both have.
    found = parts(one, "late")
    assert list(found) == ["gap 1", "gap 2", "gap 3", "gap 4"]
    assert all(value == pytest.approx(0.1, abs=0.02) for value in found.values())
    assert parts(alone(0, 0.5), "late") == parts(alone(0, 0.5), "forward") == parts(alone(0, 0.5), "fg") == {}
    assert parts(alone(0, 0.5), "continual") == pytest.approx({f"d{number}": 0.5 for number in range(COUNT)})


def test_orders_of_one_entry_are_compared_seed_by_seed() -> None:
    cells = [streamed(order, seed) for order in (0, 1, 2) for seed in range(3)]
    found = ask(cells, ClaimQuestion("sequential", "sequential", "forward", "above", orders=(1, 2), other_orders=(0,)))
    assert found.runs == ((None, 0), (None, 1), (None, 2))
    # Order 1 is better by 0.1 before the own stage, order 2 by 0.2.
    assert found.difference.value == pytest.approx(0.15)
    assert found.verdict == HOLDS
    missing = ClaimQuestion("sequential", "sequential", "forward", "above", orders=(7,), other_orders=(0,))
    assert ask(cells, missing).verdict == MISSING


def test_the_suite_has_a_page_of_claims_before_anything_is_measured(tmp_path: Path) -> None:
    judged = write_claims(find_suite("m2d2"), tmp_path / "results", tmp_path / "page.md")
    assert len(judged) == 5
    assert all(each.verdict == MISSING for each in judged)
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "smaller base model" in text
    assert "in orders 11 to 30" in text


def test_the_findings_and_their_page() -> None:
    cells = [streamed(order, seed) for order in (0, 1, 2) for seed in range(3)]
    cells += [alone(seed, 0.8 + 0.01 * seed) for seed in range(3)]
    cells += [streamed(0, seed, "small", learnt=0.7, late=0.3) for seed in range(3)]
    cells += [streamed(0, seed, "large", learnt=0.9, late=0.0) for seed in range(3)]
    claims = study_claims((0,), (1, 2), "small", "large", "Eight domains.")
    judged = judge(cells, claims.claims)
    similar, random, sizes, late, dapt = judged
    assert [finding.verdict for finding in similar.findings] == [HOLDS]
    assert random.findings[1].verdict == HOLDS
    assert [finding.verdict for finding in sizes.findings] == [FAILS, HOLDS]
    assert sizes.verdict == FAILS
    assert late.verdict == dapt.verdict == HOLDS
    assert all(finding.question.published for each in judged for finding in each.findings)
    text = page(find_suite("docs"), claims.title, claims.introduction, judged, cells, judged)
    said = question(random.findings[1].question, {"sequential": "Plain"})
    assert said == "Plain in orders 1 and 2 > Plain in order 0: forward transfer (bits per byte)"
    assert "comparisons, as they are for tasks in general. 10 comparisons in all" in " ".join(text.split())
    assert "Eight domains." in text
    assert len(study_claims((0,), (1,)).claims) == 4


def test_the_page_names_the_rows_that_the_claim_about_sizes_compares() -> None:
    text = (Path(__file__).parents[2] / "docs" / "transfer.md").read_text(encoding="utf-8")
    (sizes,) = [claim for claim in find_suite("m2d2").claims.claims if claim.sentence.startswith("Small models")]
    ((entry, other),) = {(question.entry, question.other) for question in sizes.questions}
    assert f"CPT and FG: entry `{entry}` > `{other}` |" in text


def test_a_verdict_stands_with_what_limits_it() -> None:
    """The committed grid has one pair of models, which differ in size and in training."""
    text = (Path(__file__).parents[2] / "docs" / "claims-m2d2.md").read_text(encoding="utf-8")
    (row,) = [line for line in text.splitlines() if line.startswith("| 3\\. Small models learn most")]
    assert row.count("(one pair of models; size is confounded with training)") == 2
