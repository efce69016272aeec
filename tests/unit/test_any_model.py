"""Every current model type, made tiny: the loss is the model's own, five methods learn, and the page says the rest."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

import stages
import support_page
import tiny
from everlearn.commands.activation_trace import trace, without_numbers
from everlearn.errors import MethodError, ModelError
from everlearn.methods import build
from everlearn.methods.engine.protection import Protection
from everlearn.model.anatomy import anatomy
from everlearn.model.depth import places
from everlearn.model.loading import class_with_vision, empty_model, load_weights
from everlearn.model.objectives import IGNORE, make_objective
from everlearn.model.options import Model
from everlearn.model.packed_rows import why_not_isolated
from everlearn.model.routing import router_note
from everlearn.model.structure import architecture_for
from everlearn.model.weight_movement import SavedWeights
from everlearn.predictors.decoding import Ending, continuation, decode
from everlearn.protecting import protect
from model_types import DECODERS, ENCODERS, TYPES, configuration


@pytest.mark.parametrize("model_type", sorted(TYPES))
def test_what_works_stands_on_the_page(model_type):
    assert support_page.row(model_type) == support_page.committed()[model_type]


def test_the_page_names_nothing_else():
    assert set(support_page.committed()) == set(TYPES)


@pytest.mark.parametrize("model_type", sorted(TYPES))
def test_the_loss_is_that_of_the_models_own_logits(model_type):
    model, name = support_page.model(model_type), support_page.objective(model_type)
    objective = make_objective(name, model, tiny.tokenizer())
    kind = "encoder-decoder" if name == "text-to-text" else "decoder"
    batch = objective.collate(stages.blocks(3, 1, name, kind), [0, 1, 2])
    with torch.no_grad():
        losses = objective.forward(model, batch).losses
        logits = model(**objective.inputs(batch), use_cache=False).logits if name != "masked" else None
        if logits is None:
            logits = model(**objective.inputs(batch)).logits
        if "positions" in batch:
            logits = logits.gather(1, batch["positions"][:, :, None].expand(-1, -1, logits.shape[-1]))
    own = F.cross_entropy(logits.double().transpose(1, 2), batch["labels"], ignore_index=IGNORE, reduction="none")
    torch.testing.assert_close(losses.double(), own, rtol=1e-4, atol=1e-5)


SCALING = {
    "t5": (AutoModelForSeq2SeqLM, TYPES["t5"]),
    "umt5": (AutoModelForSeq2SeqLM, TYPES["t5"]),
    "switch_transformers": (AutoModelForSeq2SeqLM, TYPES["t5"]),
    "bart": (AutoModelForSeq2SeqLM, TYPES["bart"]),
    "minicpm3": (
        AutoModelForCausalLM,
        TYPES["llama"] | {"q_lora_rank": 8, "kv_lora_rank": 8, "dim_model_base": 8, "num_key_value_heads": 4},
    ),
    "granite": (AutoModelForCausalLM, TYPES["granite"]),
    "roberta": (AutoModelForMaskedLM, TYPES["roberta"]),
}


@pytest.mark.parametrize("model_type", sorted(SCALING))
def test_the_last_hidden_state_is_not_what_a_model_makes_of_it_before_its_head(model_type):
    """Tied T5 models multiply it by d^(-1/2), MiniCPM divides it: comparisons of it would be weaker for them alone."""
    made, options = SCALING[model_type]
    config = AutoConfig.for_model(model_type, **options, vocab_size=tiny.VOCABULARY, pad_token_id=1)
    model = made.from_config(config).eval()
    objective = make_objective(None, model, tiny.tokenizer())
    name = objective.name
    batch = objective.collate(stages.blocks(3, 1, name, "encoder-decoder"), [0, 1, 2])
    with torch.no_grad():
        inputs = objective.inputs(batch)
        found, losses = objective.hidden(model, inputs), objective.forward(model, batch).losses
        output = model(**inputs, **objective.options(), output_hidden_states=True)
    own = output.decoder_hidden_states if name == "text-to-text" else output.hidden_states
    torch.testing.assert_close(found, own[-1])
    if "positions" not in batch:
        nats = F.cross_entropy(output.logits.transpose(1, 2), batch["labels"], ignore_index=IGNORE, reduction="none")
        torch.testing.assert_close(losses, nats, rtol=1e-4, atol=1e-5)


def second_documents(model, objective):
    """Return the hidden states of one document behind two others."""
    rows = stages.blocks(2, 1, "causal")
    rows[1]["segments"] = rows[0]["segments"]
    second = rows[0]["segments"] == 1
    rows[1]["input_ids"][second] = rows[0]["input_ids"][second]
    batch = objective.collate(rows, [0, 0])
    with torch.no_grad():
        return objective.hidden(model, objective.inputs(batch))[:, torch.from_numpy(second)]


@pytest.mark.parametrize("model_type", sorted(ENCODERS))
def test_documents_of_an_encoders_row_can_be_kept_apart_with_sdpa(model_type):
    model = support_page.model(model_type)
    if support_page.committed()[model_type].split(" | ")[-2] != "if asked":
        with pytest.raises(ModelError, match=r"attn_implementation.*isolate_documents: false"):
            make_objective("masked", model, tiny.tokenizer(), isolate=True)
        return
    one, other = second_documents(model, make_objective("masked", model, tiny.tokenizer(), isolate=True))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model_type", sorted(DECODERS))
def test_documents_of_a_row_do_not_see_each_other_unless_the_page_says_so(model_type):
    model = support_page.model(model_type)
    objective = make_objective("causal", model, tiny.tokenizer())
    assert objective.isolate == (not why_not_isolated(model))
    one, other = second_documents(model, objective)
    if objective.isolate:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    else:
        assert (one - other).abs().max() > 1e-5
        with pytest.raises(ModelError, match=r"isolate_documents: true.*Remove it"):
            make_objective("causal", model, tiny.tokenizer(), isolate=True)


@pytest.mark.parametrize("model_type", ["gpt_oss", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "qwen3_next"])
def test_the_router_loss_of_experts_is_trained_where_the_configuration_asks_for_it(model_type):
    for asked in (True, False):
        model = support_page.model(model_type, output_router_logits=asked, router_aux_loss_coef=0.5)
        stage = stages.stage(model, 1, "causal", count=2, batch_size=2, steps=1)
        batch = stage.objective.collate(list(stages.blocks(2, 1, "causal")), [0, 1])
        total, parts = Protection([], stage).loss(model, batch)
        assert ("model/router" in parts) == asked
        if asked:
            own = model(**stage.objective.inputs(batch), use_cache=False).aux_loss
            torch.testing.assert_close(parts["model/router"], 0.5 * own)
            torch.testing.assert_close(total, parts["loss"] + 0.5 * own)


def test_a_run_says_what_becomes_of_the_router():
    config = configuration("mixtral")
    assert "output_router_logits: true" in (router_note(config) or "")
    config.output_router_logits = True
    assert "is added to the loss" in (router_note(config) or "")
    assert "selection bias" in (router_note(configuration("deepseek_v3")) or "")
    assert router_note(configuration("llama")) is None


ROPE = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 16},
    "llama3": {
        "factor": 2.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "longrope": {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 16},
}


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        *(("llama", {"rope_parameters": {"rope_type": name, "rope_theta": 1e4, **own}}) for name, own in ROPE.items()),
        ("mistral", {"sliding_window": 6}),
        ("phi3", {"sliding_window": 6}),
        ("starcoder2", {"sliding_window": 6}),
    ],
)
def test_windows_and_scaled_positions_keep_documents_apart_and_learn(model_type, changes):
    model = support_page.model(model_type, **changes)
    one, other = second_documents(model, make_objective("causal", model, tiny.tokenizer(), isolate=True))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert support_page.learn(model_type, "replay", **changes)[0]["loss"].isfinite()


VISION = ["gemma3", "llama4", "mllama", "qwen2_5_vl", "qwen3_5"]


@pytest.mark.parametrize("model_type", VISION)
def test_a_vision_language_model_learns_text_and_its_vision_stays(model_type):
    model = support_page.model(model_type)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    stage = stages.stage(model, 1, "causal", steps=1, count=2, batch_size=2)
    stages.learn([build("sequential")], stage, weight_decay=0.1)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert not any("vision" in name or "visual" in name or "projector" in name for name in changed)


@pytest.mark.parametrize("model_type", VISION)
def test_a_vision_language_model_is_loaded_complete_and_its_card_says_how(model_type, tmp_path):
    model = support_page.model(model_type)
    model.save_pretrained(tmp_path)
    assert load_weights(str(tmp_path)).state_dict().keys() == model.state_dict().keys()
    assert class_with_vision(Model(path=str(tmp_path)), tmp_path) == "AutoModelForImageTextToText"
    AutoModelForImageTextToText.from_pretrained(tmp_path)


def test_a_text_model_needs_no_class_with_vision(tmp_path):
    support_page.model("llama").save_pretrained(tmp_path)
    assert class_with_vision(Model(path=str(tmp_path)), tmp_path) is None


def test_a_head_that_is_not_understood_is_refused():
    model = support_page.model("opt")
    plain = type(model).forward

    def squared(self, *args, **kwargs):
        output = plain(self, *args, **kwargs)
        output.logits = output.logits**3
        return output

    model.__class__ = type("Cubed", (type(model),), {"forward": squared})
    with pytest.raises(ModelError, match=r"makes its logits in another way.*register the path of its head"):
        make_objective("causal", model, tiny.tokenizer(), isolate=False)


def test_a_bias_that_is_zero_is_found_too():
    """ESM's head adds its bias to the projection, which random weights do not show."""
    model = AutoModelForMaskedLM.from_config(configuration("esm"))
    objective = make_objective("masked", model, tiny.tokenizer())
    assert objective.forward(model, objective.collate(stages.blocks(2, 1, "masked"), [0, 1])).loss.isfinite()


