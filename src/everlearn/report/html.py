"""Write the report page: one self-contained HTML file that opens offline, on a phone, in light and in dark mode."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
import shlex
from collections.abc import Sequence
from difflib import unified_diff
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from everlearn import wording
from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison, compare
from everlearn.config.public_paths import recipe_without_folders
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.quantities import QUANTITIES
from everlearn.evaluation.statistics import FEW
from everlearn.files import write_text
from everlearn.report.drawing import SERIES, legend_of
from everlearn.report.figures import Plate, draw, in_section
from everlearn.report.figures.balance import Balance, DomainBalance
from everlearn.report.figures.each_domain import SHOWN
from everlearn.report.figures.tradeoff import Tradeoff, TradeoffPoint
from everlearn.report.run_tables import cost_table, mixture_table, stage_table, task_table
from everlearn.report.sections import further_sections
from everlearn.report.tables import column_table, difference_table, differing_table, further_tables, headline_table
from everlearn.report.verdict import paragraphs, recommended

if TYPE_CHECKING:
    from jinja2 import Environment

_STREAM = 24
"""Maximum number of domains that the line with the stream names."""
_GLOSSARY = (
    ("Domain, stage, stream", "A domain is a named corpus. Training on it is a stage. The stream is the order of the "
     "domains."),
    ("Bits per byte", "The loss on held-out text in bits, per byte of that text. It does not depend on the tokenizer. "
     "Lower is better; for masked models it counts the masked tokens and their bytes."),
    ("General text", "Held-out text on which no stage trains. A loss there is forgotten knowledge of the base model."),
    ("End task", "Labelled examples that measure what a model knows after a stage, with or without fine-tuning."),
    ("Score matrix", "The score on each set (columns) after each stage (rows); row 0 is the untouched base model."),
    ("Interval", "A 95 % interval over the documents of the held-out text (bootstrap; Student's t for fewer than "
     f"{FEW}): how much another sample of the same text could change the number. It does not cover other training "
     "seeds. If a recipe ran with several seeds, numbers are means over seeds, and the intervals (Student's t) show "
     "how much other seeds could change them. A difference is paired by seed, or for single runs by text. If the text "
     "differs, the two intervals are treated as independent (Zou and Donner, 2008), which is conservative."),
)  # fmt: skip


def write_report(runs: Sequence[Path], output: Path) -> Path:
    """Write the page that compares these runs.

    Args:
        runs: Run folders; the first is the reference.
        output: The HTML file, which is replaced atomically.

    Returns:
        The path of the page.

    Raises:
        RunError: a folder is not a run, or the disk is full.
    """
    output = Path(output)
    write_text(output, page(compare(runs)))
    return output


def page(comparison: Comparison, incomplete: str = "") -> str:
    """Return the page as text.

    Its size grows with the number of runs and the number of domains, but not with their product.

    Args:
        comparison: the runs.
        incomplete: a sentence on further runs that are missing.
    """
    several = len(comparison.pools) > 1
    best = comparison.ranking[:SERIES]
    shown = [(_of_one_run(comparison, pool), comparison.pools[pool].runs[0]) for pool in best]
    return render(
        "page.html.jinja",
        title=_title(comparison),
        top=top_figure(comparison),
        verdict=paragraphs(comparison),
        incomplete=incomplete,
        headline=headline_table(comparison),
        differences=difference_table(comparison) if several and comparison.headline else None,
        differing=differing_table(comparison),
        facts=_facts(comparison),
        legend=_legend(comparison),
        section=lambda name: in_section(name, comparison),
        many=len(comparison.domains) > SHOWN,
        seeds=len(comparison.runs) > len(comparison.pools),
        domain_tables=[
            column_table(m, comparison) for m in comparison.headline if m.quantity.signed and len(m.columns) > 1
        ],
        further_quantities=further_tables(comparison),
        # Without a stream there is neither a base model nor an end; the models' scores are in the first table.
        tasks=[task_table(comparison, metric) for metric in comparison.task_metrics if comparison.streams],
        cost=cost_table(comparison) if any(run.domains for run in comparison.runs) else None,
        stages=[table for run in shown if (table := stage_table(*run))],
        mixtures=[table for run in shown if (table := mixture_table(*run))],
        further=further_sections(comparison),
        notes=comparison.notes,
        methods=_methods(comparison),
        recipes=_recipes(comparison),
        environments=_environments(comparison),
        words=[
            *_GLOSSARY[:1],
            *((q.title, q.meaning) for q in QUANTITIES.values() if _shown(comparison, q.key)),
            *_GLOSSARY[1:],
        ],
        commands=_commands(comparison),
        version=comparison.runs[0].results.get("everlearn") or "",
    )


def _of_one_run(comparison: Comparison, pool: int) -> str:
    """Return the label of a pool's first run where it is shown alone."""
    pooled = comparison.pools[pool]
    return pooled.label + (f", seed {pooled.seeds[0]}" if len(pooled.runs) > 1 else "")


