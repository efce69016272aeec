"""Methods of `growth/`: a grown model computes the same; Lifelong-MoE against its equations."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import stages
import tiny
from everlearn.errors import MethodError, ModelError
from everlearn.methods import Reading, build
from everlearn.methods.engine.attachment import attached
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.methods.growth import experts as parts
from everlearn.methods.growth.experts import ExpertLayer, feed_forward_networks
from everlearn.methods.growth.lifelong_moe import LifelongMoE
from everlearn.methods.growth.net2net import added_parameters, choose_layers, copy_map, grow, key_value_heads
from everlearn.model.anatomy import anatomy
from everlearn.model.objectives import IGNORE

FAMILIES = ("roberta", "bert", "gpt2", "llama", "qwen2")
PRE_NORM = ("gpt2", "llama", "qwen2")
EXACT = {"llama": 1e-6, "qwen2": 1e-6}
"""Their normalisation computes in float32 whatever the weights are."""


def exact_model(architecture: str) -> nn.Module:
    """Float64, with biases and normalisations that are not at their neutral start."""
    model = tiny.model(architecture, attn_implementation="eager").double()
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def inputs() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return {"input_ids": torch.randint(5, tiny.VOCABULARY, (3, 20), generator=generator)}


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(**inputs()).logits


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_whole_multiple_of_the_width_preserves_the_function(architecture: str, times: int) -> None:
    model = exact_model(architecture)
    torch.manual_seed(1)
    grown = grow(model, heads=key_value_heads(model) * (times - 1))
    assert grown.model.config.hidden_size == 32 * times
    assert grown.model.config.num_attention_heads == 4 * times
    assert anatomy(grown.model).sites[1].units == anatomy(model).sites[1].units * times
    torch.testing.assert_close(logits(grown.model), logits(model), rtol=0, atol=EXACT.get(architecture, 1e-10))
    before, after = (m(**inputs(), output_hidden_states=True).hidden_states[1] for m in (model, grown.model))
    torch.testing.assert_close(after, before[..., grown.hidden], rtol=0, atol=EXACT.get(architecture, 1e-10))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_heads_and_neurons_are_exact_and_only_the_normalisation_is_not(architecture: str) -> None:
    """One head more: the first layer's attention gives what it gave, on a hidden state that is copied by hand."""
    model = exact_model(architecture)
    torch.manual_seed(1)
    grown = grow(model, heads=1)
    for site, larger in zip(anatomy(model).sites[1:3], anatomy(grown.model).sites[1:3], strict=True):
        assert larger.units > site.units
    seen: dict[int, list[Tensor]] = {}
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(2, 6, 32, generator=generator, dtype=torch.float64)
    for which, (m, states) in enumerate(((model, hidden), (grown.model, hidden[..., grown.hidden]))):
        layer = anatomy(m).sites[1].module.rsplit(".", 2 if architecture not in ("gpt2", "llama", "qwen2") else 1)[0]
        block = m.get_submodule(layer)
        if architecture in ("roberta", "bert"):
            seen[which] = [block.output.dense(F.gelu(block.intermediate.dense(states)))]
        else:
            seen[which] = [block(states)]
    torch.testing.assert_close(seen[1][0], seen[0][0][..., grown.hidden], rtol=0, atol=1e-10)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_paper_s_step_stays_near(architecture: str) -> None:
    """One head and one layer more is an approximation: far nearer to the model than another model is."""
    model = exact_model(architecture)
    torch.manual_seed(1)
    grown = grow(model, (1,), 1)
    step = (logits(grown.model) - logits(model)).pow(2).mean()
    other = (logits(tiny.model(architecture, seed=9).double()) - logits(model)).pow(2).mean()
    assert 0 < step < other


