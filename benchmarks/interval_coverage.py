"""How often a 95 % interval over runs holds what it should: Student's t, and the bootstrap over runs that it replaced.

    python benchmarks/interval_coverage.py

writes docs/results/intervals.json and intervals.md. Runs are drawn from a normal distribution of mean 0; an interval
holds if 0 is in it. The drawing is seeded; it takes about a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from everlearn import files
from everlearn.comparison.intervals import difference, over_runs
from everlearn.evaluation.statistics import RESAMPLES, generator, percentiles
from everlearn.evaluation.statistics import draws as draws_of

PLACE = Path(__file__).parents[1] / "docs" / "results"
DRAWS, BOOTSTRAPS = 10_000, 1_000
RUNS = range(2, 10)


def coverage(runs: int, draws: int) -> dict[str, float]:
    """Shares of draws of `runs` runs.

    Args:
        runs: of a row of a table.
        draws: how many tables.
    """
    rng = np.random.default_rng(runs)
    held = dict.fromkeys(("mean", "pairs", "one against", "p below 0.05", "skewed"), 0)
    resampled, few = 0, max(1, min(draws, BOOTSTRAPS))
    for number in range(draws):
        ours, noise, shared = rng.normal(0, 1, (3, runs))
        held["mean"] += _holds(over_runs(ours).interval, 0.0)
        pairs = difference(dict(enumerate(ours + shared)), dict(enumerate(noise + shared)))
        held["pairs"] += _holds(pairs.estimate.interval, 0.0)
        held["p below 0.05"] += (pairs.p_value or 0.0) < 0.05
        held["one against"] += _holds(difference(dict(enumerate(ours)), {-1: rng.normal()}).estimate.interval, 0.0)
        held["skewed"] += _holds(over_runs(np.exp(0.5 * noise)).interval, float(np.exp(0.125)))
        if number < few:
            counts = draws_of(runs, RESAMPLES, generator("bootstrap", ("coverage", runs, number)))
            low, high = percentiles(np.concatenate([often @ ours / often.sum(1) for often in counts]))
            resampled += bool(low <= 0 <= high)
    return {name: count / draws for name, count in held.items()} | {"bootstrap": resampled / few}


def _holds(interval: tuple[float, float] | None, value: float) -> bool:
    if interval is None:
        raise ValueError("Several runs have an interval.")
    return interval[0] <= value <= interval[1]


def page(data: Mapping[str, Any]) -> str:
    """The page of what was found."""
    lines = [
        f"| {row['runs']} | {_percent(row['mean'])} | {_percent(row['pairs'])} | {_percent(row['one against'])} | "
        f"{_percent(row['p below 0.05'])} | {_percent(row['skewed'])} | {_percent(row['bootstrap'])} |"
        for row in data["rows"]
    ]
    return f"""# Coverage of intervals over runs

A 95 % interval should hold the true value in 95 of 100 cases. `benchmarks/interval_coverage.py` draws runs at random
({data["draws"]:,} times for each number of runs, {data["bootstraps"]:,} for the bootstrap) and counts in
how many percent of the draws it does.

* **mean**: the interval of the mean of runs that follow a normal distribution. **Skewed**: of a log-normal one
  (σ = 0.5), for which Student's t is not exact.
* **pairs**: the interval of the difference of two rows whose runs share the noise of their seeds. **One against**: so
  many runs of one row against a single run of the other.
* **p below 0.05**: how often a difference is reported where there is none; it should be 5 %.
* **bootstrap over runs**: the percentile bootstrap, which tables of `everlearn bench` had before.

| runs | mean | pairs | one against | p below 0.05 | mean, skewed | bootstrap over runs |
|---:|---:|---:|---:|---:|---:|---:|
{chr(10).join(lines)}
"""


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def main() -> None:
    """Draw, and write both files."""
    rows = [{"runs": runs} | coverage(runs, DRAWS) for runs in RUNS]
    data = {"draws": DRAWS, "bootstraps": BOOTSTRAPS, "rows": rows}
    files.write_json(PLACE / "intervals.json", data)
    files.write_text(PLACE / "intervals.md", page(data))
    print(page(data))


if __name__ == "__main__":
    main()
