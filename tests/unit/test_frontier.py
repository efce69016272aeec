"""Comparisons: the frontier's rules, rows at equal compute, and rows that differ in one option."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import tiny
from cli_project import Project
from everlearn.commands.plan import extra_rows
from everlearn.commands.recommendation import METHOD
from everlearn.commands.yaml_text import method_text
from everlearn.comparison.runs import Run
from everlearn.config.overrides import put
from everlearn.config.recipe import load, parse
from everlearn.errors import EverlearnError, RecipeError, RunError
from everlearn.evaluation.estimate import Estimate
from everlearn.grid import RecipeTemplate, equalised, read_variations
from everlearn.grid.compute import Effort
from everlearn.grid.page import GridPage
from everlearn.grid.relative_to_plain import compute_of, shares_of, shares_of_plain, shares_table
from everlearn.grid.runs import RunFactory
from everlearn.grid.summary import summarise
from everlearn.grid.swept_options import swept
from everlearn.learner import ContinualLearner
from everlearn.methods.base import Cost
from everlearn.report.figures import draw
from everlearn.report.figures.frontiers import Frontiers
from everlearn.report.figures.swept import Swept
from everlearn_bench.suites import Suite
from grid_cells import cell_of, like, made_of, write

# -- `benchmarks/frontier`: its rows, the rule of choice, its pages; and what `everlearn init` writes ------------------


ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks/frontier"
ROWS = """
both:
  sequential: [{name: sequential}]
  ewc: [{name: ewc, strength: [10, 100]}]
  ewc+wise_ft:
    - - {name: ewc, strength: 10}
      - {name: wise_ft, alpha: [0.5, 0.75]}
  replay: [{name: replay, share: 0.05}]
  merged: [{name: merged}]
masked: {}
causal: {}
penalties:
  l2: [{name: l2, strength: 1}]
"""


class Scripts(NamedTuple):
    rows: ModuleType
    choice: ModuleType
    pages: ModuleType


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Scripts:
    monkeypatch.syspath_prepend(str(FOLDER))
    return Scripts(*(importlib.import_module(name) for name in Scripts._fields))


def cell(entry: str, seed: int, kept: float, forgotten: float, drift: float, **more: Any) -> Run:
    """Plain training learns 1, forgets 0.5 and drifts 0.4 bits per byte."""
    bits = {"base": 3.0, "learnt": 3.0 - kept, "final": 3.0 - kept + 0.5 * forgotten}
    last = bits | {"final": bits["learnt"]}
    return cell_of(
        suite="frontier", entry=entry, title=entry, order=0, seed=seed, settings={}, domains=["a", "b"],
        tokens=100, extra_tokens=0, seconds=1.0,
        bits_per_byte={"a": bits, "b": last, "general": {"base": 2.0, "final": 2.0 + 0.4 * drift}}, **more,
    )  # fmt: skip


def unordered(cell: Run) -> Run:
    """The same of one model for each domain, averaged."""
    bits = made_of(cell)["bits_per_byte"]
    return like(cell, order=None, bits_per_byte=bits | {"b": bits["a"]})


def test_a_list_of_values_is_a_way_each(scripts: Scripts) -> None:
    found = list(
        scripts.rows.variants([[{"name": "ewc", "strength": [1, 2]}, {"name": "wise_ft", "alpha": [0.5, 0.75]}]])
    )
    assert [(way[0]["strength"], way[1]["alpha"]) for way in found] == [(1, 0.5), (1, 0.75), (2, 0.5), (2, 0.75)]
    assert list(scripts.rows.variants([{"name": "kd"}])) == [[{"name": "kd"}]]


@pytest.mark.parametrize("stream", ["masked", "causal"])
def test_every_row_is_one_that_a_sweep_reads(scripts: Scripts, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    monkeypatch.chdir(ROOT)
    rows = scripts.rows.rows_of(stream)
    known = scripts.rows.entries(rows, FOLDER / f"{stream}.yaml")
    names = [name for each in known.values() for name in each]
    assert len(names) == len(set(names)) == sum(map(len, rows.values()))
    assert next(iter(known["sequential"])) == "sequential"
    assert {way[0]["source"] for way in rows["replay_general"]} == {"general"}
    assert ("das" in rows) == (stream == "masked")
    shares = [way[0]["share"] for way in rows["replay_earlier"]]
    assert sorted(shares) == [0.01, 0.05, 0.25]


def test_a_key_with_a_point_changes_the_recipe(scripts: Scripts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    rows = list(scripts.rows.variants([{"name": "ewc", "strength": 10, "train.learning_rate": [0.001, 0.002]}]))
    assert scripts.rows.parts_of(rows[1]) == ([{"name": "ewc", "strength": 10}], {"train.learning_rate": 0.002})
    assert scripts.rows.as_methods(rows[1:]) == '{"name": "ewc", "strength": 10}'
    assert scripts.rows.sets_of(rows[1]) == ("train.learning_rate=0.002",)
    found = scripts.rows.entries({"ewc": rows}, FOLDER / "causal.yaml")["ewc"]
    assert list(found) == ["ewc-strength10-learning_rate0.001", "ewc-strength10-learning_rate0.002"]


def test_the_best_reaches_the_aim_and_loses_least_else_it_is_nearest(scripts: Scripts) -> None:
    of = scripts.choice.AgainstPlain
    meets, meets_less, all_learnt = of(0.98, 0.2, 0.2), of(1.2, 0.25, 0.2), of(1.2, 0.8, 0.32)
    short, far = of(0.97, 0.1, 0.1), of(0.3, 0.0, 0.0)
    ways = {"far": [far], "short": [short], "all": [all_learnt], "less": [meets_less], "meets": [meets]}
    assert scripts.choice.best(ways) == ["meets", "less", "short", "all", "far"]
    assert short.distance == pytest.approx(0.01)
    assert of(1.0, 0.55, 0.65).distance == pytest.approx(0.5)
    assert of(0.98, 0.25, 0.25).meets
    assert not of(0.99, 0.25, 0.26).meets
    # On two streams: what reaches it on one alone does not.
    assert scripts.choice.best({"one": [meets, all_learnt], "both": [meets_less, meets_less]}) == ["both", "one"]


def test_only_files_lie_in_the_folder_of_the_corpora(scripts: Scripts) -> None:
    """A suite's own text has an address, and no folder is put before it."""
    found = dict(change.split("=", 1) for change in scripts.rows.places(FOLDER / "masked.yaml", Path("corpora")))
    assert found["domains.0.path"] == "corpora/domains/yelp_restaurants/train.jsonl.gz"
    assert found["general.validation"] == "corpora/D0/wikipedia/validation.jsonl.gz"
    assert set(found) == {
        f"{group}.{part}" for group in ("domains.0", "domains.2", "general") for part in ("path", "validation")
    }


