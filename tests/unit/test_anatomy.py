"""Units and projections of models, with attention and without."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
)
from transformers.pytorch_utils import Conv1D

import stages
import tiny
from everlearn.errors import MethodError, ModelError
from everlearn.importance import gradient_moment
from everlearn.methods import build
from everlearn.methods.engine.protection import check_methods
from everlearn.model.anatomy import Anatomy, anatomy, head_path, kind_of, register_architecture
from everlearn.model.architectures import _TABLE, architectures
from everlearn.model.depth import frozen_parameters
from everlearn.model.finding import cache_in
from everlearn.model.gates import Gates
from everlearn.model.loading import empty_model
from everlearn.model.objectives import make_objective
from everlearn.predictors.decoding import Ending, continuation, decode
from everlearn_bench.bases import cnn as convolutional  # noqa: F401  AutoConfig knows them from here on

# -- Anatomy: units, gates and ownership in every architecture, with and without adapters ------------------------------


SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 384,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128}
MORE = {
    "xlm-roberta": (AutoModelForMaskedLM, SMALL),
    "electra": (AutoModelForMaskedLM, {**SMALL, "embedding_size": 16}),
    "modernbert": (
        AutoModelForMaskedLM,
        {**SMALL, **dict.fromkeys(["pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"], 0)},
    ),
    "gemma": (AutoModelForCausalLM, GROUPED),
    "gemma3_text": (AutoModelForCausalLM, GROUPED),
}
VARIANTS = {
    "t5 gated": ("t5", {"feed_forward_proj": "gated-gelu"}),
    "gpt_neox serial": ("gpt_neox", {"use_parallel_residual": False}),
}
ALL = [*tiny.ARCHITECTURES, *MORE, *VARIANTS]


def make(name: str):
    """A tiny model in eval mode whose biases are not zero, so that wrong ownership of a bias shows."""
    if name in MORE:
        cls, options = MORE[name]
        torch.manual_seed(0)
        model = cls.from_config(AutoConfig.for_model(name, **options), dtype=torch.float32).eval()
    else:
        base, changes = VARIANTS.get(name, (name, {}))
        model = tiny.model(base, **changes)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


def inputs(model, rows: int = 2) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 300, (rows, 9), generator=torch.Generator().manual_seed(2))
    extra = {"decoder_input_ids": ids[:, :6].flip(0)} if kind_of(model) == "encoder-decoder" else {}
    return {"input_ids": ids, **extra}


@torch.no_grad()
def logits(model, **more) -> torch.Tensor:
    return model(**inputs(model), **more).logits


def scaled(model, factors):
    """A copy whose parameters are multiplied by factors."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if name in factors:
                parameter.mul_(factors[name])
    return twin


