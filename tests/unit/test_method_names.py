"""Names of methods and their options, and errors with suggestions."""

from __future__ import annotations

import ast
import copy
import itertools
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForSeq2SeqLM

import everlearn
import stages
import tiny
from everlearn.commands.describe import describe, schema
from everlearn.config.recipe import parse
from everlearn.errors import MOST_LISTED, MethodError, ModelError, first_line
from everlearn.methods import REGISTRY, Method, MethodConfig, Needs, Reading, Variant, build, names, register
from everlearn.methods.base import VARIANTS
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.model.loading import load_config
from everlearn.model.objectives import IGNORE
from everlearn.model.options import Model
from everlearn.model.vocabulary_head import logits_of
from everlearn.wording import be, count, plural, size

# -- Names of methods and variants, what is made of them, and lists that are refused or work together ------------------


@pytest.mark.parametrize("name", names())
def test_a_configuration_that_is_written_with_all_its_options_is_read_again(name: str) -> None:
    config = build(name).config
    assert build({"name": name, **config.model_dump(mode="json")}).config == config


def needs_a_domain_when_halved(self: Method, config: MethodConfig | None = None, **options: Any) -> None:
    """The constructor of the method below."""
    Method.__init__(self, config, **options)
    self.needs = Needs(domain_id_test=self.config.rate == 0.5)


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
            "__init__": needs_a_domain_when_halved,
            "variants": (
                Variant("plain_half", "Half", "Half of it.", {"rate": 0.5}),
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


def test_an_error_names_what_was_written(plain) -> None:
    for name in ("plain_test", "plain_half"):
        with pytest.raises(MethodError, match=f"Method '{name}' has no option 'rat'. Did you mean 'rate'"):
            build({"name": name, "rat": 1})
        with pytest.raises(MethodError, match=f"Method '{name}', option 'rate': .*'much'"):
            build({"name": name, "rate": "much"})
        with pytest.raises(MethodError, match=f"Method '{name}' has no option 'config'"):
            build({"name": name, "config": 1})
    with pytest.raises(MethodError, match="Method 'hat_all', option 'smax'"):
        build({"name": "hat_all", "smax": 0})


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ({"name": "hat_all"}, {"domain_id_test": False}),
        ({"name": "hat_all", "test_gates": "domain"}, {"domain_id_test": True}),
        ({"name": "hat", "test_gates": "open"}, {"domain_id_test": False}),
        ({"name": "das_random"}, {"importance_pass": False}),
        ({"name": "das_random", "scores": "measured"}, {"importance_pass": True}),
        ({"name": "das_without_soft_mask"}, {"importance_pass": False}),
        ({"name": "das_without_soft_mask", "strength": 1}, {"importance_pass": True}),
        ({"name": "das", "strength": 0, "contrast": 0}, {"importance_pass": False}),
        ({"name": "demix"}, {"importance_pass": True, "domain_id_test": True}),
        ({"name": "demix", "initialise": "fresh"}, {"importance_pass": False}),
        ({"name": "adapter_cl"}, {"domain_id_test": False}),
        ({"name": "adapter_cl", "choose": "domain"}, {"domain_id_test": True}),
        ({"name": "ncl_adapter", "shared": False}, {"domain_id_test": True}),
        ({"name": "ewc", "strength": 0}, {"importance_pass": False}),
        ({"name": "forget_me_not", "ewc": 0, "ewc_normalised": 0}, {"importance_pass": False}),
        ({"name": "kd_logits"}, {"importance_pass": False}),
        ({"name": "kd_logits", "top_k": 8}, {"importance_pass": True}),
        ({"name": "lfpt5", "pseudo": 0, "divergence": 0}, {"importance_pass": False}),
        ({"name": "sapt_lora", "pseudo": "generated"}, {"importance_pass": True, "old_data": False}),
        ({"name": "compositional_modules", "pseudo": "generated"}, {"importance_pass": True, "old_data": False}),
        ({"name": "compositional_modules", "replay": 0}, {"old_data": False}),
        ({"name": "replay", "share": 0}, {"old_data": False}),
        ({"name": "replay", "source": "general"}, {"old_data": False}),
        ({"name": "replay", "source": "both"}, {"old_data": True}),
        ({"name": "derpp", "alpha": 0, "beta": 0}, {"old_data": False}),
        ({"name": "derpp", "alpha": 0}, {"old_data": True}),
    ],
)
def test_needs_follow_the_options(spec: dict, needs: dict) -> None:
    method = build(spec)
    assert {key: getattr(method.needs, key) for key in needs} == needs
    # Whatever is not about these options is as the class declares it.
    assert replace(method.needs, **{key: getattr(type(method).needs, key) for key in needs}) == type(method).needs


