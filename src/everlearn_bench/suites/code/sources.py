"""Where the evaluation sets of the suite can be fetched: as published, with the known facts about their rows."""

from __future__ import annotations

from everlearn_bench.suites.sources import Fetchable, github

PROBLEMS = ("openai/human-eval", "6d43fb980f9fee3c892a914eda09951f772ad10d", "MIT")
QUESTIONS = (
    "mosaicml/llm-foundry",
    "8c8dd48f72168c5d51e2f7b151595892a8fba43d",
    "repository Apache-2.0; nothing said about the single sets",
)
CHOICE, SCHEMA = ("query", "choices", "gold"), ("context_options", "continuation", "gold")
BY_HAND = (
    f"The files are data/HumanEval.jsonl.gz of https://github.com/{PROBLEMS[0]}, and in scripts/eval/local_data of "
    f"https://github.com/{QUESTIONS[0]} at commit {QUESTIONS[1][:12]}: put them into a folder `eval` as the table of "
    "docs/data-sources.md names them, and name the folder above it with `--data`. General text is not fetched: "
    "D0/wikipedia, as docs/six-domains.md describes it, is measured where it lies beside `eval`."
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
