"""Loading: attention kernels, missing weights, fields of a configuration that change; numbers of a recipe."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig

import support_page
import tiny
from cli_project import Project
from everlearn.commands.inspect_model import inspect
from everlearn.commands.model_probe import ModelProbe
from everlearn.config import recipe as recipes
from everlearn.config.reading import read_value
from everlearn.config.recipe import parse
from everlearn.errors import EverlearnError, MethodError, ModelError, RecipeError
from everlearn.learner import ContinualLearner
from everlearn.methods import build
from everlearn.methods.masks.mofo import largest_entries
from everlearn.model.loading import load_model, load_skeleton, load_weights
from everlearn.model.objectives import make_objective
from everlearn.model.options import Model
from everlearn.model.vocabulary_head import running_sums
from everlearn.predictors.decoding import Ending
from everlearn.run.dry_run import check_devices


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


BASE = "suite:docs/base"


def recipe(**model: object) -> recipes.Recipe:
    return recipes.parse({"model": model, "domains": [{"name": "one", "path": "one.txt"}]})


def rates(model: nn.Module) -> set[float]:
    return {module.p for module in model.modules() if isinstance(module, nn.Dropout)}


def test_a_field_is_changed_the_weights_stay_and_a_saved_model_keeps_it(tmp_path: Path) -> None:
    own, changed = (
        load_model(recipe(path=BASE).model),
        load_model(recipe(path=BASE, config={"hidden_dropout_prob": 0.0}).model),
    )
    assert 0.1 in rates(own)
    assert rates(changed) == {0.0}
    for name, value in own.state_dict().items():
        assert torch.equal(value, changed.state_dict()[name]), name
        assert changed.state_dict()[name].dtype == torch.float32
    changed.save_pretrained(tmp_path)
    assert rates(load_model(recipe(path=str(tmp_path), tokenizer=BASE).model)) == {0.0}


def test_an_unknown_field_is_refused_with_a_suggestion() -> None:
    with pytest.raises(
        ModelError, match=r"no 'hidden_droput_prob' \(`model.config`\). Did you mean 'hidden_dropout_prob'"
    ):
        load_model(recipe(path=BASE, config={"hidden_droput_prob": 0.0}).model)


def test_a_value_that_does_not_fit_is_refused() -> None:
    with pytest.raises(EverlearnError):
        load_model(recipe(path=BASE, config={"hidden_dropout_prob": "none"}).model)
    with pytest.raises(EverlearnError):
        load_model(recipe(path=BASE, config={"hidden_size": 128}).model)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ({"tokenizer": BASE}, "`path` (a pre-trained model) or"),
        ({"path": BASE, "config": {"model_type": "roberta"}}, "random weights"),
        ({"config": {"hidden_size": 8}, "tokenizer": BASE}, "needs `model_type`"),
        ({"config": {"model_type": "roberta"}}, "needs `tokenizer`"),
    ],
)
def test_what_a_model_is_made_of_is_checked(model: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        recipe(**model)


def saved(folder: Path, token: int | None = None, **changes: object) -> str:
    """Save a tiny model, with other values in its configuration and another id of a seldom token."""
    tiny.model("roberta").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    for name, change in (("config.json", changes), ("tokenizer.json", {})):
        content = json.loads((folder / name).read_text()) | change
        if token is not None and "model" in content:
            content["model"]["vocab"]["\u0141"] = token
        (folder / name).write_text(json.dumps(content))
    return str(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_attention_heads": 0}, "has num_attention_heads: 0; it must be 1 or more."),
        ({"hidden_size": -32}, "has hidden_size: -32; it must be 1 or more."),
        ({"num_attention_heads": 5}, "No model can be built from the configuration of '{}': The hidden size"),
    ],
)
def test_a_configuration_of_no_model_is_a_sentence(tmp_path: Path, changes: dict[str, int], words: str) -> None:
    path = saved(tmp_path, **changes)
    for look in (inspect, ModelProbe):
        with pytest.raises(ModelError, match=re.escape(words.format(path))):
            look(path)
    config = {"model_type": "roberta", "hidden_size": 32, "num_attention_heads": 4, **changes}
    with pytest.raises(ModelError, match=r"`model\.config`"):
        load_model(Model(config=config, tokenizer=BASE))


def test_a_token_without_an_embedding_is_refused_however_few_tokens_there_are(tmp_path: Path) -> None:
    path = saved(tmp_path, token=2**31)
    with pytest.raises(ModelError, match=r"token ids up to 2,147,483,648, but the model has 384 embeddings"):
        ModelProbe(path)


HUGE = 16**4000


def test_base_60_is_text() -> None:
    """A time or a ratio is what it looks like. (Of a long one PyYAML would multiply for a minute.)"""
    assert read_value("[12:30, 1:2.5, 0x10, 1e-4]", "a") == ["12:30", "1:2.5", 16, 1e-4]
    assert read_value("1" + ":1" * 160_000, "a") == "1" + ":1" * 160_000


@pytest.mark.parametrize("number", ["0x" + "f" * 4000, "0b" + "1" * 15_000, "9" * 101, "1." + "1" * 5000])
def test_a_number_that_python_cannot_print_is_refused(number: str) -> None:
    with pytest.raises(RecipeError, match=r"line 1: a number of [\d,]+ characters .*the most is 100"):
        read_value(f"{{seed: {number}}}", "run")


@pytest.mark.parametrize(
    "changed",
    [{"run": {"seed": HUGE}}, {"data": {"block_size": HUGE}}, {"train": {"max_steps": HUGE}}, {"model": HUGE}],
)
def test_a_number_from_python_has_the_same_limit(changed: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="is a number of more than 100 digits"):
        parse({"model": "m", "domains": [{"name": "a", "path": "a.txt"}], **changed})


def test_a_wrong_option_that_python_cannot_print_is_a_sentence() -> None:
    with pytest.raises(MethodError, match="more than 4,300 digits"):
        build({"name": "ewc", "strength": -HUGE})
    with pytest.raises(MethodError, match="more than 4,300 digits"):
        build({"name": "ewc", "anchor": HUGE})


def test_weights_in_fp8_are_unpacked(tmp_path: Path) -> None:
    """Each value of a matrix times its scale, in float32, and what is saved has none of it."""
    plain: Any = tiny.model("llama")
    plain.save_pretrained(tmp_path / "fp8")
    packed: dict[str, torch.Tensor] = {}
    for name, value in load_file(tmp_path / "fp8" / "model.safetensors").items():
        scale = value.abs().max().reshape(1, 1) / torch.finfo(torch.float8_e4m3fn).max
        in_fp8 = "proj" in name
        packed |= {name: (value / scale).to(torch.float8_e4m3fn) if in_fp8 else value}
        packed |= {f"{name}_scale_inv": scale} if in_fp8 else {}
    save_file(packed, tmp_path / "fp8" / "model.safetensors", {"format": "pt"})
    config = tmp_path / "fp8" / "config.json"
    options = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": options}))

    loaded: Any = load_model(Model(path=str(tmp_path / "fp8")))
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    for name, value in loaded.named_parameters():
        scale = packed.get(f"{name}_scale_inv", torch.ones(1))
        torch.testing.assert_close(value.detach(), packed[name].float() * scale, rtol=1e-6, atol=1e-8)
    loaded.save_pretrained(tmp_path / "saved")
    assert "quantization_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())


# -- what a run asks of a GPU, on a machine that has none --------------------------------------------------------------

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Whatever the test chooses, the others have what they had."""
    before, cudnn = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn
    kept, known = (cudnn.deterministic, cudnn.benchmark), os.environ.get(CUBLAS)
    yield
    torch.use_deterministic_algorithms(before)
    cudnn.deterministic, cudnn.benchmark = kept
    os.environ.pop(CUBLAS, None) if known is None else os.environ.update({CUBLAS: known})


