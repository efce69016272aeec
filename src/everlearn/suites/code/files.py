"""Where the evaluation sets of the suite are looked for."""

from __future__ import annotations

from pathlib import Path

from everlearn.errors import DataError
from everlearn.suites import derived

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
    """The folder with the suite's data.

    Args:
        given: the folder; by default what the environment variable EVERLEARN_CODE names, or what was fetched.

    Raises:
        DataError: none is named, or it is not there.
    """
    return derived.data_folder("code", VARIABLE, given, HOW)


def find(task: str, folder: Path) -> Path:
    """The file of an end task.

    Args:
        task: its name.
        folder: with the data.

    Raises:
        DataError: it is not there.
    """
    for name in FILES[task]:
        for ending in ENDINGS:
            if (path := folder / f"{name}{ending}").is_file():
                return path
    raise DataError(f"The suite `code` needs '{folder / FILES[task][0]}.jsonl.gz' (or .jsonl). {HOW}")


def general(folder: Path) -> tuple[Path, Path] | None:
    """General text to learn from and to measure on, where the folder has some: Wikipedia, as `six-domains` has it."""
    found = []
    for part in ("train", "validation"):
        paths = [folder / f"D0/wikipedia/{part}{ending}" for ending in ENDINGS]
        found += [path for path in paths if path.is_file()][:1]
    return (found[0], found[1]) if len(found) == 2 else None
