"""Draw drift under a forgetting budget: predicted, and measured on the probe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison
from everlearn.comparison.runs import Run
from everlearn.comparison.training_log import in_stages, starts, steps
from everlearn.evaluation.estimate import Estimate, number
from everlearn.report.drawing import SERIES
from everlearn.report.figures.curves import Curve, Curves, curves
from everlearn.report.figures.registry import Plate, figure

DRIFT = "drift"
"""Key of the log lines of a budget."""


@dataclass(frozen=True)
class DriftLook:
    """The drift of a group of texts after a step.

    Attributes:
        step: step of the run.
        budget: budget, in bits per byte.
        predicted: ½ Δᵀ F Δ, bits per byte.
        measured: measured on the probe; without a probe, the prediction corrected by another text's ratio.
        low: lower end of its 95 % interval; equal to `measured` if there is none.
        high: upper end of the interval.
    """

    step: float
    budget: float
    predicted: float
    measured: float
    low: float
    high: float


def looks_of(run: Run) -> dict[str, list[DriftLook]]:
    """Return the drifts of each group of texts in the order of training; of a step measured twice, the last counts."""
    place = steps(run)
    by_group: dict[str, dict[tuple[int, int], DriftLook]] = {}
    for stage, step, line in in_stages(run.log):
        groups = line.get(DRIFT)
        for group, seen in groups.items() if isinstance(groups, Mapping) else ():
            values = {key: number(value) for key, value in seen.items()} if isinstance(seen, Mapping) else {}
            budget, predicted = values.get("allowed"), values.get("predicted")
            measured = values.get("measured", values.get("corrected"))
            if budget is None or predicted is None or measured is None:
                continue
            ends = [measured if (end := values.get(key)) is None else end for key in ("low", "high")]
            look = DriftLook(place[stage, step], budget, predicted, measured, *ends)
            by_group.setdefault(str(group), {})[stage, step] = look
    return {group: [looks[at] for at in sorted(looks)] for group, looks in by_group.items()}


def predicted_and_measured(
    looks_by_group: Mapping[str, Sequence[DriftLook]], label: str, marks: Sequence[float] = ()
) -> Iterator[Plate]:
    """Draw a plot for each group of texts: measured with its interval, predicted, and the budget."""
    for group, looks in looks_by_group.items():
        x = [look.step for look in looks]
        measured = Curve.of(0, x, [Estimate(look.measured, look.low, look.high) for look in looks], "measured")
        predicted = Curve(1, x, [look.predicted for look in looks], label="predicted")
        limit = Curve(SERIES, [x[0], x[-1]], [looks[0].budget] * 2, label="budget")
        text = "general text" if group == "general" else "earlier domains"
        yield from curves(
            Curves(
                "bits per byte lost",
                [measured, predicted, limit],
                f"{label}, {text}: measured on held-out rows (first colour, with its 95 % interval), predicted by "
                f"½ Δᵀ F Δ (second colour), and the budget of {looks[0].budget:g} bits per byte (grey).",
                f"At the end {fmt.fixed(looks[-1].measured)} measured, {fmt.fixed(looks[-1].predicted)} predicted.",
                marks=marks,
                zero=True,
                x_label="step",
            )
        )


@figure("forgetting budget", data=Comparison, section="training")
def forgetting_budget(comparison: Comparison) -> Iterator[Plate]:
    """Draw the plots of the first six runs of the ranking."""
    for pool in comparison.ranking[:SERIES]:
        run = comparison.pools[pool].runs[0]
        yield from predicted_and_measured(looks_of(run), comparison.labels[pool], starts(run))
