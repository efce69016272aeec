"""CPT: parallel plug-ins with gates that end up 0 or 1."""

from __future__ import annotations

import copy

import pytest
import torch
from hard_attention_checks import classifier, hidden, reading
from torch import Tensor

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.engine.attachment import attached
from everlearn.methods.engine.protection import check_methods
from everlearn.methods.gates.cpt import CPT, PlugIn, sublayers
from everlearn.methods.gates.hard_attention import settled


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
    assert plugin.entering is None


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


def test_a_learnt_domain_and_the_base_stay_bit_for_bit() -> None:
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
