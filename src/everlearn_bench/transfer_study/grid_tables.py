"""Tables of the causal study's measures over a grid, in bits per byte: all domains, by super-domain, by size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from everlearn.comparison import formatting as fmt
from everlearn.comparison.intervals import over_runs
from everlearn.report.tables import Table, TableCell
from everlearn_bench.transfer_study.measures import ALL, Spread, StreamLosses

UNIT = "bits/byte"
Spreads = Mapping[str, Mapping[str, Spread]]
"""Measure → super-domain → mean and median: of one run."""
COLUMNS = {
    "continual": "CPT against ZS ↑",
    "continual_over_dapt": "CPT against DAPT ↑",
    "lc": "LC against ZS ↑",
    "fg": "FG ↓",
    "fg_max": "FG, max form ↓",
    "backward": "Backward against ZS ↑",
    "backward_own": "Backward against CPT ↑",
    "forward": "Forward ↑",
}
MEGABYTE = 1_000_000
BY_SUPER_DOMAIN = ("continual", "lc", "fg")
_WORDS = (
    "ZS: the base model; CPT: right after the domain; DAPT: after that domain alone, of the same seed; LC: the last "
    "checkpoint; FG: lost from CPT to LC"
)
_BRACKETS = "In brackets: medians over domains, then 95 % intervals of the means, Student's t over runs."


def spreads(stream: StreamLosses) -> Spreads:
    """Means and medians of a run; models of single domains are shown in the column CPT."""
    measures = stream.spread()
    return measures if "continual" in measures or "dapt" not in measures else {"continual": measures["dapt"]}


def of_all_domains(runs: Mapping[str, Sequence[Spreads]]) -> Table:
    """Return the table of the measures over all domains.

    Args:
        runs: label → runs of a row and order.
    """
    rows = [(label, tuple(_cell(own, measure, ALL) for measure in COLUMNS)) for label, own in runs.items()]
    return Table(
        f"Transfer ({UNIT})",
        ("Method, order", *COLUMNS.values()),
        tuple(rows),
        f"Differences of log-perplexities, means over domains. {_WORDS}, its max form from the best checkpoint since "
        "CPT. Backward: over all later checkpoints, forward: over all before the own stage, against ZS. "
        f"{_BRACKETS}",
    )


def by_super_domain(runs: Mapping[str, Sequence[Spreads]]) -> Table | None:
    """Return the table of what each super-domain learns and retains; None if no run has two of them.

    Args:
        runs: label → runs of a row and order.
    """
    rows = []
    for label, own in runs.items():
        each = own[0].get("continual", {})
        groups = [group for group in each if group != ALL]
        for group in groups if len(groups) > 1 else ():
            cells = [_cell(own, measure, group) for measure in BY_SUPER_DOMAIN]
            rows.append((f"{label}: {group}", (TableCell(fmt.integer(each[group].domains)), *cells)))
    header = ("Method, order: super-domain", "Domains", *(COLUMNS[measure] for measure in BY_SUPER_DOMAIN))
    caption = f"Means over the domains of a super-domain. {_WORDS}. {_BRACKETS}"
    return Table(f"Transfer by super-domain ({UNIT})", header, tuple(rows), caption) if rows else None


def by_size(gains: Mapping[str, Sequence[Mapping[str, float]]], sizes: Mapping[str, int]) -> Table | None:
    """Return what domains gain by the size of their training text; None if all sizes are alike or one is not known.

    Args:
        gains: label → for each run, domain → base model − after its training.
        sizes: domain → bytes.
    """
    names = dict.fromkeys(name for runs in gains.values() for run in runs for name in run)
    if not names.keys() <= {name for name, size in sizes.items() if size > 0}:
        return None
    bins: dict[int, list[str]] = {}
    for name in names:
        bins.setdefault(math.floor(math.log2(sizes[name] / MEGABYTE)), []).append(name)
    if len(bins) < 2:
        return None

    def cell(runs: Sequence[Mapping[str, float]], members: Sequence[str]) -> TableCell:
        each = {name: [run[name] for run in runs if name in run] for name in members}
        means = [fmean(own) for own in each.values() if own]
        if not means:
            return TableCell(fmt.MISSING)
        return TableCell(fmt.fixed(fmean(means), 3, signed=True), f"({fmt.fixed(median(means), 3, signed=True)})")

    rows = [
        (f"{2.0**at:g} to {2.0 ** (at + 1):g} MB", (TableCell(f"{len(own)}"), *(cell(r, own) for r in gains.values())))
        for at, own in sorted(bins.items())
    ]
    return Table(
        f"What domains gain by the size of their training text ({UNIT})",
        ("Training text of a domain", "Domains", *gains),
        tuple(rows),
        "Base model − right after the domain (DAPT: after that domain alone), of each domain the mean over orders and "
        "seeds; then means over domains, in brackets medians. The size is that of a domain's whole text (1 MB: 10⁶ "
        "bytes), without what was cut or repeated; where `train.max_steps` or `--budget` is set, all learn from "
        "as many tokens.",
    )


def _cell(runs: Sequence[Spreads], measure: str, group: str) -> TableCell:
    """Return the mean over runs, with that of the medians and an interval; runs that lack the measure do not count."""
    measures = [run[measure][group] for run in runs if group in run.get(measure, {})]
    if not measures:
        return TableCell(fmt.MISSING)
    mean, middle = over_runs([each.mean for each in measures]), fmean(each.median for each in measures)
    detail = f"({fmt.fixed(middle, 3, signed=True)}) {fmt.interval(mean, 3, signed=True)}"
    return TableCell(fmt.fixed(mean.value, 3, signed=True), detail.strip())
