"""Scores of units: normalised, ranked and accumulated."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from everlearn.errors import MethodError
from everlearn.importance import (
    accumulate,
    normalise,
)

scores = hnp.arrays("float32", st.integers(1, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32))


@given(scores, st.sampled_from(["tanh_abs", "relu_tanh", "rank"]))
@settings(max_examples=150, deadline=None)
def test_normalised_scores_are_in_range(values, how):
    found = normalise({"site": torch.from_numpy(values)}, how)["site"]
    assert found.dtype == torch.float32
    assert found.shape == values.shape
    assert torch.isfinite(found).all()
    assert (found >= 0).all()
    assert (found < 1).all()
    if values.size == 1 or (values == values[0]).all():
        assert not found.any()


@given(hnp.arrays("float64", 12, elements=st.floats(0, 1).map(lambda x: round(x, 3))), st.floats(0.1, 1e6))
@settings(max_examples=50, deadline=None)
def test_normalising_ignores_scale_and_follows_the_equation(values, scale):
    tensor = torch.from_numpy(values)
    found = normalise({"site": tensor})["site"]
    torch.testing.assert_close(normalise({"site": tensor * scale})["site"], found)
    if tensor.std() > 0:
        z = (tensor - tensor.mean()) / tensor.std()
        torch.testing.assert_close(found.double(), z.tanh().abs(), rtol=1e-5, atol=1e-6)
        above = normalise({"site": tensor}, "relu_tanh")["site"]
        torch.testing.assert_close(above, torch.where(z > 0, found, 0.0), rtol=1e-5, atol=1e-6)


def test_ranks_are_the_share_of_less_important_units():
    found = normalise({"site": torch.tensor([3.0, -1.0, 7.0, 3.0])}, "rank")["site"]
    assert found.tolist() == [0.375, 0.0, 0.75, 0.375]


@given(st.lists(hnp.arrays("float32", 6, elements=st.floats(0, 1, width=32)), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_accumulation_is_the_maximum_and_never_forgets(maps):
    tensors = [{"site": torch.from_numpy(values)} for values in maps]
    total = accumulate(tensors)["site"]
    assert torch.equal(total, torch.stack([m["site"] for m in tensors]).amax(0))
    assert (total >= accumulate(tensors[:-1] or tensors)["site"]).all()
    assert torch.equal(accumulate(reversed(tensors))["site"], total)


def test_scores_that_cannot_be_used_are_refused():
    with pytest.raises(MethodError, match="not finite"):
        normalise({"site": torch.tensor([1.0, float("nan")])})
    with pytest.raises(MethodError, match="one has 'b', another has not"):
        accumulate([{"a": torch.ones(2)}, {"a": torch.ones(2), "b": torch.ones(2)}])
    with pytest.raises(MethodError, match="'a' has"):
        accumulate([{"a": torch.ones(2)}, {"a": torch.ones(3)}])
    assert accumulate([]) == {}
