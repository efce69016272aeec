"""Locate the evaluation sets of the suite, and say where they can be fetched."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from everlearn.errors import DataError
from everlearn_bench.suites import cache as derived
from everlearn_bench.suites.sources import Fetchable, github

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
data_folder = partial(derived.data_folder, "code", VARIABLE, HOW)
"""Return the folder with the data of the suite: the given one, that of the variable, or the fetched data."""


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
    chosen = []
    for part in ("train", "validation"):
        paths = [folder / f"D0/wikipedia/{part}{ending}" for ending in ENDINGS]
        chosen += [path for path in paths if path.is_file()][:1]
    return (chosen[0], chosen[1]) if len(chosen) == 2 else None


PROBLEMS = ("openai/human-eval", "6d43fb980f9fee3c892a914eda09951f772ad10d", "MIT")
QUESTIONS = (
    "mosaicml/llm-foundry",
    "8c8dd48f72168c5d51e2f7b151595892a8fba43d",
    "repository Apache-2.0; nothing said about the single sets",
)
CHOICE, SCHEMA = ("query", "choices", "gold"), ("context_options", "continuation", "gold")
BY_HAND = (
    f"The files are data/HumanEval.jsonl.gz of https://github.com/{PROBLEMS[0]}, and in scripts/eval/local_data of "
    f"https://github.com/{QUESTIONS[0]} at commit {QUESTIONS[1][:12]}. Put them into a folder `eval`, under the names "
    "in the table of docs/data-sources.md, and pass the folder above it as `--data`. General text is not fetched: if "
    "`D0/wikipedia`, as docs/six-domains.md describes it, is beside `eval`, it is measured."
)


def _questions(place: str, rows: int, columns: tuple[str, ...]) -> Fetchable:
    repository, commit, licence = QUESTIONS
    address = github(repository, commit, f"scripts/eval/local_data/{place}.jsonl")
    return Fetchable(f"eval/{place.rpartition('/')[2]}.jsonl", address, licence, rows=rows, columns=columns)


SOURCES = (
    Fetchable(
        "eval/humaneval.jsonl.gz",
        github(*PROBLEMS[:2], "data/HumanEval.jsonl.gz"),
        PROBLEMS[2],
        rows=164,
        columns=("prompt", "entry_point", "test", "canonical_solution"),
    ),
    _questions("language_understanding/hellaswag", 10_042, CHOICE),
    _questions("language_understanding/winogrande", 1_267, SCHEMA),
    _questions("world_knowledge/arc_challenge", 1_172, CHOICE),
)
"""Rows and columns are those of the copies that the committed results were made with; of HellaSwag, of which they had a
thousand questions, those of its validation part."""
