"""Masks of rows against slow references: MoFO, and MIGU on low-rank matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Adafactor

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.importance.magnitude import OutputMagnitude
from everlearn.methods import build
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.engine.attachment import attached, low_rank_beside
from everlearn.methods.engine.protection import Protection
from everlearn.methods.masks.migu import MIGU
from everlearn.methods.masks.mofo import MoFO, largest_entries

BETAS, RATE, DECAY, EPSILON = (0.9, 0.99), 1e-2, 0.1, 1e-8
Ranked = Callable[[list[float], list[float], list[float]], list[float]]
"""What entries are ranked by, given m_{t−1}, m_t and g_t."""


def trained(method: MoFO, steps: int = 3, clip: float = 0.5) -> tuple[Any, list[dict[str, Tensor]], dict[str, Tensor]]:
    """The stage, the clipped gradients of each step, and the weights that it began with."""
    stage = stages.stage(tiny.model("gpt2"), 1, "causal")
    begin, gradients, protection = stages.weights(stage.model), [], Protection([method], stage)
    protection.begin()
    made = torch.optim.AdamW(stage.model.parameters(), lr=RATE, betas=BETAS, weight_decay=DECAY, eps=EPSILON)
    optimizer = protection.optimizer(made)
    for number, batch in zip(range(steps), stage.batches(4 * steps), strict=True):
        loss, _ = protection.loss(stage.model.train(), batch)
        (loss * 3**number).backward()
        protection.after_backward()
        torch.nn.utils.clip_grad_norm_(stage.model.parameters(), clip)
        gradients.append({name: p.grad.clone() for name, p in stage.model.named_parameters()})
        with protection.update():
            optimizer.step()
        optimizer.zero_grad()
    return stage, gradients, begin


def reference(start: Tensor, gradients: list[Tensor], fraction: float, ranked: Ranked) -> Tensor:
    """Adam with decoupled weight decay on the chosen entries of one parameter, in Python's floats."""
    theta = start.double().flatten().tolist()
    m, v = [0.0] * len(theta), [0.0] * len(theta)
    for t, gradient in enumerate(gradients, 1):
        g = gradient.double().flatten().tolist()
        before = list(m)
        m = [BETAS[0] * a + (1 - BETAS[0]) * b for a, b in zip(m, g, strict=True)]
        v = [BETAS[1] * a + (1 - BETAS[1]) * b * b for a, b in zip(v, g, strict=True)]
        sizes = [abs(x) for x in ranked(before, m, g)]
        chosen = sorted(range(len(m)), key=lambda i: -sizes[i])[: max(1, math.floor(fraction * len(m)))]
        for i in chosen:
            step = (m[i] / (1 - BETAS[0] ** t)) / (math.sqrt(v[i] / (1 - BETAS[1] ** t)) + EPSILON)
            theta[i] += -RATE * DECAY * theta[i] - RATE * step
    return torch.tensor(theta, dtype=torch.float64).view(start.shape)


NAMES = ["transformer.h.0.attn.c_attn.weight", "transformer.h.1.mlp.c_fc.bias", "transformer.ln_f.weight"]


def test_three_steps_are_the_papers_algorithm() -> None:
    """With clipping at each step, and weight decay."""
    stage, gradients, begin = trained(MoFO(fraction=0.2))
    wrong: dict[str, Ranked] = {
        "the momentum before the step": lambda before, now, g: before,
        "the gradient": lambda before, now, g: g,
    }
    for name in NAMES:
        own = [gradient[name] for gradient in gradients]
        weight = stage.model.get_parameter(name).detach().double()
        expected = reference(begin[name], own, 0.2, lambda before, now, g: now)
        torch.testing.assert_close(weight, expected, rtol=1e-5, atol=1e-7)
        for what, ranked in wrong.items():
            other = reference(begin[name], own, 0.2, ranked)
            assert (other - expected).abs().max() > 1e-4, f"a filter by {what} would not be seen"


def test_moments_of_all_entries_go_on_and_held_entries_stay_bit_for_bit() -> None:
    stage, gradients, begin = trained(MoFO(fraction=0.1), steps=1)
    for name in NAMES:
        weight = stage.model.get_parameter(name)
        moved = weight != begin[name]
        assert int(moved.sum()) == max(1, math.floor(0.1 * weight.numel())), "weight decay holds still too"
        first = gradients[0][name].abs()
        assert first[moved].min() >= first[~moved].max()
        state = stage.optimizer.state[weight]
        torch.testing.assert_close(state["exp_avg"], (1 - BETAS[0]) * gradients[0][name])
        assert (state["exp_avg_sq"] > 0).float().mean() > 0.9


