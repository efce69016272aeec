"""LoRA and methods on it, against slow references: LoRA, CLoRA, O-LoRA, MoE-LoRA."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel, get_peft_model_state_dict
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.adapters.clora import CLoRA, orthonormal
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.adapters.lora import LoRA
from everlearn.methods.adapters.moe_lora import MoELoRA, routers
from everlearn.methods.adapters.o_lora import OLoRA, norms
from everlearn.methods.base import Method, MethodConfig, Reading, Stage
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.methods.stage import Checkpoints
from everlearn.model.anatomy import anatomy

ARCHITECTURES = ["roberta", "gpt2", "llama", "t5"]
OPTIONS: list[dict[str, Any]] = [{}, {"use_dora": True}, {"use_rslora": True}, {"target_modules": "all-linear"}]


def stage_of(model: PreTrainedModel, base: PreTrainedModel, index: int, architecture: str, **options: Any) -> Stage:
    """A stage whose earlier models begin with the base model that the stream had."""
    stage = stages.stage(model, index, tiny.objective_of(architecture), **options)
    stage.checkpoints = Checkpoints(index, lambda number: copy.deepcopy(base if number == 0 else model))
    return stage


def stream(architecture: str, domains: int, **options: Any) -> tuple[PreTrainedModel, PreTrainedModel, LoRA]:
    """The base model, the model after so many domains, and the method."""
    base = tiny.model(architecture, dropout=0.1)
    model, method = copy.deepcopy(base), LoRA(**options)
    for index in range(1, domains + 1):
        stage = stage_of(model, base, index, architecture, steps=2)
        stages.learn([method], stage)
        model = stage.model
    return base, model.eval(), method


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_stage_is_the_base_model_and_one_adapter(architecture: str) -> None:
    base, model, method = stream(architecture, 3, r=4, lora_alpha=12)
    adapter, start, targets = method.memory().tensors, stages.weights(base), method._targets(base)
    for name, weight in model.named_parameters():
        if name.removesuffix(".weight") not in targets:
            assert torch.equal(weight, start[name]), f"{name} is frozen"
            continue
        a, b = (adapter[f"base_model.model.{name.removesuffix('.weight')}.lora_{x}.weight"].double() for x in "AB")
        change = 12 / 4 * b @ a
        expected = start[name].double() + (change.T if architecture == "gpt2" else change)
        torch.testing.assert_close(weight.detach().double(), expected, rtol=0, atol=1e-7)
        assert b.abs().max() > 0
    assert len(adapter) == 2 * len(targets)
    assert method.memory().facts["domains"] == ["d1", "d2", "d3"]
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("architecture", ["roberta", "gpt2"])
def test_a_domain_begins_with_the_base_models_weights_and_the_adapter_that_was_left(
    architecture: str, options: dict[str, Any]
) -> None:
    base, model, method = stream(architecture, 1, **options)
    start, left, tokens = stages.weights(base), method.memory().tensors, {"input_ids": torch.arange(5, 29)[None]}
    before = model(**tokens).logits
    stage = stage_of(model, base, 2, architecture)
    stages.begin([method], stage)
    frozen = {name: value for name, value in stage.model.named_parameters() if not value.requires_grad}
    assert len(frozen) == len(start)
    for name, value in frozen.items():
        assert torch.equal(value, start[name.removeprefix("base_model.model.").replace(".base_layer", "")])
    now = get_peft_model_state_dict(stage.model)
    assert now.keys() == left.keys()
    assert all(torch.equal(value, left[name]) for name, value in now.items())
    torch.testing.assert_close(stage.model.eval()(**tokens).logits, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "t5"])
def test_base_and_adapter_are_the_stage(tmp_path: Path, architecture: str, options: dict[str, Any]) -> None:
    base, model, method = stream(architecture, 2, r=4, **options)
    adapter = method.peft_adapter(model, lambda: base)
    assert adapter is not None
    assert adapter.config.r == 4, "its rank does not grow"
    adapter.save(tmp_path, None)
    read = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "adapter").merge_and_unload()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(read.get_parameter(name), weight, rtol=1e-5, atol=1e-6)


def test_what_was_learnt_does_not_depend_on_the_rounding_of_a_stage() -> None:
    """However the merged weights are rounded: only W_0, A and B are gone on from."""
    results = []
    for disturb in (False, True):
        base, model, method = stream("roberta", 1, lora_dropout=0.0)
        if disturb:
            with torch.no_grad():
                for path in method._targets(model):
                    model.get_parameter(f"{path}.weight").add_(1.0)
        stage = stage_of(model, base, 2, "roberta")
        stages.learn([method], stage)
        results.append((stages.weights(stage.model), method.memory().tensors))
    assert all(torch.equal(one[name], other[name]) for one, other in zip(*results, strict=True) for name in one)


def test_refusals() -> None:
    class Starts(Method):
        """Begins with other weights."""

        name, title, paper = "starts", "Starts", ""
        Config = MethodConfig

        def starting_weights(self, stage: Any) -> dict[str, torch.Tensor]:
            return {}

    model = tiny.model()
    methods = [LoRA(), Starts()]
    with pytest.raises(MethodError, match=r"'starts' changes weights of the base model.*Remove one"):
        check_methods(methods, stages.setting(model, methods))
    method, other = LoRA(r=4), LoRA(r=2)
    stages.learn([method], stage_of(model, model, 1, "roberta", steps=1))
    other.load_memory(method.memory())
    with pytest.raises(MethodError, match=r"'lora' remembers .*lora_A.*\(4, 32\).*\(2, 32\).*`r`"):
        stages.begin([other], stage_of(tiny.model(), model, 2, "roberta"))


def in_domain(index: int = 1, architecture: str = "roberta", seed: int = 0, **options: Any) -> tuple[CLoRA, Any, Any]:
    """The method at the first step of a domain, every B away from 0."""
    method = CLoRA(r=2, lora_dropout=0.0, **options)
    stage = stages.stage(tiny.model(architecture), index, tiny.objective_of(architecture), seed=seed)
    protection = Protection([method], stage)
    protection.begin()
    with torch.no_grad():
        for parameter in stage.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return method, stage, protection


@pytest.mark.parametrize(
    ("architecture", "targets", "k"), [("roberta", "all-linear", 5), ("gpt2", "attention", None), ("t5", ["q"], 31)]
)
def test_the_penalty_is_the_sum_over_directions(architecture: str, targets: Any, k: int | None) -> None:
    """Value and gradient; the released code has half of it."""
    method, stage, protection = in_domain(architecture=architecture, target_modules=targets, k=k, strength=0.7)
    batch = next(stage.batches(4))
    loss, parts = protection.loss(stage.model.eval(), batch)
    with_penalty = dict(zip(*gradients(stage, loss), strict=True))
    outputs = stage.objective.forward(stage.model, batch)
    without = dict(zip(*gradients(stage, outputs.loss), strict=True))
    names = {id(parameter): name for name, parameter in stage.model.named_parameters()}
    total = 0.0
    assert len(method._pairs) == 2 * len(method._targets(tiny.model(architecture)))
    for parameter, _, directions in method._pairs:
        name = names[id(parameter)]
        p = directions.double()
        assert directions.shape[1] == (k or len(directions) // 2)
        rows = parameter.detach().double() if "lora_A" in name else parameter.detach().double().T
        slope = torch.zeros_like(rows)
        for i, row in enumerate(rows):
            for direction in p.T:
                total += 0.7 * float(row @ direction) ** 2
                slope[i] += 0.7 * 2 * float(row @ direction) * direction
        slope = slope if "lora_A" in name else slope.T
        own = (with_penalty[name] - without[name]).double()
        torch.testing.assert_close(own, slope, rtol=1e-3, atol=1e-4)
    assert float(parts["clora/subspace"]) == pytest.approx(total, rel=1e-4)


def gradients(stage: Any, loss: Tensor) -> tuple[list[str], tuple[Tensor, ...]]:
    """Of every trained parameter."""
    trained = {name: p for name, p in stage.model.named_parameters() if p.requires_grad}
    return list(trained), torch.autograd.grad(loss, list(trained.values()))


def test_directions_are_orthonormal_and_the_same_in_every_domain() -> None:
    """So the sum of all updates leaves them alone; layers, sides and seeds have others."""
    found = []
    for index, seed in ((1, 0), (2, 0), (1, 5)):
        method, _, protection = in_domain(index, seed=seed)
        protection.start()
        found.append([p for _, _, p in method._pairs])
    for one, later, other in zip(*found, strict=True):
        torch.testing.assert_close(one.T @ one, torch.eye(one.shape[1]), rtol=0, atol=1e-5)
        assert torch.equal(one, later)
        assert not torch.allclose(one, other)
    assert not torch.allclose(found[0][0], found[0][1])
    sums = torch.stack([orthonormal(4, 2, seed) for seed in range(400)]).mean(0)
    assert sums.abs().max() < 0.1, "drawn evenly: no sign is preferred"


def test_what_is_learnt_leaves_the_directions_alone() -> None:
    """Of an update of IncLoRA half a layer's directions see half; of CLoRA's next to nothing."""
    shares = {}
    for method in (IncLoRA(r=2, lora_dropout=0.0), CLoRA(r=2, lora_dropout=0.0, strength=30.0)):
        seen: list[tuple[Tensor, Tensor]] = []
        reference, _, protection = in_domain()
        protection.start()
        pairs = [p for _, _, p in reference._pairs]

        def look(protection: Protection, _: Any, seen: list = seen, pairs: list = pairs) -> None:
            adapters = {n: q.detach().clone() for n, q in protection.stage.model.named_parameters() if q.requires_grad}
            ordered = [n for n in adapters if "lora_A" in n] + [n for n in adapters if "lora_B" in n]
            both = [(adapters[n] if "lora_A" in n else adapters[n].T, p) for n, p in zip(ordered, pairs, strict=True)]
            seen.append(
                (sum((m @ p).square().sum() for m, p in both), sum(m.square().sum() for m, _ in both))  # type: ignore
            )

        stages.learn([method], stages.stage(tiny.model(), 1, steps=30), each=look)
        shares[method.name] = float(seen[-1][0] / seen[-1][1])
    assert shares["inc_lora"] > 0.3
    assert shares["clora"] < 0.1 * shares["inc_lora"]


def test_without_strength_it_is_inc_lora() -> None:
    results = []
    for method in (IncLoRA(), CLoRA(strength=0)):
        method.name = "inc_lora"  # what seeds the start of A
        stage = stages.stage(tiny.model(), 1)
        parts = stages.learn([method], stage)
        assert not any("subspace" in name for each in parts for name in each)
        results.append(stages.weights(stage.model))
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


def test_directions_that_leave_nothing_are_refused() -> None:
    method = CLoRA(k=32)
    with pytest.raises(MethodError, match=r"'clora', option 'k': 32 fixed directions.*Set it below 32"):
        check_methods([method], stages.setting(tiny.model(), [method]))


def in_o_lora_domain(index: int, architecture: str = "roberta", **options: Any) -> tuple[OLoRA, Any, dict[str, Tensor]]:
    """The method while it learns a domain, the stage, and the losses of its first step; every B is away from 0."""
    method, model = OLoRA(r=2, lora_dropout=0.0, **options), tiny.model(architecture)
    for earlier in range(1, index):
        stage = stages.stage(model, earlier, tiny.objective_of(architecture), steps=2)
        stages.learn([method], stage)
        model = stage.model
    stage = stages.stage(model, index, tiny.objective_of(architecture))
    protection = Protection([method], stage)
    protection.begin()
    with torch.no_grad():
        for parameter in stage.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    loss, parts = protection.loss(stage.model.train(), next(stage.batches(4)))
    loss.backward()
    return method, stage, parts


def matrices(stage: Any, kind: str) -> dict[str, Tensor]:
    """A or B of this domain in float64, by PEFT's name of it."""
    found = {name: p for name, p in stage.model.named_parameters() if f"lora_{kind}.default" in name}
    return {name.replace(".default", ""): p.detach().double().requires_grad_() for name, p in found.items()}


