"""Penalties on weights against their equations in float64: EWC, and adaptation methods."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.base import Cost, Method
from everlearn.methods.engine.protection import Protection
from everlearn.methods.penalties.ewc import EWC
from everlearn.methods.penalties.forget_me_not import ForgetMeNot
from everlearn.model.objectives import IGNORE, Outputs

STRENGTH = 300.0


def _fisher(model, stage, samples: int, source=None) -> dict[str, Tensor]:
    """Mean of squared per-sample gradients, sample by sample, in float64 and without dropout."""
    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    total = {name: torch.zeros_like(parameter) for name, parameter in double.named_parameters()}
    count = 0
    for batch in stage.batches(samples, source):
        for row in range(len(batch["labels"])):
            double.zero_grad()
            one = {name: value[row : row + 1] for name, value in batch.items()}
            stage.objective.per_sample_loss(double, one).sum().backward()
            count += 1
            for name, parameter in double.named_parameters():
                if parameter.grad is not None:
                    total[name] += parameter.grad**2
    return {name: value / count for name, value in total.items()}


@pytest.mark.parametrize("accumulate", ["sum", "mean"])
def test_penalty_and_its_gradient_are_the_equation(accumulate: str) -> None:
    method = EWC(strength=STRENGTH, samples=6, accumulate=accumulate)
    model = tiny.model(dropout=0.1)
    reference: dict[str, Tensor] = {}
    for index in (1, 2):
        stage = stages.stage(model, index, steps=2)
        parts = stages.learn([method], stage)
        assert ("ewc/penalty" in parts[0]) == (index == 2), "nothing is protected in the first domain"
        new = _fisher(model, stage, 6)
        for name, value in new.items():
            old = reference.get(name, torch.zeros_like(value))
            reference[name] = old + value if accumulate == "sum" or index == 1 else (old + value) / 2
    anchor = {name: p.detach().double().clone() for name, p in model.named_parameters()}

    third = stages.stage(model, 3)
    stages.begin([method], third)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    protection = Protection([method], third)
    _, extra = protection.forward(model.eval(), next(third.batches(4)))
    penalty = extra["ewc/penalty"]
    expected = sum(
        STRENGTH / 2 * (reference[name] * (p.detach().double() - anchor[name]) ** 2).sum()
        for name, p in model.named_parameters()
    )
    torch.testing.assert_close(penalty.double(), expected, rtol=1e-4, atol=0)
    penalty.backward()
    for name, parameter in model.named_parameters():
        gradient = STRENGTH * reference[name] * (parameter.detach().double() - anchor[name])
        torch.testing.assert_close(parameter.grad.double(), gradient, rtol=2e-3, atol=1e-6)


def test_penalty_is_the_same_whatever_the_batch() -> None:
    method, model = EWC(samples=4), tiny.model()
    stages.learn([method], stages.stage(model, 1, steps=1))
    second = stages.stage(model, 2)
    stages.begin([method], second)
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(0.01)
    batch = next(second.batches(4))
    values = [
        Protection([method], second).forward(model, {n: v[:rows] for n, v in batch.items()})[1]["ewc/penalty"]
        for rows in (1, 2, 4)
    ]
    assert values[0] > 0
    assert values[0] == values[1] == values[2]


def test_tied_weights_are_penalised_once() -> None:
    method, model = EWC(samples=2), tiny.model()
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    stages.learn([method], stages.stage(model, 1, steps=1))
    names = [name.removeprefix("fisher/") for name in method.memory().tensors if name.startswith("fisher/")]
    assert sum("decoder.weight" in name or "word_embeddings" in name for name in names) == 1


def test_a_strong_penalty_keeps_the_model_near_its_anchor() -> None:
    moved = []
    for strength in (0.0, 1e6):
        model = tiny.model()
        method = EWC(strength=strength, samples=8)
        stages.learn([method], stages.stage(model, 1, steps=3))
        start = stages.weights(model)
        stages.learn([method], stages.stage(model, 2, steps=10), weight_decay=0)
        moved.append(sum(float((p.detach() - start[name]).square().sum()) for name, p in model.named_parameters()))
    assert moved[1] < 0.5 * moved[0]


def test_memory_is_the_whole_state_and_belongs_to_its_model() -> None:
    method, model = EWC(samples=4), tiny.model()
    stages.learn([method], stages.stage(model, 1, steps=2))
    copy = EWC(samples=4)
    copy.load_memory(method.memory())
    twin = tiny.model()
    twin.load_state_dict(model.state_dict())
    stages.learn([method], stages.stage(model, 2))
    stages.learn([copy], stages.stage(twin, 2))
    assert all(torch.equal(p, twin.get_parameter(name)) for name, p in model.named_parameters())
    assert copy.memory().facts == {"domains": ["d1", "d2"]}
    with pytest.raises(MethodError, match="another model"):
        stages.learn([copy], stages.stage(tiny.model(intermediate_size=48), 3))


def test_the_base_can_be_protected_and_is_measured_once() -> None:
    method, model = EWC(samples=4, protect_base=True), tiny.model()
    stage = stages.stage(model, 1, general=True)
    stages.begin([method], stage)
    assert method.memory().facts == {"domains": ["base"]}
    measured = method.memory().tensors
    for name, value in _fisher(model, stage, 4, stage.general).items():
        torch.testing.assert_close(measured[f"fisher/{name}"].double(), value, rtol=1e-3, atol=1e-9)
    stages.begin([method], stage)
    assert method.memory().facts == {"domains": ["base"]}
    assert all(torch.equal(method.memory().tensors[name], value) for name, value in measured.items())
    assert "ewc/penalty" in stages.learn([method], stage)[0]


def test_strength_zero_does_nothing() -> None:
    method, model = EWC(strength=0), tiny.model()
    assert stages.learn([method], stages.stage(model, 1))[0].keys() == {"loss"}
    assert not method.memory()
    assert method.cost(model).memory_bytes == 0


def _batch_fisher(model, stage, samples: int, penalty=None) -> dict[str, Tensor]:
    """Σ_b |b| (∇ mean loss of b)² / number of batches, in float64 and without dropout."""
    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    total = {name: torch.zeros_like(parameter) for name, parameter in double.named_parameters()}
    batches = list(stage.batches(samples))
    for batch in batches:
        double.zero_grad()
        stage.objective.forward(double, batch).loss.backward()
        for name, parameter in double.named_parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if penalty is not None:
                importance, anchor = penalty
                gradient = gradient + STRENGTH * importance[name] * (parameter.detach() - anchor[name])
            total[name] += len(batch["labels"]) * gradient**2
    return {name: value / len(batches) for name, value in total.items()}


def test_the_released_form_squares_batch_means_and_sees_its_own_penalty() -> None:
    method = build({"name": "ewc_released", "strength": STRENGTH, "samples": 6})
    assert isinstance(method, EWC)
    assert method.config.dropout
    model = tiny.model()  # no dropout, so that there is one result to compare with
    reference: dict[str, Tensor] = {}
    anchor: dict[str, Tensor] = {}
    for index in (1, 2, 3):
        stage = stages.stage(model, index, steps=2)
        stages.learn([method], stage, lr=1e-3)
        new = _batch_fisher(model, stage, 6, (reference, anchor) if reference else None)
        for name, value in new.items():
            reference[name] = (value + (index - 1) * reference[name]) / index if index > 1 else value
        anchor = {name: p.detach().double().clone() for name, p in model.named_parameters()}
        largest = max(float(value.max()) for value in reference.values())
        for name, value in reference.items():
            measured = method.memory().tensors[f"fisher/{name}"].double()
            torch.testing.assert_close(measured, value, rtol=2e-3, atol=1e-9 * largest)


def test_batch_means_are_far_below_per_sample_squares() -> None:
    """|b| (∇ mean)² is about the mean of the squares only where the samples' gradients are independent."""
    model = tiny.model()
    totals = {}
    for gradients in ("sample", "batch"):
        method = EWC(gradients=gradients, samples=8)
        stages.end([method], stages.stage(model, 1, batch_size=8))
        totals[gradients] = {n: v for n, v in method.memory().tensors.items() if n.startswith("fisher/")}
    assert any(not torch.allclose(v, totals["batch"][n], rtol=0.1) for n, v in totals["sample"].items())
    one = EWC(gradients="batch", samples=8)
    stages.end([one], stages.stage(model, 1, batch_size=1))
    for name, value in totals["sample"].items():
        torch.testing.assert_close(one.memory().tensors[name], value, rtol=1e-4, atol=1e-12)