@pytest.mark.parametrize("name", names())
def test_every_name_declares_what_it_costs(name: str) -> None:
    method, model = build(name), tiny.model(dropout=0.1)
    cost = method.cost(model)
    beside = cost.outside(None, trained=1, earlier=1) + cost.outside_once(None, None)
    assert method.needs.importance_pass == (beside > 0)
    assert method.needs.extra_parameters == (method.cost(model).parameters > 0)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ncl", "In the DAS paper NCL is `sequential`."),
        ("DER++", "In the DAS paper DER++ is `derpp`."),
        ("HAT-All", "Did you mean 'hat_all'?"),
    ],
)
def test_names_of_the_paper_lead_to_ours(name: str, hint: str) -> None:
    with pytest.raises(MethodError) as caught:
        build(name)
    assert str(caught.value) == f"There is no method '{name}'. {hint}"


def test_names_are_refused_when_wrong_or_taken(plain) -> None:
    message = r"There is no method 'x'\. `everlearn methods` lists all\. One of your own .* first \(`--import \w+`\)\.$"
    with pytest.raises(MethodError, match=message):
        build("x")
    with pytest.raises(MethodError, match=r"There is no method 'plain_hafl'\. Did you mean 'plain_half'"):
        build("plain_hafl")
    for name, message in (("plain_half", "belongs to Plain already"), ("Plain-Half", "snake_case")):
        other = type("Other", (Method,), {"__doc__": "x", "name": name, "title": "x", "paper": ""})
        with pytest.raises(TypeError, match=message):
            register(other)


def test_every_method_is_of_a_kind_its_own_or_its_familys() -> None:
    assert all(REGISTRY[name].kinds for name in REGISTRY)
    assert (REGISTRY["ewc"].kinds, REGISTRY["derpp"].kinds) == (("prior-focused",), ("replay", "data-focused"))
    assert describe("das_released")["kinds"] == ["isolation"]
    with pytest.raises(TypeError, match="is of kind 'magic', which is none of none, replay"):
        register(
            type("Odd", (Method,), {"__doc__": "x", "name": "odd", "title": "x", "paper": "", "kinds": ("magic",)})
        )
    assert "odd" not in REGISTRY


REFUSED = [
    (("ewc", "hat"), "'ewc' protects the weights of the model, but method 'hat' trains"),
    (("ewc_released", "demix"), "'ewc_released' protects the weights of the model, but method 'demix' trains"),
    (("ewc", "dap_prompt"), "'ewc' protects the weights of the model, but method 'dap_prompt' trains"),
    (("demix", "das"), "'demix' freezes the model, so method 'das' has nothing to protect"),
    (("hat_adapter", "das_without_contrast"), "'hat_adapter' freezes the model, so method 'das_without_contrast' has"),
    (("demix", "migu"), "'demix' freezes the model, so method 'migu' has nothing to protect"),
    (("demix", "hat"), "'demix' freezes all parameters except its own, also those that method 'hat'"),
    (("l2_sp", "dap_prompt"), "'l2_sp' protects the weights of the model, but method 'dap_prompt' trains"),
    (("forget_me_not", "hat"), "'forget_me_not' protects the weights of the model, but method 'hat' trains"),
    (("ewc", "rewc"), r"'ewc' is listed 2 times \(`method`: '(ewc|rewc)', '(ewc|rewc)'\)"),
    (("hat", "hat_all"), r"'hat' is listed 2 times \(`method`: 'hat(_all)?', 'hat(_all)?'\)"),
]
ALLOWED = [
    ("das", "hat"),
    ("das", "replay"),
    ("demix", "das_without_soft_mask"),
    ("demix", "kd"),
    ("ewc", "replay"),
    ("ewc", "l2_sp"),
    ("si", "mas"),
    ("inc_lora", "migu"),
]


def check(both: tuple[str, ...]) -> None:
    """Check a list of methods on a model with dropout."""
    methods = [build(name) for name in both]
    check_methods(methods, stages.setting(tiny.model(dropout=0.1), methods))


@pytest.mark.parametrize(("pair", "sentence"), REFUSED)
def test_refused_in_both_orders(pair: tuple[str, str], sentence: str) -> None:
    for both in itertools.permutations(pair):
        with pytest.raises(MethodError, match=rf"{sentence}.*(Remove one of them.*|List it once)\.$"):
            check(both)


def test_the_sentence_names_the_keys() -> None:
    with pytest.raises(MethodError, match=r"Remove one of them from `method`, or set `strength: 0`\.$"):
        check(("demix", "das"))
    with pytest.raises(MethodError, match=r"Remove one of them from `method`\.$"):
        check(("demix", "migu"))


