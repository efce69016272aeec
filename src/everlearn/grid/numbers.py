"""Define the numbers of a grid's tables: each is the mean of a quantity over the columns of one metric's scores.

========================  =========================================================================================
``f1``, ``accuracy``      A_T: the mean over the domains' end tasks at the end of the stream
``glue_score``            the same of GLUE's own metrics
``f1/<task>`` …           the same of one task
``accuracy_micro``        the same over all test examples together
``f1_forgetting`` …       (1/(T−1)) Σ_{k<T} (A_kk − A_Tk): what tasks of earlier domains lost (DAS, arXiv 2302.03241)
``accuracy_learnt``       (1/T) Σ_j R[j, j]: each task right after it was learnt
``accuracy_bwt``          backward transfer (GEM, arXiv 1706.08840, eq. 3)
``accuracy_fwt``          forward transfer (GEM, eq. 4), against the base model
``…_forgetting_max``      the max form of forgetting (RWalk, arXiv 1801.10112)
``…_over_all``            the same sums over T instead of T − 1: some released code divides so (SAPT); × (T−1)/T
``bits``                  held-out bits per byte at the end, mean over domains
``bits_learnt``           base model − right after the own domain; above 0 is good
``bits_held``             base model − end; above 0 is good
``bits_forgotten``        end − right after the own domain, of earlier domains; above 0 is bad
``bits_drift``            general text, end − base model; above 0 is bad
``kept``                  tasks of no domain at the end, under the first metric that is a share
``kept_forgotten``        what they lost against the base model; above 0 is bad
``<metric>``              any other metric of the domains' end tasks, at the end
========================  =========================================================================================

A number is absent if one of its columns was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from everlearn.comparison.during_training import kept_metric
from everlearn.comparison.runs import Run
from everlearn.evaluation.quantities import QUANTITIES, Quantity

STANDS_FOR = {"accuracy": ("exact_match", "accuracy", "choice_accuracy"), "f1": ("f1", "macro_f1")}
"""Metric of a number → metrics of results; the first one that a column has is used for it."""
KEPT, FORGOTTEN = "kept", "kept_forgotten"
"""Names of numbers: the score of tasks without a domain at the end, and its loss against the base model."""
BITS = "bits_per_byte"
NUMBERS: Mapping[str, tuple[str, str]] = {
    "f1": ("f1", "average"),
    "f1_forgetting": ("f1", "forgotten"),
    "accuracy": ("accuracy", "average"),
    "accuracy_forgetting": ("accuracy", "forgotten"),
    "glue_score": ("glue_score", "average"),
    "glue_score_forgetting": ("glue_score", "forgotten"),
    "accuracy_learnt": ("accuracy", "just_learnt"),
    "accuracy_bwt": ("accuracy", "backward_transfer"),
    "accuracy_forgetting_max": ("accuracy", "forgotten_max"),
    "accuracy_fwt": ("accuracy", "forward_transfer"),
    KEPT: (KEPT, "general_average"),
    FORGOTTEN: (KEPT, "general_drift"),
    "bits": (BITS, "average"),
    "bits_learnt": (BITS, "learnt"),
    "bits_held": (BITS, "gained"),
    "bits_forgotten": (BITS, "forgotten"),
    "bits_drift": (BITS, "general_drift"),
}
"""Number → metric and quantity; the metric `kept` is that of tasks without a domain."""
OVER_ALL = ("accuracy_bwt", "accuracy_forgetting_max", "accuracy_fwt")
"""Numbers that some code divides by T."""
OF_TASKS = ("f1", "accuracy", "glue_score")
"""Numbers that are given for each end task too."""


def each(run: Run, metric: str, quantity: Quantity) -> dict[str, float]:
    """Return a quantity for every column of a metric; NaN where it was not measured."""
    values: dict[str, float] = {}
    for name in (kept_metric(run) or "",) if metric == KEPT else STANDS_FOR.get(metric, (metric,)):
        if name in run.matrices:
            own = run.matrices[name].each(quantity)
            values |= {column: value for column, value in own.items() if column not in values}
    return values


def parts(run: Run, number: str) -> dict[str, float]:
    """Return the values that a number is the mean of, by domain, text or end task."""
    metric, quantity = NUMBERS.get(number, (number, "average"))
    values = each(run, metric, QUANTITIES[quantity])
    return {} if any(map(math.isnan, values.values())) else values


def numbers(run: Run) -> dict[str, float]:
    """Return the numbers of a run; those that it cannot have are absent."""
    values: dict[str, float] = {}
    others = [name for name, table in run.matrices.items() if table.task_domains and name not in NUMBERS]
    for name in (*NUMBERS, *others):
        if own := parts(run, name):
            values[name] = float(np.mean(list(own.values())))
        if name in OF_TASKS:
            values |= {f"{name}/{task}": value for task, value in own.items()}
        if name in OVER_ALL and own:
            values[f"{name}_over_all"] = values[name] * (len(run.domains) - 1) / len(run.domains)
    return values | _micro(run)


def _micro(run: Run) -> dict[str, float]:
    """Return the accuracy over all test examples, if their numbers are known."""
    accuracy, examples = parts(run, "accuracy"), run.grid.examples
    if not accuracy or not all(examples.get(task) for task in accuracy):
        return {}
    total = sum(examples[task] for task in accuracy)
    return {"accuracy_micro": sum(examples[task] * value for task, value in accuracy.items()) / total}