def test_a_cap_is_restored_after_a_pass():
    model = support_page.model("recurrent_gemma", logits_soft_cap=0.5)
    stage = stages.stage(model, 1, "causal", count=2, batch_size=2)
    losses = stage.objective.forward(model, next(stage.batches(2))).losses
    assert losses.max() <= math.log(tiny.VOCABULARY) + 1
    assert model.config.logits_soft_cap == 0.5


@pytest.mark.parametrize(
    ("model_type", "changes", "why"),
    [
        ("xmod", {"default_language": None}, "cannot read two tokens: Input language unknown.*`model.config`"),
        ("rwkv", {"rescale_every": 2}, r"changes its own weights.*set `model.config: {rescale_every: 0}`"),
    ],
)
def test_a_model_that_needs_another_configuration_says_so(model_type, changes, why):
    with pytest.raises(ModelError, match=why):
        support_page.learn(model_type, "sequential", **changes)


def test_a_layer_of_groups_is_no_linear_layer():
    """DeepSeek-V4 has a subclass of a linear layer that PEFT and MIGU would take for one."""
    model = support_page.model("deepseek_v4")
    assert not [path for path in anatomy(model).linears if path.endswith("o_a_proj")]
    method = build({"name": "lora", "target_modules": ["o_a_proj"]})
    with pytest.raises(MethodError, match="no linear layer 'o_a_proj'"):
        method.check(stages.setting(model, [method], "causal"))


