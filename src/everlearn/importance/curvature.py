"""Fisher information per label, scaled so that ½ Δᵀ F Δ estimates an increase in loss in nats per label.

Its diagonal, a low-rank estimate of the full matrix, and the sampled labels that both need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.importance.gradient_moments import Batch, gradient_moment, parameters_to_measure, part_of, rows_of
from everlearn.model.objectives import Objective
from everlearn.seeding import seed_for


def labels_of_the_model(
    model: nn.Module, batches: Iterable[Batch], objective: Objective, *seed: object
) -> Iterator[dict[str, Tensor]]:
    """Yield the batches with labels sampled from the predictions of the model, for :func:`gradient_moment`.

    The true Fisher information is E_x E_{y ~ p(·|x)} [(∂ log p(y|x)/∂θ)²], estimated with one sample of y for every
    text x of the data. Each label is sampled given the text of the data: the tokens before it (causal), around it
    (masked), or the prompt and the answer so far (text-to-text). This costs one additional forward pass.

    Args:
        model: the model, in the mode in which it predicts.
        batches: batches from the objective's `collate`.
        objective: locates the labels and runs the model.
        seed: parts of the seed; row k of all batches samples from (seed, k), independently of the batch size.
    """
    row = 0
    for batch in batches:
        rows, width = batch["labels"].shape
        seeds = [seed_for(*seed, "labels", number) for number in range(row, row + rows)]
        uniform = np.stack([np.random.Generator(np.random.PCG64(each)).random(width) for each in seeds])
        row += rows
        with torch.autocast(batch["labels"].device.type, enabled=False):
            labels = objective.drawn_labels(model, batch, torch.from_numpy(uniform))
        yield {**batch, "labels": labels}


def label_fisher(
    model: nn.Module,
    batches: Iterable[Batch],
    objective: Objective,
    *seed: object,
    names: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """Return the diagonal of the Fisher information of one label: F = Σ_n (∂ Σ_t ℓ_nt / ∂θ)² / Σ_n T_n.

    ℓ_nt = −log p(y_nt | x_n) with labels y sampled from the model. Given the text, the samples are independent and each
    has an expected gradient of 0, so the cross terms of the squared sum of a row vanish in expectation: what remains is
    the Fisher information of all its labels, T_n times that of one. It is the curvature of the mean loss per label
    where the predictions of the model are right (arXiv 1412.1193), so a step Δ from there costs ½ Σ_i F_i Δ_i² nats per
    label, in the diagonal approximation.

    :func:`gradient_moment` of the *mean* loss of a row, which EWC uses, is T times smaller for rows of T labels; with
    λ = T a label of old text has the same weight as one of new text.

    Arguments, result and errors are those of :func:`gradient_moment` and :func:`labels_of_the_model`.
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
    """Return G of K rows with E[Gᵀ G] = F, the *full* Fisher information of one label: ‖G Δ‖² estimates Δᵀ F Δ.

        g_j = Σ_{n in group j} Σ_t ∂ℓ_nt/∂θ / √(Σ_n T_n)

    for K groups of rows, with ℓ and labels as in :func:`label_fisher`. The cross terms vanish between the rows of a
    group for the same reason as between the labels of a row: samples are independent and their gradients have
    expectation 0. So one backward pass over many rows gives one direction, and every row is used (Sophia squares such a
    gradient element by element, arXiv 2305.14342, eq. 13; here it stays a vector, which accounts for correlations
    between weights). For a Δ that does not depend on the samples, the estimate is unbiased, with a relative standard
    error of √(2/K), that of a χ².

    Other arguments, and errors, are those of :func:`label_fisher`.

    Args:
        rank: K.
        rows: number of rows in all batches, at least K, so that groups have equal size; if there are fewer, the last
            directions are 0 and the error is larger.

    Returns:
        G by parameter name, bfloat16, K times the shape of the parameter.
    """
    chosen = parameters_to_measure(model, names)
    directions = {name: value.new_zeros((rank, *value.shape), dtype=torch.bfloat16) for name, value in chosen.items()}
    sums = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in chosen.items()}
    read = labels = 0
    for batch in labels_of_the_model(model, batches, objective, *seed):
        start, height = 0, rows_of(batch)
        while start < height:
            number = read * rank // rows  # number of the group, which ends where the next one begins
            end = -(-(number + 1) * rows // rank)
            stop = min(height, start + end - read)
            part = part_of(batch, start, stop)
            with torch.enable_grad(), torch.autocast(next(model.parameters()).device.type, enabled=False):
                loss = objective.forward(model, part, summed=True).losses.sum()
                gradients = torch.autograd.grad(loss, list(chosen.values()), allow_unused=True)
            for (name, total), gradient in zip(sums.items(), gradients, strict=True):
                if gradient is not None:
                    total.add_(gradient)
                directions[name][number] = total
            labels += int(objective.items(part).sum())
            read, start = read + stop - start, stop
            if read == end:
                for total in sums.values():
                    total.zero_()
    if not read:
        raise MethodError("Fisher information cannot be measured without data: there was no batch.")
    for name, value in directions.items():
        value.div_(max(labels, 1) ** 0.5)
        if not torch.isfinite(value).all():
            raise MethodError(f"Fisher information of '{name}' is not finite: the model's loss overflows.")
    return directions
