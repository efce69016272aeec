"""Compute rows' shares of plain training's learning and losses."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from everlearn.comparison import formatting as fmt
from everlearn.comparison.pairs import compared
from everlearn.grid.numbers import numbers
from everlearn.grid.summary import Line
from everlearn.grid.swept_options import SweptOption
from everlearn.report.figures.frontiers import Strength
from everlearn.report.tables import Table, TableCell

LEARNT = "bits_learnt"
FORGOTTEN, DRIFT, HELD = "bits_forgotten", "bits_drift", "bits_held"
WHOLES = {LEARNT: LEARNT, HELD: LEARNT, FORGOTTEN: FORGOTTEN, DRIFT: DRIFT}
"""Share → plain training's number by which it is divided."""
TITLES = {
    LEARNT: "Learning kept ↑", HELD: "Held at the end ↑", FORGOTTEN: "Forgetting left ↓", DRIFT: "Drift left ↓",
}  # fmt: skip


@dataclass(frozen=True)
class ShareOfPlain:
    """A number as a share of plain training's, over pairs of runs with the same order and seed.

    Attributes:
        mean: mean over the runs.
        deviation: standard deviation over the runs (n − 1); None for one run.
        runs: number n of runs.
    """

    mean: float
    deviation: float | None
    runs: int


def shares_of_plain(line: Line, plain: Line) -> dict[str, ShareOfPlain]:
    """Return a row's learning and losses as shares of those of plain training.

    ====================  ===========================================================================================
    ``bits_learnt``       learnt right after the own domain: 1 is all of what plain training learns
    ``bits_held``         base model − end of the stream, mean over domains, as a share of what plain training learns
    ``bits_forgotten``    forgotten since then: 0 is none of what plain training forgets
    ``bits_drift``        drift of general text
    ====================  ===========================================================================================

    Returns:
        The shares that the row has and for which plain training's number is above 0.
    """
    ours, plain_rows = compared(line.runs, plain.runs, numbers)
    shares = {}
    for name, denominator in WHOLES.items():
        pairs = [
            (own[name], plain_rows[unit][denominator])
            for unit, own in ours.items()
            if name in own and denominator in plain_rows[unit]
        ]
        if pairs and all(against > 0 for _, against in pairs):
            ratios = [own / against for own, against in pairs]
            deviation = statistics.stdev(ratios) if len(ratios) > 1 else None
            shares[name] = ShareOfPlain(statistics.fmean(ratios), deviation, len(ratios))
    return shares


def shares_table(lines: Sequence[Line], plain: Line) -> list[Table]:
    """Make a table of these shares of every row; empty if plain training forgets nothing."""
    shares = [(line.label, shares_of_plain(line, plain)) for line in lines]
    columns = {name: title for name, title in TITLES.items() if any(name in each for _, each in shares)}
    if FORGOTTEN not in columns:
        return []
    caption = (
        "Percent of plain training with the same order and seed: mean ± standard deviation over runs. Learnt: right "
        "after a domain's own stage; held: at the end of the stream, relative to what plain training learns."
    )
    rows = tuple((title, tuple(share_cell(each.get(name)) for name in columns)) for title, each in shares)
    return [Table("As shares of plain training", ("Method", *columns.values()), rows, caption)]


def share_cell(share: ShareOfPlain | None) -> TableCell:
    """Write a share in percent, ± its standard deviation over runs."""
    if share is None:
        return TableCell(fmt.MISSING)
    apart = "" if share.deviation is None else f"± {100 * share.deviation:.0f}"
    return TableCell(fmt.fixed(100 * share.mean, 0), apart)


def compute_of(line: Line, plain: Line) -> float | None:
    """Return the counted compute relative to plain training's; None if it is unknown."""
    extra, plain_tokens = line.facts.extra_tokens, plain.tokens
    return None if extra is None or not plain_tokens else (line.tokens + extra) / plain_tokens


def shares_of(swept_options: Sequence[SweptOption], plain: Line, lost: str) -> list[tuple[str, list[Strength]]]:
    """Return every family along its option, as shares of plain training's numbers.

    Args:
        swept_options: options that were swept over numbers.
        plain: plain training.
        lost: the number of what is lost: ``bits_forgotten`` or ``bits_drift``.

    Returns:
        Label of each family, and its points; empty if plain training learns or loses nothing.
    """
    plain_numbers = [_number(plain, name) or 0.0 for name in (LEARNT, lost)]
    if min(plain_numbers) <= 0:
        return []
    lines = []
    for along in swept_options:
        for family in along.families:
            points = []
            for value in along.values:
                own = [_number(family.lines.get(value), name) for name in (LEARNT, lost)]
                if isinstance(value, float) and own[0] is not None and own[1] is not None:
                    points.append(Strength(f"{value:g}", own[0] / plain_numbers[0], own[1] / plain_numbers[1]))
            lines.append((family.label, points))
    return [(label, points) for label, points in lines if points]


def _number(line: Line | None, name: str) -> float | None:
    return line.numbers[name].value if line is not None and name in line.numbers else None
