"""Draw forgetting against the gap between a checkpoint and a domain: a line for each bucket of checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison
from everlearn.report.drawing import GLYPHS, SERIES
from everlearn.report.figures.curves import Curve, Curves, curves
from everlearn.report.figures.registry import Plate, figure
from everlearn_bench.transfer_study.saturation import SaturationByGap
from everlearn_bench.transfer_study.tables import saturations, words


@figure("saturation", data=Comparison)
def saturation(comparison: Comparison) -> Iterator[Plate]:
    """Draw a figure for each recipe, with its seeds together; at one gap the lines differ only in the bucket."""
    for label, compared in list(saturations(comparison).items())[:SERIES]:
        yield from at_equal_gaps(label, compared, "nats/token")


def at_equal_gaps(label: str, by_gap: SaturationByGap, unit: str) -> Iterator[Plate]:
    """Draw the forgetting at equal gaps, one line per bucket of checkpoints."""
    lines = [
        Curve(rank, list(bucket.gaps), list(bucket.gaps.values()), label=f"checkpoints {words(bucket)}")
        for rank, bucket in enumerate(by_gap.buckets)
    ]
    names = ", ".join(f"{glyph} {words(bucket)}" for glyph, bucket in zip(GLYPHS, by_gap.buckets, strict=False))
    means = "; ".join(
        f"checkpoints {words(bucket)}: {fmt.fixed(bucket.mean, 3, signed=True)}" for bucket in by_gap.buckets
    )
    caption = f"{label}: forgotten since a domain's own stage, by the domains learnt since; checkpoints {names}."
    yield from curves(Curves(unit, lines, caption, means, zero=True, x_label="gap n − i, domains learnt since"))