def pairwise(method: OLoRA, new: dict[str, Tensor], power: int) -> Tensor:
    """Σ over layers, earlier domains and pairs of rows, one at a time."""
    total = torch.zeros((), dtype=torch.float64)
    for name, a in new.items():
        for domain in method.memory().facts["domains"]:
            earlier = method.memory().tensors[f"{domain}/{name}"].double()
            for i, j in itertools.product(range(len(earlier)), range(len(a))):
                total = total + (earlier[i] @ a[j]).abs() ** power
    return total


@pytest.mark.parametrize("form", ["absolute", "squares"])
@pytest.mark.parametrize(("architecture", "targets"), [("roberta", "all-linear"), ("gpt2", "attention"), ("t5", ["q"])])
def test_one_product_of_all_layers_is_the_sum_over_pairs(architecture: str, targets: Any, form: Any) -> None:
    """Layers of several widths, three earlier domains; value and gradient."""
    method, stage, parts = in_o_lora_domain(4, architecture, target_modules=targets, orthogonality=form, lambda_1=0.7)
    new = matrices(stage, "A")
    expected = 0.7 * pairwise(method, new, 1 if form == "absolute" else 2)
    assert len({tuple(a.shape) for a in new.values()}) == (2 if targets == "all-linear" else 1)
    torch.testing.assert_close(parts["o_lora/orthogonality"].double(), expected.detach(), rtol=1e-5, atol=1e-6)
    # The gradient of the penalty is what the loss without it lacks.
    expected.backward()
    plain, own = in_domain_without(stage, method), {n: p.grad for n, p in stage.model.named_parameters()}
    for name, a in new.items():
        key = name.replace("lora_A", "lora_A.default")
        torch.testing.assert_close(own[key].double() - plain[key].double(), a.grad, rtol=1e-3, atol=1e-4)


