"""What every registered suite promises, and the recipes of `docs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everlearn.config import addresses
from everlearn.config.recipe import Recipe, parse
from everlearn.errors import RecipeError
from everlearn.methods import build, names
from everlearn_bench.suites import SUITES, Settings, Suite, find_suite, register_suite
from everlearn_bench.suites.settings import with_samples


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
    assert set(suite.tasks.values()) <= domains
    assert type(suite).locate is not Suite.locate
    assert type(suite).recipe is not Suite.recipe
    if suite.published is not None:
        assert {len(row) for row in suite.published.rows.values()} == {len(suite.published.columns)}


def test_a_new_suite_registers_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(SUITES, "own", None)  # taken out afterwards
    del SUITES["own"]

    @register_suite
    class Own(Suite):
        name = "own"

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


def docs_recipe(monkeypatch: pytest.MonkeyPatch, order: Any = 0, **settings: Any) -> tuple[Recipe, list[str]]:
    asked: list[str] = []
    monkeypatch.setattr(addresses, "locate", lambda inside: asked.append(inside) or Path("/") / inside)
    keys = find_suite("docs").recipe(
        order, settings=Settings(**settings), data=None, method={"name": "das"}, seed=3, name="x", folder=Path("x")
    )
    return parse(keys), asked


def test_docs_needs_nothing_but_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = docs_recipe(monkeypatch, samples=8, budget_tokens=16 * 128 * 5)
    names = [domain.name for domain in made.domains]
    assert names == list(find_suite("docs").orders[0])
    assert (made.train["max_steps"], made.run.seed, made.method[0]["samples"]) == (5, 3, 8)
    assert {task.name: task.domain for task in made.end_tasks} == find_suite("docs").tasks
    assert {"docs/base", "docs/sympy/train.jsonl", "docs/general/validation.jsonl"} <= set(asked)
    assert "docs/tasks/torch_test.jsonl" in asked


def test_docs_takes_settings_and_refuses_what_it_has_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("text\n")
    made, _ = docs_recipe(
        monkeypatch, ("pandas",), corpora={"pandas": str(tmp_path / "own.txt")}, end_tasks={"max_test": 5}
    )
    assert made.domains[0].path == str(tmp_path / "own.txt")
    assert made.end_tasks[0].max_test == 5
    with pytest.raises(RecipeError, match=r"`end_tasks.aspect` is 'pair' in the settings"):
        docs_recipe(monkeypatch, end_tasks={"aspect": "pair"})
    with pytest.raises(RecipeError, match=r"no domain 'panda'.*Did you mean 'pandas'"):
        docs_recipe(monkeypatch, ("panda",))
