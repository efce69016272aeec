"""The notebook: what is committed is of its source, light and of no machine; its cells run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("make_notebook", ROOT / "notebooks/make.py")
assert _SPEC is not None
assert _SPEC.loader is not None
make = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make)


def test_the_notebook_is_of_its_source() -> None:
    committed, made = nbformat.read(make.NOTEBOOK, as_version=4), make.written()
    nbformat.validate(committed)
    assert [(cell.cell_type, cell.source) for cell in committed.cells] == [
        (cell.cell_type, cell.source) for cell in made.cells
    ], "`make notebook` makes it anew"


def test_the_notebook_has_outputs_and_nothing_of_a_machine() -> None:
    text = make.NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 300_000
    outputs = [output for cell in nbformat.reads(text, 4).cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert sum("text/html" in output.get("data", {}) for output in outputs) == 3
    assert {output.output_type for output in outputs} <= {"stream", "execute_result", "display_data"}
    assert "stderr" not in {output.get("name") for output in outputs}
    shown = re.sub(r'"image/png": "[^"]*"', "", text)
    assert re.findall(r"/(?:home|root|tmp|Users|work)/[^\s\"']*", shown) == []


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel of its own, with two steps a domain."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    made = make.run(make.written(), tmp_path, timeout=300, STEPS=2, BLOCKS=2, SAMPLES=4)
    assert (tmp_path / "runs/notebook/protected/stage-03-pandas/model.safetensors").is_file()
    assert not (tmp_path / "runs/notebook/plain/stage-03-pandas").exists()
    assert any("image/png" in output.get("data", {}) for output in made.cells[-4].outputs)
