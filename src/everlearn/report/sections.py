"""The page's figures: which numbers go into which plot, and what a screen reader says about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from everlearn.report import formatting as fmt
from everlearn.report.comparison import Comparison
from everlearn.report.plots import Figure, Series, dot_whisker, labelled, lines
from everlearn.report.runs import Estimate, Matrix, Run, number

_POINTS = 150
"""Points of a loss curve: more is neither seen nor worth the page's size."""


@dataclass(frozen=True)
class Plate:
    """A figure with its caption."""

    svg: Markup
    caption: str


class Figures:
    """Draws the figures of one comparison; a figure without data is left out."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.drawn = 0
        metric = comparison.text_metric or next(iter(comparison.task_metrics), None)
        self.matrices: list[Matrix] = [run.matrices[metric] for run in comparison.runs] if metric else []
        self.unit = self.matrices[0].unit or self.matrices[0].metric.replace("_", " ") if self.matrices else ""

    def _name(self) -> str:
        self.drawn += 1
        return f"figure{self.drawn}"

    def _plate(self, figure: Figure, caption: str, numbers: str) -> Plate:
        return Plate(Markup(labelled(figure, f"{caption} {numbers}".strip())), caption)

    def _ticks(self) -> list[str] | None:
        # Names on the stage axis only where a stage is the same domain in every run.
        return ["base", *self.comparison.runs[0].domains] if self.comparison.same_stream else None

    def domains(self) -> list[Plate]:
        """Learnt and forgotten per domain, dots and whiskers."""
        plates = []
        for measure in self.comparison.headline:
            if measure.kind.key not in ("learnt", "forgotten") or not measure.columns:
                continue
            # One list of rows for both panels, so that they can be read across; the last domain has nothing forgotten.
            columns = self._rows()
            unknown = (Estimate(),) * len(self.comparison.runs)
            estimates = [
                [measure.columns.get(c, unknown)[run] for c in columns] for run in range(len(self.comparison.runs))
            ]
            figure = dot_whisker(self._name(), measure.unit or measure.metric, columns, estimates)
            good = "to the right is better" if measure.higher_is_better else "to the left is better"
            said = []
            for label, row in zip(self.comparison.labels, estimates, strict=True):
                values = [f"{c} {fmt.fixed(e.value, measure.places, True)}" for c, e in zip(columns, row, strict=True)]
                said.append(f"{label}: {', '.join(values)}.")
            numbers = " ".join(said)
            plates.append(self._plate(figure, f"{measure.title} per domain; {good}.", numbers))
        return plates

    def _rows(self) -> list[str]:
        return list(
            dict.fromkeys(c for m in self.comparison.headline if m.signed and m.kind.averaged for c in m.columns)
        )

    def stream(self) -> list[Plate]:
        """The mean over the domains learnt before of what has been forgotten so far."""

        def forgotten(matrix: Matrix, stage: int) -> float | None:
            found = []
            for column in matrix.columns:
                own = matrix.own_stage(column)
                if own is not None and own < stage:
                    found.append(matrix.worsening(column, own, stage))
            known = [value for value in found if value is not None]
            return sum(known) / len(known) if known else None

        plate = self._along(forgotten, "Forgotten so far, the mean over the domains learnt before; lower is better.")
        return [plate] if plate else []

    def general(self) -> list[Plate]:
        """What general text lost against the base model after each stage."""
        plates = []
        for name in self.comparison.general:
            caption = f"General text ({fmt.shorten(name, 40)}): change since the base model; lower is better."
            plate = self._along(lambda matrix, stage, name=name: matrix.worsening(name, 0, stage), caption)  # type: ignore[misc]
            plates += [plate] if plate else []
        return plates

    def _along(self, score: Callable[[Matrix, int], float | None], caption: str) -> Plate | None:
        series = [
            Series(run, range(len(matrix.rows)), [score(matrix, stage) for stage in range(len(matrix.rows))])
            for run, matrix in enumerate(self.matrices)
        ]
        if not any(value is not None for line in series for value in line.y):
            return None
        ticks = self._ticks()
        label = "" if ticks else "stage"
        figure = lines(self._name(), f"{self.unit}, worse ↑", series, ticks=ticks, zero=True, x_label=label)
        last = [next((value for value in reversed(line.y) if value is not None), None) for line in series]
        pairs = zip(self.comparison.labels, last, strict=True)
        return self._plate(
            figure, caption, "At the end: " + ", ".join(f"{n} {fmt.fixed(v, 3, True)}" for n, v in pairs)
        )

    def each_domain(self) -> list[Plate]:
        """One small plot a domain: its score after every stage, its own stage marked where all runs share it."""
        plates = []
        for domain in self.comparison.domains:
            series = [
                Series(run, range(len(matrix.rows)), [matrix.cell(i, domain).value for i in range(len(matrix.rows))])
                for run, matrix in enumerate(self.matrices)
                if domain in matrix.columns
            ]
            if not any(value is not None for line in series for value in line.y):
                continue
            stages = {run.domains.index(domain) + 1 for run in self.comparison.runs}
            marks = sorted(stages) if len(stages) == 1 else []
            figure = lines(self._name(), self.unit, series, marks=marks, small=True, x_label="stage")
            ends = ", ".join(f"{self.comparison.labels[s.colour]} ends at {fmt.fixed(s.y[-1])}" for s in series)
            plates.append(self._plate(figure, f"{domain}", f"{self.unit} after each stage: {ends}."))
        return plates

    def losses(self) -> list[Plate]:
        """The training loss of each run over all its stages; all runs share one range."""
        curves = [(position, curve(run, "loss"), starts(run)) for position, run in enumerate(self.comparison.runs)]
        found = [value for _, (_, y), _ in curves for value in y if value is not None]
        if not found:
            return []
        margin = 0.04 * (max(found) - min(found)) or 0.1
        limits = (min(found) - margin, max(found) + margin)
        plates = []
        for run, (x, y), marks in curves:
            if not y:
                continue
            series = [Series(run, x, y)]
            figure = lines(
                self._name(), "training loss", series, marks=marks, markers=False, x_label="step", limits=limits
            )
            caption = f"{self.comparison.labels[run]}: training loss; dashed lines are where a stage starts."
            plates.append(self._plate(figure, caption, f"It ends at {fmt.fixed(y[-1])}."))
        return plates

    def method_losses(self) -> list[Plate]:
        """What the methods add to the loss, one small plot for each."""
        plates = []
        for position, run in enumerate(self.comparison.runs):
            for key in dict.fromkeys(key for line in run.log for key in line if "/" in key):
                x, y = curve(run, key)
                if not y:
                    continue
                figure = lines(self._name(), "", [Series(position, x, y)], markers=False, small=True, x_label="step")
                caption = f"{self.comparison.labels[position]}: {key}"
                plates.append(self._plate(figure, caption, f"It ends at {fmt.fixed(y[-1])}."))
        return plates


def steps(run: Run) -> dict[tuple[int, int], int]:
    """(stage, step in the stage) → step in the run.

    Steps start again at each stage; a log whose steps already count through is left as it is.
    """
    ends: dict[int, int] = {}
    first: dict[int, int] = {}
    keys = [(int(stage), int(step)) for stage, step in _positions(run)]
    for stage, step in keys:
        ends[stage], first[stage] = max(step, ends.get(stage, 0)), min(step, first.get(stage, step))
    order = sorted(ends)
    through = all(first[b] > ends[a] for a, b in pairwise(order))
    offsets, total = {}, 0
    for stage in order:
        offsets[stage] = 0 if through else total
        total += ends[stage]
    return {key: offsets[key[0]] + key[1] for key in sorted(set(keys))}


def _positions(run: Run) -> list[tuple[float, float]]:
    found = [(number(line.get("stage")), number(line.get("step"))) for line in run.log]
    return [(stage, step) for stage, step in found if stage is not None and step is not None]


def starts(run: Run) -> list[float]:
    """The last step before each stage but the first: where the page rules a line."""
    ends: dict[int, float] = {}
    for (stage, _), x in steps(run).items():
        ends[stage] = max(x, ends.get(stage, 0))
    return [ends[stage] + 0.5 for stage in sorted(ends)[:-1]]


def curve(run: Run, key: str) -> tuple[list[float], list[float | None]]:
    """A logged value over the run's steps, averaged into at most about `_POINTS` bins, interrupted between stages.

    A resumed run may log a step twice: the later line is the one that counts.
    """
    place = steps(run)
    values: dict[int, dict[int, float]] = {}
    for line in run.log:
        stage, step, value = number(line.get("stage")), number(line.get("step")), number(line.get(key))
        if stage is not None and step is not None and value is not None:
            values.setdefault(int(stage), {})[place[int(stage), int(step)]] = value
    width = -(-sum(map(len, values.values())) // _POINTS) or 1
    x: list[float] = []
    y: list[float | None] = []
    for stage in sorted(values):
        points = sorted(values[stage].items())
        if x:
            x.append(x[-1])
            y.append(None)
        for start in range(0, len(points), width):
            group = points[start : start + width]
            x.append(sum(p for p, _ in group) / len(group))
            y.append(sum(v for _, v in group) / len(group))
    return x, y
