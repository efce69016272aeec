"""What every registered suite promises, and the recipes of `docs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everlearn.config import addresses
from everlearn.config.recipe import Recipe, parse
from everlearn.errors import RecipeError
from everlearn.methods import build, names
from everlearn_bench.suites import SUITES, Suite, find_suite, overlay_of, register_suite
from everlearn_bench.suites.methods import with_samples


@pytest.mark.parametrize("name", sorted(SUITES))
def test_a_suite_is_whole(name: str) -> None:
    suite = find_suite(name)
    assert suite.name == name
    domains = set(suite.first)
    whole = all(set(order) == domains for order in suite.orders.values())
    assert whole or all(len(order) == 1 for order in suite.orders.values()), (
        "all domains in every order, or one in each"
    )
    assert {domain for order in suite.orders.values() for domain in order} == domains
    assert all(len(set(order)) == len(order) for order in suite.orders.values())
    raw = suite.template()
    assert {task["domain"] for task in raw["end_tasks"] if "domain" in task} <= domains == set(suite.domains)
    assert {item["name"] for item in raw["domains"]} in (set(), domains)
    assert type(suite).locate is not Suite.locate
    assert type(suite).recipe is Suite.recipe
    if suite.published is not None:
        assert {len(row) for row in suite.published.rows.values()} == {len(suite.published.columns)}


def test_a_new_suite_registers_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(SUITES, "own", None)  # taken out afterwards
    del SUITES["own"]

    @register_suite
    class Own(Suite):
        name = "own"
        orders = {0: ("a",)}  # noqa: RUF012 - see Suite

        def locate(self, inside: str) -> Path:
            return tmp_path / inside

    assert SUITES["own"].locate("a") == tmp_path / "a"
    assert addresses.locate("own/a.txt") == tmp_path / "a.txt"
    with pytest.raises(RecipeError, match=r"no suite 'owm'.*Did you mean 'own'"):
        find_suite("owm")


def test_samples_are_rows_for_importance_and_no_others() -> None:
    """Others have an option of this name, too: rows kept, written, learnt from, or that models are tried on."""
    with_option = {name for name in names() if "samples" in type(build({"name": name}).config).model_fields}
    reached = {name for name in names() if with_samples(name, 7) == [{"name": name, "samples": 7}]}
    declared = {name for name in names() if build({"name": name}).importance_samples}
    assert {"das", "dga", "ewc_separate", "mas"} <= reached == declared <= with_option
    assert {"lfpt5", "sapt_lora", "demix", "corda", "selective_init", "side_tuning"} <= with_option - reached
    assert with_samples([{"name": "ewc", "samples": 3}, "lfpt5"], 7) == [
        {"name": "ewc", "samples": 3},
        {"name": "lfpt5"},
    ]
    assert with_samples("das", None) == [{"name": "das"}]


def docs_recipe(monkeypatch: pytest.MonkeyPatch, order: Any = 0, **changes: Any) -> tuple[Recipe, list[str]]:
    asked: list[str] = []
    docs = find_suite("docs").on(overlay_of(changes, tokens=16 * 128 * 5))
    monkeypatch.setattr(type(docs), "locate", lambda self, inside: asked.append(inside) or Path("/") / inside)
    return parse(docs.recipe(order, method=[{"name": "das"}], seed=3, name="x", folder=Path("x"))), asked


def test_docs_needs_nothing_but_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = docs_recipe(monkeypatch, grid={"importance_samples": 8})
    names = [domain.name for domain in made.domains]
    assert names == list(find_suite("docs").orders[0])
    assert (made.train["max_steps"], made.train["warmup_steps"], made.run.seed) == (5, 1, 3)
    assert made.method[0]["samples"] == 8
    assert {task.name: task.domain for task in made.end_tasks} == {f"{name}-part": name for name in names}
    assert {"base", "sympy/train.jsonl", "general/validation.jsonl"} <= set(asked)
    assert "tasks/torch_test.jsonl" in asked


def test_docs_takes_keys_of_a_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("text\n")
    own = {"pandas": {"path": str(tmp_path / "own.txt")}}
    made, _ = docs_recipe(monkeypatch, ("pandas",), domains=own, end_tasks={"*": {"max_test": 5}})
    assert made.domains[0].path == str(tmp_path / "own.txt")
    assert made.end_tasks[0].max_test == 5
    with pytest.raises(RecipeError, match=r"Unknown key `suite.answers` in the settings"):
        docs_recipe(monkeypatch, suite={"answers": "head"})
    with pytest.raises(RecipeError, match=r"no domain 'panda'.*Did you mean 'pandas'"):
        docs_recipe(monkeypatch, ("panda",))
