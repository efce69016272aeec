"""Prediction ranks of domain-specific words: a heat map of checkpoints × held-out sets, and the n-grams."""

from __future__ import annotations

from typing import Annotated

import typer

from everlearn.comparison.formatting import fixed, interval
from everlearn.diagnostics.prediction_ranks import Ranks, prediction_ranks
from everlearn.diagnostics.registry import Findings, analysis
from everlearn.evaluation.estimate import Estimate
from everlearn.learner import ContinualLearner
from everlearn.report.figures import draw
from everlearn.report.figures.heat import Heat, Shade
from everlearn.report.sections import Section
from everlearn.report.tables import Table, TableCell

_SHOWN = 10
"""Maximum n-grams of a set in the table."""
_ASIDE = (
    "Contexts of held-out text that end just before an n-gram that is characteristic of its domain (the largest TF-IDF "
    "against the other sets), and the rank of the n-gram's first token in the vocabulary: ln 1 = 0 is the likeliest. "
    "Medians over the contexts; less is better. Colours: the change from the first row."
)


Contexts = Annotated[int, typer.Option(min=1, metavar="CONTEXTS", help="Contexts of each held-out set, 200 or more.")]


@analysis("ranks")
def ranks(learner: ContinualLearner, contexts: Contexts = 200) -> Findings:
    """Show the ranks of domain-specific words in the predictions of every checkpoint.

    The median of their logarithm is shown, over contexts of every held-out set.
    """
    measured_ranks = prediction_ranks(learner, contexts)
    return Findings([of_ranks(measured_ranks)], {"prediction_ranks": measured_ranks.to_json()})


def of_ranks(measured_ranks: Ranks) -> Section:
    """Make a section with a heat map, and tables of the medians and the n-grams."""
    names = [name for name, count in measured_ranks.contexts.items() if count]

    def shade(row: int, name: str) -> Shade:
        own, first = (measured_ranks.log_rank[each].get(name, Estimate()) for each in (row, 0))
        known = own.value is not None and first.value is not None
        change = own.value - first.value if known else None  # type: ignore[operator]
        return Shade(change, fixed(own.value, 2), interval(own, 2), own=measured_ranks.checkpoints[row] == name)

    rows = [(label, [shade(row, name) for name in names]) for row, label in enumerate(measured_ranks.checkpoints)]
    heat = Heat("Median ln rank of a domain's own words", "after", names, rows, note="The numbers: --json.")
    return Section(
        "Prediction ranks", _ASIDE, draw("heat", heat), [_medians(measured_ranks, names), _words(measured_ranks)]
    )


def _medians(measured_ranks: Ranks, names: list[str]) -> Table:
    rows = [
        (label, tuple(TableCell(fixed(own.get(name, Estimate()).value, 2)) for name in names))
        for label, own in zip(measured_ranks.checkpoints, measured_ranks.log_rank, strict=True)
    ]
    return Table("Median ln rank of a domain's own words", ("After", *names), tuple(rows))


def _words(measured_ranks: Ranks) -> Table:
    rows = [
        (name, (TableCell(f"{measured_ranks.contexts[name]:,}"), TableCell(", ".join(words[:_SHOWN]))))
        for name, words in measured_ranks.words.items()
    ]
    return Table("The words of each domain", ("Held-out text", "Contexts", "n-grams, by TF-IDF"), tuple(rows))
