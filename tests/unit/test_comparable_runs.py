"""Which runs are compared as equals, and which are seeds of one recipe."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import report_fixture
from report_fixture import DOMAINS, results

from everlearn.comparison.recipe_differences import Differences
from everlearn.comparison.runs import Run
from everlearn.evaluation.quantities import TOLERATED_DRIFT
from everlearn.grid.row_labels import relabelled
from everlearn.methods import build
from everlearn.report import compare, page, verdict
from everlearn.report.tables import headline_table
from everlearn.report.tables import json as as_json
from everlearn.report.verdict import recommended
from grid_cells import cell_of


def test_the_tolerance_is_the_recipes_or_the_commands(tmp_path):
    runs = folders(tmp_path, {"tolerate: 1.0": "tolerate: 0.3"}, {})
    assert compare(runs).tolerance == 0.3
    assert compare(runs, tolerate=0.1).tolerance == 0.1
    assert not compare(runs).unlike, "how a run is judged is no difference of the run"


def test_a_damaged_recipe_does_not_end_the_report(tmp_path):
    """libyaml's reader would end the process at so many brackets; and it takes 3e-1 for text."""
    deep, other = folders(tmp_path, {}, {"tolerate: 1.0": "tolerate: 3e-1"})
    (deep / "recipe.yaml").write_text("[" * 100_000)
    assert compare([deep, other]).tolerance == min(TOLERATED_DRIFT, 0.3)
    assert compare([other]).tolerance == 0.3


def folders(tmp_path, *changes, **others):
    made = []
    for number, change in enumerate(changes):
        found = results(f"m{number}", f"Method {number}", 0.12 / (number + 1))
        folder = report_fixture.write_run(tmp_path / f"run{number}", found | others, steps=1)
        recipe = (folder / "recipe.yaml").read_text()
        for old, new in change.items():
            assert old in recipe
            recipe = recipe.replace(old, new)
        (folder / "recipe.yaml").write_text(recipe)
        made.append(folder)
    return made


def test_runs_that_differ_in_steps_are_not_compared_as_equals(tmp_path):
    more = {"max_steps: 60": "max_steps: 600", "0.0003": "0.001"}
    comparison = compare(folders(tmp_path, {}, more, cost={}))
    assert comparison.differing == {"max_steps": ("60", "600")}
    assert comparison.unlike.configuration == {"learning_rate": ("0.0003", "0.001")}
    assert [m.judge(1) for m in comparison.headline] == [None] * 5
    assert [m.best for m in comparison.headline] == [None] * 5
    said = " ".join(verdict(comparison))
    assert "clearly" not in said.partition("The rule:")[0]
    assert "max_steps (60 or 600)" in said
    assert said.startswith(
        "Take Method 1 · learning_rate 0.001"
    )  # the same base model and the same text: one of the two can be chosen
    assert "What differs besides the methods" in page(comparison)
    assert {entry["judgement"] for entry in json.loads(as_json(comparison))["differences"]} == {"withheld"}


@pytest.mark.parametrize(
    "change",
    [
        {'"torch", ': '"torch", train: {max_steps: 60}, '},  # as `everlearn learn … train.max_steps=60` writes it
        {'"torch", ': '"torch", train: {}, '},
        {'"torch", ': '"torch", group: libraries, '},
        {"max_steps: 60": "max_steps: 60\n  num_train_epochs: 3"},
        {"max_steps: 60": "max_steps: 60\n  weight_decay: 0.0"},
        {"max_steps: 60": "max_steps: 60\n  lr_scheduler_type: linear"},
        {"max_steps: 60": "max_steps: 60\n  save_steps: 7"},
        {"max_steps: 60": "max_steps: 60\n  activation_checkpointing: true"},
        {"0.0003": "3e-4"},
    ],
    ids=str,
)
def test_what_was_effective_is_compared_and_not_how_it_is_written(tmp_path, change):
    comparison = compare(folders(tmp_path, {}, change))
    assert not comparison.unlike
    assert recommended(comparison) == 1
    assert "can be recommended" not in " ".join(verdict(comparison))


def test_a_domain_that_was_trained_otherwise_is_named(tmp_path):
    comparison = compare(folders(tmp_path, {}, {'"torch", ': '"torch", train: {learning_rate: 0.1}, '}))
    assert comparison.unlike == Differences(configuration={"learning_rate on torch": ("0.0003", "0.1")})
    every = {f'"{domain}", ': f'"{domain}", train: {{learning_rate: 0.1}}, ' for domain in DOMAINS}
    (tmp_path / "all").mkdir()
    comparison = compare(folders(tmp_path / "all", {}, every))
    assert comparison.unlike == Differences(configuration={"learning_rate": ("0.0003", "0.1")})
    said = " ".join([*verdict(comparison), page(comparison)])
    assert "{}" not in said
    assert "default" not in " ".join(verdict(comparison))


