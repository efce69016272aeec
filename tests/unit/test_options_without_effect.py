"""Options that change nothing beside others are refused by one rule, and change nothing indeed."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

import stages
import tiny
from everlearn import files
from everlearn.config.recipe import Recipe, load, parse
from everlearn.errors import MethodError, RecipeError
from everlearn.methods import REGISTRY, build
from everlearn.options import Options
from everlearn.run.folder import RunFolder

OFF = {"das": {"scores": "random"}, "ulmfit": {"ratio": None}}
"""Method → what switches a part of it off, of which its variants set options."""
PLAIN = [
    ({"name": "kd", "distance": "squared"}, "temperature", 5.0),
    ({"name": "kd", "compare": "batch"}, "queue", 5),
    ({"name": "multi_task_adaptation", "balance": "fixed", "samples": 4}, "rate", 0.5),
    ({"name": "budget", "general": None, "earlier": None}, "samples", 5),
    ({"name": "budget", "general": None, "earlier": None}, "rank", 5),
    ({"name": "budget", "general": None, "earlier_by": "predicted", "samples": 4, "rank": 2}, "probe", 5),
    ({"name": "budget", "general": None, "earlier_by": "predicted", "samples": 4, "rank": 2}, "checks", 5),
    ({"name": "budget", "earlier": None, "samples": 4, "rank": 2}, "earlier_by", "predicted"),
    ({"name": "das", "general": "none", "samples": 4}, "proxy_dropout", False),
    ({"name": "das", "general": "corpus_loss", "samples": 4}, "proxy_softmax", "sequence"),
    ({"name": "das", "accumulate": False, "samples": 4}, "domain_input", "plain"),
    ({"name": "das", "scores": "random"}, "reduce", "signed_sum"),
    ({"name": "ensemble", "combine": "mean"}, "temperature", 5.0),
    ({"name": "ewc", "anchor": "base", "samples": 4}, "decay", 0.5),
    ({"name": "l2"}, "normalise", "max"),
    ({"name": "replay", "source": "general"}, "capacity", 3),
    ({"name": "mocl", "module": "prefix"}, "r", 2),
    ({"name": "mocl", "module": "lora"}, "n_tokens", 5),
    ({"name": "migu", "selector": "weight"}, "count_padding", False),
    ({"name": "migu", "selector": "random"}, "lora_b", "own"),
    ({"name": "ulmfit", "divisors": [2.0, 1.0]}, "decay", 1.5),
    ({"name": "ulmfit", "ratio": None}, "cut", 0.5),
    ({"name": "ulmfit", "ratio": None}, "phase_cut", 0.5),
    ({"name": "side_tuning", "layers": 1, "initialise": "random"}, "distil_rate", 1.0),
    ({"name": "side_tuning", "layers": 1, "merge": "mean"}, "start", 1.0),
]
"""Options → one that has no effect beside them, and another value of it."""


@pytest.mark.parametrize(("spec", "key", "value"), PLAIN, ids=lambda each: str(each))
def test_an_option_without_effect_is_refused_and_has_none(spec: dict[str, Any], key: str, value: Any) -> None:
    with pytest.raises(MethodError, match=rf"option '{key}': .* has no effect .*\. Leave it at"):
        build({**spec, key: value})
    with_default, with_other = (learnt(spec, change) for change in ({}, {key: value}))
    assert all(torch.equal(one, other) for one, other in zip(with_default, with_other, strict=True))


@pytest.mark.parametrize(("kind", "key", "module"), [("t5", "r", "prefix"), ("gpt2", "n_tokens", "lora")])
def test_an_option_without_effect_on_this_kind_of_model_is_refused(kind: str, key: str, module: str) -> None:
    """Which module `mocl` has depends on the model if the user does not say it."""
    objective = "text-to-text" if kind == "t5" else "causal"
    model, given, plain = tiny.model(kind), build({"name": "mocl", key: 3}), build("mocl")
    with pytest.raises(MethodError, match=rf"option '{key}': 3 has no effect with `module: {module}`.*of kind"):
        given.check(stages.setting(model, [given], objective))
    plain.check(stages.setting(model, [plain], objective))


def learnt(spec: dict[str, Any], change: dict[str, Any]) -> list[Tensor]:
    """The weights after the first steps of a second domain, with a change that is not checked."""
    method, model = build(spec), tiny.model("roberta", dropout=0.1)
    method = type(method)(type(method.config).model_construct(**method.config.model_dump() | change))
    for index in (1, 2):
        stage = stages.stage(model, index, general=True, steps=1, count=20)
        stages.learn([method], stage)
        model = stage.model
    return list(stages.weights(model).values())


def other_values(field: Any) -> Iterator[Any]:
    """Yield values of an option that may switch something off: 0, null, false, and every named one."""
    yield from (0, None, False)
    for each in (field.annotation, *typing.get_args(field.annotation)):
        if typing.get_origin(each) is typing.Literal:
            yield from typing.get_args(each)


def test_whatever_is_without_effect_beside_one_or_two_others_is_refused() -> None:
    """Over all methods: the options that each yields exist, and are refused unless they are at their defaults."""
    tried = 0
    for name, cls in REGISTRY.items():
        fields = cls.Config.model_fields
        single = [{key: value} for key, field in fields.items() for value in other_values(field)]
        for one, two in itertools.combinations([{}, *single], 2):
            try:
                config = cls.Config(**one, **two) if one.keys().isdisjoint(two) else None
            except ValidationError:
                continue
            for keys, why in config.without_effect() if config is not None else ():
                assert set(keys) <= set(fields), name
                assert why.startswith(("with ", "without ", "where ")), name
                tried += 1
    assert tried > 100


@pytest.mark.parametrize(
    ("name", "off"),
    [(variant.name, off) for cls, off in OFF.items() for variant in REGISTRY[cls].variants],
)
def test_what_a_variant_sets_counts_as_not_set(name: str, off: dict[str, Any]) -> None:
    """A resolved recipe, which lists every option, is accepted."""
    method = build({"name": name, **off})
    build({"name": name, **method.config.model_dump(mode="json")})


@pytest.mark.parametrize(
    "options",
    [
        {"name": "lwf", "weight": 0, "temperature": 5.0},
        {"name": "kd_logits", "weight": 0, "temperature": 5.0},
        {"name": "multi_task_adaptation", "drift": 0, "samples": 5},
        {"name": "forget_me_not", "ewc": 0, "ewc_normalised": 0, "samples": 5},
        {"name": "das", "contrast": 0, "temperature": 0.5},
        {"name": "classic", "contrast": 0, "temperature": 0.5},
        {"name": "mas", "strength": 0, "samples": 5},
    ],
    ids=lambda options: options["name"],
)
def test_a_number_of_0_is_a_point_of_a_sweep(options: dict[str, Any]) -> None:
    """The options of what it switches off are those of the sweep's other points."""
    build(options)


def test_a_run_of_an_earlier_version_that_has_one_is_read(tmp_path: Path) -> None:
    """There it was allowed; the run goes on as if it were not set. A new recipe with it is refused."""
    options = {"name": "ensemble", "combine": "mean"}
    recipe = parse(
        {"model": str(tmp_path), "domains": [{"name": "a", "path": str(tmp_path / "a.txt")}], "method": options}
    )
    folder = RunFolder(tmp_path / "run")
    text = recipe.to_yaml().replace("temperature: 0.0", "temperature: 0.5")
    assert text != recipe.to_yaml()
    files.write_text(folder.recipe_file, text, sealed=True)
    assert folder.recipe().method == recipe.method
    with pytest.raises(MethodError, match=r"'temperature': 0\.5 has no effect with `combine: mean`"):
        load(folder.recipe_file)
    with pytest.raises(MethodError, match="no effect"):
        build({**options, "temperature": 0.5})


# -- a mistyped key of any group of a recipe is answered with the key that is meant ------------------------------------


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
