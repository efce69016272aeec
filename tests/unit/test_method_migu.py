"""MIGU against the paper's rule written out in float64, and the published table of row counts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.pytorch_utils import Conv1D

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.importance.magnitude import OutputMagnitude
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.engine.protection import Protection
from everlearn.methods.masks.das import DAS
from everlearn.methods.masks.kept_rows import KeptRows
from everlearn.methods.masks.migu import MIGU
from everlearn.methods.masks.rows import keep_largest, kept_rows


@pytest.mark.parametrize(
    ("threshold", "rows", "kept"),
    [
        (0.7, 1024, 308), (0.7, 4096, 1229), (0.7, 768, 231), (0.7, 3072, 922), (0.7, 11008, 3303),
        (0.7, 32100, 9630), (0.7, 8, 3), (0.4, 8, 5), (0.4, 1024, 615), (0.4, 4096, 2458), (0.6, 8, 4),
        (0.1, 8, 8), (0.1, 1024, 922), (0.05, 8, 8), (0.05, 1024, 973), (0.29, 100, 71),
    ],
)  # fmt: skip
def test_number_of_kept_rows(threshold: float, rows: int, kept: int) -> None:
    for values in (torch.randperm(rows).float(), torch.ones(rows)):
        assert int(keep_largest({"a": values}, threshold)["a"].sum()) == kept


@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("rule", ["floor", "quantile"])
@given(rows=st.integers(1, 40), threshold=st.floats(0, 0.99), seed=st.integers(0, 99))
def test_the_indices_of_kept_rows_are_those_of_ones(rule: str, rows: int, threshold: float, seed: int) -> None:
    values = torch.randint(0, 9, (rows,), generator=torch.Generator().manual_seed(seed)).float()
    factors = keep_largest({"a": values}, threshold, rule)["a"]
    assert kept_rows(factors, threshold, rule).tolist() == [row for row, kept in enumerate(factors.tolist()) if kept]


def test_of_equal_rows_the_lower_index_is_masked_first() -> None:
    kept = keep_largest({"a": torch.tensor([2.0, 1.0, 1.0, 1.0, 1.0])}, 0.4)["a"]
    assert kept.tolist() == [1, 0, 0, 1, 1]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=40), st.floats(0, 0.99), st.floats(0.1, 8))
def test_kept_rows_are_the_largest_whatever_the_scale(values: list[float], threshold: float, scale: float) -> None:
    sums = torch.tensor(values)
    kept = keep_largest({"a": sums, "b": sums}, threshold)
    assert torch.equal(kept["a"], kept["b"])
    masked = sums[kept["a"] == 0]
    assert len(masked) == math.floor(threshold * len(values) + 1e-9)
    if len(masked):
        assert masked.max() <= sums[kept["a"] == 1].min()
    power = 2.0 ** round(scale)
    assert torch.equal(keep_largest({"a": sums * power}, threshold)["a"], kept["a"])


def _reference(model, batch, objective, threshold: float) -> dict[str, torch.Tensor]:
    """Rows to keep, from outputs recorded in float64 and sorted in Python."""
    double = type(model)(model.config).double()
    double.load_state_dict(model.state_dict())
    seen: dict[str, torch.Tensor] = {}
    for name, module in double.named_modules():
        if isinstance(module, (torch.nn.Linear, Conv1D)) and ("layer." in name or ".h." in name or "block." in name):
            module.register_forward_hook(
                lambda _, __, out, name=name: seen.__setitem__(
                    name, out.detach().abs().reshape(-1, out.shape[-1]).sum(0)
                )
            )
    with torch.no_grad():
        double.train()
        objective.forward(double, batch)
    keep = {}
    for name, sums in seen.items():
        order = sorted(range(len(sums)), key=lambda i: (float(sums[i]), i))
        keep[name] = torch.ones(len(sums))
        keep[name][order[: math.floor(threshold * len(sums))]] = 0
    return keep


@pytest.mark.parametrize(
    ("architecture", "objective"), [("roberta", "masked"), ("gpt2", "causal"), ("t5", "text-to-text")]
)
def test_mask_is_the_papers_on_every_kind_of_model(architecture: str, objective: str) -> None:
    model = tiny.model(architecture)
    stage = stages.stage(model, 2, objective)
    method = MIGU(threshold=0.6, apply_to="gradient")
    stages.begin([method], stage)
    protection = Protection([method], stage)
    batch = next(stage.batches(4))
    loss, _ = protection.loss(model.train(), batch)
    loss.backward()
    before = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    protection.after_backward()
    expected = _reference(model, batch, stage.objective, 0.6)
    assert {f"{name}.weight" for name in expected} == set(method_mask_names(protection))
    for name, gradient in before.items():
        layer, kind = name.rsplit(".", 1)
        now = model.get_parameter(name).grad
        if layer in expected and kind == "weight":
            rows = expected[layer] if isinstance(model.get_submodule(layer), Conv1D) else expected[layer][:, None]
            assert torch.equal(now, gradient * rows)
        else:
            assert torch.equal(now, gradient), f"{name} (a bias, an embedding, the head) is not masked"
    stages.end([method], stage)
    assert not any(module._forward_hooks for module in model.modules())


def method_mask_names(protection: Protection) -> list[str]:
    return [name for _, mask in protection._masks for name in mask.factors]


def test_masked_rows_of_an_update_stay_bit_for_bit_and_kept_ones_move_as_without_a_mask() -> None:
    plain, masked = tiny.model(), tiny.model()
    start = stages.weights(plain)
    first, second = stages.stage(plain, 2, steps=1), stages.stage(masked, 2, steps=1)
    stages.learn([], first, weight_decay=0.1)
    factors: dict[str, torch.Tensor] = {}
    method = MIGU(mask_bias=True)
    stages.learn(
        [method], second, weight_decay=0.1,
        each=lambda protection, _: factors.update(protection._masks[0][1].factors),
    )  # fmt: skip
    assert any(name.endswith("bias") for name in factors)
    for name, free in plain.named_parameters():
        keep = factors.get(name, torch.ones(())).expand_as(free).bool()
        assert torch.equal(masked.get_parameter(name), torch.where(keep, free, start[name]))


def test_mask_does_not_depend_on_micro_batches_or_on_other_methods_views() -> None:
    masks = []
    for methods, parts in (([MIGU()], 1), ([MIGU()], 4), ([DAS(general="none"), MIGU()], 1)):
        model = tiny.model()
        stage = stages.stage(model, 2)
        stages.begin(methods, stage)
        protection = Protection(methods, stage)
        batch = next(stage.batches(4))
        for rows in torch.arange(4).chunk(parts):
            protection.loss(model.train(), {name: value[rows] for name, value in batch.items()})[0].backward()
        masks.append(methods[-1].mask(stage).factors)
    for other in masks[1:]:
        assert all(torch.equal(other[name], factor) for name, factor in masks[0].items())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_lora_a_by_its_own_outputs_and_b_by_the_layers(order: tuple[int, int]) -> None:
    both = [IncLoRA(lora_dropout=0.0), MIGU(apply_to="gradient")]
    methods = [both[i] for i in order]
    stage = stages.stage(tiny.model(), 2)
    stages.begin(methods, stage)
    seen: dict[str, torch.Tensor] = {}
    query = "base_model.model.roberta.encoder.layer.0.attention.self.query"
    for path in (query, f"{query}.lora_A.default"):
        module = stage.model.get_submodule(path)
        module.register_forward_hook(
            lambda _, __, out, path=path: seen.__setitem__(path, out.detach().abs().sum((0, 1)))
        )
    protection = Protection(methods, stage)
    protection.loss(stage.model.train(), next(stage.batches(4)))[0].backward()
    factors = both[1].mask(stage).factors
    assert set(factors) == {name for name, p in stage.model.named_parameters() if p.requires_grad}
    for path, name in (
        (query, f"{query}.lora_B.default.weight"),
        (f"{query}.lora_A.default", f"{query}.lora_A.default.weight"),
    ):
        sums = seen[path]
        masked = sums.argsort(stable=True)[: math.floor(0.7 * len(sums) + 1e-9)]
        assert sorted((factors[name].flatten() == 0).nonzero().flatten().tolist()) == sorted(masked.tolist())


def test_first_domain_is_masked_only_on_request() -> None:
    for skip, index, masked in ((True, 1, False), (False, 1, True), (True, 2, True)):
        stage = stages.stage(tiny.model(), index, steps=1)
        seen: list[int] = []
        stages.learn([MIGU(skip_first_domain=skip)], stage, each=lambda p, _, seen=seen: seen.append(len(p._masks)))
        assert seen == [int(masked)]


def _one_step(method: MIGU | None, architecture: str = "roberta", objective: str = "masked", parts: int = 1):
    """Gradients after one step's backward passes (masked as the method wants), and the mask."""
    model = tiny.model(architecture)
    stage = stages.stage(model, 2, objective)
    methods = [method] if method else []
    stages.begin(methods, stage)
    protection = Protection(methods, stage)
    batch = next(stage.batches(4))
    for rows in torch.arange(4).chunk(parts):
        protection.loss(model.train(), {name: value[rows] for name, value in batch.items()})[0].backward()
    protection.after_backward()
    factors = protection._masks[0][1].factors if method and protection._masks else {}
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    stages.end(methods, stage)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    return gradients, factors, model


