"""Describe a comparison of two models in words and tables, for the page, the terminal and the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from everlearn.comparison.formatting import MISSING, fixed, interval, listing, percent, shorten
from everlearn.diagnostics.diff.changes import WordChange
from everlearn.diagnostics.diff.result import ComparedModels
from everlearn.diagnostics.diff.tasks import TaskDifference
from everlearn.diagnostics.diff.texts import TextDifference
from everlearn.evaluation.estimate import Estimate
from everlearn.model.weight_movement import together, total_movement
from everlearn.report.figures.weight_movement import layer_label
from everlearn.report.tables import Table, TableCell, estimate_cell
from everlearn.wording import count

_VISIBLE = {"\n": "⏎", "\r": "⏎", "\t": "→"}
_FEW = 5
"""Maximum rows of a table of tokens on a terminal."""


def sentence(comparison: ComparedModels) -> str:
    """Return sentences on forgetting, learning and indistinguishable changes, each with its interval."""
    words = comparison.verdicts
    described = {text.name: _of_text(text) for text in comparison.texts}
    described |= {task.name: _of_task(task) for task in comparison.tasks}

    def those(word: str) -> str:
        return listing([described[name] for name, own in words.items() if own == word])

    bound = f"{comparison.tolerated:g} bits per byte"
    parts = [
        *([f"forgot some of {one}"] if (one := those("forgot")) else []),
        *([f"lost a little of {one}, less than the {bound} that are tolerated"]
          if (one := those("lost within tolerance")) else []),
        *([f"got better at {one}"] if (one := those("learnt")) else []),
    ]  # fmt: skip
    ends = [f"{comparison.after} {listing(parts)}, compared with {comparison.before}."] if parts else []
    if same := those("no difference"):
        ends.append(f"On {same} no difference can be shown.")
    if unknown := those("unknown"):
        ends.append(f"Too little data for an interval, and so no verdict, on {unknown}.")
    return " ".join(ends)


def _of_text(text: TextDifference) -> str:
    value = f"{fixed(text.difference.value, 3, signed=True)} {interval(text.difference, 3, signed=True)}".strip()
    return f"{text.name} ({value} bits per byte)"


def _of_task(task: TaskDifference) -> str:
    return f"{task.name} ({_score(task.difference, task, signed=True)} {_ends(task.difference, task)})".replace(
        " )", ")"
    )


def _score(estimate: Estimate, task: TaskDifference, signed: bool = False) -> str:
    """Write a score: shares of one as percentages, and their differences in points."""
    if task.unit != "fraction" or estimate.value is None:
        return fixed(estimate.value, 3, signed)
    return f"{fixed(100 * estimate.value, 1, signed)} {'points' if signed else '%'}"


def _ends(estimate: Estimate, task: TaskDifference) -> str:
    scale = 100 if task.unit == "fraction" else 1
    ends = [None if x is None else scale * x for x in (estimate.value, estimate.low, estimate.high)]
    return interval(Estimate(*ends), 1 if scale > 1 else 3, signed=True)


# -- tables -------------------------------------------------------------------------------------------------------


def text_table(comparison: ComparedModels) -> Table:
    """Make a table with a row for each text.

    It shows the verdict, the difference of the losses, the losses of both models, and the size of the text.
    """
    rows = []
    for text in comparison.texts:
        change = None
        if text.before.value and text.difference.value is not None:
            change = text.difference.value / text.before.value
        share = MISSING if change is None else f"{fixed(100 * change, 1, signed=True)} %"
        rows.append(
            (
                text.name,
                (
                    TableCell(comparison.verdicts[text.name]),
                    TableCell(
                        fixed(text.difference.value, signed=True), f"{interval(text.difference, signed=True)} · {share}"
                    ),
                    estimate_cell(text.before),
                    estimate_cell(text.after),
                    TableCell(
                        count(text.documents, "document"),
                        f"{count(text.passages, 'passage')}, {count(text.tokens, 'token')}",
                    ),
                ),
            )
        )
    units = listing(list(dict.fromkeys(text.unit for text in comparison.texts)))
    caption = (
        "Bits per byte: less is better, and a difference above zero is a loss. In brackets: 95 % intervals, from "
        f"resampling {units}, the same ones for both models."
    )
    header = ("Text", "Verdict", "Difference", f"{comparison.before} (before)", f"{comparison.after} (after)", "Read")
    return Table("Texts", header, tuple(rows), caption, first=(1, 2))


def task_table(comparison: ComparedModels) -> Table:
    """Make a table with a row for each end task.

    It shows the verdict, the difference, the scores of both models, and how many examples became better or worse.
    """
    rows = [
        (
            task.name,
            (
                TableCell(comparison.verdicts[task.name]),
                TableCell(_score(task.difference, task, signed=True), _ends(task.difference, task)),
                TableCell(_score(task.before, task)),
                TableCell(_score(task.after, task)),
                TableCell(f"{task.worse:,} worse, {task.better:,} better", f"of {task.examples:,}"),
            ),
        )
        for task in comparison.tasks
    ]
    metrics = listing([f"{task.name}: {task.metric.lower()}" for task in comparison.tasks])
    caption = f"{metrics[:1].upper()}{metrics[1:]}. In brackets: 95 % intervals, from resampling examples in pairs."
    header = (
        "End task",
        "Verdict",
        "Difference",
        f"{comparison.before} (before)",
        f"{comparison.after} (after)",
        "Examples",
    )
    return Table("End tasks", header, tuple(rows), caption, first=(1, 2))


def word_table(title: str, words: Sequence[WordChange]) -> Table:
    """Make a table of vocabulary tokens."""
    rows = [
        (
            quoted(word.token),
            (
                TableCell(f"{word.count:,}"),
                TableCell(fixed(word.before, 1)),
                TableCell(fixed(word.after, 1)),
                TableCell(fixed(word.after - word.before, 1, signed=True)),
                TableCell(quoted(word.instead) if word.instead else "the same"),
            ),
        )
        for word in words
    ]
    header = ("Token", "Times", "Bits before", "Bits after", "Change", "Most often expected after")
    return Table(title, header, tuple(rows))


def layer_table(comparison: ComparedModels) -> Table:
    """Make a table of how far the weights of each layer moved."""
    parts = comparison.layers or []
    listed = [*together(parts).items(), *([("all", total_movement(parts))] if parts else [])]
    rows = [
        (layer_label(name), (TableCell(percent(part.relative)), TableCell(percent(part.share))))
        for name, part in listed
    ]
    caption = (
        "Moved: ‖W′ − W‖ / ‖W‖, the size of the change relative to the weights. Touched: the share of weights that "
        "changed at all."
    )
    return Table("How far each layer moved", ("Layer", "Moved", "Touched"), tuple(rows), caption)


def quoted(token: str) -> str:
    """Return a token in quotation marks with visible white space."""
    shown = "".join(_VISIBLE.get(letter, letter) for letter in token)
    return f"“{shorten(shown, 40) if len(shown) > 40 else shown}”"


def brief_tables(comparison: ComparedModels) -> list[Table]:
    """Return the tables for a terminal: the differences, and for each text the tokens behind them."""
    tables = [
        *([text_table(comparison)] if comparison.texts else []),
        *([task_table(comparison)] if comparison.tasks else []),
    ]
    for text in comparison.texts:
        got_better = comparison.verdicts[text.name] == "learnt"
        words = (text.gained if got_better else text.lost).words[:_FEW]
        if words and any(word.before != word.after for word in words):
            tables.append(word_table(f"{text.name}: tokens that {'gained' if got_better else 'lost'} most", words))
    return tables