def test_plain_training_is_a_curve_over_learning_rates_and_another_arithmetic_is_said(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    rates = "[{name: sequential}, {name: sequential, train.learning_rate: [0.002, 0.0005]}]"
    (tmp_path / "rows.yaml").write_text(ROWS.replace("[{name: sequential}]", rates))
    results = tmp_path / "results"

    def plain(rate: float, seed: int, *shares: float) -> Run:
        return cell(f"sequential-learning_rate{rate}", seed, *shares, options={"train.learning_rate": rate})

    elsewhere = cell("l2-strength1", 1, 1.0, 1.0, 1.0)
    bits = made_of(elsewhere)["bits_per_byte"]
    bits["general"]["base"] += 0.00005
    for stream in ("masked", "causal"):
        write(
            results / stream,
            *(cell("sequential", seed, 1.0, 1.0, 1.0) for seed in (1, 2)),
            *(plain(0.0005, seed, 0.9, 0.5 + 0.1 * seed, 0.7) for seed in (1, 2)),
            *([plain(0.002, 1, 1.0, 1.4, 1.5), like(elsewhere, bits_per_byte=bits)] if stream == "causal" else []),
        )
    scripts.pages.write(tmp_path / "pages", FOLDER, results, tmp_path / "rows.yaml")
    page = (tmp_path / "pages/frontier.md").read_text()
    assert "| 0\\.0005 | 90, 65, 70 % (2) | 90, 65, 70 % (2) |\n| 0\\.002 | – | 100, 140, 150 % (1) |" in page
    said = "1 of 6 runs were made on a machine with another arithmetic than plain training"
    causal, masked = ((tmp_path / f"pages/frontier-{name}.md").read_text() for name in ("causal", "masked"))
    assert said in causal
    assert "differ by up to 0.00005 bits per byte" in causal
    assert "arithmetic" not in masked


def test_a_new_cell_takes_the_denominators_of_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    add = importlib.import_module("add")

    def found(*values: float) -> dict[str, Any]:
        names = [("base", "a"), ("base", "general"), ("a", "a"), ("a", "general")]
        cells = [[*name, value, 0.1, 0.2] for name, value in zip(names, values, strict=True)]
        matrices = {"bits_per_byte": {"title": "Bits", "cells": cells}, "loss": {}}
        return {"matrices": matrices, "summary": {"loss": 1}, "cost": {"training_seconds": 5.0, "tokens": 9}}

    made = add.converted(found(2.0, 4.0, 1.0, 5.0), found(3.0, 4.0, 9.0, 9.0))
    assert add.scores(made) == {("base", "a"): 3, ("base", "general"): 4, ("a", "a"): 1.5, ("a", "general"): 5}
    assert list(made["matrices"]) == ["bits_per_byte"]
    assert made["summary"] == {}
    assert made["cost"] == {"seconds": 0, "training_seconds": 0, "tokens": 9}, "times of another day do not compare"


def test_pages_say_what_was_chosen_and_recommend_once_the_candidates_have_all_seeds(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "rows.yaml").write_text(ROWS)
    pages, results = tmp_path / "pages", tmp_path / "results"
    ways = {  # the shares of the first seed; the fewer steps of some rows are in their names
        "sequential": (1.0, 1.0, 1.0),
        "ewc-strength10-max_steps96": (1.0, 0.5, 0.5),
        "ewc-strength100-max_steps96": (0.99, 0.2, 0.2),
        "ewc-strength10-wise_ft-alpha0.5": (0.5, 0.1, 0.1),
        "ewc-strength10-wise_ft-alpha0.75": (0.9, 0.3, 0.1),
        "replay-share0.05": (1.0, 0.1, 0.1),
        "l2-strength1": (0.7, 0.7, 0.7),
    }

    def make(seed: int) -> None:
        for stream in ("masked", "causal"):
            made = [
                cell(name, seed, *shares, old_data=name.startswith("replay"), options={"train.max_steps": 96})
                for name, shares in ways.items()
            ]
            write(results / stream, *[*made, unordered(cell("merged", seed, 1.0, 0.6, 0.3))])

    def written() -> dict[str, Any]:
        scripts.pages.write(pages, FOLDER, results, tmp_path / "rows.yaml")
        return dict(json.loads((pages / "frontier.json").read_text()))

    make(1)
    found = written()
    assert found["recommended"] is None
    chosen = {row: data["entry"] for row, data in found["streams"]["causal"]["rows"].items()}
    assert chosen == {
        "ewc": "ewc-strength100",
        "ewc+wise_ft": "ewc-strength10-wise_ft-alpha0.75",
        "replay": "replay-share0.05",
        "l2": "l2-strength1",
    }
    page = (pages / "frontier-causal.md").read_text()
    assert "is reached by `ewc`" in page, "replay keeps old data"
    assert "learns 1.000 bits per byte, forgets 0.500" in page
    assert "are both at least 0.25" in page
    assert "| 99 |" in page
    once = page.partition("## Verdict")[0]
    assert "| merged | merged | 1 | no | 120 | 1.00× | 1.00× | 100 | 70 | – | 30 |  |" in once, (
        "no order, no forgetting"
    )
    for name in ("frontier-causal-forgetting", "frontier-causal-penalties-drift"):
        assert "<svg" in (pages / f"{name}.svg").read_text()
        assert f"({name}.svg)" in page
    assert "None yet: `ewc-strength100`, `ewc-strength10-wise_ft-alpha0.75`" in (pages / "frontier.md").read_text()

    assert "(99, 20, 20 %; the seed that it was chosen with)" in page

    ways["ewc-strength100-max_steps96"] = (0.7, 0.2, 0.2)  # the other seeds say something else
    make(2)
    assert written()["recommended"] is None, "three seeds"
    make(3)
    found = written()
    told = found["streams"]["masked"]["rows"]["ewc"]
    assert (told["other_seeds"], round(told["kept"], 6)) == (2, 0.7), "of the seeds that chose nothing"
    assert "is **not reached** by any row" in (pages / "frontier-masked.md").read_text()
    assert "(70, 20, 20 %; 2 seeds that chose no strength)" in (pages / "frontier-masked.md").read_text()
    assert found["streams"]["masked"]["rows"]["ewc"]["entry"] == "ewc-strength100", "chosen with the first seed"
    assert found["recommended"] == [{"name": "ewc", "strength": 10}, {"name": "wise_ft", "alpha": 0.75}]
    assert found["recommended_with"] == {}
    page = (pages / "frontier.md").read_text()
    assert "`method: [{name: ewc, strength: 10}, {name: wise_ft, alpha: 0.75}]`. Learning, forgetting and drift" in page
    assert "with a learning rate from [a rule for models of any size](../learning-rates.md)" in page
    assert "± 17" in (pages / "frontier-masked.md").read_text()


def test_what_learns_from_old_text_again_is_not_recommended(scripts: Scripts, tmp_path: Path) -> None:
    general = {"source": "general"}
    made = [
        cell("replay-sourcegeneral", 1, 1.0, 0.0, 0.0, options=general | {"train.max_steps": 9}),
        cell("ewc+replay", 1, 1.0, 0.0, 0.0, options={"ewc": {}, "replay": general}),
        cell("replay", 1, 1.0, 0.0, 0.0, old_data=True),
        cell("replay_generated", 1, 1.0, 0.0, 0.0, options={"share": 0.05}),
        cell("ewc", 1, 0.99, 0.5, 0.5),
        cell("sequential", 1, 1.0, 1.0, 1.0),
    ]
    for stream in scripts.rows.STREAMS:
        write(tmp_path / stream, *made)
    assert scripts.choice.candidates(tmp_path) == ["replay_generated", "ewc"]


def test_a_way_has_one_number_of_steps(scripts: Scripts, tmp_path: Path) -> None:
    write(tmp_path, *[cell(f"ewc-max_steps{steps}", 1, 1.0, 0.5, 0.5) for steps in (96, 97)])
    with pytest.raises(RunError, match="two numbers of steps, ewc-max_steps96 and ewc-max_steps97: remove"):
        scripts.rows.lines_of(tmp_path)


def test_init_writes_what_the_committed_results_recommend() -> None:
    file = ROOT / "docs/results/frontier.json"
    found = json.loads(file.read_text())["recommended"] if file.is_file() else None
    assert found is None or list(METHOD) == found


def test_methods_are_written_as_short_as_they_can_be() -> None:
    assert method_text([{"name": "das"}]) == "das"
    assert method_text([{"name": "ewc", "strength": 500.0}]) == "{name: ewc, strength: 500.0}"
    assert method_text([{"name": "ewc", "strength": 5}, {"name": "wise_ft"}]) == "[{name: ewc, strength: 5}, wise_ft]"


def test_the_page_of_fisher_rows_is_in_the_order_of_rows(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = importlib.import_module("fisher_rows")
    ways = [cell("sequential", 1, 1.0, 1.0, 1.0)]
    for rows, left in ((1000, 0.25), (100, 0.5)):
        options = {"strength": 1000.0} | ({} if rows == 1000 else {"samples": rows})  # a cell leaves defaults out
        ways.append(cell(f"ewc-{rows}", 1, 0.9, left, left, options=options))
    write(tmp_path / "results", *ways)
    lines = script.page(tmp_path / "results").splitlines()
    shown = [line for line in lines if line.startswith("| EWC")]
    names = [f"| EWC, strength 1000, {rows} rows" for rows in ("100", "1,000")]
    assert [line.split(" |")[0] for line in shown[:2]] == names
    assert "0.500" not in shown[1]
    assert "25" in shown[3], "a quarter of the forgetting is left"
    assert any(line.startswith("1 seed (1) and 1 strength (1000). With one seed") for line in lines)
    more = [cell("sequential", 2, 1.0, 1.0, 1.0), cell("ewc-7", 2, 0.9, 0.5, 0.5, options={"strength": 7.0})]
    write(tmp_path / "more", *ways, *more)
    assert "\n\n2 seeds (1, 2) and 2 strengths (7, 1000).\n\n" in script.page(tmp_path / "more")


# -- Rows at equal compute, and rows that differ in one option ---------------------------------------------------------


# -- Equal compute: what is counted, what training really runs, and how many steps that leaves -------------------------


GENERAL = {"path": "general.jsonl", "validation": 0.2}


def test_effort_is_that_of_steps_and_of_what_is_run_beside_them() -> None:
    # 1,000 rows in the steps, a third more in each, 100 outside: 4/3 + 1/10; the steps left are 0.9 / (4/3).
    effort = Effort(1000, 1 / 3, 100)
    assert effort.relative == pytest.approx(4 / 3 + 0.1)
    assert effort.share == pytest.approx(0.675)
    assert Effort(round(1000 * effort.share), 1 / 3, 100).relative * effort.share == pytest.approx(1.0)
    assert Effort(100, 0.0, 200).share < 0


def test_a_pass_ends_with_its_text_however_often_there_is_one() -> None:
    cost = Cost(passes_per_domain=50, passes_once=7)
    assert cost.outside_of([100, 20, None], None) == 7 + 50 + 20 + 50  # a pass over 20 blocks has 20
    # 8/3 passes over 30 rows: 80; over the 20 rows that a text has 54 (53.3), and not its 20.
    twice = Cost(passes_per_domain=80, passes_once=60, samples=30, passes_elsewhere=9)
    assert [twice.outside(size) for size in (None, 100, 30, 20)] == [89, 89, 89, 54 + 9]
    assert [twice.outside_once(15, size) for size in (None, 30, 10)] == [60, 60, 20]
    assert Cost(passes_once=60, once_over="domain", samples=30).outside_once(15, 30) == 30


def test_what_is_run_once_a_row_and_for_every_earlier_domain() -> None:
    asked = Cost(passes_per_row=1 / 3)
    assert [asked.outside(size, trained=60) for size in (30, 90, None)] == [10, 20, 20]
    assert asked.outside(30) == 0, "where it counts in the steps"
    assert asked.outside_of([30, 90], None, [60, 60]) == 30
    written = Cost(passes_elsewhere=5, passes_per_earlier=16)
    assert written.outside_of([10, 10, 10], None) == 3 * 5 + (1 + 2) * 16
    tried = Cost(passes_per_earlier=20, samples=60)  # a third of 60 rows of the domain, of which there are 30
    assert tried.outside(30, earlier=2) == 2 * 10
    assert extra_rows(asked) == "0 extra rows per domain and 0.333 extra passes over each different row"
    bound = Cost(passes_elsewhere=5, passes_per_earlier=16, passes_once=2, at_most=True)
    assert extra_rows(bound) == "at most 5 extra rows per domain and 16 more for each earlier one and 2 once"


def ways(everlearn: Project, methods: str, *sets: str) -> tuple[list[Any], RunFactory]:
    everlearn.recipe["general"] = GENERAL
    everlearn.recipe["train"] |= {"max_steps": 40}
    everlearn.write()
    suite = RecipeTemplate(load(everlearn.folder / "recipe.yaml"), "x")
    return read_variations(methods, sets, suite), RunFactory(suite, everlearn.folder / "runs")


def test_what_is_run_beside_the_steps_is_taken_from_them(everlearn: Project) -> None:
    # Two domains of 40 steps of 4 rows are 320. EWC: 20 rows for the base and each domain; with the last steps'
    # gradients for the base alone. The teacher's pass is a third of a step.
    entries, bench = ways(
        everlearn,
        "none,sequential,kd_logits,ewc:samples=20:protect_base=true,ewc:samples=20:protect_base=true:gradients=steps,"
        "replay:source=general",
    )
    found = equalised(entries, bench)
    assert [entry.changes.get("train.max_steps") for entry in found] == [None, None, 30, 32, 37, None]
    assert found[3].name == "ewc-samples20-protect_baseTrue-max_steps32"
    assert found[3].title.endswith("max_steps 32")
    assert found[:2] == entries[:2]


def test_what_cannot_be_shortened_is_refused(everlearn: Project) -> None:
    entries, bench = ways(everlearn, "ewc:samples=100", "train.max_steps=20")
    with pytest.raises(RecipeError, match=r"leaves no step: .* takes 160\. Lower the method's `samples`"):
        equalised(entries, bench)
    everlearn.recipe["domains"][0]["train"] = {"max_steps": 3}
    entries, bench = ways(everlearn, "ewc")
    with pytest.raises(RecipeError, match="domain 'a' has a number of its own"):
        equalised(entries, bench)


@pytest.mark.parametrize(
    ("method", "checked", "at_least"),
    [
        ({"name": "ewc", "samples": 12, "protect_base": True}, 3, 1.0),
        ({"name": "ewc", "samples": 12, "protect_base": True, "gradients": "steps"}, 1, 1.0),
        ({"name": "ewc", "samples": 10_000, "labels": "model"}, 2, 1.0),  # more than the domains have
        ([{"name": "kd_logits"}, {"name": "wise_ft"}, {"name": "replay", "source": "general"}], 0, 1.0),
        ({"name": "das", "samples": 10_000, "anchor": "masked", "contrast_fraction": 0.5}, 4, 1.0),
        ({"name": "das_without_contrast", "samples": 12}, 4, 1.0),
        ({"name": "budget", "samples": 12, "probe": 4, "checks": 2}, 3, 0.6),  # declared as if it always searched
    ],
)
def test_what_is_declared_is_what_runs(
    everlearn: Project, monkeypatch: pytest.MonkeyPatch, method: Any, checked: int, at_least: float
) -> None:
    """Tokens that go through the embeddings in training, a third each where no gradient is taken.

    A measurement of importance runs its first two rows twice more, to be sure of its gradients: that is not declared.
    """
    seen, inside = 0.0, False
    lookup, train = nn.Embedding.forward, ContinualLearner.train_stage

    def counting(self: nn.Embedding, ids: Tensor) -> Tensor:
        nonlocal seen
        if inside and self.num_embeddings == tiny.VOCABULARY:
            seen += ids.numel() * (1 if torch.is_grad_enabled() else 1 / 3)
        return lookup(self, ids)

    def training(self: ContinualLearner, *stage: Any) -> None:
        nonlocal inside
        inside = True
        train(self, *stage)
        inside = False

    monkeypatch.setattr(nn.Embedding, "forward", counting)
    monkeypatch.setattr(ContinualLearner, "train_stage", training)
    everlearn.recipe |= {"general": GENERAL, "method": method, "evaluation": {"blocks": 2, "columns": "own"}}
    learner = ContinualLearner(parse(everlearn.recipe))
    learner.run()
    model, rows = learner.some_model(), learner.rows_per_step(learner.arguments("a"))
    effort = Effort.of(learner, [each.cost(model) for each in learner.recipe.methods()])
    counted, declared = seen / (learner.setting().block_size or 0), effort.relative * effort.plain
    assert declared * at_least - 0.01 <= counted <= declared + checked * rows + 0.01


def cell_of_bench_rows(entry: str, seed: int, learnt: float, final: float, general: float, **more: Any) -> Run:
    first = {"base": 2.0, "learnt": 2.0 - learnt, "final": 2.0 - 2 * final + learnt}  # `final` is the mean of both
    last = {"base": 2.0, "learnt": 2.0 - learnt, "final": 2.0 - learnt}
    drift = {"base": 1.0, "final": 1.0 + general}
    return cell_of(
        suite="own", entry=entry, title=entry, order=0, seed=seed, settings={}, domains=["a", "b"], tokens=1000,
        bits_per_byte={"a": first, "b": last, "general": drift}, **more,
    )  # fmt: skip


def test_shares_are_of_the_plain_run_of_the_same_seed(tmp_path: Path) -> None:
    cells = [
        cell_of_bench_rows("sequential", 1, 0.5, 0.1, 0.4, extra_tokens=0),
        cell_of_bench_rows("sequential", 2, 0.4, 0.2, 0.2, extra_tokens=0),
        cell_of_bench_rows("ewc", 1, 0.45, 0.36, 0.1, extra_tokens=100),
        cell_of_bench_rows("ewc", 2, 0.4, 0.3, 0.1, extra_tokens=100),
    ]
    lines = {line.entry: line for line in summarise(cells)}
    found = shares_of_plain(lines["ewc"], lines["sequential"])
    assert {name: round(share.mean, 6) for name, share in found.items()} == {
        "bits_learnt": 0.95,  # 0.9 and 1
        "bits_held": 0.735,  # 0.36/0.5 and 0.3/0.4
        "bits_forgotten": 0.3625,  # 0.09/0.4 and 0.1/0.2
        "bits_drift": 0.375,  # 0.1/0.4 and 0.1/0.2
    }
    assert found["bits_learnt"].deviation == pytest.approx(0.1 / 2**0.5)
    assert compute_of(lines["ewc"], lines["sequential"]) == pytest.approx(1.1)
    (table,) = shares_table(list(lines.values()), lines["sequential"])
    rows = dict(table.rows)
    assert [f"{each.text} {each.detail}" for each in rows["ewc"]] == ["95 ± 7", "74 ± 2", "36 ± 19", "38 ± 18"]
    old = summarise([cell_of_bench_rows("ewc", 1, 0.4, 0.3, 0.1)])[0]
    assert compute_of(old, lines["sequential"]) is None, "an earlier version did not note it"


# -- Options that were swept: which rows belong together, what is drawn of them, how they are asked for ----------------


def cell_of_bench_swept(entry: str, options: dict[str, Any], end: float = 1.0, seed: int = 1) -> Run:
    first = {"base": 2.0, "learnt": end - 0.1, "final": end + 0.1}  # `end` is the mean of both
    last = {"base": 2.0, "learnt": end - 0.1, "final": end - 0.1}
    return cell_of(
        suite="own",
        entry=entry,
        title=entry,
        order=0,
        seed=seed,
        options=options,
        settings={},
        domains=["a", "b"],
        bits_per_byte={"a": first, "b": last},
    )


def test_rows_that_differ_in_one_option_belong_together() -> None:
    cells = [
        cell_of_bench_swept("sequential", {}),
        cell_of_bench_swept("migu-threshold0", {"threshold": 0}, 1.5),
        cell_of_bench_swept("migu-threshold0.99", {"threshold": 0.99}, 1.25),
        cell_of_bench_swept("migu-threshold0.7", {}, 1.125),  # the default: a cell says only what is not
        *(cell_of_bench_swept(f"migu-g{t}", {"threshold": t, "apply_to": "gradient"}) for t in (0.1, 0.2, 0.3)),
        cell_of_bench_swept("migu-other", {"threshold": 0.5, "mask_bias": True}),
        cell_of_bench_swept("migu-random", {"selector": "random"}),
    ]
    (found,) = swept(summarise(cells))
    assert found.option == "threshold"
    assert found.values == [0, 0.1, 0.2, 0.3, 0.7, 0.99]
    assert [family.label for family in found.families] == ["MIGU (apply_to update)", "MIGU (apply_to gradient)"]
    rows = [[family.lines.get(value) for value in found.values] for family in found.families]
    ends = [[line and line.numbers["bits"].value for line in row] for row in rows]
    assert ends == [[1.5, None, None, None, 1.125, 1.25], [None, 1.0, 1.0, 1.0, None, None]]


def test_the_frontier_is_in_shares_of_plain_training() -> None:
    # Plain training learns 2 − 0.9 = 1.1 and forgets 0.2; the base is lost as much as text is forgotten.
    cells = [
        cell_of_bench_swept("sequential", {}),
        *(cell_of_bench_swept(f"ewc-{s}", {"strength": s}, end) for s, end in ((1, 1.1), (10, 1.5), (100, 1.9))),
    ]
    lines = {line.entry: line for line in summarise(cells)}
    ((label, points),) = shares_of(swept(list(lines.values())), lines["sequential"], "bits_forgotten")
    assert label == "EWC"
    assert [point.value for point in points] == ["1", "10", "100"]
    assert [point.kept for point in points] == pytest.approx([1.0 / 1.1, 0.6 / 1.1, 0.2 / 1.1])
    assert [point.left for point in points] == pytest.approx([1.0, 1.0, 1.0])
    (plate,) = draw("frontiers", Frontiers([(label, points)], "forgetting left"))
    assert "EWC 1: 91 % kept, 100 % left, 10: 55 % kept" in plate.svg
    assert "EWC, strength 10" in plate.svg
    assert shares_of(swept(list(lines.values())), lines["ewc-1"], "bits_drift") == [], "nothing was measured of it"
    far = [*points, replace(points[0], left=2.0)]
    (plate,) = draw("frontiers", Frontiers([(label, far)], "forgetting left"))
    assert "left out: 1." in plate.caption
    assert draw("frontiers", Frontiers([], "forgetting left")) == []


def test_names_are_listed_as_they_come_and_lists_by_their_parts() -> None:
    cells = [cell_of_bench_swept("migu", {})]
    cells += [cell_of_bench_swept(f"migu-{name}", {"selector": name}) for name in ("weight", "random")]
    cells += [
        cell_of_bench_swept(f"migu-c{i}", {"components": names})
        for i, names in enumerate((["query"], ["key", "value"]))
    ]
    by = {found.option: found for found in swept(summarise(cells))}
    assert by["selector"].values == ["magnitude", "weight", "random"]
    assert by["components"].values[1:] == ["query", "key, value"]
    assert [family.label for family in by["selector"].families] == ["MIGU"]


def test_keys_of_the_recipe_and_methods_that_work_together() -> None:
    rates = [1e-5, 1e-4, 1e-3]
    cells = [cell_of_bench_swept(f"sequential-{rate}", {"train.learning_rate": rate}) for rate in rates]
    cells += [
        cell_of_bench_swept(f"migu-replay-{rate}", {"migu": {}, "replay": {"share": 0.2}, "train.learning_rate": rate})
        for rate in rates
    ]
    (found,) = swept(summarise(cells))
    assert (found.option, found.values) == ("learning_rate", rates)
    assert len(found.families) == 2
    assert found.families[1].label.startswith("MIGU + Replay")


def test_two_values_are_no_picture() -> None:
    assert (
        swept(
            summarise(
                [cell_of_bench_swept("migu-1", {"threshold": 0.1}), cell_of_bench_swept("migu-2", {"threshold": 0.2})]
            )
        )
        == []
    )


def test_picture_of_numbers_and_of_names() -> None:
    family = [Estimate(1.0, 0.9, 1.1), None, Estimate(3.0)]
    (line,) = draw(
        "swept", Swept("threshold", "bits", [0.0, 0.5, 0.9], [family], ["MIGU"], "At the end.", 2.0, "Plain")
    )
    assert line.caption == "At the end. Bands: 95 % intervals over runs. Grey: Plain, 2.000."
    (single,) = draw(
        "swept", Swept("threshold", "bits", [0.0, 0.5], [[Estimate(1.0), Estimate(3.0)]], [""], "One run.")
    )
    assert single.caption == "One run.", "one run has no interval"
    assert "MIGU 0: 1.000, 0.9: 3.000." in line.svg
    assert "threshold" in line.svg
    (rates,) = draw("swept", Swept("learning_rate", "bits", [1e-5, 1e-4, 1e-3], [family], [""], ""))
    assert all(f">{value}<" in rates.svg for value in ("1e-05", "0.0001", "0.001"))
    (named,) = draw("swept", Swept("selector", "bits", ["random", "weight", "outputs"], [family], ["MIGU"], "x"))
    assert ">random<" in named.svg
    assert "Lines" in named.caption


def test_the_page_shows_what_was_swept(tmp_path: Path) -> None:
    class Own(Suite):
        name = "own"

        def __init__(self) -> None:
            """Nothing is trained."""

    cells = [
        cell_of_bench_swept("sequential", {}, 1.0),
        *(cell_of_bench_swept(f"migu-{t}", {"threshold": t}, 1.0 + t) for t in (0, 0.5, 0.9)),
    ]
    page = GridPage(Own(), cells).page()
    assert "<h2>By threshold</h2>" in page
    assert "Average at the end (bits per byte) by threshold." in page
    assert "Grey: sequential, 1.000." in page


def test_an_option_of_a_method_is_swept_where_the_method_is(everlearn: Project) -> None:
    everlearn("env")
    suite = RecipeTemplate(load(everlearn.folder / "recipe.yaml"), "x")
    ways = read_variations(
        "none,sequential,[migu,replay]", ["method.migu.threshold=0,0.5", "train.max_steps=1,2"], suite
    )
    assert [way.name for way in ways][:3] == ["none", "sequential-max_steps1", "sequential-max_steps2"]
    assert len(ways) == 3 + 4
    assert ways[-1].methods == ({"name": "migu", "threshold": 0.5}, {"name": "replay"})
    assert ways[-1].changes == {"train.max_steps": 2}
    parts = read_variations("migu", ["method.migu.components=[query],[key, value]"], suite)
    assert [way.title for way in parts] == ["MIGU (components query)", "MIGU (components key, value)"]
    (strong,) = read_variations("ewc:strength=1e4", ["train.weight_decay=1.0"], suite)
    assert strong.title == "EWC (strength 10000) · weight_decay 1"
    with pytest.raises(RecipeError, match=r"`method.migo.threshold`, but no entry has 'migo'. Did you mean 'migu'"):
        read_variations("migu", ["method.migo.threshold=0"], suite)
    with pytest.raises(EverlearnError, match="'threshold': must be below 1"):
        read_variations("migu", ["method.migu.threshold=0,1.5"], suite)


def test_a_key_of_every_domain_is_swept(everlearn: Project) -> None:
    everlearn("env")
    suite = RecipeTemplate(load(everlearn.folder / "recipe.yaml"), "x")
    few, _ = read_variations("sequential", ["domains.*.max_documents=5,9"], suite)
    assert few.name == "sequential-domains.all.max_documents5"
    assert few.changes == {"domains.*.max_documents": 5}
    raw = suite.own.model_dump(mode="json")
    put(raw, "domains.*.max_documents", 5)
    assert [domain["max_documents"] for domain in raw["domains"]] == [5, 5]
    with pytest.raises(EverlearnError, match=r"`--set` cannot change `domains.\*.name`"):
        read_variations("sequential", ["domains.*.name=a,b"], suite)
    with pytest.raises(EverlearnError, match=r"change `end_tasks.polarity.epochs`: the recipe has no end tasks\.$"):
        read_variations("sequential", ["end_tasks.polarity.epochs=1,2"], suite)
