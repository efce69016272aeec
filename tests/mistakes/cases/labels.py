"""End tasks and labels."""

from cli_project import labelled
from mistakes import Case, both, jsonl, recipe

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
]
