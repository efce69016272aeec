"""CorDA and LoRA-Null: what the adapter takes over, in float64 from the papers; what stays of it in a stream."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora.config import CordaConfig
from peft.tuners.lora.corda import preprocess_corda
from torch import Tensor

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.adapters.layer_inputs import read_rows
from everlearn.methods.adapters.low_rank import matrix_of
from everlearn.methods.adapters.residual import Residual
from everlearn.methods.engine.protection import Protection, check_methods

NAMES = ["corda", "lora_null", "lora_null_v2", "pissa"]
TOKENS = {"input_ids": torch.arange(5, 29)[None]}
R = 4


def stage_of(architecture: str = "roberta", index: int = 1, model: Any = None, **options: Any) -> Any:
    made = model if model is not None else tiny.model(architecture)
    return stages.stage(made, index, tiny.objective_of(architecture), general=True, **options)


def make(name: str, **options: Any) -> Residual:
    read = {} if name == "pissa" else {"samples": 6}
    method = build({"name": name, "r": R, **read, **options})
    assert isinstance(method, Residual)
    return method


def inputs_of(stage: Any, source: Any, path: str) -> list[Tensor]:
    """What a layer reads of each row, [tokens, d_in] in float64."""
    seen: list[Tensor] = []
    layer = stage.model.get_submodule(path)
    handle = layer.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].detach()[0].double()))
    stage.batch_size = 1
    with torch.no_grad():
        for row in stage.batches(6, source):
            if "decoder_input_ids" in row:
                prompt = row["attention_mask"][0] == 1
                row |= {key: row[key][:, prompt] for key in ("input_ids", "attention_mask")}
                answer = (row["labels"] != -100)[0]
                row |= {key: row[key][:, answer] for key in ("labels", "decoder_input_ids")}
            stage.objective.forward(stage.model.eval(), row)
    handle.remove()
    return seen


def taken_over(method: Residual, stage: Any) -> dict[str, Tensor]:
    """s B₀ A₀ of each layer, and that the frozen weights lack just this."""
    start = {path: matrix_of(stage.model.get_submodule(path)).clone() for path in method._targets(stage.model)}
    stages.begin([method], stage)
    found = {}
    for path, weight in start.items():
        layer = stage.model.get_submodule(path)
        a, b = layer.lora_A["default"].weight.double(), layer.lora_B["default"].weight.double()
        found[path] = layer.scaling["default"] * b @ a
        torch.testing.assert_close(
            matrix_of(layer.get_base_layer()).double(), weight.double() - found[path], rtol=0, atol=1e-6
        )
    return found


@pytest.mark.parametrize("architecture", ["roberta", "gpt2"])
@pytest.mark.parametrize("mode", ["kpm", "ipm"])
def test_corda_takes_components_of_the_weights_by_what_is_read(architecture: str, mode: Any) -> None:
    """The smallest for general text, the largest for the domain's; as PEFT does it, too."""
    stage = stage_of(architecture)
    source = stage.general if mode == "kpm" else stage.source
    method = make("corda", corda_method=mode, lora_alpha=12)
    paths = method._targets(stage.model)
    read = {path: inputs_of(stage, source, path) for path in paths[:3]}
    stage = stage_of(architecture, batch_size=3)
    plain = copy.deepcopy(stage.model)
    config = LoraConfig(
        r=R,
        lora_alpha=12,
        target_modules=paths,
        init_lora_weights="corda",
        corda_config=CordaConfig(corda_method=mode),
        fan_in_fan_out=architecture == "gpt2",
    )
    theirs = copy.deepcopy(stage.model)
    twin = stage_of(architecture, model=theirs)
    preprocess_corda(theirs, config, run_model=lambda: read_rows(twin, 6, source))
    peft = get_peft_model(theirs, config)
    found = taken_over(method, stage)
    assert not any("eigens" in vars(module) for module in stage.model.modules()), "nothing of PEFT's is left behind"
    for path, rows in read.items():
        weight = matrix_of(plain.get_submodule(path)).double()
        moment = sum((x / x.max().abs()).T @ (x / x.max().abs()) for x in rows) / len(rows)
        moment = moment + 0.01 * moment.diagonal().mean() * torch.eye(len(moment), dtype=torch.float64)
        u, sizes, vt = torch.linalg.svd(weight @ moment, full_matrices=False)
        of = slice(-R, None) if mode == "kpm" else slice(0, R)
        expected = u[:, of] @ torch.diag(sizes[of]) @ vt[of] @ torch.linalg.inv(moment)
        torch.testing.assert_close(found[path], expected, rtol=1e-2, atol=2e-4 * float(expected.abs().max()) + 1e-6)
        own, other = get_peft_model_state_dict(stage.model), get_peft_model_state_dict(peft)
        for matrix in ("lora_A", "lora_B"):
            name = f"base_model.model.{path}.{matrix}.weight"
            torch.testing.assert_close(own[name], other[name])


