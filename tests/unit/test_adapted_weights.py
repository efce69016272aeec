"""Penalties on models with adapters: on the effective weights, W + s B A, against references in float64."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import (
    AdaLoraConfig,
    FourierFTConfig,
    IA3Config,
    LoHaConfig,
    LoKrConfig,
    LoraConfig,
    OFTConfig,
    PeftModel,
    PromptTuningConfig,
    RandLoraConfig,
    VBLoRAConfig,
    VeraConfig,
    get_peft_model,
)
from protected_run import OPTIONS, collator, rows
from torch import Tensor, nn
from torch.func import functional_call
from transformers import Trainer, TrainingArguments

import adapters_page
import stages
import tiny
from everlearn.errors import EverlearnError, MethodError, ModelError
from everlearn.methods import build
from everlearn.methods.base import Method
from everlearn.methods.engine.protection import Protection, check_methods, costs_of
from everlearn.model.adapted import is_adapted, plain_view, weights_of
from everlearn.model.peft_adapter import merged
from everlearn.protecting import protect

TARGETS = {"llama": ["q_proj", "v_proj", "down_proj"], "gpt2": ["c_attn", "c_proj"]}
LOW_RANK = ["lora", "inc_lora", "o_lora", "clora", "corda"]


def config(kind: str, architecture: str = "llama") -> Any:
    """A configuration of PEFT for a tiny model."""
    own: dict[str, Any] = {"target_modules": TARGETS[architecture]}
    turned = {"fan_in_fan_out": architecture == "gpt2"}
    return {
        "lora": lambda: LoraConfig(**own, **turned),
        "dora": lambda: LoraConfig(use_dora=True, **own, **turned),
        "rslora": lambda: LoraConfig(use_rslora=True, **own, **turned),
        "pissa": lambda: LoraConfig(init_lora_weights="pissa", **own, **turned),
        "new tokens": lambda: LoraConfig(trainable_token_indices=[380, 381], **own, **turned),
        "whole head": lambda: LoraConfig(modules_to_save=["lm_head"], **own, **turned),
        "head": lambda: LoraConfig(target_modules=[*TARGETS[architecture], "lm_head"], **turned),
        "biases": lambda: LoraConfig(bias="all", **own, **turned),
        "ia3": lambda: IA3Config(feedforward_modules=TARGETS[architecture][-1:], **own, **turned),
        "loha": lambda: LoHaConfig(**own),
        "lokr": lambda: LoKrConfig(**own),
        "vera": lambda: VeraConfig(target_modules=TARGETS[architecture][:1], **turned),
        "adalora": lambda: AdaLoraConfig(total_step=10, **own, **turned),
        "fourierft": lambda: FourierFTConfig(n_frequency=20, **own),
        "randlora": lambda: RandLoraConfig(r=4, **own, **turned),
        "vblora": lambda: VBLoRAConfig(vector_length=4, **own),
    }[kind]()


def jolt(model: nn.Module, seed: int, size: float = 0.05) -> None:
    """Move what is trained."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(size * torch.randn(parameter.shape, generator=generator))


def adapted(kind: str = "lora", architecture: str = "llama") -> PeftModel:
    """A tiny model with an adapter that does something."""
    model = get_peft_model(tiny.model(architecture), config(kind, architecture)).eval()
    jolt(model, 1)
    return model


def logits(model: nn.Module) -> Tensor:
    ids = torch.arange(5, 29)[None].clone()
    ids[0, 3:5] = torch.tensor([380, 381])
    return model(input_ids=ids).logits.detach()


KINDS = ["lora", "dora", "rslora", "pissa", "new tokens", "whole head", "head", "biases", "ia3", "vera", "adalora"]
KINDS_OF_LINEAR = ["loha", "lokr", "fourierft", "randlora", "vblora"]


# Adapters at GPT-2's head, which is tied and of another class than its other layers: PEFT says what may go wrong.
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to True:UserWarning")
@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("llama", kind) for kind in KINDS + KINDS_OF_LINEAR] + [("gpt2", kind) for kind in KINDS],
)
def test_the_plain_view_computes_the_same_and_leaves_no_trace(architecture: str, kind: str) -> None:
    model = adapted(kind, architecture)
    wanted, before = logits(model), {name: (p, p.detach().clone()) for name, p in model.named_parameters()}
    with plain_view(model) as plain:
        torch.testing.assert_close(logits(plain), wanted, rtol=0, atol=2e-6)
        names = {name: p.requires_grad for name, p in plain.named_parameters()}
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is p and torch.equal(p, value) for name, (p, value) in before.items())
    assert torch.equal(logits(model), wanted)
    ties_are_cut = {"lm_head.weight"} if architecture == "gpt2" and "head" in kind else set()
    assert names.keys() - ties_are_cut == {name for name, _ in tiny.model(architecture).named_parameters()}
    weights = weights_of(model)
    assert {name: weight.trained for name, weight in weights.items()} == names
    assert len(set(names.values())) == 2, "some are trained, and not all"