def in_domain_without(stage: Any, method: OLoRA) -> dict[str, Tensor]:
    """Gradients of the same step without any penalty."""
    kept = {name: p.grad for name, p in stage.model.named_parameters()}
    stage.model.zero_grad()
    outputs = stage.objective.forward(stage.model.train(), next(stage.batches(4)))
    outputs.loss.backward()
    plain = {name: p.grad for name, p in stage.model.named_parameters()}
    for name, parameter in stage.model.named_parameters():
        parameter.grad = kept[name]
    return plain


def test_norms_are_of_both_matrices_and_not_squared() -> None:
    _, stage, parts = in_o_lora_domain(1, lambda_2=0.3)
    expected = sum(m.square().sum().sqrt() for kind in "AB" for m in matrices(stage, kind).values())
    torch.testing.assert_close(parts["o_lora/norms"].double(), 0.3 * expected.detach(), rtol=1e-5, atol=1e-6)
    assert "o_lora/orthogonality" not in parts, "the first domain has no earlier one"
    zero = torch.nn.Parameter(torch.zeros(3, 2))
    norms([zero]).sum().backward()
    assert torch.equal(zero.grad, torch.zeros(3, 2)), "B begins at 0"


def test_without_penalties_it_is_inc_lora_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OLoRA, "name", "inc_lora")  # A is drawn under a seed of the name
    results = []
    for method in (IncLoRA(), OLoRA(lambda_1=0)):
        model = tiny.model(dropout=0.1)
        for index in (1, 2):
            stage = stages.stage(model, index)
            stages.learn([method], stage)
            model = stage.model
        results.append(stages.weights(model) | method.memory().tensors)
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


