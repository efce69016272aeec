"""HAT: its equations against slow references in float64, and the property that it is for."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from hard_attention_checks import classifier, hidden, learnt, reading

import stages
import tiny
from everlearn.config.arguments import training_arguments
from everlearn.data.loader import BlockLoader
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.engine.attachment import attached
from everlearn.methods.engine.protection import Protection
from everlearn.methods.gates.hard_attention import annealed, gate, regulariser, settled
from everlearn.methods.gates.hat import HAT
from everlearn.model.anatomy import anatomy
from everlearn.model.gates import Gates
from everlearn.run.trainer import StageTrainer


def test_gates_and_their_compensated_gradient() -> None:
    """Eqs. 1 and 4 entry by entry, the clip at 50 included."""
    torch.manual_seed(0)
    e = torch.cat([torch.randn(20), torch.tensor([0.0, 0.12, -0.13, 0.2, -0.2, 5.9])]).requires_grad_()
    upstream = torch.randn(26)
    for s in (1 / 400, 1.0, 37.0, 400.0):
        e.grad = None
        a = gate(e, s, 400.0)
        (a * upstream).sum().backward()
        for i, x in enumerate(e.double().tolist()):
            opened = 1 / (1 + math.exp(min(700.0, -s * x)))
            assert a[i].item() == pytest.approx(opened, rel=1e-4, abs=1e-7)
            if abs(s * x) < 300:
                slope = s / (2 * (math.cosh(s * x) + 1))
                clipped = max(-50.0, min(50.0, s * x))
                compensation = 400 / s * (math.cosh(clipped) + 1) / (math.cosh(x) + 1)
                expected = upstream[i].item() * slope * compensation
                assert e.grad[i].item() == pytest.approx(expected, rel=1e-3, abs=1e-12)


def test_compensation_makes_the_gradient_the_same_for_every_s() -> None:
    """What eq. 4 is for: after it the embedding learns as fast with a steep gate as with a flat one."""
    gradients = []
    for s in (0.0025, 1.0, 20.0):
        e = torch.linspace(-2, 2, 9).requires_grad_()
        gate(e, s, 400.0).sum().backward()
        gradients.append(e.grad)
    torch.testing.assert_close(gradients[0], gradients[1])
    torch.testing.assert_close(gradients[0], gradients[2])


@pytest.mark.parametrize("name", ["hat", "hat_adapter"])
def test_weight_decay_does_not_reach_the_embedding(name: str, tmp_path: Path) -> None:
    """It would draw gates towards half open. What else is trained decays as the recipe says."""
    moved = {}
    for decay in (0.0, 0.5):
        method, at = build(name), stages.stage(tiny.model(), steps=1)
        protection = Protection([method], at)
        data = protection.begin()
        args = {"use_cpu": True, "learning_rate": 0.1, "weight_decay": decay, "lr_scheduler_type": "constant",
                "save_strategy": "no"}  # fmt: skip
        trainer = StageTrainer(
            protection=protection,
            loader=BlockLoader(data, at.objective, 4, 1),
            args=training_arguments(args, tmp_path, 0, 1),
        )
        trainer.train()
        held = [id(parameter) for group in trainer.optimizer.param_groups for parameter in group["params"]]
        trained = [id(parameter) for parameter in at.model.parameters() if parameter.requires_grad]
        assert sorted(held) == sorted(trained), "each exactly once"
        moved[decay] = stages.weights(at.model)
    embedding = f"everlearn_{name}.attention.embedding"
    assert torch.equal(moved[0.0][embedding], moved[0.5][embedding])
    part = "roberta.encoder.layer.0.output.dense" if name == "hat" else f"everlearn_{name}.adapters"
    other = next(key for key in moved[0.0] if key.startswith(part) and key.endswith("weight"))
    assert not torch.equal(moved[0.0][other], moved[0.5][other])


def test_annealing() -> None:
    assert [annealed(b, 5, 400.0) for b in range(5)] == pytest.approx(
        [1 / 400 + (400 - 1 / 400) * b / 4 for b in range(5)]
    )
    assert annealed(0, 1, 400.0) == 1 / 400


def test_regulariser() -> None:
    torch.manual_seed(1)
    a, taken = torch.rand(9), torch.rand(9)
    top = sum(a[i].double() * (1 - taken[i].double()) for i in range(9))
    bottom = sum(1 - taken[i].double() for i in range(9))
    torch.testing.assert_close(regulariser(a, taken).double(), top / bottom)
    torch.testing.assert_close(regulariser(a, None), a.mean())
    assert regulariser(a, torch.ones(9)) == 0


def test_the_gates_act_in_training_with_the_annealed_s() -> None:
    """The pass of every step is the one that unit gates of the importance module give with σ(s e)."""
    method, at = HAT(), stages.stage(tiny.model(), 1, steps=3)
    seen = []

    def look(protection, batch) -> None:
        attention = attached(at.model, "hat").attention
        plain = tiny.model()
        plain.load_state_dict(at.model.state_dict(), strict=False)
        with torch.no_grad(), Gates(plain) as gates:
            values = torch.sigmoid(attention.scale * attention.embedding)
            gates.set(attention.split(values))
            expected = at.objective.forward(plain, batch).loss
        torch.testing.assert_close(at.objective.forward(at.model, batch).loss, expected)
        seen.append(attention.scale)

    parts = stages.learn([method], at, each=look)
    assert seen == pytest.approx([annealed(step, 3, 400.0) for step in range(3)])
    assert parts[0]["hat/sparsity"].item() == pytest.approx(0.75 * 0.5, abs=1e-3), "half open at s = 1/smax"


def test_taken_units_accumulate_and_hold_back_their_rows() -> None:
    method = HAT()
    done = learnt(method, tiny.model(), 2)
    for values in method._embeddings.values():
        values.mul_(0.0005)  # gates that are neither 0 nor 1
    at = stages.stage(done[-1].model, 3)
    stages.begin([method], at)
    embeddings = list(method._embeddings.values())
    expected = torch.tensor([max(1 / (1 + math.exp(-400 * e[i].item())) for e in embeddings) for i in range(200)])
    torch.testing.assert_close(method._taken, expected, rtol=1e-5, atol=1e-7)

    free = attached(at.model, "hat").attention.split(1 - method._taken)
    factors = method.mask(at).factors
    heads, neurons = free["layers.0.attention.heads"], free["layers.0.ffn.neurons"]
    outputs = free["layers.0.ffn.output"]
    layer = "roberta.encoder.layer.0"
    for projection in ("query", "key", "value"):
        at_rows = factors[f"{layer}.attention.self.{projection}.weight"].expand(32, 32)
        assert all(at_rows[i, j] == heads[i // 8] for i in range(32) for j in range(0, 32, 7))
    columns = factors[f"{layer}.attention.output.dense.weight"].expand(32, 32)
    assert all(columns[j, i] == heads[i // 8] for i in range(32) for j in range(0, 32, 7))
    assert torch.equal(factors[f"{layer}.intermediate.dense.weight"].expand(64, 32)[:, 3], neurons)
    assert torch.equal(factors[f"{layer}.intermediate.dense.bias"], neurons)
    assert torch.equal(factors[f"{layer}.output.dense.weight"].expand(32, 64)[:, 3], outputs)
    assert method.mask(at) is method.mask(at)
    assert method.mask(at).apply_to == "update"
    assert not [name for name in factors if "LayerNorm" in name or "embedding" in name or "lm_head" in name]


def test_a_learnt_domain_stays_bit_for_bit() -> None:
    """With gates of 0 and 1, and with nothing left that every domain shares, a domain's function never changes."""
    method = HAT(freeze_shared=True)
    first, second, third = learnt(method, tiny.model(), 3)
    assert torch.equal(hidden(method, first, "d1"), hidden(method, third, "d1"))
    assert torch.equal(hidden(method, second, "d2"), hidden(method, third, "d2"))
    assert not torch.equal(hidden(method, first, None), hidden(method, third, None)), "the whole network did change"


