"""Find the threshold of the largest entries of a model exactly, without holding all of them in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

_HALF = 2**16
_CHUNK = 2**24
"""Number of entries counted at once."""


def largest_of(tensors: Callable[[], Iterable[Tensor]], share: float) -> Tensor:
    """Return the absolute value that the `share` of largest entries reach; entries equal to it are included.

    The bits of positive float32 numbers are ordered like the numbers. So counting the upper 16 bits finds the bin of
    the threshold, and counting the lower 16 bits within that bin finds the threshold: two passes, and 2¹⁶ counters.

    Args:
        tensors: returns the tensors, again at each call; entries are read as float32.
        share: in (0, 1].

    Returns:
        A float32 scalar; of N entries at least max(1, round(share · N)) reach it.
    """
    counts = torch.zeros(_HALF, dtype=torch.int64)
    for bits in _bits(tensors()):
        counts += torch.bincount(bits >> 16, minlength=_HALF)
    above = max(1, round(share * int(counts.sum())))
    upper, above = _place(counts, above)
    counts.zero_()
    for bits in _bits(tensors()):
        counts += torch.bincount(bits[bits >> 16 == upper] & (_HALF - 1), minlength=_HALF)
    lower, _ = _place(counts, above)
    return torch.tensor((upper << 16) | lower, dtype=torch.int32).view(torch.float32)


def _bits(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield absolute values as integers in the same order."""
    for tensor in tensors:
        for part in tensor.flatten().split(_CHUNK):
            yield part.abs().float().view(torch.int32).long()


def _place(counts: Tensor, n: int) -> tuple[int, int]:
    """Return the bin of the n-th largest entry, and its rank within the bin."""
    from_above = counts.flip(0).cumsum(0)
    place = int(torch.searchsorted(from_above, n))
    return len(counts) - 1 - place, n - (int(from_above[place - 1]) if place else 0)
