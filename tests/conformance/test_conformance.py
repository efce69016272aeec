"""The conformance matrix: every registered method under every objective, whatever the method does.

Registering a method is enough to be tested here. A method whose defaults are slow, or refuse the tiny models, says so
in one of the tables below; everything else is read from what it declares.
"""

from __future__ import annotations

import copy
import functools
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

import stages
import tiny
from everlearn.config.arguments import training_arguments
from everlearn.data.loader import BlockLoader
from everlearn.errors import MethodError
from everlearn.methods import REGISTRY, Method, Stage, build
from everlearn.methods.cost import Cost
from everlearn.methods.engine.attachment import Attachment
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.run.stage_files import load_memories, save_memories
from everlearn.run.trainer import StageTrainer
from everlearn.seeding import set_all
from methods_of_other_kinds import OTHERS, registered

OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("classic", "text-to-text"): {"contrast": 0},
    ("compositional_modules", "text-to-text"): {"replay": 0},
    ("das", "text-to-text"): {"contrast": 0},
    ("ensemble", "text-to-text"): {"combine": "by_confidence"},
    **{("forever", objective): {"sample": 0.5, "warm_up": 1} for objective in stages.ARCHITECTURE},
    ("kd_logits", "causal"): {"top_k": 8},
    ("kd_logits", "text-to-text"): {"top_k": 8},
    **{("kd_seed", objective): {"queue": 6} for objective in stages.ARCHITECTURE},
    ("lfpt5", "causal"): {"n_tokens": 8, "pseudo_tokens": 12},
    ("lfpt5", "text-to-text"): {"n_tokens": 8, "pseudo_tokens": 20, "separator": "J", "top_k": 400, "samples": 6},
    **{("sparse_memory", objective): {"accessed": 4, "slots": 16} for objective in stages.ARCHITECTURE},
}
"""(method, objective): options instead of the defaults, where the defaults are refused there."""

EXACT: dict[str, dict[str, Any]] = {
    "classic": {"contrast": 0},
    "clora": {"lora_dropout": 0.0},
    "das": {"general": "none", "contrast": 0},
    "inc_lora": {"lora_dropout": 0.0},
    "k_adapter": {"adapter_dropout": 0.0},
    "lora": {"lora_dropout": 0.0},
    "mocl-causal": {"lora_dropout": 0.0},
    "moe_lora": {"lora_dropout": 0.0, "balance": 0},
    "o_lora": {"lora_dropout": 0.0},
}
"""Options without dropout and without losses that compare the rows of a batch: those depend on how a batch is cut; by
method, or method and objective."""

DECODERS = {("sdft", "text-to-text"), ("siatl", "text-to-text")}
"""Methods that learn prompts and answers with a decoder only, where others take an encoder-decoder."""

OPTIMIZER: dict[str, dict[str, Any]] = {"recadam": {"adam_epsilon": 1e-3}}
"""Training arguments of the test of accumulation, where a method has an optimizer of its own: others take SGD there.
Adam divides noise by noise where a gradient is zero; a larger epsilon keeps that below the tolerance."""

ALL = REGISTRY | OTHERS
METHODS = sorted(ALL)
FORMS = ["kd_logits", "kd_seed"]
"""Variants that run other code than their method does by itself."""
ONCE: dict[str, tuple[str, dict[str, Any]]] = {
    "aewc": ("causal", {}),
    "ewc-base-model-labels": ("causal", {"name": "ewc", "labels": "model", "protect_base": True}),
    "ewc-steps": ("masked", {"name": "ewc", "gradients": "steps"}),
    "ewc_normalised": ("text-to-text", {}),
    "ewc_released": ("masked", {}),
    "ewc_separate": ("causal", {}),
    "k_adapter-gate-all": ("causal", {"name": "k_adapter", "combine": "gate", "read": "all"}),
    "l2_sp": ("text-to-text", {}),
    "lora_null_v2": ("causal", {}),
    "mixconnect": ("masked", {}),
    "mixout_released": ("causal", {}),
    "recadam_released": ("masked", {"gamma": 5.0, "t0": 2}),
    "rewc": ("masked", {}),
    "side_tuning-distilled": ("masked", {"name": "side_tuning", "initialise": "distilled"}),
    "side_tuning-shared": ("causal", {"name": "side_tuning", "shared": True}),
    "side_tuning_released": ("text-to-text", {}),
    "ulmfit_classifier_released": ("text-to-text", {}),
    "ulmfit_lm_released": ("causal", {}),
}
"""More of them, by name or by `name` among the options, each under one objective: what sets them apart does not ask for
the objective. RecAdam's published γ and t₀ belong to a smaller rate and a longer domain."""
ADAM = ("exp_avg", "exp_avg_sq", "step")
"""What AdamW holds for every parameter anyway."""
OBJECTIVES = sorted(stages.ARCHITECTURE)
matrix = pytest.mark.parametrize("objective", OBJECTIVES)
every_method = pytest.mark.parametrize("name", METHODS)
CASES = [*itertools.product([*METHODS, *FORMS], OBJECTIVES), *((form, where) for form, (where, _) in ONCE.items())]
every_case = pytest.mark.parametrize(("name", "objective"), CASES, ids=map("-".join, CASES))


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    """The methods that only the tests have are known by name."""
    with registered():
        yield


