"""What YAML's numbers become."""

from __future__ import annotations

from typing import Any

import pytest

from everlearn.config.reading import read_value
from everlearn.config.recipe import parse
from everlearn.errors import MethodError, RecipeError
from everlearn.methods import build

HUGE = 16**4000


def test_base_60_is_text() -> None:
    """A time or a ratio is what it looks like. (Of a long one PyYAML would multiply for a minute.)"""
    assert read_value("[12:30, 1:2.5, 0x10, 1e-4]", "a") == ["12:30", "1:2.5", 16, 1e-4]
    assert read_value("1" + ":1" * 160_000, "a") == "1" + ":1" * 160_000


@pytest.mark.parametrize("number", ["0x" + "f" * 4000, "0b" + "1" * 15_000, "9" * 101, "1." + "1" * 5000])
def test_a_number_that_python_cannot_print_is_refused(number: str) -> None:
    with pytest.raises(RecipeError, match=r"line 1: a number of [\d,]+ characters .*the most is 100"):
        read_value(f"{{seed: {number}}}", "run")


@pytest.mark.parametrize(
    "changed",
    [{"run": {"seed": HUGE}}, {"data": {"block_size": HUGE}}, {"train": {"max_steps": HUGE}}, {"model": HUGE}],
)
def test_a_number_from_python_has_the_same_limit(changed: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="is a number of more than 100 digits"):
        parse({"model": "m", "domains": [{"name": "a", "path": "a.txt"}], **changed})


def test_a_wrong_option_that_python_cannot_print_is_a_sentence() -> None:
    with pytest.raises(MethodError, match="more than 4,300 digits"):
        build({"name": "ewc", "strength": -HUGE})
    with pytest.raises(MethodError, match="more than 4,300 digits"):
        build({"name": "ewc", "anchor": HUGE})