def check_ownership(model, found: Anatomy, before: torch.Tensor) -> None:
    for site in found.sites:
        group = max(owned.group for owned in site.owned)
        keep = torch.ones(site.units)
        # One head (of grouped-query attention all heads of one group); of neurons and outputs many, to be seen.
        keep[group : 2 * group if site.kind == "head" else site.units // 2] = 0
        with Gates(model) as gates:
            gates.set({site.name: keep})
            gated = logits(model)
        assert (gated - before).abs().max() > 1e-4, site.name
        owned = logits(scaled(model, found.parameter_factors({site.name: keep})))
        torch.testing.assert_close(owned, gated, rtol=1e-5, atol=2e-6, msg=lambda m: f"{site.name}: {m}")  # noqa: B023


@pytest.mark.parametrize("name", ALL)
def test_sites_cover_every_layer(name):
    model = make(name)
    found = anatomy(model)
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    expected = {"head": 4, "neuron": 128 if name == "gpt2" else 64, "output": 32}
    assert all(site.units == expected[site.kind] for site in found.sites)
    assert all(site.width == (8 if site.kind == "head" else 1) for site in found.sites)
    layers = 4 if found.kind == "encoder-decoder" else 2
    assert sum(site.kind == "neuron" for site in found.sites) == layers
    assert sum(site.kind == "head" for site in found.sites) == layers + (2 if found.kind == "encoder-decoder" else 0)
    assert len({site.name for site in found.sites}) == len(found.sites)
    assert {site.module for site in found.sites} <= modules.keys()
    assert {owned.parameter for site in found.sites for owned in site.owned} <= parameters.keys()
    assert len(set(found.linears)) == len(found.linears)
    # Every matrix inside the layers is a tracked projection: none was overlooked.
    inside = {n for n, m in modules.items() if isinstance(m, (torch.nn.Linear, Conv1D)) and re.search(r"\.\d+\.", n)}
    assert inside == set(found.linears)


def test_names_are_stable():
    names = [site.name for site in anatomy(make("t5")).sites]
    assert names[:3] == ["encoder.0.self_attention.heads", "encoder.0.ffn.neurons", "encoder.0.ffn.output"]
    assert "decoder.1.cross_attention.heads" in names
    assert [site.name for site in anatomy(make("gpt2")).sites][:3] == [
        "layers.0.attention.heads",
        "layers.0.ffn.neurons",
        "layers.0.ffn.output",
    ]


@pytest.mark.parametrize("name", ALL)
def test_head_takes_the_last_hidden_state(name):
    model = make(name)
    seen = []
    handle = model.get_submodule(head_path(model)).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    out = model(**inputs(model), output_hidden_states=True)
    handle.remove()
    states = out.decoder_hidden_states if kind_of(model) == "encoder-decoder" else out.hidden_states
    ratio = (seen[0] / states[-1]).flatten()
    torch.testing.assert_close(ratio, ratio[0].expand_as(ratio))  # T5 may scale it for its tied head
    assert head_path(model) == anatomy(model).head


@pytest.mark.parametrize("name", ALL)
def test_gates_of_one_change_no_bit(name):
    model = make(name)
    before = logits(model)
    with Gates(model) as gates:
        assert torch.equal(logits(model), before)
        gates.set({site.name: torch.ones(site.units) for site in gates.sites})
        assert torch.equal(logits(model), before)
    assert torch.equal(logits(model), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", ALL)
def test_owned_parameters_are_the_units(name):
    """Setting a unit's own parameters to zero is the same function as gating the unit to zero, and a different one
    from the untouched model: the parameters are the unit's, all of them and no others."""
    model = make(name)
    before, found = logits(model), anatomy(model)
    check_ownership(model, found, before)


@pytest.mark.parametrize("name", ["roberta", "gpt2", "gpt_neox", "llama", "modernbert"])
def test_only_the_value_path_of_a_head_is_its_own(name):
    """Each of the q, k, v entries named as owned must matter to that head alone: with the head gated to zero,
    scrambling them (but not the output bias) changes nothing."""
    model = make(name)
    found = anatomy(model)
    site = found.sites[0]
    group = max(owned.group for owned in site.owned)
    keep = torch.ones(site.units)
    keep[:group] = 0
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, factors in found.parameter_factors({site.name: keep}).items():
            target = twin.get_parameter(parameter)
            target.add_(torch.randn_like(target) * (1 - factors))
    results = []
    for each in (model, twin):
        with Gates(each) as gates:
            gates.set({site.name: keep})
            results.append(logits(each))
    torch.testing.assert_close(*results)


def test_grouped_heads_share_the_smallest_factor():
    found = anatomy(make("llama"))
    factors = found.parameter_factors({"layers.0.attention.heads": torch.tensor([0.9, 0.2, 0.7, 1.0])})
    at = "model.layers.0.self_attn."
    assert factors[f"{at}k_proj.weight"].shape == (16, 1)
    torch.testing.assert_close(factors[f"{at}k_proj.weight"][::8, 0], torch.tensor([0.2, 0.7]))
    torch.testing.assert_close(factors[f"{at}q_proj.weight"][::8, 0], torch.tensor([0.9, 0.2, 0.7, 1.0]))
    torch.testing.assert_close(factors[f"{at}o_proj.weight"][0, ::8], torch.tensor([0.9, 0.2, 0.7, 1.0]))


def test_factors_broadcast_and_leave_the_rest_out():
    model = make("gpt2")
    found = anatomy(model)
    factors = found.parameter_factors({site.name: torch.full((site.units,), 0.5) for site in found.sites})
    for name, factor in factors.items():
        assert torch.broadcast_shapes(factor.shape, model.get_parameter(name).shape) == model.get_parameter(name).shape
    untouched = {name for name, _ in model.named_parameters()} - factors.keys()
    assert all(
        "ln_" in n or n.endswith("attn.c_proj.bias") or n in ("transformer.wte.weight", "transformer.wpe.weight")
        for n in untouched
    )


def test_two_owners_multiply():
    site = anatomy(make("roberta")).sites[2]
    twice = Anatomy("encoder", (site, type(site)(**{**vars(site), "name": "again"})), "", ())
    half = torch.full((site.units,), 0.5)
    factors = twice.parameter_factors({site.name: half, "again": half})
    assert all(torch.equal(factor, torch.full_like(factor, 0.25)) for factor in factors.values())


def test_wrong_units_and_sites_are_named():
    found = anatomy(make("roberta"))
    with pytest.raises(
        MethodError, match=r"no unit site 'layers\.0\.ffn\.neuron'.*Did you mean 'layers\.0\.ffn\.neurons'"
    ):
        found.parameter_factors({"layers.0.ffn.neuron": torch.ones(64)})
    with pytest.raises(MethodError, match="has 64 units"):
        found.parameter_factors({"layers.0.ffn.neurons": torch.ones(3)})


def test_meta_device():
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **GROUPED))
    assert anatomy(model).sites == anatomy(make("llama")).sites