def test_runs_that_differ_in_learning_rate_are_compared_as_equals(tmp_path):
    """Equal model, text, steps and tokens: a rate is a setting like a strength, and stands in the label."""
    rates = [{}, {"0.0003": "0.001"}, {"0.0003": "0.003"}]
    comparison = compare(folders(tmp_path, *rates, methods=results("m", "Sequential", 0.1)["methods"]))
    assert comparison.labels == tuple(f"Sequential · learning_rate {rate}" for rate in ("0.0003", "0.001", "0.003"))
    assert comparison.differing == {}
    assert None not in [m.judge(1) for m in comparison.headline]
    said = " ".join(verdict(comparison))
    assert "compared as equals" not in said
    assert said.startswith("Take Sequential · learning_rate 0.003: ")
    assert "learning_rate (0.0003, 0.001 or 0.003), which is a part of what is compared" in said
    assert "learning_rate 0.003" in page(comparison)


def test_the_same_text_from_another_place_is_the_same_text(tmp_path):
    """By the digests of what was held out and trained on; where one is not known the path decides."""
    runs = folders(tmp_path, {}, {'"torch", "path": "text.jsonl"': '"torch", "path": "copy.jsonl"'})
    assert compare(runs).unlike == Differences({"path of torch": ("text.jsonl", "copy.jsonl")})
    for run in runs:
        (run / "evaluation" / "sets").mkdir(parents=True)
        (run / "evaluation" / "sets" / "seal.json").write_text('{"torch.safetensors": "abc"}')
        (run / "stage-06-torch").mkdir()
        (run / "stage-06-torch" / "stage.json").write_text('{"fingerprint": "def"}')
    assert not compare(runs).unlike
    (runs[1] / "stage-06-torch" / "stage.json").write_text('{"fingerprint": "other"}')
    assert compare(runs).unlike.ground


def test_seeds_whose_recipes_say_the_same_otherwise_are_one_pool(tmp_path):
    runs = seeds(tmp_path, "das", "DAS", 0.06, (1, 2))
    recipe = runs[1] / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace('"torch", ', '"torch", train: {max_steps: 60}, '))
    assert [len(pool.runs) for pool in compare(runs).pools] == [2]


def test_end_tasks_that_only_one_run_has_are_no_other_ground(tmp_path):
    runs = folders(tmp_path, {}, {"objective: masked": "objective: masked\nend_tasks: [{name: t, train: u}]"})
    assert not compare(runs).unlike


@pytest.mark.parametrize(
    "change",
    [{"objective: masked": "objective: causal"}, {"text.jsonl": "b.jsonl"}],
)
def test_no_run_is_recommended_over_one_of_another_model_or_text(tmp_path, change):
    comparison = compare(folders(tmp_path, {}, change))
    assert comparison.differing
    assert verdict(comparison)[0].startswith(
        "No run can be recommended: their scores are not of the same model and text."
    )
    assert recommended(comparison) is None


def test_a_copy_of_the_model_is_the_model(tmp_path):
    """Models are told apart by what they score before the first domain, not by where they lie."""
    first, second = folders(tmp_path, {}, {"path: base-docs": "path: other"})
    assert "model" not in compare([first, second]).differing
    path = second / "results.json"
    found = json.loads(path.read_text())
    for matrix in (found["scores"] if "scores" in found else found["matrices"]).values():
        for cell in matrix["cells"]:
            cell[2] += 1e-3 if cell[0] == "base" else 0
    path.write_text(json.dumps(found))
    assert "model" in compare([first, second]).differing


def test_names_places_and_methods_are_no_difference(tmp_path):
    change = {'name: "m1"': "name: other, folder: elsewhere", "- name: m1": "- {name: m1, strength: 3}"}
    assert compare(folders(tmp_path, {}, change)).differing == {}


def seeds(tmp_path, name, title, forgetting, numbers, learning=0.55):
    made = []
    for seed in numbers:
        found = results(name, title, forgetting, seed=seed, learning=learning) | {"seed": seed}
        made.append(report_fixture.write_run(tmp_path / f"{name}-{seed}", found, steps=2))
    return made


def test_seeds_of_one_recipe_are_one_line(tmp_path):
    runs = [*seeds(tmp_path, "plain", "Sequential", 0.12, (1, 2, 3)), *seeds(tmp_path, "das", "DAS", 0.06, (1, 2, 3))]
    comparison = compare(runs)
    assert comparison.labels == ("Sequential", "DAS")
    assert [pool.seeds for pool in comparison.pools] == [["1", "2", "3"]] * 2
    forgotten = comparison.measure("bits_per_byte", "forgotten")
    values = [run.summary("bits_per_byte", "forgotten")["mean"].value for run in comparison.pools[1].runs]
    estimate = forgotten.estimates[1]
    assert estimate.value == pytest.approx(np.mean(values))
    half = 4.302652729749464 * np.std(values, ddof=1) / np.sqrt(3)  # Student's t, 2 degrees of freedom
    assert estimate.interval == pytest.approx((np.mean(values) - half, np.mean(values) + half))
    others = [run.summary("bits_per_byte", "forgotten")["mean"].value for run in comparison.pools[0].runs]
    apart = np.subtract(values, others)
    half = 4.302652729749464 * np.std(apart, ddof=1) / np.sqrt(3)
    assert forgotten.difference(1).interval == pytest.approx((apart.mean() - half, apart.mean() + half))
    table = headline_table(comparison)
    assert table.header[:2] == ("Run", "Seeds")
    assert [(label, cells[0].text) for label, cells in table.rows] == [("DAS", "3"), ("Sequential", "3")]
    assert "Sequential" in page(comparison)


