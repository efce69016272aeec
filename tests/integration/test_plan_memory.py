"""What `everlearn plan` says of memory, beside what training holds; and plans for machines that are not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from measured_memory import measure, measure_all
from small_runs import recipe
from transformers import LlamaConfig

import tiny
from everlearn.commands.activation_trace import full_row, trace
from everlearn.commands.memory_verdict import bytes_of
from everlearn.commands.plan import make_plan
from everlearn.config.recipe import Recipe
from everlearn.errors import ModelError, RecipeError
from everlearn.methods.tricks.mixout import linear_weights
from everlearn.model.loading import empty_model
from everlearn.model.objectives import make_objective
from two_processes import in_two_processes

pytestmark = pytest.mark.usefixtures("no_report")

EXACT = ("weights", "gradients", "optimizer")
FACTOR = 1.5
"""Activations are at most this many times the measured ones, and at least one divided by it; docs/plan.md says so."""
SHARDED = {"fsdp": True}
EWC = {"name": "ewc", "samples": 4}


def planned(of: Recipe, devices: int = 1) -> dict[str, int]:
    return make_plan(of, measure=False, devices=devices).memory


def small(folder: Path, architecture: str, name: str, method: Any = "sequential", **train: Any) -> Recipe:
    where = {"name": name, "folder": str(folder / name)}
    options = {"max_steps": 2, "save_strategy": "no", **train}
    return recipe(folder, architecture, method, run=where, train=options, evaluation={"samples": 0})


@pytest.mark.parametrize(
    ("architecture", "method", "train"),
    [
        ("llama", EWC, {}),
        ("gpt2", "sequential", {"optim": "adamw_torch"}),
        ("roberta", "l2", {"optim": "adafactor"}),
        ("llama", "sequential", {"optim": "sgd", "optim_args": "momentum=0.9"}),
        ("llama", "sequential", {"optim": "adamw_torch", "optim_args": "amsgrad=True"}),
    ],
)
def test_what_is_counted_is_what_is_held(architecture: str, method: Any, train: dict[str, Any], tmp_path: Path) -> None:
    of = small(tmp_path, architecture, "one", method, **train)
    expected, found = planned(of), measure(of, tmp_path)
    parts = [part for part in expected if part in EXACT or part.startswith("method")]
    assert {part: expected[part] for part in parts} == {part: found[part] for part in parts}
    assert set(parts) == set(found)


def test_frozen_layers_have_no_gradients_and_no_states(tmp_path: Path) -> None:
    of = small(tmp_path, "llama", "one")
    of = of.changed(model=of.model.model_dump(exclude_unset=True) | {"frozen": ["embeddings", "layers.0"]})
    expected, found = planned(of), measure(of, tmp_path)
    assert {part: expected[part] for part in EXACT} == {part: found[part] for part in EXACT}
    assert expected["gradients"] < expected["weights"]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "roberta", "t5"])
def test_activations_are_near_what_is_held(architecture: str, half: bool, checkpointing: bool) -> None:
    """The profiler tells of every allocation of a pass; gradients are freed at once in both."""
    model, rows, size = tiny.model(architecture).train(), 4, 64
    objective = make_objective(None, model, tiny.tokenizer())
    expected = trace(empty_model(model.config), objective, rows, size, half=half, checkpointing=checkpointing)
    if checkpointing:
        model.activation_checkpointing_enable()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(forget)

    def step() -> None:
        batch = objective.collate([full_row(model, objective, size)] * rows, range(rows))
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            losses = objective.forward(model, batch).losses
        losses.sum().backward()

    step()  # what is made once is made
    found = peak_of(step)
    assert found / FACTOR < sum(expected) < found * FACTOR
    matrices = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    assert (0 < expected.copies <= 2 * matrices) if half else expected.copies == 0


def forget(parameter: torch.Tensor) -> None:
    parameter.grad = None


def peak_of(work: Any) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    moves = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return int(max(np.cumsum([size for _, size in moves])))


SEVEN = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
}
PAGE = " ".join(
    (Path(__file__).parents[2] / "docs/large-models.md").read_text(encoding="utf-8").replace("> ", "").split()
)
EIGHT = {"measure": False, "devices": 8, "memory": bytes_of("80GB")}


@pytest.fixture(scope="module", params=[32_000, 128_256])
def seven(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A decoder of 7 B parameters of which there is a configuration and a tokenizer, and no weight."""
    folder = tmp_path_factory.mktemp("seven")
    LlamaConfig(**SEVEN, vocab_size=request.param, architectures=["LlamaForCausalLM"]).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    train = {"per_device_train_batch_size": 1, "bf16": True, "max_steps": 100, "activation_checkpointing": True}
    text = folder / "text.txt"
    text.write_text("\n".join(tiny.texts(400)), encoding="utf-8")
    made = recipe(folder, "llama", train=train, each={"validation": None, "path": str(text)})
    data = made.data.model_dump() | {"block_size": 2048}
    return made.changed(model=str(folder), data=data)


