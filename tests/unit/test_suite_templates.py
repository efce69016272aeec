"""Templates of suites, and the parts of recipes that are laid over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everlearn.errors import EverlearnError, MethodError, RecipeError
from everlearn_bench.suites import Suite, overlay_of, read_overlay
from everlearn_bench.suites.overlay import lay_over
from everlearn_bench.suites.template import expanded, with_shares


def test_a_settings_file_is_a_part_of_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    (tmp_path / "base").mkdir()
    file.write_text("model: base\ntrain: {max_steps: 5}\ngrid: {methods: {ewc: {strength: 3}}}\nsuite: {a: 1}\n")
    found = read_overlay(file, ["end_tasks.*.max_test=9", "train.bf16=true", "suite.b=x"], tokens=400)
    assert found.recipe == {
        "model": str(tmp_path / "base"),
        "train": {"max_steps": 5, "bf16": True},
        "end_tasks": {"*": {"max_test": 9}},
    }
    assert (found.suite, found.tokens) == ({"a": 1, "b": "x"}, 400)
    assert found.grid.spec("ewc") == {"name": "ewc", "strength": 3}
    file.write_text("model: {path: base, revision: a}")
    assert read_overlay(file).recipe["model"] == {"path": str(tmp_path / "base"), "revision": "a"}
    assert read_overlay(file, model="owner/name").recipe["model"] == "owner/name"
    assert read_overlay(None, ["model.revision=b"], model=None).recipe == {"model": {"revision": "b"}}


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        ("grid: {row: {}}", RecipeError, r"Unknown key `grid.row` in the settings. Did you mean 'rows'"),
        ("grid: {importance_samples: 0}", RecipeError, r"`grid.importance_samples`.*got 0"),
        ("grid: {methods: {ewcc: {}}}", MethodError, r"'ewcc', no method.*'ewc'"),
        ("grid: {methods: {ewc: {strenght: 1}}}", MethodError, r"no option 'strenght'"),
        ("method: ewc", RecipeError, r"`method` cannot be set for a grid: name the methods in `--methods`"),
        ("run: {seed: 1}", RecipeError, r"`run` cannot be set for a grid: `--seeds`"),
        ("suite: 3", RecipeError, r"`suite` in the settings must be a mapping"),
        ("[1]", RecipeError, "mapping"),
        ("a: [", RecipeError, "not valid YAML"),
    ],
)
def test_mistakes_are_sentences(text: str, kind: type[EverlearnError], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(text)
    with pytest.raises(kind, match=sentence):
        read_overlay(tmp_path / "small.yaml")


def test_a_missing_file_and_a_wrong_override(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="There is no settings file"):
        read_overlay(tmp_path / "none.yaml")
    with pytest.raises(RecipeError, match="'steps' is no override: write key=value"):
        read_overlay(None, ["steps"])


TEMPLATE = {
    "domains": {"each": "orders", "path": "suite:{suite}/{name}.txt", "validation": "held.txt"},
    "end_tasks": [{"name": "a-part", "domain": "a", "test": "{name}.jsonl"}],
}


def test_each_makes_an_item_a_name() -> None:
    made = expanded(TEMPLATE, "own", {"orders": ("a", "b")})
    assert made["domains"] == [
        {"name": name, "path": f"suite:own/{name}.txt", "validation": "held.txt"} for name in ("a", "b")
    ]
    assert made["end_tasks"] == [{"name": "a-part", "domain": "a", "test": "a-part.jsonl"}]
    tasks = {"end_tasks": {"each": "domains", "name": "{name}-part", "domain": "{name}"}}
    assert expanded(TEMPLATE | tasks, "own", {"orders": ("b",)})["end_tasks"] == [{"name": "b-part", "domain": "b"}]
    with pytest.raises(RecipeError, match=r"`domains.each` must be a list of names, or one of orders \(got 'order'\)"):
        expanded({"domains": {"each": "order"}}, "own", {"orders": ("a",)})


def test_a_share_is_one_of_the_steps_rounded() -> None:
    assert with_shares({"max_steps": 64, "warmup_steps": "10%"}) == {"max_steps": 64, "warmup_steps": 6}
    assert with_shares({"max_steps": 5, "num_train_epochs": 1}) == {"max_steps": 5}, "steps count, not epochs"
    assert with_shares({"num_train_epochs": 1}) == {"num_train_epochs": 1}
    with pytest.raises(RecipeError, match=r"`train.warmup_steps` is 10% of `train.max_steps`, which is not set"):
        with_shares({"warmup_steps": "10%"})


def laid(**overlay: Any) -> dict[str, Any]:
    raw = expanded(TEMPLATE, "own", {"orders": ("a", "b")}) | {"general": {"path": "g.txt", "max_documents": 9}}
    lay_over(raw, overlay)
    return raw


def test_what_is_said_of_one_counts_more_than_what_is_said_of_all() -> None:
    a, b = laid(domains={"a": {"keep_last": 1}, "*": {"keep_last": 2, "train": {"x": 1}}})["domains"]
    assert (a["keep_last"], b["keep_last"]) == (1, 2)
    assert a["path"] == "suite:own/a.txt"


def test_own_text_replaces_the_files_of_the_suite() -> None:
    a, b = laid(domains={"a": {"path": "mine.txt"}})["domains"]
    assert a == {"name": "a", "path": "mine.txt"}, "held-out text of the suite is no held-out text of it"
    assert b["validation"] == "held.txt"
    assert laid(general="other.txt")["general"] == {"path": "other.txt", "max_documents": 9}


def test_null_leaves_out() -> None:
    assert laid(end_tasks=None)["end_tasks"] == laid(end_tasks={"a-part": None})["end_tasks"] == []
    assert laid(general=None)["general"] is None


@pytest.mark.parametrize(
    ("overlay", "sentence"),
    [
        ({"domains": {"c": {}}}, r"`domains.c` in the settings: the suite has a, b, or `domains.\*` for all"),
        ({"end_tasks": {"a-prat": {}}}, "Did you mean 'a-part'"),
        ({"end_tasks": {"max_test": 3}}, r"`end_tasks.max_test` in the settings: .* `end_tasks.\*` for all"),
        ({"domains": {"a": 3}}, r"`domains.a` in the settings must be a mapping of keys \(got 3\)"),
        ({"domains": [1]}, r"`domains` in the settings must be a mapping of names"),
    ],
)
def test_names_that_are_not_there(overlay: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        laid(**overlay)


class Weather(Suite):
    """A suite of a template and nothing else."""

    name = "weather"

    class Config(Suite.Config):
        """Keys of its own."""

        size: int = 3

    def template(self) -> dict[str, Any]:
        return {
            "domains": [{"name": name, "path": f"suite:weather/{name}.txt"} for name in ("rain", "sun")],
            "end_tasks": [{"name": "any", "test": "x"}, {"name": "one", "domain": "sun", "test": "y"}],
            "train": {"max_steps": 20, "warmup_steps": "15%"},
        }

    def locate(self, inside: str) -> Path:
        return Path("/", str(self.config.size), str(self.data), inside)


def made(order: Any = 0, place: Path | None = None, tokens: int | None = None, **changes: Any) -> dict[str, Any]:
    suite = Weather().on(overlay_of({"model": "m", **changes}, tokens), place)
    return suite.recipe(order, method=["ewc"], seed=3, name="x", folder=Path("x"))


def test_a_recipe_is_the_template_with_the_users_keys_and_an_order() -> None:
    raw = made(suite={"size": 4}, place=Path("d"), grid={"importance_samples": 5})
    assert [item["path"] for item in raw["domains"]] == ["/4/d/rain.txt", "/4/d/sun.txt"]
    assert [item["name"] for item in raw["end_tasks"]] == ["one", "any"], "those of no domain at the end"
    assert raw["method"] == [{"name": "ewc", "samples": 5}]
    assert raw["train"] == {"max_steps": 20, "warmup_steps": 3}
    assert raw["run"] == {"name": "x", "seed": 3, "folder": "x"}
    assert [item["name"] for item in made(("rain",))["end_tasks"]] == ["any"]
    assert Weather().orders == {0: ("rain", "sun")}, "that of the template"


def test_a_number_of_tokens_is_one_of_steps() -> None:
    assert made(tokens=2 * 8 * 32 + 5, data={"block_size": 32})["train"]["max_steps"] == 2
    with pytest.raises(RecipeError, match="`--budget` is 9, less than one step of 8 rows of 32 tokens"):
        made(tokens=9, data={"block_size": 32})
    with pytest.raises(RecipeError, match=r"`--budget` needs `data.block_size`"):
        made(tokens=9)


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (7, r"The suite `weather` has no order 7; it has 0"),
        (("snow",), "has no domain 'snow'"),
        (("sun", "sun"), r"each once \(got sun, sun\)"),
        ((), r"each once \(got none\)"),
    ],
)
def test_orders_that_are_not_there(order: Any, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        made(order)


def test_what_a_suite_refuses() -> None:
    with pytest.raises(RecipeError, match=r"Unknown key `suite.sise` in the settings. Did you mean 'size'"):
        made(suite={"sise": 3})
    with pytest.raises(RecipeError, match="needs a base model: `--model`"):
        made(model=None)
    with pytest.raises(RecipeError, match="`--run-code`: no end task of the suite `weather` has programs"):
        Weather().programs()
