"""The in-place cross-entropy against float64 arithmetic written out, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everlearn.model import cross_entropy as module
from everlearn.model.cross_entropy import cross_entropy

IGNORE = -100


def reference(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Losses and the gradient of their weighted sum, in float64."""
    z = logits.astype(np.float64)
    z = z - z.max(1, keepdims=True)
    softmax = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    counted = labels != IGNORE
    rows, at = np.arange(len(labels)), np.where(counted, labels, 0)
    losses = np.where(counted, np.log(np.exp(z).sum(1)) - z[rows, at], 0.0)
    gradient = softmax.copy()
    gradient[rows, at] -= 1
    return losses, gradient * (weights * counted)[:, None]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 50),
    scale=st.sampled_from([0.0, 1.0, 30.0, 1e4]),
    ignored=st.floats(0, 1),
    at_once=st.sampled_from([1, 64, 2**18]),
    seed=st.integers(0, 99),
)
def test_losses_and_gradient_are_those_of_the_definition(
    rows: int, width: int, scale: float, ignored: float, at_once: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    logits = (scale * generator.standard_normal((rows, width))).astype(np.float32)
    labels = np.where(generator.random(rows) < ignored, IGNORE, generator.integers(0, width, rows))
    weights = generator.standard_normal(rows).astype(np.float32)
    losses, gradient = reference(logits, labels, weights)
    leaf = torch.from_numpy(logits.copy()).requires_grad_()
    before, module.VALUES_AT_ONCE = module.VALUES_AT_ONCE, at_once
    try:
        got = cross_entropy(leaf * 1, torch.from_numpy(labels), IGNORE)
        (got * torch.from_numpy(weights)).sum().backward()
    finally:
        module.VALUES_AT_ONCE = before
    # The size of the logits bounds the rounding of their differences.
    np.testing.assert_allclose(got.detach().numpy(), losses, rtol=1e-5, atol=1e-6 * (1 + scale))
    np.testing.assert_allclose(leaf.grad.numpy(), gradient, rtol=1e-4, atol=1e-6 * (1 + scale))
    assert (got.detach().numpy()[labels == IGNORE] == 0).all()
    assert (leaf.grad.numpy()[labels == IGNORE] == 0).all()


def test_a_second_backward_pass_is_refused_instead_of_wrong() -> None:
    leaf = torch.randn(3, 7, requires_grad=True)
    loss = cross_entropy(leaf * 1, torch.tensor([1, 2, IGNORE]), IGNORE).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


def test_not_finite_logits_give_a_loss_that_is_not_finite() -> None:
    logits = torch.zeros(2, 5, requires_grad=True)
    losses = cross_entropy(logits * torch.tensor([[float("nan")], [1.0]]), torch.tensor([0, 1]), IGNORE)
    assert torch.isnan(losses[0])
    assert torch.isfinite(losses[1])
