"""Write docs/results/real-models.md and .json from the results: python benchmarks/real-models/page.py

In each section the text above the first picture or table is written by hand and stays. Pictures and tables are made
from the cells of the fresh streams (``fresh/``, ``far/``), the trials of the development stream
(``development.jsonl``), what the training of the encoder measured (``minilm.json``, ``encoder-tasks.json``) and its
cells of six domains (``encoder/``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from everlearn import files
from everlearn.evaluation.estimate import Estimate
from everlearn.grid.archive import find_cells
from everlearn.report.figures.registry import draw, standalone
from everlearn.report.figures.tradeoff import Tradeoff, TradeoffPoint
from everlearn.report.tables import Table, TableCell, markdown_table

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/results/real-models.md"
METRIC = "bits_per_byte"
LEARNT, FORGOTTEN, DRIFT = 0.98, 0.1, 0.01
"""The aim: shares of plain training's learning and forgetting, and bits per byte of general drift (README.md)."""
FRESH = ("fresh", "far")
"""The folders of the streams on which nothing was chosen, in the order of their sections."""
ORDERS = {0: "given", 1: "second", 23: "reverse"}
"""Number of an order of domains → what it is: 23 reverses four domains, 1 is the suite's second order of six."""
NUMBERS = ("learnt", "forgotten", "drift", "gained")
HEADER = ("Learnt ↑", "Forgotten ↓", "General drift ↓", "Better than the base at the end ↑")
TITLES = {"sequential": "plain training", "mas": "recommended (MAS)"}
RECOMMENDED = "recommended (MAS) at 3.0e-04"
UNTRAINED, ALONE = "none", "separate"
"""The rows without any domain, and of one model per domain."""
OLD_TEXT = ("replay_general", "mas_replay", "ewc_replay")
"""Rows that read text which the base model had read."""


def numbers_of(results: dict[str, Any]) -> dict[str, float]:
    """Return what a run's ``results.json`` says of :data:`NUMBERS`, in bits per byte."""
    summary = results["summary"][METRIC]
    means = {name: summary[name]["mean"]["value"] for name in NUMBERS if name != "drift"}
    return {**means, "drift": summary["general_drift"]["general"]["value"]}


@dataclass(frozen=True)
class Result:
    """What one trial measured, in bits per byte."""

    row: str
    number: int
    learning_rate: float
    options: str
    steps: int
    learnt: float
    forgotten: float
    drift: float
    gained: float

    @classmethod
    def of(cls, line: dict[str, Any]) -> Result:
        """Read a line of ``development.jsonl`` that did not fail."""
        trial = line["trial"]
        return cls(
            trial["row"],
            trial["number"],
            trial["learning_rate"],
            options(trial["methods"]),
            line["steps"],
            **numbers_of(line["results"]),
        )

    def distance(self, plain: Result) -> float:
        """Return how far the trial is from the aim; 0: it is reached."""
        a = max(0.0, LEARNT - self.learnt / plain.learnt)
        b = max(0.0, self.forgotten / plain.forgotten - FORGOTTEN)
        c = max(0.0, self.drift - DRIFT) / 0.1
        return math.sqrt(a * a + b * b + c * c)


@dataclass(frozen=True)
class GridCell:
    """One cell of a stream; numbers in bits per byte."""

    row: str
    rate: float
    order: int
    seed: int
    numbers: dict[str, float]
    learnt: dict[str, float]
    """Domain → how much better than the base model it is read when just learnt; in the order of training."""
    gained: dict[str, float]
    """Domain → how much better than the base model it is read at the end."""
    base: dict[str, float]
    """Domain → score of the base model."""
    tasks: dict[str, float]
    """End task → share of right answers at the end; empty without end tasks."""

    @property
    def is_at_another_rate(self) -> bool:
        """Return whether it is the recommended method at another rate than the one that was fixed at the start."""
        return self.row.startswith(TITLES["mas"]) and self.row != RECOMMENDED

    @classmethod
    def of(cls, cell: dict[str, Any]) -> GridCell:
        """Read a cell."""
        grid = cell["grid"]
        method, rate = cell["methods"][0]["name"], rate_of(grid)
        row = f"{TITLES[method]} at {rate:.1e}" if method in TITLES else grid["title"]
        learnt, gained = (
            {n: cell["summary"][METRIC][of][n]["value"] for n in cell["domains"]} for of in ("learnt", "gained")
        )
        scores = scores_of(cell)
        return cls(
            row,
            rate,
            grid["order"],
            grid["seed"],
            numbers_of(cell),
            learnt,
            gained,
            {name: scores["base", name] for name in gained},
            accuracy_at_the_end(cell),
        )