def test_what_leaks_as_published() -> None:
    """Only what belongs to no unit, and the parameters of free units, has moved; through the former a domain drifts."""
    method = HAT()
    first, second = learnt(method, tiny.model(), 2)
    assert not torch.equal(hidden(method, first, "d1"), hidden(method, second, "d1"))
    taken = settled(method._embeddings["d1"], 400.0)
    units = dict(zip((s.name for s in anatomy(first.model).sites), taken.split([4, 64, 32] * 2), strict=True))
    used = anatomy(first.model).parameter_factors(units)
    before, after = stages.weights(first.model), stages.weights(second.model)
    for name, value in after.items():
        moved = value != before[name]
        if name in used:
            assert not (moved & (used[name].expand_as(value) > 0)).any(), name
    assert any((after[name] != before[name]).any() for name in after if name in used)
    shared = [n for n in after if n not in used]
    assert all((after[n] != before[n]).any() for n in shared if "LayerNorm" in n and "encoder" in n)

    # Had those not moved, nothing would have: put them back, and the domain is what it was.
    with torch.no_grad():
        for name in shared:
            second.model.get_parameter(name).copy_(before[name])
    assert torch.equal(hidden(method, first, "d1"), hidden(method, second, "d1"))


def test_gates_as_learnt_leave_little_drift() -> None:
    """Near-binary gates: a unit that is open by a leaks 1 − a of each update."""
    drift = {}
    for name, options in (("hat", {"freeze_shared": True}), ("open", {"freeze_shared": True, "smax": 1.001})):
        method, model = HAT(**options), tiny.model()
        first = stages.stage(copy.deepcopy(model), 1)
        stages.learn([method], first)
        second = stages.stage(copy.deepcopy(first.model), 2)
        stages.learn([method], second)
        drift[name] = (hidden(method, first, "d1") - hidden(method, second, "d1")).norm().item()
    assert drift["hat"] < 0.05 * drift["open"]