def test_the_penalty_makes_adapters_orthogonal_and_leaves_earlier_ones_alone() -> None:
    found = []
    for strength in (0.0, 5.0):
        method, model = OLoRA(lambda_1=strength), tiny.model()
        for index in (1, 2):
            before = dict(method.memory().tensors)
            stage = stages.stage(model, index, steps=10)
            stages.learn([method], stage)
            model = stage.model
            assert all(torch.equal(method.memory().tensors[name], value) for name, value in before.items())
        tensors = method.memory().tensors
        new = {name.removeprefix("d2/"): a.double() for name, a in tensors.items() if name.startswith("d2/")}
        method._adapters = {"d1": method._adapters["d1"]}
        found.append(float(pairwise(method, {n: a for n, a in new.items() if "lora_A" in n}, 1)))
    assert found[1] < 0.7 * found[0]


def test_strengths_by_position() -> None:
    for index, expected in ((1, 0.0), (2, 0.25), (3, 4.0), (4, 4.0)):
        method, stage, parts = in_o_lora_domain(index, lambda_1=[0, 0.25, 4.0])
        whole = expected * pairwise(method, matrices(stage, "A"), 1).detach() if index > 1 else torch.zeros(())
        assert float(parts.get("o_lora/orthogonality", torch.zeros(()))) == pytest.approx(float(whole), rel=1e-4)
    long = build("o_lora_long_sequence").config
    assert [len(long.lambda_1), len(long.lambda_2)] == [15, 15]
    assert (long.lambda_1[0], long.lambda_1[1], long.lambda_1[8], long.lambda_1[9], long.lambda_1[14]) == (
        0,
        0.5,
        0.5,
        5,
        5,
    )
    assert [place for place, value in enumerate(long.lambda_2, 1) if value == 0.3] == [7, 15]
    assert [place for place, value in enumerate(long.lambda_2, 1) if value == 0.1] == [5, 6, 9, 12, 14]
    for wrong in (-1, [], [0.5, -1], "much"):
        with pytest.raises(MethodError, match="lambda_1"):
            OLoRA(lambda_1=wrong)