@pytest.mark.parametrize(
    ("architecture", "objective"),
    [("roberta", "masked"), ("gpt2", "causal"), ("llama", "causal"), ("t5", "text-to-text")],
)
def test_gradient_of_kept_rows_is_the_masked_gradient(architecture: str, objective: str) -> None:
    rule, wanted, _ = _one_step(MIGU(apply_to="gradient"), architecture, objective)
    kept, factors, model = _one_step(MIGU(apply_to="gradient", gradient_of="kept-rows"), architecture, objective)
    assert factors.keys() == wanted.keys()
    for name, factor in wanted.items():
        assert torch.equal(factor, factors[name])
        assert torch.equal(kept[name] == 0, (rule[name] == 0)), "the same rows are exactly zero"
        torch.testing.assert_close(kept[name], rule[name], rtol=1e-5, atol=1e-8)
    for name in rule.keys() - wanted.keys():
        assert torch.equal(kept[name], rule[name]), f"{name} is not masked, and its gradient is what it was"


@pytest.mark.parametrize("transposed", [False, True])
def test_kept_rows_in_float64_are_those_of_the_whole_gradient(transposed: bool) -> None:
    torch.manual_seed(0)
    layer = (Conv1D(12, 7) if transposed else torch.nn.Linear(7, 12)).double()
    x, out = torch.randn(5, 3, 7, dtype=torch.float64, requires_grad=True), torch.randn(5, 3, 12, dtype=torch.float64)
    (layer(x) * out).sum().backward()
    whole, inwards, bias = layer.weight.grad.clone(), x.grad.clone(), layer.bias.grad.clone()
    layer.zero_grad()
    x.grad = None
    rows = torch.tensor([10, 0, 3])
    hooks = KeptRows(torch.nn.ModuleDict({"layer": layer}), ["layer"], lambda: {"layer": rows})
    (layer.train()(x) * out).sum().backward()
    hooks.close()
    got = layer.weight.grad.T if transposed else layer.weight.grad
    whole = whole.T if transposed else whole
    others = torch.ones(12, dtype=torch.bool).index_fill(0, rows, False)
    torch.testing.assert_close(got[rows], whole[rows], rtol=1e-14, atol=1e-14)
    assert not got[others].any()
    assert torch.equal(x.grad, inwards)
    assert torch.equal(layer.bias.grad, bias)


