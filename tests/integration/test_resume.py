"""A run that was killed, at any moment and as often as one likes, ends in the weights of the run that was not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_runs import SAVING, STEPS, Killer, assert_same, corpus, elsewhere, kill_and_resume, recipe

from everlearn.commands.plan import make_plan
from everlearn.config.recipe import Recipe
from everlearn.evaluation.results import Results
from everlearn.learner import ContinualLearner
from everlearn.run.checks import checks
from methods_of_other_kinds import registered

pytestmark = pytest.mark.usefixtures("no_report")
MOMENTS = ["step 1.3", "checkpoint 1.4", "end", "loss first", "scored 1", "seal 2"]
DAS = {"name": "das", "samples": 8}
REPLAY = {"name": "replay", "share": 0.3, "capacity": 16}
STREAMED = {"streaming": True, "shuffle_buffer": 3}
CASES = {
    "sequential": ("roberta", "sequential", {}),
    "ewc, kd": ("roberta", [{"name": "ewc", "samples": 4}, "kd"], {}),
    "mas, migu": ("gpt2", [{"name": "mas", "protect_base": True}, "migu"], {"general": True}),
    "budget": ("gpt2", {"name": "budget", "samples": 4, "probe": 4, "checks": 3}, {"general": True}),
    "replay": ("llama", REPLAY, {"each": STREAMED}),
    "inc_lora": ("t5", {"name": "inc_lora", "lora_dropout": 0.1}, {}),
    "lora": ("gpt2", "lora", {}),
    "lora_null_v2": ("gpt2", {"name": "lora_null_v2", "r": 4, "samples": 4}, {"general": True}),
    "moe_lora": ("t5", "moe_lora", {}),
    "replay_sample": ("t5", {"name": "replay_sample", "sample": 0.5}, {}),
    "kd_seed, selective_init": ("gpt2", [{"name": "kd_seed", "queue": 6}, "selective_init"], {}),
    "lifelong_moe": ("gpt2", "lifelong_moe", {}),
    "derpp, ewc_released": (
        "roberta",
        [{"name": "derpp", "per_domain": 5, "capacity": 8}, {"name": "ewc_released", "samples": 6}],
        {},
    ),
    "hat": ("roberta", "hat", {}),
    "demix": ("roberta", {"name": "demix", "samples": 6}, {}),
    "dap_prompt": ("roberta", {"name": "dap_prompt", "n_tokens": 4}, {}),
    "progressive_prompts": ("t5", {"name": "progressive_prompts", "n_tokens": 4, "bottleneck": 8}, {}),
    "mocl": ("t5", {"name": "mocl", "n_tokens": 4}, {}),
    "sapt_lora": ("gpt2", {"name": "sapt_lora", "r": 2, "samples": 6, "pseudo": "generated", "pseudo_tokens": 8}, {}),
    "compositional_modules": (
        "gpt2",
        {"name": "compositional_modules", "samples": 4, "pseudo": "generated", "decide": 0.5},
        {},
    ),
    "lfpt5": ("gpt2", {"name": "lfpt5", "n_tokens": 4, "samples": 3, "pseudo_tokens": 12}, {}),
    "classic": ("roberta", "classic", {}),
    "elle": ("roberta", {"name": "elle", "recovery": 1.0, "share": 0.3, "capacity": 16}, {}),
    "agem, recadam, mixout": ("roberta", ["agem", {"name": "recadam", "anchor": "base"}, "mixout"], {}),
    "ulmfit, lwf": ("gpt2", ["ulmfit", "lwf"], {}),
    "schedule": ("gpt2", [{"name": "infinite_schedule", "anneal": 0.5, "gather": 1}, "wise_ft"], {}),
    "schedule and start": ("gpt2", ["autoregressive_schedule", "trimmed_start"], {}),
    "replay_generated": ("gpt2", {"name": "replay_generated", "share": 0.3}, {}),
    "carried": ("roberta", REPLAY, {"optimizer": "carry"}),
    "sparse_memory": ("gpt2", {"name": "sparse_memory", "accessed": 4, "slots": 16}, {"general": True}),
    "das and replay": ("roberta", [DAS, REPLAY], {"each": STREAMED}),
}


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    """The methods that only the tests have are known by name."""
    with registered():
        yield


@pytest.mark.parametrize("case", CASES)
def test_killed_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    architecture, method, groups = CASES[case]
    broken = recipe(tmp_path, architecture, method, train=SAVING, evaluation={"samples": 1}, **groups)
    whole = elsewhere(broken, tmp_path / "whole")
    ContinualLearner(whole).run()
    kill_and_resume(Killer(monkeypatch), broken, MOMENTS)
    assert_same(broken.folder(), whole.folder())


# -- shares that change along a domain, of replay and of sources: resumed to the same weights, and accounted for -------


def replayed(folder: Path) -> Recipe:
    return recipe(folder, "gpt2", train=SAVING, method={"name": "replay", "share": {"start": 0.9, "end": 0.1}})


def weighted(folder: Path) -> Recipe:
    """Two sources in the second domain, of which one takes the place of the other, and replay beside them."""
    of = recipe(folder, "gpt2", train=SAVING, method={"name": "replay", "share": {"start": 0.5, "end": 0.1}})
    first, second = (domain.model_dump(mode="json") for domain in of.domains)
    weights = ({"start": 3, "end": 0}, {"start": 1, "end": 4})
    sources = [{"path": str(corpus(folder / "data", name)), "weight": weights[n]} for n, name in enumerate(("x", "y"))]
    return of.changed(domains=[first, {"name": second["name"], "sources": sources, "validation": 0.15}])


@pytest.mark.parametrize(
    ("case", "shares"),
    [
        (replayed, {"second": 0.5, "earlier domains": 0.5}),
        (weighted, {"second.x": 0.7 * 0.375, "second.y": 0.7 * 0.625, "earlier domains": 0.3}),
    ],
    ids=["a share of replay", "weights of sources"],
)
def test_shares_that_change_go_on_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Callable[[Path], Recipe], shares: dict[str, float]
) -> None:
    broken = case(tmp_path)
    whole = elsewhere(broken, tmp_path / "whole")
    ContinualLearner(whole).run()
    kill_and_resume(Killer(monkeypatch), broken, ["step 2.3", "checkpoint 2.4"])
    assert_same(broken.folder(), whole.folder())
    mixed = {share.source: share for share in Results.load(whole.folder()).mixture if share.stage == 2}
    assert {name: share.asked for name, share in mixed.items()} == pytest.approx(shares, abs=0.05)
    for share in mixed.values():
        assert abs(share.realised - share.asked) <= 2 / (STEPS * 4)


def test_the_checks_show_the_shares_of_sources(tmp_path: Path) -> None:
    shown = {check.name: check.detail for check in checks(ContinualLearner(weighted(tmp_path)))}
    (detail,) = (detail for detail in shown.values() if "75 % to 0 % x, 25 % to 100 % y" in detail)
    assert "held out" in detail


def test_plan_names_published_shares_with_their_source(tmp_path: Path) -> None:
    notes = make_plan(recipe(tmp_path, "gpt2", method="replay"), measure=False).notes
    assert sum("arXiv 2403.08763" in note or "arXiv 2407.17467" in note for note in notes) == 2
    assert not any("arXiv" in note for note in make_plan(recipe(tmp_path, "gpt2"), measure=False).notes)