E, R, ALPHA = 3, 2, 6


def attached(architecture: str = "roberta", **options: Any) -> tuple[MoELoRA, Any]:
    """The method at work on a model, experts and routers far from their first values."""
    method = MoELoRA(**({"experts": E, "r": R, "lora_alpha": ALPHA, "lora_dropout": 0.0} | options))
    stage = stages.stage(tiny.model(architecture), 1, tiny.objective_of(architecture))
    stages.begin([method], stage)
    with torch.no_grad():
        for parameter in stage.model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn_like(parameter))
    return method, stage


def layers(model: nn.Module) -> list[Any]:
    """Those with experts."""
    return [module for module in model.modules() if hasattr(module, "lora_router")]


def probabilities(layer: Any, token: Tensor) -> Tensor:
    """softmax(W_r x), [E]."""
    logits = torch.stack([row @ token for row in layer.lora_router["default"].weight.detach().double()])
    return logits.exp() / logits.exp().sum()


def mixture(layer: Any, token: Tensor, top_k: int, renormalise: bool) -> Tensor:
    """W x + b + s Σ g_e B_e A_e x of one token, from the formula, [d_out]."""
    weight = layer.base_layer.weight.detach().double()
    out = token @ weight if layer.fan_in_fan_out else weight @ token
    out = out + (layer.base_layer.bias.detach().double() if layer.base_layer.bias is not None else 0)
    p = probabilities(layer, token)
    best = sorted(range(E), key=lambda e: -float(p[e]))[:top_k]
    for e in best:
        a = layer.lora_A["default"].weight.detach().double()[e * R : (e + 1) * R]
        b = layer.lora_B["default"].weight.detach().double()[:, e * R : (e + 1) * R]
        gate = p[e] / sum(p[i] for i in best) if renormalise else p[e]
        out = out + ALPHA / R * gate * (b @ (a @ token))
    return out


@pytest.mark.parametrize(("top_k", "renormalise"), [(2, True), (1, False), (3, False)])
@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "llama", "t5"])
def test_a_layer_is_the_mixture_of_its_experts(architecture: str, top_k: int, renormalise: bool) -> None:
    _, stage = attached(architecture, top_k=top_k, renormalise=renormalise)
    layer = layers(stage.model)[-1]
    x = torch.randn(2, 3, layer.in_features)
    expected = torch.stack([torch.stack([mixture(layer, t, top_k, renormalise) for t in row]) for row in x.double()])
    torch.testing.assert_close(layer(x).double(), expected, rtol=1e-4, atol=1e-4)


