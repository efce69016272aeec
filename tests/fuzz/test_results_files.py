"""Mutated results.json: a report in every format, or one sentence that names the file."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from everlearn.errors import RunError
from everlearn.evaluation.results import Results
from everlearn.report import compare, tables
from everlearn.report.html import page
from fuzz.harness import fuzz
from unit import report_fixture

VALUES: list[Any] = [
    None, True, 0, -1, 3, 1e308, 10**400, "", "x", "\ud800", "\u202e<b>", "3", [], [[]], [None], [1, 2], {}, {"a": 1},
    {"": []}, {"value": "x"}, ["base", "a", 1, None, None], float("nan"), float("inf"),
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key and position of a JSON value; of long lists the first ones."""
    found = [path] if path else []
    inside = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, item in inside:
        found += places(item, (*path, key))
    return found


def mutated(value: Any, generator: random.Random) -> None:
    """Change one place of it."""
    *parents, last = generator.choice(places(value))
    for key in parents:
        value = value[key]
    kind = generator.choice(["value", "value", "value", "remove", "repeat", "rename"])
    if kind == "remove":
        del value[last]
    elif kind == "repeat" and isinstance(value, list):
        value.append(copy.deepcopy(value[last]))
    elif kind == "rename" and isinstance(value, dict):
        value[generator.choice(["", "x", "mean", "base", "\u202e", "a" * 300])] = value.pop(last)
    else:
        value[last] = copy.deepcopy(generator.choice(VALUES))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Results of two runs: as the report's tests make them, and with every key."""
    names = ["first", "second", "third"]
    found = report_fixture.results("plain", "Plain", 0.2, names)
    complete = Results.model_validate(found).model_dump(mode="json")
    return [found, complete]


@contextmanager
def refused_with(name: str) -> Iterator[None]:
    """What is inside may end in a sentence that has the name."""
    said = ""
    try:
        yield
    except RunError as error:
        said = str(error)
    assert name in (said or name), said


def test_mutated_results(files: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("results")
    whole, run = (report_fixture.write_run(place / name, files[0], steps=1) for name in ("whole", "run"))

    def case(generator: random.Random) -> None:
        raw = copy.deepcopy(generator.choice(files))
        for _ in range(generator.choice([1, 1, 2, 4])):
            mutated(raw, generator)
        (run / "results.json").write_text(json.dumps(raw), encoding="utf-8")
        with refused_with("results.json"):
            comparison = compare(generator.choice([[run], [run, whole], [whole, run]]))
            for write in (tables.markdown, tables.latex, tables.csv, tables.json):
                write(comparison)
            tables.terminal(comparison)
            if generator.random() < 0.3:
                page(comparison)

    fuzz("results files", 25, case)


def test_mutated_logs_environments_and_recipes(
    files: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What a page shows beside the results; nothing of it may end a report but for a file that is no JSON."""
    place = tmp_path_factory.mktemp("beside")
    whole, run = (report_fixture.write_run(place / name, files[0], steps=3) for name in ("whole", "run"))

    def case(generator: random.Random) -> None:
        name = generator.choice(["metrics.jsonl", "metrics.jsonl", "environment.json", "recipe.yaml"])
        before = (run / name).read_text(encoding="utf-8")
        lines = before.splitlines() if name == "metrics.jsonl" else [before]
        for _ in range(generator.choice([1, 1, 3])):
            number = generator.randrange(len(lines))
            value = {"": yaml.safe_load(lines[number])}
            mutated(value, generator)
            lines[number] = json.dumps(next(iter(value.values()), None))
        (run / name).write_text("\n".join(lines), encoding="utf-8")
        try:
            with refused_with(name):
                comparison = compare(generator.choice([[run], [run, whole]]))
                tables.terminal(comparison)
                page(comparison)
        finally:
            (run / name).write_text(before, encoding="utf-8")

    fuzz("beside the results", 8, case)
