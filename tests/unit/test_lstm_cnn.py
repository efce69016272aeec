"""`benchmarks/lstm-cnn`: its numbers against hand-made ones, its rule, its page; and a stream of it in small."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

import tiny
from everlearn.grid.archive import find_cells

FOLDER = Path(__file__).parents[2] / "benchmarks/lstm-cnn"
TASKS = {name: {"majority": 0.5, "state_of_the_art": 0.9} for name in "abc"}


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return script("findings", monkeypatch)


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


def cell(base: str = "lstm", seed: int = 1, left: float = 0.6, **more: Any) -> dict[str, Any]:
    """Three tasks, each learnt to 0.8, of which `left` is left of the first and 0.7 of the second."""
    rows = [[0.8], [0.7, 0.8], [left, 0.7, 0.8]]
    own = {"base": base, "embeddings": "tuned", "order": "hard-last", "seed": seed}
    return own | {"tasks": ["a", "b", "c"], "often": [0.5] * 3, "accuracy": rows} | more


def test_both_conventions_of_the_study(findings: ModuleType) -> None:
    found = findings.forgotten(cell(left=0.4), TASKS)
    first, second = (0.8 - 0.4) / (0.8 - 0.5), (0.8 - 0.7) / (0.8 - 0.5)  # the state of the art cancels
    assert found["share_forgotten"] == pytest.approx((first + second) / 2)
    assert found["share_forgotten_per_step"] == pytest.approx((first / 2 + second) / 2)
    assert found["share_forgotten_clipped"] == pytest.approx((1 + second) / 2), "below the majority is 0"
    assert found["share_forgotten_clipped_per_step"] == pytest.approx((1 / 2 + second) / 2)


def test_pairs_differ_in_nothing_else(findings: ModuleType) -> None:
    asked = findings.Comparison({"base": "cnn-max"}, {"base": "lstm"})
    cells = [cell("cnn-max", 1), cell("lstm", 1), cell("lstm", 2), cell("cnn-max", 2, order="hard-first"), cell("gru")]
    found = findings.paired(cells, asked, lambda each: 1.0 if each["base"] == "lstm" else 0.25)
    assert found == {("tuned, hard-last", 1): -0.75}
    cells[1]["often"] = [0.5, 0.76, 0.5]  # a task that was not learnt cannot be forgotten
    assert not findings.paired(cells, asked, lambda _: 1.0)


@pytest.mark.parametrize(
    ("differences", "says"),
    [
        ([-0.3, -0.31, -0.29], "holds here"),
        ([0.3, 0.31, 0.29], "does not hold here"),
        ([-0.3, 0.31, -0.29], "not decidable at this size"),
        ([-0.3, -0.3001], "not decidable at this size"),
        ([], "not measured yet"),
    ],
)
def test_the_whole_interval_decides(findings: ModuleType, differences: list[float], says: str) -> None:
    assert findings.verdict({("x", seed): each for seed, each in enumerate(differences)}) == says


def test_a_finding_needs_both_conventions(findings: ModuleType) -> None:
    holds, fails, unsure, missing = findings.HOLDS, findings.FAILS, findings.OPEN, findings.MISSING
    assert findings.together([holds, holds]) == holds
    assert findings.together([fails, fails]) == fails
    assert findings.together([holds, fails]) == findings.together([holds, unsure]) == unsure
    assert findings.together([holds, missing]) == missing


def test_the_page_says_what_was_found_and_what_was_not_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    page = script("page", monkeypatch)
    cells = [cell(base, seed, left) for base, left in (("cnn-max", 0.75), ("lstm", 0.6)) for seed in (1, 2, 3)]
    settings = {"tasks": TASKS, "training": {"epochs": 3}, "cells": [{"bases": ["cnn-max", "lstm", "gru"]}]}
    said = page.page(cells, settings)
    line = next(line for line in said.splitlines() if line.startswith("| A CNN forgets less than an LSTM"))
    assert "−0.25" in line.replace("-", "−")
    assert line.endswith("| **holds here** |")
    assert "| lstm | tuned | hard-last | 80 → 70 → 60 | 80 → 70 | 80 |" in said
    assert "Every cell learnt every task" in said
    assert "6 of 9 cells" in said
    cells.append(cell(seed=4, often=[0.79, 0.5, 0.5]))
    assert "lstm, tuned, hard-last, seed 4: a." in page.page(cells, settings)


def test_cells_are_those_of_the_settings() -> None:
    """What is committed belongs to what settings.yaml asks for."""
    settings = yaml.safe_load((FOLDER / "settings.yaml").read_text())
    asked = {(part["embeddings"], part["order"]): part["bases"] for part in settings["cells"]}
    cells = find_cells(FOLDER / "results")
    assert len(cells) == 27
    for found in (cell.value for cell in cells.values()):
        assert found["base"] in asked[found["embeddings"], found["order"]]
        assert found["tasks"] == settings["orders"][found["order"]]
        assert [len(row) for row in found["accuracy"]] == [1, 2, 3]


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """The script's arguments, for two tasks that depend on one word."""
    for task in ("a", "b"):
        for part, count in (("train", 16), ("test", 8)):
            rows = [{"text": f"{text} {'xy'[i % 2]}", "label": "xy"[i % 2]} for i, text in enumerate(tiny.texts(count))]
            place = tmp_path / "tasks" / task / f"{part}.jsonl.gz"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    tiny.tokenizer().save_pretrained(tmp_path / "words")
    tiny.model("llama").save_pretrained(tmp_path / "words")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    settings = {
        "words": "words",
        "bases": {name: {"model_type": f"everlearn-{name}", **sizes} for name in ("lstm", "cnn")},
        "orders": {"hard-last": ["a", "b"]},
        "cells": [{"embeddings": kind, "order": "hard-last", "bases": ["lstm", "cnn"]} for kind in ("frozen", "tuned")],
        "tasks": {name: TASKS[name] for name in "ab"},
        "training": {"epochs": 1, "batch_size": 8, "max_length": 16, "learning_rate": 1e-3},
    }
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings))
    own = {"--settings": "settings.yaml", "--results": "results", "--to": "page.md"}
    return [str(tmp_path), "--seeds", "1", *(str(word) for key, name in own.items() for word in (key, tmp_path / name))]