@pytest.mark.parametrize("architecture", ["roberta", "gpt2"])
def test_pissa_takes_the_principal_components_as_peft_does(architecture: str) -> None:
    stage, method = stage_of(architecture), make("pissa", lora_alpha=12)
    paths, plain = method._targets(stage.model), copy.deepcopy(stage.model)
    turned = architecture == "gpt2"
    config = LoraConfig(r=R, lora_alpha=12, target_modules=paths, init_lora_weights="pissa", fan_in_fan_out=turned)
    peft = get_peft_model(copy.deepcopy(stage.model), config)
    for path, found in taken_over(method, stage).items():
        u, sizes, vt = torch.linalg.svd(matrix_of(plain.get_submodule(path)).double(), full_matrices=False)
        torch.testing.assert_close(found, (u[:, :R] * sizes[:R]) @ vt[:R], rtol=1e-4, atol=1e-5)
        layer: Any = peft.get_submodule(f"base_model.model.{path}")
        delta = layer.get_delta_weight("default").detach().double()
        torch.testing.assert_close(delta.T if turned else delta, found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "t5"])
def test_lora_null_takes_what_the_weights_do_where_nothing_is_read(architecture: str) -> None:
    """From the singular vectors of X itself; A reads as little of X as r directions can."""
    stage, method = stage_of(architecture), make("lora_null", use_rslora=True)
    paths = method._targets(stage.model)[:5]
    read = {path: torch.cat(inputs_of(stage, stage.general, path)) for path in paths}
    weights = {path: matrix_of(stage.model.get_submodule(path)).double().clone() for path in paths}
    found = taken_over(method, stage_of(architecture))
    for path, x in read.items():
        left, sizes, _ = torch.linalg.svd(x.T, full_matrices=True)
        null = left[:, -R:]
        expected = weights[path] @ null @ null.T
        torch.testing.assert_close(found[path], expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
        assert torch.linalg.matrix_norm(found[path] @ x.T, 2) <= 1.001 * sizes[-R] * torch.linalg.matrix_norm(
            expected, 2
        )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("architecture", "options"),
    [("roberta", {}), ("llama", {"use_dora": True}), ("gpt2", {"use_rslora": True, "lora_alpha": 32})],
)
def test_adding_and_merging_keep_the_function(name: str, architecture: str, options: dict[str, Any]) -> None:
    stage, method = stage_of(architecture), make(name, **options)
    before = stage.model.eval()(**TOKENS).logits
    start = stages.weights(stage.model)
    stages.begin([method], stage)
    torch.testing.assert_close(stage.model.eval()(**TOKENS).logits, before, rtol=1e-4, atol=1e-5)
    trained = [p for p in stage.model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == method.cost(tiny.model(architecture)).parameters
    stages.end([method], stage)
    for key, value in stage.model.named_parameters():
        torch.testing.assert_close(value, start[key], rtol=1e-5, atol=1e-6, msg=f"{key} is not put together again")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("architecture", "options"), [("roberta", {"lora_alpha": 12}), ("gpt2", {"use_dora": True})])
