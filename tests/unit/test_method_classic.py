"""CLASSIC: mixing and contrast against slow references, and which gates the passes have."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hard_attention_checks import classifier, hidden, learnt, reading, settle
from torch import Tensor

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods.engine.attachment import attached
from everlearn.methods.gates.classic import CLASSIC, Mixing, simclr


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_simclr_row_by_row(temperature: float) -> None:
    torch.manual_seed(0)
    first, second = torch.randn(5, 7).double(), torch.randn(5, 7).double()
    rows = [*first.tolist(), *second.tolist()]
    total = 0.0
    for i in range(10):
        pair = (i + 5) % 10
        below = sum(math.exp(cosine(rows[i], rows[k]) / temperature) for k in range(10) if k != i)
        total -= math.log(math.exp(cosine(rows[i], rows[pair]) / temperature) / below)
    assert simclr(first, second, temperature).item() == pytest.approx(total / 10, rel=1e-5)


def test_mixing_entry_by_entry() -> None:
    """Y = γ (W_v X) Aᵀ + X with A = softmax((W_q X)ᵀ (W_k X)), X of one column a domain."""
    torch.manual_seed(1)
    mixing = Mixing(16, 0.0).double()
    states = torch.randn(3, 4, 16).double()
    plain = states.sum(1)
    torch.testing.assert_close(mixing(states), plain / plain.norm(dim=1, keepdim=True), msg="γ starts at 0")
    with torch.no_grad():
        mixing.gamma.fill_(0.7)
    assert mixing.query.out_features == 2
    for text, mixed in zip(states, mixing(states), strict=True):
        x = text.T
        q = mixing.query.weight @ x + mixing.query.bias[:, None]
        k = mixing.key.weight @ x + mixing.key.bias[:, None]
        v = mixing.value.weight @ x + mixing.value.bias[:, None]
        scores = q.T @ k
        a = torch.stack([scores[i].exp() / scores[i].exp().sum() for i in range(4)])
        y = 0.7 * v @ a.T + x
        expected = y.sum(1)
        torch.testing.assert_close(mixed, expected / expected.norm())


def _losses(method: CLASSIC, at: stages.Stage) -> tuple[dict[str, Tensor], Tensor, list[Tensor]]:
    """Losses of a first batch, its own representations and those under the earlier domains' gates."""
    stages.begin([method], at)
    batch = next(at.batches(4))
    told = {f"classic/{name}": value for name, value in method.before_forward(at, batch).items()}
    outputs = at.objective.forward(at.model, batch)
    past = list(told["classic/past"].unbind(1)) if told else []
    return method.extra_losses(at, batch | told, outputs), outputs.hidden.mean(1), past


def test_the_contrast_is_between_the_texts_under_old_and_new_gates() -> None:
    method = CLASSIC(contrast=0.5, contrast_dropout=0.0)
    done = learnt(method, tiny.model(), 2)
    at = stages.stage(copy.deepcopy(done[-1].model), 3)
    losses, own, past = _losses(method, at)
    assert len(past) == 2
    # An earlier domain's pass is what the method tests that domain with.
    batch = next(at.batches(4))
    for state, domain in zip(past, ("d1", "d2"), strict=True):
        model = method.test_model(copy.deepcopy(done[-1].model), reading(done[-1], domain))
        expected = at.objective.hidden(model, at.objective.inputs(batch)).mean(1)
        torch.testing.assert_close(state, expected)
    mixed = attached(at.model, "classic").mixing(torch.stack([*past, own], 1))
    torch.testing.assert_close(losses["contrast"], 0.5 * simclr(own, mixed, 1.0))
    losses["contrast"].backward()
    gradients = {name for name, p in at.model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert "everlearn_classic.mixing.gamma" in gradients
    assert "everlearn_classic.attention.embedding" in gradients


def test_gates_of_the_released_code() -> None:
    """Deviation D14: all past passes are the current one, so there is nothing to bring over."""
    method = CLASSIC(past_gates="current", contrast_dropout=0.0)
    done = learnt(method, tiny.model(), 2)
    _, own, past = _losses(method, stages.stage(copy.deepcopy(done[-1].model), 3))
    assert len(past) == 2
    for state in past:
        torch.testing.assert_close(state, own)


def test_the_first_domain_has_nothing_to_contrast() -> None:
    losses, _, past = _losses(CLASSIC(), stages.stage(tiny.model()))
    assert past == []
    assert losses.keys() == {"sparsity"}


def test_the_pass_itself_is_that_of_hat_adapter() -> None:
    """Tying the mixing's parameters to the pass leaves every loss as it is, bit for bit."""
    method, at = CLASSIC(), stages.stage(tiny.model())
    stages.begin([method], at)
    method.before_forward(at, {})
    batch = next(at.batches(4))
    tied = at.objective.forward(at.model, batch).losses
    attached(at.model, "classic").attention.fixed = attached(at.model, "classic").attention.gates.detach()
    assert torch.equal(at.objective.forward(at.model, batch).losses, tied)


def test_a_learnt_domain_stays_bit_for_bit() -> None:
    method, model, outputs = CLASSIC(), tiny.model(), []
    for index in (1, 2):
        at = stages.stage(copy.deepcopy(model), index)
        parts = stages.learn([method], at, weight_decay=0.1)
        settle(method)
        outputs.append(hidden(method, at, "d1"))
        model = at.model
    assert "classic/contrast" in parts[0]
    assert torch.equal(*outputs)
    assert not torch.equal(hidden(method, at, "d2"), hidden(method, at, None))


def test_a_classifier_has_adapters_and_no_mixing_to_train() -> None:
    method = CLASSIC()
    first = learnt(method, tiny.model(), 1)[0]
    model = method.test_model(classifier(first.model), reading(first, "d1"))
    model(input_ids=torch.arange(5, 25)[None]).logits.sum().backward()
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any("everlearn_classic.adapters" in name for name in learning)
    assert not any("mixing" in name for name in learning)


def test_an_encoder_decoder_has_no_text_to_represent() -> None:
    model = tiny.model("t5")
    with pytest.raises(MethodError, match="'classic', option 'contrast'"):
        CLASSIC().check(stages.setting(model, [CLASSIC()], "text-to-text"))
    CLASSIC(contrast=0).check(stages.setting(model, [CLASSIC(contrast=0)], "text-to-text"))