def test_a_small_stream(small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = script("run", monkeypatch), []
    asked = run.answers

    def look(classifier: Any, *rest: Any) -> Any:
        seen.append({key: value.clone() for key, value in classifier.state_dict().items()})
        return asked(classifier, *rest)

    monkeypatch.setattr(run, "answers", look)
    monkeypatch.setattr(sys, "argv", ["run.py", *small])
    run.main()
    assert len(list((tmp_path / "results").glob("*.json"))) == 4
    assert "not measured yet" in (tmp_path / "page.md").read_text()
    first, again, second = seen[:3]  # of the LSTM with frozen embeddings: a; then a and b
    assert torch.equal(first["score.weight"], again["score.weight"]), "a head waits for its task to be asked again"
    assert not torch.equal(again["score.weight"], second["score.weight"])
    body = [name for name in first if name.startswith("model.")]
    assert all(torch.equal(again[name], second[name]) for name in body), "on the body as it is now"
    embeddings = "model.embed_tokens.weight"
    assert any(not torch.equal(first[name], again[name]) for name in body)
    assert torch.equal(first[embeddings], again[embeddings])
    tuned = seen[6:8]
    assert not torch.equal(tuned[0][embeddings], tuned[1][embeddings])

    monkeypatch.setattr(run, "measure", lambda *_: pytest.fail("a cell that is there is not made again"))
    run.main()


def test_components_keep_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    words = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)) @ torch.eye(3, 8)
    found = script("run", monkeypatch).components(words, 3)
    assert torch.allclose(torch.cdist(found, found), torch.cdist(words, words), atol=1e-4)