def row_of_page(name: str, plan: Any) -> str:
    """The row of a method in the page's table, whose parts add up."""
    between = plan.measuring
    parts = [
        between.get("activations", 0),
        between.get("what is measured", 0),
        sum(amount for part, amount in between.items() if part.startswith("method ")),
        between.get("gathered layers", 0) + between.get("the complete model", 0),
        between["weights"],
    ]
    assert sum(parts) == sum(between.values())
    amounts = [sum(plan.memory.values()), sum(between.values()), *parts]
    numbers = [f"{amount / 1e9:.1f}" if amount else "–" for amount in amounts]
    return f"| {' | '.join([name, *numbers, 'yes' if plan.verdict.fits else 'no'])} |"


def test_seven_billion_parameters_fit_eight_devices_with_fsdp_only(seven: Recipe) -> None:
    whole = make_plan(seven, **EIGHT)
    parameters = whole.parameters
    assert parameters > 6.7e9
    assert whole.distribution == "DDP"
    assert whole.verdict is not None
    assert not whole.verdict.fits
    assert whole.verdict.change == {"train.fsdp": True}
    assert "Set `train.fsdp: true`: then it holds at most about" in whole.verdict.sentence
    larger = parameters > 7e9
    assert larger or whole.verdict.sentence in PAGE
    assert whole.memory["weights"] == whole.memory["gradients"] == 4 * parameters
    assert 0 <= whole.memory["optimizer"] - 8 * parameters < 4096, "two moments, and the step of each tensor"

    divided = make_plan(seven.changed(train=seven.train | {"fsdp": True}), **EIGHT)
    assert divided.distribution == "FSDP2"
    assert divided.verdict is not None
    assert divided.verdict.fits
    assert divided.verdict.sentence.startswith("Fits: each of 8 devices holds at most about")
    for part in ("weights", "gradients", "optimizer"):
        assert divided.memory[part] == pytest.approx(whole.memory[part] / 8, rel=1e-3)
    assert divided.measuring["the complete model"] == 4 * parameters, "each device has all of it between two domains"
    assert [(d.rows_per_step, d.trained_tokens) for d in divided.domains] == [(16, 100 * 16 * 2048)] * 2
    name = "`sequential`, vocabulary of 128,256 (7.5 B)" if larger else "`sequential`"
    assert row_of_page(name, divided) in PAGE


def test_what_is_measured_on_shards_fits(seven: Recipe) -> None:
    plan = make_plan(seven.changed(method="mas", train=seven.train | {"fsdp": True}), **EIGHT)
    verdict, between = plan.verdict, plan.measuring
    assert verdict is not None
    assert verdict.fits
    assert "the complete model" not in between
    name = "`mas`, vocabulary of 128,256 (7.5 B)" if plan.parameters > 7e9 else "`mas`"
    assert row_of_page(name, plan) in PAGE


