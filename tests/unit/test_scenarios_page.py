"""docs/results/scenarios.md against its cells and its record: tables, pictures, and every number of its sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from everlearn.grid.archive import find_cells

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"
CONSTANT = "sequential-lr_scheduler_typeconstant-warmup_steps0-learning_rate0.0001"
ROWS = {
    "base model": "none",
    "base → A, base → B": "separate",
    "A → B": "sequential",
    "A → A + B": "cumulative",
    "A + B": "pool",
    "mean of the two of base → A, base → B": "merged",
    "warm-up and cosine in each domain": "sequential",
    "cosine in each domain, no warm-up": "sequential-warmup_steps0",
    "warm-up in the first domain, then constant at a tenth": "infinite_schedule",
    "constant at a tenth, no warm-up": CONSTANT,
}
"""What the page calls a row → its name in the cells."""


@cache
def cells() -> Mapping[str, list[dict[str, Any]]]:
    """Return the cells of each row, by seed."""
    found: dict[str, list[dict[str, Any]]] = {}
    every = [cell.value for cell in find_cells(ROOT / "benchmarks/scenarios/results").values()]
    for cell in sorted(every, key=lambda each: each["grid"]["seed"] or 0):
        found.setdefault(cell["grid"]["row"], []).append(cell)
    return found


def bits(cell: dict[str, Any], text: str, after: str | None = None) -> float:
    """Return the bits per byte of a text in the last row of a cell's matrix, or in another one."""
    matrix = cell["matrices"]["bits_per_byte"]
    row = after or matrix["rows"][-1]
    return next(value for own, column, value, *_ in matrix["cells"] if (own, column) == (row, text))


def end(row: str, text: str) -> list[float]:
    """Return the bits per byte at the end, by seed."""
    return [bits(cell, text) for cell in cells()[row]]


@cache
def record() -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks/scenarios/record.json").read_text(encoding="utf-8"))


@cache
def page() -> tuple[str, str]:
    """Return the text, as one line, and what was measured."""
    text, measured = (RESULTS / "scenarios.md").read_text(encoding="utf-8").split("<!-- measured -->")
    return " ".join(text.split()), measured


@pytest.mark.parametrize("title", ROWS)
def test_a_row_of_the_tables_has_the_numbers_of_its_cells(title: str) -> None:
    own = cells()[ROWS[title]]
    lines = [line for line in page()[1].splitlines() if line.startswith(f"| {title} |")]
    assert len(lines) == 1
    a, b, general = ([bits(cell, text) for cell in own] for text in ("papers", "restaurants", "general"))
    every = [a, b, [(x + y) / 2 for x, y in zip(a, b, strict=True)], general]
    shown = [part.strip() for part in lines[0].strip("| ").split(" | ")][2:]
    assert [part.split(" ")[0] for part in shown] == [f"{fmean(values):.3f}" for values in every]
    if len(own) > 1:
        assert [re.findall(r"\d\.\d{3}", part)[1:] for part in shown] == [[f"{v:.3f}" for v in vs] for vs in every]


def test_every_row_that_learns_reads_as_many_tokens() -> None:
    read = {cell["cost"]["tokens"] for row, own in cells().items() for cell in own if row != "none"}
    assert len(read) == 1
    assert set(cells()) == set(ROWS.values()), "every row that was begun is shown"


@pytest.mark.parametrize("text", ["papers", "restaurants", "general"])
def test_content_tokens_and_the_others_add_up_to_all(text: str) -> None:
    for seed, own in record()["content"].items():
        (cell,) = [each for each in cells()["sequential"] if str(each["seed"]) == seed]
        losses = {(row, column): v for row, column, v, *_ in cell["matrices"]["loss"]["cells"]}
        of_content = {(row, column): v for row, column, v, *_ in cell["matrices"]["content_loss"]["cells"]}
        labels = own[text]["labels"]
        for stage, nats in own[text]["nats"].items():
            assert sum(nats) / sum(labels) == pytest.approx(losses[stage, text])
            assert nats[0] / labels[0] == pytest.approx(of_content[stage, text])


@pytest.mark.parametrize("text", ["papers", "restaurants", "Wikipedia"])
def test_the_table_of_content_tokens_is_that_of_the_record(text: str) -> None:
    runs = [run["general" if text == "Wikipedia" else text] for run in record()["content"].values()]
    for kind, said in enumerate(("content tokens", "the others")):
        (line,) = [line for line in page()[1].splitlines() if line.startswith(f"| {text}, {said} |")]
        share, *losses = [part.strip() for part in line.strip("| ").split(" | ")][1:5]
        assert share == f"{100 * fmean(run['labels'][kind] / sum(run['labels']) for run in runs):.0f} %"
        for shown, stage in zip(losses, ("base", "papers", "restaurants"), strict=True):
            assert shown == f"{fmean(run['nats'][stage][kind] / run['labels'][kind] for run in runs):.3f}"


def test_the_violins_are_of_the_record() -> None:
    for number, (title, by_name) in enumerate(record()["rows"]["quantiles"].items(), 1):
        picture = (RESULTS / f"scenarios-{number}.svg").read_text(encoding="utf-8")
        assert f"![{title}: " in page()[1]
        for name, (low, median, high, _) in by_name.items():
            found = re.search(rf"{name}: median ([\d.]+), middle half ([\d.]+) to ([\d.]+)\.", picture)
            assert found is not None
            assert [float(each) for each in found.groups()] == pytest.approx([median, low, high], abs=0.006)


def test_numbers_of_the_sentences_stand_in_the_tables() -> None:
    text, measured = page()
    numbers = re.findall(r"\d\.\d{3}|\d\d %", text)
    assert len(numbers) > 25
    for number in numbers:
        assert f" {number} " in measured, number


def test_what_the_sentences_compare_is_so() -> None:
    """By the rule of the recipe: with both seeds, and by more than 0.01 bits per byte."""
    papers, restaurants, general = (
        {row: end(row, text) for row in cells()} for text in ("papers", "restaurants", "general")
    )
    both = {row: [(a + b) / 2 for a, b in zip(papers[row], restaurants[row], strict=True)] for row in cells()}
    papers["none"] *= 2  # one base model for both seeds

    def differ(of: Mapping[str, list[float]], smaller: str, larger: str) -> bool:
        pairs = list(zip(of[smaller], of[larger], strict=True))
        assert len(pairs) == 2
        return all(larger - smaller > 0.01 for smaller, larger in pairs)

    assert differ(papers, "none", "sequential")
    assert not differ(both, "separate", "pool")
    assert differ(papers, "cumulative", "sequential")
    assert differ(both, "cumulative", "sequential")
    assert differ(restaurants, "sequential", "cumulative")
    assert not differ(both, "merged", "sequential")
    assert not differ(both, "sequential", "merged")
    assert differ(general, "merged", "sequential")
    assert differ(both, "sequential-warmup_steps0", "sequential")
    assert differ(both, "sequential", CONSTANT)
    assert differ(restaurants, "sequential", CONSTANT)
    assert differ(papers, CONSTANT, "sequential")
    assert differ(general, CONSTANT, "sequential")