def rate_of(grid: dict[str, Any]) -> float:
    """Return the learning rate of a cell: an option of its row, or a setting of the whole grid."""
    rate = grid["options"].get("train.learning_rate") or grid["settings"]["recipe.train"]["learning_rate"]
    return float(rate)


def scores_of(cell: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Return the bits per byte of a cell: (row, text) → score; the rows are "base" and the domains when just learnt."""
    return {(at, name): value for at, name, value, *_ in cell["matrices"][METRIC]["cells"]}


def accuracy_at_the_end(cell: dict[str, Any]) -> dict[str, float]:
    """Return the accuracy of each end task after the last domain; empty without end tasks."""
    matrix = cell["matrices"].get("accuracy", {"rows": [""], "cells": []})
    return {name: value for at, name, value, *_ in matrix["cells"] if at == matrix["rows"][-1]}


Rows = Mapping[str, Mapping[tuple[int, int], GridCell]]
"""The cells of each row, by order and seed."""


def rows_of(cells: Iterable[dict[str, Any]]) -> Rows:
    """Return the cells of each row by order and seed; only pairs of order and seed that every row has.

    The recommended method is first, then plain training by its learning rate, then the others as they come.
    """
    rows: dict[str, dict[tuple[int, int], GridCell]] = {}
    for cell in map(GridCell.of, cells):
        rows.setdefault(cell.row, {})[cell.order, cell.seed] = cell
    common = set.intersection(*(set(own) for own in rows.values()))
    plain = {row: next(iter(own.values())).rate for row, own in rows.items() if row.startswith("plain")}
    order = sorted(rows, key=lambda row: (row != RECOMMENDED, row not in plain, plain.get(row, 0)))
    return {row: {key: rows[row][key] for key in sorted(common)} for row in order}


@dataclass(frozen=True)
class Alone:
    """What rows learn, and have at the end, as shares of what one model per domain learns.

    A share is of two means, over the domains of all runs whose seed has models of single domains.
    """

    rate: float
    """Learning rate of the reference: the one at which models of their own learn most, on average."""
    means: dict[float, float]
    """Learning rate → bits per byte that models of their own learn."""
    seeds: list[int]
    shares: dict[str, dict[str, float]]
    """Row → where: "1", "2", …, the place of the domain in the order; "all"; "end", all domains at the end."""

    @classmethod
    def of(cls, rows: Rows, cells: Iterable[dict[str, Any]]) -> Alone:
        """Compare the rows with the cells of one model per domain, which are of several learning rates and seeds."""
        by_rate: dict[float, dict[tuple[int, str], float]] = {}
        for cell in cells:
            scores, seed = scores_of(cell), cell["grid"]["seed"]
            learnt = {(seed, name): scores["base", name] - scores["alone", name] for name in cell["domains"]}
            by_rate.setdefault(rate_of(cell["grid"]), {}).update(learnt)
        common = set.intersection(*map(set, by_rate.values()))
        means = {rate: fmean(by_rate[rate][key] for key in common) for rate in sorted(by_rate)}
        best, seeds = max(means, key=lambda rate: means[rate]), sorted({seed for seed, _ in common})
        shares: dict[str, dict[str, float]] = {}
        for row, own in rows.items():
            gains: dict[str, list[float]] = {}
            wholes: dict[str, list[float]] = {}
            for run in (run for run in own.values() if run.seed in seeds):
                for place, (name, learnt) in enumerate(run.learnt.items(), 1):
                    for where, gain in ((str(place), learnt), ("all", learnt), ("end", run.gained[name])):
                        gains.setdefault(where, []).append(gain)
                        wholes.setdefault(where, []).append(by_rate[best][run.seed, name])
            shares[row] = {where: fmean(gains[where]) / fmean(wholes[where]) for where in gains}
        return cls(best, means, seeds, shares)

    def table(self) -> Table:
        """Return the table of the shares."""
        places = [where for where in next(iter(self.shares.values())) if where.isdecimal()]
        header = ("Row", *(f"Learnt, domain {place} ↑" for place in places), "Learnt, all ↑", "At the end, all ↑")
        columns = (*places, "all", "end")
        lines = tuple(
            (row, tuple(TableCell(f"{100 * shares[where]:.0f} %") for where in columns))
            for row, shares in self.shares.items()
        )
        means = ", ".join(f"{mean:.3f} at {rate:.1e}" for rate, mean in self.means.items())
        note = (
            f"100 %: what a model of its own learns of the same domain, by plain training at {self.rate:.1e}. Such "
            f"models learn, on average and in bits per byte, {means}. Seeds: {', '.join(map(str, self.seeds))}. Domain "
            "1 is the first one of an order; there are two orders, so each place has two domains."
        )
        return Table("Against one model per domain", header, lines, note)


def picture(stream: str, cells: Sequence[dict[str, Any]]) -> str:
    """Draw learning against forgetting on a stream beside the page, and return the Markdown that shows it."""
    points = []
    for row, own in rows_of(streamed(cells)).items():
        learnt, forgotten = (Estimate(fmean(run.numbers[of] for run in own.values())) for of in ("learnt", "forgotten"))
        points.append(TradeoffPoint(row, learnt, forgotten, row == RECOMMENDED))
    (plate,) = draw("tradeoff", Tradeoff(tuple(points), "bits per byte", ranked=False))
    name = f"{PAGE.stem}-{stream}.svg"
    files.write_text(PAGE.with_name(name), standalone(plate))
    return f"![Learning against forgetting on the {stream} stream]({name})\n\n{plate.caption}"


def fresh_tables(cells: Sequence[dict[str, Any]]) -> list[Table]:
    """Return the tables of a fresh stream: every row, `recommended` against each rate of plain training, domains."""
    rows, alone = rows_of(streamed(cells)), alone_of(cells)
    recommended = rows[RECOMMENDED]
    each, note = _each_row(rows)
    pairs = tuple(
        (
            f"minus {row}",
            tuple(
                _spread([recommended[key].numbers[name] - own[key].numbers[name] for key in recommended])
                for name in NUMBERS
            ),
        )
        for row, own in rows.items()
        if row != RECOMMENDED
    )
    first = next(iter(recommended.values()))
    domains = tuple(first.gained)
    by_domain = tuple(
        (row, tuple(_spread([cell.gained[name] for cell in own.values()]) for name in domains))
        for row, own in rows.items()
    )
    base = ", ".join(f"{name} {first.base[name]:.2f}" for name in domains)
    return [
        Table("Each row", ("Row", *HEADER), each, note),
        Table("The recommended method against plain training", ("Difference", *HEADER), pairs, note),
        Table(
            "Better than the base at the end, by domain", ("Row", *domains), by_domain, f"{note} Base model: {base}."
        ),
        *([Alone.of(rows, alone).table()] if alone else []),
        *([rates_table(rates)] if (rates := at_all_rates(cells)) else []),
    ]


def rates_table(rates: Rows) -> Table:
    """Return the table of the recommended method and of plain training, each by its learning rate."""
    each, note = _each_row(rates)
    return Table("The recommended method at other learning rates", ("Row", *HEADER), each, note)


def _each_row(rows: Rows) -> tuple[Any, str]:
    """Return each row's numbers, and what they are of."""
    runs = next(iter(rows.values()))
    each = tuple(
        (row, tuple(_spread([cell.numbers[name] for cell in own.values()]) for name in NUMBERS))
        for row, own in rows.items()
    )
    note = f"Bits per byte. Runs: {', '.join(f'{ORDERS[order]} order with seed {seed}' for order, seed in runs)}."
    if len(runs) > 1:
        note += " The mean over them, and in brackets the lowest and the highest value."
    return each, note


def _spread(values: Sequence[float]) -> TableCell:
    range_ = f" [{min(values):+.3f}, {max(values):+.3f}]" if len(values) > 1 else ""
    return TableCell(f"{fmean(values):+.3f}{range_}")


def options(methods: list[dict[str, Any]]) -> str:
    """Return what a trial's methods have beside their names, in words."""
    return "; ".join(
        ", ".join(f"{key} {value}" for key, value in method.items() if key not in ("name", "normalise", "samples"))
        for method in methods
    )


def best_plain(results: list[Result]) -> Result:
    """Return plain training at the rate that ends best: the largest gain over the base model at the end."""
    return max((result for result in results if result.row == "plain"), key=lambda result: result.gained)


def tables(lines: list[dict[str, Any]]) -> list[Table]:
    """Return the page's tables: plain training by learning rate, then every other trial."""
    results = [Result.of(line) for line in lines if "results" in line]
    plain = sorted((result for result in results if result.row == "plain"), key=lambda result: result.learning_rate)
    best = best_plain(results)
    curve = Table(
        "Plain training",
        ("Learning rate", *HEADER),
        tuple(
            (f"{one.learning_rate:.1e}" + (" (best at the end)" if one == best else ""), _cells(one)) for one in plain
        ),
        "Bits per byte; one seed. Negative drift: general text is predicted better."
        + (" The best rate is the lowest one tried: a lower one may be better still." if best == plain[0] else ""),
    )
    others = [result for result in results if result.row != "plain"]
    others.sort(key=lambda result: (result.row != "recommended", result.row in OLD_TEXT, result.row, result.number))
    rows = tuple(
        (
            f"{'recommended (MAS)' if one.row == 'recommended' else one.row}, trial {one.number}",
            (
                TableCell(f"{one.learning_rate:.1e}"),
                TableCell(one.options),
                TableCell(str(one.steps)),
                *_cells(one),
                TableCell(f"{one.distance(best):.2f}"),
            ),
        )
        for one in others
    )
    trials = Table(
        "Trials",
        ("Row", "Learning rate", "Settings", "Steps", *HEADER, "Distance from the aim ↓"),
        rows,
        f"Distance from the aim: √(a² + b² + c²), with plain training at {best.learning_rate:.1e} as reference. a: how "
        f"far learning falls short of {LEARNT:.0%} of the reference, as a share of it; b: forgetting beyond "
        f"{FORGOTTEN:.0%} of the reference's, as a share of it; c: (drift − {DRIFT} bits per byte) / 0.1; each at "
        "least 0. Importance is divided by its mean. The recommended row is a single trial that was fixed in advance. "
        "Other rows will get eight trials each; the best of eight is an optimistic estimate.",
    )
    return [curve, trials]


def encoder_tables(
    facts: dict[str, Any], tasks: dict[str, dict[str, Any]], cells: Iterable[dict[str, Any]]
) -> list[Table]:
    """Return the tables of the held-out text along the training of the encoder, its end tasks, and six domains."""
    rows = tuple(
        (f"{each['step']:,}", (TableCell(f"{each['tokens']:,}"), TableCell(f"{each['bits_per_byte']:.3f}")))
        for each in facts["held_out"]
    )
    training = Table("Along its training", ("Step", "Tokens", "Bits per byte ↓"), rows, "64 held-out rows.")
    header = ("End task", "Test examples", "Constant answer", "Fine-tuned, three seeds ↑", "Above, at least", "Counts")
    judged = tuple(
        (
            name,
            (
                TableCell(f"{each['examples']:,}"),
                TableCell(f"{100 * each['constant']:.1f} %"),
                TableCell(", ".join(f"{100 * value:.1f}" for value in each["accuracy"]) + " %"),
                TableCell(f"{100 * min(each['above']):+.1f}"),
                TableCell("yes" if each["counts"] else "no"),
            ),
        )
        for name, each in tasks.items()
    )
    note = (
        "Accuracy. Constant answer: the most frequent label of the test examples. Above, at least: the lowest end, over"
        " the seeds, of the 95 % interval of the paired difference from it, in points."
    )
    return [training, Table("End tasks before any domain", header, judged, note), *six_domains_tables(cells)]


def six_domains_tables(cells: Iterable[dict[str, Any]]) -> list[Table]:
    """Return the tables of six domains on the encoder: held-out text, and end tasks after the last domain."""
    cells = list(cells)
    tasks = {"no adaptation": [accuracy_at_the_end(cell) for cell in cells if cell["grid"]["row"] == UNTRAINED]}
    rows = rows_of(streamed(cells))
    each, note = _each_row(rows)
    tasks |= {row: [cell.tasks for cell in own.values()] for row, own in rows.items()}
    names = tuple(next(iter(tasks.values()))[0])
    right = tuple(
        (
            row,
            (
                *(_percent([run[name] for run in runs]) for name in names),
                _percent([fmean(run.values()) for run in runs]),
            ),
        )
        for row, runs in tasks.items()
    )
    return [
        Table("Six domains: held-out text", ("Row", *HEADER), each, note),
        Table(
            "Six domains: end tasks after the last domain",
            ("Row", *names, "Mean ↑"),
            right,
            note.replace("Bits per byte", "Accuracy in percent"),
        ),
    ]


def _percent(values: Sequence[float]) -> TableCell:
    values = [100 * value for value in values]
    range_ = f" [{min(values):.1f}, {max(values):.1f}]" if len(values) > 1 else ""
    return TableCell(f"{fmean(values):.1f}{range_}")


def summary(lines: list[dict[str, Any]], streams: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Return the numbers that other pages quote, of the development stream and of those on which nothing was chosen."""
    results = [Result.of(line) for line in lines if "results" in line]
    best = best_plain(results)
    recommended = next(result for result in results if result.row == "recommended")
    return {
        "plain": {name: getattr(best, name) for name in ("learning_rate", *NUMBERS)},
        "recommended": {name: getattr(recommended, name) for name in ("learning_rate", *NUMBERS)},
        "learning_kept": recommended.learnt / best.learnt,
        "forgetting_left": recommended.forgotten / best.forgotten,
        **{
            stream: {
                row: {name: fmean(cell.numbers[name] for cell in own.values()) for name in NUMBERS}
                | {"cells": len(own)}
                for row, own in rows_of(streamed(cells)).items()
            }
            for stream, cells in streams.items()
        },
        "rates": {
            stream: {
                row: {name: fmean(cell.numbers[name] for cell in own.values()) for name in NUMBERS}
                for row, own in rows.items()
            }
            for stream, cells in streams.items()
            if (rows := at_all_rates(cells))
        },
        "alone": {
            stream: asdict(Alone.of(rows_of(streamed(cells)), alone_of(cells)))
            for stream, cells in streams.items()
            if alone_of(cells)
        },
    }


def _cells(result: Result) -> tuple[TableCell, ...]:
    return tuple(TableCell(f"{getattr(result, name):+.3f}") for name in NUMBERS)


def alone_of(cells: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cells of one model per domain."""
    return [cell for cell in cells if cell["grid"]["row"].startswith(ALONE)]


def in_stream(cells: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cells of models that learnt one domain after another."""
    return [cell for cell in cells if not cell["grid"]["row"].startswith((UNTRAINED, ALONE))]


def streamed(cells: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cells of a stream without those at rates that the recommended method did not have from the start."""
    return [cell for cell in in_stream(cells) if not GridCell.of(cell).is_at_another_rate]


def at_all_rates(cells: Iterable[dict[str, Any]]) -> Rows:
    """Return the rows with the recommended method at all of its rates; empty where it has one alone.

    Only pairs of order and seed that every row has.
    """
    cells = in_stream(cells)
    if len(streamed(cells)) == len(cells):
        return {}
    rows = rows_of(cells)
    by_rate = sorted(rows, key=lambda row: (row.startswith("plain"), next(iter(rows[row].values())).rate))
    return {row: rows[row] for row in by_rate}


def encoder_cells() -> list[dict[str, Any]]:
    """Return the cells of the encoder, one folder for each learning rate."""
    return [kept.value for folder in sorted((HERE / "encoder").iterdir()) for kept in find_cells(folder).values()]


def main() -> None:
    lines = [json.loads(line) for line in (HERE / "development.jsonl").read_text().splitlines()]
    streams = {name: [kept.value for kept in find_cells(HERE / name).values()] for name in FRESH}
    head, *sections = PAGE.read_text(encoding="utf-8").split("\n## ")
    parts = [head.rstrip()]
    encoder = json.loads((HERE / "minilm.json").read_text(encoding="utf-8"))
    tasks = json.loads((HERE / "encoder-tasks.json").read_text(encoding="utf-8"))
    cells = encoder_cells()
    drawn_sections = (
        *((picture(name, own), fresh_tables(own)) for name, own in streams.items()),
        ("", encoder_tables(encoder, tasks, cells)),
        ("", tables(lines)),
    )
    for section, (drawn, own) in zip(sections, drawn_sections, strict=True):
        text = f"## {section}".split("\n### ")[0].split("\n![")[0].rstrip()
        parts += [text, *([drawn] if drawn else []), *(markdown_table(table, 3) for table in own)]
    if failed := [line for line in lines if "error" in line]:
        reasons: dict[tuple[str, str], list[str]] = {}
        for line in failed:
            reasons.setdefault((line["trial"]["row"], line["error"]), []).append(str(line["trial"]["number"]))
        failures = [f"* {row}, trials {', '.join(numbers)}: {error}" for (row, error), numbers in reasons.items()]
        parts.append("### Trials that failed\n\n" + "\n".join(failures))
    files.write_text(PAGE, "\n\n".join(parts) + "\n")
    files.write_text(
        PAGE.with_suffix(".json"), json.dumps(summary(lines, streams | {"encoder": streamed(cells)}), indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
