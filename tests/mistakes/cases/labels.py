"""End tasks and labels."""

from typing import Any

from cli_project import labelled
from mistakes import Case, both, file, jsonl, recipe

LOOK = ("data", "recipe.yaml")
FINDS = ("data", "recipe.yaml", "--json")
TASK = {"name": "topics", "train": "train.jsonl", "test": "test.jsonl"}


def labels(*given: Any) -> list[dict[str, Any]]:
    return [{"text": f"text {number} of {label}", "label": label} for number, label in enumerate(given)]


def task(train: list[dict[str, Any]], test: list[dict[str, Any]] | None = None, **changes: Any) -> Any:
    parts = [jsonl("train.jsonl", train), jsonl("test.jsonl", test or [{"text": "other", "label": train[0]["label"]}])]
    return both(*parts, recipe("end_tasks", [{**TASK, **changes}]))


def refused(name: str, train: list[dict[str, Any]], *says: str, **changes: Any) -> Case:
    return Case(name, task(train, **changes), LOOK, says=says)


def table(rows: str) -> Any:
    made = both(
        file("train.csv", f"text,label\n{rows}"),
        file("test.csv", f"text,label\nother,{rows.splitlines()[0].split(',')[1]}"),
    )
    return both(made, recipe("end_tasks", [{**TASK, "train": "train.csv", "test": "test.csv"}]))


CASES = [
    Case(
        "tests labels that training has not",
        both(
            jsonl("test.jsonl", [*labelled(8, 1), {"text": "z", "label": "zebra"}]),
            recipe("end_tasks", [{"name": "topics", "train": "train.jsonl", "test": "test.jsonl"}]),
        ),
        says=("topics", "zebra", "x, y"),
    ),
    Case(
        "gives an end task a domain that is not there",
        recipe("end_tasks", [{"name": "t", "domain": "aa", "train": "train.jsonl", "test": "test.jsonl"}]),
        says=("'t'", "'aa'", "'a'"),
    ),
    refused("spells a label in three ways", labels("Pos", "POS", "pos ", "neg"), "'POS', 'Pos', 'pos '", "3 classes"),
    refused("spells a label with other blanks", labels("not good", "not  good", "good"), "'not  good', 'not good'"),
    refused("writes an accent in two ways", labels("\u00e9", "e\u0301", "a"), "2 classes"),
    Case("writes a number in two ways", table("a,1\nb,1.0\nc,2\n"), LOOK, says=("'1', '1.0'", "2 classes")),
    Case(
        "gives scores as labels",
        table("".join(f"t{n},{n / 120}\n" for n in range(1, 120))),
        LOOK,
        says=("quantities", "119 classes"),
    ),
    refused("gives fractions as labels", labels(0.5, 0.25), "whole number", "0.5"),
    refused("leaves a label out", [*labels("a", "b"), {"text": "x"}], "train.jsonl", "'label'"),
    refused("has null for a label", labels("a", "b", None), "train.jsonl, line 3", "None"),
    refused("has an empty label", labels("a", "b", ""), "train.jsonl, line 3", "''"),
    refused("has a list for a label", labels("a", ["b"]), "train.jsonl, line 2", "['b']"),
    refused("has one label only", labels("a", "a"), "'a'", "two are needed"),
    refused(
        "has null for the text of an example", [*labels("a", "b"), {"text": None, "label": "a"}], "line 3", "NoneType"
    ),
    refused("names a label column that is not there", labels("a", "b"), "'labl'", label_column="labl"),
    refused("names a second text that is not there", labels("a", "b"), "'pair'", text_pair_column="pair"),
    Case(
        "tests on the training file",
        recipe("end_tasks", [{**TASK, "test": "train.jsonl"}]),
        LOOK,
        says=("topics", "tested on its training examples", "train.jsonl"),
    ),
    Case(
        "tests on a copy of the training file",
        task(labels("a", "b"), labels("a", "b")),
        LOOK,
        says=("tested on its training examples", "test.jsonl is the same file as"),
    ),
    Case(
        "tests on some of the training examples",
        task(labelled(20, 1), [*labelled(20, 1)[:5], *labelled(15, 2)]),
        FINDS,
        says=("5 of the 20 test examples of 'topics'",),
        code=0,
    ),
    Case(
        "takes names for labels",
        task(labels(*(f"name {number}" for number in range(30)))),
        FINDS,
        says=("30 of the 30 labels of 'topics'", "are these classes?"),
        code=0,
    ),
    Case(
        "has an empty training part", both(file("train.jsonl", ""), recipe("end_tasks", [TASK])), LOOK, says=("empty",)
    ),
    Case("has an empty test part", both(file("test.jsonl", ""), recipe("end_tasks", [TASK])), LOOK, says=("empty",)),
]