@pytest.mark.parametrize("transposed", [False, True])
def test_kept_rows_of_small_integers_are_exactly_the_gradient_masked_afterwards(transposed: bool) -> None:
    """Sums of small integers are exact in whatever order they are taken, so only the rule itself could differ."""
    generator = torch.Generator().manual_seed(0)

    def integers(*shape: int) -> torch.Tensor:
        return torch.randint(-4, 5, shape, generator=generator).float()

    layer = Conv1D(40, 33) if transposed else torch.nn.Linear(33, 40)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(integers(*parameter.shape))
    x, out = integers(8, 64, 33).requires_grad_(), integers(8, 64, 40)
    y = layer(x)
    (y * out).sum().backward()
    factors = keep_largest({"layer": y.detach().abs().sum((0, 1))}, 0.7)["layer"]
    masked = layer.weight.grad * (factors if transposed else factors[:, None])
    inwards, bias = x.grad, layer.bias.grad
    layer.zero_grad()
    x.grad = None
    rows = factors.nonzero().flatten()
    hooks = KeptRows(torch.nn.ModuleDict({"layer": layer}), ["layer"], lambda: {"layer": rows})
    (layer.train()(x) * out).sum().backward()
    hooks.close()
    assert (masked.abs().sum(int(not transposed)) > 0).sum() == len(rows) == 12
    assert torch.equal(layer.weight.grad, masked)
    assert torch.equal(x.grad, inwards)
    assert torch.equal(layer.bias.grad, bias)


