"""``everlearn extend``: a base with tokens for a domain's words, and bits per byte, which compare it with the old."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tiny
from cli_project import Project, write_jsonl
from everlearn.evaluation import Cell, Results, set_path

WORDS = ("zygote", "mitochondria", "ribosome")
TEXTS = [{"text": f"a {WORDS[i % 3]} and the {WORDS[(i + 1) % 3]} keeps it"} for i in range(60)]


def flat(folder: Path) -> Path:
    """A model that finds every token equally likely, whatever it reads."""
    model = tiny.model("llama")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def project(everlearn: Project) -> Project:
    write_jsonl(everlearn.folder / "cells.jsonl", TEXTS)
    write_jsonl(everlearn.folder / "held-out.jsonl", TEXTS[:12])
    everlearn.recipe["model"] = str(flat(everlearn.folder / "flat"))
    everlearn.recipe["domains"] = [{"name": "cells", "path": "cells.jsonl", "validation": "held-out.jsonl"}]
    everlearn.recipe["data"]["block_size"] = 16
    return everlearn


def test_bits_per_byte_compare_a_model_with_its_extension(project: Project) -> None:
    """Of a flat distribution over V tokens they are log2(V) tokens / bytes, before and after."""
    project.recipe["evaluation"]["blocks"] = 64  # all rows are scored, so the bytes are those of all held-out text
    found = project("extend", "flat", "extended", "--text", "cells.jsonl", "--tokens", "20", "--json")
    assert found.code == 0, found.err
    said = json.loads(found.out)
    assert said["vocabulary"][1] - said["vocabulary"][0] == len(said["tokens"]) > 5
    assert said["bytes_per_token"][1] > 1.5 * said["bytes_per_token"][0]
    model, words = (each.from_pretrained(project.folder / "extended") for each in (AutoModelForCausalLM, AutoTokenizer))
    assert model.config.vocab_size == len(words) == said["vocabulary"][1]
    outcome = project("evaluate", "before=flat", "after=extended", "--on", "recipe.yaml", "-o", "measured", "--json")
    assert outcome.code == 0, outcome.err
    tables = json.loads(outcome.out)["matrices"]
    assert next(iter(tables)) == "bits_per_byte"
    scores = {(name, row): value for name, table in tables.items() for row, _, value, *_ in table["cells"]}
    for number, (row, folder) in enumerate((("before", "flat"), ("after", "extended"))):
        words = AutoTokenizer.from_pretrained(project.folder / folder)
        bits = math.log2(len(words))
        ids = words([line["text"] for line in TEXTS[:12]], add_special_tokens=False)["input_ids"]
        size = sum(len(line["text"].encode()) for line in TEXTS[:12])
        assert scores["loss", row] == pytest.approx(math.log(len(words)), rel=1e-5)  # says nothing of the two
        cell = Cell.load(set_path(project.folder / "measured" / "evaluation", number, "cells"))
        # What is predicted of a document: its tokens and its end.
        assert cell.facts["bytes_per_token"] == pytest.approx(size / sum(len(each) + 1 for each in ids), rel=0.02)
        assert scores["bits_per_byte", row] == pytest.approx(bits / cell.facts["bytes_per_token"], rel=1e-5)
    assert scores["bits_per_byte", "after"] < 0.8 * scores["bits_per_byte", "before"]


def test_a_run_goes_on_from_an_extended_base(project: Project) -> None:
    assert project("extend", "flat", "extended", "--text", "cells.jsonl", "--tokens", "8").code == 0
    project.recipe |= {"model": "extended", "method": "ewc"}
    project.recipe["domains"].append({"name": "a", "path": "a.jsonl", "validation": 0.2})
    outcome = project("run", "recipe.yaml", "train.max_steps=2")
    assert outcome.code == 0, outcome.err
    stage = next(project.run_folder.glob("stage-02-a"))
    assert len(AutoTokenizer.from_pretrained(stage)) == AutoModelForCausalLM.from_pretrained(stage).config.vocab_size
    assert Results.load(project.run_folder).domains == ["cells", "a"]


def test_new_tokens_that_an_adapter_does_not_train_are_named_and_the_advice_works(project: Project) -> None:
    """LoRA leaves the rows of new tokens where they are; a method that trains all weights moves them."""
    assert project("extend", "flat", "extended", "--text", "cells.jsonl", "--tokens", "8").code == 0
    says = r"extended was extended by 8 tokens, whose embeddings 'lora' leaves as they are"
    new = slice(-8, None)
    for method, moves in (("lora", False), ("mas", True)):
        project.recipe |= {"model": "extended", "method": method}
        outcome = project("run", "recipe.yaml", "train.max_steps=2", f"run.folder=runs/{method}")
        assert outcome.code == 0, outcome.err
        assert (re.search(says, outcome.err + outcome.out) is not None) is not moves
        stage = next((project.folder / "runs" / method).glob("stage-01-*"))
        before, after = (
            AutoModelForCausalLM.from_pretrained(path).get_input_embeddings().weight[new]
            for path in (project.folder / "extended", stage)
        )
        assert torch.equal(before, after) is not moves


def test_what_cannot_be_extended_gets_a_sentence(project: Project) -> None:
    project.fails("extend", "flat", "flat", "--text", "cells.jsonl", says=("flat exists already",))
    project.fails("extend", "flat", "new", "--text", "nowhere.jsonl", says=("nowhere.jsonl",))
    write_jsonl(project.folder / "few.jsonl", TEXTS[:2])
    project.fails("extend", "flat", "new", "--text", "few.jsonl", says=("there is nothing to add",))
    project.fails("extend", "flat", "new", "--text", "cells.jsonl", "--initialise", "zero", says=("pieces or mean",))
    assert not (project.folder / "new").exists()
