"""Errors and words: what is quoted of other libraries, counts with their nouns, an architecture that is not there."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForSeq2SeqLM

import everlearn
from everlearn.errors import MOST_LISTED, ModelError, first_line
from everlearn.model.loading import load_config
from everlearn.model.source import Model
from everlearn.wording import be, count, plural, size


def test_one_line_is_quoted_without_long_lists() -> None:
    assert first_line(ValueError("  No. It has a, b, c.\nMore.")) == "No. It has a, b, c."
    assert first_line(ValueError()) == "ValueError"
    names = [f"n{number}" for number in range(400)]
    assert (
        first_line(ValueError(f"No 'x' here. Take one of {', '.join(names)}. Try again.")) == "No 'x' here. Try again."
    )
    cut = first_line(ValueError(f"Take one of {', '.join(names)}"))
    assert cut == f"Take one of {', '.join(names[:MOST_LISTED])}, …"


def test_what_transformers_says_of_an_unknown_model_is_short() -> None:
    with pytest.raises(ValueError, match="gpt2") as found:
        AutoConfig.for_model("brt")
    assert len(first_line(found.value)) < 100 < len(str(found.value))
    with pytest.raises(ValueError, match="Model type should be one of") as found:
        AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("gpt2"))
    assert len(first_line(found.value)) < 200


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "robertta"}, "`model.config.model_type` is 'robertta', .*no architecture.* 'roberta'\\?$"),
        ({"model_type": "zzzzq"}, "`model.config.model_type` is 'zzzzq', .* of that name\\.$"),
        ({"model_type": "bert", "hidden_size": "x"}, "`model.config` is no configuration of a 'bert': .*hidden_size"),
    ],
)
def test_random_weights_of_what_is_not_there(config: dict[str, object], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        load_config(Model(config=config, tokenizer="x"))


@pytest.mark.parametrize(
    ("noun", "several"),
    [("domain", "domains"), ("class", "classes"), ("batch", "batches"), ("memory", "memories"), ("day", "days")],
)
def test_the_noun_follows_its_number(noun, several):
    assert plural(noun) == several
    assert count(1, noun) == f"1 {noun}"
    assert [count(number, noun) for number in (0, 2)] == [f"0 {several}", f"2 {several}"]


def test_thousands_are_separated_and_irregular_plurals_are_given():
    assert count(12_800, "token") == "12,800 tokens"
    assert count(2, "analysis", "analyses") == "2 analyses"
    assert count(1, "analysis", "analyses") == "1 analysis"
    assert [be(number) for number in (0, 1, 2)] == ["are", "is", "are"]


ROOMS = (
    "report", "comparison", "grid", "cli", "commands", "run", "diagnostics", "demo", "data", "evaluation", "tasks",
)  # fmt: skip
NOUNS = (
    "domain", "run", "seed", "model", "step", "token", "example", "row", "text", "document", "cell", "line", "stage",
    "block", "order", "method", "record", "question", "task", "layer", "parameter", "entry", "label", "class",
    "recipe", "prompt", "column", "score", "unit", "subtask", "process", "pass", "epoch", "batch",
)  # fmt: skip
SOURCE = Path(everlearn.__file__).parent


@pytest.mark.parametrize("room", ROOMS)
def test_no_sentence_counts_with_a_plural_of_its_own(room):
    """What has a length may have the length 1: such a number takes its noun from `count`."""
    plurals = {plural(noun) for noun in NOUNS}
    wrong = []
    for path in sorted((SOURCE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for value, after in pairwise(node.values) if isinstance(node, ast.JoinedStr) else ():
                if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                    counted = re.match(r" (?:\w+ )?(\w+)", str(after.value))
                    number = re.fullmatch(r"len\((?!.*[+/])[^\n]*\)", ast.unparse(value.value))
                    if number and counted and counted.group(1) in plurals:
                        wrong.append(
                            f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(value.value)}{after.value}"
                        )
    assert [each for each in wrong if not each.startswith("evaluation/results.py")] == []


def test_a_size_has_three_digits_and_the_unit_that_fits():
    assert [size(n) for n in (0, 12, 999, 999_400, 999_600, 2.5e9, 3e13)] == [
        *("0 B", "12 B", "999 B", "999 kB", "1 MB", "2.5 GB", "30 TB"),
    ]