def test_an_expert_that_no_token_chooses_gets_no_gradient() -> None:
    _, stage = attached(top_k=1, renormalise=False, balance=0)
    layer = layers(stage.model)[0]
    with torch.no_grad():
        layer.lora_router["default"].weight[1:].zero_()
        layer.lora_router["default"].weight[0] = 0.1
    layer(torch.rand(2, 5, 32)).square().sum().backward()
    for matrix, dim in (("lora_A", 0), ("lora_B", 1)):
        used, idle = getattr(layer, matrix)["default"].weight.grad.split([R, (E - 1) * R], dim)
        assert used.any()
        assert not idle.any()
    assert layer.lora_router["default"].weight.grad.any()


def test_balance_is_of_the_batchs_own_rows() -> None:
    method, stage = attached(top_k=2, balance=0.5)
    protection = Protection([method], stage)
    seen: dict[Any, Tensor] = {}
    for layer in layers(stage.model):
        layer.register_forward_hook(lambda layer, inputs, _: seen.__setitem__(layer, inputs[0].detach().double()))
    batch = next(stage.batches(3))
    _, parts = protection.loss(stage.model.train(), batch)
    terms = []
    for layer, x in seen.items():
        p = torch.stack([probabilities(layer, token) for token in x.flatten(0, 1)])
        counts = torch.zeros(E, dtype=torch.float64)
        for row in p:
            for e in sorted(range(E), key=lambda e, row=row: -float(row[e]))[:2]:
                counts[e] += 1
        terms.append(E * sum(counts[e] / counts.sum() * p[:, e].mean() for e in range(E)))
    expected = 0.5 * torch.stack(terms).mean()
    torch.testing.assert_close(parts["moe_lora/balance"].double(), expected, rtol=1e-4, atol=1e-6)

    class Views(MoELoRA):
        """Has rows of its own behind the batch's."""

        def views(self, stage: Any, batch: Any) -> Any:
            from everlearn.methods.base import View

            return [View({"input_ids": batch["input_ids"].flip(0)[:1]})]

    method.views = Views.views.__get__(method)
    _, again = protection.loss(stage.model, batch)
    torch.testing.assert_close(again["moe_lora/balance"], parts["moe_lora/balance"])
    assert all(router._gates is None and router._seen is None for router in routers(stage.model))


@pytest.mark.parametrize("width", [0, 3])
def test_padding_of_prompts_and_answers_is_not_balanced(width: int) -> None:
    """Against loops over the tokens in float64; with `width` more padding the loss is the same."""
    method = MoELoRA(experts=E, r=R, lora_alpha=ALPHA, lora_dropout=0.0, balance=0.5, target_modules="all-linear")
    stage = stages.stage(tiny.model("t5"), 1, "text-to-text")
    protection = Protection([method], stage)
    protection.begin()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for router in routers(stage.model):
            router.weight.copy_(torch.randn(router.weight.shape, generator=generator))
    batch = next(stage.batches(4))
    batch["input_ids"] = nn.functional.pad(batch["input_ids"], (0, width), value=1)
    batch["attention_mask"] = nn.functional.pad(batch["attention_mask"], (0, width))
    seen: dict[Any, tuple[str, Tensor]] = {}
    for path, layer in stage.model.named_modules():
        if hasattr(layer, "lora_router"):
            layer.register_forward_hook(
                lambda layer, inputs, _, path=path: seen.__setitem__(layer, (path, inputs[0].detach().double()))
            )
    _, parts = protection.loss(stage.model.train(), batch)
    terms = []
    for layer, (path, x) in seen.items():
        answers = ".decoder." in path and not ("EncDecAttention.k" in path or "EncDecAttention.v" in path)
        text = batch["labels"] != -100 if answers else batch["attention_mask"].bool()
        assert not text.all()
        p = torch.stack([probabilities(layer, token) for row, own in zip(x, text, strict=True) for token in row[own]])
        counts = torch.zeros(E, dtype=torch.float64)
        for row in p:
            for e in sorted(range(E), key=lambda e, row=row: -float(row[e]))[:2]:
                counts[e] += 1
        terms.append(E * sum(counts[e] / counts.sum() * p[:, e].mean() for e in range(E)))
    expected = 0.5 * torch.stack(terms).mean()
    torch.testing.assert_close(parts["moe_lora/balance"].double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "llama", "t5"])