def test_dropout_is_on_only_where_it_was_asked_for_and_the_mode_is_kept() -> None:
    found = {}
    for dropout in (False, True):
        model = tiny.model(dropout=0.3).train()
        frozen = model.get_input_embeddings().eval()
        method = EWC(samples=4, dropout=dropout)
        stages.end([method], stages.stage(model, 1))
        assert model.training
        assert not frozen.training
        found[dropout] = method.memory().tensors
    assert any(not torch.equal(value, found[True][name]) for name, value in found[False].items())


OFF = {"ewc": 0, "ewc_normalised": 0, "l2": 0, "cosine": 0, "representations": 0}


def double_of(model: nn.Module) -> nn.Module:
    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    return double


def begun(method: Method, model: nn.Module, objective: str = "masked") -> tuple[Protection, nn.Module]:
    """A domain whose weights have moved, and the model that it began with in float64."""
    stage = stages.stage(model, 1, objective, general=True)
    protection = Protection([method], stage)
    protection.begin()
    before = double_of(model)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return protection, before


def losses(protection: Protection, rows: slice = slice(None)) -> dict[str, Tensor]:
    stage = protection.stage
    batch = {name: value[rows] for name, value in next(stage.batches(4)).items()}
    return protection.forward(stage.model.eval(), batch)[1]


