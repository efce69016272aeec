"""The first look of benchmarks/glue: its README has the numbers of the cells beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from everlearn.evaluation import METRICS, Cell, percentiles, resample

PLACE = Path(__file__).parents[2] / "benchmarks" / "glue"


@pytest.mark.parametrize("task", ["sst-2", "qqp"])
def test_the_readme_has_the_numbers_of_its_cells(task: str) -> None:
    cell = Cell.load(PLACE / "heads" / f"{task}.safetensors")
    found = resample([cell], [METRICS["accuracy"]], seed=0)["accuracy"]
    (low,), (high,) = percentiles(found.samples)
    constant = np.bincount(cell["truth"]).max() / len(cell)
    shown = f"| {task} | {100 * found.values[0]:.1f} [{100 * low:.1f}, {100 * high:.1f}] | {100 * constant:.1f} |"
    assert shown in (PLACE / "README.md").read_text(encoding="utf-8")
    assert low > constant
