"""The five tasks of BIG-bench that the study evaluates before the first domain and after each super-domain.

If the data folder has a clone of the benchmark (``BIG-bench/``), they are the benchmark's own. Otherwise the nearest
questions in its folder ``eval/`` are written in the benchmark's format, so that both are read and scored alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everlearn.errors import DataError
from everlearn.files import digest, write_json
from everlearn.tasks.big_bench_reader import FILE
from everlearn_bench.suites import cache

OWN = Path("BIG-bench", "bigbench", "benchmark_tasks")
"""The tasks in a clone of https://github.com/google/BIG-bench."""
CHOSEN, WRITTEN = "multiple_choice_grade", "rouge_l"
OPTIONS = {"few_shot_nlg": {"metrics": [WRITTEN], "max_new_tokens": 64}}
"""Name of a task → its options beside the number of examples: its own file names BLEU and BLEURT, not measured here."""
NEAREST = {
    "arithmetic": "basic_skills_arithmetic",
    "general_knowledge": "basic_skills_common_knowledge",
    "physics": "mmlu",
    "cs_algorithms": "bigbench_cs_algorithms",
    "few_shot_nlg": "bigbench_conlang_translation",
}
"""Name of a task → the file in ``eval/`` that stands for it."""
PHYSICS = "conceptual_physics"
"""The subject of MMLU that stands for `physics`; its part `test`."""
PARTS_OF_ALGORITHMS = {"valid_parentheses": "Determine whether", "lcs": "Given two strings"}
"""Subtask of `cs_algorithms` → how its questions begin."""
BARE = {"example_input_prefix": "", "example_output_prefix": "", "append_choices_to_input": False}
"""How a text that is to be continued is shown."""


def big_bench_tasks(folder: Path | None, examples: int) -> list[dict[str, Any]]:
    """Return the tasks as end tasks of a recipe.

    Args:
        folder: the data folder; None if there is none.
        examples: largest number of examples of each subtask.

    Raises:
        DataError: the folder has neither a clone of the benchmark nor the questions that stand for it.
    """
    place = folder / OWN if folder is not None and (folder / OWN).is_dir() else _nearest(folder)
    return [
        {"kind": "big-bench", "name": name, "test": str(place / name), "max_test": examples} | OPTIONS.get(name, {})
        for name in NEAREST
    ]


def _nearest(folder: Path | None) -> Path:
    """Return the folder with the questions that stand for the tasks, built if it is missing."""
    files = {name: (folder or Path()) / "eval" / f"{file}.jsonl.gz" for name, file in NEAREST.items()}
    missing = [file.name for file in files.values() if folder is None or not file.is_file()]
    if missing:
        raise DataError(
            f"`suite.big_bench` needs a data folder with a clone of BIG-bench (`{OWN.parts[0]}/`), or with the "
            f"questions that stand for its tasks (`eval/`): there is no {' and '.join(missing)} (docs/m2d2.md)."
        )

    def write(new: Path) -> None:
        for inside, task in _tasks(files):
            (new / inside).mkdir(parents=True)
            write_json(new / inside / FILE, task)

    return cache.derived("m2d2", "big-bench", list(files.values()), (digest(Path(__file__)),), write)


def _tasks(files: Mapping[str, Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the folder of each task or subtask and its content in BIG-bench's format."""

    def read(name: str) -> list[dict[str, Any]]:
        return list(cache.read_lines(files[name]))

    for name in ("arithmetic", "general_knowledge"):
        yield name, BARE | _chosen([(row["question"], row["choices"], row["gold"]) for row in read(name)])
    physics = [row for row in read("physics") if row["subject"] == PHYSICS and row["split"] == "test"]
    questions = [(row["query"], row["choices"], row["gold"]) for row in physics]
    yield "physics", {"append_choices_to_input": False} | _chosen(questions)
    for part, beginning in PARTS_OF_ALGORITHMS.items():
        rows = [row for row in read("cs_algorithms") if row["context"].startswith(beginning)]
        answers = sorted({row["continuation"] for row in rows})
        questions = [(row["context"], answers, answers.index(row["continuation"])) for row in rows]
        yield f"cs_algorithms/{part}", BARE | _chosen(questions)
    written = [{"input": row["context"], "target": row["continuation"].strip("' ")} for row in read("few_shot_nlg")]
    yield "few_shot_nlg", BARE | {"metrics": [WRITTEN], "examples": written, "stop_string": "\n"}


def _chosen(questions: Sequence[tuple[str, Sequence[str], int]]) -> dict[str, Any]:
    """Return a task in which one option of each question is right."""
    examples = [
        {"input": text, "target_scores": {option: int(n == right) for n, option in enumerate(options)}}
        for text, options, right in questions
    ]
    return {"metrics": [CHOSEN], "preferred_score": CHOSEN, "examples": examples}