def fisher(stage, model: nn.Module) -> dict[str, Tensor]:
    """Mean squared gradient of the general text's rows."""
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for batch in stage.batches(4, stage.general):
        for row in range(len(batch["labels"])):
            model.zero_grad()
            stage.objective.per_sample_loss(model, {n: v[row : row + 1] for n, v in batch.items()}).sum().backward()
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    total[name] += parameter.grad**2 / 4
    return total


@pytest.mark.parametrize(("architecture", "objective"), [("roberta", "masked"), ("t5", "text-to-text")])
def test_every_penalty_of_forget_me_not_is_its_formula_and_all_are_their_sum(architecture: str, objective: str) -> None:
    single: dict[str, float] = {}
    weights = {"ewc": 300.0, "ewc_normalised": 2.0, "l2": 0.5, "cosine": 3.0, "representations": 0.1}
    for name in (*weights, "all"):
        chosen = weights if name == "all" else {**OFF, name: weights[name]}
        measured = {"samples": 4} if chosen["ewc"] or chosen["ewc_normalised"] else {}
        method, model = build({"name": "forget_me_not", **measured, **chosen}), tiny.model(architecture)
        protection, before = begun(method, model, objective)
        found = losses(protection)
        single[name] = float(sum(value.detach() for value in found.values()))
        assert (method._teacher is not None) == (name in ("cosine", "representations", "all"))
    now, batch = double_of(model), next(protection.stage.batches(4))
    known, moved = fisher(protection.stage, before), {}
    for name, parameter in before.named_parameters():
        moved[name] = now.get_parameter(name).detach() - parameter.detach()
    inputs = protection.stage.objective.inputs(batch)
    with torch.no_grad():
        old, new = (protection.stage.objective.hidden(m, inputs) for m in (before, now))
    counted = batch["labels"] != IGNORE if objective == "text-to-text" else torch.ones(old.shape[:2], dtype=torch.bool)
    rows = range(len(old))
    cosine = [1 - (o * n).sum(-1) / (o.norm(dim=-1) * n.norm(dim=-1)) for o, n in zip(old, new, strict=True)]
    squares = [((o - n) ** 2).sum(-1) for o, n in zip(old, new, strict=True)]
    tops = {n: value.max() for n, value in known.items()}
    relative = {n: v / tops[n] if tops[n] > 1e-12 * max(tops.values()) else 0 * v for n, v in known.items()}
    slow = {
        "ewc": 150 * sum((known[n] * d**2).sum() for n, d in moved.items()),
        "ewc_normalised": sum((relative[n] * d**2).sum() for n, d in moved.items()),
        "l2": 0.5 * sum((d**2).sum() for d in moved.values()),
        "cosine": 3 * sum(cosine[r][counted[r]].mean() for r in rows) / len(old),
        "representations": 0.1 * sum(squares[r][counted[r]].mean() for r in rows) / len(old),
    }
    for name, value in slow.items():
        assert single[name] == pytest.approx(float(value), rel=2e-3), name
    assert single["all"] == pytest.approx(sum(float(value) for value in slow.values()), rel=2e-3)


