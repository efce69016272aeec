"""Resampling: pairing, coverage, exactness, reproducibility."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from everlearn.evaluation.statistics import (
    bootstrap_ratio,
    draws,
    generator,
    percentiles,
)


def test_draws_count_with_replacement_over_several_chunks():
    parts = list(draws(3000, 2000, generator(0)))
    assert len(parts) > 1
    assert sum(len(part) for part in parts) == 2000
    assert all((part.sum(1) == 3000).all() for part in parts)


def test_ratio_is_what_explicit_resampling_gives():
    rng = np.random.default_rng(0)
    above, below = rng.random((2, 37)), rng.integers(1, 9, (2, 37))
    got = bootstrap_ratio(above, below, seed="x", resamples=50)
    weights = np.concatenate(list(draws(37, 50, generator("bootstrap", "x")))).astype(int)
    for b, row in itertools.product(range(50), range(2)):
        drawn = np.repeat(np.arange(37), weights[b])
        assert got[b, row] == pytest.approx(above[row, drawn].sum() / below[row, drawn].sum(), rel=1e-12)


def test_rows_are_paired_and_seeds_reproduce():
    nats = np.random.default_rng(1).normal(5, 2, 40)
    one = np.ones((2, 40))
    samples = bootstrap_ratio(np.stack([nats, nats + 0.25]), one, seed=3)
    np.testing.assert_allclose(samples[:, 1] - samples[:, 0], 0.25, rtol=1e-9)
    np.testing.assert_array_equal(samples, bootstrap_ratio(np.stack([nats, nats + 0.25]), one, seed=3))
    assert not np.array_equal(samples, bootstrap_ratio(np.stack([nats, nats + 0.25]), one, seed=4))


def test_one_unit_has_no_interval():
    assert np.isnan(bootstrap_ratio([[3.0]], [[2.0]], seed=0, resamples=5)).all()


def test_coverage_of_the_percentile_interval():
    rng = np.random.default_rng(7)
    hits, trials = 0, 200
    for trial in range(trials):
        data = rng.exponential(2.0, 60)
        low, high = percentiles(bootstrap_ratio(data, np.ones(60), seed=trial, resamples=400))
        hits += bool(low[0] <= 2.0 <= high[0])
    assert 0.88 <= hits / trials <= 0.985