@pytest.mark.parametrize(
    ("name", "targets", "options"),
    [
        ("roberta", ["query", "value", "dense"], {}),
        ("gpt2", ["c_attn", "c_proj"], {"fan_in_fan_out": True}),
        ("t5", ["q", "v", "wi"], {}),
    ],
)
def test_peft(name, targets, options):
    plain = make(name)
    before = anatomy(plain)
    config = LoraConfig(target_modules=targets, init_lora_weights=False, **options)
    model = get_peft_model(copy.deepcopy(plain), config).eval()
    found = anatomy(model)
    assert [site.name for site in found.sites] == [site.name for site in before.sites]
    assert kind_of(model) == before.kind
    assert head_path(model) == f"base_model.model.{before.head}"
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    assert set(found.linears) <= modules.keys()
    assert len(found.linears) == len(before.linears)
    owned = {owned.parameter for site in found.sites for owned in site.owned}
    assert owned <= parameters.keys()
    assert any(".base_layer.weight" in n for n in owned)
    assert any(".lora_B.default.weight" in n for n in owned)
    for site in found.sites:
        keep = torch.ones(site.units)
        keep[1] = 0
        with Gates(model) as gates:
            gates.set({site.name: keep})
            gated = logits(model)
        owned_zero = logits(scaled(model, found.parameter_factors({site.name: keep})))
        torch.testing.assert_close(owned_zero, gated, rtol=1e-5, atol=2e-6)


def test_inside_a_wrapper():
    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    found = anatomy(Wrapper(make("gpt2")))
    assert found.head == "module.lm_head"
    assert found.sites[0].module == "module.transformer.h.0.attn.c_proj"


def test_model_without_a_vocabulary_head():
    model = BertModel(BertConfig(**SMALL))
    assert anatomy(model).head == ""
    assert anatomy(model).sites[0].module == "encoder.layer.0.attention.output.dense"
    with pytest.raises(ModelError, match=r"no vocabulary head.*model\.path"):
        head_path(model)


def test_what_is_no_language_model_is_named():
    model = AutoModel.from_config(AutoConfig.for_model("vit", num_hidden_layers=1))
    for ask in (anatomy, head_path, kind_of):
        with pytest.raises(ModelError, match=r"A 'vit' .* is no language model.*add-an-architecture\.md"):
            ask(model)


def test_not_a_transformers_model():
    with pytest.raises(ModelError, match="'Linear' is not a transformers model"):
        anatomy(torch.nn.Linear(2, 2))


def test_a_registered_architecture_is_used(monkeypatch):
    monkeypatch.setattr("everlearn.model.architectures._TABLE", copy.copy(_TABLE))
    model = make("roberta")
    model.config.model_type = "my-roberta"
    register_architecture("my-roberta", architectures()["roberta"])
    assert len(anatomy(model).sites) == 6
    assert "my-roberta" in architectures()


