"""Methods of `gates/` against their equations in float64: BCL, CPT, CLASSIC, HAT adapters."""

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
from everlearn.methods import build
from everlearn.methods.engine.attachment import attached
from everlearn.methods.engine.protection import check_methods
from everlearn.methods.gates.bcl import BCL, Capsules, route, squash
from everlearn.methods.gates.classic import CLASSIC, Mixing, simclr
from everlearn.methods.gates.cpt import CPT, PlugIn, sublayers
from everlearn.methods.gates.gated_mlp import GatedMLP
from everlearn.methods.gates.hard_attention import settled
from everlearn.methods.gates.hat_adapter import GatedAdapter, HATAdapter


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


def test_a_plug_in_by_hand() -> None:
    """output + a₂ ⊗ ReLU(W₂ (a₁ ⊗ ReLU(W₁ x + b₁)) + b₂)."""
    torch.manual_seed(0)
    values: dict[str, Tensor] = {"0.0": torch.rand(3).double(), "0.1": torch.rand(5).double()}
    plugin = PlugIn("0", (5, 3, 5), values).double()
    x, output = torch.randn(5).double(), torch.randn(5).double()
    first, second = plugin.network.layers
    inner = [
        values["0.0"][i] * max(0.0, sum(first.weight[i, j] * x[j] for j in range(5)) + first.bias[i]) for i in range(3)
    ]
    expected = [
        output[i] + values["0.1"][i] * max(0.0, sum(second.weight[i, j] * inner[j] for j in range(3)) + second.bias[i])
        for i in range(5)
    ]
    plugin.on_first(plugin, (x,))
    torch.testing.assert_close(plugin.on_last(plugin, (x,), output), torch.stack(expected))
    assert plugin.input is None


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "llama", "t5"])
def test_plug_ins_run_beside_attention_and_feed_forward(architecture: str) -> None:
    """What enters the first projection is what the plug-in reads; its output is added to the last projection's."""
    model = tiny.model(architecture)
    objective = tiny.objective_of(architecture)
    kinds = [place.kind for place in sublayers(model)]
    both = ["head", "output"] * 2
    assert kinds == (both if architecture != "t5" else [*both, *["head", "head", "output"] * 2])
    method, at = CPT(), stages.stage(model, 1, objective)
    stages.begin([method], at)
    method.before_forward(at, {})
    entered: dict[str, Tensor] = {}
    left: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for place in sublayers(model):
        first, last = model.get_submodule(place.first), model.get_submodule(place.last)
        first.register_forward_pre_hook(lambda _, inputs, at=place.last: entered.update({at: inputs[0]}))
        last.register_forward_hook(lambda m, inputs, out, at=place.last: left.update({at: out}))
        last.register_forward_pre_hook(lambda m, inputs, at=place.last: plain.update({at: m.forward(inputs[0])}))
    at.objective.forward(model, next(at.batches(2)))
    attachment = attached(model, "cpt")
    for place, plugin in zip(attachment.places, attachment.plugins, strict=True):
        torch.testing.assert_close(
            left[place.last], plain[place.last] + plugin.network(entered[place.last]), rtol=1e-4, atol=1e-6
        )


def test_sizes_are_those_of_the_paper_for_roberta_base() -> None:
    from transformers import RobertaConfig, RobertaForMaskedLM

    with torch.device("meta"):
        model = RobertaForMaskedLM(RobertaConfig(vocab_size=100, num_hidden_layers=1))
        attachment = CPT().build(model, 1)
    inner = [plugin.network.layers[0].out_features for plugin in attachment.plugins]
    assert inner == [512, 768]


def test_gates_of_a_learnt_domain_are_binary() -> None:
    method, at = CPT(), stages.stage(tiny.model())
    stages.learn([method], at)
    e = method._embeddings["d1"]
    assert torch.equal(settled(e, 400.0, binary=True), (torch.sigmoid(400 * e) > 0.5).float())
    model = method.test_model(copy.deepcopy(at.model), reading(at, "d1"))
    assert torch.equal(attached(model, "cpt").attention.fixed, (e > 0).float())
    second = stages.stage(at.model, 2)
    stages.begin([method], second)
    assert all(set(values.unique().tolist()) <= {0.0, 1.0} for values in method.mask(second).factors.values())


def test_cpt_keeps_learnt_domains_and_the_base_bit_for_bit() -> None:
    """As learnt, without any help: this is what the gates are made binary for."""
    method, model = CPT(), tiny.model()
    start, outputs = stages.weights(model), []
    for index in (1, 2, 3):
        at = stages.stage(copy.deepcopy(model), index)
        stages.learn([method], at, weight_decay=0.1)
        model = at.model
        assert all(torch.equal(value, start[name]) for name, value in stages.weights(model).items())
        outputs.append([hidden(method, at, f"d{number}") for number in range(1, index + 1)])
    assert torch.equal(outputs[0][0], outputs[2][0])
    assert torch.equal(outputs[1][1], outputs[2][1])
    assert not torch.equal(outputs[2][0], outputs[2][1])
    assert not torch.equal(outputs[2][2], hidden(method, at, None))


