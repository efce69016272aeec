"""Loading: the attention kernel that transformers chooses, and missing weights that are named for what they are."""

from __future__ import annotations

import pytest
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

import support_page
import tiny
from everlearn.errors import ModelError
from everlearn.model.loading import load_model, load_skeleton, load_weights
from everlearn.model.objectives import make_objective
from everlearn.model.source import Model


@pytest.mark.parametrize(("model_type", "kernel"), [("gemma2", "eager"), ("gpt_oss", "eager"), ("llama", "sdpa")])
def test_transformers_chooses_the_kernel_unless_it_is_named(tmp_path, model_type, kernel):
    support_page.model(model_type).save_pretrained(tmp_path)
    for load in (load_model, load_skeleton):
        assert load(Model(path=str(tmp_path))).config._attn_implementation == kernel
        assert load(Model(path=str(tmp_path), attn_implementation="eager")).config._attn_implementation == "eager"


@pytest.mark.parametrize("kernel", ["flash_attention_2", "flash_attention_3", "flash_attention_4"])
def test_a_kernel_that_is_not_installed_is_named(tmp_path, kernel):
    support_page.model("llama").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=rf"attn_implementation: {kernel}` cannot be used here: .*installed"):
        load_model(Model(path=str(tmp_path), attn_implementation=kernel))


def test_flex_attention_is_taken_by_its_name(tmp_path):
    support_page.model("llama").save_pretrained(tmp_path)
    model = load_model(Model(path=str(tmp_path), attn_implementation="flex_attention"))
    assert model.config._attn_implementation == "flex_attention"


def renamed(folder, change):
    """Save a model's weights under other names; None leaves one out."""
    support_page.model("llama").save_pretrained(folder)
    file = folder / "model.safetensors"
    weights = {new: value for name, value in load_file(file).items() if (new := change(name)) is not None}
    save_file(weights, file, {"format": "pt"})


def test_weights_of_a_wrapped_peft_model_are_called_that(tmp_path):
    model = support_page.model("llama")
    wrapped = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"]))
    wrapped.base_model.model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"no weights for .*q_proj.*with PEFT adapters.*merge_and_unload") as refused:
        load_weights(str(tmp_path))
    assert "language-model head" not in str(refused.value)


def test_weights_of_a_compiled_model_are_called_that(tmp_path):
    renamed(tmp_path, lambda name: f"_orig_mod.{name}")
    with pytest.raises(ModelError, match=r"begin with '_orig_mod\.', as those of a wrapped model"):
        load_weights(str(tmp_path))


def test_a_missing_head_is_a_missing_head(tmp_path):
    renamed(tmp_path, lambda name: None if name.startswith("lm_head") else name)
    with pytest.raises(ModelError, match=r"lm_head\.weight: it was saved without its language-model head"):
        load_weights(str(tmp_path))


def test_files_that_lack_a_layer_are_incomplete(tmp_path):
    renamed(tmp_path, lambda name: None if "layers.1.mlp" in name else name)
    with pytest.raises(ModelError, match=r"it lacks 3 tensors\. The files are incomplete or of another model"):
        load_weights(str(tmp_path))


def test_an_answer_begins_with_the_token_of_the_configuration():
    assert AutoConfig.for_model("mbart").decoder_start_token_id is None
    model = support_page.model("mbart", decoder_start_token_id=None)
    with pytest.raises(ModelError, match=r"lacks `decoder_start_token_id`, .* answer begins\. Set `model\.config"):
        make_objective("text-to-text", model, tiny.tokenizer())