def top_figure(comparison: Comparison) -> list[Plate]:
    """Return the main figure: runs against each other, or what a single run gained and kept."""
    learnt, forgotten, gained = (comparison.measure(comparison.lead, key) for key in ("learnt", "forgotten", "gained"))
    if learnt is None:
        return []
    chosen, nothing = recommended(comparison), (Estimate(),) * len(comparison.pools)
    lost = forgotten.estimates if forgotten else nothing
    several = draw(
        "tradeoff",
        Tradeoff(
            tuple(
                TradeoffPoint(comparison.labels[pool], learnt.estimates[pool], lost[pool], pool == chosen)
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
        DomainBalance(name, gains[first].value, left.get(name, nothing)[first].value)
        for name, gains in learnt.columns.items()
    )
    return draw("balance", Balance(domains, learnt.unit))


def _legend(comparison: Comparison) -> list[tuple[str, str, int]]:
    named = legend_of(comparison.labels[pool] for pool in comparison.ranking)
    others = [("others", "●", SERIES)] if len(comparison.pools) > SERIES else []
    return [*named, *others] if len(comparison.pools) > 1 else []


def render(template: str, **values: object) -> str:
    """Render a page of everlearn from a template of this package, with style and script inside.

    Templates share the macros of ``macros.html.jinja`` and need at least ``title`` and ``version``.
    """
    files = resources.files("everlearn.report")
    style, script = (files.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "page.js"))
    # Only this script may run, not one that hides in a name of foreign results.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment()
        .get_template(template)
        .render(style=Markup(style), script=Markup(script), script_digest=Markup(f"sha256-{digest}"), **values)
    )


@functools.cache
def _environment() -> Environment:
    """Return the environment of all pages, which keeps the templates that it has compiled."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # imported here, since only pages need it

    environment = Environment(
        loader=PackageLoader("everlearn.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = with_code
    return environment


def with_code(text: str) -> Markup:
    """Return escaped text in which parts between backticks are code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _shown(comparison: Comparison, key: str) -> bool:
    return any(measure.quantity.key == key for measures in comparison.measures.values() for measure in measures)


def _title(comparison: Comparison) -> str:
    if not comparison.streams:
        return f"{fmt.listing(list(comparison.labels[:3]))}: models that were measured"
    if len(comparison.pools) == 1:
        return f"{comparison.labels[0]}: what was learnt, what was forgotten"
    if len(comparison.runs) > len(comparison.pools):
        return (
            f"{wording.count(len(comparison.pools), 'recipe')}, {wording.count(len(comparison.runs), 'run')}: what "
            "each learnt, what each forgot"
        )
    if len(comparison.pools) > 3:
        return f"{wording.count(len(comparison.runs), 'run')}: what each learnt, what each forgot"
    return f"{fmt.listing(list(comparison.labels))}: what each learnt, what each forgot"


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    def say(key: str) -> str:
        values = dict.fromkeys(str(run.results[key]) for run in comparison.runs if run.results.get(key) is not None)
        return fmt.listing([value.removeprefix("./") for value in values]) or fmt.MISSING

    names = list(comparison.runs[0].domains if comparison.same_stream else comparison.domains)
    if len(names) > _STREAM:
        names = [*names[: _STREAM - 4], f"… ({wording.count(len(names), 'domain')})", *names[-3:]]
    stream = " → ".join(names)
    origin = [("Stream", stream), ("Base model", say("model"))] if comparison.streams else [("Models", say("model"))]
    return [*origin, ("Objective", say("objective")), ("Seed", say("seed"))]


def _methods(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return title, paper (a web address or empty) and options of every method, each once."""
    papers = {}
    for run in comparison.runs:
        for method in run.results.get("methods") or []:
            paper = str(method.get("paper") or "")
            options = ", ".join(f"{key}={wording.value(value)}" for key, value in (method.get("options") or {}).items())
            title = str(method.get("title") or method.get("name"))
            # Only web addresses become links, since a results file may be foreign.
            papers[title, options] = paper if paper.startswith(("https://", "http://")) else ""
    return [(title, paper, options) for (title, options), paper in papers.items()]


def _recipes(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the best run's recipe in full, and for every other run the lines that differ."""
    shown: list[tuple[str, str]] = []
    best_recipe: str | None = None
    for pool in comparison.ranking:
        label, text = comparison.labels[pool], comparison.pools[pool].runs[0].recipe
        if not text:
            continue
        text = recipe_without_folders(text)
        if best_recipe is None:
            best_recipe = text
            shown.append((label, text))
            continue
        lines = list(unified_diff(best_recipe.splitlines(), text.splitlines(), shown[0][0], label, lineterm="", n=0))
        shown.append((f"{label} (what differs)", "\n".join(lines) or "nothing"))
    return shown


def _environments(comparison: Comparison) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return every environment once, with the runs that had it."""
    by_content: dict[str, tuple[list[str], list[tuple[str, str]]]] = {}
    for pool in comparison.pools:
        for run in pool.runs:
            if run.environment:
                entries = fmt.flatten(run.environment)
                labels = by_content.setdefault(repr(entries), ([], entries))[0]
                labels += [pool.label] if pool.label not in labels else []
    return [(fmt.listing(labels), entries) for labels, entries in by_content.values()]


def _commands(comparison: Comparison) -> str:
    folders = [run.place for run in comparison.runs]
    lines = [fmt.again(run.place, run.imports) for run in comparison.runs]
    return "\n".join([*lines, f"everlearn report {' '.join(shlex.quote(f'{folder}-again') for folder in folders)}"])