def test_trained_normalisation_moves_and_nothing_else_of_the_base_does() -> None:
    method, model = CPT(train_normalisation=True), tiny.model()
    start = stages.weights(model)
    at = stages.stage(model)
    stages.learn([method], at)
    moved = {name for name, value in stages.weights(at.model).items() if not torch.equal(value, start[name])}
    # The head's normalisation is among them.
    assert moved
    assert all("norm" in name.lower() for name in moved)
    assert all(parameter.requires_grad for parameter in at.model.parameters())


def test_a_classifier_reads_with_the_plug_ins_of_its_domain() -> None:
    method, at = CPT(), stages.stage(tiny.model())
    stages.learn([method], at)
    ids = torch.arange(5, 25)[None]
    for frozen in (False, True):
        again = CPT(freeze_base_at_end_task=frozen)
        again.load_memory(method.memory())
        torch.manual_seed(0)
        plain = classifier(at.model)
        before = plain(input_ids=ids).logits
        model = again.test_model(plain, reading(at, "d1"))
        logits = model(input_ids=ids).logits
        assert not torch.equal(logits, before)
        logits.sum().backward()
        assert (model.roberta.embeddings.word_embeddings.weight.grad is None) == frozen


@pytest.mark.parametrize("name", ["cpt", "hat_adapter"])
def test_a_frozen_base_at_end_tasks_is_no_matter_to_held_out_text(name: str) -> None:
    """T5 with a language-model head is its own base model."""
    at = stages.stage(tiny.model("t5"), objective="text-to-text")
    method = build(name)
    stages.learn([method], at)
    frozen = build({"name": name, "freeze_base_at_end_task": True})
    frozen.load_memory(method.memory())
    batch = next(at.batches(4))
    with torch.no_grad():
        losses = [
            at.objective.per_sample_loss(m.test_model(copy.deepcopy(at.model).eval(), reading(at, "d1")), batch)
            for m in (method, frozen)
        ]
    assert torch.equal(*losses)


def test_no_second_method_adds_parameters_beside_a_frozen_model() -> None:
    model = tiny.model()
    for name in ("cpt", "hat_adapter", "classic", "bcl"):
        for other in ("hat", "dap_adapter", "dap_prompt", "inc_lora"):
            methods = [build(other), build(name)]
            with pytest.raises(MethodError, match=rf"Method '({name}|{other})' .*Remove one of them"):
                check_methods(methods, stages.setting(model, methods))
        check_methods(methods := [build("replay"), build(name)], stages.setting(model, methods))


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


def gelu(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def layer(x: list[float], weight: Tensor, bias: Tensor, gates: Tensor) -> list[float]:
    """h ← a ⊗ GELU(W x + b), number by number."""
    return [
        gates[i].item() * gelu(sum(weight[i, j].item() * x[j] for j in range(len(x))) + bias[i].item())
        for i in range(len(weight))
    ]


def test_an_adapter_by_hand() -> None:
    torch.manual_seed(0)
    values: dict[str, Tensor] = {}
    adapter = GatedAdapter("0", 6, 2, values).double()
    values.update({name: torch.rand(size).double() for name, size in GatedAdapter.units("0", 6, 2).items()})
    assert {name: len(value) for name, value in values.items()} == {
        "0.down.0": 2,
        "0.down.1": 2,
        "0.up.0": 6,
        "0.up.1": 6,
    }
    x = torch.randn(6).double()
    expected = x.tolist()
    for block, network in (("down", adapter.down), ("up", adapter.up)):
        for number, linear in enumerate(network.layers):
            expected = layer(expected, linear.weight, linear.bias, values[f"0.{block}.{number}"])
    torch.testing.assert_close(adapter(x), x + torch.tensor(expected).double())


def test_factors_of_a_network_entry_by_entry() -> None:
    """fc1: 1 − a by rows; fc2: 1 − min(a_post, a_pre); biases with their rows."""
    torch.manual_seed(1)
    network = GatedMLP("n", (5, 3, 4), torch.relu, {})
    a = {"n.0": torch.rand(3), "n.1": torch.rand(4)}
    factors = dict(network.factors({name: 1 - values for name, values in a.items()}))
    first, second = factors["layers.0.weight"].expand(3, 5), factors["layers.1.weight"].expand(4, 3)
    for i in range(3):
        assert all(first[i, j] == 1 - a["n.0"][i] for j in range(5))
    for i in range(4):
        for j in range(3):
            assert second[i, j].item() == pytest.approx(1 - min(a["n.1"][i].item(), a["n.0"][j].item()))
    assert torch.equal(factors["layers.0.bias"], 1 - a["n.0"])
    assert torch.equal(factors["layers.1.bias"], 1 - a["n.1"])
    assert factors.keys() == dict(network.named_parameters()).keys()


def test_adapters_sit_after_every_feed_forward_network() -> None:
    """What leaves the second projection is x + up(down(x)) of what the projection itself gives."""
    method, at = HATAdapter(), stages.stage(tiny.model())
    stages.begin([method], at)
    method.before_forward(at, {})
    plain, seen = [], []
    adapters = attached(at.model, "hat_adapter").adapters
    assert len(adapters) == 2
    for block, adapter in zip(at.model.roberta.encoder.layer, adapters, strict=True):
        block.output.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))

        def projected(_, inputs, block=block, adapter=adapter) -> None:
            weight, bias = block.output.dense.weight, block.output.dense.bias
            plain.append(adapter(inputs[0] @ weight.T + bias))

        block.output.dense.register_forward_pre_hook(projected)
        block.output.dropout.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    at.objective.forward(at.model, next(at.batches(2)))
    for expected, got in zip(plain, seen[1::2], strict=True):
        torch.testing.assert_close(got, expected)