@pytest.mark.parametrize("seven", [32_000], indirect=True)
def test_what_is_held_in_shards_fits(seven: Recipe) -> None:
    for name, method in {
        "`ewc_released`": "ewc_released",
        "`ewc`, `gradients: steps`": {"name": "ewc", "gradients": "steps"},
        "`si`": "si",
        "`das`, `general: none`": {"name": "das", "general": "none"},
        "`forget_me_not`": "forget_me_not",
    }.items():
        plan = make_plan(seven.changed(method=method, train=seven.train | {"fsdp": True}), **EIGHT)
        assert plan.verdict is not None
        assert plan.verdict.fits
        assert row_of_page(name, plan) in PAGE


@pytest.mark.parametrize("seven", [32_000], indirect=True)
def test_what_measures_on_the_complete_model_is_not_divided(seven: Recipe) -> None:
    plan = make_plan(seven.changed(method=["mas", "wise_ft"], train=seven.train | {"fsdp": True}), **EIGHT)
    verdict = plan.verdict
    assert verdict is not None
    assert (verdict.fits, verdict.change) == (False, {})
    assert "between two domains" in verdict.sentence
    assert "a `method` that measures less between domains" in verdict.sentence
    assert row_of_page("`mas`, `wise_ft`", plan) in PAGE


