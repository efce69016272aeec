"""Metrics: one small registered function each. A metric is a function of sums over examples, so that any resample of
the examples has a score, and any two checkpoints can be compared in pairs.

``f1`` is the F1 that each task asks for: macro-F1, or micro-F1, which is accuracy where an example has one label and
every label counts. DAS (arXiv 2302.03241) tabulates it so, with micro-F1 for ChemProt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everlearn.evaluation.cell import Cell
from everlearn.plugins import Registry

Floats = NDArray[np.float64]
Terms = Callable[[Cell], NDArray[Any]]
Value = Callable[[Floats, Cell], Floats]


def _always(cells: Sequence[Cell]) -> bool:
    return True


@dataclass(frozen=True)
class Metric:
    """A score of a cell.

    Attributes:
        name: the word for it in results and recipes (snake_case).
        title: as tables write it.
        unit: of the score; ``fraction`` for a share of one.
        higher_is_better: its direction.
        reads: outcomes, or what is given, that a cell must have for it.
        terms: what is summed over examples, [repeats, k, n].
        value: from the sums [..., repeats, k] to the scores [..., repeats].
        wanted: whether it says something about these cells that the metrics before it do not.
        knows: facts of the task that it needs.
    """

    name: str
    title: str
    unit: str
    higher_is_better: bool
    reads: tuple[str, ...]
    terms: Terms
    value: Value
    wanted: Callable[[Sequence[Cell]], bool] = _always
    knows: tuple[str, ...] = ()

    def applies(self, cell: Cell) -> bool:
        """Whether the cell has the outcomes that are read."""
        return all(name in cell for name in self.reads) and all(name in cell.facts for name in self.knows)

    def scores(self, cell: Cell) -> Floats:
        """The score of each repeat (fine-tuning), [repeats]."""
        with np.errstate(over="ignore"):
            return self.value(self.terms(cell).sum(-1, dtype=np.float64), cell)

    def score(self, cell: Cell) -> float:
        """The mean over repeats."""
        return float(self.scores(cell).mean())


FAMILIES: dict[str, Callable[[str], Metric]] = {}
"""How names begin that are not known beforehand, and what makes a metric of such a name."""


class _Metrics(Registry[Metric]):
    """Metrics by name; one of a family is made when it is asked for."""

    def __missing__(self, name: str) -> Metric:
        make = next((make for start, make in FAMILIES.items() if name.startswith(start)), None)
        if make is None:
            return super().__missing__(name)
        return self.setdefault(name, make(name))

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and name.startswith(tuple(FAMILIES)))


METRICS = _Metrics("metrics")
"""Every metric by name; of those that a cell has, the first one leads."""


def register_family(start: str, make: Callable[[str], Metric]) -> None:
    """Make known that every outcome whose name starts so is a metric of its own, made of the name."""
    FAMILIES[start] = make


def register_metric(metric: Metric) -> Metric:
    """Make a metric known to results, tables and the bench."""
    METRICS.add(metric.name, metric)
    return metric


def register_mean(name: str, title: str, outcome: str, unit: str = "fraction", higher_is_better: bool = True) -> Metric:
    """A metric that is the mean of one outcome over examples ([n], or [repeats, n])."""

    def terms(cell: Cell) -> NDArray[Any]:
        found = np.atleast_2d(np.asarray(cell[outcome], np.float64))
        return np.stack([found, np.ones_like(found)], axis=1)

    return register_metric(Metric(name, title, unit, higher_is_better, (outcome,), terms, _ratio))


def metric(name: str) -> Metric:
    """A metric by its name; ``KeyError`` where there is none."""
    return METRICS[name]


def metrics_of(cells: Iterable[Cell]) -> list[Metric]:
    """Metrics that some of the cells have, in the order of :data:`METRICS`."""
    listed = list(cells)
    for name in {name: None for cell in listed for name in cell.outcomes if name.startswith(tuple(FAMILIES))}:
        METRICS[name]  # of a family: known from here on
    return [each for each in METRICS.values() if (own := [c for c in listed if each.applies(c)]) and each.wanted(own)]


# -- held-out text ------------------------------------------------------------------------------------------------


def _losses(cell: Cell) -> NDArray[Any]:
    return np.stack([cell["nats"], cell["items"].astype(np.float64)])[None]


def _ratio(sums: Floats, cell: Cell) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(sums[..., 0] / sums[..., 1])


def _losses_and_bytes(cell: Cell) -> NDArray[Any]:
    # Where the bytes of each row are not known, those of a token of the complete set stand for them.
    width = cell["bytes"] if "bytes" in cell else cell["items"] * cell.facts["bytes_per_token"]
    return np.stack([cell["nats"], width.astype(np.float64)])[None]


def _bits(sums: Floats, cell: Cell) -> Floats:
    return np.asarray(_ratio(sums, cell) / np.log(2))


def _perplexity(sums: Floats, cell: Cell) -> Floats:
    return np.asarray(np.exp(_ratio(sums, cell)))


_TEXT = ("nats", "items")
register_metric(Metric("bits_per_byte", "Bits per byte", "bits/byte", False, _TEXT, _losses_and_bytes, _bits))
register_metric(Metric("loss", "Loss", "nats/token", False, _TEXT, _losses, _ratio))
register_metric(Metric("perplexity", "Perplexity", "per token", False, _TEXT, _losses, _perplexity))
register_metric(
    Metric(
        "content_loss",
        "Loss on content tokens",
        "nats/token",
        False,
        ("content_nats", "content_items"),
        lambda cell: np.stack([cell["content_nats"], cell["content_items"].astype(np.float64)])[None],
        _ratio,
    )
)
LOGARITHMIC = ("bits_per_byte", "loss", "content_loss")
"""Metrics of text whose differences are differences of log-perplexities."""


# -- classification -----------------------------------------------------------------------------------------------


def _correct(cell: Cell) -> NDArray[Any]:
    right = (cell["predictions"] == cell["truth"]).astype(np.float32)
    return np.stack([right, np.ones_like(right)], axis=1)


def _counts(cell: Cell) -> NDArray[Any]:
    """Hits, predicted and true of each class, [repeats, 3 classes, n]: whole numbers, exact in float32."""
    classes = np.asarray(cell.facts["classes"])[:, None]
    predicted = cell["predictions"][:, None, :] == classes
    true = np.broadcast_to(cell["truth"] == classes, predicted.shape)
    return np.concatenate([predicted & true, predicted, true], axis=1).astype(np.float32)


def _macro_f1(sums: Floats, cell: Cell) -> Floats:
    """Unweighted mean over classes of 2·TP / (predicted + true), and 0 for a class with neither."""
    hits, predicted, true = np.split(sums, 3, axis=-1)
    total = predicted + true
    return np.asarray(np.divide(2 * hits, total, out=np.zeros_like(hits), where=total > 0).mean(-1))


def _micro(cell: Cell) -> bool:
    return cell.facts.get("f1") == "micro"


def _standardised(sums: Floats, cell: Cell) -> Floats:
    """(m − majority) / (state of the art − majority), of an accuracy m."""
    majority = cell.facts.get("majority")
    if majority is None:
        majority = np.unique(cell["truth"], return_counts=True)[1].max() / len(cell)
    return np.asarray((_ratio(sums, cell) - majority) / (cell.facts["state_of_the_art"] - majority))


_LABELS = ("truth", "predictions")
register_metric(Metric("accuracy", "Accuracy", "fraction", True, _LABELS, _correct, _ratio))
register_metric(Metric("macro_f1", "Macro-F1", "fraction", True, _LABELS, _counts, _macro_f1))
register_metric(
    Metric(
        "f1",
        "F1",
        "fraction",
        True,
        _LABELS,
        lambda cell: _correct(cell) if _micro(cell) else _counts(cell),
        lambda sums, cell: _ratio(sums, cell) if _micro(cell) else _macro_f1(sums, cell),
        wanted=lambda cells: any(map(_micro, cells)),  # it would repeat macro-F1 otherwise
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
"""0: always the most frequent label; 1: the best that is known (Arora et al., ALTA 2019)."""


def accuracy(truth: ArrayLike, predictions: ArrayLike) -> float:
    """Share of examples whose label is predicted."""
    return float(np.mean(np.asarray(truth) == np.asarray(predictions)))


def macro_f1(truth: ArrayLike, predictions: ArrayLike, classes: ArrayLike) -> float:
    """Macro-F1 over `classes`.

    `classes` are the labels of the *training* set: a class that could be learnt counts even where the test set or the
    predictions miss it, so that the same classes are averaged at every checkpoint.
    """
    from everlearn.evaluation.cell import classification_cell

    guesses = np.asarray(predictions)[None]
    return METRICS["macro_f1"].score(classification_cell(np.asarray(truth), guesses, np.asarray(classes), (0,)))
