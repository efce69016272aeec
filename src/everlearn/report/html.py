"""The report page: one self-contained HTML file that opens offline, on a phone, in light and in dark."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from difflib import unified_diff
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from everlearn.evaluation.estimate import Estimate, number
from everlearn.evaluation.quantities import QUANTITIES
from everlearn.files import write_text
from everlearn.report import formatting as fmt
from everlearn.report.comparison import Comparison, compare
from everlearn.report.drawing import GLYPHS, SERIES
from everlearn.report.figures import Plate, draw, in_section
from everlearn.report.figures.balance import Balance, DomainBalance
from everlearn.report.figures.each_domain import SHOWN
from everlearn.report.figures.standing import Standing, Standings
from everlearn.report.pooling import pooled
from everlearn.report.runs import Run
from everlearn.report.tables import Table, TableCell, column_table, difference_table, differing_table, headline_table
from everlearn.report.verdict import paragraphs, recommended

_STREAM = 24
"""Domains that the stream's line names."""
_WORDS = (
    ("Domain, stage, stream", "A domain is a named corpus, learnt in one go: its stage. The stream is their order."),
    ("Bits per byte", "The loss on held-out text in bits, per byte of that text. It does not depend on the tokenizer. "
     "Lower is better; for masked models it counts the masked tokens and the bytes they stand for."),
    ("General text", "Held-out text that no stage trains on. What gets worse there was forgotten from the base model."),
    ("End task", "Labelled data that the model is fine-tuned on after a stage, to measure what it knows."),
    ("Score matrix", "The score on each set (columns) after each stage (rows); row 0 is the untouched base model."),
    ("Interval", "From resampling the held-out text (bootstrap): how far another sample of the same text could move "
     "the number, 95 times of 100. Another seed is another run and is not covered; where one recipe ran with several "
     "seeds the numbers are means over these, and the intervals (Student's t) say how far other seeds could move them. "
     "The difference of two runs takes the same seeds, or the same text, for both where that can be had; otherwise it "
     "takes the two intervals as independent (Zou and Donner, 2008), which is the careful side."),
)  # fmt: skip


def write_report(runs: Sequence[Path], output: Path) -> Path:
    """Write the page that compares these runs.

    Args:
        runs: Run folders; the first is the reference.
        output: The HTML file to write; replaced as a whole.

    Returns:
        The path of the page.

    Raises:
        RunError: a folder is not a run, or the disk is full.
    """
    output = Path(output)
    write_text(output, page(compare(runs)))
    return output


def page(comparison: Comparison) -> str:
    """The page as text. Its size grows with the number of runs and of domains, not with their product."""
    several = len(comparison.pools) > 1
    shown = [(comparison.labels[pool], comparison.pools[pool].runs[0]) for pool in comparison.ranking[:SERIES]]
    return render(
        "page.html.jinja",
        title=_title(comparison),
        top=_top(comparison),
        verdict=paragraphs(comparison),
        headline=headline_table(comparison),
        differences=difference_table(comparison) if several else None,
        differing=differing_table(comparison),
        facts=_facts(comparison),
        legend=_legend(comparison),
        section=lambda name: in_section(name, comparison),
        many=len(comparison.domains) > SHOWN,
        domain_tables=[column_table(m, comparison) for m in comparison.headline if m.signed and len(m.columns) > 1],
        tasks=[_task_table(comparison, metric) for metric in comparison.task_metrics],
        cost=_cost_table(comparison),
        stages=[table for run in shown if (table := _stage_table(*run))],
        studies=[table for run in shown if (table := _study_table(*run))],
        mixtures=[table for run in shown if (table := _mixture_table(*run))],
        notes=comparison.notes,
        methods=_methods(comparison),
        recipes=_recipes(comparison),
        environments=_environments(comparison),
        words=[
            *_WORDS[:1],
            *((q.title, q.meaning) for q in QUANTITIES.values() if _shown(comparison, q.key)),
            *_WORDS[1:],
        ],
        commands=_commands(comparison),
        version=comparison.runs[0].results.get("everlearn") or "",
    )


def _top(comparison: Comparison) -> list[Plate]:
    """The picture that needs no reading: runs against each other, or what one run gained and kept."""
    learnt, forgotten, gained = (comparison.measure(comparison.lead, key) for key in ("learnt", "forgotten", "gained"))
    if learnt is None:
        return []
    chosen, nothing = recommended(comparison), (Estimate(),) * len(comparison.pools)
    lost = forgotten.estimates if forgotten else nothing
    several = draw(
        "standing",
        Standings(
            tuple(
                Standing(comparison.labels[pool], learnt.estimates[pool], lost[pool], pool == chosen)
                for pool in comparison.ranking
            ),
            learnt.unit,
        ),
    )
    if several:
        return several
    first = comparison.ranking[0]
    left = gained.columns if gained else {}
    domains = tuple(
        DomainBalance(name, found[first].value, left.get(name, nothing)[first].value)
        for name, found in learnt.columns.items()
    )
    return draw("balance", Balance(domains, learnt.unit))