def test_representations_at_rest_cost_nothing_and_are_of_the_same_input() -> None:
    method, model = build({"name": "forget_me_not", **OFF, "cosine": 1.0, "representations": 1.0}), tiny.model()
    stage = stages.stage(model, 1)
    protection = Protection([method], stage)
    protection.begin()
    found = losses(protection)
    assert found["forget_me_not/cosine"].item() == pytest.approx(0, abs=1e-6)
    assert found["forget_me_not/representations"].item() == pytest.approx(0, abs=1e-6)
    protection.end()
    assert method._teacher is None


def retained(protection: Protection, before: nn.Module, temperature: float) -> Tensor:
    """T² KL(p* ‖ p) at the labels, mean over a row's, then over rows."""
    batch, now = next(protection.stage.batches(4)), double_of(protection.stage.model)
    rows = []
    for row in range(len(batch["labels"])):
        labels = batch["labels"][row]
        where = batch["positions"][row] if "positions" in batch else torch.arange(len(labels))
        extra = {name: batch[name][row : row + 1] for name in ("position_ids",) if name in batch}
        one = {"input_ids": batch["input_ids"][row : row + 1], **extra}
        with torch.no_grad():
            old, new = (m(**one, **protection.stage.objective.options()).logits[0, where] for m in (before, now))
        p, q = (torch.softmax(x[labels != IGNORE] / temperature, -1) for x in (old, new))
        rows.append((temperature**2 * (p * (p.log() - q.log())).sum(-1)).mean())
    return torch.stack(rows).mean()


@pytest.mark.parametrize(("architecture", "objective"), [("roberta", "masked"), ("gpt2", "causal")])
def test_multi_task_adaptation_is_drift_and_distillation_at_the_fixed_ratio(architecture: str, objective: str) -> None:
    options = {"drift": 40.0, "distillation": 2.0, "temperature": 2.0, "balance": "fixed", "retain": 0.3, "samples": 4}
    method, model = build({"name": "multi_task_adaptation", **options}), tiny.model(architecture)
    protection, before = begun(method, model, objective)
    found = losses(protection)
    known, now = fisher(protection.stage, before), double_of(model)
    with torch.no_grad():
        drift = sum((known[n] * (now.get_parameter(n) - p) ** 2).sum() for n, p in before.named_parameters())
    ratio = 0.3 / 0.7
    assert found["multi_task_adaptation/drift"].item() == pytest.approx(ratio * 20 * float(drift), rel=1e-3)
    slow = ratio * 2 * float(retained(protection, before, 2.0))
    assert found["multi_task_adaptation/distillation"].item() == pytest.approx(slow, rel=1e-3)


def test_the_learnt_balance_descends_on_the_losses_of_the_whole_step_and_is_bounded() -> None:
    method, model = build({"name": "multi_task_adaptation", "drift": 0, "rate": 0.5, "largest": 3.0}), tiny.model()
    protection, _ = begun(method, model)
    s, ratios = [0.0, 0.0], []
    for _ in range(6):
        ratios.append(method.ratio)
        new, kept, labels = 0.0, [], 0
        for rows in (slice(0, 3), slice(3, 4)):  # micro-batches of different size
            batch = {n: v[rows] for n, v in next(protection.stage.batches(4)).items()}
            outputs, extra = protection.forward(model.eval(), batch)
            new, labels = new + float(outputs.losses.detach().sum()), labels + int(outputs.items)
            kept.append(float(extra["multi_task_adaptation/distillation"].detach()) / method.ratio)
        method.after_step(protection.stage)
        s[0] -= 0.5 * (1 - math.exp(-s[0]) * new / labels)
        s[1] -= 0.5 * (1 - math.exp(-s[1]) * sum(kept) / 2)
        s[1] = max(s[1], s[0] - math.log(3.0))
        assert method.memory().facts["s"] == pytest.approx(s, rel=1e-4)
        again = build({"name": "multi_task_adaptation", "drift": 0, "largest": 3.0})
        again.load_memory(method.memory())
        assert again.ratio == method.ratio
    assert ratios[0] == 1
    assert ratios[-1] == pytest.approx(3.0), "without a bound the weight of a loss of nearly 0 grows for ever"


