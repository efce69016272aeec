"""From a run to what its page shows of it: texts to read, how far layers moved, and a run that was interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_runs import Killer, killed_at, recipe

from everlearn import files
from everlearn.evaluation import Cell
from everlearn.learner import ContinualLearner
from everlearn.model.movement import movements, together
from everlearn.report import compare, page
from everlearn.report.verdict import verdict
from everlearn.tasks.samples import samples_path

BLANKS = {"roberta": "blanks", "gpt2": "continuation", "t5": "answer"}


def run(folder: Path, architecture: str = "roberta", method: Any = "sequential", **groups: Any) -> Path:
    groups.setdefault("general", {"path": str(folder / "data" / "first.jsonl"), "validation": 0.2})
    if architecture == "t5":
        groups["general"] = None
    made = recipe(folder, architecture, method, **groups)
    ContinualLearner(made).run()
    return folder / "run"


def shown(run: Path) -> dict[str, str]:
    """Samples that a run kept: their places and digests."""
    return {
        str(p.relative_to(run)): files.digest(p) for p in sorted(run.glob("evaluation/stage-*/samples/*.safetensors"))
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("plain"), evaluation={"samples": 2})


def test_every_set_is_asked_after_every_stage_and_the_page_has_its_words(plain: Path) -> None:
    names = ("first", "second", "general")
    assert set(shown(plain)) == {f"evaluation/stage-{r:02d}/samples/{n}.safetensors" for r in range(3) for n in names}
    text = (plain / "report.html").read_text(encoding="utf-8")
    for name in names:
        cells = [Cell.load(samples_path(plain / "evaluation", row, name)) for row in range(3)]
        assert len(cells[0].facts["shown"]) == 2
        assert all(cell.same_examples(cells[0]) for cell in cells)
        assert all(f">{truth}<sup>" in text for passage in cells[0].facts["shown"] for truth in passage[1::2])
    card = (plain / "README.md").read_text(encoding="utf-8")
    written = (plain / "results.json").read_text(encoding="utf-8")
    longest = max(cells[0].facts["shown"][0][::2], key=len).strip()
    assert len(longest) > 10
    assert longest not in card + written


def test_only_what_stays_on_the_machine_says_where_its_files_lie(plain: Path) -> None:
    """Whatever else a run writes may be given to other people."""
    private = {"recipe.yaml", "environment.json"}
    texts = [p for p in plain.rglob("*") if p.suffix in (".json", ".jsonl", ".md", ".html", ".yaml", ".txt")]
    assert {"results.json", "README.md", "report.html", "metrics.jsonl"} <= {path.name for path in texts}
    place = plain.parent
    telling = [p.relative_to(plain) for p in texts if p.name not in private and place.name in p.read_text("utf-8")]
    assert telling == []


def test_layers_moved_as_two_loaded_models_say(plain: Path) -> None:
    learner = ContinualLearner.open(plain)
    models = [{n: t.double() for n, t in learner.model_after(k).state_dict().items()} for k in range(3)]
    kept = set(load_file(plain / "stage-01-first" / "model.safetensors"))
    for stage, found in movements(plain).items():
        for since, parts in ((stage - 1, found.since_before), (0, found.since_base)):
            before, after = models[since], models[stage]
            for layer, moved in together(parts or ()).items():
                key = layer.replace("layers.", "encoder.layer.") + "."
                names = [n for n in kept if key in n] if "layers" in layer else []
                if names:
                    change = torch.sqrt(sum(((after[n] - before[n]) ** 2).sum() for n in names))  # type: ignore[arg-type]
                    norm = torch.sqrt(sum((before[n] ** 2).sum() for n in names))  # type: ignore[arg-type]
                    assert moved.relative == pytest.approx(float(change / norm), rel=1e-9)
                    assert moved.count == sum(after[n].numel() for n in names)
        assert {"layers.0", "layers.1", "embeddings", "head"} <= set(together(found.since_base or ()))


def test_reading_changes_no_weight_and_none_is_kept_where_none_is_wanted(plain: Path, tmp_path: Path) -> None:
    without = run(tmp_path, evaluation={"samples": 0})
    assert shown(without) == {}
    assert "What the model says" not in (without / "report.html").read_text(encoding="utf-8")
    for stage in ("stage-01-first", "stage-02-second"):
        one, other = (load_file(folder / stage / "model.safetensors") for folder in (plain, without))
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert [*json.loads((without / "results.json").read_text())["matrices"]] == ["bits_per_byte", "loss", "perplexity"]


@pytest.mark.parametrize("architecture", ["gpt2", "t5"])
def test_models_that_write_are_asked_to_write(architecture: str, tmp_path: Path) -> None:
    folder = run(tmp_path, architecture, train={"max_steps": 1})
    cell = Cell.load(samples_path(folder / "evaluation", 2, "first"))
    assert (cell.facts["form"], len(cell.texts)) == (BLANKS[architecture], 1)
    assert "what follows" in (folder / "report.html").read_text(encoding="utf-8")


def test_what_a_method_puts_beside_the_model_leaves_it_where_it_was(tmp_path: Path) -> None:
    folder = run(tmp_path, method="dap_adapter", train={"max_steps": 2})
    for found in movements(folder).values():
        assert not any(part.moved for part in (*(found.since_before or ()), *(found.since_base or ())))
    assert "the base model did not move" in (folder / "report.html").read_text(encoding="utf-8")
    base, end = (Cell.load(samples_path(folder / "evaluation", row, "second")) for row in (0, 2))
    assert (base["truth"] != end["truth"]).any(), "texts are read with the adapter"


def test_a_model_that_grew_is_not_compared(tmp_path: Path) -> None:
    folder = run(tmp_path, method={"name": "elle", "capacity": 16}, train={"max_steps": 2})
    first, second = movements(folder).values()
    assert first.since_base is not None
    assert (second.since_before, second.since_base) == (None, None)
    assert "the model grew" in (folder / "report.html").read_text(encoding="utf-8")


def test_an_interrupted_run_is_reported_as_far_as_it_is(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, killed_at(Killer(patch), "step 2.2"):
        run(tmp_path)
    folder = tmp_path / "run"
    assert not (folder / "results.json").exists()
    comparison = compare([folder])
    assert verdict(comparison)[0].startswith("Sequential is not finished: 1 of 2 domains are learnt. So far the diff")
    text = page(comparison)
    assert "Which layers moved" in text
    assert "after first" in text
    assert not (folder / "results.json").exists()
