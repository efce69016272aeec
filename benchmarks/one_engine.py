"""Twenty pairs of rows of which the page of runs and the page of a grid once gave different intervals.

    python benchmarks/one_engine.py

writes docs/results/one-engine.md: what both pages say now, of the same files, and what the grid's page said before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from everlearn import files
from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import compare_runs
from everlearn.comparison.runs import Run, from_results
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.statistics import RESAMPLES, draws, generator, percentiles
from everlearn.grid import summarise

PAGE = Path(__file__).parents[1] / "docs" / "results" / "one-engine.md"
Values = dict[int, float]
"""Seed → bits per byte that were learnt."""
TEXT = """\
# Do the pages of runs and of grids agree?

`everlearn report` compares runs, `everlearn sweep` and `bench` compare the cells of a grid. They once computed their
numbers separately, and gave different intervals for the same data. Now both read the same table of quantities and call
the same functions. This page compares the two on twenty synthetic cases, and with what tables of grids said before.
`benchmarks/one_engine.py` writes it.

## Twenty cases

Each case is a pair of rows, drawn at random with a fixed seed. In cases 1 to 9 both rows have the same seeds, in
10 to 12 some in common, in 13 and 14 one, in 15 and 16 none. In case 17 the reference is zero, in 18 both rows are
equal, in 19 values are near 1e-7, and in 20 near 1,000. With two or more common seeds the runs are paired and the
others left out; with fewer both rows are compared as independent samples.

The numbers are what a row learns (bits per byte) minus what the reference learns, with the 95 % interval. *Before*: the
percentile bootstrap over the seeds that both rows have, as tables of grids had it; for few runs it is far too narrow
([how often it holds](intervals.md)).

| Case | Seeds of the row | of the reference | Before, in a grid | Page of runs | Page of the grid |
|---:|---|---|---:|---:|---:|
{rows}

{same} of the twenty say the same on both pages now.

## What else differed

| | On the page of runs | On the page of a grid | On both now |
|---|---|---|---|
| Forgetting of an end task | of the task's domain | only if task and domain had one name | of the task's domain |
| A mean, where one of its columns was not measured | absent | the mean of the others | absent |
| The max form of forgetting, where a stage was not measured | the maximum of the others | absent | absent |
| Fine-tuned end tasks of no domain | general: kept or lost | part of the domains' average | general: kept or lost |
| Metrics | all | bits per byte, accuracy, F1, tasks inside stages | all, in JSON and CSV |

## Committed pages

The cells under `benchmarks/` were converted by `benchmarks/convert_cells.py`. Every number of every cell is the same to
12 digits, and every page that is made of them was the same byte for byte: their intervals had
been corrected before. In JSON and CSV there are more numbers: what is held at the end, and of `six-domains` macro-F1,
backward transfer and the accuracy right after learning, which follow
from scores that the cells had.
"""


def cases() -> list[tuple[Values, Values]]:
    """Return twenty pairs of rows: runs of shared seeds, of other ones, one against several, equal and huge numbers."""
    rng = np.random.default_rng(25)
    seeds = [
        *((range(n), range(n)) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9)),
        *((range(3), range(4)), (range(3), range(1, 4)), (range(5), range(3, 9))),
        *((range(1), range(3)), (range(3), range(1)), (range(2), range(2, 5)), (range(1), range(1, 3))),
    ]
    pairs = [({s: rng.normal(0.3, 0.02) for s in a}, {s: rng.normal(0.28, 0.02) for s in b}) for a, b in seeds]
    pairs.append(({0: 0.10, 1: 0.14}, {0: 0.0, 1: 0.0}))
    pairs.append((dict.fromkeys(range(3), 0.1 + 0.2), dict.fromkeys(range(3), 0.3)))
    pairs.append(({s: rng.normal(1e-7, 1e-8) for s in range(3)}, {s: rng.normal(0, 1e-8) for s in range(3)}))
    pairs.append(({s: 1e3 + s + rng.normal() for s in range(4)}, {s: 1e3 + s for s in range(4)}))
    return pairs


def runs_of(row: str, values: Values) -> list[Run]:
    """Return runs of a method on one domain that learnt so many bits per byte, a run a seed."""
    return [_run(row, seed, float(learnt)) for seed, learnt in values.items()]


def _run(row: str, seed: int, learnt: float) -> Run:
    cells = [["base", "a", learnt, None, None], ["a", "a", 0.0, None, None]]
    table = {"unit": "bits/byte", "higher_is_better": False, "rows": ["base", "a"], "columns": ["a"], "cells": cells}
    results: dict[str, Any] = {
        "run": f"{row}-{seed}", "methods": [{"name": row, "title": row}], "status": "finished", "seed": seed,
        "objective": "masked", "model": "small", "domains": ["a"], "matrices": {"bits_per_byte": table},
        "grid": {"suite": "tiny", "row": row, "title": row, "order": 0, "seed": seed, "settings": {}},
    }  # fmt: skip
    return from_results(results, f"domains: [{{name: a, path: a}}]\nmethod: [{{name: {row}}}]\nrun: {{seed: {seed}}}\n")


def on_both_pages(ours: Values, reference: Values) -> tuple[Estimate, Estimate]:
    """Return the difference of two rows as the page of runs and as the page of the grid says it, of the same runs."""
    runs = [*runs_of("plain", reference), *runs_of("other", ours)]
    measure = compare_runs(runs).measure("bits_per_byte", "learnt")
    assert measure is not None
    return measure.difference(1), summarise(runs, "plain")[1].differences["bits_learnt"].estimate


def before(ours: Values, reference: Values) -> Estimate:
    """Return the difference with the percentile bootstrap over runs, in pairs of the seeds that both have."""
    pairs = [ours[seed] - reference[seed] for seed in ours if seed in reference]
    if not pairs:
        return Estimate(float(np.mean(list(ours.values())) - np.mean(list(reference.values()))))
    values = np.asarray(pairs)
    if len(values) < 2:
        return Estimate(float(values.mean()))
    counts = draws(len(values), RESAMPLES, generator("one engine"))
    low, high = percentiles(np.concatenate([often @ values / len(values) for often in counts]))
    return Estimate(float(values.mean()), float(low), float(high))


def same(one: Estimate, other: Estimate) -> bool:
    """Whether two estimates are equal but for rounding."""
    ends = [(each.value, *(each.interval or (None, None))) for each in (one, other)]
    return all(
        a is b if a is None or b is None else bool(np.isclose(a, b, rtol=1e-9, atol=1e-12))
        for a, b in zip(*ends, strict=True)
    )


def main() -> None:
    rows, equal = [], 0
    for number, (ours, reference) in enumerate(cases(), 1):
        report, grid = on_both_pages(ours, reference)
        equal += same(report, grid)
        shown = [_said(each) for each in (before(ours, reference), report, grid)]
        seeds = [fmt.listing([str(seed) for seed in side]) for side in (ours, reference)]
        rows.append("| " + " | ".join([str(number), *seeds, *shown]) + " |")
    files.write_text(PAGE, TEXT.format(rows="\n".join(rows), same=equal))


def _said(estimate: Estimate) -> str:
    return f"{fmt.fixed(estimate.value, 4, signed=True)} {fmt.interval(estimate, 4, signed=True)}".strip()


if __name__ == "__main__":
    main()
