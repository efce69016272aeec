"""The pages of the comparison: a table and pictures a stream, whether the aim is reached, and what is recommended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import choice
import yaml
from choice import ENOUGH, FIRST, MOST, AgainstPlain
from rows import STREAMS, Way, entries, lines_of, parts_of, reads_old_text, rows_of

from everlearn import files
from everlearn.commands.yaml_text import method_text
from everlearn.comparison import formatting as fmt
from everlearn.evaluation.build import BASE
from everlearn.grid import Line, load_results
from everlearn.grid.relative_to_plain import DRIFT, FORGOTTEN, LEARNT, TITLES, compute_of, share_cell, shares_of_plain
from everlearn.methods.sequential import PLAIN
from everlearn.report.figures import draw
from everlearn.report.figures.frontiers import Frontiers, Strength
from everlearn.report.figures.registry import standalone
from everlearn.report.tables import Table, TableCell, markdown_table

METRIC = "bits_per_byte"
REGIME = 0.25
"""Bits per byte that plain training must learn and forget for a stream to say anything."""
NUMBERS = (LEARNT, FORGOTTEN, DRIFT)
LOST = {"forgetting": ("forgotten", "forgetting left"), "drift": ("drift", "general drift left")}
"""Pictures: end of the file's name → which share, and how its axis is called."""
BESIDE_PENALTIES = ("ewc", "replay_earlier", "replay_general")
"""Rows that stand in the penalties' picture too."""
OF_THE_METHOD = (
    "These are models of 5 million parameters, and the learning rate suits these streams. MAS was tried with more "
    "settings than its rivals. Plain training forgets less at lower rates too, but [learns less]"
    "(#plain-training-at-other-learning-rates). `everlearn init` writes this method with a learning rate from [a rule "
    "for models of any size](../learning-rates.md). What is known about larger models is on the page about [real "
    "pretrained models](real-models.md).\n\nThe text of the masked stream was chosen so that plain training learns and "
    "forgets it in so few steps: of the causal stream's text the encoder learnt next to nothing. At its rate plain "
    "training ends worse than the base model on the causal stream, so shares of its forgetting look small; *Held at "
    "the end*, on the pages of the streams, compares what is left."
)
COLUMNS = ("Row", "Configuration", "Runs", "Old data", "Steps", "Compute", "Time")
"""Of a table, before the shares."""
COMMAND = "python benchmarks/frontier/run.py"

Rows = Mapping[str, Mapping[str, Way]]


def write(place: Path, recipes: Path, results: Path, rows_file: Path) -> None:
    """A page for each stream of which there are results, and one of both: ``frontier*.md``, ``.svg`` and ``.json``."""
    data: dict[str, Any] = {"recommended": None, "recommended_with": {}, "recommended_shares": {}, "streams": {}}
    rows = {stream: entries(rows_of(stream, rows_file), recipes / f"{stream}.yaml") for stream in STREAMS}
    penalties = list(yaml.safe_load(rows_file.read_text())["penalties"])
    fresh: dict[str, Any] = {}  # stream → scores by the seeds that chose no strength
    for stream in STREAMS:
        if PLAIN in (lines := lines_of(results / stream)):
            recipe = yaml.safe_load((recipes / f"{stream}.yaml").read_text())
            first, others = lines_of(results / stream, FIRST), lines_of(results / stream, without=FIRST)
            fresh[stream] = choice.scored(others)
            page = StreamPage(stream, rows[stream], lines, first, others, recipe, arithmetic(results / stream))
            data["streams"][stream] = page.as_data()
            files.write_text(place / f"frontier-{stream}.md", page.text(place, penalties))
    name = choice.recommended(results) if len(data["streams"]) == len(STREAMS) else None
    if name is not None:
        methods = next(each[name] for each in rows[STREAMS[0]].values() if name in each)
        data["recommended"], data["recommended_with"] = parts_of(methods)
        data["recommended_shares"] = {stream: vars(scores[name]) for stream, scores in fresh.items()}
    files.write_json(place / "frontier.json", data)
    files.write_text(place / "frontier.md", both(data, results))


