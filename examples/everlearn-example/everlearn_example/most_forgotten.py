"""The domain that each row of a grid forgot most."""

from everlearn.grid.numbers import parts
from everlearn.grid.parts import FactColumn, GridContents, GridPart, grid_part
from everlearn.report.tables import Table, TableCell


@grid_part("most forgotten")
class MostForgotten(GridPart):
    """A table of forgetting, and a column of the table of costs."""

    def __init__(self, shown: GridContents) -> None:
        self.lost = {}
        for line in shown.lines:
            each = [(bits, name) for run in line.runs for name, bits in parts(run, "bits_forgotten").items()]
            if each:
                self.lost[line.entry] = (line.label, *max(each))

    def tables(self) -> list[Table]:
        """Return the table; none if no row forgot anything that was measured."""
        rows = [(label, (TableCell(name), TableCell(f"{bits:+.4f}"))) for label, bits, name in self.lost.values()]
        header = ("Method", "Domain", "Forgotten (bits per byte)")
        return [Table("The domain forgotten most", header, tuple(rows), "Of all runs of a row.")] if rows else []

    def columns(self) -> list[FactColumn]:
        """Return the name alone, beside what each row takes."""
        return [FactColumn("Forgot most", {entry: name for entry, (_, _, name) in self.lost.items()}, "")]
