"""What is recommended stands in one place: documents say the same, and the numbers that they quote are in a file."""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
from pathlib import Path

import pytest
import yaml

from everlearn.commands.first_recipe import first_recipe
from everlearn.commands.recommendation import (
    EVIDENCE,
    METHOD,
    RATES,
    learning_rate,
    rate_text,
    rule_in_words,
    size_text,
)
from everlearn.commands.yaml_text import method_text
from everlearn.config.recipe import parse

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/results").glob("*.md")]
QUOTED = re.compile(r'\[([^\]]*\d[^\]]*)\]\((\S+?\.json) "([^"]+)"\)')
"""A number that links to the file that it comes from, its key there as the link's title: ``[97 %](a.json "kept")``."""


def quoted() -> list[tuple[Path, str, Path, str]]:
    found = []
    for page in PAGES:
        for text, file, key in QUOTED.findall(page.read_text(encoding="utf-8")):
            found.append((page, text, page.parent / file, key))
    return found


def value_at(data: object, key: str) -> float:
    """The number at a dotted key, whose parts may have dots themselves."""
    while key:
        assert isinstance(data, dict | list), key
        names = map(str, range(len(data))) if isinstance(data, list) else data
        name = max((n for n in names if key == n or key.startswith(f"{n}.")), key=len)
        data, key = data[int(name) if isinstance(data, list) else name], key[len(name) + 1 :]
    assert isinstance(data, int | float)
    return float(data)


def agrees(text: str, value: float) -> bool:
    """Whether a number as it is written is the value, rounded to the digits that are written."""
    written = text.replace("−", "-").replace(",", "").replace("+", "")
    if percent := written.endswith("%"):
        value *= 100
    number = written.removesuffix("%").split()[0]
    digits, _, exponent = number.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return abs(float(number) - value) <= 0.5 * unit * (1 + 1e-9) + (0 if percent else 1e-12)


@pytest.mark.parametrize(("page", "text", "file", "key"), quoted(), ids=lambda value: str(value)[-40:])
def test_a_number_that_names_its_file_is_in_it(page: Path, text: str, file: Path, key: str) -> None:
    assert agrees(text, value_at(json.loads(file.read_text(encoding="utf-8")), key)), f"{page.name}: {text}"


def test_numbers_are_quoted_and_compared() -> None:
    assert {page.name for page, *_ in quoted()} >= {"bench.md", "learning-rates.md", "demo.md"}
    for text, value, same in (
        ("97 %", 0.9672, True), ("96 %", 0.9672, False), ("0.0035", 0.0035, True), ("3.5e-3", 0.0035, True),
        ("3.4e-3", 0.0035, False), ("−0.03 bits", -0.0312, True), ("+0.04", -0.04, False), ("1,200", 1200.4, True),
    ):  # fmt: skip
        assert agrees(text, value) is same, text


def test_documents_write_the_recommended_method_as_it_is() -> None:
    assert parse({"model": "m", "domains": [{"name": "a", "path": "a.txt"}], "method": list(METHOD)}).methods()
    text = method_text(METHOD)
    for page in (EVIDENCE, "docs/bench.md", "docs/quickstart.md", "docs/recipes.md", "docs/methods.md"):
        assert text in (ROOT / page).read_text(encoding="utf-8"), page


@pytest.mark.parametrize("page", ["docs/quickstart.md", "docs/recipes.md"])
def test_the_first_recipe_of_a_page_is_what_init_writes(page: str) -> None:
    shown = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)[0]
    written = first_recipe().text()
    assert yaml.safe_load(shown) == yaml.safe_load(written)
    assert shown == written


def test_the_recipe_of_the_readme_is_what_init_writes() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert yaml.safe_load(shown) == yaml.safe_load(first_recipe().text())


