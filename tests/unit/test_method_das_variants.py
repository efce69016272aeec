"""The published settings of DAS that have names: the released code, the paper's ablations, DGA."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

import stages
import tiny
from everlearn.config.recipe import load
from everlearn.errors import MethodError
from everlearn.importance import normalise, unit_importance
from everlearn.methods import build
from everlearn.methods.base import Memory, Stage
from everlearn.methods.engine.protection import check_methods
from everlearn.methods.masks.das import DAS
from everlearn.methods.masks.das_options import RELEASED
from everlearn.model.anatomy import anatomy
from everlearn.model.modes import evaluating
from everlearn.seeding import seeded

SWITCHES = [{name: value} for name, value in RELEASED.items()] + [{"reduce": "signed_sum"}]

# -- the presets ----------------------------------------------------------------------------------------------


def test_released_is_all_switches_together() -> None:
    assert set(RELEASED) == {
        "reduce",
        "proxy_dropout",
        "proxy_softmax",
        "proxy_input",
        "domain_input",
        "domain_dropout",
        "qkv_mask_axis",
        "apply_to",
        "pair",
        "gather_grad",
    }
    released = build("das_released")
    assert released.config == DAS(**RELEASED).config
    assert all(getattr(DAS().config, name) != value for name, value in RELEASED.items())


def _two_steps(**options) -> dict[str, Tensor]:
    """The weights after a domain of one step and the first step of the next."""
    model = tiny.model(dropout=0.1)
    method = DAS(samples=6, **options)
    for index in (1, 2):
        stages.learn([method], stages.stage(model, index, steps=1))
    return stages.weights(model)


@pytest.fixture(scope="module")
def paper() -> dict[str, Tensor]:
    return _two_steps()


@pytest.mark.parametrize("switch", [s for s in SWITCHES if "gather_grad" not in s], ids=str)
def test_each_switch_changes_what_is_learnt(switch: dict, paper: dict[str, Tensor]) -> None:
    """Another gradient of gathered rows shows on several processes only (test_methods_distributed.py)."""
    changed = _two_steps(**switch)
    assert any(not torch.equal(value, changed[name]) for name, value in paper.items())


ABLATIONS = [
    "das_released",
    "das_without_initialisation",
    "das_without_soft_mask",
    "das_random",
    "das_without_contrast",
    "das_domain_specific",
    "das_wiki_mlm",
    "das_wiki_kl",
    "dga",
]


def test_no_two_published_settings_learn_the_same(paper: dict[str, Tensor]) -> None:
    assert [variant.name for variant in DAS.variants] == ABLATIONS
    learnt = {"das": paper}
    for name in ABLATIONS:
        model, method = tiny.model(dropout=0.1), build({"name": name, "samples": 6})
        for index in (1, 2):
            stages.learn([method], stages.stage(model, index, steps=1, general=True))
        assert bool(method.memory()) == (name != "das_without_soft_mask")
        learnt[name] = stages.weights(model)
    for name, weights in learnt.items():
        assert all(torch.isfinite(value).all() for value in weights.values())
        twins = [
            other for other, theirs in learnt.items() if all(torch.equal(weights[key], theirs[key]) for key in theirs)
        ]
        assert twins == [name]


# -- the ablations' importance --------------------------------------------------------------------------------


def _begun(name: str, stage: Stage, **options) -> DAS:
    method = build({"name": name, "samples": 8, **options})
    stages.hook(method, "begin_domain", stage)
    return method


def test_general_importance_from_a_corpus_is_measured_on_that_corpus() -> None:
    model = tiny.model(dropout=0.1)
    here = stages.stage(model, 1, general=True)
    there = stages.stage(model, 1)
    there.source = here.general
    mlm = _begun("das_wiki_mlm", here).memory()
    with evaluating(model):
        raw = unit_importance(model, there.batches(8), here.objective.per_sample_loss)
    for key, value in normalise(raw).items():
        assert torch.equal(mlm.tensors[f"general/{key}"], value)
    kl = _begun("das_wiki_kl", here).memory()
    proxy = _begun("das", there).memory()
    assert all(torch.equal(value, proxy.tensors[key]) for key, value in kl.tensors.items())
    method = build("das_wiki_kl")
    with pytest.raises(MethodError, match="there is none"):
        check_methods([method], stages.setting(model, [method]))


def test_random_importance_is_seeded_uniform_and_needs_no_pass() -> None:
    model = tiny.model()
    method = _begun("das_random", stages.stage(model, 1))
    again = _begun("das_random", stages.stage(model, 1))
    check_methods([method], stages.setting(model, [method]))
    assert method.cost(model).passes_per_domain == 0
    assert not method.needs.importance_pass
    for key, value in method.memory().tensors.items():
        assert torch.equal(value, again.memory().tensors[key])
    with seeded(0, "hook", "das", "begin_domain", 1):
        raw = {site.name: torch.rand(site.units).double() for site in anatomy(model).sites}
    for name, value in raw.items():
        expected = torch.tanh((value - value.mean()) / value.std()).abs()
        torch.testing.assert_close(method.memory().tensors[f"general/{name}"].double(), expected, rtol=1e-5, atol=1e-6)
    before = method.memory().tensors
    stages.hook(method, "end_domain", stages.stage(model, 1))
    after = method.memory().tensors
    assert all(bool((after[key] >= value).all()) for key, value in before.items())
    assert any(not torch.equal(after[key], value) for key, value in before.items())


def test_what_random_maps_leave_free_is_what_the_page_says() -> None:
    """docs/das.md quotes 0.38, 0.23, 0.17, 0.14; of one map it is 1 − ln cosh(√3) / √3."""
    model = tiny.model(intermediate_size=100_000, num_hidden_layers=1)
    method, left = DAS(scores="random", contrast=0), []
    stages.hook(method, "begin_domain", stages.stage(model, 1))
    for index in range(1, 5):
        left.append(float(1 - method.memory().tensors["accumulated/layers.0.ffn.neurons"].mean()))
        stages.hook(method, "end_domain", stages.stage(model, index))
    assert left[0] == pytest.approx(1 - math.log(math.cosh(math.sqrt(3))) / math.sqrt(3), abs=2e-3)
    assert left == pytest.approx([0.38, 0.23, 0.17, 0.14], abs=5e-3)


def test_dga_protects_heads_by_a_proxy_of_its_own_for_each_domain() -> None:
    model = tiny.model(dropout=0.1)
    method = build({"name": "dga", "samples": 8})
    first, second = stages.stage(model, 1), stages.stage(model, 2)
    stages.learn([method], first)
    maps = method.memory()
    assert {key.split("/")[1].split(".", 2)[2] for key in maps.tensors} == {"attention.heads"}
    stages.hook(method, "begin_domain", second)
    assert any(not torch.equal(value, method.memory().tensors[key]) for key, value in maps.tensors.items())
    assert all(".attention." in name for name in method.mask(second).factors)
    fresh = build({"name": "dga", "samples": 8})
    stages.hook(fresh, "begin_domain", second)
    now = method.memory()
    assert all(torch.equal(value, fresh.memory().tensors[key]) for key, value in now.tensors.items())
    # A resume inside the domain finds the map of this domain and keeps it.
    resumed = build({"name": "dga", "samples": 8})
    resumed.load_memory(now)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    stages.hook(resumed, "begin_domain", second)
    assert all(torch.equal(value, resumed.memory().tensors[key]) for key, value in now.tensors.items())


def test_domain_specific_views_are_gated_by_the_rest() -> None:
    model = tiny.model()
    method = DAS(contrast_kind="specific", general="none")
    maps = {site.name: torch.rand(site.units) for site in anatomy(model).sites}
    method.load_memory(Memory({f"accumulated/{name}": value for name, value in maps.items()}, {"domains": ["d0"]}))
    stage = stages.stage(model, 2)
    stages.begin([method], stage)
    full, again, previous = method.views(stage, next(stage.batches(4)))
    for name, value in maps.items():
        assert torch.equal(full.gates[name], 1 - value)
        assert torch.equal(again.gates[name], 1 - value)
        assert torch.equal(previous.gates[name], value)


def test_more_refusals() -> None:
    model = tiny.model(dropout=0.1)
    for options, match in (
        ({"contrast_kind": "specific", "anchor": "masked"}, "anchor: plain"),
        ({"accumulate": False, "general": "none"}, "leaves nothing"),
    ):
        with pytest.raises(MethodError, match=match):
            check_methods([DAS(**options)], stages.setting(model, [DAS()]))
    with pytest.raises(MethodError, match="'units"):
        DAS(units=[])
    assert math.isclose(DAS(contrast_fraction=0.25, anchor="masked").cost(model).passes_per_step, 0.5)


def test_shipped_recipes_load_and_their_commands_parse() -> None:
    root = Path(__file__).parents[2]
    paths = sorted((root / "recipes" / "das").glob("*.yaml"))
    assert len(paths) == 2
    for path in paths:
        assert [method.name for method in load(path).methods()] == ["das"]
        commands = re.findall(r"^#   everlearn run (\S+) ?(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert commands
        for recipe, overrides in commands:
            load(root / recipe, overrides.split())
    assert load(paths[1]).methods()[0].config == build({"name": "das_released"}).config
    single = load(paths[1], ["method=das", "method.pair=interleaved"]).methods()[0]
    assert single.config == DAS(pair="interleaved").config
