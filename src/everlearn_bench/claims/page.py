"""Write the page of claims in Markdown: the verdicts, then the comparisons of each claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path

from everlearn import files
from everlearn.comparison import formatting as fmt
from everlearn.comparison.runs import Run
from everlearn.errors import RecipeError
from everlearn.grid.cells import load_results
from everlearn.grid.identity import described
from everlearn.grid.rows import entry_of
from everlearn.report.tables import Table, TableCell, escape_markdown, markdown_table
from everlearn.wording import count
from everlearn_bench.claims.constant_predictions import constant_table
from everlearn_bench.claims.judge import FAILS, HOLDS, MISSING, OPEN, SAMPLED, Finding, Judged, judge
from everlearn_bench.suites import Suite
from everlearn_bench.suites.claims import TRANSFER, ClaimQuestion, Number

NUMBERS: dict[Number, str] = {
    "f1": "F1",
    "accuracy": "accuracy",
    "f1_forgetting": "F1 forgetting",
    "accuracy_forgetting": "accuracy forgetting",
    "bits": "bits per byte at the end",
    "bits_learnt": "bits per byte learnt",
    "bits_forgotten": "bits per byte forgotten",
    "drift": "drift of general text (bits per byte)",
    "kept": "mean of tasks of no domain",
    "kept_forgotten": "forgotten of tasks of no domain",
    "pass_at_1": "pass@1",
    "continual": "right after its stage, better than ZS (bits per byte)",
    "lc": "last checkpoint, better than ZS (bits per byte)",
    "fg": "FG (bits per byte)",
    "backward": "backward transfer against ZS (bits per byte)",
    "forward": "forward transfer (bits per byte)",
    "late": "forgotten by late checkpoints, less by early ones, at equal gap (bits per byte)",
}

VERDICTS = (HOLDS, FAILS, OPEN, MISSING)
Measured = Set[int | None]
"""The orders of a grid's cells."""


def write_claims(suite: Suite, results: Path, output: Path) -> list[Judged]:
    """Judge the claims about a suite from a grid's results and write the page.

    Args:
        suite: the suite of the grid.
        results: folder of the cells; it may be empty, or absent.
        output: the Markdown file; replaced atomically.

    Raises:
        RecipeError: the suite comes without claims.
        RunError: a file in `results` is no cell, or the cells were measured with different settings.
    """
    if suite.claims is None:
        raise RecipeError(f"`--claims`: the suite `{suite.name}` comes without claims that could be judged.")
    cells = load_results(results)
    general, these = (judge(cells, suite.claims.claims, sampled) for sampled in SAMPLED.values())
    beside = these if suite.claims.these_tasks else ()
    files.write_text(output, page(suite, suite.claims.title, suite.claims.introduction, general, cells, beside))
    return general


def page(
    suite: Suite,
    title: str,
    introduction: str,
    judged: Sequence[Judged],
    cells: Sequence[Run],
    these: Sequence[Judged] = (),
) -> str:
    """Return the page.

    Args:
        suite: the suite of the cells.
        title: its heading.
        introduction: Markdown.
        judged: the claims.
        cells: the cells on which the verdicts are based.
        these: the same claims for this fixed set of tasks, with seeds as the only sample; empty to omit them.
    """
    titles = _titles(judged, cells, suite)
    orders = frozenset(cell.grid.order for cell in cells)
    bases = "".join(f" (base model {escape_markdown(model.split()[0])})" for model in _models(cells))
    parts = [
        f"# {escape_markdown(title)}{bases}",
        outcome(judged, cells, these),
        introduction.strip(),
        _measured(cells),
        markdown_table(summary(judged, these), 2),
    ]
    parts.append("## The comparisons")
    for number, each in enumerate(judged, 1):
        beside = these[number - 1] if these else None
        parts.append(markdown_table(claim_table(number, each, titles, orders, beside), 3))
    if (constant := constant_table(cells)) is not None:
        parts += ["## Which end tasks can tell methods apart", markdown_table(constant, 3)]
    return "\n\n".join(parts) + "\n"


