"""Whatever a recipe and the words behind it are: it works, or one sentence says what to change."""

from __future__ import annotations

import copy
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_project import Project
from everlearn.config.arguments import FORCED, REFUSED, _fields
from everlearn.config.recipe import Data, Evaluation, General, Recipe, RunSettings, load
from everlearn.data.corpus import Domain
from everlearn.errors import EverlearnError
from everlearn.evaluation.task import CONFIGS
from everlearn.methods import REGISTRY, names
from everlearn.model.options import Model
from fuzz.harness import command, fuzz

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, -5, 0.0, -0.5, 0.5, 1.0, 1.5, 1e-9, 1e30, 2**31, 2**63, 10**30, -(10**30)),
    *(float("inf"), float("-inf"), float("nan"), "", " ", "a", "b", "A", "no", "1", "-1", "1e-4", "0.5", "null", "~"),
    *("none", "all", "auto", "a.jsonl", "b.jsonl", "train.jsonl", "nowhere.jsonl", ".", "..", "/", "~/x", "~nobody/x"),
    *("../../up", "/dev/null", "/dev/null/x", "/proc/x", "/sys/x", "a/b", "a\\b", "a b", "x" * 300, "y/" * 2500),
    *("\0", "a\nb", "\x1b[31m", "\ud800", "ünïcödé", "日本", "🙂", "‮abc", "{{x}}", "%s %d", "{0}", "*", "[", "$HOME"),
    *(
        "suite:",
        "suite:docs/none",
        "owner/name",
        "base",
        "mean",
        "2024-01-01",
        "epoch",
        "steps",
        "linear",
        "adamw_torch",
    ),
    *([], {}, [None], ["a"], ["a", "a"], [1, 2], {"a": 1}, {"name": "a"}, {"name": "das"}, [[]], [{}], {"": ""}),
    *("sequential", "das", "replay", ["das", "replay"], {"name": "ewc", "strength": 3}, ["sequential", "lora"]),
]
WORDS = {
    "model": [*Model.model_fields],
    "domains": [*Domain.model_fields],
    "general": [*General.model_fields],
    "data": [*Data.model_fields],
    "evaluation": [*Evaluation.model_fields],
    "run": [*RunSettings.model_fields],
    "train": sorted({*_fields(), *REFUSED, *FORCED}),
    "end_tasks": sorted({name for config in CONFIGS.values() for name in config.model_fields}),
    "": [*Recipe.model_fields],
}
"""The keys of each group."""