def test_the_base_stays_the_base_and_texts_are_read_with_the_experts(architecture: str) -> None:
    base, method = tiny.model(architecture, dropout=0.1), MoELoRA(experts=E, r=R)
    start, model = stages.weights(base), base
    for index in (1, 2):
        stage = stages.stage(model, index, tiny.objective_of(architecture))
        if index == 2:
            stages.begin([method], stage)
            stages.end([method], stage)
        stages.learn([method], stage)
        model = stage.model
    assert all(torch.equal(parameter, start[name]) for name, parameter in model.named_parameters())
    assert method.memory().facts["domains"] == ["d1", "d2", "d2"]

    batch = next(stage.batches(4))
    reading = Reading(None, ("d1", "d2"), stage.objective, lambda: model, stage.batches)
    tested = method.test_model(copy.deepcopy(model), reading).eval()
    assert type(tested) is type(model)
    assert all(parameter.requires_grad for parameter in tested.parameters()), "an end task trains all of it"
    again = stages.stage(copy.deepcopy(model), 3, tiny.objective_of(architecture))
    stages.begin([method], again)
    with torch.no_grad():
        losses = [stage.objective.per_sample_loss(m.eval(), batch) for m in (model, tested, again.model)]
    assert not torch.allclose(losses[0], losses[1])
    assert torch.equal(losses[1], losses[2])


def test_a_classifier_is_read_with_the_experts() -> None:
    method, stage = MoELoRA(experts=E, r=R), stages.stage(tiny.model(), 1)
    stages.learn([method], stage)
    classifier = AutoModelForSequenceClassification.from_config(stage.model.config)
    reading = Reading(None, ("d1",), stage.objective, lambda: stage.model, stage.batches)
    tested = method.test_model(classifier, reading)
    values = {name: value for name, value in tested.named_parameters() if ".lora_" in name}
    assert len(values) == 3 * 4
    kept = {name.removeprefix("base_model.model."): value for name, value in method.memory().tensors.items()}
    assert all(torch.equal(value, kept[name.replace(".default", "")]) for name, value in values.items())


def test_gradient_checkpointing_changes_nothing() -> None:
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        method, stage = attached("llama", balance=1.0)
        if checkpointing:
            stage.model.activation_checkpointing_enable({"use_reentrant": False})
            stage.model.enable_input_require_grads()
        loss, _ = Protection([method], stage).loss(stage.model.train(), next(stage.batches(4)))
        loss.backward()
        gradients.append({n: p.grad for n, p in stage.model.named_parameters() if p.requires_grad})
    assert any("lora_router" in name for name in gradients[0])
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


def test_size_and_refusals() -> None:
    model = tiny.model()
    _, stage = attached()
    added = sum(p.numel() for p in stage.model.parameters() if p.requires_grad)
    width = len([path for path in anatomy(model).linears if path.endswith(("query", "value"))])
    assert added == width * (E * R * (32 + 32) + E * 32)
    assert added == MoELoRA(experts=E, r=R).cost(model).parameters
    for options, sentence in (
        ({"experts": 2, "top_k": 3}, r"'top_k': 3 of 2 `experts` cannot be chosen"),
        ({"top_k": 1}, r"'top_k'.*the router could not learn.*`renormalise: false`"),
    ):
        with pytest.raises(MethodError, match=rf"'moe_lora', option {sentence}\.$"):
            MoELoRA(**options)
    assert MoELoRA(experts=1, top_k=1).config.renormalise