def test_the_fewest_keys_are_named_that_make_it_fit(tmp_path: Path) -> None:
    of = small(tmp_path, "llama", "one", per_device_train_batch_size=64)
    plan = make_plan(of, measure=False)
    few = sum(amount for part, amount in plan.memory.items() if part != "activations")
    verdict = make_plan(of, measure=False, memory=int(1.5 * few)).verdict
    assert verdict is not None
    assert "The largest part is activations" in verdict.sentence
    assert verdict.change == {"train.activation_checkpointing": True, "train.per_device_train_batch_size": 1}
    changed = of.changed(train=of.train | {key.removeprefix("train."): value for key, value in verdict.change.items()})
    again = make_plan(changed, measure=False, memory=int(1.5 * few)).verdict
    assert again is not None
    assert again.fits
    nothing = make_plan(of, measure=False, memory=few // 2).verdict
    assert nothing is not None
    assert (nothing.fits, nothing.change) == (False, {})
    assert "a smaller `model`" in nothing.sentence


def test_what_cannot_be_divided_is_said(tmp_path: Path) -> None:
    """T5 and RoBERTa hold a tensor in several modules; a penalty on adapters reads all of them."""
    verdict = make_plan(small(tmp_path, "t5", "one"), measure=False, devices=4, memory=1000).verdict
    assert verdict is not None
    said = "'shared.weight' of T5ForConditionalGeneration belongs to several modules"
    assert f"FSDP2 cannot be used: {said}" in verdict.sentence
    with pytest.raises(RecipeError, match=f"`train.fsdp` cannot divide this run: {said}"):
        make_plan(small(tmp_path, "t5", "two", **SHARDED), measure=False, devices=4)
    on_adapters = small(tmp_path, "llama", "adapters", ["lora", "mas"], **SHARDED)
    with pytest.raises(RecipeError, match="method 'mas' reads the weights that adapters change"):
        make_plan(on_adapters, measure=False, devices=4)
    with pytest.raises(RecipeError, match=r"`train\.fsdp` divides a run over several devices.*`--devices 8`"):
        make_plan(small(tmp_path, "llama", "three", **SHARDED), measure=False)


def test_a_checkpoint_in_few_bits_is_refused(tmp_path: Path) -> None:
    """It would be counted as float32 weights, and cannot be trained."""
    of = small(tmp_path, "llama", "one")
    config = Path(str(of.model.path)) / "config.json"
    packed = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    config.write_text(json.dumps(json.loads(config.read_text()) | packed))
    with pytest.raises(ModelError, match=r"was saved in few bits .*Name the checkpoint that it was made from"):
        make_plan(of, measure=False)


def test_a_plan_on_paper_does_not_speak_of_time(tmp_path: Path) -> None:
    assert not any("training time" in note for note in make_plan(small(tmp_path, "llama", "one"), measure=False).notes)


@pytest.mark.parametrize(
    ("text", "number"),
    [("80GB", 80e9), ("80 gb", 80e9), ("79.6GiB", 79.6 * 2**30), ("512MB", 512e6), ("1TB", 1e12)],
)
def test_amounts_of_memory(text: str, number: float) -> None:
    assert bytes_of(text) == int(number)


@pytest.mark.parametrize("text", ["", "80", "GB", "-1GB", "80GBs", "0GB", "1e3GB", "101TB", "9" * 400 + "TB"])
def test_other_amounts_are_refused(text: str) -> None:
    with pytest.raises(RecipeError, match=r"`--memory` is '.*', but must be the memory of one device, like 80GB"):
        bytes_of(text)


@pytest.mark.distributed
def test_two_processes_hold_what_is_planned_for_two_devices(tmp_path: Path) -> None:
    """The shards of FSDP2 are counted to the byte; under DDP each process holds all."""
    train = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1}
    cases = {
        "ddp": small(tmp_path, "llama", "ddp", EWC, **train),
        "fsdp": small(tmp_path, "llama", "fsdp", EWC, **train, **SHARDED),
        "fsdp si": small(tmp_path, "llama", "fsdp si", "si", **train, **SHARDED),
        "fsdp steps": small(tmp_path, "llama", "fsdp steps", EWC | {"gradients": "steps"}, **train, **SHARDED),
        "fsdp recadam": small(tmp_path, "llama", "fsdp recadam", "recadam", **train, **SHARDED),
        "fsdp kd": small(tmp_path, "llama", "fsdp kd", "kd", **train, **SHARDED),
        "fsdp mixout": small(tmp_path, "llama", "fsdp mixout", "mixout", **train, **SHARDED),
    }
    for name, of in cases.items():
        (tmp_path / f"{name}.yaml").write_text(of.to_yaml(), encoding="utf-8")
    in_two_processes(measure_all, tmp_path)
    model = tiny.model("llama")
    layer, *others = (sum(4 * weight.numel() for weight in each.parameters()) for each in model.model.layers)
    outside = sum(4 * weight.numel() for weight in model.parameters()) - layer - sum(others)
    mixed = [weight.numel() for _, weight, _ in linear_weights(model)]
    # A pass also needs a gathered layer of the teacher, or mixed weights; what is not divided is in the shards, too.
    in_a_pass = {"fsdp kd": layer + outside // 2, "fsdp mixout": 4 * sum(mixed) * 3 // 2}
    for name, of in cases.items():
        expected = planned(of, devices=2)
        ranks = [json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for rank in (0, 1)]
        for part in EXACT:
            assert expected[part] == max(rank[part] for rank in ranks), (name, part)
        for part in (part for part in expected if part.startswith("method")):
            held = max(rank[part] for rank in ranks)
            assert held == pytest.approx(expected[part] - in_a_pass.get(name, 0), abs=64), (name, part)
        most = max(mixed) if name == "fsdp mixout" else 1  # a number such as a norm
        assert all(rank.get("largest tensor gathered in steps", 0) <= most for rank in ranks), name
        # Importance and anchor of penalties; gradients are padded to equal shards.
        if "fsdp" in name and not name.endswith(("recadam", "kd", "mixout")):
            assert max(rank["kept between domains"] for rank in ranks) <= 1.1 * 2 * expected["weights"]
        if name == "fsdp":
            between = make_plan(of, measure=False, devices=2).measuring
            assert between["weights"] == max(rank["weights while measuring"] for rank in ranks)
            assert between["what is measured"] >= max(rank["what is measured"] for rank in ranks) > 0
            assert "the complete model" not in between
    assert planned(cases["fsdp"], 2)["weights"] < 0.6 * planned(cases["ddp"], 2)["weights"]
