"""Locate the evaluation sets of the suite."""

from __future__ import annotations

from pathlib import Path

from everlearn.errors import DataError
from everlearn_bench.suites import cache as derived

VARIABLE = "EVERLEARN_CODE"
FILES = {
    "humaneval": ("eval/humaneval",),
    "hellaswag": ("eval/hellaswag", "eval/hellaswag_1000"),
    "winogrande": ("eval/winogrande",),
    "arc_challenge": ("eval/arc_challenge",),
}
"""End task → what its file may be called, below the data folder and without its ending."""
ENDINGS = (".jsonl.gz", ".jsonl")
HOW = (
    f"Set {VARIABLE}, or `--data` of `everlearn bench`, to a folder with `eval/{{humaneval,hellaswag,winogrande,"
    "arc_challenge}.jsonl.gz`; docs/bench.md says what their columns are. `everlearn bench code --data fetch` gets "
    "them."
)


def data_folder(given: Path | str | None = None) -> Path:
    """Return the folder with the data of the suite.

    Args:
        given: the folder; by default the value of the environment variable EVERLEARN_CODE, or the fetched data.

    Raises:
        DataError: no folder is named, or it does not exist.
    """
    return derived.data_folder("code", VARIABLE, given, HOW)


def find(task: str, folder: Path) -> Path:
    """Return the file of an end task.

    Args:
        task: name of the end task.
        folder: the data folder.

    Raises:
        DataError: the file does not exist.
    """
    for name in FILES[task]:
        for ending in ENDINGS:
            if (path := folder / f"{name}{ending}").is_file():
                return path
    raise DataError(f"The suite `code` needs '{folder / FILES[task][0]}.jsonl.gz' (or .jsonl). {HOW}")


def general(folder: Path) -> tuple[Path, Path] | None:
    """Return general text for training and evaluation if the folder has some: Wikipedia, as in `six-domains`."""
    found = []
    for part in ("train", "validation"):
        paths = [folder / f"D0/wikipedia/{part}{ending}" for ending in ENDINGS]
        found += [path for path in paths if path.is_file()][:1]
    return (found[0], found[1]) if len(found) == 2 else None
