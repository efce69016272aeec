"""InfLoRA against its formulas in float64: which directions are trained, which are kept, and what does not change."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AdaLoraConfig, LoraConfig, PeftModel, get_peft_model
from protected_run import OPTIONS, collator, rows
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.adapters.inf_lora import InfLoRA
from everlearn.methods.adapters.low_rank import matrix_of
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.model.peft_adapter import directions_of, matrices_of, merged, with_adapter
from everlearn.protecting import protect

R, ROWS = 4, 6
FIRST = "roberta.encoder.layer.0.attention.self.query"
"""It reads embeddings, which no adapter changes."""


def make(**options: Any) -> InfLoRA:
    method = build({"name": "inf_lora", "r": R, "samples": ROWS, **options})
    assert isinstance(method, InfLoRA)
    return method


def inputs_of(stage: Any, model: Any, paths: list[str]) -> dict[str, Tensor]:
    """H of each layer: what it reads of the first rows of the domain, [d_in, tokens] in float64, all rows at once."""
    seen: dict[str, list[Tensor]] = {path: [] for path in paths}
    handles = [
        model.get_submodule(path).register_forward_hook(
            lambda _, inputs, __, path=path: seen[path].append(inputs[0].detach().flatten(0, 1).double())
        )
        for path in paths
    ]
    was = model.training
    with torch.no_grad():
        for batch in stage.batches(ROWS):
            stage.objective.forward(model.eval(), batch)
    model.train(was)
    for handle in handles:
        handle.remove()
    return {path: torch.cat(rows).T for path, rows in seen.items()}


def kept_after(space: Tensor, h: Tensor, threshold: float) -> Tensor:
    """M with as few singular vectors of (I − M Mᵀ) H as make it hold a share of ‖H‖², added one by one."""
    left, _, _ = torch.linalg.svd(h - space @ space.T @ h, full_matrices=False)
    for i in range(left.shape[1]):
        if (space.T @ h).square().sum() >= threshold * h.square().sum():
            break
        space = torch.cat([space, left[:, i : i + 1]], dim=1)
    return space


@pytest.mark.parametrize("architecture", ["roberta", "gpt2"])
@pytest.mark.parametrize("threshold", [0.5, 0.9])
def test_directions_are_those_of_the_paper(architecture: str, threshold: float) -> None:
    """Three domains: A from singular vectors of what M leaves of H before a domain, M from H after it."""
    model, method = tiny.model(architecture), make(threshold=threshold, target_modules="attention")
    paths = method._targets(model)
    spaces = {path: torch.zeros(len(matrix_of(model.get_submodule(path)).T), 0).double() for path in paths}
    for index in (1, 2, 3):
        stage = stages.stage(model, index, tiny.objective_of(architecture))
        before = inputs_of(stage, model, paths)
        trained: dict[str, Tensor] = {}

        def look(*_: Any, stage: Any = stage, trained: dict[str, Tensor] = trained) -> None:
            for path in paths:
                layer = stage.model.get_base_model().get_submodule(path)
                trained[path] = layer.lora_A["default"].weight.detach().double()

        stages.learn([method], stage, each=look)
        model = stage.model
        after = inputs_of(stage, model, paths)
        for path in paths:
            space, h, a = spaces[path], before[path], trained[path]
            left, sizes, _ = torch.linalg.svd(h - space @ space.T @ h, full_matrices=False)
            torch.testing.assert_close(a @ a.T, torch.eye(R).double(), rtol=0, atol=1e-5)
            torch.testing.assert_close((a @ left[:, :R]).abs().diagonal(), torch.ones(R).double(), rtol=0, atol=1e-2)
            assert (a @ h).square().sum() >= (1 - 1e-5) * sizes[:R].square().sum(), "the leading ones"
            assert (a @ space).abs().max() < 1e-5 if space.shape[1] else True
            spaces[path] = kept_after(space, after[path], threshold)
            found = method._space[path].double()
            assert found.shape == spaces[path].shape
            torch.testing.assert_close(found @ found.T, spaces[path] @ spaces[path].T, rtol=0, atol=1e-4)


def test_answers_to_what_earlier_domains_read_do_not_change() -> None:
    """One row of 24 tokens leaves 8 of 32 directions; a layer that reads embeddings answers it as before."""
    seen = {}
    for name in ("inf_lora", "inc_lora"):
        options = {"samples": 1, "threshold": 0.999999} if name == "inf_lora" else {}
        method = build({"name": name, "r": R, **options})
        model = tiny.model()
        first = stages.stage(model, 1, count=1)
        stages.learn([method], first)
        h = inputs_of(first, first.model, [FIRST])[FIRST]
        before = matrix_of(first.model.get_submodule(FIRST)).double().clone()
        second = stages.stage(first.model, 2, steps=8)
        stages.learn([method], second)
        changed = matrix_of(second.model.get_submodule(FIRST)).double() - before
        assert changed.norm() > 1e-2
        seen[name] = float((changed @ h).norm() / changed.norm())
    assert seen["inf_lora"] < 0.01 < 0.1 < seen["inc_lora"]


def test_only_b_is_trained() -> None:
    stage, method = stages.stage(tiny.model()), make()
    stages.begin([method], stage)
    trained = {name: p for name, p in stage.model.named_parameters() if p.requires_grad}
    assert all("lora_B" in name for name in trained)
    assert sum(p.numel() for p in trained.values()) == method.cost(tiny.model()).parameters


def test_a_resumed_domain_has_the_same_directions() -> None:
    """Whatever text is there to read by now."""
    first, second = stages.stage(tiny.model()), stages.stage(tiny.model())
    method, resumed = make(), make()
    stages.begin([method], first)
    resumed.load_memory(method.memory())
    second.source = stages.source("other", 12, 7)
    stages.begin([resumed], second)
    theirs = stages.weights(second.model)
    assert all(torch.equal(value, theirs[key]) for key, value in stages.weights(first.model).items())
    stages.end([resumed], second)
    assert not any(key.startswith("/rows/") for key in resumed.memory().tensors)


def test_without_free_directions_the_adapter_has_a_smaller_rank() -> None:
    model, method = tiny.model(), make(threshold=0.9999, samples=12)
    for index in (1, 2):
        stage = stages.stage(model, index)
        stages.learn([method], stage)
        model = stage.model
    notes = [note for note in stage.notes if "that rank" in note]
    assert notes
    assert all("'inf_lora': inputs of earlier domains use all but" in note for note in notes)
    path = next(path for path in method._targets(model) if f"'{path}'" in notes[0])
    rank = 32 - method._space[path].shape[1]
    assert rank < R
    own = method._adapters["d2"][f"base_model.model.{path}.lora_A.weight"]
    assert torch.linalg.matrix_rank(own) < R
    assert own.isfinite().all()


def test_refusals() -> None:
    model = tiny.model()
    for options, words in (
        ({"use_dora": True}, "option 'use_dora': a learnt magnitude changes the answers"),
        ({"r": 33}, "option 'r': a layer with 32 inputs.*Set it to 32 or less"),
    ):
        method = make(**options)
        with pytest.raises(MethodError, match=words):
            check_methods([method], stages.setting(model, [method]))
    with pytest.raises(MethodError, match="'threshold'"):
        make(threshold=1.0)
    method = make()
    with pytest.raises(MethodError, match="'inf_lora' was not tried with quantised weights"):
        check_methods([method], replace(stages.setting(model, [method]), rounded=True))
    stages.learn([method], stages.stage(copy.deepcopy(model)))
    other = make(target_modules="attention")
    other.load_memory(method.memory())
    with pytest.raises(MethodError, match="'inf_lora' remembers inputs of other layers"):
        other.begin_domain(stages.stage(model, 2))


# -- o-LoRA's terms on the adapters that a model brings along: in a trainer, and of a PEFT folder as base model --------

TARGETS = ["q_proj", "v_proj", "down_proj"]


def adapted(base: nn.Module | None = None, seed: int = 0, r: int = 4) -> PeftModel:
    """A tiny model with a LoRA adapter that does something."""
    torch.manual_seed(seed)
    model = get_peft_model(base or tiny.model("llama"), LoraConfig(target_modules=TARGETS, r=r)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.05)
    return model


def overlaps(new: dict[str, Tensor], earlier: list[dict[str, Tensor]], absolute: bool = True) -> float:
    """Σ over layers, earlier adapters and pairs of rows, in float64 by loops."""
    total = 0.0
    for path, a in new.items():
        for learnt in earlier:
            for row in a.detach().double():
                for other in learnt.get(path, torch.zeros(0, a.shape[1])).detach().double():
                    product = float(row @ other)
                    total += abs(product) if absolute else product**2
    return total


def copies(model: nn.Module, trained: bool = True) -> dict[str, Tensor]:
    """A of each layer."""
    return {path: a.detach().clone() for path, a in matrices_of(model, "A", trained=trained).items()}


def the_term(method: Any, model: nn.Module, index: int) -> float:
    """The logged loss of a domain that begins now."""
    protection = Protection([method], stage := stages.stage(model, index, "causal"))
    protection.begin()
    loss = protection.forward(model, next(stage.batches(2)))[1].get("o_lora/orthogonality")
    return 0.0 if loss is None else float(loss.detach())


@pytest.mark.parametrize("form", ["absolute", "squares"])
def test_the_terms_are_those_of_the_paper(form: str) -> None:
    """Of a second adapter with what was remembered of the first one, and its gradient is not 0."""
    method = build({"name": "o_lora", "lambda_1": 0.3, "lambda_2": 0.1, "orthogonality": form})
    first = adapted()
    stages.learn([method], stages.stage(first, 1, "causal"))
    earlier = copies(first)
    assert list(method._adapters) == ["d1"]
    second = adapted(merged(first), 1, r=3)
    assert the_term(method, second, 2) == pytest.approx(
        0.3 * overlaps(copies(second), [earlier], form == "absolute"), rel=1e-4
    )
    terms = method.extra_losses(stages.stage(second, 2, "causal"), {}, None)
    wanted = sum(float(p.detach().double().norm()) for n, p in second.named_parameters() if "lora_" in n)
    assert float(terms["norms"].detach()) == pytest.approx(0.1 * wanted, rel=1e-5)
    terms["orthogonality"].backward()
    assert all(bool(a.grad.any()) for a in matrices_of(second, "A").values())


def test_adapters_that_are_frozen_beside_the_new_one_count_once() -> None:
    method = build({"name": "o_lora", "lambda_1": 1.0})
    model = adapted()
    kept = copies(model)
    model.add_adapter("next", LoraConfig(target_modules=TARGETS, r=4))
    model.set_adapter("next")
    assert the_term(method, model, 1) == pytest.approx(overlaps(copies(model), [kept]), rel=1e-4)
    method = build({"name": "o_lora", "lambda_1": 1.0})
    stages.learn([method], stages.stage(model := adapted(), 1, "causal"))
    kept = copies(model)
    model.add_adapter("next", LoraConfig(target_modules=TARGETS, r=4))
    model.set_adapter("next")
    assert the_term(method, model, 2) == pytest.approx(overlaps(copies(model), [kept]), rel=1e-4)


def test_the_same_adapter_cannot_be_orthogonal_to_itself() -> None:
    """What the message advises works: merged, with a new adapter; or a penalty."""
    method = build("o_lora")
    stages.learn([method], stages.stage(model := adapted(), 1, "causal"))
    with pytest.raises(MethodError, match=r"the model has that of 'd1'\. Merge it .* use a penalty, such as 'mas'"):
        stages.begin([method], stages.stage(model, 2, "causal"))
    stages.learn([build({"name": "mas", "samples": 2})], stages.stage(copy.deepcopy(model), 2, "causal"))
    stages.learn([method], stages.stage(adapted(merged(model), 1), 2, "causal"))
    assert list(method._adapters) == ["d1", "d2"]


def test_the_options_of_an_adapter_are_refused_where_the_model_brings_one() -> None:
    model, methods = adapted(), [build({"name": "o_lora", "r": 8})]
    with pytest.raises(MethodError, match=r"option 'r': the model already has LoRA adapters.*Remove the option"):
        stages.learn(methods, stages.stage(model, 1, "causal"))


def train(model: nn.Module, folder: Path, methods: list[Any], steps: int = 3) -> None:
    """A domain in a Trainer."""
    trainer = Trainer(
        model=model,
        args=TrainingArguments(str(folder / "out"), **OPTIONS | {"max_steps": steps}),
        train_dataset=rows(),
        data_collator=collator("gpt2"),
    )
    protect(trainer, methods, memory=folder / "memory").train()


def test_in_a_trainer_the_second_adapter_turns_away_from_the_first(tmp_path: Path) -> None:
    """Beside a penalty on the effective weights, too."""
    left = []
    for strength in (0.0, 50.0):
        folder, methods = tmp_path / str(strength), [{"name": "o_lora", "lambda_1": strength}]
        first = adapted()
        train(first, folder, [*methods, {"name": "mas", "samples": 4}])
        earlier = copies(first)
        second = adapted(merged(first), 1)
        train(second, folder, [*methods, {"name": "mas", "samples": 4}], 12)
        left.append(overlaps(copies(second), [earlier]))
    assert left[1] < 0.7 * left[0]


@pytest.mark.parametrize(
    "make", [tiny.model, lambda kind: get_peft_model(tiny.model(kind), AdaLoraConfig(total_step=9))]
)
def test_without_lora_it_says_what_to_add(make: Any, tmp_path: Path) -> None:
    with pytest.raises(MethodError, match=r"Give it a model with LoRA adapters \(`peft.get_peft_model`\), or use"):
        train(make("llama"), tmp_path, ["o_lora"])
    train(adapted(), tmp_path, ["o_lora"])


def test_a_peft_folder_as_base_counts_as_an_earlier_adapter(tmp_path: Path) -> None:
    """In the layers that it changes, from the first domain on; the others have earlier domains only."""
    model = adapted()
    model.save_pretrained(tmp_path)
    plain = with_adapter(lambda: tiny.model("llama"), str(tmp_path))
    kept = directions_of(plain)
    assert {path: torch.equal(a, kept[path]) for path, a in copies(model).items()} == dict.fromkeys(kept, True)
    method = build({"name": "o_lora", "lambda_1": 1.0, "target_modules": ["q_proj", "k_proj"], "lora_dropout": 0.0})
    seen: list[float] = []

    def look(protection: Protection, batch: Any) -> None:
        earlier = [
            kept,
            {
                k.removeprefix("base_model.model.").removesuffix(".lora_A.weight"): v
                for learnt in method._adapters.values()
                for k, v in learnt.items()
                if "lora_A" in k
            },
        ]
        found = method.extra_losses(protection.stage, {}, None)["orthogonality"]
        seen.append(float(found.detach()) / overlaps(copies(protection.stage.model), earlier))

    for index in (1, 2):
        stage = stages.stage(plain, index, "causal", steps=1)
        stages.learn([method], stage, each=look)
        plain = stage.model
        again = build({"name": "o_lora", "lambda_1": 1.0, "target_modules": ["q_proj", "k_proj"], "lora_dropout": 0.0})
        again.load_memory(method.memory())
        method = again
    assert seen == [pytest.approx(1, rel=1e-4)] * 2
    assert not directions_of(tiny.model("llama"))