def test_embeddings_stay_within_their_limit() -> None:
    method, at = HAT(), stages.stage(tiny.model())
    stages.learn([method], at, lr=10.0)
    assert method._embeddings["d1"].abs().max() == 6.0


def test_at_test_a_domain_has_its_gates_and_others_have_none() -> None:
    method = HAT()
    first, _ = learnt(method, tiny.model(), 2)
    for domain in (None, "d7"):
        model = copy.deepcopy(first.model)
        assert method.test_model(model, reading(first, domain)) is model
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    gated = method.test_model(copy.deepcopy(first.model), reading(first, "d1"))
    batch = next(first.batches(2))
    with torch.no_grad(), Gates(plain := copy.deepcopy(first.model)) as gates:
        gates.set(attached(gated, "hat").attention.split(settled(method._embeddings["d1"], 400.0)))
        expected = first.objective.forward(plain, batch).loss
        torch.testing.assert_close(first.objective.forward(gated, batch).loss, expected)


def test_a_classifier_is_fine_tuned_with_the_gates_of_its_domain() -> None:
    method = HAT()
    first, second = learnt(method, tiny.model(), 2)
    ids = torch.arange(5, 25)[None]
    logits = {}
    for domain in ("d1", "d2", None):
        torch.manual_seed(3)
        model = method.test_model(classifier(second.model), reading(second, domain))
        logits[domain] = model(input_ids=ids).logits
        logits[domain].sum().backward()
        assert model.roberta.encoder.layer[0].output.dense.weight.grad is not None
        trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        assert not any("everlearn" in name for name in trained)
    assert not torch.equal(logits["d1"], logits["d2"])
    assert not torch.equal(logits["d1"], logits[None])


def test_hat_all_learns_as_hat_and_is_tested_open() -> None:
    hat, whole = build("hat"), build("hat_all")
    assert hat.needs.domain_id_test
    assert not whole.needs.domain_id_test
    assert not HAT(test_gates="open").needs.domain_id_test
    models = [learnt(method, tiny.model(), 2)[-1] for method in (hat, whole)]
    same = stages.weights(models[1].model)
    assert all(torch.equal(value, same[name]) for name, value in stages.weights(models[0].model).items())
    assert whole.test_model(models[1].model, reading(models[1], "d1")) is models[1].model


def test_a_checkpoint_inside_a_domain_knows_how_far_s_has_risen() -> None:
    method, at = HAT(), stages.stage(tiny.model(), 1, steps=4)
    saved, scales = [], []

    def look(protection, batch) -> None:
        saved.append(method.memory())
        scales.append(attached(at.model, "hat").attention.scale)

    stages.learn([method], at, each=look)
    again = HAT()
    again.load_memory(saved[2])
    later = stages.stage(tiny.model(), 1, steps=4)
    later.step = 2
    stages.begin([again], later)
    again.before_forward(later, {})
    assert attached(later.model, "hat").attention.scale == scales[2]
    assert not any(saved), "the step is the stage's to know"


def test_memory_of_another_model_and_wrong_options_are_sentences() -> None:
    with pytest.raises(MethodError, match="'smax'"):
        HAT(smax=0.5)
    with pytest.raises(MethodError, match="'test_gates'"):
        HAT(test_gates="half")
    method = HAT()
    learnt(method, tiny.model(), 1)
    other = stages.stage(tiny.model(intermediate_size=32), 2)
    with pytest.raises(MethodError, match=r"'hat'.*another model"):
        stages.begin([method], other)


def test_gradient_checkpointing_sees_the_same_gates() -> None:
    gradients = []
    for checkpointing in (False, True):
        method, at = HAT(), stages.stage(tiny.model())
        if checkpointing:
            at.model.activation_checkpointing_enable()
        stages.begin([method], at)
        method.before_forward(at, {})
        at.model.train()
        outputs = at.objective.forward(at.model, next(at.batches(4)))
        (outputs.loss + method.extra_losses(at, {}, outputs)["sparsity"]).backward()
        gradients.append({name: p.grad for name, p in at.model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, value in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], value, msg=lambda m, n=name: f"{n}: {m}")