def test_python_in_the_documents_uses_the_recommended_method() -> None:
    text = "".join((ROOT / f"docs/{page}.md").read_text(encoding="utf-8") for page in ("quickstart", "protect"))
    nodes = [
        node for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) for node in ast.walk(ast.parse(block))
    ]
    objects = [
        {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
        for node in nodes
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "MAS"
    ]
    options = {key: value for key, value in METHOD[0].items() if key != "name"}
    assert objects == [options]
    mappings = [ast.literal_eval(node) for node in nodes if isinstance(node, ast.Dict) and "name" in ast.dump(node)]
    assert [each for each in mappings if each.get("name") == METHOD[0]["name"]] == [METHOD[0]] * 2


def test_the_notebook_uses_the_recommended_method() -> None:
    names = {}
    for node in ast.parse((ROOT / "notebooks/first_steps.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("SAMPLES", "recommended"):
            names[node.targets[0].id] = node.value
        if isinstance(node, ast.AugAssign) and getattr(node.target, "id", "") == "recommended":
            more = node.value
    for value in (names["recommended"], more):
        value.values = [names["SAMPLES"] if isinstance(own, ast.Name) else own for own in value.values]
    assert ast.literal_eval(names["recommended"]) | ast.literal_eval(more) == METHOD[0]


def test_the_docs_have_the_table_of_learning_rates() -> None:
    text = (ROOT / "docs/learning-rates.md").read_text(encoding="utf-8")
    for kind, sizes in RATES.items():
        for size in map(int, sizes):
            rates = [rate_text(learning_rate(kind, size, **of)) for of in ({}, {"examples": True}, {"adapters": True})]
            if kind == "encoder-decoder":
                rates[0] = rates[2] = "–"
            assert f"| {kind} | {size_text(size)} | {' | '.join(rates)} | " in text


@pytest.mark.parametrize(
    ("kind", "parameters", "options", "rate"),
    [
        ("decoder", 125_000_000, {}, 3e-4),
        ("decoder", 134_515_008, {}, 2.9e-4),
        ("decoder", 5_000_000, {}, 3e-4),
        ("decoder", 70_000_000_000, {}, 5e-5),
        ("decoder", 125_000_000, {"examples": True}, 6e-5),
        ("decoder", 125_000_000, {"adapters": True}, 3e-3),
        ("encoder", 125_000_000, {}, 1e-4),
        ("encoder", 125_000_000, {"examples": True}, 2e-5),
        ("encoder-decoder", 60_000_000, {}, 1e-4),
        ("encoder-decoder", 60_000_000, {"examples": True}, 1e-4),
    ],
)
def test_the_rule_of_the_learning_rate(kind: str, parameters: int, options: dict[str, bool], rate: float) -> None:
    assert learning_rate(kind, parameters, **options) == rate


def test_between_two_sizes_the_rate_is_between_their_rates() -> None:
    for kind, table in RATES.items():
        sizes = sorted(table)
        between = [math.exp((math.log(a) + math.log(b)) / 2) for a, b in itertools.pairwise(sizes)]
        rates = [learning_rate(kind, int(size)) for size in sorted([*sizes, *between])]
        assert rates == sorted(rates, reverse=True), kind
    assert rate_text(2.9e-4) == "2.9e-4"
    assert yaml.safe_load("2.9e-4") == 2.9e-4, "a number, not a word, for every reader of YAML"


@pytest.mark.parametrize(
    ("kind", "parameters", "words"),
    [
        ("encoder", 125_000_000, "the rule for encoders of 125 M"),
        ("encoder", 5_400_000, "the rule's rate for the smallest encoders (110 M)"),
        ("decoder", 70_000_000_000, "the rule's rate for the largest decoders (13 B)"),
        ("encoder-decoder", 770_000_000, "the rule for encoder-decoders of 770 M"),
    ],
)
def test_a_rate_outside_the_table_is_not_called_the_rule_for_that_size(kind: str, parameters: int, words: str) -> None:
    assert rule_in_words(kind, parameters) == words