def outcome(judged: Sequence[Judged], cells: Sequence[Run], these: Sequence[Judged] = ()) -> str:
    """Say how many claims got each verdict, and from what; `these` adds the second verdict."""
    sentences = [f"**{count(len(judged), 'claim')}**, tested with {count(len(cells), 'run')}."]
    sentences += [f"Base model, unless a row names another: {escape_markdown(model)}." for model in _models(cells)]
    for heading, each in zip(_headings(these), (judged, these), strict=False):
        counts = Counter(one.verdict for one in each)
        numbers = ", ".join(f"{verdict}: {counts[verdict]}" for verdict in VERDICTS if counts[verdict])
        sentences.append(f"{heading} – {numbers}.")
    return " ".join(sentences)


def _models(cells: Sequence[Run]) -> list[str]:
    """Return the base model of most rows, as its name and digest; empty where cells do not name one."""
    return [value for cell in cells[:1] for key, value in described(cell.grid.settings) if key == "model"]


def summary(judged: Sequence[Judged], these: Sequence[Judged] = ()) -> Table:
    """Make a table with a line for each claim; `these` adds a second verdict."""
    rows = []
    for number, each in enumerate(judged, 1):
        counts = Counter(finding.verdict for finding in each.findings if finding.question.published)
        counted = [TableCell(str(counts[verdict])) for verdict in VERDICTS]
        limited = f" ({each.claim.caveat})" if each.claim.caveat else ""
        bold = [TableCell(f"**{one.verdict}**{limited}") for one in (each, *these[number - 1 : number])]
        rows.append((f"{number}. {each.claim.sentence}", (*bold, *counted)))
    tested = sum(finding.p_value is not None for each in judged for finding in each.findings)
    comparisons = sum(len(each.findings) for each in judged)
    ours = any(not finding.question.published for each in judged for finding in each.findings)
    of, with_ours = (" of F1 and accuracy", ", bits per byte included") if ours else ("", "")
    of += ", by their verdict for tasks in general" if these else ""
    caption = (
        f"The last four columns count each claim's comparisons{of}. There are {comparisons} comparisons in "
        f"all{with_ours}; {tested} have a p-value so far."
    )
    return Table("Verdicts", ("Claim", *_headings(these), *VERDICTS), tuple(rows), caption)


def _headings(these: Sequence[Judged]) -> list[str]:
    return [f"Verdict for {about}" for about in SAMPLED] if these else ["Verdict"]


def claim_table(
    number: int, judged: Judged, titles: Mapping[str, str], orders: Measured, these: Judged | None = None
) -> Table:
    """Return the comparisons of one claim; `these` adds the verdicts for this fixed set of tasks."""
    alone = all(finding.question.other is None for finding in judged.findings)  # its difference is what was measured
    measured = ("Measured [95 %]",) if alone else ("Measured", "Difference [95 %]")
    second = ("These tasks: difference [95 %]", "p", "p (Holm)", "Verdict") if these is not None else ()
    header = ("Compared", *measured, "p", "p (Holm)", "Runs × tasks", "Verdict", *second)
    rows = []
    for place, finding in enumerate(judged.findings):
        cells = _cells(finding)[1 if alone else 0 :]
        if these is not None:
            own = _cells(these.findings[place])
            cells += [*own[1:4], own[5]]
        rows.append((question(finding.question, titles, orders), tuple(cells)))
    return Table(f"{number}. {judged.claim.sentence}", header, tuple(rows), judged.claim.remark)


def question(comparison: ClaimQuestion, titles: Mapping[str, str], measured: Measured = frozenset()) -> str:
    """Return the comparison in words: ``DAS > EWC: F1``. Of the orders that it asks about, those measured are named."""
    entry, name = titles[comparison.entry] + _orders(comparison.orders, measured), NUMBERS[comparison.number]
    sign = ">" if comparison.relation == "above" else "<"
    scale, _ = _scale(comparison)
    unit = "bits" if scale == 1 else "point" if scale * comparison.bar == 1 else "points"
    margin = f"{scale * comparison.bar:g}" + (f" {unit}" if comparison.bar else "")
    if comparison.other is None:
        return f"{entry}: {name} {sign} {margin}"
    other = titles[comparison.other] + _orders(comparison.other_orders, measured)
    if comparison.relation == "within":
        return f"{entry} = {other} ± {margin}: {name}"
    return f"{entry} {sign} {other}{f' + {margin}' if comparison.bar else ''}: {name}"


