"""Make tables of transfer as in the causal study: its measures by super-domain, and forgetting at equal gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from everlearn import wording
from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison
from everlearn.comparison.recipe_differences import repeats
from everlearn.comparison.runs import Run
from everlearn.evaluation.estimate import number
from everlearn.evaluation.saturation import Bucket, SaturationByGap, saturation
from everlearn.evaluation.transfer import ALL, MEASURES, StreamLosses
from everlearn.report.tables import Table, TableCell

LOSS, BITS, CONTENT = "loss", "bits_per_byte", "content_loss"
Spreads = dict[str, Any]
"""Measure → super-domain → mean, median and number of domains."""


def stream_of(run: Run, metric: str = LOSS) -> StreamLosses | None:
    """Return a run's losses on held-out text; None if it is not a stream or has no losses."""
    matrix = run.matrices.get(metric)
    if matrix is None or not run.domains:
        return None
    scores = {place: estimate.value for place, estimate in matrix.scores.items() if estimate.value is not None}
    return StreamLosses.of(matrix.rows, matrix.columns, scores, groups=run.groups)


def saturations(comparison: Comparison) -> dict[str, SaturationByGap]:
    """Return pool → the comparison of buckets over its runs; pools that are too short are absent."""
    by_pool: dict[str, SaturationByGap] = {}
    for pool in comparison.ranking:
        streams = [stream for run in comparison.pools[pool].runs if (stream := stream_of(run)) is not None]
        if (own := saturation(streams)) is not None:
            by_pool[comparison.labels[pool]] = own
    return by_pool


def all_orders(comparison: Comparison) -> dict[str, SaturationByGap]:
    """Return method → the comparison of buckets over runs that learn the same domains in several orders.

    Runs of different methods or settings are kept apart. Otherwise a method that forgets more and learnt a domain later
    would make it seem that later stages forget more.
    """
    groups: list[tuple[Run, list[StreamLosses]]] = []
    for run in comparison.runs:
        if (stream := stream_of(run)) is not None:
            group = next((streams for lead, streams in groups if repeats(lead, run, any_order=True)), None)
            if group is None:
                groups.append((run, [stream]))
            else:
                group.append(stream)
    by_method: dict[str, SaturationByGap] = {}
    for lead, streams in groups:
        orders = len({stream.domains for stream in streams})
        if orders > 1 and (own := saturation(streams)) is not None:
            name = f"All {wording.count(orders, 'order')} of {lead.title}"
            by_method[name if name not in by_method else f"{name} ({len(by_method) + 1})"] = own
    return by_method


def transfer_table(label: str, runs: Sequence[Run]) -> Table | None:
    """Make a table of the study's measures: means over domains, with medians; of all and of each super-domain.

    Args:
        label: label of the pool.
        runs: the runs of the pool; the numbers are means over them.
    """
    run = runs[0]
    nats, bits, content = (_over_seeds([_transfer(each, metric) for each in runs]) for metric in (LOSS, BITS, CONTENT))
    if len(run.domains) < 2 or not nats or not (run.groups or run.results.get("objective") == "causal"):
        return None
    groups = list(dict.fromkeys(group for spread in nats.values() for group in spread if group != ALL))
    columns = [
        ("All domains (nats/token)", nats, ALL),
        ("All domains (bits/byte)", bits, ALL),
        *([("Content tokens (nats/token)", content, ALL)] if content else []),
        *((f"{group} (nats/token)", nats, group) for group in groups),
    ]
    rows = [
        (measure.title, tuple(_spread((spreads.get(key) or {}).get(group) or {}) for _, spreads, group in columns))
        for key, measure in MEASURES.items()
        if key in nats
    ]
    header = ("", *(title for title, _, _ in columns))
    caption = (
        "Differences of log-perplexities, means over domains, in brackets medians. Above zero is better, of FG worse. "
        "Backward: over all later checkpoints. Forward: over all checkpoints before the own stage."
    )
    if (half := half_width(run)) is not None:
        caption += f" A single score is known to ± {fmt.fixed(half, 4)} nats/token (95 %, median over all scores)."
    if len(runs) > 1:
        caption += f" Means over {wording.count(len(runs), 'seed')}."
    return Table(f"{label}: transfer", header, tuple(rows), caption)


def _transfer(run: Run, metric: str) -> Spreads:
    study: Mapping[str, Any] = run.results.get("study") or {}
    return dict((study.get("transfer") or {}).get(metric) or {})


def _over_seeds(runs: Sequence[Spreads]) -> Spreads:
    """Return measure → group → means over the runs; what one run lacks is absent."""
    first, *others = runs
    averaged: Spreads = {}
    for key, groups in first.items():
        for group, spread in groups.items():
            if not all(group in each.get(key, {}) for each in others):
                continue
            values = {name: [number(each[key][group].get(name)) for each in runs] for name in spread}
            known = {name: [v for v in each if v is not None] for name, each in values.items()}
            means = {name: sum(each) / len(each) for name, each in known.items() if len(each) == len(runs)}
            averaged.setdefault(key, {})[group] = means
    return averaged


def half_width(run: Run) -> float | None:
    """Return half of a score's 95 % interval in nats per token, the median over all scores."""
    matrix = run.matrices.get(LOSS)
    known = (
        [estimate.interval for estimate in matrix.scores.values() if estimate.interval is not None] if matrix else []
    )
    return median((high - low) / 2 for low, high in known) if known else None


def _spread(found: Mapping[str, Any]) -> TableCell:
    mean, middle, count = (number(found.get(key)) for key in ("mean", "median", "domains"))
    if mean is None:
        return TableCell(fmt.MISSING)
    return TableCell(fmt.fixed(mean, 3, signed=True), f"({fmt.fixed(middle, 3, signed=True)}, of {fmt.whole(count)})")


def saturation_table(comparison: Comparison) -> Table | None:
    """Make a table of a comparison's runs, and of all orders of a method together; None without a long stream."""
    compared = saturations(comparison) | all_orders(comparison)
    return saturation_rows(compared, "nats/token") if compared else None


def saturation_rows(found: Mapping[str, SaturationByGap], unit: str) -> Table:
    """Make a table of what buckets of checkpoints have forgotten, and how much more than the first at equal gap.

    Args:
        found: label → comparison of its buckets.
        unit: unit of the losses.
    """
    rows = [(f"{label}: {words(bucket)}", cells) for label, own in found.items() for bucket, cells in _lines(own)]
    header = ("Checkpoints", f"Forgotten ({unit})", "More than the first bucket, at equal gap", "by least squares")
    caption = (
        "B[n, i]: loss of domain i after n domains, less that right after its own stage; the mean over all i < n. Late "
        "checkpoints look back further: only at equal gap n − i are they compared. Least squares: gap + bucket, and "
        "+ domain where there are several orders; in one order a domain and its position are the same."
    )
    return Table("Do later stages forget more?", header, tuple(rows), caption)


def words(bucket: Bucket) -> str:
    """Return the checkpoints of a bucket in words."""
    return f"{bucket.first} to {bucket.last}"


def _lines(found: SaturationByGap) -> Sequence[tuple[Bucket, tuple[TableCell, ...]]]:
    return [
        (bucket, tuple(TableCell(fmt.fixed(value, 3, signed=True)) for value in (bucket.mean, later, adjusted)))
        for bucket, later, adjusted in zip(found.buckets, (None, *found.later), (None, *found.adjusted), strict=True)
    ]