@pytest.mark.parametrize("architecture", PRE_NORM)
def test_layers_that_write_nothing_preserve_the_function(architecture: str) -> None:
    model = exact_model(architecture)
    torch.manual_seed(1)
    grown = grow(model, (0, 1, 1), key_value_heads(model), new_layers="identity")
    assert grown.origins == (0, 0, 1, 1, 1)
    torch.testing.assert_close(logits(grown.model), logits(model), rtol=0, atol=EXACT.get(architecture, 1e-10))
    loss = grown.model(**inputs()).logits.pow(2).mean()
    loss.backward()
    writer = anatomy(grown.model).sites[3].module
    assert grown.model.get_submodule(writer).weight.grad.abs().sum() > 0, "new layers learn"


def test_copied_layers_are_copies_in_their_place() -> None:
    model = exact_model("roberta")
    grown = grow(model, (1,))
    layers, old = grown.model.roberta.encoder.layer, model.roberta.encoder.layer
    for new, origin in zip(layers, (0, 1, 1), strict=True):
        for name, parameter in new.named_parameters():
            assert torch.equal(parameter, old[origin].get_parameter(name))
    assert torch.equal(grown.hidden, torch.arange(32))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_parameters_are_as_many_as_declared_and_the_model_is_a_plain_one(architecture: str, tmp_path: Path) -> None:
    model = tiny.model(architecture)
    declared = added_parameters(model, 2, 1)
    grown = grow(model, (0, 1), 1, noise=0.01).model
    count = [sum(p.numel() for p in m.parameters()) for m in (model, grown)]
    assert count[1] - count[0] == declared
    assert grown.state_dict().keys() > model.state_dict().keys()
    grown.save_pretrained(tmp_path)
    plain = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(logits(plain), logits(grown))
    again = grow(plain, (0,), 1).model
    assert again.config.num_hidden_layers == 5
    assert again.config.vocab_size == model.config.vocab_size
    assert torch.isfinite(logits(again)).all()


def test_noise_breaks_the_symmetry_of_copies_and_only_theirs() -> None:
    model = exact_model("roberta")
    results = {}
    for noise in (0.0, 0.01):
        torch.manual_seed(1)
        grown = grow(model, heads=4, noise=noise)
        weight = grown.model.roberta.encoder.layer[0].intermediate.dense.weight
        results[noise] = weight
        twins = [torch.nonzero(grown.hidden == feature).flatten() for feature in range(32)]
        same = [torch.equal(weight[:, a], weight[:, b]) for a, b in twins]
        assert all(same) if noise == 0 else not any(same)
    assert torch.equal(results[0.0][:, :32], results[0.01][:, :32]), "what was there is not disturbed"
    spread = (results[0.01] - results[0.0])[:, 32:].std().item()
    assert spread == pytest.approx(0.01, rel=0.1)


def test_copies_of_neurons_learn_apart_with_noise() -> None:
    """Without noise two copies get the same gradient for ever."""
    for noise in (0.0, 0.01):
        torch.manual_seed(1)
        grown = grow(exact_model("roberta"), heads=4, noise=noise).model
        grown(**inputs()).logits.pow(2).mean().backward()
        gradient = grown.roberta.encoder.layer[0].intermediate.dense.weight.grad
        nearest = [(gradient[:64] - row).abs().sum(1).min() for row in gradient[64:]]
        equal = [float(gap) < 1e-12 for gap in nearest]
        assert all(equal) if noise == 0 else not any(equal)


def test_the_copy_map_copies_equally_often() -> None:
    torch.manual_seed(0)
    for new in (5, 7, 10, 12, 23):
        chosen = copy_map(5, new)
        counts = torch.bincount(chosen, minlength=5)
        assert torch.equal(chosen[:5], torch.arange(5))
        assert len(chosen) == new
        assert counts.max() - counts.min() <= (new % 5 > 0)


def test_layers_are_copied_in_turn() -> None:
    """No layer is chosen before those whose ancestor has fewer copies (ELLE's list of candidates)."""
    torch.manual_seed(0)
    for _ in range(20):
        lineage = list(range(6))
        for amount in (2, 2, 1, 1):
            layers = choose_layers(lineage, amount)
            assert len({lineage[layer] for layer in layers}) == amount
            lineage = [ancestor for i, ancestor in enumerate(lineage) for _ in range(1 + layers.count(i))]
        assert sorted(lineage) == sorted([*range(6)] * 2), "twelve layers: each of the six twice"
    assert choose_layers([0], 3) == (0, 0, 0)


