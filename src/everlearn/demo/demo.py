"""``everlearn demo``: six domains of real text, learnt plainly and with DAS, compared on one page. Needs no network."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from everlearn.config import recipe as recipes
from everlearn.learner import ContinualLearner
from everlearn.report import write_report
from everlearn.run.progress import Reporter
from everlearn.suites import docs

RECIPE = Path(__file__).parent / "demo.yaml"
METHODS: dict[str, Any] = {
    "sequential": "sequential",
    # Few blocks for importance and a quarter of each batch for the contrast: the paper's amounts would take hours here.
    "das": {"name": "das", "samples": 32, "contrast_fraction": 0.25},
}


def run_demo(folder: Path, reporter: Reporter, overrides: Iterable[str] = ()) -> tuple[list[Path], Path]:
    """Run, or continue, the demo.

    Args:
        folder: where the two runs and the page are kept.
        reporter: who is told what is going on.
        overrides: ``key=value`` changes of the recipe; the tests make it smaller with them.

    Returns:
        The run folders and the page that compares them.
    """
    started = time.monotonic()
    with reporter.activity("Reading the installed libraries' documentation", 100) as done:
        docs.build(progress=lambda library, at, total: done(100 * at // total))
    base = recipes.load(RECIPE, overrides)
    runs: list[Path] = []
    for name, method in METHODS.items():
        reporter.say(f"Six domains with {name}")
        place = folder / name
        wanted = base.changed(method=method, run={"name": name, "folder": str(place), "seed": base.run.seed})
        learner = ContinualLearner(wanted, reporter=reporter)
        if (place / "recipe.yaml").exists():
            learner.resume()
        else:
            learner.check()
            learner.folder.create(wanted)
            learner.resume()
        runs.append(place)
    page = write_report(runs, folder / "report.html")
    reporter.say(f"The demo took {time.monotonic() - started:.0f} seconds.")
    return runs, page