def _legend(comparison: Comparison) -> list[tuple[str, str, int]]:
    named = [(comparison.labels[pool], GLYPHS[rank], rank) for rank, pool in enumerate(comparison.ranking[:SERIES])]
    others = [("others", "●", SERIES)] if len(comparison.pools) > SERIES else []
    return [*named, *others] if len(comparison.pools) > 1 else []


def render(template: str, **values: object) -> str:
    """A page of everlearn: the template (of this package) filled in, with the style inside.

    Templates share the macros of ``macros.html.jinja`` and want at least ``title`` and ``version``.
    """
    environment = Environment(
        loader=PackageLoader("everlearn.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = resources.files("everlearn.report").joinpath("style.css").read_text(encoding="utf-8")
    return environment.get_template(template).render(style=Markup(style), **values)


def _shown(comparison: Comparison, key: str) -> bool:
    return any(measure.quantity.key == key for measures in comparison.measures.values() for measure in measures)


def _title(comparison: Comparison) -> str:
    if len(comparison.pools) == 1:
        return f"{comparison.labels[0]}: what was learnt, what was forgotten"
    if len(comparison.runs) > len(comparison.pools):
        return f"{len(comparison.pools)} recipes, {len(comparison.runs)} runs: what each learnt, what each forgot"
    if len(comparison.pools) > 3:
        return f"{len(comparison.runs)} runs: what each learnt, what each forgot"
    return f"{fmt.listing(list(comparison.labels))}: what each learnt, what each forgot"


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    def say(key: str) -> str:
        values = dict.fromkeys(str(run.results[key]) for run in comparison.runs if run.results.get(key) is not None)
        return fmt.listing(list(values)) or fmt.MISSING

    names = list(comparison.runs[0].domains if comparison.same_stream else comparison.domains)
    if len(names) > _STREAM:
        names = [*names[: _STREAM - 4], f"… ({len(names)} domains)", *names[-3:]]
    stream = " → ".join(names)
    return [("Stream", stream), ("Base model", say("model")), ("Objective", say("objective")), ("Seed", say("seed"))]


def _task_table(comparison: Comparison, metric: str) -> Table:
    """Tasks × (base model, the first runs of the ranking at the end of the stream), and the mean."""
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
    brief = len(tasks) * len(shown) > 240
    rows = []
    for position, task in enumerate(tasks):
        found = [pooled([matrix.cell(-1, task) for matrix in comparison.matrices(metric, pool)]) for pool in shown]
        cells = [TableCell(fmt.fixed(base[position], places)) for _, base in columns]
        cells += [TableCell(fmt.fixed(e.value, places), "" if brief else fmt.interval(e, places)) for e in found]
        rows.append((task, tuple(cells)))
    if average and len(tasks) > 1:
        # The mean is over the domains' own tasks, as in the runs' average; a general task is a row and no more.
        own = [task in average.columns for task in tasks]
        cells = []
        for _, base in columns:
            known = [value for value, counts in zip(base, own, strict=True) if counts]
            whole = known and None not in known
            cells.append(TableCell(fmt.fixed(sum(v or 0.0 for v in known) / len(known) if whole else None, places)))
        for pool in shown:
            e = average.estimates[pool]
            cells.append(TableCell(fmt.fixed(e.value, places), fmt.interval(e, places), average.best == pool))
        rows.append(("mean", tuple(cells)))
    names = (*(name for name, _ in columns), *(comparison.labels[pool] for pool in shown))
    arrow = "↑" if matrices[0].higher_is_better else "↓"
    return Table(f"{matrices[0].title} {arrow} at the end of the stream", ("Task", *names), tuple(rows))


def _cost_table(comparison: Comparison) -> Table:
    header = ("Run", "Total time", "Training", "Evaluation", "Tokens", "Tokens per second", "Peak memory")
    rows = []
    for pool in comparison.ranking:
        label, runs = comparison.labels[pool], comparison.pools[pool].runs
        cost = {key: _mean([number(run.cost.get(key)) for run in runs]) for key in runs[0].cost}
        cells = [fmt.duration(cost.get(key)) for key in ("seconds", "training_seconds", "evaluation_seconds")]
        cells += [fmt.whole(cost.get("tokens")), fmt.whole(cost.get("tokens_per_second"))]
        rows.append((label, tuple(map(TableCell, [*cells, fmt.size(cost.get("peak_memory_bytes"))]))))
    caption = "As measured: only as good as the machine was quiet." + (
        " Means over seeds." if any(len(pool.runs) > 1 for pool in comparison.pools) else ""
    )
    return Table("Time, tokens and memory", header, tuple(rows), caption)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _stage_table(label: str, run: Run) -> Table | None:
    rows = []
    for stage in run.cost.get("stages") or []:
        seen = {
            key: number(stage.get(key)) for key in ("seconds", "tokens", "steps", "tokens_per_second", "final_loss")
        }
        cells = [fmt.duration(seen["seconds"]), *(fmt.whole(seen[k]) for k in ("tokens", "steps", "tokens_per_second"))]
        rows.append((str(stage.get("domain")), tuple(map(TableCell, [*cells, fmt.fixed(seen["final_loss"])]))))
    header = ("Stage", "Time", "Tokens", "Steps", "Tokens per second", "Final loss")
    return Table(f"{label}: each stage", header, tuple(rows)) if rows else None


def _study_table(label: str, run: Run) -> Table | None:
    study = run.results.get("study") or {}
    keys = ("zero_shot", "fine_tuned_alone", "continual", "last_checkpoint", "forgotten")
    if run.results.get("objective") != "causal" or not any(study.get(key) for key in keys):
        return None
    found = {key: {d: number((study.get(key) or {}).get(d)) for d in run.domains} for key in keys}
    median = {key: number((study.get("median") or {}).get(key)) for key in keys}
    places = {key: 3 if key == "forgotten" else fmt.decimals(found["zero_shot"].values()) for key in keys}
    rows = [(d, tuple(TableCell(fmt.fixed(found[k][d], places[k])) for k in keys)) for d in run.domains]
    if any(value is not None for value in median.values()):
        rows.append(("median", tuple(TableCell(fmt.fixed(median[k], places[k])) for k in keys)))
    header = (
        "Domain",
        "Zero-shot (ZS)",
        "Fine-tuned alone (FT)",
        "Continual (CPT)",
        "Last checkpoint (LC)",
        "Forgotten",
    )
    caption = (
        "Perplexities ↓: of the base model; trained on this domain alone; right after its stage; at the end of the "
        "stream. Forgotten: log LC − log CPT, in nats per token."
    )
    return Table(f"{label}: the causal study", header, tuple(rows), caption)


def _mixture_table(label: str, run: Run) -> Table | None:
    rows = []
    for entry in run.results.get("mixture") or []:
        shares = [fmt.percent(number(entry.get(key))) for key in ("asked", "realised")]
        cells = [str(entry.get("source")), *shares, fmt.whole(number(entry.get("tokens")))]
        rows.append((f"{entry.get('stage')} · {entry.get('domain')}", tuple(map(TableCell, cells))))
    header = ("Stage", "Source", "Asked", "Realised", "Tokens")
    return Table(f"{label}: what each stage was made of", header, tuple(rows)) if rows else None


def _methods(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Title, paper (a web address or nothing) and options of every method, each once."""
    found = {}
    for run in comparison.runs:
        for method in run.results.get("methods") or []:
            paper = str(method.get("paper") or "")
            options = ", ".join(f"{key}={value}" for key, value in (method.get("options") or {}).items())
            title = str(method.get("title") or method.get("name"))
            # Only web addresses become links: a results file may come from anywhere.
            found[title, options] = paper if paper.startswith(("https://", "http://")) else ""
    return [(title, paper, options) for (title, options), paper in found.items()]


def _recipes(comparison: Comparison) -> list[tuple[str, str]]:
    """The best run's recipe as a whole; of every other one the lines that differ."""
    found: list[tuple[str, str]] = []
    whole: str | None = None
    for pool in comparison.ranking:
        label, text = comparison.labels[pool], comparison.pools[pool].runs[0].recipe
        if not text:
            continue
        if whole is None:
            whole = text
            found.append((label, text))
            continue
        lines = list(unified_diff(whole.splitlines(), text.splitlines(), found[0][0], label, lineterm="", n=0))
        found.append((f"{label} (what differs)", "\n".join(lines) or "nothing"))
    return found


def _environments(comparison: Comparison) -> list[tuple[str, list[tuple[str, str]]]]:
    """Every environment once, with the runs that had it."""
    found: dict[str, tuple[list[str], list[tuple[str, str]]]] = {}
    for pool in comparison.pools:
        for run in pool.runs:
            if run.environment:
                entries = fmt.flatten(run.environment)
                labels = found.setdefault(repr(entries), ([], entries))[0]
                labels += [pool.label] if pool.label not in labels else []
    return [(fmt.listing(labels), entries) for labels, entries in found.values()]


def _commands(comparison: Comparison) -> str:
    folders = [run.place for run in comparison.runs]
    lines = [fmt.again(folder) for folder in folders]
    return "\n".join([*lines, f"everlearn report {' '.join(shlex.quote(f'{folder}-again') for folder in folders)}"])
