"""Show generated samples of a few held-out texts side by side: guesses for blanks, or continuations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape

from markupsafe import Markup

from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison
from everlearn.comparison.runs import Run, clean
from everlearn.errors import RunError
from everlearn.evaluation.cell import Cell
from everlearn.report.drawing import SERIES
from everlearn.report.figures.each_domain import chosen
from everlearn.report.figures.registry import Plate, figure
from everlearn.tasks.samples import BLANKS, samples_path

_SETS = 6
"""Maximum number of sets; with more domains, those that lost the most."""
_KNOWN = 0.01
"""Minimum probability of a true word in one of two models; below it their ratio is meaningless."""
_STAGES = 5
"""Maximum number of stages side by side; with more, only the base model, the set's own stage and the last one."""


@dataclass(frozen=True)
class CheckpointSamples:
    """The samples of one checkpoint on a set, under the name of its column."""

    who: str
    cell: Cell


@figure("samples", data=Comparison, section="samples")
def samples(comparison: Comparison) -> Iterator[Plate]:
    """Show the base model and the end of each run; for a single run, the base model and its stages."""
    several = len(comparison.pools) > 1
    for name in _sets(comparison):
        if several:
            columns = [*_stages(_run(comparison, comparison.ranking[0]), name)[:1]]
            for pool in comparison.ranking[:SERIES]:
                end = _stages(_run(comparison, pool), name)[1:]
                columns += [CheckpointSamples(f"{comparison.labels[pool]}, at the end", end[-1].cell)] if end else []
            yield from _texts(name, columns)
        else:
            yield from _texts(name, _few(_stages(_run(comparison, 0), name), name))


@figure("samples by stage", data=Comparison, section="samples by stage")
def said_by_stage(comparison: Comparison) -> Iterator[Plate]:
    """Show the stages of the run that is best at the end."""
    if len(comparison.pools) > 1:
        best = comparison.ranking[0]
        for name in _sets(comparison):
            columns = _few(_stages(_run(comparison, best), name), name)
            yield from _texts(f"{name}: {comparison.labels[best]}", columns)


def _sets(comparison: Comparison) -> list[str]:
    return [*comparison.general, *chosen(comparison)][:_SETS]


def _run(comparison: Comparison, pool: int) -> Run:
    return comparison.pools[pool].runs[0]


def _stages(run: Run, name: str) -> list[CheckpointSamples]:
    """Return the base model's samples, then those of each stage that has some."""
    samples: list[CheckpointSamples] = []
    if run.folder is None:
        return samples
    for row in range(len(run.domains) + 1):
        path = samples_path(run.folder / "evaluation", row, name)
        if path.is_file():
            try:
                samples.append(
                    CheckpointSamples(f"after {run.domains[row - 1]}" if row else "base model", Cell.load(path))
                )
            except RunError:
                continue  # the page is possible without this column
    return samples if samples and samples[0].who == "base model" else []


def _few(stages: Sequence[CheckpointSamples], name: str) -> list[CheckpointSamples]:
    """Return all stages, or if there are too many, the base model, the set's own stage and the last one."""
    if len(stages) <= _STAGES + 1:
        return list(stages)
    return [stage for i, stage in enumerate(stages) if i in (0, len(stages) - 1) or stage.who == f"after {name}"]


def _texts(title: str, columns: Sequence[CheckpointSamples]) -> Iterator[Plate]:
    columns = [column for column in columns if column.cell.same_examples(columns[0].cell)]
    if len(columns) < 2:
        return
    first = columns[0].cell
    for number, shown in enumerate(clean(first.facts.get("shown")) or ()):
        examples = [i for i, text in enumerate(first["text"].tolist()) if text == number]
        if examples:
            heading = escape(title if number == 0 else f"{title}, another text")
            body = (_blanks if first.facts.get("form") == BLANKS else _written)(shown, examples, columns)
            yield Plate(Markup(f"<div class='said'><h3>{heading}</h3>\n{body}</div>"), "")


def _blanks(shown: Sequence[str], examples: Sequence[int], columns: Sequence[CheckpointSamples]) -> str:
    """Return the passage with its true words, and a table: a row for each blank, a column for each model."""
    truths = shown[1::2]
    parts = [escape(shown[0].lstrip())]
    for number, (truth, behind) in enumerate(zip(truths, shown[2::2], strict=True), 1):
        parts.append(f"<mark>{escape(truth)}<sup>{number}</sup></mark>{escape(behind)}")
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("true word", *(c.who for c in columns)))
    rows = []
    for number, (truth, i) in enumerate(zip(truths, examples, strict=True), 1):
        cells: list[str] = []
        base: tuple[str, float] | None = None
        for column in columns:
            guesses = clean(column.cell.texts[i]).split("\n")
            likely = column.cell["likely"][:, i].tolist()
            true = float(column.cell["truth"][i])
            cells.append(_guess(guesses, likely, true, truth, base))
            base = base or (guesses[0], true)
        rows.append(f'<tr><th scope="row">{number} {escape(truth)}</th>{"".join(cells)}</tr>')
    return (
        f"<p class='passage'>{''.join(parts)}</p>\n"
        f'<div class="scroll" tabindex="0" role="region" aria-label="guesses">\n<table class="guesses">'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(rows) + "\n</tbody></table></div>"
    )


def _guess(
    guesses: Sequence[str], likely: Sequence[float], truth: float, right: str, base: tuple[str, float] | None
) -> str:
    """Return the likeliest word, the next ones, and the probability of the true word."""
    best = escape(guesses[0] or "…") + (" ✓" if guesses[0] == right else "")
    classed = ""
    if base is not None:
        best = f"<b>{best}</b>" if guesses[0] != base[0] else best
        if max(truth, base[1]) >= _KNOWN:
            classed = ' class="gain"' if truth >= 2 * base[1] else ' class="loss"' if 2 * truth <= base[1] else ""
    small = (" / ".join(escape(guess or "…") for guess in guesses[1:]), f"true: {_percent(truth)}")
    return f"<td{classed}>{best} {_percent(likely[0])}{''.join(f'<small>{line}</small>' for line in small)}</td>"


def _percent(share: float) -> str:
    return f"{fmt.fixed(100 * share, 0 if share >= 0.0995 else 1)} %"


def _written(shown: Sequence[str], examples: Sequence[int], columns: Sequence[CheckpointSamples]) -> str:
    """Return the prompt, the true continuation, and the continuation that each model generated.

    Where a model's continuation differs from the one of the base model, its words are bold.
    """
    base = clean(columns[0].cell.texts[examples[0]])
    lines = [("what follows", escape(shown[1].strip()), " class='truth'")]
    for column in columns:
        text = clean(column.cell.texts[examples[0]])
        lines.append((column.who, escape(text) if text == base else _changed(base, text), ""))
    rows = "\n".join(
        f'<tr{classed}><th scope="row">{escape(who)}</th><td>{text or "(nothing)"}</td></tr>'
        for who, text, classed in lines
    )
    return (
        f"<p class='passage'>{escape(shown[0].strip())} …</p>\n"
        f'<div class="scroll" tabindex="0" role="region" aria-label="what is written">\n'
        f'<table class="written"><tbody>\n{rows}\n</tbody></table></div>'
    )


def _changed(base: str, text: str) -> str:
    old, new = base.split(), text.split()
    parts = []
    for kind, _, _, start, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        words = escape(" ".join(new[start:end]))
        if words:
            parts.append(words if kind == "equal" else f"<b>{words}</b>")
    return " ".join(parts)