def test_tokens_that_were_never_read_stay() -> None:
    """Their momentum is 0 and so is the threshold of a matrix most of which is; Adam would decay them."""
    stage, gradients, begin = trained(MoFO(fraction=0.99), steps=1)
    name = "transformer.wpe.weight"
    unread = (gradients[0][name] == 0).all(1)
    assert unread.any()
    assert torch.equal(stage.model.get_parameter(name)[unread], begin[name][unread])


@pytest.mark.parametrize(
    ("values", "fraction", "kept"),
    [
        ([3.0, -5.0, 1.0, 4.0], 0.5, [0, 1, 0, 1]),
        ([2.0, -2.0, 2.0, 1.0], 0.25, [1, 1, 1, 0]),
        ([0.0, 0.0, 0.0, 7.0], 0.75, [0, 0, 0, 1]),
        ([1.0, 2.0, 3.0], 0.1, [0, 0, 1]),
        (list(range(1, 101)), 0.29, [0] * 71 + [1] * 29),
    ],
)
def test_which_entries_move(values: list[float], fraction: float, kept: list[int]) -> None:
    """Equal ones together, none without momentum, at least one, and no row too few by binary rounding."""
    assert largest_entries(torch.tensor(values), fraction).tolist() == kept
    assert largest_entries(torch.tensor(values).view(1, -1), fraction).tolist() == [kept]


def test_released_code_filters_matrices_alone() -> None:
    stage, _, begin = trained(MoFO(fraction=0.2, matrices_only=True), steps=1)
    for name, parameter in stage.model.named_parameters():
        share = (parameter != begin[name]).float().mean()
        assert share <= 0.2 if parameter.dim() > 1 else share > 0.3


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), None),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "momentum_buffer"),
        (lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9), "momentum_buffer"),
        (lambda p: torch.optim.Adam(p, lr=0.1), "exp_avg"),
    ],
)
def test_any_optimizer_with_a_first_moment(make: Any, key: str | None) -> None:
    stage = stages.stage(tiny.model(), 1)
    begin = stages.weights(stage.model)
    stages.learn([MoFO(fraction=0.2)], stage, optimizer=lambda p, lr: make(p))
    weight = stage.model.get_parameter("roberta.encoder.layer.0.output.dense.weight")
    share = (weight != begin["roberta.encoder.layer.0.output.dense.weight"]).float().mean()
    assert 0.2 <= share < 0.7, "a fifth in each of four steps"
    if key is not None:
        assert key in stage.optimizer.state[weight]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda p, lr: Adafactor(p, lr=lr, relative_step=False, scale_parameter=False), "Adafactor"),
        (lambda p, lr: torch.optim.RMSprop(p, lr=lr), "RMSprop"),  # divides by what its gradient is not filtered by
    ],
)
def test_an_optimizer_without_one_is_refused(make: Any, name: str) -> None:
    with pytest.raises(MethodError, match=rf"'mofo' filters.*{name} stores none.*`train.optim` to adamw_torch"):
        stages.learn([MoFO()], stages.stage(tiny.model(), 1), optimizer=make)


def test_with_other_masks_and_with_adapters() -> None:
    """What moves is what both let move; of an adapter, entries of A and of B."""
    stage = stages.stage(tiny.model(), 1)
    begin = stages.weights(stage.model)
    both = [MoFO(fraction=0.5), MIGU(threshold=0.5, skip_first_domain=False)]
    stages.learn(both, stage, lr=1e-2)
    moved = {name: (p != begin[name]).float() for name, p in stage.model.named_parameters()}
    weight = moved["roberta.encoder.layer.0.attention.self.query.weight"]
    assert (weight.sum(1) == 0).any()
    stage = stages.stage(tiny.model(), 1)
    protection = Protection([IncLoRA(r=4), MoFO(fraction=0.25)], stage)
    protection.begin()
    names = [name for name, p in stage.model.named_parameters() if p.requires_grad]
    start = stages.weights(stage.model)
    optimizer = protection.optimizer(torch.optim.AdamW([p for p in stage.model.parameters() if p.requires_grad]))
    protection.loss(stage.model, next(stage.batches(4)))[0].backward()
    protection.after_backward()
    with protection.update():
        optimizer.step()
    for name in names:
        share = float((stage.model.get_parameter(name) != start[name]).float().mean())
        assert share == (0.25 if "lora_B" in name else 0), "A has no gradient while B is 0"


def test_the_filter_of_an_unknown_fraction_is_refused() -> None:
    for wrong in (0, 1.5):
        with pytest.raises(MethodError, match=r"'mofo', option 'fraction'"):
            build({"name": "mofo", "fraction": wrong})


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
        with pytest.raises(MethodError, match=f"'{name}' freezes the model, so method 'migu' has nothing to protect"):
            methods[1].check(stages.setting(tiny.model("t5"), methods, "text-to-text"))
    methods = [build("sapt_lora"), build("migu_kept_rows")]
    with pytest.raises(MethodError, match="kept-rows saves nothing with adapters"):
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
