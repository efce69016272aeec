import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

import everlearn
from everlearn.wording import be, count, plural, size


@pytest.mark.parametrize(
    ("noun", "several"),
    [("domain", "domains"), ("class", "classes"), ("batch", "batches"), ("memory", "memories"), ("day", "days")],
)
def test_the_noun_follows_its_number(noun, several):
    assert plural(noun) == several
    assert count(1, noun) == f"1 {noun}"
    assert [count(number, noun) for number in (0, 2)] == [f"0 {several}", f"2 {several}"]


def test_thousands_are_separated_and_irregular_plurals_are_given():
    assert count(12_800, "token") == "12,800 tokens"
    assert count(2, "analysis", "analyses") == "2 analyses"
    assert count(1, "analysis", "analyses") == "1 analysis"
    assert [be(number) for number in (0, 1, 2)] == ["are", "is", "are"]


ROOMS = (
    "report", "comparison", "grid", "cli", "commands", "run", "diagnostics", "demo", "data", "evaluation", "tasks",
)  # fmt: skip
NOUNS = (
    "domain", "run", "seed", "model", "step", "token", "example", "row", "text", "document", "cell", "line", "stage",
    "block", "order", "method", "record", "question", "task", "layer", "parameter", "entry", "label", "class",
    "recipe", "prompt", "column", "score", "unit", "subtask", "process", "pass", "epoch", "batch",
)  # fmt: skip
SOURCE = Path(everlearn.__file__).parent


@pytest.mark.parametrize("room", ROOMS)
def test_no_sentence_counts_with_a_plural_of_its_own(room):
    """What has a length may have the length 1: such a number takes its noun from `count`."""
    plurals = {plural(noun) for noun in NOUNS}
    wrong = []
    for path in sorted((SOURCE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for value, after in pairwise(node.values) if isinstance(node, ast.JoinedStr) else ():
                if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                    counted = re.match(r" (?:\w+ )?(\w+)", str(after.value))
                    number = re.fullmatch(r"len\((?!.*[+/])[^\n]*\)", ast.unparse(value.value))
                    if number and counted and counted.group(1) in plurals:
                        wrong.append(
                            f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(value.value)}{after.value}"
                        )
    assert [each for each in wrong if not each.startswith("evaluation/results.py")] == []


def test_a_size_has_three_digits_and_the_unit_that_fits():
    assert [size(n) for n in (0, 12, 999, 999_400, 999_600, 2.5e9, 3e13)] == [
        *("0 B", "12 B", "999 B", "999 kB", "1 MB", "2.5 GB", "30 TB"),
    ]
