"""Run the demo: real text, learnt with and without protection, compared on one page, without a network."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from everlearn.commands.recommendation import METHOD
from everlearn.config import recipe as recipes
from everlearn.errors import RunError
from everlearn.learner import ContinualLearner
from everlearn.report import write_report
from everlearn.run.progress import Reporter
from everlearn.wording import count
from everlearn_bench.suites import docs

RECIPE = Path(__file__).parent / "demo.yaml"
METHODS: dict[str, Any] = {
    "sequential": "sequential",
    # Few blocks for Fisher information: the papers use thousands, which would take hours here.
    "ewc": {"name": "ewc", "strength": 1000, "samples": 128, "protect_base": True},
    "recommended": [dict(method) for method in METHOD],
}
"""Run → its method: plain training, the best-known penalty, and the method that `everlearn init` writes."""


def run_demo(folder: Path, reporter: Reporter, overrides: Iterable[str] = ()) -> tuple[list[Path], Path]:
    """Run the demo, or continue it.

    Args:
        folder: folder of the runs and the page.
        reporter: shows progress.
        overrides: ``key=value`` changes of the recipe, with which the tests make it smaller.

    Returns:
        The run folders and the page that compares them.
    """
    started = time.monotonic()
    with reporter.activity("Reading the installed libraries' documentation", 100) as done:
        docs.build(progress=lambda library, at, total: done(100 * at // total))
    base = recipes.load(RECIPE, overrides)
    reporter.say(
        f"{count(len(METHODS), 'run')}, one for each method, over the same "
        f"{count(len(base.domains), 'domain')}: about 6 minutes on two idle cores. "
        "If it is stopped, call it again to continue."
    )
    runs: list[Path] = []
    for number, (name, method) in enumerate(METHODS.items(), 1):
        place = folder / name
        recipe = base.changed(method=method, run={"name": name, "folder": str(place), "seed": base.run.seed})
        title = " and ".join(f"{one.title} ({one.summary})" for one in recipe.methods())
        reporter.say(f"Run {number} of {len(METHODS)}: {title}")
        begun = time.monotonic()
        learner = ContinualLearner(recipe, reporter=reporter)
        if (place / "recipe.yaml").exists():
            if learner.folder.recipe() != recipe:
                raise RunError(
                    f"{place} holds a demo with other settings. Remove {folder}, or name another `--folder`."
                )
            learner.resume()
        else:
            learner.run()
        runs.append(place)
        reporter.say(f"Run {number} of {len(METHODS)} took {time.monotonic() - begun:.0f} seconds.")
    page = write_report(runs, folder / "report.html")
    reporter.say(f"The demo took {time.monotonic() - started:.0f} seconds.")
    return runs, page
