"""Element-wise sums over samples of |gₙ|ᵖ, where gₙ is the gradient of sample n's loss, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Literal

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError, did_you_mean
from everlearn.importance.divided import divided_sums
from everlearn.importance.per_sample import Event, PerSample
from everlearn.model.sharding import full_tensor, is_divided
from everlearn.model.training_mode import evaluating

Batch = Mapping[str, Tensor]
PerSampleLoss = Callable[[nn.Module, Batch], Tensor]
Power = Literal[1, 2]
ELEMENTS_AT_ONCE = {"cpu": 2**18}
"""Entries of per-sample gradients held at once: 1 MiB on a CPU, so that they stay in a core's cache until their powers
are computed; elsewhere 256 MiB."""
MOST_NOISE = 1e-3
"""Tolerated difference between two passes for a gradient that is only rounding noise, as a share of the largest
gradient."""


def gradient_moment(
    model: nn.Module,
    batches: Iterable[Batch],
    per_sample_loss: PerSampleLoss,
    names: Sequence[str] | None = None,
    *,
    power: Power = 2,
    batch_means: bool = False,
    constant: Mapping[str, Tensor] | None = None,
    called: str = "Fisher information",
) -> dict[str, Tensor]:
    """Return (1/N) Σ_n |gₙ|ᵖ for every parameter: the Fisher information's diagonal (p = 2) or the mean |gₙ|.

    The squared gradient of the mean loss of a batch of B rows would be about B times too small, because independent
    gradients cancel in it. Here the gradient of every sample is squared separately, with one forward and one backward
    pass per batch (:mod:`everlearn.importance.per_sample`). The first two samples are also measured one by one;
    parameters for which the results differ, or that are used in an unknown operation, get a backward pass for each
    sample.

    With the labels of the data it is the empirical Fisher information. For the true one, pass batches whose labels are
    sampled from the model (:func:`everlearn.importance.labels_of_the_model`).

    Args:
        model: the model, at the weights to measure; its mode is kept, autocast is off, ``.grad`` is not touched. If
            FSDP2 has divided it, every process must call this with the same batches, and the loss may depend on its
            weights only through its output, apart from `constant`.
        batches: dicts of tensors with one row per sample.
        per_sample_loss: function of (model, batch) that returns one loss per row, [B]; the loss of a row must depend on
            that row alone.
        names: parameters to measure; None for all that are trainable.
        power: p: 2 for the Fisher information (EWC), 1 for the mean absolute gradient (MAS).
        batch_means: use the gradients of the mean losses of batches instead, (1/batches) Σ_b |b|ᵖ⁻¹ |g_b|ᵖ, like code
            without per-sample gradients (the DAS authors' EWC).
        constant: gradients, by name and laid out like the parameters, of a term of the loss that depends on nothing but
            the weights; they are added to each gₙ.
        called: name of the quantity, for error messages.

    Returns:
        Moments by parameter name, float32, of the parameter's shape; of a divided model they are divided like it.

    Raises:
        MethodError: a name is not a trainable parameter, there is no batch, or a gradient is not finite.
    """
    chosen = parameters_to_measure(model, names)
    sums = _divided if is_divided(model) else _together
    with torch.enable_grad(), torch.autocast(next(model.parameters()).device.type, enabled=False):
        totals, count = sums(model, chosen, batches, per_sample_loss, power, batch_means, constant or {})
    if not count:
        raise MethodError(f"{called} cannot be measured without data: there was no batch.")
    for name, total in totals.items():
        # Rounding may leave a small negative value where terms were added and subtracted.
        total.div_(count).clamp_(min=0)
        if not torch.isfinite(full_tensor(total.sum(dtype=torch.float64))):
            raise MethodError(f"{called} of '{name}' is not finite: the model's loss overflows.")
    return totals


def _together(
    model: nn.Module,
    chosen: Mapping[str, nn.Parameter],
    batches: Iterable[Batch],
    per_sample_loss: PerSampleLoss,
    power: Power,
    batch_means: bool,
    constant: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], int]:
    """Return the sums over the samples of a batch at a time, and the number of terms."""
    totals = {name: torch.zeros_like(parameter, dtype=torch.float32) for name, parameter in chosen.items()}
    batched = BatchedSums(model, chosen, per_sample_loss, totals, power, constant)
    count = 0
    for batch in batches:
        rows = rows_of(batch)
        if batch_means:
            for name, part in batched.of_mean(batch):
                totals[name].add_(part, alpha=rows ** (power - 1))
        else:
            batched.add(batch)
        count += 1 if batch_means else rows
    return totals, count


def _divided(
    model: nn.Module,
    chosen: Mapping[str, nn.Parameter],
    batches: Iterable[Batch],
    per_sample_loss: PerSampleLoss,
    power: Power,
    batch_means: bool,
    constant: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], int]:
    """Return the sums over samples, divided over the processes, and the number of terms."""
    count = 0

    def terms() -> Iterator[tuple[Batch, float]]:
        nonlocal count
        for batch in batches:
            rows = rows_of(batch)
            each = rows if batch_means else 1
            for start in range(0, rows, each):
                count += 1
                yield part_of(batch, start, start + each), each ** (power - 1)

    def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
        return per_sample_loss(model, batch).mean()

    return divided_sums(model, chosen, terms(), mean_loss, partial(raised, power=power), constant), count


@dataclass
class Sums:
    """A sink of :class:`PerSample` that adds Σ_n |gₙ|ᵖ to float32 totals by parameter name."""

    totals: dict[str, Tensor]
    power: Power

    def products(self, name: str, left: Tensor, right: Tensor) -> None:
        add_products(self.totals[name], left, right, self.power)

    def samples(self, name: str, gradients: Tensor) -> None:
        self.totals[name].add_(raised(gradients, self.power).sum(0))

    def rows(self, name: str, index: Tensor, gradients: Tensor, products: Tensor | None) -> None:
        if products is None:
            more = raised(gradients, self.power)
        elif self.power == 2:
            more = gradients * (gradients + 2 * products)  # (q + g)² − q²
        else:
            more = (products + gradients).abs() - products.abs()
        self.totals[name].index_add_(0, index, more)


def add_products(total: Tensor, left: Tensor, right: Tensor, power: Power) -> None:
    """Add Σ_n |Σ_s left_ns ⊗ right_ns|ᵖ to `total` in place, exactly and element by element.

    This takes as many operations as the ordinary gradient; the powers are added to the total in cache-sized parts. With
    one position the power is a product of powers.

    Args:
        total: [o, i] float32.
        left: [B, m, o], of any floating type.
        right: [B, m, i].
        power: p.
    """
    samples, positions, height = left.shape
    width = right.shape[2]
    if positions == 1:
        total.addmm_(raised(left[:, 0], power).T, raised(right[:, 0], power))
        return
    limit = ELEMENTS_AT_ONCE.get(left.device.type, 2**26)
    block = max(1, min(height, limit // width))
    together = max(1, limit // (block * width))
    left, right = left.float(), right.float()
    # A few large products are computed one by one in the same buffer, many small ones together.
    buffer = torch.empty(block, width, device=left.device) if together < 8 else None
    for top in range(0, height, block):
        part = total[top : top + block]
        if buffer is not None:
            product = buffer[: len(part)]
            for sample in range(samples):
                torch.mm(left[sample, :, top : top + block].T, right[sample], out=product)
                if power == 2:
                    part.addcmul_(product, product)
                else:
                    part.add_(product.abs_())
        else:
            for some in range(0, samples, together):
                each = slice(some, some + together)
                product = torch.bmm(left[each, :, top : top + block].mT, right[each])
                part.add_((product.square_() if power == 2 else product.abs_()).sum(0))


def raised(gradients: Tensor, power: Power) -> Tensor:
    """Return |g|ᵖ in float32."""
    return gradients.float().square() if power == 2 else gradients.float().abs()


@dataclass
class BatchedSums:
    """Accumulate Σ_n |gₙ|ᵖ with one forward and one backward pass per batch, or per sample where that is impossible.

    The result of :class:`PerSample` is verified on the first two samples with a backward pass for each: a parameter for
    which they differ, or that is used in an unknown operation, is measured sample by sample. Later batches must use the
    other parameters in the same way; a batch that does not (for example because its head is projected in chunks) is
    halved until it does. Under gradient checkpointing every sample is measured separately, to save memory.

    Args:
        model: the model.
        parameters: parameters to measure, by name.
        loss: function of (model, batch) that returns one loss per row, [B].
        totals: float32, by name; added to in place.
        power: p.
        constant: gradients that are added to those of each sample, by name. With any, all parameters are measured
            sample by sample.

    Attributes:
        alone: parameters that are measured sample by sample; determined by the first batch of two rows or more.
        most: largest number of samples that are measured together; 0 for all of a batch.
    """

    model: nn.Module
    parameters: Mapping[str, Tensor]
    loss: PerSampleLoss
    totals: dict[str, Tensor]
    power: Power = 2
    constant: Mapping[str, Tensor] = field(default_factory=dict)
    alone: frozenset[str] = field(default=frozenset(), init=False)
    most: int = field(default=0, init=False)
    _plan: list[Event] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.constant:
            self.alone, self._plan = frozenset(self.parameters), []

    def add(self, batch: Batch) -> None:
        """Add the samples of a batch."""
        if not self.parameters:
            return
        rows = rows_of(batch)
        if any(getattr(module, "gradient_checkpointing", False) is True for module in self.model.modules()):
            self.most = 1
        elif rows > 1 and self._plan is None:
            with evaluating(self.model):
                self._try(part_of(batch, 0, 2))
        start = 0
        while start < rows:
            part = part_of(batch, start, start + (self.most or rows))
            if rows_of(part) == 1 or len(self.alone) == len(self.parameters):
                self._one_by_one(part, self.parameters)
            elif self._together(part):
                self._one_by_one(part, {name: self.parameters[name] for name in self.alone})
            else:
                self.most = (rows_of(part) + 1) // 2
                continue
            start += rows_of(part)

    def of_mean(self, batch: Batch, parameters: Mapping[str, Tensor] | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield |g|ᵖ of the gradient of the batch's mean loss by name, computed by autograd for any model and loss.

        One parameter after the other, so that no second copy of all gradients is in memory.
        """
        chosen = self.parameters if parameters is None else parameters
        mean = self.loss(self.model, batch).mean()
        gradients = list(torch.autograd.grad(mean, list(chosen.values()), allow_unused=True))
        for name in reversed(list(chosen)):
            parts = [part for part in (gradients.pop(), self.constant.get(name)) if part is not None]
            if parts:
                yield name, raised(reduce(torch.add, parts), self.power)

    def _one_by_one(self, batch: Batch, parameters: Mapping[str, Tensor]) -> None:
        for row in range(rows_of(batch) if parameters else 0):
            for name, part in self.of_mean(part_of(batch, row, row + 1), parameters):
                self.totals[name].add_(part)

    def _together(self, batch: Batch) -> bool:
        watched = {name: value for name, value in self.parameters.items() if name not in self.alone}
        with PerSample(watched, rows_of(batch), Sums(self.totals, self.power), self._plan) as seen:
            losses = self.loss(self.model, batch)
            if seen.undivided or seen.unknown or seen.events != self._plan:
                return False
            seen.backward(losses.sum())
        return True

    def _try(self, batch: Batch) -> None:
        """Verify the method on two samples; record the expected events, and the parameters with other results."""
        untouched = not any(bool(total.any()) for total in self.totals.values())
        apart = self.totals if untouched else {name: torch.zeros_like(total) for name, total in self.totals.items()}
        try:
            self._compare(batch, apart)
        finally:
            if untouched:  # they were used as the buffer, to avoid a second copy
                for total in self.totals.values():
                    total.zero_()

    def _compare(self, batch: Batch, apart: dict[str, Tensor]) -> None:
        """Compare per-sample gradients with those of autograd; `apart` holds zeros that are overwritten."""
        with PerSample(self.parameters, rows_of(batch), Sums(apart, self.power)) as seen:
            losses = self.loss(self.model, batch)
            if seen.undivided:
                self.most, self._plan = 1, []
                return
            seen.backward(losses.sum())
        del losses
        size, largest = dict.fromkeys(apart, 0.0), 0.0
        for row in range(rows_of(batch)):
            for name, part in self.of_mean(part_of(batch, row, row + 1)):
                apart[name].sub_(part)
                size[name] += float(part.norm())
                largest = max(largest, float(part.max()))
        differing = set()
        for name, difference in apart.items():
            precision = torch.finfo(self.parameters[name].dtype).eps
            # A gradient that should be 0 (of a key's bias) is noise at the precision of the type. In 16 bits, a hundred
            # times this precision would be as large as true gradients, hence the limit.
            noise = min(1e2 * precision, MOST_NOISE) ** self.power * largest * difference.numel() ** 0.5
            if not float(difference.norm()) <= max(1e-3, 16 * precision) * size[name] + noise:
                differing.add(name)
        self.alone = frozenset(seen.unknown | differing)
        self._plan = [event for event in seen.events if event[0] not in self.alone]


def parameters_to_measure(model: nn.Module, names: Sequence[str] | None) -> dict[str, nn.Parameter]:
    """Return the trainable parameters with these names, or all.

    Raises:
        MethodError: a name is not a trainable parameter.
    """
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name in names or ():
        if name not in trainable:
            raise MethodError(f"The model has no trainable parameter '{name}'.{did_you_mean(name, trainable)}")
    return trainable if names is None else {name: trainable[name] for name in names}


def rows_of(batch: Batch) -> int:
    """Return the number of samples of a batch."""
    return len(next(iter(batch.values())))


def part_of(batch: Batch, start: int, stop: int) -> dict[str, Tensor]:
    """Return the samples of a batch from `start` to `stop`."""
    return {name: value[start:stop] for name, value in batch.items()}