def mutated(recipe: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The recipe with one to three things changed."""
    made = copy.deepcopy(recipe)
    for _ in range(chance.choice((1, 1, 2, 3))):
        chance.choice((_set, _set, _set, _set_method, _drop, _rename, _wrap, _move))(made, chance)
    return made


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below a value."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in list(items):
            found += [(value, key), *_places(item)]
    return found


def _some(recipe: dict[str, Any], chance: random.Random) -> tuple[Any, Any]:
    places = _places(recipe)
    return chance.choice(places) if places else (recipe, "model")


def _set(recipe: dict[str, Any], chance: random.Random) -> None:
    """A known key, there or not, gets a value of any type."""
    group = chance.choice([*WORDS])
    key = chance.choice(WORDS[group])
    at: Any = recipe.get(group) if group else recipe
    if isinstance(at, list):
        at = chance.choice(at) if at else at
    if not isinstance(at, dict):
        at, key = _some(recipe, chance)
    at[key] = copy.deepcopy(chance.choice(VALUES))


def _set_method(recipe: dict[str, Any], chance: random.Random) -> None:
    name = chance.choice(names())
    options = [*REGISTRY[name].Config.model_fields] if name in REGISTRY else []
    given = {key: copy.deepcopy(chance.choice(VALUES)) for key in options if chance.random() < 1.5 / len(options)}
    method = {"name": name, **given}
    recipe["method"] = chance.choice([method, [method], [method, chance.choice(names())]])


def _drop(recipe: dict[str, Any], chance: random.Random) -> None:
    at, key = _some(recipe, chance)
    del at[key]


def _rename(recipe: dict[str, Any], chance: random.Random) -> None:
    at, key = _some(recipe, chance)
    if isinstance(at, dict):
        new = chance.choice([f"{key}s", str(key)[1:], str(key).upper(), f"{key} ", f" {key}", 1, None, True, "", "x.y"])
        at[new] = at.pop(key)


def _wrap(recipe: dict[str, Any], chance: random.Random) -> None:
    at, key = _some(recipe, chance)
    at[key] = chance.choice([[at[key]], {"name": at[key]}, str(at[key]), [at[key]] * 2])


def _move(recipe: dict[str, Any], chance: random.Random) -> None:
    """What stands in one place stands in another too."""
    (at, key), (other, name) = _some(recipe, chance), _some(recipe, chance)
    other[name] = copy.deepcopy(at[key])


def text_of(recipe: dict[str, Any], chance: random.Random) -> bytes:
    """The recipe as YAML; now and then with bytes that are wrong."""
    try:
        raw = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=chance.random() < 0.5).encode("utf-8", "replace")
    except RecursionError:
        raw = b"model: a"
    return raw if chance.random() < 0.7 else _spoilt(raw, chance)


PIECES = [
    *(
        b"\t",
        b"\n",
        b":",
        b": ",
        b"- ",
        b"---\n",
        b"...\n",
        b"{",
        b"}",
        b"[",
        b"]",
        b"&a ",
        b"*a",
        b"<<: *a\n",
        b"!!set ",
    ),
    *(
        b"!x ",
        b"%YAML 1.2\n",
        b"\0",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\x80",
        b"'",
        b'"',
        b"|\n",
        b">\n",
        b"#",
        b"?",
        b"~",
    ),
    *(
        b"[" * 2000,
        b"{a: " * 500,
        b"- " * 300,
        b"1" * 5000,
        b"=",
        b"0x",
        b"0b_",
        b"1:30",
        b".inf",
        b"2024-01-01",
        b"1e400",
    ),
]


def _spoilt(raw: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.choice((1, 1, 2, 5))):
        at, length = chance.randrange(len(raw) + 1), chance.choice((0, 1, 3, 20))
        piece = chance.choice([*PIECES, raw[at : at + length], bytes([chance.randrange(256)])])
        raw = raw[:at] + piece + raw[at + chance.choice((0, length)) :]
    return chance.choice(
        [raw, raw, raw, raw.decode("utf-8", "replace").encode("utf-16"), raw[: chance.randrange(len(raw) + 1)]]
    )


def overrides(chance: random.Random) -> list[str]:
    """What is typed behind a recipe."""
    return [_override(chance) for _ in range(chance.choice((0, 0, 1, 2)))]


def _override(chance: random.Random) -> str:
    group = chance.choice([*WORDS])
    parts = [part for part in (group, chance.choice(["", "0", "1", "a", "-1", "9", "²", "1" * 40, "das"])) if part]
    key = ".".join([*parts[: chance.choice((1, 1, 2))], chance.choice(WORDS[group])])
    value = chance.choice(VALUES)
    text = chance.choice(
        [str(value), yaml.safe_dump(value, default_flow_style=True).strip(), "{", "[1", "{{x}}", "", "'"]
    )
    whole = f"{key}={text}"
    if chance.random() < 0.1:
        at = chance.randrange(len(whole))
        whole = whole[:at] + chance.choice(["", "=", ".", " ", "..", "\0", "é", "--"]) + whole[at + 1 :]
    return whole.encode("utf-8", "replace").decode()


def good(models: Path, chance: random.Random) -> dict[str, Any]:
    """A recipe that works in the folder of the small project."""
    name = chance.choice(("roberta", "roberta", "llama", "t5"))
    target = {"target_column": "label"} if name == "t5" else {}
    recipe: dict[str, Any] = {
        "model": chance.choice([str(models / name), {"path": str(models / name), "config": {"use_cache": False}}]),
        "domains": [
            {"name": "a", "path": "a.jsonl" if not target else "train.jsonl", "validation": 0.2, **target},
            {"name": "b", "path": "b.jsonl" if not target else "test.jsonl", "validation": 0.3, **target},
        ],
        "method": chance.choice(["sequential", ["das", "replay"], [{"name": "ewc", "strength": 3}], "inc_lora"]),
        "data": {"block_size": 32, "cache": "cache"},
        "train": {"max_steps": 1, "per_device_train_batch_size": 4, "logging_steps": 1, "save_steps": 2},
        "evaluation": {"blocks": 8, "end_task_seeds": 1},
        "run": {"name": "first", "seed": 1, "notes": ["a note"]},
    }
    if chance.random() < 0.5:
        recipe["general"] = {"path": "general.jsonl", "validation": 0.2}
    if chance.random() < 0.4 and not target:
        recipe["end_tasks"] = [{"name": "t", "domain": "a", "train": "train.jsonl", "test": "test.jsonl", "epochs": 1}]
    if chance.random() < 0.3:
        recipe["domains"][1]["train"] = {"learning_rate": 1e-5}
    return recipe


@pytest.fixture
def project(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    (everlearn.folder / "home").mkdir()
    monkeypatch.setenv("HOME", str(everlearn.folder / "home"))
    return everlearn


def written(project: Project, chance: random.Random) -> list[str]:
    """Write a recipe that is probably wrong, and say what is typed behind it."""
    content = text_of(mutated(good(project.models, chance), chance), chance)
    (project.folder / "recipe.yaml").write_bytes(content)
    return overrides(chance)


def test_reading(project: Project) -> None:
    """What is read is a recipe that is saved and read the same, or a sentence."""

    def case(chance: random.Random) -> None:
        words = written(project, chance)
        said, recipe = "a recipe", None
        try:
            recipe = load("recipe.yaml", words)
        except EverlearnError as error:
            said = str(error)
        assert said.isprintable(), f"no plain sentence: {said!a}"
        if recipe is None:
            return
        (project.folder / "again.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
        assert load("again.yaml") == recipe, "saved, it is another recipe"

    fuzz("reading recipes", 150, case)


@pytest.mark.parametrize(("verb", "few"), [("validate", 12), ("run", 4)])
def test_using(project: Project, capfd: pytest.CaptureFixture[str], verb: str, few: int) -> None:
    def case(chance: random.Random) -> None:
        words = written(project, chance)
        outcome = command(capfd, verb, "recipe.yaml", "train.max_steps=1" if verb == "run" else "run.seed=2", *words)
        assert outcome.code in (0, 2), outcome
        if outcome.code == 2 and verb == "run":
            assert outcome.sentence, outcome
        assert "Traceback" not in outcome.err
        for place in ("runs", "cache"):
            shutil.rmtree(project.folder / place, ignore_errors=True)
        there = {path.name for path in project.folder.iterdir()}
        assert not {"~", "up"} & there

    fuzz(f"{verb} of recipes", few, case)
