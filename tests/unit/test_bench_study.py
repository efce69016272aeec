"""The causal study's tables of a grid, by hand: medians beside means, super-domains."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import tiny
from everlearn.comparison.runs import Run
from everlearn.config.recipe import parse
from everlearn.grid.compute import evaluation_share
from everlearn.grid.page import GridPage
from everlearn.grid.recipe_template import RecipeTemplate
from everlearn.report.tables import Table
from everlearn_bench.suites import Suite as BaseSuite
from everlearn_bench.suites import find_suite, overlay_of
from everlearn_bench.transfer_study.long_streams import LongStreams
from grid_cells import cell_of, like, made_of

NAMES = [f"d{number}" for number in range(9)]
GAINS = [1.0] * 8 + [1.9]
"""Mean 1.1, median 1."""
LOST = [0.9] + [0.1] * 7
"""Of the first eight: mean 0.2, median 0.1."""
ALONE = [0.5] * 8 + [1.4]
"""Mean 0.6, median 0.5."""
LEVELS = {name: "wiki" if place < 3 else "papers" for place, name in enumerate(NAMES)}


class Suite(BaseSuite):
    name = "two levels"
    orders: ClassVar = {0: tuple(NAMES)}

    def __init__(self, levels: Mapping[str, str], sizes: Mapping[str, int] | None = None) -> None:
        self.levels, self.sizes = levels, sizes or {}

    @property
    def super_domains(self) -> Mapping[str, str]:
        return self.levels

    @property
    def training_bytes(self) -> Mapping[str, int]:
        return self.sizes


def streamed(**own: object) -> Run:
    """Nine domains; the second is 0.4 better after the third than right after its own stage."""
    values = np.full((10, 9), 4.0)
    for place, gain in enumerate(GAINS):
        values[place + 1 :, place] -= gain
        values[9, place] += LOST[place] if place < 8 else 0.0
    values[3, 1] -= 0.4
    bits = {n: {"base": 4.0, "learnt": values[i + 1, i], "final": values[9, i]} for i, n in enumerate(NAMES)}
    keys = {
        "suite": "two levels", "entry": "sequential", "title": "Plain", "order": 0, "seed": 0, "domains": NAMES,
        "bits_per_byte": bits, "settings": {},
        "matrix": {"rows": ["base", *NAMES], "columns": NAMES, "values": values.tolist()},
    }  # fmt: skip
    return cell_of(**keys | own)


def alone() -> Run:
    own = zip(NAMES, ALONE, strict=True)
    bits = {name: {"base": 4.0, "learnt": 4.0 - gain, "final": 4.0 - gain} for name, gain in own}
    return streamed(entry="separate", title="Alone", order=None, bits_per_byte=bits, matrix=None)


def tables(suite: BaseSuite, *cells: Run) -> dict[str, Table]:
    return {table.title: table for table in LongStreams(suite, cells).tables()}


def row(table: Table, label: str) -> dict[str, str]:
    """Column → what it says, without arrows."""
    cells = dict(table.rows)[label]
    return {name[:-2]: f"{cell.text} {cell.detail}".strip() for name, cell in zip(table.header[1:], cells, strict=True)}


def test_medians_stand_beside_means_and_the_max_form_beside_forgetting() -> None:
    table = tables(Suite({}), streamed(), alone())["Transfer (bits/byte)"]
    found = row(table, "Plain, order 0")
    assert found["CPT against ZS"] == "+1.100 (+1.000)"
    assert found["CPT against DAPT"] == "+0.500 (+0.500)"
    assert found["FG"] == "+0.200 (+0.100)"
    # The second domain's best was 0.4 below its own stage: (0.9 + 0.5 + 6 × 0.1) / 8.
    assert found["FG, max form"] == "+0.250 (+0.100)"
    # Lost is lost at the last of 8, 7, …, 1 later checkpoints; the second domain's seven have gained 0.4 once.
    backward = [-0.9 / 8, (0.4 - 0.1) / 7, *(-0.1 / later for later in range(6, 0, -1))]
    mean, middle = sum(backward) / 8, sorted(backward)[3:5]
    assert found["Backward against CPT"] == f"{mean:+.3f} ({sum(middle) / 2:+.3f})".replace("-", "\u2212")
    assert found["Backward against ZS"] == f"{1 + mean:+.3f} ({1 + sum(middle) / 2:+.3f})"
    assert row(table, "Alone (DAPT)")["CPT against ZS"] == "+0.600 (+0.500)"


def test_domains_alone_are_beside_streams_of_their_own_base_model() -> None:
    """A model of another size loses something else to begin with."""
    plain = streamed()
    matrix = made_of(plain)["matrix"]
    matrix["values"] = [[value + 0.3 for value in values] for values in matrix["values"]]
    small = streamed(entry="small", title="Smaller", bits_per_byte={}, matrix=matrix)
    table = tables(Suite({}), plain, small, alone())["Transfer (bits/byte)"]
    assert row(table, "Plain, order 0")["CPT against DAPT"] == "+0.500 (+0.500)"
    assert row(table, "Smaller, order 0")["CPT against DAPT"] == "–"


KNOWN = {"recipe.evaluation": {"blocks": 32}, "recipe.data": {"block_size": 128}}


def test_evaluation_is_counted_against_training() -> None:
    # 10 × 9 texts of 32 rows, forward only: 960 passes; 128 × 2000 tokens are 2000 rows.
    plain = streamed(tokens=128 * 2000, settings=KNOWN)
    assert evaluation_share(plain) == pytest.approx(0.48)
    matrix = made_of(plain)["matrix"]
    matrix["values"][:9] = [[None] * len(NAMES)] * 9
    assert evaluation_share(like(plain, matrix=matrix, bits_per_byte={})) == pytest.approx(0.048)
    shown = GridPage(Suite({}), [plain, streamed(seed=1, tokens=128 * 1000, settings=KNOWN), alone()])
    (takes,) = (table for table in shown.tables() if table.title == "What each takes")
    assert takes.header[-1] == "Evaluation, of training"
    assert {name: cells[-1].text for name, cells in takes.rows} == {"Plain": "72.00 %", "Alone": "–"}, "0.48 and 0.96"
    assert "each text counts as `blocks` rows" in takes.caption


@pytest.mark.parametrize(
    "own",
    [
        {"settings": {"recipe.data": {"block_size": 128}}},
        {"settings": {"recipe.evaluation": {"blocks": 32}}},
        {"options": {"data.block_size": 64}},
        {"options": {"evaluation.stride": 64}},
        {"tasks": {"d0": {"final": {"accuracy": [0.5]}}}},
        {"tokens": 0},
        {"matrix": None, "bits_per_byte": {}},
        {"order": None},
    ],
)
def test_evaluation_whose_rows_are_not_known_is_left_out(own: dict[str, Any]) -> None:
    cell = streamed(**{"tokens": 1000, "settings": KNOWN} | own)
    assert evaluation_share(cell) is None
    (takes,) = (table for table in GridPage(Suite({}), [cell]).tables() if table.title == "What each takes")
    assert takes.header[-1] == "Tokens learnt from"
    assert "Evaluation" not in takes.caption


def test_every_super_domain_has_its_mean_and_median() -> None:
    table = tables(Suite(LEVELS), streamed(), alone())["Transfer by super-domain (bits/byte)"]
    assert [label for label, _ in table.rows] == [
        "Plain, order 0: wiki", "Plain, order 0: papers", "Alone (DAPT): wiki", "Alone (DAPT): papers",
    ]  # fmt: skip
    assert list(row(table, "Plain, order 0: wiki").values()) == [
        "3", "+1.000 (+1.000)", "+0.633 (+0.900)", "+0.367 (+0.100)",
    ]  # fmt: skip
    assert list(row(table, "Plain, order 0: papers").values()) == [
        "6", "+1.150 (+1.000)", "+1.067 (+0.900)", "+0.100 (+0.100)",
    ]  # fmt: skip
    assert list(row(table, "Alone (DAPT): papers").values()) == ["6", "+0.650 (+0.500)", "–", "–"]


def test_domains_without_a_super_domain_leave_the_other_tables() -> None:
    wanted = ["Transfer (bits/byte)", "Do later stages forget more?"]
    some = {name: level for name, level in LEVELS.items() if name != "d4"}
    for suite in (Suite({}), Suite(some), Suite(dict.fromkeys(NAMES, "wiki")), find_suite("docs"), find_suite("m2d2")):
        assert list(tables(suite, streamed())) == wanted


SIZES = dict(zip(NAMES, [200_000, 1_000_000, 249_999, *[250_000] * 5, 1_999_999], strict=True))
BY_SIZE = "What domains gain by the size of their training text (bits/byte)"


def test_gains_stand_by_the_size_of_a_domain() -> None:
    suite = Suite({}, SIZES)
    table = tables(suite, streamed(), streamed(order=1, seed=1), alone())[BY_SIZE]
    assert table.header == ("Training text of a domain", "Domains", "Alone (DAPT) ↑", "Plain (CPT) ↑")
    assert {label: [f"{c.text} {c.detail}".strip() for c in cells] for label, cells in table.rows} == {
        "0.125 to 0.25 MB": ["2", "+0.500 (+0.500)", "+1.000 (+1.000)"],
        "0.25 to 0.5 MB": ["5", "+0.500 (+0.500)", "+1.000 (+1.000)"],
        "1 to 2 MB": ["2", "+0.950 (+0.950)", "+1.450 (+1.450)"],
    }
    better = made_of(streamed())["matrix"]
    for place in range(len(NAMES)):
        better["values"][place + 1][place] = 2.0
    other = streamed(order=1, seed=1, bits_per_byte={}, matrix=better)
    cells = dict(tables(suite, streamed(), other)[BY_SIZE].rows)["1 to 2 MB"]
    # Over orders the one has gained (1 + 2) / 2, the other (1.9 + 2) / 2.
    assert [cell.text for cell in cells] == ["2", "+1.725"]


def test_without_sizes_or_with_sizes_that_are_alike_nothing_stands_by_size() -> None:
    other = {name: size for name, size in SIZES.items() if name != "d4"}
    for sizes in ({}, other, dict.fromkeys(NAMES, 990_000)):
        assert BY_SIZE not in tables(Suite({}, sizes), streamed(), alone())


def test_m2d2_knows_the_super_domains_of_its_names_before_it_knows_its_data() -> None:
    levels = find_suite("m2d2").super_domains
    chosen = [
        "cs.CL",
        "hep-ph",
        "Health_and_fitness__Exercise",
        "amazon_books",
        "robotics",
        "docs_sympy",
        "code_python",
    ]
    assert [levels[name] for name in chosen] == [
        "S2ORC", "S2ORC", "wiki", "reviews", "papers", "documentation", "code",
    ]  # fmt: skip
    assert find_suite("docs").super_domains == {}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two super-domains of one's own; one of the domains is called as a built-in one of another."""
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path / "cache"))
    for seed, name in enumerate(("law/cases", "health/notes", "health/movies")):
        (tmp_path / "own" / name).mkdir(parents=True)
        for offset, part in enumerate(("train", "valid", "test")):
            text = "\n".join(tiny.texts(20, 10 * seed + offset, words=30)) + "\n"
            (tmp_path / "own" / name / f"{part}.txt").write_text(text)
    return tmp_path / "own"


