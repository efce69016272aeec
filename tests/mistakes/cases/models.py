"""Methods, models and tokenizers."""

from __future__ import annotations

import json
import shutil

from transformers import RobertaModel

import tiny
from cli_project import Project, Spoil
from mistakes import Case, both, file, group, recipe

# -- Models and tokenizers ---------------------------------------------------------------------------------------------


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
    Case("names a file as the model", recipe("model", "a.jsonl"), says=("a.jsonl", "model.path", "is a file")),
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


# -- Methods -----------------------------------------------------------------------------------------------------------


CASES_METHODS = [
    Case("mistypes a method", recipe("method", "dsa"), says=("dsa", "das")),
    Case("lists no method", recipe("method", []), says=("`method`", "sequential", "[]")),
    Case(
        "calls a method as a paper does",
        recipe("method", "ncl"),
        says=("'ncl'", "In the DAS paper NCL is `sequential`"),
    ),
    Case(
        "gives a variant a value that the method has not",
        recipe("method", {"name": "hat_all", "test_gates": "none"}),
        says=("Method 'hat_all', option 'test_gates'", "none"),
    ),
    Case(
        "takes a prompt that is too long for the rows",
        recipe("method", {"name": "dap_prompt", "n_tokens": 100}),
        says=("100 prompt tokens and a text of 32", "data.block_size"),
    ),
    Case(
        "mistypes an option of a method",
        recipe("method", {"name": "migu", "treshold": 0.5}),
        says=("migu", "treshold", "threshold"),
    ),
    Case(
        "sets an option of a method out of its range",
        recipe("method", {"name": "migu", "threshold": 2}),
        says=("migu", "threshold", "2"),
    ),
    Case("lists a method twice", recipe("method", ["das", "das"]), says=("das", "method")),
    Case(
        "replays general text that is not named",
        recipe("method", {"name": "replay", "source": "general"}),
        says=("replay", "source", "general"),
    ),
    Case("writes null for the method", recipe("method", None), says=("`method.0`", "None")),
    Case("writes no for the method", recipe("method", False), says=("method", "False")),
    Case("writes a number for the method", recipe("method", 5), says=("method", "5")),
    # These sentences list every method that there is.
    Case("forgets the method's name", recipe("method", {"samples": 8}), says=("method", "`name`")),
    Case("writes a method's name in capitals", recipe("method", "DAS"), says=("'DAS'", "'das'")),
    Case("gives a method no name", recipe("method", ""), says=("method",)),
    Case("lists a list of methods", recipe("method", [["das"]]), says=("method",)),
    Case("leaves an item of the methods empty", recipe("method", ["das", None]), says=("method", "None")),
    Case(
        "writes a word for a method's number",
        recipe("method", {"name": "ewc", "strength": "high"}),
        says=("ewc", "strength", "high"),
    ),
    Case(
        "takes an endless strength",
        recipe("method", {"name": "ewc", "strength": float("inf")}),
        says=("strength", "finite"),
    ),
    Case(
        "takes a strength that is not a number",
        recipe("method", {"name": "ewc", "strength": float("nan")}),
        says=("strength", "finite"),
    ),
    Case(
        "takes a negative strength", recipe("method", {"name": "ewc", "strength": -1}), says=("ewc", "strength", "-1")
    ),
    Case(
        "answers true for a strength",
        recipe("method", {"name": "ewc", "strength": True}),
        says=("ewc", "strength", "true"),
    ),
    Case("measures on no rows", recipe("method", {"name": "ewc", "samples": 0}), says=("ewc", "samples", "0")),
    Case(
        "measures on half a row",
        recipe("method", {"name": "ewc", "samples": 0.5}),
        says=("ewc", "samples", "whole number"),
    ),
    Case(
        "replays more than everything",
        recipe("method", {"name": "replay", "share": 1.5}),
        says=("replay", "share", "1.5"),
    ),
    Case("trains an adapter of rank 0", recipe("method", {"name": "inc_lora", "r": 0}), says=("inc_lora", "'r'", "0")),
    Case(
        "chooses more experts than there are",
        recipe("method", {"name": "moe_lora", "experts": 2, "top_k": 3}),
        says=("moe_lora", "'top_k'", "3 of 2"),
    ),
    Case(
        "asks for a share and a sample of old text",
        recipe("method", {"name": "replay_sample", "share": 0.3}),
        says=("replay_sample", "'share'", "sample: 0.02"),
    ),
    Case(
        "gives one of a list of strengths a sign",
        recipe("method", {"name": "o_lora", "lambda_1": [0, -1]}),
        says=("o_lora", "lambda_1"),
    ),
]
CASES += CASES_METHODS