@pytest.mark.parametrize("kind", [*KINDS, *KINDS_OF_LINEAR])
def test_effective_weights_are_those_that_peft_merges_and_have_gradients(kind: str) -> None:
    model = adapted(kind)
    weights = weights_of(model)
    values = {name: weight.value() for name, weight in weights.items() if weight.trained}
    found = torch.autograd.grad(
        sum(value.square().sum() for value in values.values()),
        sources := [p for p in model.parameters() if p.requires_grad],
    )
    assert all(bool(gradient.any()) for gradient in found), "every trained parameter moves a weight"
    assert len(sources) == len({id(p) for name in values for p in weights[name].moved_by if p.requires_grad})
    plain = dict(merged(copy.deepcopy(model)).named_parameters())
    for name, value in values.items():
        torch.testing.assert_close(value, plain[name], rtol=0, atol=1e-6)


def test_a_plain_model_is_its_own_view() -> None:
    model = tiny.model("llama")
    assert not is_adapted(model)
    with plain_view(model) as plain:
        assert plain is model
    assert [weight.parameter for weight in weights_of(model).values()] == list(model.parameters())


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (OFTConfig(target_modules=["q_proj"], oft_block_size=8), r"'model.layers.0.self_attn.q_proj' \(oft.layer\)"),
        (PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3), "puts vectors before a text"),
        (LoraConfig(target_modules=["o_proj"], lora_bias=True), "without `lora_bias`"),
    ],
)
def test_adapters_whose_effect_is_not_known_are_refused_before_training(made: Any, sentence: str) -> None:
    base = tiny.model("llama", attention_bias=True)
    model = get_peft_model(base, made)
    with pytest.raises(ModelError, match=sentence):
        check_methods(methods := [build("mas")], stages.setting(model, methods, "causal"))


@pytest.mark.parametrize("kind", list(adapters_page.KINDS))
def test_the_page_says_what_was_tried(kind: str) -> None:
    if not adapters_page.can_be_tried(kind):
        pytest.skip("bitsandbytes is not installed (everlearn[quantized])")
    assert adapters_page.row(kind) == adapters_page.committed()[kind]
    assert set(adapters_page.committed()) == set(adapters_page.KINDS)


# -- the penalty ----------------------------------------------------------------------------------------------


def functions_of(model: PeftModel) -> dict[str, Any]:
    """W_0 + s B A of each layer with an adapter, written down by itself: float64, from A and B in float64."""
    found = {}
    for path, module in model.get_base_model().named_modules():
        if hasattr(module, "lora_A"):
            turned = module.fan_in_fan_out
            weight = module.base_layer.weight.detach().double()
            a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
            scale = model.peft_config["default"].lora_alpha / model.peft_config["default"].r

            def of(a: Tensor, b: Tensor, w: Tensor = weight, scale: float = scale, turned: bool = turned) -> Tensor:
                return w + scale * (a.T @ b.T if turned else b @ a)

            found[f"{path}.weight"] = (of, a, b)
    return found


def inputs(stage: Any, batch: dict[str, Tensor]) -> dict[str, Any]:
    """What the model is given, in float64."""
    given = stage.objective.inputs(batch).items()
    # With a cache transformers would not read documents apart.
    return {name: value.double() if value.is_floating_point() else value for name, value in given} | {
        "use_cache": False
    }


