"""Intervals over runs: against scipy, in both places that show them, and their coverage."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student
from scipy.stats import ttest_ind, ttest_rel

from everlearn.comparison.comparison import compare_runs
from everlearn.comparison.intervals import difference, over_runs
from everlearn.grid import summarise

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import one_engine  # noqa: E402

Runs = dict[int, float]
"""Seed → what was learnt."""
CASES = one_engine.cases()


def test_there_are_twenty_cases() -> None:
    assert len(CASES) == 20


@pytest.mark.parametrize(("ours", "theirs"), CASES)
def test_the_report_and_the_bench_give_one_interval(ours: Runs, theirs: Runs) -> None:
    """Of the same files: a grid's cell is a run."""
    runs = [*one_engine.runs_of("sequential", theirs), *one_engine.runs_of("das", ours)]
    plain, das = summarise(runs)
    measure = compare_runs(runs).measure("bits_per_byte", "learnt")
    assert measure is not None
    same(das.numbers["bits_learnt"], measure.estimates[1])
    same(plain.numbers["bits_learnt"], measure.estimates[0])
    same(das.differences["bits_learnt"].estimate, measure.difference(1))
    same(das.differences["bits_learnt"].estimate, measure.column("a").difference(1))


def same(one: Any, other: Any) -> None:
    assert (one.interval is None) == (other.interval is None)
    for a, b in zip((one.value, *(one.interval or ())), (other.value, *(other.interval or ())), strict=True):
        assert a == pytest.approx(b, rel=1e-9, abs=1e-12)


def test_the_page_of_the_twenty_cases_is_what_its_script_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = one_engine.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(one_engine, "PAGE", tmp_path / "page.md")
    one_engine.main()
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == kept
    assert "20 of the twenty say the same on both pages now." in kept


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
