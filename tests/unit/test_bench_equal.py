"""Equal compute: what is counted, what training really runs, and how many steps that leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from cli_project import Project
from everlearn.commands.plan import extra_rows
from everlearn.comparison.runs import Run
from everlearn.config.recipe import load, parse
from everlearn.errors import RecipeError
from everlearn.grid import RecipeTemplate, equalised, read_ways
from everlearn.grid.compute import Effort
from everlearn.grid.relative_to_plain import compute_of, shares_of_plain, shares_table
from everlearn.grid.runs import RunFactory
from everlearn.grid.summary import summarise
from everlearn.learner import ContinualLearner
from everlearn.methods.base import Cost
from grid_cells import cell_of

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
    return read_ways(methods, sets, suite), RunFactory(suite, everlearn.folder / "runs")


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


def cell(entry: str, seed: int, learnt: float, final: float, general: float, **more: Any) -> Run:
    first = {"base": 2.0, "learnt": 2.0 - learnt, "final": 2.0 - 2 * final + learnt}  # `final` is the mean of both
    last = {"base": 2.0, "learnt": 2.0 - learnt, "final": 2.0 - learnt}
    drift = {"base": 1.0, "final": 1.0 + general}
    return cell_of(
        suite="own", entry=entry, title=entry, order=0, seed=seed, settings={}, domains=["a", "b"], tokens=1000,
        bits_per_byte={"a": first, "b": last, "general": drift}, **more,
    )  # fmt: skip


def test_shares_are_of_the_plain_run_of_the_same_seed(tmp_path: Path) -> None:
    cells = [
        cell("sequential", 1, 0.5, 0.1, 0.4, extra_tokens=0),
        cell("sequential", 2, 0.4, 0.2, 0.2, extra_tokens=0),
        cell("ewc", 1, 0.45, 0.36, 0.1, extra_tokens=100),
        cell("ewc", 2, 0.4, 0.3, 0.1, extra_tokens=100),
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
    old = summarise([cell("ewc", 1, 0.4, 0.3, 0.1)])[0]
    assert compute_of(old, lines["sequential"]) is None, "an earlier version did not note it"