class StreamPage:
    """What has been measured on one stream.

    Args:
        stream: its name.
        rows: row → names of its entries → what they are.
        lines: by name, over all seeds.
        first: the same over the first seed, which strengths are chosen with.
        others: the same over the other seeds, which say how good what was chosen is.
        recipe: what all rows share.
        arithmetic: what :func:`arithmetic` says of its cells.
    """

    def __init__(
        self,
        stream: str,
        rows: Rows,
        lines: Mapping[str, Line],
        first: Mapping[str, Line],
        others: Mapping[str, Line],
        recipe: Mapping[str, Any],
        arithmetic: str = "",
    ) -> None:
        self.stream, self.rows, self.lines, self.first, self.recipe = stream, rows, lines, first, recipe
        self.steps = int(recipe["train"]["max_steps"])
        self.arithmetic = arithmetic
        self.plain = lines[PLAIN]
        self.chosen = choice.chosen(rows, first)
        self.fresh = {name: len(others[name].runs) for name in choice.scored(others)}
        self.scores = choice.scored(first) | choice.scored(others)

    def as_data(self) -> dict[str, Any]:
        """What plain training does, and the chosen entry of each row."""
        own = {
            name: self.plain.numbers[name].value for name in (LEARNT, FORGOTTEN, DRIFT) if name in self.plain.numbers
        }
        return {
            "plain": own | {"runs": len(self.plain.runs)},
            "plain_at": {
                f"{rate:g}": vars(scores) | {"runs": len(self.lines[name].runs)}
                for rate, name, scores in self.plain_at()
            },
            "rows": {
                row: {"entry": name, "methods": self.rows[row][name], "other_seeds": self.fresh.get(name, 0)}
                | vars(self.scores[name])
                for row, name in self.chosen.items()
            },
        }

    def plain_at(self) -> list[tuple[float, str, AgainstPlain]]:
        """Learning rate, entry and shares of plain training at other rates, over all seeds, by the rate."""
        scores = choice.scored(self.lines)
        names = [name for name in self.rows.get(PLAIN, {}) if name in scores]
        rate = "train.learning_rate"
        return sorted((float(self.lines[name].facts.options[rate]), name, scores[name]) for name in names)

    def text(self, place: Path, penalties: Sequence[str]) -> str:
        """The page; its pictures are written beside it."""
        parts = [f"# The frontier of learning and forgetting: the {self.stream} stream", self.verdict(), self._begin()]
        parts += [markdown_table(self._table("Each row at its chosen strength", self._one_each()), 2)]
        groups = {
            "": [row for row in self.rows if row not in penalties],
            "-penalties": [*BESIDE_PENALTIES, *penalties] if any(row in self.chosen for row in penalties) else [],
        }
        for group, rows in groups.items():
            for ending, (share, axis) in LOST.items():
                name = f"frontier-{self.stream}{group}-{ending}.svg"
                for plate in draw("frontiers", Frontiers(self._curves(rows, share), axis, "way")):
                    files.write_text(place / name, standalone(plate))
                    parts.append(f"![{axis} against learning kept]({name})\n\n{plate.caption}")
        every = [(row, name) for row, names in self.rows.items() for name in names if name in self.first]
        parts += [markdown_table(self._table("Every strength, the first seed", every, self.first), 2)]
        return "\n\n".join(part.strip() for part in parts) + "\n"

    def _begin(self) -> str:
        numbers = {name: self.plain.numbers[name].value or 0.0 for name in NUMBERS}
        learnt, forgotten, drift = numbers.values()
        regime = "both" if min(learnt, forgotten) >= REGIME else "**not both**"
        model, train = self.recipe["model"], self.recipe["train"]
        path = model if isinstance(model, str) else model["path"]
        domains = [domain["name"] for domain in self.recipe["domains"]]
        return (
            f"The model of `{path}` learns {', '.join(domains)}, one after another, in {self.steps} steps of "
            f"{train['per_device_train_batch_size']} rows of {self.recipe['data']['block_size']} tokens each, in one "
            "order."
            f"\n\nWritten by `{COMMAND}`. The recipe is `benchmarks/frontier/{self.stream}.yaml`, the rows are in "
            "`rows.yaml`, and [the rule](frontier.md#the-rule) that chooses a row's strength is in "
            f"`choice.py`.\n\nPlain training learns {learnt:.3f} bits per byte, forgets {forgotten:.3f} of the "
            f"earlier domains, and lets general text drift by {drift:.3f} ({_count(len(self.plain.runs), 'seed')}). "
            f"Learning and forgetting are {regime} at least {REGIME}, which this comparison requires."
            "\n\nAll rows have equal compute. Plain "
            f"training has {self.steps} steps for each domain. If a row runs passes outside its training steps "
            "(Fisher information, a teacher, a probe, text that the model generates), it has fewer steps; a forward "
            "pass counts as a third of a forward and backward pass. Replayed rows replace rows of the domain. "
            "Averages of weights are taken at the end of every domain, before anything is measured. Shares are "
            "percent of plain training with the same seed, ± the standard deviation over seeds."
            f"{self.arithmetic}"
        )

    def _one_each(self) -> list[tuple[str, str]]:
        """Row and entry: the chosen one; where nothing can be chosen (no order, no forgetting) all that were run."""
        run = [(row, [name for name in names if name in self.lines]) for row, names in self.rows.items()]
        return [(row, name) for row, names in run for name in ([self.chosen[row]] if row in self.chosen else names)]

    def _table(self, title: str, rows: Any, lines: Mapping[str, Line] | None = None) -> Table:
        lines = lines or self.lines
        plain, scores, cells = lines[PLAIN], choice.scored(lines), []
        for row, name in [("sequential", PLAIN), *((row, name) for row, name in rows if name != PLAIN)]:
            line, own = lines[name], scores.get(name)
            relative = shares_of_plain(line, plain)
            compute = compute_of(line, plain)
            texts = [
                line.label.split(" · max_steps")[0],
                str(len(line.runs)),
                "yes" if reads_old_text(line) else "no",
                str(line.facts.options.get("train.max_steps", self.steps)),
                fmt.MISSING if compute is None else f"{compute:.2f}×",
                f"{line.seconds / plain.seconds:.2f}×" if line.seconds and plain.seconds else fmt.MISSING,
            ]
            aim = "" if own is None else "reached" if own.meets else fmt.fixed(own.distance, 2)
            shares = [share_cell(relative.get(each)) for each in TITLES]
            cells.append((row, (*map(TableCell, texts), *shares, TableCell(aim))))
        return Table(
            title,
            (*COLUMNS, *TITLES.values(), "From the aim ↓"),
            tuple(cells),
            "Old data: the row learns again from text of earlier domains, or from general text. Numbers of the first "
            "seed are slightly too good where that seed chose the strength. Compute: counted, relative to plain "
            "training. Time: measured, on a machine that also did other work. Held at the end: the gain over the "
            "base model at the end of the stream, as a share of what plain training learns. From the aim: the "
            f"distance from {ENOUGH:.0%} learning, {MOST:.0%} forgetting and {MOST:.0%} drift.",
        )  # fmt: skip

    def verdict(self) -> str:
        """Whether the aim is reached, and by what."""
        names = {name: row for row, name in self.chosen.items() if not reads_old_text(self.lines[name])}
        if not names:
            return "Nothing has been measured yet."
        met = [name for name in names if self.scores[name].meets]
        chosen_by = choice.scored(self.first)
        first = choice.best({name: [chosen_by[name]] for name in met or names})[0]
        names_text = ", ".join(f"`{names[name]}`" for name in met)
        reached = f"is reached by {names_text}" if met else "is **not reached** by any row"
        return (
            f"The aim (at least {ENOUGH:.0%} of the learning, at most {MOST:.0%} of the forgetting and of the drift, "
            f"without old text, at equal compute) {reached}. By the rule the best row is `{names[first]}` "
            f"({_said(self.scores[first])}; {self._seeds(first)})."
        )

    def _seeds(self, name: str) -> str:
        """What its scores are of."""
        fresh = self.fresh.get(name)
        return _count(fresh, "seed") + " that chose no strength" if fresh else "the seed that it was chosen with"

    def _curves(self, rows: Sequence[str], share: str) -> list[tuple[str, list[Strength]]]:
        """Rows through their ways, by what they keep; of the first seed."""
        by_name, curves = choice.scored(self.first), []
        for row in rows:
            own = [(name, by_name[name]) for name in self.rows.get(row, {}) if name in by_name]
            points = [
                Strength(self.first[name].label.split(" · max_steps")[0], scores.kept, getattr(scores, share))
                for name, scores in sorted(own, key=lambda each: -each[1].kept)
            ]
            if points:
                curves.append((row, points))
        return curves


