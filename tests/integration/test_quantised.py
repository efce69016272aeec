"""Adapters that are trained on weights in 4 or 8 bits (QLoRA), and optimizers in 8 bits: bitsandbytes on the CPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch

import tiny
from everlearn import files
from everlearn.commands.plan import make_plan
from everlearn.errors import MethodError, ModelError, RecipeError
from everlearn.learner import ContinualLearner
from everlearn.methods.penalties.penalty import Penalty
from everlearn.model.quantising import is_quantised

pytestmark = pytest.mark.usefixtures("no_report")
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed (everlearn[quantized])"
)
FOUR = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


WIDE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDE |= {"max_position_embeddings": 130, "vocab_size": tiny.VOCABULARY, "bos_token_id": 0, "pad_token_id": 1}
WIDE |= {"eos_token_id": 2}
"""Weights are whole blocks of bitsandbytes, which its kernels for processors take for granted."""


def recipe(folder: Path, options: dict[str, Any] | None, method: Any = "inc_lora", **groups: Any) -> Any:
    architecture = groups.pop("architecture", "llama")
    made = small_runs.recipe(folder, architecture, method, **groups)
    place = folder / "models" / f"wide-{architecture}"
    if not place.is_dir():
        names = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
        named = {names.get(name, name) if architecture == "gpt2" else name: value for name, value in WIDE.items()}
        named |= {"head_dim": 16} if architecture == "llama" else {}
        tiny.model(architecture, 0.1, **named).save_pretrained(place)
        tiny.tokenizer().save_pretrained(place)
    return made.changed(model={"path": str(place), "quantization_config": options})


@needs_bitsandbytes
@pytest.mark.parametrize(
    ("options", "architecture", "method"),
    [
        (FOUR, "llama", [{"name": "inc_lora", "r": 4}, {"name": "replay", "share": 0.5}]),
        ({"load_in_8bit": True}, "roberta", {"name": "inc_lora", "r": 4, "merge": False}),
        (FOUR, "llama", [{"name": "inc_lora", "r": 4}, "derpp", "kd"]),  # both read the model at rest
        (FOUR, "gpt2", {"name": "inc_lora", "r": 4, "use_dora": True}),
        (FOUR, "llama", {"name": "lora", "r": 4}),
    ],
)
def test_trained_on_few_bits_saved_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], architecture: str, method: Any
) -> None:
    few = {"train": {"max_steps": 3}, "evaluation": {"every": 2}}
    wanted = recipe(tmp_path, options, method, architecture=architecture, **few)
    trained: list[bool] = []
    train = ContinualLearner.stage

    def watched(self: Any, *args: Any) -> Any:
        stage = train(self, *args)
        trained.append(is_quantised(stage.model))
        return stage

    monkeypatch.setattr(ContinualLearner, "stage", watched)
    learner = ContinualLearner(wanted)
    results = learner.run()
    assert trained == [True, True]
    assert "4 bits" in results.notes[0] or "8 bits" in results.notes[0]
    base, last = learner.model_after(0), learner.model_after(2)
    changed = [name for name, weight in last.named_parameters() if not torch.equal(weight, base.get_parameter(name))]
    assert changed
    assert all(weight.dtype == torch.float32 for weight in last.parameters())
    # Not one weight outside the adapted layers has been through the few bits.
    assert all("attn" in name or "attention" in name for name in changed)


@needs_bitsandbytes
def test_experts_beside_few_bits_leave_the_base_as_it_is(tmp_path: Path) -> None:
    learner = ContinualLearner(recipe(tmp_path, FOUR, {"name": "moe_lora", "r": 4}, train={"max_steps": 3}))
    learner.run()
    base, last = learner.model_after(0), learner.model_after(2)
    assert all(torch.equal(weight, base.get_parameter(name)) for name, weight in last.named_parameters())
    assert any(hasattr(module, "lora_router") for module in learner.tested().modules())


@needs_bitsandbytes
def test_killed_and_resumed_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = [{"name": "inc_lora", "r": 4}, {"name": "mas", "samples": 4, "strength": 1e3}, "si"]
    wanted = recipe(tmp_path, FOUR, methods, train={"optim": "adamw_bnb_8bit", **small_runs.SAVING})
    ContinualLearner(wanted).run()
    killer = small_runs.Killer(monkeypatch)
    moments = ["step 1.3", "step 2.4", "seal 2"]  # after "seal 2" nothing is trained, and importance is measured again
    again = small_runs.kill_and_resume(killer, small_runs.elsewhere(wanted, tmp_path / "again"), moments)
    small_runs.assert_same(again, wanted.folder())


@needs_bitsandbytes
@pytest.mark.parametrize("optim", ["adamw_bnb_8bit", "paged_adamw_8bit"])
@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
def test_optimizers_in_8_bits_go_on_from_domain_to_domain(tmp_path: Path, optim: str) -> None:
    wanted = small_runs.recipe(tmp_path, train={"optim": optim, "max_steps": 2}, optimizer="carry")
    wide = {"model_type": "roberta", "vocab_size": 5000, "hidden_size": 64, "intermediate_size": 128}
    wide |= {"num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 130}
    # Moments of fewer than 4,096 numbers stay in 32 bits; the head's bias has 5,000, in one dimension.
    wanted = wanted.changed(model={"config": wide, "tokenizer": wanted.model.path})
    learner = ContinualLearner(wanted)
    learner.run()
    kept = files.load_tensors(learner.folder.stage(2, "second") / "optimizer.safetensors")
    assert any(value.dtype == torch.uint8 for value in kept.values())
    plans = [
        make_plan(each, measure=False)
        for each in (wanted, wanted.changed(train=wanted.train | {"optim": "adamw_torch"}))
    ]
    assert 3.5 < plans[1].memory["optimizer"] / plans[0].memory["optimizer"] < 4


@needs_bitsandbytes
def test_the_plan_measures_and_counts_few_bits(tmp_path: Path) -> None:
    plans = [make_plan(recipe(tmp_path, options), measure=options is not None) for options in (FOUR, None)]
    assert plans[0].memory["weights"] < plans[1].memory["weights"]
    assert plans[0].protected is not None
    held = make_plan(recipe(tmp_path, FOUR, ["inc_lora", "si", "l2"]), measure=False).memory
    queries_and_values = 2 * (64 + 32) * 64  # two heads of four have values
    assert held["weights"] - plans[0].memory["weights"] == 4 * queries_and_values


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"load_in_4bits": True}, "Did you mean 'load_in_4bit'"),
        ({"bnb_4bit_quant_type": "nf4"}, "how many bits"),
        ({"load_in_4bit": True, "load_in_8bit": True}, "BitsAndBytesConfig does not take it"),
        ({"load_in_4bit": "yes"}, "BitsAndBytesConfig does not take it"),
        ({"load_in_4bit": True, "bnb_4bit_compute_dtype": "float23"}, "BitsAndBytesConfig does not take it"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf3"}, "nf3"),
    ],
)
def test_a_mistake_in_the_options_is_one_sentence(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        recipe(tmp_path, options)


@needs_bitsandbytes
@pytest.mark.parametrize("method", ["sequential", "das", "ewc", "replay", ["inc_lora", "migu"]])
def test_methods_that_act_on_the_weights_themselves_are_refused(tmp_path: Path, method: Any) -> None:
    with pytest.raises(MethodError, match="quantization_config"):
        ContinualLearner(recipe(tmp_path, FOUR, method)).check()


@needs_bitsandbytes
@pytest.mark.parametrize(
    "beside",
    ["l2_sp", {"name": "mas", "protect_base": True}, {"name": "budget", "general": None}, "ensemble", "sdft"],
)
def test_what_compares_or_sets_exact_weights_is_refused_beside_rounded_ones(tmp_path: Path, beside: Any) -> None:
    with pytest.raises(MethodError, match=r"quantization_config|a quantised model cannot"):
        ContinualLearner(recipe(tmp_path, FOUR, ["inc_lora", beside])).check()
    ContinualLearner(recipe(tmp_path, None, ["inc_lora", beside] if beside != "ensemble" else beside)).check()


@needs_bitsandbytes
@pytest.mark.parametrize(
    ("adapter", "penalty", "strength"),
    [
        ({"name": "inc_lora"}, {"name": "mas", "samples": 4}, 1e4),
        ({"name": "lora"}, {"name": "ewc", "samples": 4}, 1e7),
        ({"name": "inc_lora", "use_rslora": True}, {"name": "l2"}, 1e4),
        ({"name": "lora"}, {"name": "si"}, 1e9),
    ],
)
def test_a_penalty_holds_the_exact_weights_with_the_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapter: dict[str, Any], penalty: dict[str, Any], strength: float
) -> None:
    first: list[float] = []
    loss = Penalty.extra_losses

    def watched(self: Any, stage: Any, *args: Any) -> Any:
        losses = loss(self, stage, *args)
        first.extend(float(value.detach()) for value in losses.values() if stage.step == 0)
        return losses

    monkeypatch.setattr(Penalty, "extra_losses", watched)

    def moved(strength: float, name: str) -> float:
        methods = [adapter | {"r": 4}, penalty | {"strength": strength}]
        wanted = recipe(tmp_path, FOUR, methods, train={"max_steps": 4, "learning_rate": 1e-2})
        learner = ContinualLearner(small_runs.elsewhere(wanted, tmp_path / name))
        learner.run()
        one, two = (dict(learner.model_after(number).named_parameters()) for number in (1, 2))
        memory = learner.folder.stage(1, "first") / "memory" / f"{penalty['name']}.safetensors"
        anchors = {n.removeprefix("anchor/"): v for n, v in files.load_tensors(memory).items() if "anchor/" in n}
        assert anchors
        for weight, value in anchors.items():
            torch.testing.assert_close(value, one[weight], rtol=0, atol=1e-6)
        return sum(float((two[each] - one[each]).norm()) for each in anchors)

    held, free = moved(strength, "held"), moved(1e-9, "free")
    assert max(first) < 1e-6 * strength  # nothing pulls where the second domain begins
    assert 0 < held < 0.8 * free


def test_without_bitsandbytes_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "bitsandbytes" else find(name, *rest)
    )
    with pytest.raises(ModelError, match="everlearn\\[quantized\\]"):
        ContinualLearner(recipe(tmp_path, FOUR)).check()
