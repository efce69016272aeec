"""The causal study's measures against matrices that are worked out by hand, and its two controls of saturation."""

from __future__ import annotations

import numpy as np
import pytest

from everlearn_bench.transfer_study.measures import StreamLosses
from everlearn_bench.transfer_study.saturation import forgotten, saturation

LOSSES = [[4.0, 5.0, 6.0], [3.0, 4.8, 6.1], [3.2, 4.0, 5.5], [3.7, 4.1, 5.0]]
"""Base model, then after a, b and c; columns a, b, c."""
DOMAINS = ("a", "b", "c")


def stream(losses=LOSSES, missing=(), columns=(*DOMAINS, "general"), **options) -> StreamLosses:
    scores = {(i, name): losses[i][j] for i in range(4) for j, name in enumerate(DOMAINS) if (i, j) not in missing}
    return StreamLosses.of(["base", *DOMAINS], columns, scores | {(0, "general"): 9.0}, **options)


def test_each_measure_by_hand():
    found = stream(alone={"a": 2.9, "c": 5.2}).each()
    assert found["dapt"] == pytest.approx({"a": 4.0 - 2.9, "c": 6.0 - 5.2})
    assert found["continual"] == pytest.approx({"a": 1.0, "b": 1.0, "c": 1.0})
    assert found["continual_over_dapt"] == pytest.approx({"a": 2.9 - 3.0, "c": 5.2 - 5.0})
    assert found["lc"] == pytest.approx({"a": 0.3, "b": 0.9, "c": 1.0})
    assert found["fg"] == pytest.approx({"a": 0.7, "b": 0.1})
    assert found["fg_max"] == pytest.approx({"a": 0.7, "b": 0.1})
    assert found["backward"] == pytest.approx({"a": (0.8 + 0.3) / 2, "b": 0.9})
    assert found["backward_own"] == pytest.approx({"a": (-0.2 - 0.7) / 2, "b": -0.1})
    # θ_0 itself is no checkpoint of the stream: before a there is none.
    assert found["forward"] == pytest.approx({"b": 0.2, "c": (-0.1 + 0.5) / 2})


def test_the_max_form_counts_from_the_best_checkpoint_since():
    helped = [LOSSES[0], LOSSES[1], [2.5, 4.0, 5.5], LOSSES[3]]
    assert stream(helped).each()["fg_max"]["a"] == pytest.approx(3.7 - 2.5)
    assert stream(helped).each()["fg"]["a"] == pytest.approx(0.7)


def test_mean_and_median_of_all_and_of_each_super_domain():
    found = stream(groups={"a": "wiki", "b": "papers", "c": "papers"}).spread()
    assert list(found["lc"]) == ["all", "wiki", "papers"]
    assert (found["lc"]["all"].mean, found["lc"]["all"].median) == pytest.approx(((0.3 + 0.9 + 1.0) / 3, 0.9))
    assert (found["lc"]["papers"].mean, found["lc"]["papers"].domains) == (pytest.approx(0.95), 2)
    assert list(found["forward"]) == ["all", "papers"]
    assert "dapt" not in found


def test_what_was_not_measured_is_absent():
    """`evaluation.columns: own`: the base model, each domain's own stage, and the end."""
    found = stream(missing={(1, 1), (1, 2), (2, 0), (2, 2)}).each()
    assert "forward" not in found
    assert found["backward"] == pytest.approx({"a": 0.3, "b": 0.9})


def test_a_domain_without_held_out_text_keeps_its_place_in_the_stream():
    found = stream(columns=["a", "c"])
    assert found.stages == (1, 3)
    assert found.each()["continual"] == pytest.approx({"a": 1.0, "c": 1.0})


def made(order: list[int], late: float, hard: float = 0.0) -> StreamLosses:
    """Forgetting = 0.1 · gap, more by `late` for the checkpoints of the second half, and by `hard` · domain."""
    last = len(order)
    losses = np.zeros((last + 1, last))
    for column, domain in enumerate(order):
        for row in range(column + 2, last + 1):
            losses[row, column] = 0.1 * (row - column - 1) + late * (row > (last + 2) / 2) + hard * domain
    names = tuple(f"d{domain}" for domain in order)
    return StreamLosses(names, tuple(range(1, last + 1)), losses, np.full(last, np.nan), {})


def test_buckets_are_compared_at_equal_gap():
    """The plain means differ even where later checkpoints forget no more; at equal gap they do not."""
    none = saturation([made([*range(12)], late=0.0)], buckets=2)
    assert [(bucket.first, bucket.last) for bucket in none.buckets] == [(2, 7), (8, 12)]
    assert none.buckets[0].gaps == pytest.approx({gap: 0.1 * gap for gap in range(1, 7)})
    assert none.buckets[0].mean == pytest.approx(0.1 * sum(g * (7 - g) for g in range(1, 7)) / 21)
    assert none.buckets[1].mean > 1.8 * none.buckets[0].mean
    assert none.later == pytest.approx((0.0,))
    assert none.adjusted == pytest.approx((0.0,))
    more = saturation([made([*range(12)], late=0.3)], buckets=2)
    assert more.later == pytest.approx((0.3,))
    assert more.adjusted == pytest.approx((0.3,))


def test_several_orders_take_the_domain_out():
    """Domains that are easier to forget stand late in one order: only other orders can tell that it was they."""
    forward = [*range(12)]
    one = saturation([made(forward, late=0.0, hard=0.05)], buckets=2)
    assert one.later[0] > 0.1
    several = saturation([made(order, 0.2, 0.05) for order in (forward, forward[::-1], forward[6:] + forward[:6])], 2)
    assert several.orders == 3
    assert several.adjusted == pytest.approx((0.2,))


def test_short_streams_have_no_buckets_and_pairs_that_were_not_measured_do_not_count():
    assert saturation([made([*range(8)], 0.1)]) is None
    long = made([*range(12)], 0.3)
    assert np.isnan(forgotten(long)[3, 2:]).all()
    own = np.where(np.tril(np.ones((13, 12)), -2) * (np.arange(13)[:, None] < 12) > 0, np.nan, long.losses)
    found = saturation([StreamLosses(long.domains, long.stages, own, long.alone, {})], buckets=2)
    assert found.buckets[0].mean is None
    assert found.later == (None,)
