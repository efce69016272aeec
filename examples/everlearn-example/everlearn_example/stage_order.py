"""The order of the stages as a table of its own."""

from everlearn.comparison.comparison import Comparison
from everlearn.report.sections import Section, section
from everlearn.report.tables import Table, TableCell


@section("stage order")
def stage_order(comparison: Comparison) -> Section | None:
    """Return a row for each run."""
    if not comparison.domains:
        return None
    rows = [(run.name, (TableCell(" → ".join(run.domains)),)) for run in comparison.runs]
    return Section(
        "Order of the stages", "As each run learnt them.", tables=[Table("Order", ("Run", "Domains"), tuple(rows))]
    )