def arithmetic(cells: Path) -> str:
    """Say how many cells were made on machines whose scores of the base model differ from those of plain training."""
    kinds: dict[tuple[float, ...], list[str]] = {}
    for cell in load_results(cells):
        scores = cell.matrices[METRIC]
        base = tuple(value for stage, _, value, *_ in scores.cells if stage == BASE)
        kinds.setdefault(base, []).append(cell.grid.row)
    common = next(base for base, rows in kinds.items() if PLAIN in rows)
    others = {base: rows for base, rows in kinds.items() if base != common}
    if not others:
        return ""
    apart = max(abs(one - two) for base in others for one, two in zip(base, common, strict=True))
    count, every = sum(map(len, others.values())), sum(map(len, kinds.values()))
    return (
        f"\n\n{count} of {every} runs were made on a machine with another arithmetic than plain training: there the "
        f"scores of the base model differ by up to {apart:.5f} bits per byte."
    )


def curve_of_plain(streams: Mapping[str, Any]) -> Table:
    """Return plain training by its learning rate on all streams."""
    rates = sorted({rate for data in streams.values() for rate in data["plain_at"]}, key=float)

    def cell(data: Mapping[str, Any], rate: str) -> TableCell:
        own = data["plain_at"].get(rate)
        return TableCell(fmt.MISSING if own is None else f"{_said(AgainstPlain.read(own))} ({own['runs']})")

    return Table(
        "Plain training at other learning rates",
        ("Learning rate", *(f"{stream}: kept, forgetting, drift (runs)" for stream in streams)),
        tuple((rate, tuple(cell(data, rate) for data in streams.values())) for rate in rates),
        "Percent of plain training at the rate of the recipe, 0.001: learning, forgetting, drift on general text.",
    )


