"""``everlearn analyse`` as a user types it, on one stage and between two."""

from __future__ import annotations

import json

import pytest

from cli_project import Project
from everlearn.comparison.runs import read_run
from everlearn_bench.transfer_study.tables import stream_of


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


def test_where_only_one_layer_was_trained_it_returns_everything(everlearn: Project) -> None:
    """Everything but the last layer is frozen, so that nothing else can have forgotten."""
    frozen = ["embeddings", "layers.0", "head"]
    everlearn.recipe["model"] = {"path": everlearn.recipe["model"], "frozen": frozen}
    everlearn.recipe["general"] = {"path": "general.jsonl", "validation": 0.2}
    everlearn.recipe["train"] |= {"max_steps": 3, "learning_rate": 0.01}
    assert everlearn("run", "recipe.yaml").code == 0
    value = {}
    for kind, blocks in (("distance", "4"), ("layers", "8"), ("line", "8")):
        shown = everlearn("analyse", kind, "runs/first", "--blocks", blocks, "--json")
        assert shown.code == 0, shown.err
        value[kind] = json.loads(shown.out)
    everlearn("analyse", "codelength", "runs/first", "-o", "page.html")
    assert "Codelength" in (everlearn.folder / "page.html").read_text(encoding="utf-8")
    online = json.loads(everlearn("analyse", "codelength", "runs/first", "--json").out)["online_codelength"]
    online = {each["domain"]: each for each in online}
    assert online.keys() == {"a", "b"}
    assert all(each["once"] and each["steps"] == 3 and each["bits_per_byte"] > 0 for each in online.values())
    pairs = {(each["since"], each["until"]): each for each in value["distance"]["distances"]}
    assert list(pairs) == [("base", "a"), ("base", "b"), ("a", "b")]
    for each in pairs.values():
        by_layer = {layer["layer"]: layer for layer in each["layers"]}
        assert {name for name, layer in by_layer.items() if layer["change"] > 0} == {"layers.1", "all"}
        assert by_layer["all"]["cosine"] < 1 <= by_layer["layers.1"]["stable_rank"]
        assert all(drift["value"] > 0 for drift in each["drift"].values())
        assert each["drift"].keys() == {"a", "b", "general"}
    (restored,), (line,) = (value[kind]["going_back"] for kind in ("layers", "line"))
    assert (restored["since"], restored["until"]) == ("a", "b")
    assert restored["roles"] == {"a": "known before", "b": "learnt in between", "general": "general"}
    for name, column in restored["found"].items():
        back = dict(zip(restored["blends"], column, strict=True))
        earlier, later = (end["value"] for end in restored["ends"][name])
        assert back["layers.1"]["back"]["value"] == pytest.approx(later - earlier, rel=1e-12)
        assert back["layers.1"]["way"]["value"] in (None, 1)
        assert all(each["back"]["value"] == 0 for layer, each in back.items() if layer != "layers.1")
        assert (line["found"][name][0], line["found"][name][-1]["back"]["value"]) == (back["layers.1"], 0)
    for kind, title in (("distance", "Distances"), ("layers", "Layers put back"), ("line", "On the line between them")):
        page = (everlearn.run_folder / f"analysis-{kind}.html").read_text(encoding="utf-8")
        assert title in page
        assert ("<svg" in page) == (kind == "line")

    shown = everlearn("analyse", "layers", "runs/first", "--blocks", "8", "--from", "base", "--to", "a")
    assert shown.code == 0, shown.err
    assert "Layers put back: base and a" in shown.out
    for arguments, says in (
        (("distance", "--from", "bse", "--blocks", "4"), ("`--from` is 'bse'", "Did you mean 'base'?")),
        (("layers", "--from", "b", "--to", "a", "--blocks", "4"), ("`--from` is 'b'", "earlier")),
    ):
        everlearn.fails("analyse", arguments[0], "runs/first", *arguments[1:], says=says)


@pytest.mark.parametrize(
    ("patterns", "says"),
    [
        (["embedings"], ("`model.frozen` names 'embedings'", "Did you mean 'embeddings'?")),
        (["*.wieght"], ("`model.frozen` names '*.wieght'", "Known: embeddings")),
        (["*"], ("`model.frozen` leaves nothing to train",)),
    ],
)
def test_what_is_frozen_must_be_there(everlearn: Project, patterns: list[str], says: tuple[str, ...]) -> None:
    everlearn.recipe["model"] = {"path": everlearn.recipe["model"], "frozen": patterns}
    everlearn.fails("run", "recipe.yaml", says=says)


def test_knowledge_beside_the_weights_is_not_put_back(everlearn: Project) -> None:
    everlearn.recipe["train"] |= {"max_steps": 1}
    assert everlearn("run", "recipe.yaml", "method=dap_adapter").code == 0
    everlearn.fails("analyse", "layers", "runs/first", "--blocks", "4", says=("'dap_adapter'", "analyse distance"))
    value = json.loads(everlearn("analyse", "distance", "runs/first", "--blocks", "4", "--to", "b", "--json").out)
    (pair,) = value["distances"]
    assert next(each["change"] for each in pair["layers"] if each["layer"] == "all") == 0, "the base stands still"
    assert pair["drift"]["b"]["value"] > 0, "what it says does not"


def test_ranks_of_the_words_that_are_a_domains_own(everlearn: Project) -> None:
    everlearn.fails("run", "recipe.yaml", "evaluation.stride=4", says=("`evaluation.stride` is 4", "'masked'"))
    assert everlearn("run", "recipe.yaml", "evaluation.content=2").code == 0
    results = json.loads((everlearn.folder / "runs/first/results.json").read_text(encoding="utf-8"))
    run = read_run(everlearn.folder / "runs/first")
    assert "content_loss" in results["matrices"]
    assert results["alone"] == {}, "no domain was learnt alone"
    spreads = {metric: stream_of(run, metric).spread() for metric in ("bits_per_byte", "loss", "content_loss")}
    assert {metric: own["fg"]["all"].domains for metric, own in spreads.items()} == dict.fromkeys(spreads, 1)
    shown = everlearn("analyse", "ranks", "runs/first", "--contexts", "9", "-o", "page.html", "--json")
    assert shown.code == 0, shown.err
    found = json.loads(shown.out)["prediction_ranks"]
    assert found["checkpoints"] == ["base", "a", "b"]
    assert all(0 <= count <= 9 for count in found["contexts"].values())
    for row in found["log_rank"]:
        assert {name for name, count in found["contexts"].items() if count} == row.keys()
        assert all(each["low"] <= each["value"] <= each["high"] for each in row.values())
    page = (everlearn.folder / "page.html").read_text(encoding="utf-8")
    assert "Prediction ranks" in page
    assert "Whose words were asked" in page
