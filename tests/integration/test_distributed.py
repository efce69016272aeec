"""Two processes give what one process gives: every method under DDP and FSDP2, resumed ones too."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from run_recipes import only_train
from small_runs import leftovers, recipe, tensors

import tiny
from everlearn.config.recipe import Recipe
from everlearn.errors import Interrupted, RecipeError, RunError
from everlearn.files import read_json, seal, write_json
from everlearn.learner import ContinualLearner
from everlearn.methods.adapters.residual import Residual
from everlearn.methods.base import REGISTRY
from everlearn.methods.masks.sparse_memory import SparseMemory
from everlearn.model.sharding import shared_parameters
from everlearn.run import trainer
from everlearn.run.checkpoint import DATA_STATE
from methods_of_other_kinds import OTHERS, registered
from two_processes import HIDDEN

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("no_report")]

QUICK = {"samples": 8, "capacity": 16, "share": 0.3, "contrast_fraction": 1.0, "general": "none", "lora_dropout": 0.0}
QUICK |= {"contrast_dropout": 0.0, "n_tokens": 8, "lambda_2": 0.1, "pseudo_tokens": 16, "adapter_dropout": 0.0}
QUICK |= {"corda_method": "ipm"}
"""Options that make a method fast, and free of randomness that differs between processes, where it has them."""
# Adam divides noise by noise where a gradient is zero; a larger epsilon keeps that below the tolerance.
TRAIN = {"max_steps": 3, "adam_epsilon": 1e-4, "save_steps": 3, "use_cpu": True}
OFTEN, FIRST = {"save_steps": 1}, {"max_steps": 2, "save_strategy": "no"}
"""Of runs that stop and go on, and of the first domain of all: gathering a checkpoint takes as long as all steps of a
domain, so other runs gather one, at the end of the second, where methods have a memory."""
STOPPED = ("resumed", "signalled", "created")
ONE = {"per_device_train_batch_size": 4}
TWO = {"per_device_train_batch_size": 2}
SHARDED = {"fsdp": True, "fsdp_config": {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}
TOLERANCE = 1e-5


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    """The methods that only the tests have are known by name."""
    with registered():
        yield


OWN = {
    # Singular values of a tiny model lie so close, all but the first, that rounding decides which direction is whose.
    "corda": {"r": 2},
    "lora_null": {"r": 2},
    "pissa": {"r": 2},
    "budget": {"general": None, "probe": 4, "checks": 2},
    "sparse_memory": {"accessed": 4, "slots": 16, "keys": True},
    "forever": {"sample": 0.5, "warm_up": 1, "strength": 0.1},
    "mocl": {"n_tokens": 50},  # its prefixes', and a decoder gets low-rank blocks
}
"""What a word of QUICK means otherwise."""
_ASKED = {"answers": True, "objective": "text-to-text", "domains": ("asked", "answered")}
ANSWERS = {"sdft": _ASKED, "siatl": _ASKED}
"""What the recipe says where a method learns prompts and answers only."""


def quick(name: str) -> dict[str, Any]:
    known = (REGISTRY | OTHERS)[name].Config.model_fields
    return {"name": name} | {key: value for key, value in QUICK.items() if key in known} | OWN.get(name, {})


def cases() -> dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]]:
    """Name to architecture, methods and training arguments of the distributed run; on one process these are ONE."""
    found: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]] = {}
    for name in REGISTRY | OTHERS:
        found[f"ddp {name}"] = ("llama", [quick(name)], TWO)
        if not (REGISTRY | OTHERS)[name].needs.writes:  # those are refused
            found[f"fsdp {name}"] = ("llama", [quick(name)], TWO | SHARDED)
    forms = {
        "migu kept rows": [quick("migu") | {"gradient_of": "kept-rows"}],
        "migu inc_lora": [quick("inc_lora"), quick("migu")],
        "ewc of steps": [quick("ewc") | {"gradients": "steps"}],
        "kd of a queue": [quick("kd") | {"compare": "queue", "temperature": 0.2, "queue": 6}],
        "kd of cached answers": [quick("kd") | {"compare": "logits", "top_k": 8}],
    }
    for name, methods in forms.items():
        found[f"ddp {name}"] = ("llama", methods, TWO)
        found[f"fsdp {name}"] = ("llama", methods, TWO | SHARDED)
    on_shards = {
        "ewc of the base": [quick("ewc") | {"protect_base": True, "normalise": "max", "anchor": "separate"}],
        "ewc with its penalty": [quick("ewc") | {"include_penalty": True}],
        "mas replay": [quick("mas") | {"normalise": "mean"}, quick("replay")],
        "das ewc mas": [quick("das"), quick("ewc"), quick("mas")],
        "si wise_ft": [quick("si"), quick("wise_ft")],  # followed on shards, and ended on the complete model
    }
    for name, methods in on_shards.items():
        found[f"fsdp {name}"] = ("llama", methods, TWO | SHARDED)
    found["resumed fsdp mas of the base"] = ("llama", [quick("mas") | {"protect_base": True}], TWO | SHARDED)
    found["resumed fsdp si"] = ("llama", [quick("si")], TWO | SHARDED)
    of_steps = quick("ewc") | {"gradients": "steps", "samples": 12}  # of all steps, also those before the kill
    found["resumed fsdp ewc of all steps"] = ("llama", [of_steps], TWO | SHARDED)
    both = [quick("das"), quick("replay")]
    found["resumed ddp masked"] = ("roberta", both, TWO)
    found["signalled ddp masked"] = ("roberta", both, TWO)
    found["created ddp masked"] = ("roberta", both, TWO)
    found["ddp replay generated"] = ("llama", [quick("replay") | {"source": "generated"}], TWO)
    annealed = [quick("stream_schedule") | {"anneal": 0.5}, quick("reptile") | {"every": 2}]
    found["resumed fsdp schedule"] = ("llama", annealed, TWO | SHARDED)
    sharded_files = {"fsdp_config": {**SHARDED["fsdp_config"], "state_dict_type": "SHARDED_STATE_DICT"}}
    found["resumed fsdp das"] = ("llama", [quick("das")], TWO | SHARDED)
    found["ddp carried"] = ("llama", [quick("sequential")], TWO)
    found["fsdp carried"] = ("llama", [quick("sequential")], TWO | SHARDED)
    found["ddp ended"] = ("llama", [quick("sequential")], TWO)
    found["fsdp ended"] = ("llama", [quick("sequential")], TWO | SHARDED)
    found["resumed ddp agem"] = ("llama", [quick("agem")], TWO)
    found["resumed fsdp recadam"] = ("llama", [quick("recadam")], TWO | SHARDED)
    found["resumed fsdp mixout"] = ("llama", [quick("mixout")], TWO | SHARDED)
    found["resumed fsdp ulmfit"] = ("llama", [quick("ulmfit")], TWO | SHARDED)
    found["resumed fsdp inc_lora"] = ("llama", [quick("inc_lora")], TWO | SHARDED | sharded_files)
    found["resumed fsdp moe_lora"] = ("llama", [quick("moe_lora")], TWO | SHARDED)
    for name in ("lora", "moe_lora", "o_lora"):
        found[f"fsdp {name} migu"] = ("llama", [quick(name), quick("migu")], TWO | SHARDED)
    return found


CASES = cases()


def made(folder: Path, case: str, train: dict[str, Any], run: str) -> Recipe:
    architecture, method, _ = CASES[case]
    general = any(issubclass((REGISTRY | OTHERS)[each["name"]], (Residual, SparseMemory)) for each in method)
    where = {"name": case, "folder": str(folder / run / case)}
    optimizer = "carry" if "carried" in case else "reset"
    stops = case.startswith(STOPPED)
    groups = {"train": TRAIN | (OFTEN if stops else {}) | train, "evaluation": {"samples": int(stops)}}
    groups |= {"general": True} if general else {}
    if "ended" in case:  # the held-out text has no token of the training, so it gets worse from the first step on
        rare = folder / "rare.txt"
        rare.write_text("\n".join(["§ ± µ ¶ ÷ × ø ß þ ð " * 6] * 40), encoding="utf-8")
        groups |= {"stop": {"every": 1}, "each": {"validation": str(rare)}}
        groups["train"] |= {"learning_rate": 0.02}
    groups |= ANSWERS.get(case.split()[-1], {})
    whole = recipe(folder, architecture, method, dropout=0.0, run=where, optimizer=optimizer, **groups)
    if "stop" in groups or "save_steps" in train:
        return whole
    first, second = whole.model_dump(exclude_unset=True)["domains"]
    return whole.changed(domains=[{**first, "train": FIRST}, second])


def paths_to(here: Path) -> list[str]:
    """Where another process finds the tests, and what this one was told."""
    return [str(here.parent), str(here), *filter(None, [os.environ.get("PYTHONPATH")])]


def launch(recipes: list[Recipe], folder: Path, processes: int = 2) -> str:
    """Run the recipes one after another in one process group; its output."""
    paths = []
    for one in recipes:
        paths.append(folder / f"{one.run.name}.yaml")
        paths[-1].write_text(one.to_yaml(), encoding="utf-8")
    here = Path(__file__).parent
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = os.environ | HIDDEN | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths_to(here))}
    done = subprocess.run(
        [*command, str(here / "run_recipes.py"), *map(str, paths)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with every case's run on two processes (``two``)."""
    # One folder for all of pytest-xdist's workers: whoever comes first makes the runs, the others wait.
    shared = tmp_path_factory.getbasetemp()
    folder = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "distributed"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            # Accelerate remembers FSDP in the environment, so everything else comes first.
            ordered = sorted(CASES, key=lambda case: "fsdp" in case)
            launch([made(folder, case, CASES[case][2], "two") for case in ordered], folder)
            (folder / "done").touch()
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for the runs of one process."""
    return tmp_path_factory.mktemp("alone")


def reference(folder: Path, case: str) -> Path:
    """The same run on one process; cases that differ in distribution only share it."""

    def same(name: str) -> bool:
        alike = all((word in name) == (word in case) for word in ("carried", "ended"))
        return CASES[name][:2] == CASES[case][:2] and alike

    first = next(name for name in CASES if same(name))
    of = made(folder, first, ONE, "one")
    if not of.folder().exists():
        only_train(ContinualLearner(of))
    return of.folder()


@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_what_one_gives(runs: Path, alone: Path, case: str) -> None:
    two, one = runs / "two" / case, reference(alone, case)
    mine, theirs = tensors(two), tensors(one)
    assert mine.keys() == theirs.keys()
    for name in theirs:
        # What is kept as bfloat16 may round the other way, and so may each summand of a sum that is smaller than they.
        rounded = theirs[name].dtype == torch.bfloat16
        unit = torch.finfo(torch.bfloat16).eps * float(theirs[name].abs().max()) if rounded else 0.0
        torch.testing.assert_close(
            mine[name], theirs[name], atol=TOLERANCE + unit, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )
    logged = [[line["loss"] for line in run_lines(place) if "loss" in line] for place in (two, one)]
    assert logged[0] == pytest.approx(logged[1], abs=1e-4)
    assert leftovers(two) == []
    results = [read_json(place / "results.json") for place in (two, one)]
    assert results[0]["mixture"] == results[1]["mixture"]
    assert read_json(two / "environment.json")["processes"] == 2


def run_lines(place: Path) -> list[dict[str, Any]]:
    from everlearn.run.folder import RunFolder

    return RunFolder(place).metrics()


def test_fsdp_does_not_become_ddp_in_silence(tmp_path: Path) -> None:
    of = made(tmp_path, "fsdp sequential", SHARDED | ONE, "alone")
    with pytest.raises(RecipeError, match=r"train.fsdp.*several processes"):
        ContinualLearner(of).run()


@pytest.mark.parametrize(
    ("architecture", "shared"),
    [
        ("roberta", ["roberta.embeddings.word_embeddings.weight", "lm_head.bias"]),
        ("t5", ["shared.weight"]),
        ("gpt2", []),
        ("llama", []),
        ("gemma2", []),
    ],
)
def test_models_that_fsdp_cannot_shard(architecture: str, shared: list[str]) -> None:
    assert shared_parameters(tiny.model(architecture)) == shared


def test_a_checkpoint_of_two_processes_on_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = made(tmp_path, "ddp sequential", ONE | {"save_steps": 2}, "run")

    def two(self: trainer.StageTrainer) -> None:
        if self.state.global_step == 3:
            place = Path(str(self.args.output_dir)) / "checkpoint-2"
            state = read_json(place / DATA_STATE)
            write_json(place / DATA_STATE, state | {"processes": 2})
            seal(place)
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trainer.StageTrainer, "on_step_end", two)
        with pytest.raises(Interrupted):
            ContinualLearner(of).run()
    with pytest.raises(RunError, match=r"written by 2 process.*this run has 1"):
        ContinualLearner.open(of.folder()).resume()