def make(name: str, objective: str, **options: Any) -> Method:
    """A method, or a form of one, with options that this objective accepts."""
    _, own = ONCE.get(name, ("", {}))
    return build({"name": name, **own, **OPTIONS.get((name, objective), {}), **options})


def architecture_for(name: str, objective: str) -> str:
    """Of the kind that belongs to the objective, and to the method."""
    return "gpt2" if (name, objective) in DECODERS else stages.ARCHITECTURE[objective]


def model_for(name: str, objective: str, dropout: float = 0.1) -> PreTrainedModel:
    """A tiny model of the kind that belongs to both."""
    return tiny.model(architecture_for(name, objective), dropout=dropout)


def stage_for(model: nn.Module, index: int, objective: str, methods: Sequence[Method], **options: Any) -> Stage:
    """A stage, after the check; skips the test where a method is refused, which must be a sentence that names it.

    The model is moved to the device of trainings, as a run moves it.
    """
    options = {"count": 8, "steps": 3, **options}
    stage = stages.stage(model.to(tiny.DEVICE), index, objective, general=True, **options)
    refusal = ""
    try:
        check_methods(methods, stages.setting(model, methods, objective, general=True))
    except MethodError as error:
        refusal = str(error)
    if refusal:
        assert any(f"'{method.name}'" in refusal for method in methods)
        assert refusal.endswith(".")
        pytest.skip(f"refused: {refusal}")
    return stage


class Measured(Protection):
    """Measures what is kept beside the model, before every update.

    Attributes:
        memory: the bytes.
        parameters: those that are trained and were not there before.
        more: parameters by which the model is larger.
    """

    def __init__(self, methods: Sequence[Method], stage: Stage) -> None:
        super().__init__(methods, stage)
        self.known = {id(parameter): parameter.numel() for parameter in stage.model.parameters()}
        self.memory: list[int] = []
        self.parameters: list[int] = []
        self.more: list[int] = []

    def before_update(self) -> None:
        super().before_update()
        of_model = list(self.stage.model.parameters())
        own = {parameter.untyped_storage().data_ptr() for parameter in of_model}
        beside = [part for part in self.stage.model.modules() if isinstance(part, Attachment)]
        state = (_kept_by(self), *(vars(module) for part in beside for module in part.modules()))
        optimizer = self.stage.optimizer.state.values()
        more = [{key: value for key, value in each.items() if key not in ADAM} for each in optimizer]
        found = dict(_storages((state, more)))
        self.memory.append(sum(size for place, size in found.items() if place not in own))
        self.parameters.append(sum(p.numel() for p in of_model if p.requires_grad and id(p) not in self.known))
        self.more.append(sum(p.numel() for p in of_model) - sum(self.known.values()))


