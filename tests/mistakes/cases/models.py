"""Models and tokenizers."""

from __future__ import annotations

import json
import shutil

from transformers import RobertaModel

import tiny
from cli_project import Project, Spoil
from mistakes import Case, both, file, group, recipe


def no_head(project: Project) -> None:
    RobertaModel(tiny.model("roberta").config).save_pretrained(project.folder / "headless")
    tiny.tokenizer().save_pretrained(project.folder / "headless")
    project.recipe["model"] = "headless"


def without_token(architecture: str, token: str) -> Spoil:
    def spoil(project: Project) -> None:
        shutil.copytree(project.models / architecture, project.folder / "model")
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            if (path := project.folder / "model" / name).is_file():
                facts = json.loads(path.read_text())
                facts.pop(token, None)
                path.write_text(json.dumps(facts))
        project.recipe["model"] = "model"

    return spoil


def t5(project: Project) -> None:
    project.recipe["model"] = str(project.models / "t5")


def attention(project: Project) -> None:
    project.recipe["model"] = {"path": str(project.models / "roberta"), "attn_implementation": "flash_attention_2"}


def configured(**changes: object) -> Spoil:
    return lambda project: project.recipe.update(model={"path": str(project.models / "roberta"), "config": changes})


CASES = [
    Case("takes a model without a head", no_head, says=("headless", "model.path", "head")),
    Case("asks an encoder to go on writing", recipe("objective", "causal"), says=("causal", "encoder", "objective")),
    Case(
        "takes a tokenizer without a mask token",
        without_token("roberta", "mask_token"),
        says=("mask token", "model.tokenizer"),
    ),
    Case(
        "takes a tokenizer without an end token",
        without_token("llama", "eos_token"),
        says=("end-of-sequence", "eos_token"),
    ),
    Case(
        "asks for rows that the model cannot read",
        group("data", block_size=512),
        says=("data.block_size", "512", "128"),
    ),
    Case(
        "names a model of the hub without network",
        recipe("model", "somebody/some-model"),
        says=("somebody/some-model", "model.path"),
    ),
    Case("inspects a model that is not there", command=("inspect", "nowhere"), says=("nowhere",)),
    Case(
        "inspects a model for a method that is not there",
        command=("inspect", "MODELS/roberta", "--method", "mgu"),
        says=("mgu", "migu"),
    ),
    Case(
        "inspects a model that is no language model",
        file("odd/config.json", '{"model_type": "vit"}'),
        command=("inspect", "odd"),
        says=("vit", "no language model"),
    ),
    Case("writes null for the model", recipe("model", None), says=("`model`", "mapping")),
    Case("writes a number for the model", recipe("model", 5), says=("`model`", "mapping")),
    Case("lists two models", recipe("model", ["a", "b"]), says=("`model`", "mapping")),
    Case("gives neither a model nor a configuration", recipe("model", {}), says=("`model`", "`path`", "`config`")),
    Case("mistypes a key of the model", recipe("model", {"pth": "x"}), says=("model.pth", "path")),
    Case("gives random weights no kind", recipe("model", {"config": {"hidden_size": 8}}), says=("model_type",)),
    Case("gives random weights no tokenizer", recipe("model", {"config": {"model_type": "bert"}}), says=("tokenizer",)),
    Case(
        "gives random weights a kind that is not there",
        recipe("model", {"config": {"model_type": "brt"}, "tokenizer": "x"}),
        says=("brt", "model.config.model_type"),
    ),
    Case(
        "mistypes the attention",
        recipe("model", {"path": "x", "attn_implementation": "flash"}),
        says=("'flash'", "sdpa"),
    ),
    Case(
        "writes the configuration as a word",
        recipe("model", {"path": "x", "config": "large"}),
        says=("model.config", "mapping"),
    ),
    Case(
        "trusts code sometimes",
        recipe("model", {"path": "x", "trust_remote_code": "sometimes"}),
        says=("trust_remote_code", "true or false"),
    ),
    Case(
        "names a revision by a number",
        recipe("model", {"path": "x", "revision": 12345678}),
        says=("model.revision", "in quotes"),
    ),
    Case("names a file as the model", recipe("model", "a.jsonl"), says=("a.jsonl", "model.path")),
    Case(
        "names an empty folder as the model",
        both(file("empty/x", ""), recipe("model", "empty")),
        says=("empty", "model.path"),
    ),
    Case("inspects a file", command=("inspect", "a.jsonl"), says=("a.jsonl",)),
    Case("asks an encoder for answers", recipe("objective", "text-to-text"), says=("text-to-text",)),
    Case(
        "asks for answers where there are none",
        both(t5, recipe("objective", "text-to-text")),
        says=("target_column",),
    ),
    Case(
        "takes an attention that is not installed",
        attention,
        says=("flash_attention_2", "model.attn_implementation"),
    ),
    Case(
        "changes a field that the configuration has not",
        configured(hidden_dropout=0.1),
        says=("hidden_dropout", "model.config"),
    ),
    Case(
        "gives a field of the configuration a wrong type",
        configured(hidden_dropout_prob="much"),
        says=("hidden_dropout_prob", "much"),
    ),
]