def test_kept_rows_of_an_accumulated_step_are_each_micro_batchs_own() -> None:
    whole, _, _ = _one_step(None, parts=2)
    gradients, factors, _ = _one_step(MIGU(apply_to="gradient", gradient_of="kept-rows"), parts=2)
    some = next(iter(factors))
    touched = int((gradients[some].abs().sum(1) > 0).sum())
    rows = len(whole[some])
    kept = rows - math.floor(0.7 * rows)
    assert int(factors[some].sum()) == touched
    assert kept <= touched <= 2 * kept


def test_kept_rows_go_through_gradient_checkpointing() -> None:
    plain, factors, _ = _one_step(MIGU(apply_to="gradient", gradient_of="kept-rows"), "llama", "causal")
    model = tiny.model("llama")
    model.activation_checkpointing_enable({"use_reentrant": False})
    stage = stages.stage(model, 2, "causal")
    method = MIGU(apply_to="gradient", gradient_of="kept-rows")
    stages.begin([method], stage)
    protection = Protection([method], stage)
    protection.loss(model.train(), next(stage.batches(4)))[0].backward()
    protection.after_backward()
    for name, factor in protection._masks[0][1].factors.items():
        assert torch.equal(factor, factors[name])
        torch.testing.assert_close(model.get_parameter(name).grad, plain[name])


def test_components_and_the_head() -> None:
    for chosen, parts in {
        ("query", "value"): ("query", "value"),
        ("feed_forward_in",): ("intermediate.dense",),
    }.items():
        _, factors, model = _one_step(MIGU(components=chosen))
        assert factors
        assert all(name.removesuffix(".weight").endswith(parts) for name in factors)
        assert len(factors) == len(parts) * len(model.roberta.encoder.layer)
    _, factors, model = _one_step(MIGU(components=("head",)))
    tied = next(name for name, p in model.named_parameters() if p is model.lm_head.decoder.weight)
    assert set(factors) == {"lm_head.dense.weight", tied}
    assert "embeddings" in tied


def test_the_heads_rows_are_ranked_by_its_logits_at_the_labels() -> None:
    model = tiny.model("llama")
    stage = stages.stage(model, 2, "causal")
    method = MIGU(components=("head",), rule="quantile")
    stages.begin([method], stage)
    protection = Protection([method], stage)
    batch = next(stage.batches(4))
    protection.loss(model.train(), batch)[0].backward()
    factors = method.mask(stage).factors
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
    sums = logits.double().abs().sum((0, 1))
    assert factors.keys() == {"lm_head.weight"} or list(factors) == ["model.embed_tokens.weight"]
    kept = next(iter(factors.values())).flatten().bool()
    assert sums[kept].min() >= sums[~kept].max() * (1 - 1e-5)


