"""Output magnitudes of domains against slow references in float64, what is said to be alike, and the page."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stages
import tiny
from cli_project import Project
from everlearn.diagnostics.analyses.activations import sections, tables
from everlearn.diagnostics.pages.analysis import write_page
from everlearn.diagnostics.row_activations import ALL, Magnitudes, alike, mean_magnitudes
from everlearn.learner import ContinualLearner
from everlearn.model.anatomy import anatomy
from everlearn.report.figures import draw
from everlearn.report.figures.violins import Violins, _density

COMPONENTS = {"a.query": "query", "b.query": "query", "a.in": "feed_forward_in"}


def random_rows(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {path: torch.rand(10 if "in" in path else 7, generator=generator) for path in COMPONENTS}


@pytest.mark.parametrize(
    ("architecture", "objective"), [("roberta", "masked"), ("gpt2", "causal"), ("t5", "text-to-text")]
)
def test_means_of_outputs_in_float64(architecture: str, objective: str) -> None:
    model = tiny.model(architecture)
    stage = stages.stage(model, 1, objective)
    batches = list(itertools.islice(stage.batches(7), 2))  # of 4 and 3 rows
    found = mean_magnitudes(model.train(), batches, stage.objective)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    seen: dict[str, list[torch.Tensor]] = {path: [] for path in stage.anatomy.linears}
    for path, outputs in seen.items():
        double.get_submodule(path).register_forward_hook(
            lambda _, __, out, outputs=outputs: outputs.extend(out.detach().flatten(0, 1))
        )
    with torch.no_grad():
        for batch in batches:
            stage.objective.forward(double, batch)
    assert found.keys() == seen.keys()
    for path, outputs in seen.items():
        wanted = torch.stack(outputs).abs().mean(0)
        torch.testing.assert_close(found[path].double(), wanted, rtol=1e-4, atol=1e-5)


def test_overlap_and_correlation_by_hand() -> None:
    halves = {name: (random_rows(2 * i), random_rows(2 * i + 1)) for i, name in enumerate(("x", "y", "z"))}
    found = alike(Magnitudes("Outputs", COMPONENTS, halves), 0.7)

    def top(values: list[float]) -> set[int]:
        order = sorted(range(len(values)), key=lambda i: (values[i], i))
        return set(order[math.floor(0.7 * len(values)) :])

    def pair(path: str, a: str, b: str) -> tuple[float, float]:
        overlaps, correlations = [], []
        for i in (0, 1):
            one, two = halves[a][i][path].tolist(), halves[b][1 - i][path].tolist()
            overlaps.append(len(top(one) & top(two)) / len(top(one)))
            correlations.append(statistics.correlation(one, two))
        return statistics.mean(overlaps), statistics.mean(correlations)

    for part, paths in ((ALL, list(COMPONENTS)), ("query", ["a.query", "b.query"]), ("feed_forward_in", ["a.in"])):
        for (i, a), (j, b) in itertools.product(enumerate(halves), repeat=2):
            wanted = [statistics.mean(each) for each in zip(*(pair(path, a, b) for path in paths), strict=True)]
            assert found.overlap[part][i][j] == pytest.approx(wanted[0])
            assert found.correlation[part][i][j] == pytest.approx(wanted[1], abs=1e-6)
        kept = [(7 - 4) / 7 if "query" in path else 3 / 10 for path in paths]
        assert found.chance[part] == pytest.approx(statistics.mean(kept))


def test_what_is_the_same_twice_is_wholly_alike() -> None:
    rows = random_rows(1)
    found = alike(Magnitudes("Rows that moved furthest", COMPONENTS, {"x": (rows, rows)}), 0.5)
    assert found.overlap[ALL] == [[1.0]]
    assert found.correlation[ALL] == [[pytest.approx(1.0)]]
    assert [table.rows[0][1][-1].text for table in tables([found])] == ["1.000", "–"], "no other to compare with"


def test_violins_are_as_wide_as_there_are_values() -> None:
    values = np.random.default_rng(0)
    narrow, wide = values.gamma(40, 1 / 40, 500), values.gamma(2, 0.5, 500)
    (plate,) = draw("violins", Violins("mean |y|", ["narrow", "wide"], [narrow, wide], "x"))
    assert f"narrow: median {np.median(narrow):.2f}" in plate.svg
    assert f"wide: median {np.median(wide):.2f}" in plate.svg
    places, density = _density(wide, 3.0)
    assert density[np.abs(places - 0.5).argmin()] > 3 * density[np.abs(places - 2.5).argmin()], "the mode is at 0.5"
    assert list(draw("violins", Violins("", [], [], ""))) == []
    assert draw("violins", Violins("", ["zeros"], [[0.0, 0.0]], ""))


def test_a_run_and_its_page(everlearn: Project) -> None:
    everlearn.recipe["method"] = {"name": "migu", "threshold": 0.5}
    everlearn.recipe["train"] |= {"max_steps": 1, "save_steps": 1}
    assert everlearn("run", "recipe.yaml").code == 0
    everlearn.fails("analyse", "activations", "runs/first", "--blocks", "1", says=("`--blocks` is 1", "2 or more"))
    shown = everlearn("analyse", "activations", "runs/first", "--blocks", "8", "--json")
    assert shown.code == 0, shown.err
    base, after, moved = json.loads(shown.out)["magnitudes"]
    assert base["title"] == "Outputs of the base model"
    assert after["title"] == "Outputs of the model after b"
    assert (base["names"], moved["names"], base["threshold"]) == (["a", "b"], ["a", "b"], 0.5)
    assert base["chance"][ALL] == pytest.approx(0.5, abs=0.05)

    # the rows that moved, read again from the weights
    learner = ContinualLearner.open(everlearn.run_folder)
    models = [learner.model_after(k) for k in range(3)]
    shares = []
    for path in (path for path, each in anatomy(models[0]).linears.items() if each.component == "feed_forward_in"):
        tops = []
        for before, model in itertools.pairwise(models):
            old, new = (each.get_submodule(path).weight.detach().double().numpy() for each in (before, model))
            change = [math.dist(x, y) for x, y in zip(old, new, strict=True)]
            order = sorted(range(len(change)), key=lambda i: (np.float32(change[i]), i))
            tops.append(set(order[len(change) // 2 :]))
        shares.append(len(tops[0] & tops[1]) / len(tops[0]))
    assert moved["overlap"]["feed_forward_in"][0][1] == pytest.approx(statistics.mean(shares), abs=0.02)

    page = (everlearn.run_folder / "analysis-activations.html").read_text(encoding="utf-8")
    assert "<h1>first: activations</h1>" in page
    for words in ("Outputs of the base model", "Rows that moved furthest", "By component", "Correlation of the rows"):
        assert words in page
    assert page.count("<script>") == 1
    assert "What importance" not in page


@pytest.mark.parametrize(
    ("method", "moved"), [({"name": "inc_lora", "merge": False}, ["query", "value"]), ("elle", [])]
)
def test_layers_that_stay_or_grow_are_left_out(everlearn: Project, method: Any, moved: list[str]) -> None:
    everlearn.recipe["method"] = method
    everlearn.recipe["train"] |= {"max_steps": 1, "save_steps": 1}
    assert everlearn("run", "recipe.yaml").code == 0
    shown = everlearn("analyse", "activations", "runs/first", "--blocks", "8", "--json")
    assert shown.code == 0, shown.err
    found = {each["title"]: each for each in json.loads(shown.out)["magnitudes"]}
    rows = found.pop("Rows that moved furthest", None)
    assert list(rows["overlap"] if rows else []) == [*([ALL] if moved else []), *moved]
    assert len(found) == 2


def test_rows_that_are_all_equal_have_no_correlation(tmp_path: Path) -> None:
    rows = {path: torch.ones(7) for path in COMPONENTS}
    measured = Magnitudes("Outputs", COMPONENTS, {"x": (rows, rows), "y": (rows, rows)})
    found = alike(measured, 0.5)
    assert found.correlation[ALL] == [[None, None], [None, None]]
    assert json.dumps(found.to_json(), allow_nan=False)
    assert "–" in write_page(tmp_path / "p.html", "x", sections([measured], [found])).read_text("utf-8")
