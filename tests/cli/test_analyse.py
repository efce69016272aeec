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
    shown = everlearn("analyse", "runs/first", "--similarity", "4", "-o", "page.html", "--json")
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
    assert (everlearn.run_folder / "analysis.html").is_file()


def test_a_run_without_importance_has_layers_that_moved(everlearn: Project) -> None:
    everlearn.recipe["train"] |= {"max_steps": 1}
    assert everlearn("run", "recipe.yaml", "method=kd").code == 0
    shown = everlearn("analyse", "runs/first")
    assert (shown.code, "since the base" in shown.out) == (0, True), shown.err
    assert "has no importance of units" in shown.out
    assert "`das`" in shown.out
    value = json.loads(everlearn("analyse", "runs/first", "--json").out)
    assert value["saturation"] is None
    (first, second) = value["moved"].values()
    assert first["since_base"] == first["since_before"]
    assert all(part["change"] > 0 for part in second["since_before"])
    everlearn.fails("analyse", "runs/first", "--similarity", "4", says=("has no importance of units", "--similarity"))
    everlearn.fails("analyse", "runs/first", "-o", "page.html", says=("has no importance of units", "--output"))
    shown = everlearn("analyse", "runs/first", "--magnitude", "2", "-o", "page.html")
    assert (shown.code, "has no importance of units" in shown.out) == (0, False), shown.err
    assert "which rows have large outputs" in (everlearn.folder / "page.html").read_text(encoding="utf-8")
