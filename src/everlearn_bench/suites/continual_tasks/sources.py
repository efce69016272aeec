"""Where the published files of the tasks can be fetched."""

from __future__ import annotations

from collections.abc import Iterable

from everlearn_bench.suites.continual_tasks.tasks import TASKS
from everlearn_bench.suites.sources import Fetchable, github

REPOSITORY, COMMIT = "cmnfriend/O-LoRA", "07117e1fc4a5f5ad9308a815a42cee8f46502dc8"
LICENCE = "repository MIT; nothing said about the single data sets"
BY_HAND = (
    f"The files are in the folder CL_Benchmark of the repository https://github.com/{REPOSITORY} at commit "
    f"{COMMIT[:12]}: clone it, and name the folder that holds CL_Benchmark with `--data`."
)


def sources(tasks: Iterable[str]) -> tuple[Fetchable, ...]:
    """Return training and test file of each task; no digest was published, so that of the first fetch is recorded."""
    found = []
    for name in tasks:
        task = TASKS[name]
        for part in ("train", "test"):
            path = f"CL_Benchmark/{task.group}/{task.dataset}/{part}.json"
            found.append(Fetchable(path, github(REPOSITORY, COMMIT, path), LICENCE))
    return tuple(found)
