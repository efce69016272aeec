"""The systems of continual fine-tuning with MIGU: its mask is the paper's, and reaches what the optimizer changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.importance.magnitude import OutputMagnitude
from everlearn.methods import build
from everlearn.methods.engine.attachment import attached, low_rank_beside
from everlearn.methods.engine.protection import Protection

THRESHOLD = 0.6
SYSTEMS: dict[str, list[Any]] = {
    "LoRA": ["lora"],
    "IncLoRA": ["inc_lora"],
    "O-LoRA": ["o_lora"],
    "MoE-LoRA": [{"name": "moe_lora", "r": 3}],
    "SAPT-LoRA": [{"name": "sapt_lora", "r": 3, "samples": 4, "pseudo_batch": 2}],
    "MoCL": [{"name": "mocl", "r": 3, "module": "lora"}],
    "LoRAReplay": ["lora", {"name": "replay_sample", "sample": 0.3}],
    "FT": [],
    "FTReplay": [{"name": "replay_sample", "sample": 0.3}],
}


def one_step(
    system: str, architecture: str, apply_to: str, **training: Any
) -> tuple[dict[str, Tensor], dict[str, Tensor], Any]:
    """Of the second domain's only step: the parameters before it and after it, and MIGU's mask."""
    migu = build({"name": "migu", "threshold": THRESHOLD, "apply_to": apply_to})
    methods = [build(each) for each in SYSTEMS[system]] + [migu]
    model, objective = tiny.model(architecture), tiny.objective_of(architecture)
    before: dict[str, Tensor] = {}
    after: dict[str, Tensor] = {}
    masks: list[Any] = []
    for index in (1, 2):
        stage = stages.stage(model, index, objective, steps=index % 2 + 1)

        def look(protection: Any, _: Any, stage: Any = stage) -> None:
            before.update(stages.weights(stage.model))
            masks.append(next((mask for method, mask in protection._masks if method is migu), None))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(migu, "after_step", lambda stage: after.update(stages.weights(stage.model)))
            before.clear()
            after.clear()
            stages.learn(methods, stage, each=look, **training)
        model = stage.model
    return before, after, masks[-1]


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "t5"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_masked_rows_do_not_move_and_others_do(system: str, architecture: str) -> None:
    before, after, mask = one_step(system, architecture, "update", weight_decay=0.1)
    low_rank = any("lora_" in name for name in before)
    factors = {name: factor.expand_as(before[name]).bool() for name, factor in mask.factors.items()}
    matrices = {name for name in before if "lora_A" in name or "lora_B" in name}
    assert factors.keys() == matrices if low_rank else factors
    for name, kept in factors.items():
        moved = after[name] != before[name]
        assert not moved[~kept].any(), f"masked rows of {name} are where they were, weight decay included"
        assert moved[kept].any()
        fused_by_columns = architecture == "gpt2" and not low_rank
        rows = kept.T if fused_by_columns else kept
        assert int((~rows[:, 0]).sum()) == math.floor(THRESHOLD * len(rows) + 1e-9)
    for name in before.keys() - factors.keys():
        if name.startswith("everlearn_"):
            continue  # keys and attention, which are trained, and earlier blocks, which are not
        frozen = low_rank and "lora_" not in name
        assert torch.equal(after[name], before[name]) == frozen or "relative_attention_bias" in name


@pytest.mark.parametrize("ranked_by", ["output", "own"])
def test_rows_of_b_are_ranked_by_the_layers_outputs_or_by_their_own(ranked_by: str) -> None:
    """x_O = x W + s x_B, or x_B: in float64 from what entered the layer."""
    model = tiny.model("gpt2")
    migu = build({"name": "migu", "threshold": THRESHOLD, "lora_b": ranked_by, "skip_first_domain": False})
    stage = stages.stage(model, 1, "causal", steps=2)
    protection = Protection([build("lora"), migu], stage)
    protection.begin()
    with torch.no_grad():
        for name, parameter in stage.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    path = next(name for name, module in stage.model.named_modules() if hasattr(module, "lora_B"))
    layer, entered = stage.model.get_submodule(path), []
    layer.register_forward_pre_hook(lambda _, args: entered.append(args[0].detach()))
    stage.model.train()
    for module in stage.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    protection.loss(stage.model, next(stage.batches(4)))[0].backward()
    protection.after_backward()
    (mask,) = (mask for _, mask in protection._masks)
    name = next(name for name in mask.factors if name.startswith(f"{path}.lora_B"))
    (adapter,) = layer.lora_B
    down, up = layer.lora_A[adapter].weight.double(), layer.lora_B[adapter].weight.double()
    x = entered[0].double().flatten(0, 1)
    own = x @ down.T @ up.T
    whole = x @ layer.base_layer.weight.double() + layer.base_layer.bias.double() + layer.scaling[adapter] * own
    scores = (whole if ranked_by == "output" else own).abs().sum(0)
    held = scores.argsort()[: math.floor(THRESHOLD * len(scores))]
    expected = torch.ones(len(scores)).index_fill(0, held, 0.0)
    assert torch.equal(mask.factors[name].flatten(), expected)


@pytest.mark.parametrize("name", ["sapt_lora", "mocl"])
def test_blocks_of_a_mixture_are_ranked_as_loras_matrices(name: str) -> None:
    """A_t by A_t x, B_t by W x + s Σ_i w_i B_i A_i x, in float64 from what entered the layer."""
    module = {"module": "lora"} if name == "mocl" else {}
    mixture = build({"name": name, "r": 5, "lora_alpha": 15, "lora_dropout": 0.0, **module})
    model, migu = tiny.model("llama"), build({"name": "migu", "threshold": THRESHOLD})
    stages.learn([mixture], stages.stage(model, 1, "causal"))
    stage = stages.stage(model, 2, "causal")
    protection = Protection([mixture, migu], stage)
    protection.begin()
    path, at = next(iter(low_rank_beside(model).items()))
    layer, block, entered = model.get_submodule(path), model.get_submodule(at), []
    with torch.no_grad():
        block.lora_B["own"].weight.normal_()
    layer.register_forward_pre_hook(lambda _, args: entered.append(args[0].detach()))
    protection.loss(model.train(), next(stage.batches(4)))[0].backward()
    protection.after_backward()
    ((_, mask),) = protection._masks
    x, weights = entered[-1].double(), attached(model, name).weights.detach().double()
    matrices = [(block.before_a[0], block.before_b[0]), (block.lora_A["own"].weight, block.lora_B["own"].weight)]
    whole = x @ layer.weight.double().T
    for i, (a, b) in enumerate(matrices):
        whole = whole + 3 * weights[..., i : i + 1] * (x @ a.double().T @ b.double().T)
    for scores, which in ((x @ matrices[1][0].double().T, "A"), (whole, "B")):
        sums, kept = scores.abs().sum((0, 1)), mask.factors[f"{at}.lora_{which}.own.weight"].flatten().bool()
        assert int((~kept).sum()) == math.floor(THRESHOLD * len(sums))
        assert sums[kept].min() >= sums[~kept].max() * (1 - 1e-5)


def test_where_no_matrix_is_trained_it_is_refused() -> None:
    for name, options in (("progressive_prompts", {}), ("mocl", {"module": "prefix", "n_tokens": 3})):
        methods = [build({"name": name, **options}), build("migu")]
        with pytest.raises(MethodError, match=f"'{name}' freezes the model, so method 'migu' has nothing to hold back"):
            methods[1].check(stages.setting(tiny.model("t5"), methods, "text-to-text"))
    methods = [build("sapt_lora"), build("migu_kept_rows")]
    with pytest.raises(MethodError, match="kept-rows is for models without adapters"):
        methods[1].check(stages.setting(tiny.model("t5"), methods, "text-to-text"))


@pytest.mark.parametrize("own", [False, True])
def test_doras_norms_are_no_outputs(own: bool) -> None:
    """PEFT has A and B read the identity in every pass, to know the norms of W + s B A; text of its shape counts."""
    stage = stages.stage(tiny.model("t5"), 1, "text-to-text")
    stages.begin([build({"name": "lora", "use_dora": True, "lora_dropout": 0.0})], stage)
    path = next(name for name, module in stage.model.named_modules() if hasattr(module, "lora_B"))
    layer, entered = stage.model.get_submodule(path), []
    with torch.no_grad():
        layer.lora_B["default"].weight.normal_()
    magnitude = OutputMagnitude(stage.model, [path], own_of_b=own)
    layer.register_forward_pre_hook(lambda _, args: entered.append(args[0].detach().double()))
    stage.objective.forward(stage.model.train(), next(stage.batches(4)))
    layer(torch.randn(layer.in_features, layer.in_features))
    down, up = layer.lora_A["default"].weight.double(), layer.lora_B["default"].weight.double()
    x_a = torch.cat([text.flatten(0, -2) for text in entered])[None] @ down.T
    sums = magnitude.pop()
    assert len(sums) == 2
    torch.testing.assert_close(sums[f"{path}.lora_A.default"].double(), x_a.abs().sum((0, 1)), rtol=1e-5, atol=1e-5)
    if own:
        x_b = (x_a @ up.T).abs().sum((0, 1))
        torch.testing.assert_close(sums[f"{path}.lora_B.default"].double(), x_b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("system", [name for name in SYSTEMS if name != "FT"])
def test_masked_gradients_reach_the_optimizer(system: str) -> None:
    """In plain gradient descent rows whose gradient is masked stay where they are."""
    before, after, mask = one_step(system, "llama", "gradient", optimizer=torch.optim.SGD, lr=0.1)
    assert mask.apply_to == "gradient"
    moves = 0
    for name, factor in mask.factors.items():
        moved, kept = after[name] != before[name], factor.expand_as(before[name]).bool()
        assert not moved[~kept].any()
        moves += int(moved[kept].any())  # where B is 0, nothing of A moves
    assert moves >= len(mask.factors) // 2


def test_an_experts_rows_are_ranked_by_the_tokens_that_chose_it() -> None:
    """|x_A| of a mixture is what goes on to B: activations times gates."""
    methods = [build({"name": "moe_lora", "r": 2, "experts": 3, "lora_dropout": 0}), build("migu")]
    stage = stages.stage(tiny.model(), 2)
    stages.begin(methods, stage)
    protection = Protection(methods, stage)
    protection.start()
    seen: dict[str, Tensor] = {}
    layers = {path: m for path, m in stage.model.named_modules() if hasattr(m, "lora_router")}
    for path, layer in layers.items():
        layer.register_forward_hook(lambda m, i, _, path=path: seen.__setitem__(path, i[0].detach()))
    protection.loss(stage.model.train(), next(stage.batches(4)))[0].backward()
    factors = methods[1].mask(stage).factors
    for path, layer in layers.items():
        _, gates, _ = layer.lora_router["default"](seen[path])
        activations = layer.lora_A["default"].weight @ seen[path].flatten(0, 1).T
        sums = (activations.abs() * gates.flatten(0, 1).T.repeat_interleave(2, 0)).sum(1)
        kept = factors[f"{path}.lora_A.default.weight"].flatten().bool()
        assert int(kept.sum()) == 6 - math.floor(0.7 * 6)
        assert sums[kept].min() >= sums[~kept].max() * (1 - 1e-5)
