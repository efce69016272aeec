"""A mistyped key of any group of a recipe is answered with the key that is meant."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from everlearn.config.recipe import Recipe, parse
from everlearn.errors import RecipeError
from everlearn.options import Options


def is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Options)


DOMAIN = {"name": "a", "path": "a.txt"}
OPTIONAL = [name for name, field in Recipe.model_fields.items() if any(map(is_group, get_args(field.annotation)))]
"""The groups that may be left out."""


def refusal(**groups: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        parse({"model": "x", "domains": [DOMAIN], "method": "sequential"} | groups)
    return str(caught.value)


@pytest.mark.parametrize(
    ("group", "typed", "meant"),
    [
        ("stop", "evry", "every"),
        ("general", "pth", "path"),
        ("data", "blok_size", "block_size"),
        ("evaluation", "blokcs", "blocks"),
        ("report", "tolerat", "tolerate"),
        ("run", "nme", "name"),
    ],
)
def test_a_key_of_a_group(group: str, typed: str, meant: str) -> None:
    assert refusal(**{group: {typed: 3}}) == f"Unknown key `{group}.{typed}`. Did you mean '{meant}'?"


def test_the_groups_that_may_be_left_out_are_among_them() -> None:
    optional = {name for name in OPTIONAL if Recipe.model_fields[name].default is None}
    assert {"stop", "general"} <= optional
    for group in optional:
        said = refusal(**{group: {"zzz": 3}})
        assert f"`{group}.zzz`. Known: " in said
        assert "domains" not in said, "the keys of the recipe itself"


def test_keys_inside_of_lists_and_other_groups() -> None:
    assert "Did you mean 'tokenizer'" in refusal(model={"path": "x", "tokeniser": "y"})
    assert "Did you mean 'train'" in refusal(domains=[DOMAIN | {"tran": {}}])
    assert "Did you mean 'weight'" in refusal(domains=[{"name": "a", "sources": [{"path": "b", "wieght": 1}]}])
    assert "Did you mean 'max_new_tokens'" in refusal(evaluation={"chat": {"max_new": 3}})
    assert "Did you mean 'domains'" in refusal(domain=[DOMAIN])
