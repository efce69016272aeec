"""Define the metrics, each a small registered function of sums over examples.

Since a metric only needs these sums, any resample of the examples has a score, and any two checkpoints have a paired
comparison.

``f1`` is the F1 that each task chooses: macro-F1, or micro-F1, which equals accuracy if every example has one label and
all labels count. DAS (arXiv 2302.03241) tabulates F1 like this, with micro-F1 for ChemProt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everlearn.evaluation.cell import Cell
from everlearn.plugins import Registry

Floats = NDArray[np.float64]
Terms = Callable[[Cell], NDArray[Any]]
Value = Callable[[Floats, Cell], Floats]


@dataclass(frozen=True)
class Metric:
    """A score that can be computed from a cell.

    Attributes:
        name: name in results and recipes (snake_case).
        title: name in tables.
        unit: unit of the score; ``fraction`` for a share of one.
        higher_is_better: whether higher scores are better.
        reads: outcomes and properties of examples that a cell must have.
        terms: returns the terms that are summed over examples, [repeats, k, n].
        value: maps sums [..., repeats, k] to scores [..., repeats].
        wanted: whether to report it for these cells; false if it would only repeat another metric.
        knows: facts that the cell must have.
        named: whether it applies only to cells whose fact ``scores`` lists it.
        averaged: whether the results note its mean over the end tasks.
    """

    name: str
    title: str
    unit: str
    higher_is_better: bool
    reads: tuple[str, ...]
    terms: Terms
    value: Value
    wanted: Callable[[Sequence[Cell]], bool] = lambda cells: True
    knows: tuple[str, ...] = ()
    named: bool = False
    averaged: bool = False

    def applies(self, cell: Cell) -> bool:
        """Return whether the cell has everything that the metric reads, and lists it if it must."""
        there = all(name in cell for name in self.reads) and all(name in cell.facts for name in self.knows)
        return there and (not self.named or self.name in cell.facts.get("scores", ()))

    def scores(self, cell: Cell) -> Floats:
        """Return the score of each repeat (fine-tuning), [repeats]."""
        with np.errstate(over="ignore"):
            return self.value(self.terms(cell).sum(-1, dtype=np.float64), cell)

    def score(self, cell: Cell) -> float:
        """Return the mean score over repeats."""
        return float(self.scores(cell).mean())


FAMILIES: dict[str, Callable[[str], Metric]] = {}
"""Prefix of metric names → function that makes the metric of such a name, if names are not known in advance."""


class _Metrics(Registry[Metric]):
    """Metrics by name; a metric of a family is created when its name is looked up."""

    def __missing__(self, name: str) -> Metric:
        make = next((make for start, make in FAMILIES.items() if name.startswith(start)), None)
        if make is None:
            return super().__missing__(name)
        return self.setdefault(name, make(name))

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and name.startswith(tuple(FAMILIES)))


METRICS = _Metrics("metrics")
"""Every metric by name. The first one that a cell has is its main metric."""


def register_family(start: str, make: Callable[[str], Metric]) -> None:
    """Register a function that makes a metric of every outcome whose name begins with `start`."""
    FAMILIES[start] = make


def register_metric(metric: Metric, before: str = "") -> Metric:
    """Register a metric for results, tables and grids: as the last one, or before another."""
    METRICS.add(metric.name, metric)
    names = [name for name in dict.keys(METRICS) if name != metric.name]  # without loading plugins
    for name in names[names.index(before) :] if before else ():
        METRICS[name] = METRICS.pop(name)
    return metric


def register_mean(name: str, title: str, outcome: str, unit: str = "fraction", higher_is_better: bool = True) -> Metric:
    """Register a metric that is the mean of one outcome over examples, [n] or [repeats, n]."""

    def terms(cell: Cell) -> NDArray[Any]:
        values = np.atleast_2d(np.asarray(cell[outcome], np.float64))
        return np.stack([values, np.ones_like(values)], axis=1)

    return register_metric(Metric(name, title, unit, higher_is_better, (outcome,), terms, ratio))


def metrics_of(cells: Iterable[Cell]) -> list[Metric]:
    """Return the metrics that some of the cells have, in the order of :data:`METRICS`."""
    listed = list(cells)
    for name in {name: None for cell in listed for name in cell.outcomes if name.startswith(tuple(FAMILIES))}:
        METRICS[name]  # looking up a name of a family registers its metric
    return [each for each in METRICS.values() if (own := [c for c in listed if each.applies(c)]) and each.wanted(own)]


# -- held-out text ------------------------------------------------------------------------------------------------


def _losses(cell: Cell) -> NDArray[Any]:
    return np.stack([cell["nats"], cell["items"].astype(np.float64)])[None]


def ratio(sums: Floats, cell: Cell) -> Floats:
    """Return the first sum over the second; NaN or infinity if the second is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(sums[..., 0] / sums[..., 1])


