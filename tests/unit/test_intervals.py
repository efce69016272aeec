"""Intervals over runs: against scipy, in both places that show them, and their coverage."""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_fixture
from scipy.stats import t as student
from scipy.stats import ttest_ind, ttest_rel

from everlearn.comparison.comparison import compare_runs
from everlearn.comparison.intervals import difference, over_runs
from everlearn.comparison.runs import from_results
from everlearn.grid import CellResult, summarise

ROOT = Path(__file__).parents[2]
Runs = dict[int, float]
"""Seed → what was learnt."""


def cell(entry: str, seed: int, learnt: float) -> CellResult:
    """A cell of a grid that learnt so many bits per byte."""
    return CellResult.model_validate(
        {
            "suite": "tiny",
            "entry": entry,
            "title": entry,
            "order": 0,
            "seed": seed,
            "settings": {},
            "tasks": {},
            "domains": ["a"],
            "tokens": 1,
            "seconds": 1.0,
            "bits_per_byte": {"a": {"base": learnt, "learnt": 0.0, "final": 0.0}},
        }
    )


def run(entry: str, seed: int, learnt: float) -> Any:
    """A run that learnt as much, without an interval of its own."""
    found = report_fixture.results(entry, entry, 0.1) | {"seed": seed}
    found["summary"] = {"bits_per_byte": {"learnt": {"mean": learnt} | dict.fromkeys(report_fixture.DOMAINS, learnt)}}
    return from_results(found, "model: {path: x}\n")


def cases() -> list[tuple[Runs, Runs]]:
    """Two sides of one to nine runs: all in pairs, some of them, one, none; noisy, tiny, shifted and equal numbers."""
    rng = np.random.default_rng(25)
    seeds = [
        *((range(n), range(n)) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9)),
        *((range(3), range(4)), (range(3), range(1, 4)), (range(5), range(3, 9))),
        *((range(1), range(3)), (range(3), range(1)), (range(2), range(2, 5)), (range(1), range(1, 3))),
    ]
    made = [({s: rng.normal(0.3, 0.02) for s in a}, {s: rng.normal(0.28, 0.02) for s in b}) for a, b in seeds]
    made.append(({0: 0.10, 1: 0.14}, {0: 0.0, 1: 0.0}))
    made.append((dict.fromkeys(range(3), 0.1 + 0.2), dict.fromkeys(range(3), 0.3)))
    made.append(({s: rng.normal(1e-7, 1e-8) for s in range(3)}, {s: rng.normal(0, 1e-8) for s in range(3)}))
    made.append(({s: 1e3 + s + rng.normal() for s in range(4)}, {s: 1e3 + s for s in range(4)}))
    return made


CASES = cases()


def test_there_are_twenty_cases() -> None:
    assert len(CASES) == 20


@pytest.mark.parametrize(("ours", "theirs"), CASES)
def test_the_report_and_the_bench_give_one_interval(ours: Runs, theirs: Runs) -> None:
    cells = [*(cell("sequential", s, v) for s, v in theirs.items()), *(cell("das", s, v) for s, v in ours.items())]
    plain, das = summarise(cells)
    runs = [*(run("sequential", s, v) for s, v in theirs.items()), *(run("das", s, v) for s, v in ours.items())]
    measure = compare_runs(runs).measure("bits_per_byte", "learnt")
    assert measure is not None
    same(das.numbers["bits_learnt"], measure.estimates[1])
    same(plain.numbers["bits_learnt"], measure.estimates[0])
    same(das.differences["bits_learnt"].estimate, measure.difference(1))
    same(das.differences["bits_learnt"].estimate, measure.column("sympy").difference(1))


def same(one: Any, other: Any) -> None:
    assert (one.interval is None) == (other.interval is None)
    for a, b in zip((one.value, *(one.interval or ())), (other.value, *(other.interval or ())), strict=True):
        assert a == pytest.approx(b, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("ours", "theirs"), CASES)
def test_the_interval_is_students(ours: Runs, theirs: Runs) -> None:
    found = difference(ours, theirs)
    pairs = [seed for seed in ours if seed in theirs]
    if len(pairs) > 1:
        assert found.pairs == len(pairs)
        equal = found.p_value in (0, 1)  # up to rounding, of which scipy makes an interval
        expected = None if equal else ttest_rel([ours[s] for s in pairs], [theirs[s] for s in pairs])
    elif len(ours) + len(theirs) > 2:
        assert found.pairs == 0
        expected = ttest_ind([*ours.values()], [*theirs.values()])
    else:
        assert (found.estimate.interval, found.p_value, found.pairs) == (None, None, 1)
        return
    assert found.estimate.interval is not None
    low, high = found.estimate.interval
    if expected is not None:
        interval = expected.confidence_interval(0.95)
        assert (low, high) == pytest.approx((interval.low, interval.high), rel=1e-9)
        assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.p_value is not None
    assert (found.p_value < 0.05) == (not low <= 0 <= high)


def test_two_runs_say_little() -> None:
    """The case of the issue: a bootstrap over two runs gave [0.10, 0.14]."""
    assert over_runs([0.10, 0.14]).interval == pytest.approx((-0.134, 0.374), abs=5e-4)
    assert over_runs([0.1]).interval is None
    assert over_runs([0.3, 0.1 + 0.2]).interval == (0.3, 0.3) or over_runs([0.3, 0.1 + 0.2]).low == pytest.approx(0.3)
    with pytest.raises(ValueError, match="at least one run"):
        over_runs([])
    with pytest.raises(ValueError, match="each side"):
        difference({}, {0: 1.0})


@pytest.mark.parametrize("runs", range(2, 10))
def test_the_interval_covers_what_it_says(runs: int) -> None:
    """Of 4,000 draws without any difference 95 % cover it, to three standard deviations of that count."""
    rng = np.random.default_rng(runs)
    draws = rng.normal(0, 1, (4000, runs))
    error = draws.std(1, ddof=1) / np.sqrt(runs)
    reach = student.ppf(0.975, runs - 1) * error
    assert over_runs(draws[0]).interval == pytest.approx((draws[0].mean() - reach[0], draws[0].mean() + reach[0]))
    assert 0.94 <= float(np.mean(np.abs(draws.mean(1)) <= reach)) <= 0.96


def test_the_simulation_is_what_the_page_says() -> None:
    """docs/results/intervals.md is what benchmarks/interval_coverage.py wrote, and its coverage is 93 to 97 %."""
    file = ROOT / "docs" / "results" / "intervals.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    rows: list[Mapping[str, Any]] = found["rows"]
    assert [row["runs"] for row in rows] == list(range(2, 10))
    for row in rows:
        for name in ("mean", "pairs", "one against", "p below 0.05"):
            share = 1 - row[name] if name == "p below 0.05" else row[name]
            assert 0.93 <= share <= 0.97, (row["runs"], name)
    script = runpy.run_path(str(ROOT / "benchmarks" / "interval_coverage.py"))
    assert script["page"](found) == (ROOT / "docs" / "results" / "intervals.md").read_text(encoding="utf-8")
    fresh = script["coverage"](3, 200)
    assert fresh["mean"] == pytest.approx(rows[1]["mean"], abs=0.06)
    assert fresh["bootstrap"] < 0.9
