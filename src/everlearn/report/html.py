"""The report page: one self-contained HTML file that opens offline, on a phone, in light and in dark."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from everlearn.files import write_text
from everlearn.report import formatting as fmt
from everlearn.report import sections
from everlearn.report.comparison import Comparison, compare
from everlearn.report.measures import KINDS
from everlearn.report.plots import GLYPHS, SERIES
from everlearn.report.runs import Run, number
from everlearn.report.tables import Cell, Table, column_table, headline_table
from everlearn.report.verdict import paragraphs

_WORDS = (
    ("Domain, stage, stream", "A domain is a named corpus, learnt in one go: its stage. The stream is their order."),
    ("Bits per byte", "The loss on held-out text in bits, per byte of that text. It does not depend on the tokenizer. "
     "Lower is better; for masked models it counts the masked tokens and the bytes they stand for."),
    ("General text", "Held-out text that no stage trains on. What gets worse there was forgotten from the base model."),
    ("End task", "Labelled data that the model is fine-tuned on after a stage, to measure what it knows."),
    ("Score matrix", "The score on each set (columns) after each stage (rows); row 0 is the untouched base model."),
    ("Interval", "From resampling the held-out text (bootstrap): how far another sample of the same text could move "
     "the number, 95 times of 100. Another seed is another run and is not covered. The difference of two runs draws "
     "the same text for both where the runs kept their evaluation; otherwise it takes the two intervals as independent "
     "(Zou and Donner, 2008), which is the careful side."),
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
    """The page as text."""
    figures = sections.Figures(comparison)
    return render(
        "page.html.jinja",
        title=_title(comparison),
        facts=_facts(comparison),
        legend=[(label, GLYPHS[i % SERIES], i % SERIES) for i, label in enumerate(comparison.labels)],
        verdict=paragraphs(comparison),
        headline=headline_table(comparison),
        domains=figures.domains(),
        domain_tables=[column_table(m, comparison) for m in comparison.headline if m.signed and len(m.columns) > 1],
        stream=figures.stream(),
        each_domain=figures.each_domain(),
        general=figures.general(),
        heat_maps=_heat_maps(comparison),
        tasks=[_task_table(comparison, metric) for metric in comparison.task_metrics],
        losses=figures.losses(),
        method_losses=figures.method_losses(),
        cost=_cost_table(comparison),
        stages=[table for run in _each(comparison) if (table := _stage_table(*run))],
        studies=[table for run in _each(comparison) if (table := _study_table(*run))],
        mixtures=[table for run in _each(comparison) if (table := _mixture_table(*run))],
        notes=comparison.notes,
        methods=_methods(comparison),
        recipes=[(label, run.recipe) for label, run in _each(comparison) if run.recipe],
        environments=[(label, fmt.flatten(run.environment)) for label, run in _each(comparison) if run.environment],
        words=[*_WORDS[:1], *((k.title, k.meaning) for k in KINDS if _shown(comparison, k.key)), *_WORDS[1:]],
        commands=_commands(comparison),
        version=comparison.runs[0].results.get("everlearn") or "",
    )


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


def _each(comparison: Comparison) -> list[tuple[str, Run]]:
    return list(zip(comparison.labels, comparison.runs, strict=True))


def _shown(comparison: Comparison, key: str) -> bool:
    return any(measure.kind.key == key for measures in comparison.measures.values() for measure in measures)


def _title(comparison: Comparison) -> str:
    if len(comparison.runs) == 1:
        return f"{comparison.labels[0]}: what was learnt, what was forgotten"
    if len(comparison.runs) > 3:
        return f"{len(comparison.runs)} runs: what each learnt, what each forgot"
    return f"{fmt.listing(list(comparison.labels))}: what each learnt, what each forgot"


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    def say(key: str) -> str:
        values = dict.fromkeys(str(run.results[key]) for run in comparison.runs if run.results.get(key) is not None)
        return fmt.listing(list(values)) or fmt.MISSING

    stream = " → ".join(comparison.runs[0].domains if comparison.same_stream else comparison.domains)
    return [("Stream", stream), ("Base model", say("model")), ("Objective", say("objective")), ("Seed", say("seed"))]


@dataclass(frozen=True)
class HeatCell:
    """One score: as written, how far from the base model it is (0 to 1 of the scale) and on which side."""

    text: str
    side: str
    strength: float
    own: bool
    explanation: str


@dataclass(frozen=True)
class HeatMap:
    """A score matrix as a coloured table."""

    title: str
    columns: list[str]
    rows: list[tuple[str, list[HeatCell]]]
    open: bool
    corner: str = "after"


def _heat_maps(comparison: Comparison) -> list[HeatMap]:
    lead = {comparison.text_metric, *comparison.task_metrics[:1]}
    maps = [
        _heat_map(f"{label}: {metric.replace('_', ' ')}", run, metric, metric in lead)
        for label, run in _each(comparison)
        for metric in run.matrices
    ]
    return sorted(maps, key=lambda found: not found.open)


def _heat_map(title: str, run: Run, metric: str, shown: bool) -> HeatMap:
    matrix = run.matrices[metric]
    steps = range(len(matrix.rows))
    changes = {(i, c): matrix.worsening(c, 0, i) for i in steps for c in matrix.columns}
    scale = max((abs(change) for change in changes.values() if change is not None), default=0.0) or 1.0
    places = fmt.decimals(matrix.cell(i, c).value for i in steps for c in matrix.columns)
    rows = []
    for i in steps:
        cells = []
        for column in matrix.columns:
            change, estimate = changes[i, column], matrix.cell(i, column)
            side = "gain" if change is not None and change < 0 else "loss"
            own = matrix.own_stage(column) == i
            words = f"{fmt.estimate(estimate, places)}, {'better' if side == 'gain' else 'worse'} than base by "
            words += fmt.fixed(None if change is None else abs(change), places)
            words = "not measured" if estimate.value is None else words if i else fmt.estimate(estimate, places)
            cells.append(HeatCell(fmt.fixed(estimate.value, places), side, abs(change or 0) / scale, own, words))
        rows.append((matrix.rows[i] if i else "base model", cells))
    unit = f" ({matrix.unit})" if matrix.unit else ""
    return HeatMap(f"{title}{unit}", matrix.columns, rows, shown)


def _task_table(comparison: Comparison, metric: str) -> Table:
    """Tasks × (base model, each run at the end of the stream), and the mean."""
    average = comparison.measure(metric, "average")
    matrices = [comparison.matrix(run, metric) for run in range(len(comparison.runs))]
    tasks = [column for column in matrices[0].columns if all(column in matrix.columns for matrix in matrices)]
    bases = [[matrix.cell(0, task).value for task in tasks] for matrix in matrices]
    same = all(base == bases[0] for base in bases)
    shown = (
        [("Base model", bases[0])] if same else list(zip((f"{x}, base" for x in comparison.labels), bases, strict=True))
    )
    places = fmt.decimals(value for base in bases for value in base)
    rows = []
    for position, task in enumerate(tasks):
        found = [matrix.cell(-1, task) for matrix in matrices]
        cells = [Cell(fmt.fixed(base[position], places)) for _, base in shown]
        cells += [Cell(fmt.fixed(e.value, places), fmt.interval(e, places)) for e in found]
        rows.append((task, tuple(cells)))
    if average and len(tasks) > 1:
        # The mean is over the domains' own tasks, as in the runs' average; a general task is a row and no more.
        own = [task in average.columns for task in tasks]
        cells = []
        for _, base in shown:
            known = [value for value, counts in zip(base, own, strict=True) if counts]
            whole = known and None not in known
            cells.append(Cell(fmt.fixed(sum(v or 0.0 for v in known) / len(known) if whole else None, places)))
        for run, e in enumerate(average.estimates):
            cells.append(Cell(fmt.fixed(e.value, places), fmt.interval(e, places), average.best == run))
        rows.append(("mean", tuple(cells)))
    names = (*(name for name, _ in shown), *comparison.labels)
    arrow = "↑" if matrices[0].higher_is_better else "↓"
    return Table(
        f"{metric.replace('_', ' ').capitalize()} {arrow} at the end of the stream", ("Task", *names), tuple(rows)
    )


def _cost_table(comparison: Comparison) -> Table:
    header = ("Run", "Total time", "Training", "Evaluation", "Tokens", "Tokens per second", "Peak memory")
    rows = []
    for label, run in _each(comparison):
        cost = {key: number(value) for key, value in run.cost.items()}
        cells = [fmt.duration(cost.get(key)) for key in ("seconds", "training_seconds", "evaluation_seconds")]
        cells += [fmt.whole(cost.get("tokens")), fmt.whole(cost.get("tokens_per_second"))]
        rows.append((label, tuple(map(Cell, [*cells, fmt.size(cost.get("peak_memory_bytes"))]))))
    return Table("Time, tokens and memory", header, tuple(rows))


def _stage_table(label: str, run: Run) -> Table | None:
    rows = []
    for stage in run.cost.get("stages") or []:
        seen = {
            key: number(stage.get(key)) for key in ("seconds", "tokens", "steps", "tokens_per_second", "final_loss")
        }
        cells = [fmt.duration(seen["seconds"]), *(fmt.whole(seen[k]) for k in ("tokens", "steps", "tokens_per_second"))]
        rows.append((str(stage.get("domain")), tuple(map(Cell, [*cells, fmt.fixed(seen["final_loss"])]))))
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
    rows = [(d, tuple(Cell(fmt.fixed(found[k][d], places[k])) for k in keys)) for d in run.domains]
    if any(value is not None for value in median.values()):
        rows.append(("median", tuple(Cell(fmt.fixed(median[k], places[k])) for k in keys)))
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
        rows.append((f"{entry.get('stage')} · {entry.get('domain')}", tuple(map(Cell, cells))))
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


def _commands(comparison: Comparison) -> str:
    folders = [run.place for run in comparison.runs]
    lines = [fmt.again(folder) for folder in folders]
    return "\n".join([*lines, f"everlearn report {' '.join(shlex.quote(f'{folder}-again') for folder in folders)}"])