def test_a_stage_is_the_base_and_its_adapter(
    name: str, architecture: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Two domains: memory and `adapter/` are what has changed of the base model, not A and B of a rest nobody has."""
    base = tiny.model(architecture)
    method, model = make(name, **options), copy.deepcopy(base)
    starts = []
    for index in (1, 2):
        stage = stage_of(architecture, index, model)
        stages.learn([method], stage, each=lambda *_: starts.append(next(iter(method._start.values()))))
        model = stage.model
    assert (starts[0] - starts[-1]).abs().max() > 1e-6, "found anew for each domain, with the model as it is"
    assert not any("lora" in key for key, _ in model.named_parameters())
    assert not any(key.startswith("/") for key in method.memory().tensors), "what a domain began with is not needed"
    adapter = method.peft_adapter(model, lambda: copy.deepcopy(base))
    assert adapter is not None
    assert adapter.config.r == 2 * 2 * R
    assert adapter.config.init_lora_weights is True
    adapter.save(tmp_path, None)
    read = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "adapter").merge_and_unload()
    moved = 0.0
    for key, weight in stages.weights(model).items():
        torch.testing.assert_close(read.get_parameter(key).detach(), weight, rtol=1e-4, atol=1e-5)
        moved = max(moved, float((weight - base.get_parameter(key).detach()).abs().max()))
    assert moved > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_stage_stands_on_the_same_rest(name: str) -> None:
    """Whatever text is there to read by now: A₀ and B₀ come from memory, and W less them is the same bits."""
    first, second = stage_of(), stage_of()
    method, resumed = make(name), make(name)
    stages.begin([method], first)
    resumed.load_memory(method.memory())
    second.general = stages.source("other", 12, 7)
    stages.begin([resumed], second)
    ours, theirs = stages.weights(first.model), stages.weights(second.model)
    assert all(torch.equal(value, theirs[key]) for key, value in ours.items())
    other = stage_of()
    other.general = stages.source("other", 12, 7)
    stages.begin([make(name)], other)
    same = all(torch.equal(value, ours[key]) for key, value in other.model.named_parameters())
    assert same == (name == "pissa")  # which reads no text


@pytest.mark.parametrize("name", NAMES)
def test_weight_decay_does_not_wear_the_weights_away(name: str) -> None:
    stage, method = stage_of(), make(name)
    start = stages.weights(stage.model)
    protection = Protection([method], stage)
    protection.begin()
    trained = [p for p in stage.model.parameters() if p.requires_grad]
    optimizer = protection.optimizer(torch.optim.AdamW(trained, lr=0.1, weight_decay=5.0))
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    protection.end()
    for key, value in stage.model.named_parameters():
        torch.testing.assert_close(value, start[key], rtol=1e-5, atol=1e-6)


def test_with_a_frozen_no_update_is_seen_by_general_text() -> None:
    """A row of 24 tokens leaves 8 of 32 directions unread; the layer that reads embeddings answers it as before."""
    answers: dict[str, tuple[Tensor, Tensor]] = {}
    path = "roberta.encoder.layer.0.attention.self.query"
    for name in ("lora_null", "lora_null_v2", "inc_lora"):
        stage = stage_of(steps=8)
        stage.general = stages.source("general", 1, 99)
        x = torch.cat(inputs_of(stage, stage.general, path))
        before = matrix_of(stage.model.get_submodule(path)).double().clone()
        method = IncLoRA(r=R) if name == "inc_lora" else make(name, samples=1)
        stages.learn([method], stage)
        changed = matrix_of(stage.model.get_submodule(path)).double() - before
        answers[name] = torch.linalg.norm(changed @ x.T), torch.linalg.norm(changed)
    shares = {name: float(seen / changed) for name, (seen, changed) in answers.items()}
    assert shares.pop("lora_null_v2") < 1e-4
    assert min(shares.values()) > 0.1
    assert all(changed > 1e-2 for _, changed in answers.values())


def test_rows_are_read_one_by_one_without_padding() -> None:
    """PEFT's hooks take one row, and padding is no text."""
    stage, read = stage_of("t5"), []
    handle = stage.model.register_forward_pre_hook(lambda _, args, kwargs: read.append(kwargs), with_kwargs=True)
    make("corda").begin_domain(stage)
    handle.remove()
    assert len(read) == 6
    for kwargs in read:
        assert len(kwargs["input_ids"]) == 1
        assert kwargs["attention_mask"].bool().all()
    assert len({kwargs["decoder_input_ids"].shape[1] for kwargs in read}) > 1


def test_refusals() -> None:
    model = tiny.model()
    for name in ("corda", "lora_null"):
        method = make(name)
        with pytest.raises(MethodError, match=rf"'{name}' reads the recipe's general corpus.*`general`"):
            check_methods([method], stages.setting(model, [method]))
        wide = make(name, r=33)
        with pytest.raises(MethodError, match=r"option 'r'.*rank 33.*Set it to 32 or less"):
            check_methods([wide], stages.setting(model, [wide], general=True))
        rounded = replace(stages.setting(model, [method], general=True), rounded=True)
        with pytest.raises(MethodError, match=rf"'{name}' subtracts a part of the weights.*quantization_config"):
            check_methods([method], rounded)
    check_methods([make("corda", corda_method="ipm")], stages.setting(model, [make("corda", corda_method="ipm")]))
    both = [make("corda"), make("lora_null")]
    with pytest.raises(MethodError, match="both add adapters"):
        check_methods(both, stages.setting(model, both, general=True))
    stage = stage_of()
    with torch.no_grad():
        stage.model.get_parameter("roberta.embeddings.word_embeddings.weight").fill_(float("nan"))
    with pytest.raises(MethodError, match="'corda' cannot decompose"):
        stages.begin([make("corda")], stage)