@pytest.mark.parametrize(("model_type", "options"), [("mixtral", {}), ("mamba", {}), ("olmo2", {})])
def test_a_method_that_needs_units_is_refused_for_that(model_type, options):
    model = support_page.model(model_type)
    method = build({"name": "das", "contrast": 0, "general": "none", **options})
    with pytest.raises(MethodError, match=r"'das' uses the attention heads or neurons.*Set `method` to one"):
        method.check(stages.setting(model, [method], "causal"))
    neurons = build({"name": "das", "contrast": 0, "general": "none", "units": ["neuron"]})
    if model_type == "olmo2":
        neurons.check(stages.setting(model, [neurons], "causal"))


def test_adapters_that_peft_cannot_place_are_named():
    model = support_page.model("mamba")
    for wanted, why in (("query-value", "all-linear"), (["out_proj"], "kernels that bypass adapters. Remove it")):
        method = build({"name": "lora", "target_modules": wanted})
        with pytest.raises((MethodError, ModelError), match=why):
            method.check(stages.setting(model, [method], "causal"))


def test_a_merged_adapter_leaves_embeddings_tied():
    stage = stages.stage(support_page.model("t5gemma"), 1, "text-to-text", steps=1, count=2, batch_size=2)
    stages.learn([build({"name": "lora", "target_modules": "all-linear"})], stage)
    assert stage.model.config.tie_word_embeddings is True