def slow_importance(spec: str, model: PeftModel, stage: Any, samples: int) -> dict[str, Tensor]:
    """Per sample, by autograd, of a plain float64 model with the effective weights."""
    plain = merged(copy.deepcopy(model)).double()
    targets = {name: of(a.detach().double(), b.detach().double()) for name, (of, a, b) in functions_of(model).items()}
    totals = {name: torch.zeros_like(value) for name, value in targets.items()}
    count = 0
    for batch in stage.batches(samples):
        for row in range(len(batch["labels"])):
            weights = {name: value.clone().requires_grad_() for name, value in targets.items()}
            part = {name: value[row : row + 1] for name, value in batch.items()}
            found = functional_call(plain, weights, kwargs=inputs(stage, part)).logits[0]
            labels = part["labels"][0]
            kept = found[labels != -100]
            if spec == "mas":
                loss = kept.square().sum(-1).mean()
            else:
                loss = nn.functional.cross_entropy(kept, labels[labels != -100])
            gradients = torch.autograd.grad(loss, list(weights.values()))
            for name, gradient in zip(weights, gradients, strict=True):
                totals[name] += gradient.abs() if spec != "ewc" else gradient.square()
            count += 1
    return {name: total / count for name, total in totals.items()}


NORMS = {
    "mas": lambda f, d: 0.5 * (f * d**2).sum(),
    "ewc": lambda f, d: 0.5 * (f * d**2).sum(),
    "aewc": lambda f, d: (f * d.abs()).sum(),
}


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("spec", ["mas", "ewc", "aewc"])
def test_the_penalty_of_an_adapter_is_that_of_the_effective_weights(spec: str, architecture: str) -> None:
    """λ N(Ω, s (B A − B₀ A₀)) with Ω of W + s B A, its value and its gradients of A and B, in float64 by autograd."""
    model, method = adapted("lora", architecture), build({"name": spec, "strength": 30.0, "samples": 6})
    stage = stages.stage(model, 1, "causal")
    wanted = slow_importance(spec, model, stage, 6)
    anchors = {name: of(a.detach().double(), b.detach().double()) for name, (of, a, b) in functions_of(model).items()}
    Protection([method], stage).begin()
    stages.end([method], stage)
    largest = max(float(value.max()) for value in wanted.values())
    assert method._importance.keys() == wanted.keys(), "nothing is kept of weights that do not move"
    for name, value in wanted.items():
        torch.testing.assert_close(method._importance[name].double(), value, rtol=2e-3, atol=1e-5 * largest)
        torch.testing.assert_close(method._anchor[name].double(), anchors[name], rtol=0, atol=1e-6)
    jolt(model, 2)
    protection = Protection([method], later := stages.stage(model, 2, "causal"))
    protection.begin()
    found = protection.forward(model, next(later.batches(2)))[1][f"{method.name}/penalty"]
    found.backward()
    total = torch.zeros((), dtype=torch.float64)
    for name, (of, a, b) in functions_of(model).items():
        slow = [a.detach().double().requires_grad_(), b.detach().double().requires_grad_()]
        term = 30.0 * NORMS[spec](method._importance[name].double(), of(*slow) - method._anchor[name].double())
        for parameter, gradient in zip((a, b), torch.autograd.grad(term, slow), strict=True):
            torch.testing.assert_close(
                parameter.grad.double(), gradient, rtol=1e-3, atol=1e-5 * float(gradient.abs().max())
            )
        total += term.detach()
    assert float(found.detach()) == pytest.approx(float(total), rel=1e-4)


def test_factors_of_the_same_function_have_no_penalty() -> None:
    """A penalty on A and B would hold back c A and B / c, which are the same function."""
    model, method = adapted(), build({"name": "mas", "strength": 100.0, "samples": 4})
    stages.begin([method], stage := stages.stage(model, 1, "causal"))
    stages.end([method], stage)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(4.0 if "lora_A" in name else 0.25 if "lora_B" in name else 1.0)
    protection = Protection([method], later := stages.stage(model, 2, "causal"))
    protection.begin()
    assert float(protection.forward(model, next(later.batches(2)))[1]["mas/penalty"].detach()) == 0


def test_what_is_remembered_of_an_adapter_holds_after_it_was_merged() -> None:
    """Merged, with a new adapter, or trained as a whole: the penalty is that of the weights."""
    first, method = adapted(), build({"name": "ewc", "strength": 1e3, "samples": 4})
    stages.begin([method], stage := stages.stage(first, 1, "causal"))
    stages.end([method], stage)
    plain = merged(first)
    plain.requires_grad_(True)
    jolt(plain, 3, 0.01)

    def penalty(model: nn.Module) -> float:
        protection = Protection([method], later := stages.stage(model, 2, "causal"))
        protection.begin()
        return float(protection.forward(model, next(later.batches(2)))[1]["ewc/penalty"].detach())

    wanted = penalty(copy.deepcopy(plain))
    assert wanted > 0
    assert penalty(get_peft_model(copy.deepcopy(plain), config("lora"))) == pytest.approx(wanted, rel=1e-5)
    whole = dict(plain.named_parameters())
    wanted = sum(
        500 * float((f.double() * (whole[name].double() - method._anchor[name].double()) ** 2).sum().detach())
        for name, f in method._importance.items()
    )
    assert penalty(plain) == pytest.approx(wanted, rel=1e-4)