@pytest.mark.parametrize(
    ("options", "other"),
    [
        ({"retain": 0.3}, "fixed"),
        ({"balance": "fixed", "rate": 0.5}, "uncertainty"),
        ({"balance": "fixed", "largest": 3.0}, "uncertainty"),
    ],
)
def test_an_option_of_the_other_balance_is_refused(options: dict[str, object], other: str) -> None:
    with pytest.raises(
        MethodError, match=f"has no effect with `balance: {options.get('balance', 'uncertainty')}`. Leave it at"
    ):
        build({"name": "multi_task_adaptation", **options})
    build({"name": "multi_task_adaptation", **options, "balance": other})


def test_the_learnt_balance_needs_the_loss_which_another_trainer_may_keep() -> None:
    method, model = build({"name": "multi_task_adaptation", "drift": 0}), tiny.model()
    protection, _ = begun(method, model)
    batch = next(protection.stage.batches(2))
    theirs = Outputs(torch.empty(0), torch.tensor(8), torch.empty(0), view_losses=[torch.ones(batch["labels"].shape)])
    with pytest.raises(MethodError, match="Set `balance: fixed`"):
        method.extra_losses(protection.stage, batch, theirs)
    fresh = build({"name": "multi_task_adaptation", "drift": 0})
    with pytest.raises(MethodError, match="has no teacher"):
        fresh.views(protection.stage, batch)


def test_what_is_remembered_is_float32_whatever_the_model_is() -> None:
    method = build({"name": "forget_me_not", **OFF, "l2": 0.01})
    stages.learn([method], stages.stage(tiny.model().bfloat16(), 1, steps=1))
    tensors = [value for name, value in method.memory().tensors.items() if name.startswith("fisher/")]
    assert all(torch.equal(value, torch.full(value.shape, 0.02)) for value in tensors)


def test_logits_that_a_model_caps_are_capped_in_model_and_teacher() -> None:
    method = build({"name": "multi_task_adaptation", "drift": 0, "balance": "fixed", "retain": 0.5})
    protection, before = begun(method, tiny.model("gemma2", final_logit_softcapping=0.05), "causal")
    found = losses(protection)["multi_task_adaptation/distillation"].detach()
    torch.testing.assert_close(found.double(), retained(protection, before, 1.0), rtol=1e-3, atol=0)


@pytest.mark.parametrize("measured", ["ewc", "ewc_normalised"])
@pytest.mark.parametrize("alone", ["l2", "cosine", "representations"])
def test_a_pass_is_declared_where_fisher_information_is_measured(alone: str, measured: str) -> None:
    model, options = tiny.model(), {**OFF, "name": "forget_me_not", alone: 1.0}
    for method, passes in ((build(options), 0), (build({**options, "samples": 10, measured: 1.0}), 3 * 10)):
        assert method.cost(model).outside_of([20, 20], 20) == passes
        assert method.needs.importance_pass == (passes > 0)


def test_an_adaptation_takes_options_as_every_method_does() -> None:
    assert ForgetMeNot(samples=7).config.samples == ForgetMeNot(samples=7).weights.config.samples == 7


def test_importance_and_anchor_are_declared_and_a_copy_of_the_model_beside_them() -> None:
    model = tiny.model()
    numbers = sum(parameter.numel() for parameter in model.parameters())
    held = build("ewc").cost(model)
    assert held.memory_bytes == held.disk_bytes == 2 * 4 * numbers
    assert build({"name": "ewc", "strength": 0}).cost(model) == Cost()
    copy = sum(tensor.numel() * tensor.element_size() for tensor in [*model.parameters(), *model.buffers()])
    for chosen, forward in (({"l2": 1.0}, 0.0), ({"cosine": 1.0, "ewc": 1.0, "samples": 4}, 1 / 3)):
        method = build({"name": "forget_me_not", **OFF, **chosen})
        alone, both = method.weights.cost(model), method.cost(model)
        assert both.memory_bytes - alone.memory_bytes == (copy if forward else 0)
        assert both.measuring_bytes == max(0, alone.measuring_bytes - copy) if forward else both == alone
        assert both.passes_per_step == pytest.approx(forward)