def _losses_and_bytes(cell: Cell) -> NDArray[Any]:
    # If the bytes of each row are unknown, the average bytes per token of the complete set are used.
    width = cell["bytes"] if "bytes" in cell else cell["items"] * cell.facts["bytes_per_token"]
    return np.stack([cell["nats"], width.astype(np.float64)])[None]


def _bits(sums: Floats, cell: Cell) -> Floats:
    return np.asarray(ratio(sums, cell) / np.log(2))


def _perplexity(sums: Floats, cell: Cell) -> Floats:
    return np.asarray(np.exp(ratio(sums, cell)))


_TEXT = ("nats", "items")
register_metric(Metric("bits_per_byte", "Bits per byte", "bits/byte", False, _TEXT, _losses_and_bytes, _bits))
register_metric(Metric("loss", "Loss", "nats/token", False, _TEXT, _losses, ratio))
register_metric(Metric("perplexity", "Perplexity", "per token", False, _TEXT, _losses, _perplexity))
register_metric(
    Metric(
        "content_loss",
        "Loss on content tokens",
        "nats/token",
        False,
        ("content_nats", "content_items"),
        lambda cell: np.stack([cell["content_nats"], cell["content_items"].astype(np.float64)])[None],
        ratio,
    )
)


# -- classification -----------------------------------------------------------------------------------------------


def _correct(cell: Cell) -> NDArray[Any]:
    right = (cell["predictions"] == cell["truth"]).astype(np.float32)
    return np.stack([right, np.ones_like(right)], axis=1)


def _counts(cell: Cell) -> NDArray[Any]:
    """Return true positives, predicted and true counts of each class, [repeats, 3 classes, n], exact in float32."""
    classes = np.asarray(cell.facts["classes"])[:, None]
    predicted = cell["predictions"][:, None, :] == classes
    true = np.broadcast_to(cell["truth"] == classes, predicted.shape)
    return np.concatenate([predicted & true, predicted, true], axis=1).astype(np.float32)


def _macro_f1(sums: Floats, cell: Cell) -> Floats:
    """Return the unweighted mean over classes of 2·TP / (predicted + true); 0 for a class with neither."""
    hits, predicted, true = np.split(sums, 3, axis=-1)
    total = predicted + true
    return np.asarray(np.divide(2 * hits, total, out=np.zeros_like(hits), where=total > 0).mean(-1))


def _micro(cell: Cell) -> bool:
    return cell.facts.get("f1") == "micro"


def _standardised(sums: Floats, cell: Cell) -> Floats:
    """Return (m − majority) / (state of the art − majority) for an accuracy m."""
    majority = cell.facts.get("majority")
    if majority is None:
        majority = np.unique(cell["truth"], return_counts=True)[1].max() / len(cell)
    return np.asarray((ratio(sums, cell) - majority) / (cell.facts["state_of_the_art"] - majority))


_LABELS = ("truth", "predictions")
register_metric(Metric("accuracy", "Accuracy", "fraction", True, _LABELS, _correct, ratio))
register_metric(Metric("macro_f1", "Macro-F1", "fraction", True, _LABELS, _counts, _macro_f1))
register_metric(
    Metric(
        "f1",
        "F1",
        "fraction",
        True,
        _LABELS,
        lambda cell: _correct(cell) if _micro(cell) else _counts(cell),
        lambda sums, cell: ratio(sums, cell) if _micro(cell) else _macro_f1(sums, cell),
        wanted=lambda cells: any(map(_micro, cells)),  # otherwise it equals macro-F1
    )
)
STANDARDISED = register_metric(
    Metric(
        "standardised",
        "Standardised accuracy",
        "of the state of the art",
        True,
        _LABELS,
        _correct,
        _standardised,
        knows=("state_of_the_art",),
    )
).name
"""0: always predicting the most frequent label; 1: the best published accuracy (Arora et al., ALTA 2019)."""
