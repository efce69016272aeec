"""Names of methods and variants: what a recipe may say, and what is made of it."""

from __future__ import annotations

import pytest

from everlearn.describing import describe, schema
from everlearn.errors import MethodError
from everlearn.methods import REGISTRY, Method, MethodConfig, Needs, Variant, build, names, register
from everlearn.methods.base import VARIANTS
from everlearn.recipe import parse


@pytest.fixture
def plain():
    """A method with a variant, known for the time of a test."""

    class Config(MethodConfig):
        """Options."""

        rate: float = 1.0
        """How much."""
        other: int = 3
        """Something else."""

    cls = type(
        "Plain",
        (Method,),
        {
            "__doc__": "Does nothing.",
            "name": "plain_test",
            "title": "Plain",
            "paper": "https://example.org/plain",
            "Config": Config,
            "variants": (
                Variant("plain_half", "Half", "Half of it.", {"rate": 0.5}, needs=Needs(domain_id_test=True)),
                Variant("plain_paper", "Paper", "As published.", {"rate": 2.0}, paper="https://example.org/other"),
            ),
        },
    )
    register(cls)
    yield cls
    del REGISTRY["plain_test"], VARIANTS["plain_half"], VARIANTS["plain_paper"]


def test_a_variant_is_the_method_with_other_defaults(plain) -> None:
    made = build("plain_half")
    assert type(made) is plain
    assert (made.label, made.name, made.title, made.paper) == ("plain_half", "plain_test", "Half", plain.paper)
    assert made.config.rate == 0.5
    assert made.config.other == 3
    assert made.needs.domain_id_test
    assert not build("plain_test").needs.domain_id_test
    assert build("plain_paper").paper == "https://example.org/other"
    assert build({"name": "plain_half", "rate": 0.25}).config.rate == 0.25
    assert {"plain_test", "plain_half", "plain_paper"} <= set(names())


def test_recipes_keep_the_variants_name(plain) -> None:
    raw = {"model": "x", "domains": [{"name": "d", "path": "d.txt"}], "method": "plain_half"}
    recipe = parse(raw)
    assert recipe.method == ({"name": "plain_half", "rate": 0.5, "other": 3},)
    assert recipe.methods()[0].title == "Half"


def test_variants_are_described_with_their_defaults(plain) -> None:
    one = describe("plain_half")
    assert (one["name"], one["variant_of"], one["description"]) == ("plain_half", "plain_test", "Half of it.")
    assert {option["name"]: option["default"] for option in one["options"]} == {"rate": 0.5, "other": 3}
    assert one["needs"]["domain_id_test"] is True
    assert describe("plain_test")["variant_of"] is None
    definitions = schema()["$defs"]
    assert definitions["method_plain_half"]["properties"]["rate"]["default"] == 0.5
    assert definitions["method_plain_test"]["properties"]["rate"]["default"] == 1.0
    assert "plain_half" in definitions["Method"]["anyOf"][0]["enum"]


def test_names_are_refused_when_wrong_or_taken(plain) -> None:
    with pytest.raises(MethodError, match=r"There is no method 'plain_hafl'\. Did you mean 'plain_half'"):
        build("plain_hafl")
    for name, message in (("plain_half", "belongs to Plain already"), ("Plain-Half", "snake_case")):
        other = type("Other", (Method,), {"__doc__": "x", "name": name, "title": "x", "paper": ""})
        with pytest.raises(TypeError, match=message):
            register(other)
