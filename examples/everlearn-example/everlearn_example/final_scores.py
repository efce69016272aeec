"""The scores at the end of the stream."""

from collections.abc import Iterator

from everlearn.comparison.comparison import Comparison
from everlearn.report.figures import Plate, figure
from everlearn.report.figures.dots import Dots, dots


@figure("final scores", data=Comparison, section="stream")
def final_scores(comparison: Comparison) -> Iterator[Plate]:
    """Draw a row for each domain and a dot for each run."""
    measure = comparison.measure(comparison.lead, "gained")
    if measure is None or not measure.columns:
        return
    runs = [[estimates[pool] for estimates in measure.columns.values()] for pool in comparison.ranking]
    labels = [comparison.labels[pool] for pool in comparison.ranking]
    yield from dots(Dots(measure.unit, list(measure.columns), runs, "Gained at the end of the stream.", labels))