def test_frozen_weights_stay_frozen() -> None:
    model = tiny.model("gpt2")
    model.transformer.wpe.weight.requires_grad_(False)
    grown = grow(model, (0,), 1).model
    assert [name for name, p in grown.named_parameters() if not p.requires_grad] == ["transformer.wpe.weight"]


def test_what_cannot_be_grown_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'t5' model cannot be grown; supported are bert, .*gpt2.*roberta"):
        grow(tiny.model("t5"), heads=1)
    with pytest.raises(ModelError, match=r"cannot be identities.*normalises the sum"):
        grow(tiny.model("roberta"), (0,), new_layers="identity")


def test_the_objective_works_on_a_grown_model() -> None:
    stage = stages.stage(grow(tiny.model("gpt2"), (1,), 1).model, 2, "causal")
    assert torch.isfinite(stage.objective.forward(stage.model, next(stage.batches(4))).loss)


ARCHITECTURES = ["gpt2", "gpt_neox", "llama", "gemma2", "t5", "distilbert", "bert", "roberta"]


def _objective(architecture: str) -> str:
    return tiny.objective_of(architecture)


def _mixture(networks: list[nn.Module], scores: list[Tensor], top_k: int, x: Tensor) -> Tensor:
    """Σ g_e E_e(x) of one token, in float64; scores of all experts but the first, whose score is 0."""
    raw = [torch.zeros((), dtype=torch.float64), *(row.double() @ x for row in scores)]
    p = [float(value.detach().exp()) for value in raw]
    chosen = sorted(range(len(p)), key=lambda e: -p[e])[:top_k]
    whole = sum(p[e] for e in chosen)
    return sum(p[e] / whole * networks[e](x[None])[0] for e in chosen)


def mixed(layer: ExpertLayer, network: nn.Module, hidden: Tensor) -> Tensor:
    """The output of a layer's hooks around a network of one module."""
    layer.read(network, (hidden,))
    return layer.hook(network, (), network(hidden))


@pytest.mark.parametrize(("domains", "experts", "top_k"), [(1, 1, 2), (2, 2, 2), (3, 1, 3)])
def test_a_layer_is_the_equation(domains: int, experts: int, top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "TOKENS_TO", 4)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 6))
    layer = ExpertLayer([network], 6, domains, experts, top_k)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
    hidden = torch.randn(2, 7, 6)
    found = mixed(layer, network, hidden)
    networks = [copy.deepcopy(one).double() for one in (network, *layer.experts)]
    scores = [row for gate in layer.gates for row in gate]
    for n in range(2):
        for t in range(7):
            expected = _mixture(networks, scores, top_k, hidden[n, t].double())
            torch.testing.assert_close(found[n, t].double(), expected, rtol=1e-4, atol=1e-5)
    found.square().sum().backward()
    trained = {name for name, parameter in layer.named_parameters() if parameter.requires_grad}
    assert {name for name, parameter in layer.named_parameters() if parameter.grad is not None} == trained
    last = domains - 1
    assert trained == {f"gates.{last}"} | {
        f"experts.{e}.{name}"
        for e in range(last * experts, domains * experts)
        for name, _ in network.named_parameters()
    }