def _cells(finding: Finding) -> list[TableCell]:
    scale, places = _scale(finding.question)
    shown = [None if x is None else scale * x for x in vars(finding.difference).values()]
    difference = fmt.estimate(type(finding.difference)(*shown), places, signed=True)
    sides = " / ".join(fmt.fixed(scale * side, places) for side in finding.sides) or fmt.MISSING
    size = f"{len(finding.runs)} × {finding.tasks}" if finding.runs else fmt.MISSING
    texts = (sides, difference, _p(finding.p_value), _p(finding.adjusted), size, finding.verdict)
    return [TableCell(text) for text in texts]


def _orders(numbers: tuple[int, ...] | None, measured: Measured) -> str:
    if numbers is None:
        return ""
    names = [str(number) for number in numbers if number in measured] or [str(number) for number in numbers]
    orders_text = f"{names[0]} to {names[-1]}" if len(names) > 3 else fmt.listing(names)
    return f" in order{'s' if len(names) > 1 else ''} {orders_text}"


def _scale(comparison: ClaimQuestion) -> tuple[float, int]:
    """Return the factor and the decimals with which a number is shown: scores in points, bits unchanged."""
    return (1.0, 4) if comparison.number in (*TRANSFER, "drift") or not comparison.published else (100.0, 2)


def _p(value: float | None) -> str:
    return fmt.MISSING if value is None else "&lt; 0.001" if value < 0.001 else f"{value:.3f}"


def _measured(cells: Sequence[Run]) -> str:
    """Return a summary of the measurements behind the verdicts."""
    if not cells:
        return "**Nothing is measured yet**: the grid has no result, so every claim below is open."
    trained = [cell for cell in cells if cell.tokens]
    recipe = described(cells[0].grid.settings)
    shared = [(key, value) for key, value in recipe if not _every_row_has_its_own(key, trained)]
    with_domain = dict.fromkeys(cell.grid.title for cell in cells if cell.grid.domain_id_at_test)
    kept = dict.fromkeys(cell.grid.title for cell in cells if cell.grid.old_data)
    facts = [
        ("Runs", f"{len(cells)}, of {count(len({cell.grid.row for cell in cells}), 'row')}"),
        ("Orders", _numbers(cell.grid.order for cell in cells)),
        ("Seeds of training", _numbers(cell.grid.seed for cell in cells)),
        ("Know the domain of a text at test", ", ".join(with_domain) or "none"),
        ("Keep text of earlier domains", ", ".join(kept) or "none"),
        *shared,
    ]
    return "**Measured**\n\n" + "\n".join(f"- {escape_markdown(f'{name}: {value}')}" for name, value in facts)


def _numbers(of: Iterable[int | None]) -> str:
    """Return the different numbers in words."""
    return ", ".join(map(str, sorted({each for each in of if each is not None}))) or "none"


def _every_row_has_its_own(key: str, trained: Sequence[Run]) -> bool:
    """Return whether every row overrides a setting, such as the learning rate, so that its shared value is unused."""
    return bool(trained) and all(key in cell.grid.options for cell in trained)


def _titles(judged: Sequence[Judged], cells: Sequence[Run], suite: Suite) -> dict[str, str]:
    questions = [finding.question for each in judged for finding in each.findings]
    names = {
        name
        for claim_question in questions
        for name in (claim_question.entry, claim_question.other)
        if name is not None
    }
    known = {cell.grid.row: cell.grid.title for cell in cells}
    return {name: known[name] if name in known else entry_of(name, suite).title for name in sorted(names)}