@pytest.mark.parametrize("model_type", sorted(DECODERS))
@torch.no_grad()
def test_prompts_of_different_lengths_are_continued_as_they_are_alone(model_type):
    model, pad = support_page.model(model_type), tiny.tokenizer().pad_token_id
    prompts = [[20, 21, 22, 23, 24], [30, 31, 32]]
    rows = {
        "input_ids": torch.tensor([prompts[0], [pad, pad, *prompts[1]]]),
        "attention_mask": torch.tensor([[1] * 5, [0, 0, 1, 1, 1]]),
    }
    written = decode(continuation(model, rows), Ending(4, (-1,)))
    for prompt, tokens in zip(prompts, written, strict=True):
        for token in tokens:
            likely = model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0, -1]
            assert likely[token] >= likely.max() - 1e-4
            prompt.append(token)


@pytest.mark.parametrize("model_type", ["gemma3", "qwen2_5_vl", "opt", "mamba", "qwen3_next", "t5gemma"])
def test_tensors_in_a_file_have_the_places_of_the_layers(model_type, tmp_path):
    model = support_page.model(model_type)
    model.save_pretrained(tmp_path)
    weights = SavedWeights(tmp_path)
    found = places(weights.shapes(), architecture_for(model.config))
    assert found.keys() == weights.shapes().keys()
    assert {"embeddings"} < {layer for layer, _ in found.values()}
    layers = [layer for layer, _ in found.values() if layer.startswith(("layers.", "encoder.", "decoder."))]
    assert len(set(layers)) == (4 if model_type == "t5gemma" else 2)


@pytest.mark.parametrize("model_type", sorted(TYPES))
def test_memory_is_estimated(model_type):
    """Only the configuration is read; twice the rows hold about twice as much."""
    model = empty_model(configuration(model_type))
    objective = make_objective(support_page.objective(model_type), model, tiny.tokenizer())
    options = {"half": False, "checkpointing": False, "shapes": without_numbers(model)}
    one, two = (trace(model, objective, rows, 16, **options).activations for rows in (1, 2))
    assert 0 < one < two <= 2.1 * one


def test_protect_trains_a_type_without_an_entry(tmp_path):
    model, rows = support_page.model("cohere"), [{"input_ids": [*range(10, 26)]}] * 4
    arguments = TrainingArguments(str(tmp_path / "out"), max_steps=1, use_cpu=True, report_to="none", disable_tqdm=True)
    collator = DataCollatorForLanguageModeling(tiny.tokenizer(), mlm=False)
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collator)
    protect(trainer, ["replay", "migu"], memory=tmp_path / "memory", domain="one").train()
    assert list((tmp_path / "memory").glob("stage-01-*"))