def test_other_options_or_settings_are_no_seed(tmp_path):
    runs = seeds(tmp_path, "das", "DAS", 0.06, (1, 2))
    other = results("das", "DAS", 0.08, seed=1) | {"seed": 1}
    other["methods"][0]["options"] = {"x": 2}
    comparison = compare([*runs, report_fixture.write_run(tmp_path / "other", other, steps=1)])
    assert comparison.labels == ("DAS · x 1", "DAS · x 2")
    assert [len(pool.runs) for pool in comparison.pools] == [2, 1]


def test_the_same_seed_twice_is_not_a_second_seed(tmp_path):
    found = results("das", "DAS", 0.06)
    runs = [report_fixture.write_run(tmp_path / name, found | {"run": name}, steps=1) for name in ("a", "b")]
    assert compare(runs).labels == ("DAS · a", "DAS · b")


# -- short titles of a grid's rows: what sets them apart, and never the same for two rows ------------------------------


def row(name: str, said: str, changes: dict[str, Any] | None = None, title: str | None = None, **options: Any) -> Run:
    """Return the cell of a method, titled by the options that the user gave and the keys that the recipe changes."""
    method = build({"name": name, **options})
    full = " · ".join(
        [title or method.title + (f" ({said})" if said else ""), *(f"{k[6:]} {v}" for k, v in (changes or {}).items())]
    )
    found = cell_of(entry=full, title=full, order=0, seed=1, domains=["a"], bits_per_byte={})
    config = method.config.model_dump(mode="json")
    found.results["methods"] = [{"name": name, "title": method.title, "options": config}]
    found.results["grid"]["options"] = {**options, **(changes or {})}
    return Run(found.name, found.title, found.results)


def labels(*rows: Run) -> list[str]:
    found = relabelled(rows)
    assert [run.title for run in found] == [run.grid.title for run in found]
    assert [run.grid.row for run in found] == [run.grid.row for run in rows], "rows keep their names"
    return [run.title for run in found]


def test_options_are_named_where_rows_of_a_method_differ_in_them() -> None:
    one = row("mas", "strength 0.1, samples 16", strength=0.1, samples=16)
    other = row("mas", "strength 0.2, samples 16", strength=0.2, samples=16)
    assert labels(one, other) == ["MAS (strength 0.1)", "MAS (strength 0.2)"]
    assert labels(one, row("ewc", "strength 5", strength=5)) == ["MAS", "EWC"]


def test_a_key_of_the_recipe_is_named_where_any_rows_differ_in_it() -> None:
    low, high = ({"train.learning_rate": rate, "train.seed": 1} for rate in (1e-4, 3e-4))
    found = labels(row("sequential", "", low), row("sequential", "", high), row("mas", "samples 16", high, samples=16))
    assert found == [
        "Sequential · learning_rate 0.0001",
        "Sequential · learning_rate 0.0003",
        "MAS · learning_rate 0.0003",
    ]


def test_steps_of_equal_compute_are_named_only_where_nothing_else_tells_rows_apart() -> None:
    steps = [{"train.max_steps": count} for count in (40, 35, 30)]
    assert labels(row("sequential", ""), row("mas", "", steps[1])) == ["Sequential", "MAS"]
    found = labels(row("mas", "", steps[1]), row("mas", "", steps[2]), row("ewc", "", steps[0]))
    assert found == ["MAS · max_steps 35", "MAS · max_steps 30", "EWC"]


def test_nothing_is_named_that_the_title_does_not_name() -> None:
    rate = {"train.learning_rate": 0.01}
    published = row("migu", "")
    published.results["grid"]["options"] = rate
    assert labels(published, row("sequential", "")) == ["MIGU", "Sequential"]
    several = row("ewc", "exclude embeddings, head, samples 4", exclude=["embeddings", "head"], samples=4)
    other = row("ewc", "samples 4", samples=4)
    assert labels(several, other) == ["EWC (exclude embeddings, head)", "EWC"]


def test_a_title_of_its_own_stays_and_so_do_titles_that_would_be_the_same() -> None:
    own = row("mas", "", title="MAS of the paper")
    assert labels(own, row("ewc", "samples 4", samples=4)) == ["MAS of the paper", "EWC"]
    twice = [row("ewc", f"samples {count}", samples=4) for count in ("4", "four")]
    assert labels(*twice) == ["EWC (samples 4)", "EWC (samples four)"]
