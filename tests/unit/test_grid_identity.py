"""What cells of one table share: how it is said to a reader, and where it differs."""

from __future__ import annotations

from everlearn.grid.identity import described, where_differ


def test_what_all_items_share_is_said_once() -> None:
    facts = {
        "recipe.domains": {"a": {"name": "a", "group": "x", "keep_last": 8}, "b": {"name": "b", "keep_last": 8}},
        "recipe.end_tasks": [
            {"name": "a", "domain": "a", "max_test": 3, "epochs": 1},
            {"name": "b", "domain": "b", "max_test": 3, "epochs": 2},
        ],
        "recipe.train": {"save_steps": 500, "logging_steps": 5, "max_steps": 7},
        "suite": {"answers": "head"},
        "model": "m 123",
        "corpora": {"a": ["1"]},
        "end_task_files": {"a": ["2"]},
    }
    assert described(facts) == [
        ("domains.*.keep_last", "8"),
        ("end_tasks.*.max_test", "3"),
        ("end_tasks.a.epochs", "1"),
        ("end_tasks.b.epochs", "2"),
        ("train.logging_steps", "5"),
        ("train.max_steps", "7"),
        ("suite.answers", "head"),
        ("model", "m 123"),
    ]


def test_a_difference_is_named_by_its_innermost_key() -> None:
    there, here = {"bf16": True, "max_steps": 5}, {"bf16": True, "max_steps": 7}
    assert where_differ("recipe.train", there, here) == ("train.max_steps", 5, 7)
    assert where_differ("recipe.train", None, here) == ("train", None, here)
    assert where_differ("model", "a", "b") == ("model", "a", "b")