def train(
    methods: Sequence[Method],
    stage: Stage,
    folder: Path,
    batch_size: int = 4,
    accumulation: int = 1,
    protection: Protection | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """One stage through our Trainer; returns its log."""
    protection = protection or Protection(methods, stage)
    source = protection.begin()
    arguments = {
        "per_device_train_batch_size": batch_size,
        "gradient_accumulation_steps": accumulation,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.01,
        "logging_steps": 1,
        "save_strategy": "no",
    }
    lines: list[dict[str, Any]] = []
    trainer = StageTrainer(
        protection=protection,
        loader=BlockLoader(source, stage.objective, batch_size, stage.steps * accumulation),
        args=training_arguments(arguments | options, folder, stage.seed, stage.steps),
        log=lines.append,
    )
    set_all(stage.seed, "train", stage.index)
    trainer.train()
    protection.end()
    return [line for line in lines if "loss" in line]


class Learnt(NamedTuple):
    """Two domains learnt under a method.

    Attributes:
        name: of the method or form.
        folder: with the method's memory and the model after the first of them, as a stage folder keeps them.
        method: what learnt.
        stage: the second one, over.
        start: parameters before.
        weights: parameters after.
        logs: of both.
        declared: what the method said at the beginning that it costs.
        measured: what it cost, in both.
        saved: bytes of its memory after each.
    """

    name: str
    folder: Path
    method: Method
    stage: Stage
    start: dict[str, Tensor]
    weights: dict[str, Tensor]
    logs: list[list[dict[str, Any]]]
    declared: Cost
    measured: list[Measured]
    saved: list[int]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def learnt(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Learnt:
    """Each method under each objective, once for all tests that only look at what it did."""
    name, objective = request.param
    folder = tmp_path_factory.mktemp("learnt")
    method, model = make(name, objective), model_for(name, objective)
    start, declared = stages.weights(model), method.cost(model)
    logs, measured, saved = [], [], []
    for index in (1, 2):
        stage = stage_for(model, index, objective, [method])
        measured.append(Measured([method], stage))
        logs.append(train([method], stage, folder / str(index), protection=measured[-1]))
        saved.append(sum(value.numel() * value.element_size() for value in method.memory().tensors.values()))
        model = stage.model
        if index == 1:
            save_memories(folder / "memory", [method])
            model.save_pretrained(folder / "model")
    return Learnt(name, folder, method, stage, start, stages.weights(model), logs, declared, measured, saved)


def test_works_or_is_refused_with_a_sentence(learnt: Learnt, tmp_path: Path) -> None:
    """Two domains are learnt; then the model is a plain one, free of hooks, that saves and loads."""
    method, stage, model = learnt.method, learnt.stage, learnt.stage.model
    for log in learnt.logs:
        assert len(log) == stage.steps
        assert all(np.isfinite(value) for line in log for value in line.values() if isinstance(value, float))
    assert isinstance(model, PreTrainedModel)
    if not method.grows:
        assert model.state_dict().keys() == model_for(learnt.name, stage.objective.name).state_dict().keys()
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    moved = any(not torch.equal(value, learnt.start[key]) for key, value in learnt.weights.items())
    # Beside a frozen model, what was learnt is what the method keeps of its own parameters.
    assert moved or (method.needs.extra_parameters and method.memory().tensors)
    model.save_pretrained(tmp_path / "saved")
    plain = type(model).from_pretrained(tmp_path / "saved").to(tiny.DEVICE).eval()
    tokens = next(stages.stage(model, 9, stage.objective.name).batches(2))
    losses = [stage.objective.per_sample_loss(m, tokens) for m in (model.eval(), plain)]
    assert torch.equal(*losses)


def test_memory_round_trip_continues_exactly(learnt: Learnt, tmp_path: Path) -> None:
    """What a stage folder keeps is all that the next domain needs."""
    objective = learnt.stage.objective.name
    model = type(learnt.stage.model).from_pretrained(learnt.folder / "model")
    method = make(learnt.name, objective)
    load_memories(learnt.folder / "memory", [method])
    second = stage_for(model, 2, objective, [method])
    train([method], second, tmp_path)
    theirs, memory, restored = stages.weights(second.model), learnt.method.memory(), method.memory()
    assert all(torch.equal(value, theirs[key]) for key, value in learnt.weights.items())
    assert memory.facts == restored.facts
    assert memory.tensors.keys() == restored.tensors.keys()
    assert all(stages.equal(value, restored.tensors[key]) for key, value in memory.tensors.items())


@matrix
@pytest.mark.parametrize("name", [name for name in METHODS if ALL[name].identity is not None])
def test_identity_options_are_plain_training_bit_for_bit(
    name: str, objective: str, plainly: Callable[[str, str], dict[str, Tensor]], tmp_path: Path
) -> None:
    methods, architecture = [ALL[name](**ALL[name].identity)], architecture_for(name, objective)
    learnt = two_domains(methods, architecture, objective, tmp_path)
    assert not any(method.memory() for method in methods)
    plain = plainly(architecture, objective)
    assert all(torch.equal(value, plain[key]) for key, value in learnt.items())


def two_domains(methods: Sequence[Method], architecture: str, objective: str, folder: Path) -> dict[str, Tensor]:
    """The weights after both, learnt with methods that do nothing."""
    model = tiny.model(architecture, dropout=0.1)
    for index in (1, 2):
        stage = stage_for(model, index, objective, methods)
        log = train(methods, stage, folder / str(index))
        model = stage.model
        assert not any("/" in key for line in log for key in line), "no extra loss is left in the log"
    return stages.weights(model)


@pytest.fixture(scope="module")
def plainly(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], dict[str, Tensor]]:
    """Plain training's weights of an architecture under an objective, made once."""
    return functools.cache(
        lambda architecture, objective: two_domains([], architecture, objective, tmp_path_factory.mktemp("plain"))
    )


@every_case
def test_accumulation_changes_nothing(name: str, objective: str, tmp_path: Path) -> None:
    """4 × 1 and 2 × 2: the same weights, and the same value of every loss of the method in the log."""
    results, of = [], make(name, objective).name
    optimizer = OPTIMIZER.get(of, {"optim": "sgd"})
    exact = EXACT.get(f"{of}-{objective}", EXACT.get(of, {}))
    begun, model = make(name, objective, **exact), model_for(name, objective, dropout=0.0)
    first = stage_for(model, 1, objective, [begun], steps=2)
    train([begun], first, tmp_path / "first", **optimizer)
    for batch_size, accumulation in ((4, 1), (2, 2)):
        method, model = copy.deepcopy((begun, first.model))
        second = stage_for(model, 2, objective, [method], steps=2)
        log = train([method], second, tmp_path / "second", batch_size, accumulation, **optimizer)
        results.append((stages.weights(second.model), log))
    (whole, lines), (parts, other) = results
    for key, value in whole.items():
        torch.testing.assert_close(parts[key], value, rtol=1e-5, atol=1e-6)
    for line, again in zip(lines, other, strict=True):
        extra = {key: value for key, value in line.items() if key == "loss" or key.startswith(f"{method.name}/")}
        assert {key: again[key] for key in extra} == pytest.approx(extra, rel=1e-3, abs=1e-6)


def test_costs_what_it_declares(learnt: Learnt) -> None:
    """Memory, disk, parameters and old text: no more than the capability table says."""
    method, declared = learnt.method, learnt.declared
    for index, (domain, saved) in enumerate(zip(learnt.measured, learnt.saved, strict=True), 1):
        assert len(domain.memory) == learnt.stage.steps
        assert max(domain.memory) <= declared.memory_bytes
        if method.grows:  # a larger model instead: none of its parameters is an old one
            assert min(domain.more) > 0
            assert max(domain.more) <= declared.parameters
        else:
            assert {*domain.parameters} == {declared.parameters}
        assert saved <= declared.saved(index)
    assert (declared.parameters > 0) == method.needs.extra_parameters
    beside = declared.outside(None, trained=1, earlier=1) + declared.outside_once(None, None)
    assert (beside > 0) == method.needs.importance_pass
    assert (method.needs.keeps != "nothing") or not method.memory(), "`everlearn methods` says that it keeps nothing"
    if not method.needs.old_data:
        integers = [key for key, value in method.memory().tensors.items() if not value.is_floating_point()]
        assert not integers, "a method that needs no old data keeps no tokens"


@every_method
def test_a_method_is_described(name: str) -> None:
    cls = ALL[name]
    assert cls.title
    assert cls.paper == "" or cls.paper.startswith("https://")
    assert cls.needs.objectives <= set(OBJECTIVES)
    for option, field in cls.Config.model_fields.items():
        assert field.description, f"option '{option}' of '{name}' has no docstring"
    with pytest.raises(MethodError, match=f"'{name}' has no option 'no_such_option'"):
        cls(no_such_option=1)


def _storages(value: Any) -> Iterator[tuple[int, int]]:
    """Address and bytes of every array that can be reached, each storage by one address; copies of models included."""
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        yield storage.data_ptr(), storage.nbytes()
    elif isinstance(value, np.memmap):
        return
    elif isinstance(value, np.ndarray):
        yield value.__array_interface__["data"][0], value.nbytes
    elif isinstance(value, dict):
        for item in value.values():
            yield from _storages(item)
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from _storages(item)
    elif isinstance(value, nn.Module):  # a teacher, a copy
        for tensor in (*value.parameters(), *value.buffers()):
            yield from _storages(tensor)
    elif isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            yield from _storages(cell.cell_contents)
    elif not isinstance(value, Stage | Optimizer) and type(value).__module__.startswith(("everlearn.", "methods_of")):
        yield from _storages(_kept_by(value))


def _kept_by(value: Any) -> dict[str, Any]:
    """What an object of ours has, but for the model and the stage that it acts on."""
    return {key: item for key, item in vars(value).items() if key not in ("_model", "stage")}