def test_16_bit_weights_are_held_at_the_float32_sum() -> None:
    """In bfloat16 W + s B A would be rounded by more than a step moves it."""
    model = get_peft_model(tiny.model("llama").bfloat16(), config("lora"))
    jolt(model, 1)
    method = build({"name": "mas", "strength": 1.0, "samples": 4})
    stages.begin([method], stage := stages.stage(model, 1, "causal"))
    stages.end([method], stage)
    protection = Protection([method], later := stages.stage(model, 2, "causal"))
    protection.begin()
    assert float(protection.forward(model, next(later.batches(2)))[1]["mas/penalty"].detach()) == 0
    for name, (of, a, b) in functions_of(model).items():
        exact = of(a.detach().double(), b.detach().double())
        torch.testing.assert_close(method._anchor[name].double(), exact, rtol=0, atol=1e-6)


# -- streams --------------------------------------------------------------------------------------------------


def stream(low_rank: str, spec: Any, domains: int = 2, **options: Any) -> tuple[nn.Module, Method]:
    """A stream with a method that adds adapters, and a penalty."""
    model: nn.Module = tiny.model("gpt2")
    methods = [build({"name": low_rank, "lora_dropout": 0.0} | options), build(spec)]
    for index in range(1, domains + 1):
        stage = stages.stage(model, index, "causal", general=True)
        stages.learn(methods, stage)
        model = stage.model
    return model, methods[1]


@pytest.mark.parametrize("spec", ["mas", "ewc", "aewc", "ewc_separate", "rewc", "si", "l2_sp"])
@pytest.mark.parametrize("low_rank", LOW_RANK)
def test_every_penalty_works_with_every_adapter_that_is_merged(low_rank: str, spec: str) -> None:
    model, method = stream(low_rank, spec)
    moved = [f"transformer.h.{i}.{layer}.weight" for i in (0, 1) for layer in ("attn.c_attn",)]
    if low_rank == "corda":
        moved = [n for n, p in model.named_parameters() if ".h." in n and p.dim() == 2]
    assert sorted(method._importance) == sorted(moved), "of the layers with adapters, and of no other weight"
    assert method._measured == (["base"] if spec == "l2_sp" else ["d1", "d2"])
    if spec not in ("l2_sp", "ewc_separate"):
        for name in moved:
            torch.testing.assert_close(method._anchor[name], model.get_parameter(name), rtol=0, atol=1e-6)


def test_the_cost_of_a_penalty_beside_an_adapter_is_that_of_the_weights_it_holds() -> None:
    model, mas = stream("lora", "mas")
    held = sum(tensor.numel() for tensors in (mas._importance, mas._anchor) for tensor in tensors.values())
    trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    _, cost = costs_of([build("lora"), mas], model)
    assert cost.memory_bytes == cost.disk_bytes == 4 * held
    assert cost.memory_bytes < mas.cost(model).memory_bytes
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == trainable


@pytest.mark.parametrize("low_rank", ["lora", "inc_lora"])
def test_a_strong_penalty_keeps_the_second_domain_where_the_first_ended(low_rank: str) -> None:
    def distance(strength: float) -> float:
        model, method = tiny.model("gpt2"), build({"name": "l2", "strength": strength})
        methods, ends = [build({"name": low_rank, "lora_dropout": 0.0}), method], []
        for index in (1, 2):
            stage = stages.stage(model, index, "causal", steps=12)
            stages.learn(methods, stage, lr=3e-3)
            model = stage.model
            ends.append(stages.weights(model))
        return sum(float((ends[1][name] - value).norm()) for name, value in ends[0].items())

    assert distance(1e3) < 0.7 * distance(0.0)


def test_the_pull_of_each_weight_by_itself_is_refused_with_adapters() -> None:
    methods = [build("lora"), build({"name": "mas", "apply_to": "update"})]
    with pytest.raises(MethodError, match=r"'update' pulls single weights.*Set `apply_to: loss`\.$"):
        check_methods(methods, stages.setting(tiny.model(), methods))
    methods = [build("lora"), build({"name": "mas", "apply_to": "loss"})]
    check_methods(methods, stages.setting(tiny.model(), methods))