@pytest.mark.parametrize("architecture", ["roberta", "gpt2"])
def test_fused_projections_are_a_component_of_their_own(architecture: str) -> None:
    setting = stages.setting(
        tiny.model(architecture), [MIGU(components=("query",))], "masked" if architecture == "roberta" else "causal"
    )
    if architecture == "gpt2":
        with pytest.raises(MethodError, match=r"no query.*query_key_value"):
            MIGU(components=("query",)).check(setting)
        with pytest.raises(MethodError, match=r"'migu', option 'components': needs at least 1"):
            MIGU(components=())
    else:
        MIGU(components=("query",)).check(setting)


@pytest.mark.parametrize("selector", ["random", "weight", "gradient"])
def test_other_selectors(selector: str) -> None:
    gradients, _, before = _one_step(None)
    _, factors, _ = _one_step(MIGU(selector=selector, apply_to="gradient"))
    for name, factor in factors.items():
        rows = len(factor)
        assert int(factor.sum()) == rows - math.floor(0.7 * rows + 1e-9)
        source = {"weight": before.get_parameter(name).detach(), "gradient": gradients[name]}.get(selector)
        if source is not None:
            sums = source.double().abs().sum(1)
            assert sums[factor.flatten() == 1].min() >= sums[factor.flatten() == 0].max() * (1 - 1e-5)
    assert len(factors) == 12
    if selector == "random":
        again = _one_step(MIGU(selector=selector))[1]
        assert all(torch.equal(again[name], factor) for name, factor in factors.items())
        assert len({tuple(factor.flatten().tolist()) for factor in factors.values() if len(factor) == 32}) > 1


