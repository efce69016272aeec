"""The LSTM and the CNN: against PyTorch's own, documents that share a row, states, saving, and what methods find."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from test_anatomy import check_ownership
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

import stages
import tiny
from everlearn.errors import MethodError, ModelError
from everlearn.importance.fisher import fisher
from everlearn.methods import build
from everlearn.methods.engine.protection import check_methods
from everlearn.model.anatomy import anatomy
from everlearn.model.depth import frozen_parameters
from everlearn.model.objectives import make_objective
from everlearn.predictors.decoding import Ending, continuation, decode
from everlearn_bench.bases import cnn as convolutional  # noqa: F401  AutoConfig knows them from here on

LSTM, CNN = "everlearn-lstm", "everlearn-cnn"
each = pytest.mark.parametrize("name", [LSTM, CNN])
poolings = pytest.mark.parametrize("pooling", ["last", "max", "mean"])


def make(name: str, **changes: Any) -> Any:
    """A tiny one in eval mode, whose biases are not zero."""
    sizes = {"vocab_size": tiny.VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "dropout": 0.0}
    config = AutoConfig.for_model(name, **(sizes | {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2} | changes))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def some(rows: int = 2, length: int = 13) -> torch.Tensor:
    return torch.randint(5, 300, (rows, length), generator=torch.Generator().manual_seed(1))


# -- what the layers compute ------------------------------------------------------------------------------------------


def test_an_lstm_layer_is_pytorchs():
    layer = make(LSTM).double().model.layers[0]
    theirs = nn.LSTM(16, 24, proj_size=16, batch_first=True).double()
    given = {"weight_ih_l0": layer.input_gates.weight, "weight_hh_l0": layer.state_gates.weight}
    given |= {
        "bias_ih_l0": layer.input_gates.bias,
        "bias_hh_l0": torch.zeros(96),
        "weight_hr_l0": layer.projection.weight,
    }
    theirs.load_state_dict(given)
    x = torch.randn(3, 7, 16, dtype=torch.float64)
    found, (said, cell) = layer.read(x, torch.zeros(3, 7, dtype=torch.long), None)
    expected, (last_said, last_cell) = theirs(x)
    for one, other in ((found, expected), (said, last_said[0]), (cell, last_cell[0])):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@poolings
def test_a_cnn_layer_is_a_convolution_with_pooling(pooling):
    layer = make(CNN, pooling=pooling, kernel_size=3).double().model.layers[0]
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    found, _ = layer.read(x, torch.zeros(2, 6, dtype=torch.long), None)
    kernel = layer.convolution.weight.view(24, 3, 16).transpose(1, 2)
    filters = torch.conv1d(nn.functional.pad(x.mT, (2, 0)), kernel, layer.convolution.bias).relu().mT
    for row in range(2):
        for t in range(6):
            text = filters[row, : t + 1, 12:]
            far = {"last": text[-1], "max": text.amax(0), "mean": text.mean(0)}[pooling]
            expected = layer.output(torch.cat([filters[row, t, :12], far]))
            torch.testing.assert_close(found[row, t], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("pooling", "reaches"), [("max", True), ("mean", True), ("last", False)])
def test_pooling_reaches_as_far_as_the_document(pooling, reaches):
    model, ids = make(CNN, num_hidden_layers=1, kernel_size=2, pooling=pooling), some()
    other = ids.clone()
    other[:, 0] = 9
    assert (model(ids).logits[:, -1] != model(other).logits[:, -1]).any() == reaches


def test_cells_begin_by_keeping():
    config = AutoConfig.for_model(LSTM, vocab_size=20, hidden_size=4, intermediate_size=3)
    bias = AutoModelForCausalLM.from_config(config).model.layers[0].input_gates.bias
    assert bias.tolist() == [0.0] * 3 + [1.0] * 3 + [0.0] * 6


# -- one row, several documents ---------------------------------------------------------------------------------------


@each
@poolings
def test_documents_of_a_row_do_not_see_each_other(name, pooling):
    model, ids = make(name, pooling=pooling), some()
    positions = torch.cat([torch.arange(5), torch.arange(1), torch.arange(7)]).expand(2, -1)
    packed = model(ids, position_ids=positions).logits
    apart = torch.cat([model(part).logits for part in ids.split([5, 1, 7], 1)], 1)
    torch.testing.assert_close(packed, apart, rtol=1e-5, atol=1e-6)
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    model(inputs_embeds=embedded, position_ids=positions).logits[:, 6:].square().sum().backward()
    assert not embedded.grad[:, :6].any()  # exactly nothing
    assert embedded.grad[:, 6:].abs().amin() > 0
    assert (model(ids).logits[:, 6:] - packed[:, 6:]).abs().max() > 1e-4  # the test can tell


@each
def test_nothing_is_read_ahead(name):
    model, ids = make(name), some()
    changed = ids.clone()
    changed[:, 8:] = 7
    assert torch.equal(model(ids).logits[:, :8], model(changed).logits[:, :8])


@each
def test_the_objective_isolates_and_scores_them(name):
    model = make(name)
    objective = make_objective("causal", model, tiny.tokenizer())
    batch = objective.collate(stages.blocks(3, objective="causal"), range(3))
    losses = objective.forward(model, batch).losses
    logits = model(batch["input_ids"], position_ids=batch["position_ids"]).logits
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
    torch.testing.assert_close(losses.flatten(), expected)


# -- states, padding, saving ------------------------------------------------------------------------------------------


@each
@poolings
@torch.no_grad()
def test_states_go_on_where_a_text_was_left(name, pooling):
    model, ids = make(name, pooling=pooling), some()
    positions = torch.cat([torch.arange(4), torch.arange(9)]).expand(2, -1)
    whole, states, found = model(ids, position_ids=positions).logits, None, []
    for part, places in zip(ids.split([6, 1, 1, 5], 1), positions.split([6, 1, 1, 5], 1), strict=True):
        out = model(part, position_ids=places, past_key_values=states, use_cache=True)
        states = out.past_key_values
        found.append(out.logits)
    torch.testing.assert_close(torch.cat(found, 1), whole, rtol=1e-5, atol=1e-6)


@each
def test_writing_does_not_depend_on_padding(name):
    model, ids = make(name), some(2, 6)
    ids[0, :2] = 1
    mask = (ids != 1).long()
    ending = Ending(5)
    together = decode(continuation(model, {"input_ids": ids, "attention_mask": mask}), ending)
    alone = [
        decode(continuation(model, {"input_ids": row[None], "attention_mask": torch.ones_like(row)[None]}), ending)[0]
        for row in (ids[0, 2:], ids[1])
    ]
    reread = []
    for row in (ids[0, 2:], ids[1]):
        for _ in range(5):
            row = torch.cat([row, model(row[None]).logits[0, -1:].argmax(-1)])
        reread.append(row[-5:].tolist())
    assert together == alone == reread
    theirs = model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, eos_token_id=None)
    assert theirs[:, -5:].tolist() == together


@each
def test_save_and_load(name, tmp_path):
    model, ids = make(name), some()
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is type(model)
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert torch.equal(again(ids).logits, model(ids).logits)


@each
@poolings
def test_a_classifier_pools_over_the_text(name, pooling, tmp_path):
    make(name, pooling=pooling).save_pretrained(tmp_path)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3).eval()
    ids = some(2, 7)
    for padded in (slice(5, 7), slice(0, 2)):
        rows, mask = ids.clone(), torch.ones_like(ids)
        rows[0, padded], mask[0, padded] = 1, 0
        kept = rows[0][mask[0].bool()][None]
        found = model(rows, attention_mask=mask).logits
        for row, text in zip(found, (kept, rows[1:]), strict=True):
            hidden = model.model(text).last_hidden_state[0]
            vector = {"last": hidden[-1], "max": hidden.amax(0), "mean": hidden.mean(0)}[pooling]
            torch.testing.assert_close(row, model.score(vector), rtol=1e-5, atol=1e-6)


# -- methods ----------------------------------------------------------------------------------------------------------


@each
def test_units_own_their_parameters(name):
    model = make(name)
    found = anatomy(model)
    assert {(site.kind, site.units) for site in found.sites} == {("neuron", 24), ("output", 16)}
    inside = {n for n, m in model.model.layers.named_modules(prefix="model.layers") if isinstance(m, nn.Linear)}
    assert set(found.linears) == inside
    ids = torch.randint(5, 300, (2, 9), generator=torch.Generator().manual_seed(2))  # what check_ownership reads
    check_ownership(model, found, model(ids).logits.detach())


@each
def test_fisher_is_that_of_single_samples(name):
    model = make(name)
    objective = make_objective("causal", model, tiny.tokenizer())
    batch = objective.collate(stages.blocks(3, objective="causal"), range(3))
    found = fisher(model, [batch], objective.per_sample_loss)
    expected = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for row in range(3):
        model.zero_grad()
        objective.per_sample_loss(model, {key: value[row : row + 1] for key, value in batch.items()}).sum().backward()
        for n, p in model.named_parameters():
            expected[n] += p.grad.square() / 3
    for n, value in expected.items():
        torch.testing.assert_close(found[n], value, rtol=1e-4, atol=1e-10, msg=lambda m, n=n: f"{n}: {m}")


@each
@pytest.mark.parametrize(
    "options",
    [{"name": "sequential"}, {"name": "ewc", "strength": 10}, {"name": "replay"}, {"name": "kd"}, {"name": "migu"}],
    ids=lambda options: options["name"],
)
def test_methods_learn_two_domains(name, options):
    model = make(name, dropout=0.1)
    method = build(options)
    before = copy.deepcopy(model)
    for index in (1, 2):
        parts = stages.learn([method], stages.stage(model, index, "causal", steps=2))
        assert all(torch.isfinite(part["loss"]) for part in parts)
    assert any((a != b).any() for a, b in zip(model.parameters(), before.parameters(), strict=True))


@each
def test_what_takes_attention_is_refused(name):
    model = make(name)
    for method, says in (("progressive_prompts", "every document in it, which takes"), ("cpt", "takes attention")):
        with pytest.raises(MethodError, match=f"Method '{method}'.*{says}.*ForCausalLM' has none"):
            check_methods([build(method)], stages.setting(model, [build(method)], "causal"))


@each
def test_lora_needs_layers_that_are_there(name):
    model = make(name)
    with pytest.raises(ModelError, match=r"no attention, whose projections `query-value`.*target_modules: all-linear"):
        check_methods([build("lora")], stages.setting(model, [build("lora")], "causal"))
    stages.learn([build({"name": "lora", "target_modules": "all-linear"})], stages.stage(model, 1, "causal", steps=1))


@pytest.mark.parametrize("name", ["mocl", "sapt_lora"])
def test_blocks_mixed_for_each_token_are_refused_in_an_lstm(name):
    methods = [build({"name": name, "target_modules": "all-linear"})]
    with pytest.raises(ModelError, match="one token at a time"):
        check_methods(methods, stages.setting(make(LSTM), methods, "causal"))
    check_methods(methods, stages.setting(make(CNN), methods, "causal"))


@each
def test_embeddings_can_be_frozen(name):
    model = make(name, tie_word_embeddings=False)
    assert frozen_parameters(model, ["embeddings"]) == [model.model.embed_tokens.weight]
