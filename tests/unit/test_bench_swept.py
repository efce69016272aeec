"""Options that were swept: which rows belong together, what is drawn of them, how they are asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli_project import Project
from everlearn.comparison.runs import Run
from everlearn.config.overrides import put
from everlearn.config.recipe import load
from everlearn.errors import EverlearnError, RecipeError
from everlearn.evaluation.estimate import Estimate
from everlearn.grid import RecipeTemplate, read_ways
from everlearn.grid.page import GridPage
from everlearn.grid.relative_to_plain import shares_of
from everlearn.grid.summary import summarise
from everlearn.grid.swept_options import swept
from everlearn.report.figures import draw
from everlearn.report.figures.frontiers import Frontiers
from everlearn.report.figures.swept import Swept
from everlearn_bench.suites import Suite
from grid_cells import cell_of


def cell(entry: str, options: dict[str, Any], end: float = 1.0, seed: int = 1) -> Run:
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
        cell("sequential", {}),
        cell("migu-threshold0", {"threshold": 0}, 1.5),
        cell("migu-threshold0.99", {"threshold": 0.99}, 1.25),
        cell("migu-threshold0.7", {}, 1.125),  # the default: a cell says only what is not
        *(cell(f"migu-g{t}", {"threshold": t, "apply_to": "gradient"}) for t in (0.1, 0.2, 0.3)),
        cell("migu-other", {"threshold": 0.5, "mask_bias": True}),
        cell("migu-random", {"selector": "random"}),
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
        cell("sequential", {}),
        *(cell(f"ewc-{s}", {"strength": s}, end) for s, end in ((1, 1.1), (10, 1.5), (100, 1.9))),
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
    cells = [cell("migu", {})]
    cells += [cell(f"migu-{name}", {"selector": name}) for name in ("weight", "random")]
    cells += [cell(f"migu-c{i}", {"components": names}) for i, names in enumerate((["query"], ["key", "value"]))]
    by = {found.option: found for found in swept(summarise(cells))}
    assert by["selector"].values == ["magnitude", "weight", "random"]
    assert by["components"].values[1:] == ["query", "key, value"]
    assert [family.label for family in by["selector"].families] == ["MIGU"]


def test_keys_of_the_recipe_and_methods_that_work_together() -> None:
    rates = [1e-5, 1e-4, 1e-3]
    cells = [cell(f"sequential-{rate}", {"train.learning_rate": rate}) for rate in rates]
    cells += [
        cell(f"migu-replay-{rate}", {"migu": {}, "replay": {"share": 0.2}, "train.learning_rate": rate})
        for rate in rates
    ]
    (found,) = swept(summarise(cells))
    assert (found.option, found.values) == ("learning_rate", rates)
    assert len(found.families) == 2
    assert found.families[1].label.startswith("MIGU + Replay")


def test_two_values_are_no_picture() -> None:
    assert swept(summarise([cell("migu-1", {"threshold": 0.1}), cell("migu-2", {"threshold": 0.2})])) == []


def test_picture_of_numbers_and_of_names() -> None:
    family = [Estimate(1.0, 0.9, 1.1), None, Estimate(3.0)]
    (line,) = draw(
        "swept", Swept("threshold", "bits", [0.0, 0.5, 0.9], [family], ["MIGU"], "At the end.", 2.0, "Plain")
    )
    assert line.caption == "At the end. Bands: 95 % intervals over runs. Grey: Plain, 2.000."
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

    cells = [cell("sequential", {}, 1.0), *(cell(f"migu-{t}", {"threshold": t}, 1.0 + t) for t in (0, 0.5, 0.9))]
    page = GridPage(Own(), cells).page()
    assert "<h2>By threshold</h2>" in page
    assert "Average at the end (bits per byte) by threshold." in page
    assert "Grey: sequential, 1.000." in page


def test_an_option_of_a_method_is_swept_where_the_method_is(everlearn: Project) -> None:
    everlearn("env")
    suite = RecipeTemplate(load(everlearn.folder / "recipe.yaml"), "x")
    ways = read_ways("none,sequential,[migu,replay]", ["method.migu.threshold=0,0.5", "train.max_steps=1,2"], suite)
    assert [way.name for way in ways][:3] == ["none", "sequential-max_steps1", "sequential-max_steps2"]
    assert len(ways) == 3 + 4
    assert ways[-1].methods == ({"name": "migu", "threshold": 0.5}, {"name": "replay"})
    assert ways[-1].changes == {"train.max_steps": 2}
    parts = read_ways("migu", ["method.migu.components=[query],[key, value]"], suite)
    assert [way.title for way in parts] == ["MIGU (components query)", "MIGU (components key, value)"]
    with pytest.raises(RecipeError, match=r"`method.migo.threshold`, but no entry has 'migo'. Did you mean 'migu'"):
        read_ways("migu", ["method.migo.threshold=0"], suite)
    with pytest.raises(EverlearnError, match="'threshold': must be below 1"):
        read_ways("migu", ["method.migu.threshold=0,1.5"], suite)


def test_a_key_of_every_domain_is_swept(everlearn: Project) -> None:
    everlearn("env")
    suite = RecipeTemplate(load(everlearn.folder / "recipe.yaml"), "x")
    few, _ = read_ways("sequential", ["domains.*.max_documents=5,9"], suite)
    assert few.name == "sequential-domains.all.max_documents5"
    assert few.changes == {"domains.*.max_documents": 5}
    raw = suite.own.model_dump(mode="json")
    put(raw, "domains.*.max_documents", 5)
    assert [domain["max_documents"] for domain in raw["domains"]] == [5, 5]
    with pytest.raises(EverlearnError, match=r"`--set` cannot change `domains.\*.name`"):
        read_ways("sequential", ["domains.*.name=a,b"], suite)
    with pytest.raises(EverlearnError, match=r"change `end_tasks.polarity.epochs`: the recipe has no end tasks\.$"):
        read_ways("sequential", ["end_tasks.polarity.epochs=1,2"], suite)