def test_the_data_says_the_super_domains_of_a_corpus_of_ones_own(corpus: Path) -> None:
    bound = find_suite("m2d2").on(overlay_of({}), corpus)
    assert bound.super_domains == {"cases": "law", "notes": "health", "movies": "health"}
    chosen = find_suite("m2d2").on(overlay_of({"suite": {"domains": ["health"]}}), corpus)
    assert set(chosen.super_domains) == {"notes", "movies"}


def test_the_data_says_the_sizes_that_were_kept(corpus: Path) -> None:
    assert find_suite("m2d2").training_bytes == {}
    options = {"duplicates": "report", "domain_bytes": 1500}
    found = find_suite("m2d2").on(overlay_of({"suite": options}), corpus)
    for name, size in found.training_bytes.items():
        rows = (found.bound.folder / name / "train.jsonl").read_text().splitlines()
        assert size == sum(len(json.loads(row)["text"]) for row in rows) <= 1500
    assert set(found.training_bytes) == {"cases", "notes", "movies"}


def test_a_recipe_says_the_super_domains_of_its_domains() -> None:
    domains = [{"name": "a", "path": "a.txt", "group": "law"}, {"name": "b", "path": "b.txt"}]
    recipe = parse({"model": "m", "domains": domains, "method": "sequential", "run": {"name": "x"}})
    assert RecipeTemplate(recipe, "x").super_domains == {"a": "law"}
