"""Make tables of transfer as in the causal study: its measures by super-domain, and forgetting at equal gap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, geometric_mean, median

from everlearn import wording
from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison
from everlearn.comparison.recipe_differences import repeats
from everlearn.comparison.runs import Run
from everlearn.evaluation.estimate import number
from everlearn.report.drawing import SERIES
from everlearn.report.figures import draw
from everlearn.report.sections import Section, section
from everlearn.report.tables import Table, TableCell
from everlearn_bench.transfer_study.measures import ALL, MEASURES, Spread, StreamLosses
from everlearn_bench.transfer_study.saturation import Bucket, SaturationByGap, saturation

LOSS, BITS, CONTENT = "loss", "bits_per_byte", "content_loss"
Spreads = Mapping[str, Mapping[str, Spread]]
"""Measure → super-domain → mean, median and number of domains."""
PERPLEXITIES = {
    "zero_shot": "Zero-shot (ZS)",
    "fine_tuned_alone": "Fine-tuned alone (FT)",
    "continual": "Continual (CPT)",
    "last_checkpoint": "Last checkpoint (LC)",
    "forgotten": "Forgotten",
}
LARGEST = 700.0
"""Losses from here on have a perplexity that no float holds."""


def stream_of(run: Run, metric: str = LOSS) -> StreamLosses | None:
    """Return a run's losses on held-out text; None if it is not a stream or has no losses."""
    matrix = run.matrices.get(metric)
    if matrix is None or not run.domains:
        return None
    scores = {place: estimate.value for place, estimate in matrix.scores.items() if estimate.value is not None}
    alone = run.alone(metric)
    return StreamLosses.of(matrix.rows, matrix.columns, scores, alone, run.groups)


def saturations(comparison: Comparison) -> dict[str, SaturationByGap]:
    """Return the comparison of buckets over the runs of each pool; pools that are too short are absent."""
    by_pool: dict[str, SaturationByGap] = {}
    for pool in comparison.ranking:
        streams = [stream for run in comparison.pools[pool].runs if (stream := stream_of(run)) is not None]
        if (own := saturation(streams)) is not None:
            by_pool[comparison.labels[pool]] = own
    return by_pool


def all_orders(comparison: Comparison) -> dict[str, SaturationByGap]:
    """Return, for each method, the comparison of buckets over runs that learn the same domains in several orders.

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


@section("causal study")
def causal_study(comparison: Comparison) -> Section | None:
    """Return the study's numbers of the runs that have them; of long streams whether later stages forget more."""
    shown = [(comparison.labels[pool], comparison.pools[pool].runs) for pool in comparison.ranking[:SERIES]]
    run_tables = [table for make in (perplexity_table, transfer_table) for runs in shown if (table := make(*runs))]
    if not run_tables:
        return None
    saturated = saturation_table(comparison)
    tables = [*run_tables, *([saturated] if saturated else [])]
    return Section("Causal study", plates=draw("saturation", comparison), tables=tables)


def perplexity_table(label: str, runs: Sequence[Run]) -> Table | None:
    """Return perplexities as the causal study names them; of several seeds their geometric means.

    Args:
        label: name of the runs.
        runs: the runs, which are pooled.
    """
    run, studies = runs[0], [_perplexities(each) for each in runs]
    if run.results.get("objective") != "causal" or not any(own for study in studies for own in study.values()):
        return None

    def mean(key: str, known: list[float | None]) -> float | None:
        values = [value for value in known if value is not None]
        if len(values) < len(runs):
            return None
        return fmean(values) if key == "forgotten" or len(values) == 1 else geometric_mean(values)

    each = {key: {d: mean(key, [study[key].get(d) for study in studies]) for d in run.domains} for key in PERPLEXITIES}
    medians = {
        key: mean(key, [median(study[key].values()) if study[key] else None for study in studies])
        for key in PERPLEXITIES
    }
    places = {key: 3 if key == "forgotten" else fmt.decimals(each["zero_shot"].values()) for key in PERPLEXITIES}
    rows = [(d, tuple(TableCell(fmt.fixed(each[k][d], places[k])) for k in PERPLEXITIES)) for d in run.domains]
    rows.append(("median", tuple(TableCell(fmt.fixed(medians[k], places[k])) for k in PERPLEXITIES)))
    caption = (
        "Perplexities ↓: of the base model; trained on this domain alone; right after its stage; at the end of the "
        "stream. Forgotten: log LC − log CPT, in nats per token."
    )
    if len(runs) > 1:
        caption += (
            f" Geometric means over {wording.count(len(runs), 'seed')} (of what is forgotten, and so of "
            "the logarithms, plain means)."
        )
    return Table(f"{label}: the causal study", ("Domain", *PERPLEXITIES.values()), tuple(rows), caption)


