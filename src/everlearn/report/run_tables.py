"""Make the tables of a report besides the comparison: end tasks, cost, stages, mixtures."""

from __future__ import annotations

from everlearn import wording
from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison
from everlearn.comparison.replicates import pooled
from everlearn.comparison.runs import Run
from everlearn.evaluation.estimate import Estimate, mean, number
from everlearn.report.drawing import SERIES
from everlearn.report.tables import BRIEF, Table, TableCell, estimate_cell, legend_of_bold


def task_table(comparison: Comparison, metric: str) -> Table:
    """Make a table of tasks × base model and the first runs of the ranking at the end, with the mean."""
    average = comparison.measure(metric, "average")
    shown = comparison.ranking[:SERIES]
    matrices = comparison.matrices(metric)
    tasks = [column for column in matrices[0].columns if all(column in matrix.columns for matrix in matrices)]
    bases = {pool: [comparison.score(metric, pool, 0, task) for task in tasks] for pool in shown}
    same = all(base == bases[shown[0]] for base in bases.values())
    columns = (
        [("Base model", bases[shown[0]])] if same else [(f"{comparison.labels[p]}, base", bases[p]) for p in shown]
    )
    places = fmt.decimals(value for base in bases.values() for value in base)
    brief = len(tasks) * len(shown) > BRIEF
    rows = []
    for position, task in enumerate(tasks):
        estimates = [pooled([matrix.cell(-1, task) for matrix in comparison.matrices(metric, pool)]) for pool in shown]
        cells = [TableCell(fmt.fixed(base[position], places)) for _, base in columns]
        cells += [TableCell(fmt.fixed(e.value, places), "" if brief else fmt.interval(e, places)) for e in estimates]
        rows.append((task, tuple(cells)))
    if average and len(tasks) > 1:
        # The mean is over the domains' tasks, as in the runs' average; general tasks do not count.
        own = [task in average.columns for task in tasks]
        cells = []
        for _, base in columns:
            known = [value for value, counts in zip(base, own, strict=True) if counts]
            complete = known and None not in known
            cells.append(TableCell(fmt.fixed(sum(v or 0.0 for v in known) / len(known) if complete else None, places)))
        for pool in shown:
            cells.append(estimate_cell(average.estimates[pool], places, best=average.best == pool))
        rows.append(("mean", tuple(cells)))
    names = (*(name for name, _ in columns), *(comparison.labels[pool] for pool in shown))
    arrow = "↑" if matrices[0].higher_is_better else "↓"
    title = f"{matrices[0].title} {arrow} at the end of the stream"
    return Table(title, ("Task", *names), tuple(rows), legend_of_bold(rows))


def cost_table(comparison: Comparison) -> Table:
    """Make a table of time, tokens and memory of each pool."""
    header = (
        "Run",
        "Total time",
        "Training",
        "Evaluation",
        "Evaluation / training",
        "Tokens",
        "Tokens per second",
        "Peak memory",
    )
    rows = []
    for pool in comparison.ranking:
        label, runs = comparison.labels[pool], comparison.pools[pool].runs
        cost = {key: mean(Estimate.read(run.cost.get(key)) for run in runs).value for key in runs[0].cost}
        times = [cost.get(key) for key in ("seconds", "training_seconds", "evaluation_seconds")]
        _, training, evaluation = times
        memory = cost.get("peak_memory_bytes") or None
        cells = [TableCell(fmt.precise_duration(seconds), order=seconds) for seconds in times]
        cells.append(TableCell(fmt.percent(evaluation / training if training and evaluation is not None else None)))
        cells += [TableCell(fmt.integer(cost.get(key))) for key in ("tokens", "tokens_per_second")]
        rows.append((label, (*cells, TableCell(wording.size(memory) if memory else fmt.MISSING, order=memory))))
    caption = "As measured; other work on the machine makes times longer." + (
        " Means over seeds." if any(len(pool.runs) > 1 for pool in comparison.pools) else ""
    )
    return Table("Time, tokens and memory", header, tuple(rows), caption)


def stage_table(label: str, run: Run) -> Table | None:
    """Make a table of the cost of each stage of a run."""
    rows, ended = [], False
    for stage in run.cost.get("stages") or []:
        seen = {
            key: number(stage.get(key)) for key in ("seconds", "tokens", "steps", "tokens_per_second", "final_loss")
        }
        cells = [TableCell(fmt.precise_duration(seen["seconds"]), order=seen["seconds"])]
        planned = number(stage.get("planned_steps"))
        ended |= planned is not None and planned != seen["steps"]
        of = f"of {fmt.integer(planned)}" if planned is not None and planned != seen["steps"] else ""
        cells += [TableCell(fmt.integer(seen["tokens"])), TableCell(fmt.integer(seen["steps"]), of)]
        cells.append(TableCell(fmt.integer(seen["tokens_per_second"])))
        rows.append((str(stage.get("domain")), (*cells, TableCell(fmt.fixed(seen["final_loss"])))))
    header = ("Stage", "Time", "Tokens", "Steps", "Tokens per second", "Final loss")
    caption = "Steps: those whose weights a domain ended with, of those planned (`stop`); the notes say why." * ended
    return Table(f"{label}: each stage", header, tuple(rows), caption) if rows else None


def mixture_table(label: str, run: Run) -> Table | None:
    """Make a table of the requested and realised share of each source in each stage, and its tokens."""
    rows = []
    for entry in run.results.get("mixture") or []:
        shares = [fmt.percent(number(entry.get(key))) for key in ("asked", "realised")]
        cells = [str(entry.get("source")), *shares, fmt.integer(number(entry.get("tokens")))]
        rows.append((f"{entry.get('stage')} · {entry.get('domain')}", tuple(map(TableCell, cells))))
    header = ("Stage", "Source", "Requested", "Realised", "Tokens")
    return Table(f"{label}: what each stage was made of", header, tuple(rows)) if rows else None
