"""The page of systems: as its script writes it, with commands that parse and files that are there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from everlearn.grid.archive import find_cells

ROOT = Path(__file__).parents[2]


@pytest.fixture
def systems(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import systems

    return systems


def test_the_page_is_what_the_script_writes(systems) -> None:
    assert systems.PAGE.read_text(encoding="utf-8") == systems.page(), "python docs/systems.py"


def test_every_method_and_variant_is_a_row_once(systems) -> None:
    rows = systems.methods()
    names = {name for cls in systems.REGISTRY.values() for name in (cls.name, *(each.name for each in cls.variants))}
    assert {row.command.rpartition("=")[2] for row in rows} == names
    assert len(rows) == len(names)
    assert len(re.findall(r"^\| .* \|$", systems.page(), re.MULTILINE)) - 4 >= 85


def test_tests_and_results_are_there_and_name_the_system(systems) -> None:
    for row in (*systems.methods(), *systems.BENCHMARKS, *systems.STUDIES, *systems.analyses()):
        text = (ROOT / row.test).read_text(encoding="utf-8")
        for page in row.results:
            assert (systems.RESULTS / page).is_file(), row
        if "method=" in row.command:
            name = row.command.rpartition("=")[2]
            base = next(cls for cls in systems.REGISTRY.values() if name in {cls.name, *(v.name for v in cls.variants)})
            assert re.search(rf"\b({name}|{base.name}|{base.__name__})\b", text), f"{name} is not in {row.test}"
        assert row.results or row.remark or systems.MISSING in row.row()


def grids(folder: str) -> list[dict]:
    return [cell.value["grid"] for cell in find_cells(ROOT / "benchmarks" / folder).values()]


def test_a_method_that_has_one_seed_alone_says_so(systems) -> None:
    seeds = Counter(grid["row"] for grid in grids("six-domains/results"))
    for row in systems.methods():
        name = row.command.rpartition("=")[2]
        alone = seeds[name] == 1 and row.results == ["six-domains.md"]
        assert (row.remark == "one seed") == alone, name


def test_orders_that_were_not_run_are_named(systems) -> None:
    ran = {
        int(grid["order"])
        for part in ("orders", "orders-long")
        for grid in grids(f"continual-tasks/decoder-results/{part}")
    }
    asked = {}
    for row in systems.BENCHMARKS:
        if row.results == ["standard-cl-decoder.md"]:
            asked |= {int(order): row for order in row.command.partition("--orders ")[2].split(",")}
    assert asked.keys() == {2, 3, 4, 5, 6}
    for order, row in asked.items():
        assert (f"order {order} was not run" in row.remark) == (order not in ran)
