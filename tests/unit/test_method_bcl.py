"""B-CL: capsules and routing against slow references, and what earlier domains keep."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hard_attention_checks import classifier, hidden, learnt, reading, settle

import stages
import tiny
from everlearn.methods.engine.attachment import attached
from everlearn.methods.gates.bcl import BCL, Capsules, route, squash


def squashed(v: list[float]) -> list[float]:
    """|v|² / (1 + |v|²) · v / |v|."""
    length = math.sqrt(sum(x * x for x in v))
    return [length**2 / (1 + length**2) * x / length for x in v]


def routed(u: list[list[list[float]]], iterations: int) -> list[list[float]]:
    """Routing of u[k][j] for one token, number by number: s_j of the last round."""
    domains, transfers, size = len(u), len(u[0]), len(u[0][0])
    b = [[0.0] * transfers for _ in range(domains)]
    s: list[list[float]] = []
    for _ in range(iterations):
        s = []
        for j in range(transfers):
            e = [math.exp(b[k][j]) for k in range(domains)]
            c = [value / sum(e) for value in e]
            s.append([sum(c[k] * u[k][j][d] for k in range(domains)) for d in range(size)])
        for j in range(transfers):
            v = squashed(s[j])
            for k in range(domains):
                b[k][j] += sum(u[k][j][d] * v[d] for d in range(size))
    return s


def test_squash() -> None:
    torch.manual_seed(0)
    v = torch.randn(6, 3).double() * torch.tensor([0.01, 0.1, 1.0, 3.0, 10.0, 100.0])[:, None]
    torch.testing.assert_close(squash(v), torch.tensor([squashed(row) for row in v.tolist()]).double())
    zero = torch.zeros(3, requires_grad=True)
    squash(zero).sum().backward()
    assert torch.isfinite(zero.grad).all()


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_routing_number_by_number(iterations: int) -> None:
    torch.manual_seed(1)
    u = 2 * torch.randn(2, 5, 4, 3, 2).double()
    got = route(u, iterations)
    for row in range(2):
        for token in range(5):
            expected = torch.tensor(routed(u[row, token].tolist(), iterations)).double()
            torch.testing.assert_close(got[row, token], expected)


def test_predictions_that_agree_count_more() -> None:
    agreed, alone = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 2.0])
    u = torch.stack([agreed, agreed, alone])[:, None]  # three domains, one transfer capsule
    s = [route(u, iterations)[0] for iterations in (1, 3)]
    assert s[1][0] > s[0][0]
    assert s[1][1] < s[0][1]


def test_the_capsule_network_token_by_token() -> None:
    torch.manual_seed(2)
    capsules = Capsules(hidden=8, inner=4, size=3, domains=2, iterations=3).double()
    last = capsules.domains[-1]
    torch.nn.init.normal_(last.reading.weight)
    x = torch.randn(2, 3, 8).double()
    got = capsules(x)
    for row in range(2):
        for token in range(3):
            u = []
            for domain in capsules.domains:
                z = domain.inner.weight @ x[row, token] + domain.inner.bias
                z = z * 0.5 * (1 + torch.erf(z / math.sqrt(2)))
                p = squashed((domain.capsule.weight @ z + domain.capsule.bias).tolist())
                w = domain.route
                u.append([[sum(p[c] * w[j, c, d].item() for c in range(3)) for d in range(3)] for j in range(3)])
            s = torch.tensor(routed(u, 3)).double().flatten()
            torch.testing.assert_close(got[row, token], last.reading.weight @ s + last.reading.bias)


def test_tokens_do_not_see_each_other() -> None:
    """What a causal model needs, and what padding must not change."""
    torch.manual_seed(3)
    capsules = Capsules(8, 4, 3, 2, 3)
    torch.nn.init.normal_(capsules.domains[-1].reading.weight)
    x = torch.randn(1, 5, 8)
    torch.testing.assert_close(capsules(x)[:, :2], capsules(x[:, :2]))


def test_each_domain_adds_capsules_and_the_earlier_ones_are_frozen() -> None:
    method = BCL()
    done = learnt(method, tiny.model(), 2)
    before = dict(method._parts)
    at = stages.stage(copy.deepcopy(done[-1].model), 3)
    stages.begin([method], at)
    adapter = attached(at.model, "bcl").adapters[0]
    assert len(adapter.capsules.domains) == 3
    trained = {name for name, parameter in adapter.named_parameters() if parameter.requires_grad}
    assert not any(name.startswith(("capsules.domains.0", "capsules.domains.1")) for name in trained)
    assert any(name.startswith("capsules.domains.2") for name in trained)

    at = stages.stage(copy.deepcopy(done[-1].model), 3)
    stages.learn([method], at, weight_decay=0.1)
    old = [name for name in before if ".domains.0." in name or ".domains.1." in name]
    assert old
    assert all(torch.equal(before[name], method._parts[name]) for name in old)


def test_capsules_matter_and_learn() -> None:
    method = BCL(reduction_factor=2)
    done = learnt(method, tiny.model(), 2)
    whole = hidden(method, done[-1], "d2")
    for name, value in method._parts.items():
        if ".domains.1.reading." in name:
            assert value.abs().sum() > 0
            value.zero_()
    assert not torch.equal(whole, hidden(method, done[-1], "d2"))


def test_a_learnt_domain_and_the_base_stay_bit_for_bit() -> None:
    method, model, outputs = BCL(), tiny.model(), []
    start = stages.weights(model)
    for index in (1, 2, 3):
        at = stages.stage(copy.deepcopy(model), index)
        stages.learn([method], at, weight_decay=0.1)
        settle(method)
        model = at.model
        outputs.append([hidden(method, at, f"d{number}") for number in range(1, index + 1)])
        assert all(torch.equal(value, start[name]) for name, value in stages.weights(model).items())
    assert torch.equal(outputs[0][0], outputs[2][0])
    assert torch.equal(outputs[1][1], outputs[2][1])
    assert not torch.equal(outputs[2][1], outputs[2][2])


def test_a_classifier_reads_with_the_capsules_of_its_domain() -> None:
    method = BCL()
    done = learnt(method, tiny.model(), 2)
    again = BCL()
    again.load_memory(method.memory())
    ids, logits = torch.arange(5, 25)[None], {}
    for domain, capsules in (("d1", 1), ("d2", 2)):
        torch.manual_seed(4)
        model = again.test_model(classifier(done[-1].model), reading(done[-1], domain))
        assert len(attached(model, "bcl").adapters[0].capsules.domains) == capsules
        logits[domain] = model(input_ids=ids).logits
    assert not torch.equal(logits["d1"], logits["d2"])