# -- gradients of training ------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_si_and_the_last_steps_read_the_gradient_of_the_effective_weight(architecture: str) -> None:
    """∂L/∂W of a plain model with the effective weights, by autograd, times what the step changes."""
    model, method = adapted("lora", architecture), build({"name": "si", "strength": 1.0})
    fisher = build({"name": "ewc", "gradients": "steps", "samples": 12, "strength": 1.0})
    path: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    before: dict[str, Tensor] = {}
    slope: dict[str, Tensor] = {}

    def values() -> dict[str, Tensor]:
        return {name: of(a.detach().double(), b.detach().double()) for name, (of, a, b) in functions_of(model).items()}

    def each(protection: Protection, batch: dict[str, Tensor]) -> None:
        before.update(values())
        plain = merged(copy.deepcopy(model)).double().requires_grad_(True)
        found, labels = plain(**inputs(protection.stage, batch)).logits, batch["labels"]
        loss = nn.functional.cross_entropy(found[labels != -100], labels[labels != -100])
        weights = dict(plain.named_parameters())
        gradients = torch.autograd.grad(loss, [weights[name] for name in before])
        for name, gradient in zip(before, gradients, strict=True):
            slope[name] = gradient
            if protection.stage.step >= 1:  # 12 rows are the last 3 of 4 steps with 4 rows each
                squares[name] = squares.get(name, 0) + 4 * gradient.square() / 3

    class Watch(Method):
        name, title, paper = "watch", "", ""

        def after_step(self, stage: Any) -> None:
            for name, value in values().items():
                path[name] = path.get(name, 0) - slope[name] * (value - before[name])

    stage = stages.stage(model, 1, "causal")
    stage.rows_per_step = 4
    kept: dict[str, Tensor] = {}
    original = method.end_training

    def keeping(stage: Any) -> None:
        kept.update({name: value.clone() for name, value in method._path.items()})
        original(stage)

    method.end_training = keeping  # type: ignore[method-assign]
    stages.learn([method, fisher, Watch()], stage, each=each)
    assert kept.keys() == path.keys() == fisher._importance.keys()
    for name, value in path.items():
        largest = float(value.abs().max())
        torch.testing.assert_close(kept[name].double(), value, rtol=2e-2, atol=2e-3 * largest)
        torch.testing.assert_close(
            fisher._importance[name].double(), squares[name], rtol=2e-2, atol=1e-4 * float(squares[name].max())
        )
    layers = [module for module in model.modules() if hasattr(module, "lora_A")]
    assert not any(layer._forward_hooks for layer in layers), "nothing watches after the domain"


# -- in a Trainer of transformers -----------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["mas", "ewc", "aewc", "l2_sp", "si"])
def test_a_users_own_adapter_is_protected_in_a_trainer(spec: str, tmp_path: Path) -> None:
    """Two domains of one adapter: with a strong penalty the second one moves the effective weights less."""

    def moved(strength: float) -> tuple[float, list[dict[str, float]]]:
        model, folder, ends = get_peft_model(tiny.model("llama"), config("lora")), tmp_path / str(strength), []
        for index in (1, 2):
            trainer = Trainer(
                model=model,
                args=TrainingArguments(str(folder / "out"), **OPTIONS),
                train_dataset=rows(seed=index),
                data_collator=collator("llama"),
            )
            options = {} if spec in ("l2_sp", "si") else {"samples": 4}
            protected = protect(
                trainer,
                [{"name": spec, "strength": strength, **options}],
                memory=folder / "memory",
                domain=f"d{index}",
            )
            protected.train()
            ends.append({name: weight.value().detach().clone() for name, weight in weights_of(model).items()})
        return sum(float((ends[1][n] - value).norm()) for n, value in ends[0].items()), trainer.state.log_history

    free, _ = moved(0.0)
    held, logged = moved({"si": 1e6, "l2_sp": 0.1, "ewc": 1e5}.get(spec, 1e3))
    assert held < 0.99 * free
    method = build(spec).name
    assert any(line.get(f"{method}/penalty", 0) > 0 for line in logged)


def test_unknown_adapters_in_a_trainer_are_one_sentence(tmp_path: Path) -> None:
    model = get_peft_model(tiny.model("llama"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(str(tmp_path / "out"), **OPTIONS),
        train_dataset=rows(),
        data_collator=collator("llama"),
    )
    with pytest.raises(EverlearnError, match="puts vectors before a text, and changes no weight"):
        protect(trainer, ["mas"], memory=tmp_path / "memory")
