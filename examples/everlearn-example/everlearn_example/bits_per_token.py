"""Bits per token of held-out text."""

import numpy as np

from everlearn.evaluation import Cell, Metric, register_metric


def nats_and_tokens(cell: Cell) -> np.ndarray:
    """Return what is summed over the examples of a cell, [repeats, 2, examples]."""
    return np.stack([cell["nats"], cell["items"].astype(np.float64)])[None]


def bits_per_token(sums: np.ndarray, cell: Cell) -> np.ndarray:
    """Return the score of sums, [..., repeats, 2] → [..., repeats]."""
    return sums[..., 0] / sums[..., 1] / np.log(2)


register_metric(
    Metric(
        name="bits_per_token",
        title="Bits per token",
        unit="bits/token",
        higher_is_better=False,
        reads=("nats", "items"),
        terms=nats_and_tokens,
        value=bits_per_token,
    )
)