def test_the_device_is_asked_once_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many tokens an expert reads has to be known; each question waits for all that runs there."""
    layer, hidden = ExpertLayer([nn.Linear(4, 4)], 4, 6, 1, 2), torch.rand(1, 5, 4)
    asked: list[str] = []
    for name in ("__int__", "__float__", "__bool__", "item", "tolist"):
        plain = getattr(Tensor, name)
        monkeypatch.setattr(Tensor, name, lambda *a, name=name, plain=plain: asked.append(name) or plain(*a))
    mixed(layer, nn.Identity(), hidden)
    assert len(asked) == 1


def test_an_expert_without_a_token_has_a_gradient_of_zeros() -> None:
    """DDP would wait for it."""
    network = nn.Linear(4, 4)
    layer = ExpertLayer([network], 4, 3, 1, 2)
    with torch.no_grad():
        layer.gates[0].copy_(torch.full((1, 4), 9.0))
        layer.gates[1].copy_(torch.full((1, 4), 8.0))
        layer.gates[2].copy_(torch.full((1, 4), -9.0))
    hidden = torch.rand(1, 5, 4) + 1
    mixed(layer, network, hidden).sum().backward()
    assert torch.equal(layer.experts[2].weight.grad, torch.zeros(4, 4))
    assert torch.equal(layer.gates[2].grad, torch.zeros(1, 4))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_first_domain_begins_at_the_base_models_function(architecture: str) -> None:
    model = tiny.model(architecture)
    stage = stages.stage(model, 1, _objective(architecture))
    batch = next(stage.batches(3))
    before = stage.objective.per_sample_loss(model, batch).detach()
    frozen = {id(p) for network in feed_forward_networks(model, "x") for p in network.parameters(model).values()}
    protection = Protection([LifelongMoE()], stage)
    protection.begin()
    outputs, extra = protection.forward(model.eval(), batch)
    torch.testing.assert_close(stage.objective.per_sample_loss(model, batch).detach(), before)
    assert extra["lifelong_moe/outputs"].item() == pytest.approx(0, abs=1e-5)
    assert all(p.requires_grad == (id(p) not in frozen) for p in model.parameters())
    protection.end()
    assert all(p.requires_grad for p in model.parameters())


def test_old_experts_and_their_gating_stay_and_each_domain_adds_its_own() -> None:
    method, model = LifelongMoE(experts=2), tiny.model("llama")
    base = stages.weights(model)
    known: dict[str, Tensor] = {}
    networks = feed_forward_networks(model, "x")
    for index in (1, 2, 3):
        stage = stages.stage(model, index, "causal")
        seen: list[dict[str, Tensor]] = []

        def see(protection, _, stage=stage, seen=seen) -> None:
            layer = attached(stage.model, "lifelong_moe").layers[0]
            seen.append({name: p.detach().clone() for name, p in layer.named_parameters()})

        stages.learn([method], stage, each=see)
        assert len(seen[0]) == index * (1 + 2 * 3)
        for name, value in seen[-1].items():
            if name in known:
                assert torch.equal(value, known[name])
            else:
                assert not torch.equal(value, seen[0][name])
        memory = method.memory()
        known = {
            name.split("/")[1].removeprefix("layers.0."): value
            for name, value in memory.tensors.items()
            if "/layers.0." in name
        }
        assert memory.facts["domains"] == [f"d{i}" for i in range(1, index + 1)]
        assert len(known) == index * (1 + 2 * 3)
    moved = {name for name, value in stages.weights(model).items() if not torch.equal(value, base[name])}
    own = {name for network in networks for name in network.parameters(model)}
    assert moved == set(base) - own, "what is shared is trained, and the first expert is not"


def test_a_network_of_two_modules_is_the_equation() -> None:
    """In BERT the experts stand between the input of `intermediate` and the residual sum of `output`."""
    method, model = LifelongMoE(weight=0), tiny.model("bert").eval()
    for index in (1, 2):
        stages.learn([method], stages.stage(model, index, "masked"), lr=0.05)
    reading = Reading(None, ("d1", "d2"), None, lambda: model, None)
    tested = method.test_model(copy.deepcopy(model), reading).eval()
    layer, experts = tested.bert.encoder.layer[0], attached(tested, "lifelong_moe").layers[0]
    hidden = torch.randn(1, 3, 32)
    found = layer.feed_forward_chunk(hidden)
    first = nn.Sequential(model.bert.encoder.layer[0].intermediate, model.bert.encoder.layer[0].output.dense)
    networks = [copy.deepcopy(one).double() for one in (first, *experts.experts)]
    scores = [row for gate in experts.gates for row in gate]
    for t in range(3):
        mixture = _mixture(networks, scores, 2, hidden[0, t].double())
        expected = layer.output.LayerNorm.double()(mixture + hidden[0, t].double())
        torch.testing.assert_close(found[0, t].double(), expected, rtol=1e-4, atol=1e-5)


def test_freeze_shared_leaves_the_base_model() -> None:
    method, model = LifelongMoE(freeze_shared=True), tiny.model("gpt2")
    base = stages.weights(model)
    stages.learn([method], stages.stage(model, 1, "causal"))
    assert all(torch.equal(value, base[name]) for name, value in stages.weights(model).items())
    assert method.freezes
    assert not LifelongMoE().freezes
    methods = [build("migu"), method]
    with pytest.raises(MethodError, match="'lifelong_moe' freezes the model, so method 'migu'"):
        check_methods(methods, stages.setting(tiny.model("gpt2"), methods, "causal"))


@pytest.mark.parametrize("architecture", ["gpt2", "t5", "bert"])
def test_outputs_are_held_by_the_previous_model_with_its_experts(architecture: str) -> None:
    objective = _objective(architecture)
    method, model = LifelongMoE(weight=0.7), tiny.model(architecture)
    stages.learn([method], stages.stage(model, 1, objective))
    stage = stages.stage(model, 2, objective)
    reading = Reading(None, ("d1",), stage.objective, lambda: model, stage.batches)
    previous = method.test_model(copy.deepcopy(model), reading).double().eval()
    protection = Protection([method], stage)
    protection.begin()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
    batch = next(stage.batches(3))
    _, extra = protection.forward(model, batch)
    now = copy.deepcopy(model).double().eval()
    old, new = (stage.objective.log_probabilities(each, batch) for each in (previous, now))
    rows = []
    for n in range(len(old)):
        labels = [k for k in range(old.shape[1]) if batch["labels"][n, k] != IGNORE]
        rows.append(sum((old[n, k].exp() * (old[n, k] - new[n, k])).sum() for k in labels) / len(labels))
    expected = 0.7 * float((sum(rows) / len(rows)).detach())
    assert expected > 1e-4
    assert extra["lifelong_moe/outputs"].item() == pytest.approx(expected, rel=1e-3)


def test_at_test_all_texts_are_read_with_all_experts() -> None:
    method, model = LifelongMoE(weight=0), tiny.model("gpt2")
    last: list[Tensor] = []
    for index in (1, 2):
        stage = stages.stage(model, index, "causal")
        batch = next(stages.stage(model, 9, "causal").batches(3))

        def see(protection, _, stage=stage, batch=batch) -> None:
            with torch.no_grad():
                last[:] = [stage.objective.per_sample_loss(stage.model.eval(), batch)]
            stage.model.train()

        stages.learn([method], stage, each=see, lr=1e-9)
    restored = LifelongMoE(weight=0)
    restored.load_memory(method.memory())
    for domain in ("d1", None):
        reading = Reading(domain, ("d1", "d2"), stage.objective, lambda: model, stage.batches)
        tested = restored.test_model(copy.deepcopy(model), reading).eval()
        torch.testing.assert_close(stage.objective.per_sample_loss(tested, batch), last[0], rtol=1e-4, atol=1e-5)
        assert all(p.requires_grad for p in tested.parameters()), "an end task trains them with the model"
    assert not restored.tested_as_saved, "an export of the model alone is refused"


def test_where_there_is_no_feed_forward_module_it_is_refused() -> None:
    with pytest.raises(MethodError, match=r"'lifelong_moe' adds experts to .*\(`model.path`\), or 'moe_lora'\.$"):
        check_methods([LifelongMoE()], stages.setting(tiny.model("bart"), [], "text-to-text"))


def test_other_additions_are_refused() -> None:
    methods = [build("lifelong_moe"), build("dap_adapter")]
    with pytest.raises(MethodError, match=r"'lifelong_moe' adds experts .* 'dap_adapter'"):
        LifelongMoE.check(methods[0], stages.setting(tiny.model("gpt2"), methods, "causal"))
