"""Every mistake of a user: one sentence that names the value and the key, exit code 2, nothing lost."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_project import Project, Spoil, labelled, write_jsonl
from transformers import RobertaModel

import tiny
from everlearn import files


def domain(**changes: Any) -> Spoil:
    return lambda project: project.recipe["domains"][0].update(changes)


def group(key: str, **changes: Any) -> Spoil:
    return lambda project: project.recipe.setdefault(key, {}).update(changes)


def whole(key: str, value: Any) -> Spoil:
    return lambda project: project.recipe.update({key: value})


def corpus(content: bytes) -> Spoil:
    return lambda project: (project.folder / "a.jsonl").write_bytes(content)


def broken_line(project: Project) -> None:
    lines = (project.folder / "a.jsonl").read_text().splitlines()
    lines[6] = '{"text": "cut off'
    (project.folder / "a.jsonl").write_text("\n".join(lines))


def other_column(project: Project) -> None:
    write_jsonl(project.folder / "a.jsonl", [{"body": text, "title": "t"} for text in tiny.texts(150)])


def unknown_label(project: Project) -> None:
    write_jsonl(project.folder / "test.jsonl", [*labelled(8, 1), {"text": "z", "label": "zebra"}])
    project.recipe["end_tasks"] = [{"name": "topics", "train": "train.jsonl", "test": "test.jsonl"}]


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


CASES: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "unknown key": (group("evaluation", blokcs=3), ("evaluation.blokcs", "blocks")),
    "unknown group": (whole("domain", []), ("domain", "domains")),
    "unknown key of a domain": (domain(txt_column="x"), ("domains.0.txt_column", "text_column")),
    "wrong type": (group("data", block_size="many"), ("data.block_size", "many")),
    "value out of range": (group("evaluation", blocks=0), ("evaluation.blocks", "0")),
    "no domains": (whole("domains", []), ("domains",)),
    "unknown method": (whole("method", "dsa"), ("dsa", "das")),
    "no method": (whole("method", []), ("`method`", "sequential", "[]")),
    "a paper's name of a method": (whole("method", "ncl"), ("'ncl'", "In the DAS paper NCL is `sequential`")),
    "an option of a variant": (
        whole("method", {"name": "hat_all", "test_gates": "none"}),
        ("Method 'hat_all', option 'test_gates'", "none"),
    ),
    "a prompt too long for the rows": (
        whole("method", {"name": "dap_prompt", "n_tokens": 100}),
        ("100 prompt tokens and a text of 32", "data.block_size"),
    ),
    "unknown option of a method": (
        whole("method", {"name": "migu", "treshold": 0.5}),
        ("migu", "treshold", "threshold"),
    ),
    "option of a method out of range": (whole("method", {"name": "migu", "threshold": 2}), ("migu", "threshold", "2")),
    "a method twice": (whole("method", ["das", "das"]), ("das", "method")),
    "unknown training argument": (group("train", max_step=3), ("train.max_step", "max_steps")),
    "training argument that a run decides": (group("train", seed=3), ("train.seed", "run.seed")),
    "training argument of a wrong type": (group("train", lr_scheduler_type="lineal"), ("lineal",)),
    "missing file": (domain(path="aa.jsonl"), ("aa.jsonl", "a.jsonl")),
    "empty corpus": (corpus(b""), ("a.jsonl", "empty")),
    "binary corpus": (corpus(bytes(range(256)) * 40), ("a.jsonl", "binary")),
    "corpus smaller than a block": (corpus(b'{"text": "tiny"}\n'), ("'a'", "32")),
    "wrong text column": (other_column, ("'text'", "'body'", "'title'")),
    "broken JSON line": (broken_line, ("a.jsonl, line 7", "JSON")),
    "duplicate domain names": (lambda p: p.recipe["domains"][1].update(name="a"), ("domains", "'a'")),
    "a domain name that is no file name": (domain(name="a/b"), ("domains.0.name", "a/b")),
    "labels in test that are not in train": (unknown_label, ("topics", "zebra", "x, y")),
    "end task of an unknown domain": (
        whole("end_tasks", [{"name": "t", "domain": "aa", "train": "train.jsonl", "test": "test.jsonl"}]),
        ("'t'", "'aa'", "'a'"),
    ),
    "model without a head": (no_head, ("headless", "model.path", "head")),
    "model of another kind": (whole("objective", "causal"), ("causal", "encoder", "objective")),
    "tokenizer without a mask token": (without_token("roberta", "mask_token"), ("mask token", "model.tokenizer")),
    "tokenizer without an end token": (without_token("llama", "eos_token"), ("end-of-sequence", "eos_token")),
    "block longer than the positions": (group("data", block_size=512), ("data.block_size", "512", "128")),
    "streaming without a number of steps": (
        lambda p: (p.recipe["domains"][0].update(streaming=True), p.recipe["train"].pop("max_steps")),
        ("train.max_steps",),
    ),
    "model id without network": (whole("model", "somebody/some-model"), ("somebody/some-model", "model.path")),
    "corpus id without network": (domain(path="somebody/some-data"), ("somebody/some-data", "path")),
    "general text that is called as the column of means is": (
        whole("general", {"name": "mean", "path": "a.jsonl"}),
        ("'mean' is taken", "choose another"),
    ),
    "replay of a general corpus that is not named": (
        whole("method", {"name": "replay", "source": "general"}),
        ("replay", "source", "general"),
    ),
}


@pytest.mark.parametrize(("spoil", "says"), CASES.values(), ids=CASES.keys())
def test_bad_recipe(everlearn: Project, spoil: Spoil, says: tuple[str, ...]) -> None:
    spoil(everlearn)
    everlearn.fails("run", "recipe.yaml", says=says)
    assert not everlearn.run_folder.exists()


ARGUMENTS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "unknown verb": (["plna", "recipe.yaml"], ("plna", "plan")),
    "unknown option": (["methods", "--jsno"], ("--jsno", "--json")),
    "missing argument": (["run"], ("RECIPE",)),
    "no such recipe": (["run", "recip.yaml"], ("recip.yaml", "recipe.yaml")),
    "an override that is none": (["run", "recipe.yaml", "max_steps"], ("max_steps", "key=value")),
    "an override of an unknown key": (["run", "recipe.yaml", "evaluation.bloks=1"], ("evaluation.bloks", "blocks")),
    "an override of an unknown domain": (["run", "recipe.yaml", "domains.z.path=a"], ("domains.z.path", "'z'")),
    "resume of no run": (["resume", "runs/none"], ("runs/none", "recipe.yaml")),
    "report of no run": (["report", "runs/none"], ("runs/none",)),
    "unknown format": (["report", "runs/none", "--format", "pdf"], ("pdf", "html")),
    "learn without a path": (["learn", "runs/none", "--domain", "c"], ("--domain", "'c'", "=")),
    "learn with half an end task": (
        ["learn", "runs/none", "--domain", "c=c.jsonl", "--end-task", "t=train.jsonl"],
        ("--end-task", "t=train.jsonl"),
    ),
    "learn with a bad name": (["learn", "runs/none", "--domain", "c/d=c.jsonl"], ("name", "c/d")),
    "unknown method": (["methods", "ecw"], ("ecw", "ewc")),
    "inspect of no model": (["inspect", "nowhere"], ("nowhere",)),
    "inspect with an unknown method": (["inspect", "MODEL", "--method", "mgu"], ("mgu", "migu")),
}


@pytest.mark.parametrize(("arguments", "says"), ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_bad_arguments(everlearn: Project, arguments: list[str], says: tuple[str, ...]) -> None:
    everlearn.fails(*(str(everlearn.models / "roberta") if a == "MODEL" else a for a in arguments), says=says)


def test_broken_yaml(everlearn: Project) -> None:
    (everlearn.folder / "broken.yaml").write_text("model: [a")
    everlearn.fails("run", "broken.yaml", says=("broken.yaml", "YAML"))


def test_unknown_architecture(everlearn: Project) -> None:
    (everlearn.folder / "odd").mkdir()
    (everlearn.folder / "odd" / "config.json").write_text('{"model_type": "bloom"}')
    everlearn.fails("inspect", "odd", says=("bloom", "register_architecture"))


def test_errors_are_json_when_json_is_asked_for(everlearn: Project) -> None:
    outcome = everlearn.fails("methods", "ecw", "--json", says=("ecw",))
    assert "ecw" in json.loads(outcome.out)["error"]


def test_run_folder_that_exists(everlearn: Project) -> None:
    assert everlearn("run", "recipe.yaml").code == 0
    before = files.digest(everlearn.run_folder / "results.json")
    everlearn.fails("run", "recipe.yaml", says=("already", "everlearn resume", "run.name"))
    everlearn.fails("run", "recipe.yaml", "run.seed=1", says=("another recipe", "run.name"))
    assert files.digest(everlearn.run_folder / "results.json") == before
    everlearn.fails("learn", "runs/first", "--domain", "a=c.jsonl", says=("'a'", "already", "another name"))
    everlearn.fails("learn", "runs/first", "--domain", "c=d.jsonl", says=("d.jsonl",))
    (everlearn.folder / "runs" / "other").mkdir()
    (everlearn.folder / "runs" / "other" / "precious.txt").write_text("mine")
    everlearn.fails("run", "recipe.yaml", "run.name=other", says=("other", "no run folder"))
    assert (everlearn.folder / "runs" / "other" / "precious.txt").read_text() == "mine"
    # A damaged stage is named, and nothing is deleted.
    weights = everlearn.run_folder / "stage-01-a" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    everlearn.fails("resume", "runs/first", says=("stage-01-a", "model.safetensors", "damaged"))
    assert weights.is_file()


def test_loss_that_is_not_finite(everlearn: Project) -> None:
    everlearn.recipe["train"] |= {"learning_rate": 1e30, "max_grad_norm": 0.0}
    everlearn.fails("run", "recipe.yaml", says=("'a'", "not finite from step", "train.learning_rate"))
    assert not (everlearn.run_folder / "stage-01-a").exists()


def test_full_disk(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from everlearn.run.trainer import StageTrainer

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(StageTrainer, "_save_rng_state", full)
        everlearn.fails("run", "recipe.yaml", says=("disk is full", "checkpoint-2", "everlearn resume"))
    assert everlearn("resume", "runs/first").code == 0


def test_full_disk_anywhere_else(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    monkeypatch.setattr("everlearn.tools.describing.describe_all", full)
    everlearn.fails("methods", says=("disk is full", "somewhere"))


def test_an_unexpected_error_keeps_its_traceback(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("everlearn.tools.describing.describe_all", broken)
    with pytest.raises(ZeroDivisionError):
        everlearn("methods")


def test_no_file_of_a_failed_command_is_left(everlearn: Project) -> None:
    everlearn.recipe["domains"][1]["path"] = "nowhere.jsonl"
    everlearn.fails("run", "recipe.yaml", says=("nowhere.jsonl",))
    everlearn.fails("plan", "recipe.yaml", "--no-measure", says=("nowhere.jsonl",))
    assert not Path("runs").exists()