def _perplexities(run: Run) -> dict[str, dict[str, float]]:
    """Return known values by key of :data:`PERPLEXITIES` and by domain; forgetting in nats."""
    values: dict[str, dict[str, float]] = {key: {} for key in PERPLEXITIES}
    matrix = run.matrices.get(LOSS)
    if matrix is None:
        return values
    alone, last = run.alone(LOSS), len(matrix.rows) - 1
    for name in run.domains:
        stage = matrix.own_stage(name)
        learnt, end = (None, None) if stage is None else (matrix.cell(row, name).value for row in (stage, last))
        losses = {
            "zero_shot": matrix.cell(0, name).value,
            "fine_tuned_alone": number(alone.get(name)),
            "continual": learnt,
            "last_checkpoint": end,
        }
        for key, loss in losses.items():
            if loss is not None and loss < LARGEST:
                values[key][name] = math.exp(loss)
        if stage is not None and stage < last and learnt is not None and end is not None:
            values["forgotten"][name] = end - learnt
    return values


def transfer_table(label: str, runs: Sequence[Run]) -> Table | None:
    """Make a table of the study's measures: means and medians over all domains and over each super-domain.

    Args:
        label: label of the pool.
        runs: the runs of the pool; the numbers are means over them.
    """
    run = runs[0]
    nats, bits, content = (_over_seeds([_spread_of(each, metric) for each in runs]) for metric in (LOSS, BITS, CONTENT))
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
        (measure.title, tuple(_spread(spreads.get(key, {}).get(group)) for _, spreads, group in columns))
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


def _spread_of(run: Run, metric: str) -> Spreads:
    stream = stream_of(run, metric)
    return {} if stream is None else stream.spread()


def _over_seeds(runs: Sequence[Spreads]) -> Spreads:
    """Return means over the runs of mean, median and number of domains, by measure and group, where known."""
    first, *others = runs
    return {
        key: {
            group: _mean_spread([each[key][group] for each in runs])
            for group in groups
            if all(group in each.get(key, {}) for each in others)
        }
        for key, groups in first.items()
        if all(key in each for each in others)
    }


def _mean_spread(of: Sequence[Spread]) -> Spread:
    means, medians, domains = zip(*((each.mean, each.median, each.domains) for each in of), strict=True)
    return Spread(fmean(means), fmean(medians), round(fmean(domains)))


def half_width(run: Run) -> float | None:
    """Return half of a score's 95 % interval in nats per token, the median over all scores."""
    matrix = run.matrices.get(LOSS)
    known = (
        [estimate.interval for estimate in matrix.scores.values() if estimate.interval is not None] if matrix else []
    )
    return median((high - low) / 2 for low, high in known) if known else None


def _spread(spread: Spread | None) -> TableCell:
    if spread is None:
        return TableCell(fmt.MISSING)
    middle, count = fmt.fixed(spread.median, 3, signed=True), fmt.integer(spread.domains)
    return TableCell(fmt.fixed(spread.mean, 3, signed=True), f"({middle}, of {count})")


def saturation_table(comparison: Comparison) -> Table | None:
    """Make a table of a comparison's runs, and of all orders of a method together; None without a long stream."""
    compared = saturations(comparison) | all_orders(comparison)
    return saturation_rows(compared, "nats/token") if compared else None


def saturation_rows(by_label: Mapping[str, SaturationByGap], unit: str) -> Table:
    """Make a table of forgetting by bucket of checkpoints, and its excess over the first bucket at equal gap.

    Args:
        by_label: label → comparison of its buckets.
        unit: unit of the losses.
    """
    rows = [(f"{label}: {words(bucket)}", cells) for label, own in by_label.items() for bucket, cells in _lines(own)]
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


def _lines(by_gap: SaturationByGap) -> Sequence[tuple[Bucket, tuple[TableCell, ...]]]:
    return [
        (bucket, tuple(TableCell(fmt.fixed(value, 3, signed=True)) for value in (bucket.mean, later, adjusted)))
        for bucket, later, adjusted in zip(by_gap.buckets, (None, *by_gap.later), (None, *by_gap.adjusted), strict=True)
    ]
