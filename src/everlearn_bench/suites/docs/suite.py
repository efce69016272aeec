"""The suite `docs` for recipes, grids and pages, and the addresses of its files."""

from __future__ import annotations

from pathlib import Path

from everlearn.config.addresses import tell
from everlearn_bench.suites import docs
from everlearn_bench.suites.base import Suite, register_suite


@register_suite
class Docs(Suite):
    """Documentation of six installed libraries: needs no network, no data and no other model."""

    name = "docs"

    def locate(self, inside: str) -> Path:
        """Return the file of a corpus or of an end task, or the folder of the base model."""
        if inside == "base":
            return docs.base_path()
        if inside == "start":
            from everlearn_bench.suites.docs.base_model import start_folder

            return start_folder()
        files = {f"{name}.jsonl": path for name, path in docs.build(progress=_told).items()}
        self.check_address(inside, files)
        return files[inside]


def _told(library: str, done: int, total: int) -> None:
    """Say once, when the first of the libraries is read, what takes so long."""
    if done == 0:
        tell("Preparing the text of the suite `docs`, the documentation of installed libraries; later calls find it.")