def test_a_learnt_domain_stays_bit_for_bit_and_the_base_too() -> None:
    method, model, outputs = HATAdapter(), tiny.model(), []
    start = stages.weights(model)
    for index in (1, 2, 3):
        at = stages.stage(copy.deepcopy(model), index)
        stages.learn([method], at, weight_decay=0.1)
        settle(method)
        model = at.model
        assert all(torch.equal(value, start[name]) for name, value in stages.weights(model).items())
        outputs.append([hidden(method, at, f"d{number}") for number in range(1, index + 1)])
    assert torch.equal(outputs[0][0], outputs[2][0])
    assert torch.equal(outputs[1][1], outputs[2][1])
    assert not torch.equal(outputs[2][0], outputs[2][1])
    assert not torch.equal(outputs[2][0], hidden(method, at, None))


def test_without_protection_it_would_not_stay() -> None:
    method = HATAdapter()
    first = learnt(method, tiny.model(), 1)[0]
    before = hidden(method, first, "d1")
    method.mask = lambda stage: None  # type: ignore[method-assign]
    second = stages.stage(copy.deepcopy(first.model), 2)
    stages.learn([method], second)
    assert not torch.equal(before, hidden(method, second, "d1"))


def test_gradient_masks_are_undone_by_adam() -> None:
    """Why the default is `update`: with weight decay, Adam moves what a gradient mask holds back."""
    drift = {}
    for apply_to in ("update", "gradient"):
        method = HATAdapter(apply_to=apply_to)
        first = learnt(method, tiny.model(), 1)[0]
        before = hidden(method, first, "d1")
        second = stages.stage(copy.deepcopy(first.model), 2)
        stages.learn([method], second, weight_decay=0.1)
        drift[apply_to] = (hidden(method, second, "d1") - before).abs().max().item()
    assert drift["update"] == 0 < drift["gradient"]


def test_sizes_scale_with_the_model() -> None:
    sizes = []
    for options in ({}, {"reduction_factor": 4}, {"reduction_factor": 1000}):
        at = stages.stage(tiny.model())
        stages.begin([HATAdapter(**options)], at)
        sizes.append(attached(at.model, "hat_adapter").adapters[0].down.layers[0].out_features)
    assert sizes == [2, 8, 1]


def test_the_paper_fine_tunes_the_model_and_the_released_code_the_adapters_alone() -> None:
    for frozen in (False, True):
        method = HATAdapter(freeze_base_at_end_task=frozen)
        first = learnt(method, tiny.model(), 1)[0]
        model = method.test_model(classifier(first.model), reading(first, "d1"))
        model(input_ids=torch.arange(5, 25)[None]).logits.sum().backward()
        learning = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
        assert any(name.startswith("everlearn_hat_adapter.adapters") for name in learning)
        assert any(name.startswith("classifier") for name in learning)
        assert any(name.startswith("roberta") for name in learning) != frozen
        assert "everlearn_hat_adapter.attention.embedding" not in learning
        other = method.test_model(classifier(first.model), reading(first, None))
        assert all(parameter.requires_grad for parameter in other.parameters())


def test_adapters_survive_a_memory_round_trip() -> None:
    method = HATAdapter()
    first, second = learnt(method, tiny.model(), 2)
    again = HATAdapter()
    again.load_memory(method.memory())
    for at, domain in ((first, "d1"), (second, "d2")):
        assert torch.equal(hidden(again, at, domain), hidden(method, at, domain))
