"""Render a search: a verdict, two figures, one table; and write the recipe that it recommends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from everlearn import wording
from everlearn.comparison.comparison import Side
from everlearn.comparison.formatting import MISSING, fixed
from everlearn.config.reading import written
from everlearn.evaluation.estimate import Estimate
from everlearn.files import write_text
from everlearn.methods.sequential import PLAIN
from everlearn.report.drawing import legend_of
from everlearn.report.figures import draw
from everlearn.report.figures.curves import Curve, Curves
from everlearn.report.figures.trials import Trials, Tried
from everlearn.report.html import render
from everlearn.report.sections import Section
from everlearn.report.tables import Table, TableCell
from everlearn.tuning.pilot import FEWEST, Trial, best, expected_best, scores_of, with_rate
from everlearn.tuning.search import SearchResult
from everlearn.tuning.space import Candidate, rate_of
from everlearn.version import __version__

_UNIT = "bits/byte"
_PLACES = 3
_WORTH = {True: "yes", False: "no", None: "undecided"}


def verdict(result: SearchResult) -> list[str]:
    """Return the verdict: the recommended trial against plain training at its best rate, and its limits."""
    chosen = result.chosen
    if chosen is None:
        return ["No trial was completed: every one failed or was stopped. Lower `train.learning_rate`, or try more."]
    row, plain = result.row(chosen), result.rows[0]
    rival = best(result.trials[plain.name], result.tolerate)
    sentences = _opening(result, chosen)
    low, high = chosen.gained[1:]
    if row.plain and len(result.rows) > 1:
        sentences.append("No method that was tried did better than that.")
    elif rival is not None:
        sentences.append(f"{plain.title} did best with {_setting(rival)}: {_gain_text(rival)}.")
        if low is not None and high is not None and rival.gained[0] is not None and low <= rival.gained[0] <= high:
            sentences.append("Its gain lies inside that interval: these short runs do not tell the two apart.")
    count = min(len(trials) for trials in result.trials.values())
    general = bool(chosen.drifts)
    drift = f", less general drift beyond {result.tolerate:g} {_UNIT} (`report.tolerate`)" if general else ""
    sentences.append(
        f"The score is the gain at the end{drift}; trials were {100 * result.share:.0f} % of the recipe's steps (at "
        f"least {FEWEST} a domain, where the recipe has as many), with one seed. Each row had "
        f"{wording.count(count, 'trial')} at the same points. The best of them is partly best by luck: before you rely "
        f"on it, compare complete runs of the recommended recipe, `{_full_runs(chosen, rival, row)}`."
    )
    if not general:
        sentences.append("There is no general text (`general`): what was forgotten of it is not in the score.")
    if len(result.recipe.domains) == 1:
        sentences.append("Of one domain nothing can be forgotten; only learning and general drift are compared.")
    if count < result.trial_count:
        sentences.append(f"{result.trial_count} trials of each were asked for: call it again to go on.")
    return sentences


def _opening(result: SearchResult, chosen: Trial) -> list[str]:
    """Say whether the chosen trial is worth taking, and which trial with a higher score is not."""
    worth, where = chosen.worth_taking(result.tolerate), chosen.side(result.tolerate)
    trial = f"{result.row(chosen).title} with {_setting(chosen)}: {_gain_text(chosen)}."
    bound = f"{result.tolerate:g} {_UNIT} (`report.tolerate`)"
    if worth:
        top = max((each for each in result.every if each.state == "complete"), key=lambda each: each.score)
        higher = f"{result.row(top).title} with {_setting(top)} has a higher score, but is not clearly worth taking"
        return [f"Take {trial}", *([f"{higher}: {_gain_text(top)}."] if top.score > chosen.score else [])]
    if chosen.score <= 0:
        return [f"No trial is worth taking; the least bad is {trial}"]
    sentences = [f"No trial is {'clearly ' if worth is None else ''}worth taking; the best is {trial}"]
    if Estimate(*chosen.gained).sign != 1:
        sentences.append(
            "Whether it is better than the base model is not clear from these short runs: a higher `--share` or more "
            "held-out text (`evaluation.blocks`) tells more."
        )
    if where is Side.BEYOND:
        sentences.append(f"General text lost more than {bound}: take it only if that does not matter.")
    if where is Side.UNDECIDED:
        sentences.append(
            f"Whether general text lost more than {bound} is undecided: more held-out general text "
            "(`evaluation.blocks`) tells more."
        )
    return sentences


def _full_runs(chosen: Trial, rival: Trial | None, row: Candidate) -> str:
    """Return the command that compares the chosen trial with plain training at its best rate in full runs."""
    names = [method["name"] for method in row.methods]
    method_text = names[0] if len(names) == 1 else f"[{','.join(names)}]"
    methods = PLAIN if row.plain else f"'{PLAIN},{method_text}'"
    rates = dict.fromkeys([chosen.learning_rate, *([] if rival is None else [rival.learning_rate])])
    values = ",".join(f"{rate:g}" for rate in rates)
    return f"everlearn sweep RECIPE --methods {methods} --set train.learning_rate={values} --seeds 1,2,3"


def _setting(trial: Trial) -> str:
    return ", ".join(
        [
            f"learning rate {trial.learning_rate:g}",
            *(f"{key} {wording.value(value)}" for key, value in trial.drawn.items()),
        ]
    )


def _gain_text(trial: Trial) -> str:
    parts = [f"gain at the end {_signed(Estimate(*trial.gained), f' {_UNIT}')}"]
    parts += [f"learnt {fixed(trial.learnt, _PLACES)}"] if trial.learnt is not None else []
    parts += [f"forgotten {fixed(trial.forgotten, _PLACES)}"] if trial.forgotten is not None else []
    parts += [f"general drift {_signed(trial.drift)}"] if trial.drifts else []
    return ", ".join(parts)


def _signed(estimate: Estimate, unit: str = "") -> str:
    ends = "" if estimate.interval is None else f" ({' to '.join(fixed(e, _PLACES, True) for e in estimate.interval)})"
    return f"{fixed(estimate.value, _PLACES, True)}{unit}{ends}"


def tables(result: SearchResult) -> list[Table]:
    """Return a table of all trials, the best first, and one of the search space."""
    ordered = sorted(result.every, key=lambda trial: (trial.state != "complete", -trial.score))
    rows = [(f"{result.row(trial).title} {trial.number + 1}", _cells(result, trial)) for trial in ordered]
    numbers = ("Score ↑", "Gain ↑", "Learnt ↑", "Forgotten ↓", "General drift ↓")
    header = ("Trial", *numbers, "Worth taking", "Setting", "State")
    caption = (
        f"In {_UNIT}. Worth taking: the gain is above 0, and general drift at most {result.tolerate:g} "
        "(`report.tolerate`), by 95 % intervals. Chosen: the highest score, of those that are worth taking if any is. "
        "Stopped: after a domain its score was below the worst quarter of its row."
    )
    return [Table("Trials", header, tuple(rows), caption), _spaces(result.rows)]


def _cells(result: SearchResult, trial: Trial) -> tuple[TableCell, ...]:
    numbers = (trial.score, trial.gained[0], trial.learnt, trial.forgotten, trial.drift.value)
    signed = (True, True, False, False, True)
    texts = [
        MISSING if number is None or not math.isfinite(number) else fixed(number, _PLACES, sign)
        for number, sign in zip(numbers, signed, strict=True)
    ]
    worth = _WORTH[trial.worth_taking(result.tolerate)] if trial.state == "complete" else MISSING
    state = f"{trial.state}, chosen" if trial is result.chosen else trial.state
    return tuple(map(TableCell, (*texts, worth, _setting(trial), state)))


def _spaces(rows: Sequence[Candidate]) -> Table:
    lines = [
        (f"{row.title}: {draw.option}", (TableCell(draw.range.describe(draw.value)), TableCell(f"{draw.value}")))
        for row in rows
        for draw in row.draws
    ]
    return Table("Drawn from", ("Option", "Range", "In the recipe"), tuple(lines))


def page(result: SearchResult) -> str:
    """Return the page as text."""
    legend = tuple(legend_of(row.title for row in result.rows))
    drift = any(trial.drifts for trial in result.every)
    lost = "forgotten + general drift" if drift else "forgotten"
    marks = []
    for row in result.rows:
        complete = [trial for trial in result.trials[row.name] if trial.state == "complete"]
        complete.sort(key=lambda trial: trial.learning_rate)
        marks.append((row.title, [_tried(result, trial) for trial in complete if trial.learnt is not None]))
    pictures = Section("Learning against forgetting", "", draw("trials", Trials(marks, lost, _UNIT)), [], legend)
    trials, spaces = tables(result)
    expected = Section(
        "What the best of n trials scores",
        "How good a method looks depends on how often it is tried: rows are compared at equal numbers of trials.",
        draw("curves", _expected(result)),
        [],
        legend,
    )
    return render(
        "tune.html.jinja",
        title="Which setting to take",
        version=__version__,
        verdict=verdict(result),
        sections=[pictures, Section("All trials", "", [], [trials, spaces]), expected],
    )


def _tried(result: SearchResult, trial: Trial) -> Tried:
    lost = (trial.forgotten or 0.0) + (trial.drift.value or 0.0)
    return Tried(lost, trial.learnt or 0.0, _setting(trial), trial is result.chosen)


def _expected(result: SearchResult) -> Curves:
    """Return the expected best score by number of trials."""
    lines = []
    for series, row in enumerate(result.rows):
        expected = expected_best(scores_of(result.trials[row.name]))
        lines.append(Curve(series, list(range(1, len(expected) + 1)), expected, label=row.title))
    caption = (
        "Expected score of the best of n trials. A trial that was stopped or that failed counts as the worst complete "
        "one of its row."
    )
    return Curves(_UNIT, lines, caption, x_label="trials")


def recommended(result: SearchResult, trial: Trial) -> str:
    """Return the user's recipe with a trial's learning rate and methods, as YAML with the reason above it."""
    raw = result.recipe.model_dump(mode="json", exclude_unset=True)
    raw = with_rate(raw, trial.learning_rate, rate_of(result.recipe))
    raw["method"] = trial.methods
    run = {key: value for key, value in raw.get("run", {}).items() if key != "folder"}
    raw["run"] = {**run, "name": f"{result.recipe.run.name}-tuned"}
    reason = "\n".join(f"# {sentence}" for sentence in verdict(result))
    return f"# Written by everlearn tune. What it was chosen by:\n{reason}\n{written(raw)}"


def as_data(result: SearchResult) -> dict[str, Any]:
    """Return the results as plain data, for JSON."""
    chosen = result.chosen
    return {
        "chosen": None if chosen is None else _data(result, chosen),
        "verdict": verdict(result),
        "tolerate": result.tolerate,
        "share": result.share,
        "trials": [_data(result, trial) for trial in result.every],
        "expected_best": {row.title: expected_best(scores_of(result.trials[row.name])) for row in result.rows},
    }


def _data(result: SearchResult, trial: Trial) -> Mapping[str, Any]:
    worth = trial.worth_taking(result.tolerate) if trial.state == "complete" else None
    score = trial.score if math.isfinite(trial.score) else None
    return asdict(trial) | {"score": score, "drift": trial.drift.value, "worth_taking": worth}


def write(result: SearchResult, place: Path) -> Path:
    """Write the page into a folder, atomically, and return its path."""
    write_text(place / "index.html", page(result))
    return place / "index.html"