def test_a_wrong_entry_is_named(monkeypatch):
    monkeypatch.setattr("everlearn.model.architectures._TABLE", copy.copy(_TABLE))
    model = make("roberta")
    register_architecture("roberta", architectures()["llama"])
    with pytest.raises(ModelError, match="none of the layers"):
        anatomy(model)


@pytest.mark.parametrize(("model_type", "own"), [("ibert", {}), ("squeezebert", {"embedding_size": 32})])
def test_a_model_without_linear_layers_is_refused_with_the_keys_to_change(model_type, own):
    """I-BERT has layers of its own for integers, SqueezeBERT has convolutions; methods without layers take both."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    model = empty_model(AutoConfig.for_model(model_type, vocab_size=tiny.VOCABULARY, **sizes, **own))
    for name in ("lora", "migu", "das"):
        methods = [build(name)]
        with pytest.raises(ModelError, match=r"\(`model`\) has none.*this `method` needs.* such as `mas`"):
            check_methods(methods, stages.setting(model, methods, general=True))
    methods = [build("mas")]
    check_methods(methods, stages.setting(model, methods, general=True))


def test_the_documented_example_is_right(monkeypatch):
    monkeypatch.setattr("everlearn.model.architectures._TABLE", copy.copy(_TABLE))
    page = Path(__file__).parents[2] / "docs" / "add-an-architecture.md"
    exec(re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL).group(1), {})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("phi", **SMALL), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    check_ownership(model, anatomy(model), logits(model))
    assert head_path(model) == "lm_head"


def test_fused_grouped_query_attention_is_refused():
    model = make("gpt_neox")
    attention = model.gpt_neox.layers[0].attention
    attention.query_key_value = torch.nn.Linear(32, 64)
    with pytest.raises(ModelError, match=r"query_key_value' gives 64 features.*96: fused grouped-query"):
        anatomy(model)
    attention.query_key_value = torch.nn.Identity()
    with pytest.raises(ModelError, match=r"no linear projection at 'gpt_neox\.layers\.0\.attention\.query_key_value'"):
        anatomy(model)


# -- The LSTM and the CNN: against PyTorch's own, documents that share a row, states, saving, and what methods find ----


LSTM, CNN = "everlearn-lstm", "everlearn-cnn"
each = pytest.mark.parametrize("name", [LSTM, CNN])
poolings = pytest.mark.parametrize("pooling", ["last", "max", "mean"])


def make_of_without_attention(name: str, **changes: Any) -> Any:
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


def test_an_lstm_layer_is_pytorchs():
    layer = make_of_without_attention(LSTM).double().model.layers[0]
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
    layer = make_of_without_attention(CNN, pooling=pooling, kernel_size=3).double().model.layers[0]
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
    model, ids = make_of_without_attention(CNN, num_hidden_layers=1, kernel_size=2, pooling=pooling), some()
    other = ids.clone()
    other[:, 0] = 9
    assert (model(ids).logits[:, -1] != model(other).logits[:, -1]).any() == reaches


def test_cells_begin_by_keeping():
    config = AutoConfig.for_model(LSTM, vocab_size=20, hidden_size=4, intermediate_size=3)
    bias = AutoModelForCausalLM.from_config(config).model.layers[0].input_gates.bias
    assert bias.tolist() == [0.0] * 3 + [1.0] * 3 + [0.0] * 6


@each
@poolings
def test_documents_of_a_row_do_not_see_each_other(name, pooling):
    model, ids = make_of_without_attention(name, pooling=pooling), some()
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
    model, ids = make_of_without_attention(name), some()
    changed = ids.clone()
    changed[:, 8:] = 7
    assert torch.equal(model(ids).logits[:, :8], model(changed).logits[:, :8])


@each
def test_the_objective_isolates_and_scores_them(name):
    model = make_of_without_attention(name)
    objective = make_objective("causal", model, tiny.tokenizer())
    batch = objective.collate(stages.blocks(3, objective="causal"), range(3))
    losses = objective.forward(model, batch).losses
    logits = model(batch["input_ids"], position_ids=batch["position_ids"]).logits
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
    torch.testing.assert_close(losses.flatten(), expected)


@each
@poolings
@torch.no_grad()
def test_states_go_on_where_a_text_was_left(name, pooling):
    model, ids = make_of_without_attention(name, pooling=pooling), some()
    positions = torch.cat([torch.arange(4), torch.arange(9)]).expand(2, -1)
    whole, states, found = model(ids, position_ids=positions).logits, None, []
    for part, places in zip(ids.split([6, 1, 1, 5], 1), positions.split([6, 1, 1, 5], 1), strict=True):
        out = model(part, position_ids=places, past_key_values=states, use_cache=True)
        states = cache_in(out)
        found.append(out.logits)
    torch.testing.assert_close(torch.cat(found, 1), whole, rtol=1e-5, atol=1e-6)


@each
def test_writing_does_not_depend_on_padding(name):
    model, ids = make_of_without_attention(name), some(2, 6)
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


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_after_the_first_token_only_the_new_one_is_read(name):
    """Whatever the installed transformers calls a cache."""
    model, read = tiny.model(name), []
    ids_of = "decoder_input_ids" if name == "t5" else "input_ids"
    model.register_forward_pre_hook(lambda _, args, given: read.append(given[ids_of].shape[1]), with_kwargs=True)
    ids = some(2, 6)
    decode(continuation(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}), Ending(4))
    assert read == [1 if name == "t5" else 6, 1, 1, 1]


@each
def test_save_and_load(name, tmp_path):
    model, ids = make_of_without_attention(name), some()
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is type(model)
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert torch.equal(again(ids).logits, model(ids).logits)


@each
@poolings
def test_a_classifier_pools_over_the_text(name, pooling, tmp_path):
    make_of_without_attention(name, pooling=pooling).save_pretrained(tmp_path)
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


@each
def test_units_own_their_parameters(name):
    model = make_of_without_attention(name)
    found = anatomy(model)
    assert {(site.kind, site.units) for site in found.sites} == {("neuron", 24), ("output", 16)}
    inside = {n for n, m in model.model.layers.named_modules(prefix="model.layers") if isinstance(m, nn.Linear)}
    assert set(found.linears) == inside
    ids = torch.randint(5, 300, (2, 9), generator=torch.Generator().manual_seed(2))  # what check_ownership reads
    check_ownership(model, found, model(ids).logits.detach())


@each
def test_fisher_is_that_of_single_samples(name):
    model = make_of_without_attention(name)
    objective = make_objective("causal", model, tiny.tokenizer())
    batch = objective.collate(stages.blocks(3, objective="causal"), range(3))
    found = gradient_moment(model, [batch], objective.per_sample_loss)
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
    model = make_of_without_attention(name, dropout=0.1)
    method = build(options)
    before = copy.deepcopy(model)
    for index in (1, 2):
        parts = stages.learn([method], stages.stage(model, index, "causal", steps=2))
        assert all(torch.isfinite(part["loss"]) for part in parts)
    assert any((a != b).any() for a, b in zip(model.parameters(), before.parameters(), strict=True))


@each
def test_what_takes_attention_is_refused(name):
    model = make_of_without_attention(name)
    for method, says in (("progressive_prompts", "all documents of a row"), ("cpt", "")):
        with pytest.raises(MethodError, match=f"Method '{method}'.*{says}, but '.*ForCausalLM' has no attention"):
            check_methods([build(method)], stages.setting(model, [build(method)], "causal"))


@each
def test_lora_needs_layers_that_are_there(name):
    model = make_of_without_attention(name)
    with pytest.raises(ModelError, match=r"no attention, whose projections `query-value`.*target_modules: all-linear"):
        check_methods([build("lora")], stages.setting(model, [build("lora")], "causal"))
    stages.learn([build({"name": "lora", "target_modules": "all-linear"})], stages.stage(model, 1, "causal", steps=1))


@pytest.mark.parametrize("name", ["mocl", "sapt_lora"])
def test_blocks_mixed_for_each_token_are_refused_in_an_lstm(name):
    methods = [build({"name": name, "target_modules": "all-linear"})]
    with pytest.raises(ModelError, match="one token at a time"):
        check_methods(methods, stages.setting(make_of_without_attention(LSTM), methods, "causal"))
    check_methods(methods, stages.setting(make_of_without_attention(CNN), methods, "causal"))


@each
def test_embeddings_can_be_frozen(name):
    model = make_of_without_attention(name, tie_word_embeddings=False)
    assert frozen_parameters(model, ["embeddings"]) == [model.model.embed_tokens.weight]
