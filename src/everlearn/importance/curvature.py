"""Fisher information in the units of a loss: with it ½ Δᵀ F Δ is how many nats per label are lost.

Its diagonal, and the whole of it in a few directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.importance.labels import labels_of_the_model
from everlearn.importance.moments import Batch, gradient_moment, parameters_to_measure, part_of, rows_of

if TYPE_CHECKING:
    from everlearn.model.objectives import Objective


def label_fisher(
    model: nn.Module,
    batches: Iterable[Batch],
    objective: Objective,
    *seed: object,
    names: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """Diagonal of the Fisher information of one label: F = Σ_n (∂ Σ_t ℓ_nt / ∂θ)² / Σ_n T_n.

    ℓ_nt = −log p(y_nt | x_n) with labels y that the model draws. Given the text the draws are independent, and each has
    an expected gradient of 0, so the cross terms of a row's squared sum vanish in expectation: what is left is the
    Fisher information of all its labels, T_n times that of one. It is the curvature of the mean loss per label where
    the model's predictions are right (arXiv 1412.1193), so a step Δ from there costs ½ Σ_i F_i Δ_i² nats per label, as
    far as weights matter one by one.

    :func:`everlearn.importance.fisher` on a row's *mean* loss, which EWC takes, is T times smaller, of rows of T
    labels: its λ = T weighs a label of old text as one of new text.

    Args:
        model: at the weights to measure.
        batches: dicts of tensors with one row per sample.
        objective: says where the labels are and how the model is asked.
        seed: of the labels (:func:`labels_of_the_model`).
        names: parameters to measure; None for all that are trainable.

    Returns:
        Parameter name to F, float32, of the parameter's shape.

    Raises:
        MethodError: a name is not a trainable parameter, there is no batch, or a gradient is not finite.
    """
    rows = labels = 0

    def counted() -> Iterator[Batch]:
        nonlocal rows, labels
        for batch in labels_of_the_model(model, batches, objective, *seed):
            rows, labels = rows + rows_of(batch), labels + int(objective.items(batch).sum())
            yield batch

    def of_a_row(model: nn.Module, batch: Batch) -> Tensor:
        return objective.forward(model, batch).losses.sum(1)

    mean = gradient_moment(model, counted(), of_a_row, names)
    return {name: value.mul_(rows / max(labels, 1)) for name, value in mean.items()}


def label_directions(
    model: nn.Module,
    batches: Iterable[Batch],
    objective: Objective,
    *seed: object,
    rank: int,
    rows: int,
    names: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """G of K rows with E[Gᵀ G] = F, the *whole* Fisher information of one label: ‖G Δ‖² estimates Δᵀ F Δ.

        g_j = Σ_{n in pile j} Σ_t ∂ℓ_nt/∂θ / √(Σ_n T_n)

    for K piles of rows, with ℓ and labels as in :func:`label_fisher`. What vanishes there between the labels of a row,
    because draws are independent and their gradients expected to be 0, vanishes between the rows of a pile, too: one
    backward pass for many rows is one direction, and all rows are in (Sophia squares such a gradient element by
    element, arXiv 2305.14342, eq. 13; here it stays a vector, and weights that move together are seen to). Of a Δ
    that does not follow the draws the estimate is unbiased, with a relative standard error of √(2/K), that of a χ².

    Args:
        model: at the weights to measure.
        batches: dicts of tensors with one row per sample.
        objective: says where the labels are and how the model is asked.
        seed: of the labels.
        rank: K.
        rows: how many the batches have, K at least, so that piles are equally high; where there are fewer after all,
            the last directions are 0, and the error larger.
        names: parameters to measure; None for all that are trainable.

    Returns:
        Parameter name to G, bfloat16, K times the shape of the parameter.

    Raises:
        MethodError: a name is not a trainable parameter, there is no batch, or a gradient is not finite.
    """
    chosen = parameters_to_measure(model, names)
    found = {name: value.new_zeros((rank, *value.shape), dtype=torch.bfloat16) for name, value in chosen.items()}
    pile = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in chosen.items()}
    read = labels = 0
    for batch in labels_of_the_model(model, batches, objective, *seed):
        start, height = 0, rows_of(batch)
        while start < height:
            number = read * rank // rows  # of the pile, which ends where the next one begins
            end = -(-(number + 1) * rows // rank)
            stop = min(height, start + end - read)
            part = part_of(batch, start, stop)
            with torch.enable_grad(), torch.autocast(next(model.parameters()).device.type, enabled=False):
                loss = objective.forward(model, part).losses.sum()
                gradients = torch.autograd.grad(loss, list(chosen.values()), allow_unused=True)
            for (name, total), gradient in zip(pile.items(), gradients, strict=True):
                if gradient is not None:
                    total.add_(gradient)
                found[name][number] = total
            labels += int(objective.items(part).sum())
            read, start = read + stop - start, stop
            if read == end:
                for total in pile.values():
                    total.zero_()
    if not read:
        raise MethodError("Fisher information cannot be measured without data: there was no batch.")
    for name, value in found.items():
        value.div_(max(labels, 1) ** 0.5)
        if not torch.isfinite(value).all():
            raise MethodError(f"Fisher information of '{name}' is not finite: the model's loss overflows.")
    return found
