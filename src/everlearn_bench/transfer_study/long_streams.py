"""The part of a grid's page about long streams: transfer by order, and whether late stages forget more.

The measures are those of the causal study (arXiv 2402.17400).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from everlearn.comparison import formatting as fmt
from everlearn.comparison.runs import Run
from everlearn.grid.compute import evaluation_share
from everlearn.grid.parts import FactColumn, GridContents, GridPart, grid_part
from everlearn.grid.template import GridTemplate
from everlearn.report.drawing import SERIES
from everlearn.report.figures.heat import Heat, Shade, heat
from everlearn.report.figures.registry import Plate
from everlearn.report.tables import Table
from everlearn.wording import count
from everlearn_bench.suites.m2d2.claims import ALONE
from everlearn_bench.transfer_study.claim_numbers import learnt_alone, stream_of, transfer
from everlearn_bench.transfer_study.figure import at_equal_gaps
from everlearn_bench.transfer_study.grid_tables import UNIT, Spreads, by_size, by_super_domain, of_all_domains, spreads
from everlearn_bench.transfer_study.saturation import SaturationByGap, long_enough, saturation
from everlearn_bench.transfer_study.tables import saturation_rows

EVALUATION = (
    "Evaluation, of training: passes of the score matrix, the base model's row included, of those of the tokens learnt "
    "from; each text counts as `blocks` rows, and each row as one forward pass, a third."
)


@grid_part("long streams")
def long_streams(shown: GridContents) -> GridPart | None:
    """Return the study's part of a grid's page; None if all streams are short."""
    return LongStreams(shown.template, shown.cells) or None


class LongStreams(GridPart):
    """Part of a grid's page on cells with long streams: do late stages forget more?

    Args:
        template: names the orders, and the super-domains and sizes of domains if known.
        cells: cells of one grid; short streams and runs without an order are omitted.
    """

    def __init__(self, template: GridTemplate, cells: Sequence[Run]) -> None:
        self._template, self._super_domains = template, dict(template.super_domains)
        self._alone = {cell.grid.seed: cell for cell in cells if cell.grid.row == ALONE}
        self._groups: dict[str, list[Run]] = {}
        self._entries: dict[str, list[Run]] = {}
        for cell in cells:
            if cell.grid.order is None or not long_enough(len(cell.domains)) or stream_of(cell) is None:
                continue
            self._groups.setdefault(f"{cell.grid.title}, order {template.order_title(cell.grid.order)}", []).append(
                cell
            )
            self._entries.setdefault(cell.grid.title, []).append(cell)

    def __bool__(self) -> bool:
        return bool(self._groups)

    def tables(self) -> list[Table]:
        """Return tables of transfer (of all domains, by super-domain and by size) and of forgetting by position.

        There are no tables if all streams are short.
        """
        if not self:
            return []
        runs = self._runs()
        parts = (by_super_domain(runs), by_size(self._gains(), self._template.training_bytes))
        return [of_all_domains(runs), *(part for part in parts if part is not None), self._saturation()]

    def columns(self) -> list[FactColumn]:
        """Return a column with the compute of the score matrix, where it is known."""
        shown = {entry: fmt.percent(share) for entry, share in self.evaluation.items()}
        return [FactColumn("Evaluation, of training", shown, EVALUATION)] if shown else []

    @cached_property
    def evaluation(self) -> dict[str, float]:
        """Return the compute of evaluation relative to training, for each row, as a mean over its runs."""
        shares: dict[str, list[float]] = {}
        for cell in (cell for cells in self._groups.values() for cell in cells):
            if (share := evaluation_share(cell)) is not None:
                shares.setdefault(cell.grid.row, []).append(share)
        return {entry: float(np.mean(own)) for entry, own in shares.items()}

    def plates(self) -> Iterator[Plate]:
        """Draw a score matrix and a figure of forgetting by gap for each row and order."""
        for label, cells in list(self._groups.items())[:SERIES]:
            yield from heat(_scores(label, cells))
        for label, by_gap in list(self._saturations.items())[:SERIES]:
            yield from at_equal_gaps(label, by_gap, UNIT)

    def _runs(self) -> dict[str, list[Spreads]]:
        """Return the measures of each run, by row and order, and of the models of single domains."""
        measures = {
            label: [
                spreads(stream)
                for cell in cells
                if (stream := stream_of(cell, self._alone.get(cell.grid.seed), self._groups_of(cell))) is not None
            ]
            for label, cells in self._groups.items()
        }
        if self._alone:
            title = next(iter(self._alone.values())).grid.title
            own = [spreads(learnt_alone(cell, self._groups_of(cell))) for cell in self._alone.values()]
            measures[f"{title} (DAPT)"] = own
        return measures

    def _gains(self) -> dict[str, list[dict[str, float]]]:
        """Return the gain of each domain, for each run of a row in any order (CPT) and models of one domain (DAPT)."""
        entries = {f"{title} (CPT) ↑": cells for title, cells in self._entries.items()}
        alone = {f"{cell.grid.title} (DAPT) ↑": list(self._alone.values()) for cell in self._alone.values()}
        return {label: [transfer(cell, "continual") for cell in cells] for label, cells in (alone | entries).items()}

    def _groups_of(self, cell: Run) -> dict[str, str]:
        """Return the super-domains of a cell's domains; none if one is unknown, as means would be incomplete."""
        known = self._super_domains
        return {name: known[name] for name in cell.domains} if known.keys() >= set(cell.domains) else {}

    @cached_property
    def _saturations(self) -> dict[str, SaturationByGap]:
        """Test whether late stages forget more, for each row in each order, with the runs of all seeds together.

        For each row that was run in several orders of the same domains, another test takes the runs of all orders
        together. The keys of the result are titles for tables.
        """
        together = dict(self._groups)
        for title, cells in self._entries.items():
            orders = {cell.grid.order for cell in cells}
            if len(orders) > 1 and len({frozenset(cell.domains) for cell in cells}) == 1:
                together[f"All {count(len(orders), 'order')} of {title}"] = cells
        streams = {
            label: [stream for cell in own if (stream := stream_of(cell)) is not None]
            for label, own in together.items()
        }
        return {label: by_gap for label, own in streams.items() if (by_gap := saturation(own)) is not None}

    def _saturation(self) -> Table:
        return saturation_rows(self._saturations, UNIT)


def _scores(label: str, cells: Sequence[Run]) -> Heat:
    """Bits per byte of each text after each domain, means over seeds, coloured by the change since the base model."""
    matrices = [cell.matrices["bits_per_byte"] for cell in cells]
    rows, columns = matrices[0].rows, matrices[0].columns
    same = [np.array(each.values, float) for each in matrices if (each.rows, each.columns) == (rows, columns)]
    values = np.mean(same, axis=0)
    changes = values - values[0]
    shades = [
        [
            Shade(
                None if np.isnan(changes[i, j]) else float(changes[i, j]),
                "" if np.isnan(value) else fmt.fixed(float(value), 3),
                own=column == row,
            )
            for j, (column, value) in enumerate(zip(columns, values[i], strict=True))
        ]
        for i, row in enumerate(rows)
    ]
    of = f"{UNIT} of each text after each domain"
    seeds = f"mean of {count(len(same), 'seed')}" if len(same) > 1 else f"seed {cells[0].grid.seed}"
    return Heat(f"{label}: {of}, {seeds}", "after", columns, list(zip(rows, shades, strict=True)))
