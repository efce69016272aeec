"""``everlearn analyse`` as a user types it."""

from __future__ import annotations

import json

from cli_project import Project


def test_a_run_from_its_start_to_its_page(everlearn: Project) -> None:
    everlearn.recipe |= {"method": {"name": "dga", "samples": 8}, "run": {"name": "first"}}
    everlearn.recipe["train"] |= {"max_steps": 2}
    everlearn.fails("analyse", "runs/first", says=("runs/first is not a run folder",))
    (everlearn.run_folder).mkdir(parents=True)
    everlearn("validate", "recipe.yaml")
    (everlearn.run_folder / "recipe.yaml").write_text((everlearn.folder / "recipe.yaml").read_text())
    everlearn.fails("analyse", "runs/first", says=("has not learnt a domain yet", "everlearn resume runs/first"))
    (everlearn.run_folder / "recipe.yaml").unlink()
    everlearn.run_folder.rmdir()
    assert everlearn("run", "recipe.yaml").code == 0
    shown = everlearn("analyse", "importance", "runs/first", "--blocks", "4", "-o", "page.html", "--json")
    assert shown.code == 0, shown.err
    value = json.loads(shown.out)
    assert value["saturation"]["stages"] == ["a", "b"]
    assert value["saturation"]["kinds"] == ["heads"]
    assert not value["saturation"]["grows"]
    assert value["similarity"]["domains"] == ["a", "b"]
    assert "held while it was learnt" in (everlearn.folder / "page.html").read_text(encoding="utf-8")
    assert everlearn.folder.name not in (everlearn.folder / "page.html").read_text(encoding="utf-8")
    (everlearn.folder / "a.jsonl").unlink()
    assert everlearn("analyse", "runs/first").code == 0
    assert "<h1>first: codelength, importance, movement</h1>" in (everlearn.run_folder / "analysis.html").read_text()


def test_a_run_without_importance_has_layers_that_moved(everlearn: Project) -> None:
    everlearn.recipe["train"] |= {"max_steps": 1}
    assert everlearn("run", "recipe.yaml", "method=kd").code == 0
    shown = everlearn("analyse", "runs/first")
    assert (shown.code, "since the base" in shown.out) == (0, True), shown.err
    assert "has no importance of units" in shown.out
    assert "<h2>How far each layer moved</h2>" in (everlearn.run_folder / "analysis.html").read_text()
    assert "`das`" in shown.out
    value = json.loads(everlearn("analyse", "runs/first", "--json").out)
    assert value["saturation"] is None
    (first, second) = value["moved"].values()
    assert first["since_base"] == first["since_before"]
    assert all(part["change"] > 0 for part in second["since_before"])
    without = ("has no importance of units", "Leave out --blocks")
    everlearn.fails("analyse", "importance", "runs/first", "--blocks", "4", says=without)
    without = ("has no importance of units", "Leave out --output")
    everlearn.fails("analyse", "importance", "runs/first", "-o", "page.html", says=without)
    everlearn.fails(
        "analyse", "importanec", "runs/first", says=("no analysis 'importanec'", "Did you mean 'importance'")
    )
    everlearn.fails("analyse", "ranks", "runs/first", "--context", "9", says=("Did you mean '--contexts'?",))
    everlearn.fails("analyse", "runs/none", says=("runs/none is not a run folder",))