@pytest.fixture
def one_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)


def test_more_processes_than_accelerators_are_refused_before_any_work(
    everlearn: Project, one_accelerator: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    done = everlearn("run", "recipe.yaml")
    assert done.code == 2
    said = "this machine has 1 for 2 processes. Start no more than 1 (`torchrun --nproc-per-node 1`), or set"
    assert said in " ".join(done.err.split())
    assert "`train.use_cpu: true`" in done.err
    assert not everlearn.run_folder.exists()


def test_as_many_are_taken_and_a_cpu_takes_any_number(one_accelerator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    check_devices(cpu=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    check_devices(cpu=True)
    with pytest.raises(RecipeError, match="has 1 for 4 processes"):
        check_devices(cpu=False)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)
    check_devices(cpu=False)


def test_determinism_begins_with_the_run(finished_run: Path, deterministic: None) -> None:
    """cuBLAS reads its setting at the first product, which is before the first Trainer is made."""
    torch.use_deterministic_algorithms(False)
    os.environ.pop(CUBLAS, None)
    recipe = ContinualLearner.open(finished_run).recipe
    assert not torch.are_deterministic_algorithms_enabled()
    train = recipe.model_dump(exclude_unset=True)["train"]
    ContinualLearner(recipe.changed(train={**train, "full_determinism": True}))
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ[CUBLAS] == ":16:8"


def test_tokens_are_drawn_alike_by_deterministic_sums(deterministic: None) -> None:
    torch.manual_seed(0)
    likely, draws = torch.log_softmax(torch.randn(4, 50), -1), torch.rand(4, 1, dtype=torch.float64)
    found = []
    for strict in (False, True):
        torch.use_deterministic_algorithms(strict)
        found.append(Ending(1, temperature=1, draws=draws).choose(likely, []))
    assert torch.equal(*found)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert running_sums(torch.empty(2, 3, device="cuda")).device.type == "cuda"


def test_earlier_models_are_where_the_tested_one_is(finished_run: Path) -> None:
    """A method's ensemble of `reading.checkpoints` reads batches that are on the scorer's device."""
    learner = ContinualLearner.open(finished_run)
    scorer = learner.scorer()
    scorer.device = torch.device("meta")
    reading = scorer._reading(1, None, lambda: learner.some_model(), lambda: scorer._blocks(None))
    assert {parameter.device.type for parameter in reading.checkpoints[0].parameters()} == {"meta"}
    assert {parameter.device.type for parameter in learner.checkpoints(1)[0].parameters()} == {"cpu"}


def test_the_largest_entries_need_no_kernel_that_is_refused() -> None:
    """`kthvalue` has no deterministic form on a GPU; ties at the smallest are all taken, as before."""
    assert largest_entries(torch.tensor([3.0, -3.0, 1.0, 2.0, -2.0]), 0.6).tolist() == [1, 1, 0, 1, 1]
    assert largest_entries(torch.zeros(3), 0.5).tolist() == [0, 0, 0]