def both(frontier_data: Mapping[str, Any], results: Path) -> str:
    """The page of both streams: the rule, what is recommended, and each row's shares side by side."""
    streams = frontier_data["streams"]
    names = list(dict.fromkeys(row for data in streams.values() for row in data["rows"]))

    def cells(row: str) -> tuple[TableCell, ...]:
        own = [data["rows"].get(row) for data in streams.values()]
        return tuple(TableCell(fmt.MISSING if each is None else _said(AgainstPlain.read(each))) for each in own)

    table = Table(
        "Each row at its chosen strength",
        ("Row", *(f"{stream}: kept, forgetting, drift" for stream in streams)),
        tuple((row, cells(row)) for row in names),
        "Percent of plain training: learning, forgetting, drift on general text. From seeds that chose nothing, "
        "where there are any.",
    )
    methods, running = frontier_data["recommended"], choice.candidates(results) if len(streams) == len(STREAMS) else []
    if methods is not None:
        changes = ", ".join(f"`{key}: {value:g}`" for key, value in frontier_data["recommended_with"].items())
        recommendation = f"`method: {method_text(methods)}`{f' with {changes}' if changes else ''}"
        shares = frontier_data["recommended_shares"].items()
        own = "; ".join(f"{stream} {_said(AgainstPlain.read(scores))}" for stream, scores in shares)
        recommendation += (
            ". Learning, forgetting and drift in percent of plain training, from the seeds that decided between the "
        )
        recommendation += f"candidates: {own}."
        recommendation += f"\n\n{OF_THE_METHOD}"
    elif running:
        recommendation = (
            f"None yet: {', '.join(f'`{name}`' for name in running)} need {choice.SEEDS} seeds on both streams."
        )
    else:
        recommendation = "None yet: both streams are needed."
    links = ", ".join(f"[{stream}](frontier-{stream}.md)" for stream in streams)
    rule = (choice.__doc__ or "").partition("\n\n")[2].strip()
    parts = [
        "# One comparison at equal compute",
        f"Written by `{COMMAND}`. All strengths, with pictures: {links or 'none yet'}.",
        f"## Recommended\n\n{recommendation}",
        f"## The rule\n\n{rule}",
        markdown_table(table, 2) if names else "",
        markdown_table(curve_of_plain(streams), 2) if names else "",
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _said(scores: AgainstPlain) -> str:
    return ", ".join(f"{100 * value:.0f}" for value in (scores.kept, scores.forgotten, scores.drift)) + " %"


def _count(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")
