"""Sums over samples of squared per-sample gradients, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from everlearn.importance.per_sample import Event, PerSample
from everlearn.model.modes import evaluating

Batch = Mapping[str, Tensor]
PerSampleLoss = Callable[[nn.Module, Batch], Tensor]
ELEMENTS_AT_ONCE = {"cpu": 2**18}
"""Numbers of per-sample gradients held at once: 1 MiB on a CPU, about a core's own cache, so that they are squared
before they leave it; elsewhere 256 MiB."""


@dataclass
class Squares:
    """Adds Σ_n g_n² to totals, float32, by parameter name; a sink of :class:`PerSample`."""

    totals: dict[str, Tensor]

    def products(self, name: str, left: Tensor, right: Tensor) -> None:
        add_squared_products(self.totals[name], left, right)

    def whole(self, name: str, gradients: Tensor) -> None:
        self.totals[name].add_(gradients.float().square().sum(0))

    def rows(self, name: str, index: Tensor, gradients: Tensor, products: Tensor | None) -> None:
        # (p + g)² of which p² is in the total.
        squares = gradients.square() if products is None else gradients * (gradients + 2 * products)
        self.totals[name].index_add_(0, index, squares)


def add_squared_products(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += Σ_n (Σ_s left_ns ⊗ right_ns)², exactly and element by element.

    The product of a sample takes as many operations as its part of the ordinary gradient; the squares are added where
    it was written, a cache's worth at a time. With one position the square is a product of squares.

    Args:
        total: [o, i] float32.
        left: [B, m, o], of any floating type.
        right: [B, m, i].
    """
    samples, positions, height = left.shape
    width = right.shape[2]
    if positions == 1:
        total.addmm_(left[:, 0].float().square().T, right[:, 0].float().square())
        return
    limit = ELEMENTS_AT_ONCE.get(left.device.type, 2**26)
    block = max(1, min(height, limit // width))
    together = max(1, limit // (block * width))
    left, right = left.float(), right.float()
    buffer = torch.empty(block, width, device=left.device) if together == 1 else None
    for top in range(0, height, block):
        part = total[top : top + block]
        if buffer is not None:
            product = buffer[: len(part)]
            for sample in range(samples):
                torch.mm(left[sample, :, top : top + block].T, right[sample], out=product)
                part.addcmul_(product, product)
        else:
            for some in range(0, samples, together):
                each = slice(some, some + together)
                part.add_(torch.bmm(left[each, :, top : top + block].mT, right[each]).square_().sum(0))


def add_squared_gradients(
    model: nn.Module, batch: Batch, loss: PerSampleLoss, totals: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
) -> None:
    """totals += Σ_n g_n², with a backward pass for every sample: the definition, for any model and loss."""
    for row in range(rows_of(batch)):
        add_square(model, part_of(batch, row, row + 1), loss, totals, parameters)


def add_square(
    model: nn.Module,
    batch: Batch,
    loss: PerSampleLoss,
    totals: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    weight: float = 1,
) -> None:
    """totals += weight · g², with g the gradient of the batch's mean loss."""
    names = list(parameters)
    if not names:
        return
    mean = loss(model, batch).mean()
    gradients = torch.autograd.grad(mean, [parameters[name] for name in names], allow_unused=True)
    for name, gradient in zip(names, gradients, strict=True):
        if gradient is not None:
            totals[name].add_(gradient.float().square(), alpha=weight)


@dataclass
class BatchedSquares:
    """Σ_n g_n² with one forward and one backward pass for a batch, and sample by sample where that cannot be.

    What :class:`PerSample` concludes is tried on the first two samples, beside a backward pass for each: a parameter
    whose squares differ there, or that is used in a way that is not known, is measured sample by sample. Later batches
    must use the others as these two did; one that does not (a head that is projected in chunks, say) is halved until
    it does.

    Args:
        model: the model.
        parameters: what to measure, by name.
        loss: (model, batch) to one loss per row, [B].
        totals: float32, by name; added to.

    Attributes:
        alone: parameters that are measured sample by sample; known after the first batch of two rows.
    """

    model: nn.Module
    parameters: Mapping[str, Tensor]
    loss: PerSampleLoss
    totals: dict[str, Tensor]
    alone: frozenset[str] = frozenset()
    _plan: list[Event] | None = field(default=None, init=False)
    _most: int = field(default=0, init=False)

    def add(self, batch: Batch) -> None:
        """Add the squares of a batch's samples."""
        rows = rows_of(batch)
        if any(getattr(module, "gradient_checkpointing", False) is True for module in self.model.modules()):
            self._most = 1  # memory is scarce: as much as a single sample takes
        elif rows > 1 and self._plan is None:
            with evaluating(self.model):
                self._try(part_of(batch, 0, 2))
        self._most = self._most or rows
        start = 0
        while start < rows:
            part = part_of(batch, start, start + self._most)
            if self._most == 1 or rows_of(part) == 1 or len(self.alone) == len(self.parameters):
                add_squared_gradients(self.model, part, self.loss, self.totals, self.parameters)
            elif self._together(part):
                few = {name: self.parameters[name] for name in self.alone}
                add_squared_gradients(self.model, part, self.loss, self.totals, few)
            else:
                self._most = (rows_of(part) + 1) // 2
                continue
            start += rows_of(part)

    def _together(self, batch: Batch) -> bool:
        watched = {name: value for name, value in self.parameters.items() if name not in self.alone}
        with PerSample(watched, rows_of(batch), Squares(self.totals), self._plan) as seen:
            losses = self.loss(self.model, batch)
            if seen.undivided or seen.unknown or seen.events != self._plan:
                return False
            seen.backward(losses.sum())
        return True

    def _try(self, batch: Batch) -> None:
        found, exact = ({n: torch.zeros_like(t) for n, t in self.totals.items()} for _ in range(2))
        add_squared_gradients(self.model, batch, self.loss, exact, self.parameters)
        with PerSample(self.parameters, rows_of(batch), Squares(found)) as seen:
            losses = self.loss(self.model, batch)
            if seen.undivided:
                self._most, self._plan = 1, []
                return
            seen.backward(losses.sum())
        self.alone = frozenset(seen.unknown) | differing(found, exact, self.parameters)
        self._plan = [event for event in seen.events if event[0] not in self.alone]


def differing(
    found: Mapping[str, Tensor], exact: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
) -> frozenset[str]:
    """Names under which two measurements of squares differ by more than rounding explains.

    Gradients that should be 0 (those of a key's bias) are noise of the size of the type's precision.
    """
    largest = max((float(value.max()) for value in exact.values()), default=0.0)
    names = set()
    for name, value in exact.items():
        precision = torch.finfo(parameters[name].dtype).eps
        noise = 1e4 * precision**2 * largest * value.numel() ** 0.5
        if not float((found[name] - value).norm()) <= max(1e-3, 16 * precision) * float(value.norm()) + noise:
            names.add(name)
    return frozenset(names)


def rows_of(batch: Batch) -> int:
    """Samples of a batch."""
    return len(next(iter(batch.values())))


def part_of(batch: Batch, start: int, stop: int) -> dict[str, Tensor]:
    """Some samples of a batch."""
    return {name: value[start:stop] for name, value in batch.items()}
