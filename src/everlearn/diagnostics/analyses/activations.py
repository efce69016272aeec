"""Rows with large outputs: distributions, and the similarity of domains as heat maps and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from everlearn.comparison.formatting import fixed, percent
from everlearn.diagnostics.registry import Findings, analysis
from everlearn.diagnostics.row_activations import ALL, Alike, Magnitudes, alike, looked_at, threshold_of
from everlearn.evaluation.estimate import Estimate, mean
from everlearn.learner import ContinualLearner
from everlearn.report.figures import Plate, draw
from everlearn.report.figures.heat import Heat, Shade
from everlearn.report.figures.violins import Violins
from everlearn.report.sections import Section
from everlearn.report.tables import Table, TableCell

Blocks = Annotated[
    int,
    typer.Option(min=1, metavar="BLOCKS", help="Blocks of each domain to read, 2 or more (the corpora must exist)."),
]


@analysis("activations")
def activations(learner: ContinualLearner, blocks: Blocks = 64) -> Findings:
    """Show which rows have large outputs, how far domains share them, and which rows each stage changed."""
    outputs = looked_at(learner, blocks)
    compared = [alike(each, threshold_of(learner)) for each in outputs]
    return Findings(sections(outputs, compared), {"magnitudes": [vars(each) for each in compared]})


def sections(magnitudes: Sequence[Magnitudes], compared: Sequence[Alike]) -> list[Section]:
    """Return a section for each model, one for the rows that moved, and the tables."""
    shown = [_section(each, own) for each, own in zip(magnitudes, compared, strict=True)]
    return [*shown, Section("Rows in numbers", tables=tables(compared))] if compared else []


def _section(magnitudes: Magnitudes, own: Alike) -> Section:
    twice = _sampled_twice(magnitudes)
    measured = "mean |y|" if twice else "‖ΔW‖"
    aside = (
        f"The share of rows that two {'domains' if twice else 'stages'} have in common among the "
        f"{percent(1 - own.threshold)} of rows with the largest {measured} in each layer. Rows drawn at random would "
        f"have {own.chance[ALL]:.2f} in common."
    )
    if twice:
        aside += " The diagonal compares two samples of one domain: the largest overlap to expect."
    first, *others = [_component(magnitudes, own, part) for part in magnitudes.parts]
    by_component = Section("By component", parts=others, folded=True)
    return Section(magnitudes.title, aside, first.plates, layout="", parts=[*first.parts, by_component])


def _component(magnitudes: Magnitudes, own: Alike, part: str) -> Section:
    spread, pairs = _plates(magnitudes, own, part)
    return Section(_words(part), plates=spread, layout="", parts=[Section("", plates=pairs, layout="pairs")])


def _sampled_twice(magnitudes: Magnitudes) -> bool:
    return any(first is not second for first, second in magnitudes.halves.values())


def _words(part: str) -> str:
    return part.replace("_", " ").capitalize()


def _plates(magnitudes: Magnitudes, own: Alike, part: str) -> tuple[list[Plate], list[Plate]]:
    number = "mean |y| of a row" if _sampled_twice(magnitudes) else "‖ΔW‖ of a row"
    spread = Violins(
        f"{number}, layer's mean = 1",
        own.names,
        [magnitudes.relative(name, part).tolist() for name in own.names],
        f"Distribution of {number}. Dot: median; bar: the middle half; the outermost 1\u00a0% is cut off.",
    )
    common = _heat("Largest rows in common", own.names, own.overlap[part], own.chance[part])
    linear = _heat("Correlation of the rows", own.names, own.correlation[part], 0.0)
    return draw("violins", spread), [*draw("heat", common), *draw("heat", linear)]


def _heat(title: str, names: Sequence[str], matrix: Sequence[Sequence[float | None]], chance: float) -> Heat:
    """Return a heat map that is coloured by the difference to chance; 1 has the strongest colour."""

    def shade(a: str, b: str, value: float | None) -> Shade:
        return Shade(None if value is None else value - chance, fixed(value, 2), f"{a} and {b}: {fixed(value)}")

    rows = [
        (a, [shade(a, b, value) for b, value in zip(names, row, strict=True)])
        for a, row in zip(names, matrix, strict=True)
    ]
    return Heat(title, "", names, rows, scale=1 - chance)


def tables(similarities: Sequence[Alike]) -> list[Table]:
    """Return two tables for each comparison: the overlaps over all projections, and means by component."""
    return [table for each in similarities for table in (_pairs(each), _by_component(each))]


def _pairs(similarity: Alike) -> Table:
    return Table(
        f"{similarity.title}: largest {percent(1 - similarity.threshold)} of the rows in common",
        ("", *similarity.names),
        tuple(
            (name, tuple(TableCell(fixed(value)) for value in row))
            for name, row in zip(similarity.names, similarity.overlap[ALL], strict=True)
        ),
        f"By chance: {similarity.chance[ALL]:.3f}.",
    )


def _by_component(similarity: Alike) -> Table:
    def rows(part: str) -> tuple[TableCell, ...]:
        numbers = [*_means(similarity.overlap[part]), *_means(similarity.correlation[part])]
        return tuple(TableCell(fixed(value)) for value in numbers)

    return Table(
        f"{similarity.title}, by component",
        ("Projections", "in common, same", "in common, different", "correlation, same", "correlation, different"),
        tuple((_words(part), rows(part)) for part in similarity.overlap),
        "Means over names (same: the diagonal) and pairs of names (different).",
    )


def _means(matrix: Sequence[Sequence[float | None]]) -> tuple[float | None, float | None]:
    size = range(len(matrix))
    same = [matrix[i][i] for i in size]
    different = [matrix[i][j] for i in size for j in size if i != j]
    return mean(map(Estimate, same)).value, mean(map(Estimate, different)).value