def test_padding_counts_unless_it_is_left_out() -> None:
    model = tiny.model("t5")
    stage = stages.stage(model, 2, "text-to-text")
    batch = next(stage.batches(4))
    assert not batch["attention_mask"].all(), "the batch has padding"
    seen: dict[str, torch.Tensor] = {}
    paths = list(stage.anatomy.linears)
    for path in paths:
        model.get_submodule(path).register_forward_hook(
            lambda _, __, out, path=path: seen.__setitem__(path, out.detach().double())
        )
    for count in (True, False):
        method = MIGU(count_padding=count)
        method.begin_domain(stage)
        method.begin_training(stage)
        method.before_forward(stage, batch)
        stage.objective.forward(model.train(), batch)
        sums = method._magnitude.pop()
        method.detach(stage)
        for path in paths:
            of_answer = path.startswith("decoder") and not path.endswith(("EncDecAttention.k", "EncDecAttention.v"))
            real = batch["labels"] != -100 if of_answer else batch["attention_mask"].bool()
            wanted = seen[path].abs() if count else seen[path].abs() * real[..., None]
            torch.testing.assert_close(sums[path].double(), wanted.sum((0, 1)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("threshold", "rows", "kept"),
    [
        (0.7, 1024, 307), (0.7, 4096, 1229), (0.7, 768, 231), (0.7, 3072, 922), (0.7, 11008, 3303),
        (0.7, 32100, 9630), (0.7, 8, 3), (0.4, 8, 5), (0.4, 1024, 614), (0.4, 4096, 2458), (0.6, 8, 3), (0.1, 8, 7),
        (0.1, 1024, 921), (0.05, 8, 7), (0.05, 1024, 972),
    ],
)  # fmt: skip
def test_the_released_rule_keeps_as_many_rows_as_published(threshold: float, rows: int, kept: int) -> None:
    torch.manual_seed(rows)
    assert int(keep_largest({"a": torch.randperm(rows).float()}, threshold, "quantile")["a"].sum()) == kept


def test_what_kept_rows_cannot_do_is_refused() -> None:
    model = tiny.model()
    for options, says in (({"selector": "random"}, "all-rows"), ({"components": ("head",)}, "all-rows")):
        method = MIGU(gradient_of="kept-rows", **options)
        with pytest.raises(MethodError, match=says):
            method.check(stages.setting(model, [method], "masked"))


def test_the_heads_inner_layer_is_ranked_at_every_label() -> None:
    """An encoder's head computes its first layer at the labels only, which are more than the batch's rows."""
    model = tiny.model("roberta")
    stage = stages.stage(model, 2)
    method = MIGU(components=("head",), threshold=0.6)
    stages.begin([method], stage)
    seen: list[torch.Tensor] = []
    model.lm_head.dense.register_forward_hook(lambda _, __, out: seen.append(out.detach().double()))
    protection = Protection([method], stage)
    for rows in (slice(0, 2), slice(2, 4)):
        batch = {name: value[rows] for name, value in next(stage.batches(4)).items()}
        protection.loss(model.train(), batch)[0].backward()
    sums = torch.cat(seen).abs().sum(0)
    kept = method.mask(stage).factors["lm_head.dense.weight"].flatten().bool()
    assert sums[kept].min() > sums[~kept].max()


def test_kept_rows_that_checkpointing_hides_are_an_error() -> None:
    model = tiny.model("llama")
    model.activation_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()
    stage = stages.stage(model, 2, "causal")
    for form in ("all-rows", "kept-rows"):
        method = MIGU(gradient_of=form)
        stages.begin([method], stage)
        protection = Protection([method], stage)
        protection.loss(model.train(), next(stage.batches(4)))[0].backward()
        with pytest.raises(MethodError, match="use_reentrant: false"):
            protection.after_backward()
        method.detach(stage)


def test_other_passes_have_the_whole_gradient_under_checkpointing_too() -> None:
    """What is computed again in the backward pass is that pass's own, not that of the batch before it."""
    gradients = []
    for recompute in (False, True):
        model = tiny.model("llama")
        if recompute:
            model.activation_checkpointing_enable({"use_reentrant": False})
        stage = stages.stage(model, 2, "causal")
        method = MIGU(gradient_of="kept-rows", apply_to="gradient")
        stages.begin([method], stage)
        protection = Protection([method], stage)
        batch = next(stage.batches(4))
        protection.loss(model.train(), batch)[0].backward()
        model.zero_grad()
        stage.objective.forward(model, batch).loss.backward()  # as the engine reads references
        gradients.append(model.model.layers[0].self_attn.q_proj.weight.grad.clone())
        method.detach(stage)
    assert (gradients[0].abs().sum(1) > 0).all()
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("selector", ["magnitude", "random", "weight", "gradient"])
def test_components_of_which_nothing_is_trained_are_refused(selector: str) -> None:
    methods = [IncLoRA(target_modules="query-value"), MIGU(components=("feed_forward_in",), selector=selector)]
    stage = stages.stage(tiny.model(), 1)
    stages.begin(methods, stage)
    with pytest.raises(MethodError, match=r"'components'.*feed_forward_in is trained.*query, value"):
        Protection(methods, stage).start()


def test_a_layer_that_a_process_did_not_run_has_the_sum_zero() -> None:
    """As with layer drop: all processes reduce the same names and lengths."""
    model = tiny.model()
    paths = ["roberta.encoder.layer.0.intermediate.dense", "roberta.encoder.layer.1.intermediate.dense"]
    magnitude = OutputMagnitude(model, paths)
    model.train().get_submodule(paths[0])(torch.ones(1, 3, 32))
    sums = magnitude.pop()
    assert list(sums) == paths
    assert sums[paths[0]].any()
    assert not sums[paths[1]].any()
    assert sums[paths[1]].shape == sums[paths[0]].shape


def test_the_head_of_a_pass_that_somebody_else_makes_counts_all_positions() -> None:
    model = tiny.model("llama")
    stage = stages.stage(model, 2, "causal")
    method = MIGU(components=("head",))
    stages.begin([method], stage)
    protection = Protection([method], stage)
    batch = next(stage.batches(4))

    def theirs() -> torch.Tensor:
        inputs = {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"], "use_cache": False}
        return model(**inputs).logits

    logits, _ = protection.beside(model.train(), batch, theirs)
    logits.sum().backward()
    sums = logits.detach().double().abs().sum((0, 1))
    (factor,) = method.mask(stage).factors.values()
    kept = factor.flatten().bool()
    assert sums[kept].min() >= sums[~kept].max() * (1 - 1e-5)
