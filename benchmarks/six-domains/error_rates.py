"""How often tests of a grid's size find a difference that is not there: the ground for the rule of docs/claims.md.

    python benchmarks/six-domains/error_rates.py [--simulations 1000]

A simulation draws the differences of two entries for some runs and tasks: noise of tasks, shared by all runs, plus
noise of runs, shared by all tasks, plus noise of their own, all with mean 0. Printed: for each test the lowest and the
highest share of p < 0.05 (or of 95 % intervals without 0) over the mixtures of noise, of 5 and 6 tasks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from everlearn.evaluation.statistics import Floats, generator
from everlearn_bench.claims.crossed_effects import crossed_mean

TASKS, RUNS = (5, 6), (2, 3, 6)
MIXTURES = ((0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1), (3, 0.3, 1), (0.3, 3, 1))
"""Standard deviations: tasks, runs, single differences."""
NOISE: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Floats]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy-tailed": lambda rng, shape: rng.standard_t(3, shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape) - 1,
}
RESAMPLES = 300
EXACT = 10_000
"""Patterns of signs up to which all are tried."""


def crossed(table: Floats, rng: np.random.Generator) -> bool:
    """The test of docs/claims.md."""
    return (
        crossed_mean([{str(task): value for task, value in enumerate(row)} for row in table]).p_value() or 0.0
    ) < 0.05


def bootstrap(table: Floats, rng: np.random.Generator) -> bool:
    """Tasks and runs both resampled; percentile interval."""
    drawn = [rng.multinomial(n, np.full(n, 1 / n), RESAMPLES) / n for n in table.shape]
    low, high = np.quantile(np.einsum("br,rt,bt->b", drawn[0], table, drawn[1]), [0.025, 0.975])
    return bool(low > 0 or high < 0)


def flips_of_tasks(table: Floats, rng: np.random.Generator) -> bool:
    """Exact sign flips over the means of tasks."""
    return flipped(table.mean(0), EXACT, 0) < 0.05


def flips_of_cells(table: Floats, rng: np.random.Generator) -> bool:
    """Random sign flips over single differences."""
    return flipped(table.ravel(), RESAMPLES, int(rng.integers(2**31))) < 0.05


def flipped(differences: Floats, permutations: int, seed: int) -> float:
    """Two-sided p-value: all patterns of signs or, of more than `permutations`, random ones and the observed one."""
    units = len(differences)
    bar = abs(differences.sum()) - 1e-12 * np.abs(differences).sum()
    if 2**units <= permutations:
        signs = 1 - 2 * ((np.arange(2**units)[:, None] >> np.arange(units)) & 1)
        return float(np.mean(np.abs(signs @ differences) >= bar))
    signs = 1 - 2 * generator("permutation", seed).integers(0, 2, (permutations, units), dtype=np.int8)
    return (int(np.count_nonzero(np.abs(signs @ differences) >= bar)) + 1) / (permutations + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=1000)
    count: int = parser.parse_args().simulations
    rng = np.random.default_rng(0)
    tests = (crossed, bootstrap, flips_of_tasks, flips_of_cells)
    for runs in RUNS:
        for kind, draw in NOISE.items():
            rates = []
            for tasks in TASKS:
                for of_tasks, of_runs, own in MIXTURES:
                    rejections = np.zeros(len(tests))
                    for _ in range(count):
                        table = of_tasks * draw(rng, (1, tasks)) + of_runs * draw(rng, (runs, 1))
                        table = table + own * draw(rng, (runs, tasks))
                        rejections += [test(table, rng) for test in tests]
                    rates.append(rejections / count)
            low, high = 100 * np.min(rates, 0), 100 * np.max(rates, 0)
            shown = (f"{t.__name__} {a:.0f}-{b:.0f} %" for t, a, b in zip(tests, low, high, strict=True))
            print(f"{runs} runs, {kind}: {'; '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