@pytest.mark.parametrize("pair", ALLOWED)
def test_others_work_together(pair: tuple[str, str]) -> None:
    for both in itertools.permutations(pair):
        check(both)


@pytest.mark.parametrize("beside", ["lifelong_moe", "moe_lora"])
@pytest.mark.parametrize("teaches", [{"name": "lwf"}, {"name": "kd_logits"}, {"name": "kd_logits", "top_k": 200}])
def test_a_teacher_has_what_others_keep_beside_the_plain_model(beside: str, teaches: dict[str, Any]) -> None:
    """What earlier domains taught experts is part of what the stream's model says before the next domain."""
    model, kept, method = tiny.model("gpt2"), build(beside), build(teaches)
    stages.learn([kept, method], stages.stage(model, 1, "causal"))
    stage = stages.stage(model, 2, "causal", steps=3)
    stage.rows_per_step = 4
    reading = Reading("d2", ("d1",), stage.objective, lambda: model, stage.batches, stage.checkpoints)
    batch = next(stage.batches(4))
    plain, right = copy.deepcopy(model), kept.test_model(copy.deepcopy(model), reading).eval()
    apart = stage.objective.per_sample_loss(plain, batch) - stage.objective.per_sample_loss(right, batch)
    assert apart.abs().max() > 1e-3
    protection = Protection([kept, method], stage)
    protection.begin()
    [view] = method.views(stage, batch)
    wrong, losses = (
        stage.objective.forward(one.eval(), batch, [view]).view_losses[0].sum().item() for one in (plain, right)
    )
    entropy = (method.config.temperature == 2) and _entropy(stage, right, batch)
    assert losses - entropy == pytest.approx(0, abs=1e-4)
    assert wrong - entropy > 1e-4
    protection.end()


def _entropy(stage: Any, model: Any, batch: dict[str, Any]) -> float:
    """Of a model's answers at a temperature of 2, summed over the labels: what LwF's cross-entropy is at least."""
    logits = logits_of(model, stage.objective.label_features(model, batch))[(batch["labels"] != IGNORE).flatten()]
    p = (logits.detach().double() / 2).softmax(-1)
    return float(-(p * p.log()).sum())


@pytest.mark.parametrize("both", list(itertools.permutations(("demix", "das_without_soft_mask"))))
def test_a_contrast_trains_adapters_beside_a_frozen_model(both: tuple[str, str]) -> None:
    model, methods = tiny.model(dropout=0.1), [build(name) for name in both]
    start = stages.weights(model)
    parts = [stages.learn(methods, stages.stage(model, index, steps=2))[-1] for index in (1, 2)]
    assert all(float(part["das/contrast"]) > 0 for part in parts)
    assert all((stages.weights(model)[name] == value).all() for name, value in start.items())


# -- Errors and words: what is quoted of other libraries, counts with their nouns, an architecture that is not there ---


def test_one_line_is_quoted_without_long_lists() -> None:
    assert first_line(ValueError("  No. It has a, b, c.\nMore.")) == "No. It has a, b, c."
    assert first_line(ValueError()) == "ValueError"
    names = [f"n{number}" for number in range(400)]
    assert (
        first_line(ValueError(f"No 'x' here. Take one of {', '.join(names)}. Try again.")) == "No 'x' here. Try again."
    )
    cut = first_line(ValueError(f"Take one of {', '.join(names)}"))
    assert cut == f"Take one of {', '.join(names[:MOST_LISTED])}, …"


def test_what_transformers_says_of_an_unknown_model_is_short() -> None:
    with pytest.raises(ValueError, match="gpt2") as found:
        AutoConfig.for_model("brt")
    assert len(first_line(found.value)) < 100 < len(str(found.value))
    with pytest.raises(ValueError, match="Model type should be one of") as found:
        AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("gpt2"))
    assert len(first_line(found.value)) < 200


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "robertta"}, "`model.config.model_type` is 'robertta', .*no architecture.* 'roberta'\\?$"),
        ({"model_type": "zzzzq"}, "`model.config.model_type` is 'zzzzq', .* of that name\\.$"),
        ({"model_type": "bert", "hidden_size": "x"}, "`model.config` is no configuration of a 'bert': .*hidden_size"),
    ],
)
def test_random_weights_of_what_is_not_there(config: dict[str, object], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        load_config(Model(config=config, tokenizer="x"))


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


def test_a_method_without_a_text_for_its_paper_is_refused_before_it_trains():
    body = {"__doc__": "Nothing.", "name": "unpublished", "title": "Unpublished", "paper": None}
    with pytest.raises(TypeError, match="must define `paper` in its own class body, as text"):
        register(type("Unpublished", (Method,), body))
    assert "unpublished" not in REGISTRY
