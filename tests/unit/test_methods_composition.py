"""Methods combined, and on several processes."""

from __future__ import annotations

import copy
import inspect
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hard_attention_checks import reading
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import Reading, build
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.base import Memory, Method
from everlearn.methods.composition.ensemble import DomainEnsemble
from everlearn.methods.composition.mocl import MoCL
from everlearn.methods.composition.sapt_lora import SAPTLoRA
from everlearn.methods.composition.selective_init import SelectiveInit
from everlearn.methods.engine.attachment import attached
from everlearn.methods.engine.protection import Protection, check_methods, overrides
from everlearn.methods.masks.das import DAS
from everlearn.methods.masks.migu import MIGU
from everlearn.methods.masks.mofo import MoFO
from everlearn.methods.stage import Checkpoints, Stage
from everlearn.model.anatomy import anatomy
from everlearn.model.sharding import full_tensor
from everlearn.predictors import Checkpoint, Ensemble, PerplexityEnsemble
from everlearn.predictors.predictor import models_of
from two_processes import PROCESSES, in_two_processes

# -- Methods of `composition/` against slow references: ensemble, selective initialisation, SAPT-LoRA ------------------


@pytest.mark.parametrize("start", ["base", "previous"])
def test_a_domain_starts_from_the_base_model_or_from_the_one_before(start: Any) -> None:
    model, method = tiny.model(), DomainEnsemble(start=start)
    assert method.needs.base_model == (start == "base")
    base = stages.weights(model)
    models: list[Any] = [copy.deepcopy(model)]
    for index in (1, 2):
        at = stages.stage(model, index)
        at.checkpoints = Checkpoints(index, lambda number: copy.deepcopy(models[number]))
        stages.begin([method], at)
        before = base if start == "base" else dict(models[-1].named_parameters())
        assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
        stages.end([method], at)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01)
        models.append(copy.deepcopy(model))
    assert not method.memory()


@pytest.mark.parametrize("combine", ["by_perplexity", "by_confidence", "by_entropy", "confident", "mean"])
def test_the_domains_models_answer_together(combine: Any) -> None:
    models = [tiny.model(seed=seed) for seed in range(4)]
    at = stages.stage(models[3], 3)
    checkpoints = Checkpoints(4, lambda number: models[number])
    batches = at.batches
    reading = Reading(None, ("d1", "d2", "d3"), at.objective, lambda: models[3], batches, checkpoints)
    method = DomainEnsemble(combine=combine, **({"temperature": 0.5} if combine == "by_perplexity" else {}))
    found: Any = method.test_predictor(Checkpoint(models[3], at.objective), reading)
    assert models_of(found) == models[1:], "one of each domain, and not the base model"
    if combine == "by_perplexity":
        assert (type(found), found.temperature) == (PerplexityEnsemble, 0.5)
    else:
        assert (type(found), found.mix) == (Ensemble, combine)
    alone: Any = method.test_predictor(
        Checkpoint(models[0], at.objective), Reading(None, (), at.objective, lambda: models[0], batches, checkpoints)
    )
    batch = next(at.batches(4))
    with torch.no_grad():
        expected = at.objective.forward(models[0], batch).losses
        torch.testing.assert_close(alone.label_losses(batch).float(), expected)


def check(names: list[str], architecture: str = "roberta", **options: Any) -> None:
    methods = [build({"name": name, **(options if name == "ensemble" else {})}) for name in names]
    model: nn.Module = tiny.model(architecture, dropout=0.1)
    check_methods(methods, stages.setting(model, methods, tiny.objective_of(architecture)))


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(MethodError, match=r"'T5.*' does not predict its prompts.*Set `combine: by_confidence`"):
        check(["ensemble"], "t5")
    check(["ensemble"], "t5", combine="by_confidence")
    with pytest.raises(MethodError, match=r"'ensemble' predicts with the checkpoints.*method 'dap_adapter' needs"):
        check(["ensemble", "dap_adapter"])
    with pytest.raises(MethodError, match=r"'elle'.*Remove one of them"):
        check(["ensemble", "elle"])
    for other in ("replay", "das", "inc_lora"):
        check([other, "ensemble"])
    with pytest.raises(MethodError, match=r"'ewc' keeps weights close.*'ensemble' starts the next domain from others"):
        check(["ensemble", "ewc"])
    check(["ensemble", "ewc"], start="previous")


def _stage(models: list[nn.Module], objective: str = "causal") -> Stage:
    """The stage after these models, the last of which it begins with."""
    stage = stages.stage(copy.deepcopy(models[-1]), len(models), objective)
    stage.checkpoints = Checkpoints(len(models), lambda number: copy.deepcopy(models[number]))
    return stage


def _knowing(domain: int, steps: int = 12) -> nn.Module:
    """A model that has learnt what a domain says."""
    model = tiny.model("gpt2")
    stages.learn([], stages.stage(model, domain, "causal", steps=steps))
    return model.eval()


def _nats(model: nn.Module, stage: Stage, rows: int) -> float:
    """Mean nats per label, one label at a time in float64."""
    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    nats, items = 0.0, 0
    for batch in stage.batches(rows):
        inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
        logits = double(**inputs, use_cache=False).logits
        for n, t in (batch["labels"] >= 0).nonzero().tolist():
            scores = logits[n, t]
            nats -= float((scores[batch["labels"][n, t]] - scores.exp().sum().log()).detach())
            items += 1
    return nats / items


@pytest.fixture(scope="module")
def models() -> list[nn.Module]:
    """A base model, one that knows the coming domain (the third), and one that knows another."""
    return [tiny.model("gpt2").eval(), _knowing(3), _knowing(7)]


def test_the_model_with_the_least_loss_is_taken_and_that_is_said(models: list[nn.Module]) -> None:
    stage = _stage(models)
    losses = [_nats(model, stage, 8) for model in models]
    assert min(range(3), key=losses.__getitem__) == 1
    Protection([SelectiveInit(samples=8)], stage).begin()
    for name, value in stage.model.named_parameters():
        assert torch.equal(value, dict(models[1].named_parameters())[name])
    (note,) = stage.notes
    assert note.startswith("'d3' begins with the model after 'd1' (nats per label on a sample: the base model ")
    said = [float(part.split()[-1].rstrip(").")) for part in note.split(", ")]
    assert said == pytest.approx(losses, abs=6e-4)
    assert math.isclose(float(said[1]), losses[1], abs_tol=6e-4)


@pytest.mark.parametrize("number", [0, 2])
def test_it_may_be_the_base_model_or_the_last_one(models: list[nn.Module], number: int) -> None:
    order = [models[2], models[2], models[2]]
    order[number] = models[1]
    stage = _stage(order)
    Protection([SelectiveInit(samples=8)], stage).begin()
    assert all(map(torch.equal, stage.model.parameters(), models[1].parameters()))
    assert ("the base model (" if number == 0 else "the model after 'd2' (") in stage.notes[0]


def test_of_equals_the_latest_and_nothing_to_choose_in_the_first_domain(models: list[nn.Module]) -> None:
    stage = _stage([models[0]] * 3)
    assert SelectiveInit(samples=8).starting_weights(stage) == {}
    assert "the model after 'd2' (" in stage.notes[0]
    first = _stage(models[:1])
    assert SelectiveInit().starting_weights(first) == {}
    assert not first.notes


def test_what_a_later_model_has_and_an_earlier_one_has_not_is_refused() -> None:
    model = tiny.model()
    for name in ("dap_adapter", "elle", "inc_lora"):
        methods = [build("selective_init"), build(name)]
        with pytest.raises(MethodError, match=f"'selective_init' goes back to earlier models.*'{name}'"):
            SelectiveInit.check(methods[0], stages.setting(model, methods))
    methods = [*map(build, ("selective_init", "replay"))]
    check_methods(methods, stages.setting(model, methods))
    methods = [*map(build, ("selective_init", "ewc"))]
    with pytest.raises(MethodError, match="starts the next domain from others"):
        check_methods(methods, stages.setting(model, methods))
    assert not overrides(SelectiveInit(samples=0), "starting_weights"), "plain training goes with everything"
    assert overrides(SelectiveInit(), "starting_weights")
    assert not SelectiveInit(samples=0).needs.earlier_models
    assert SelectiveInit().needs.earlier_models, "`run.keep_stages` must keep them"


R, ALPHA = 2, 6.0


def method(**options: Any) -> SAPTLoRA:
    return SAPTLoRA(**({"r": R, "lora_alpha": ALPHA, "bottleneck": 5, "samples": 6, "pseudo_batch": 4} | options))


def learnt(sapt: SAPTLoRA, model: nn.Module, objective: str, domains: int = 3) -> Any:
    for index in range(1, domains + 1):
        at = stages.stage(model, index, objective, steps=2)
        stages.learn([sapt], at, lr=0.1)
    return at


def attention(sapt: SAPTLoRA, words: Tensor, domains: int, projection: dict[str, Tensor] | None = None) -> Tensor:
    """softmax(K q / √d) of one text's word embeddings [S, E], written out in float64; oldest domain first."""
    shared = {name: value.double() for name, value in (projection or sapt._projection).items()}
    e = torch.stack([column.max() for column in words.double().T])
    z = shared["1.weight"] @ (shared["0.weight"] @ e)
    z = z / (1 + torch.exp(-z))
    q = (z - z.mean()) / (z.var(correction=0) + 1e-5).sqrt() * shared["3.weight"] + shared["3.bias"]
    keys = [one["key"].double() for one in list(sapt._learnt.values())[:domains]]
    exponents = torch.stack([((key * q).sum() / len(q) ** 0.5).exp() for key in keys])
    return exponents / exponents.sum()


@torch.no_grad()
def test_every_layer_adds_the_blocks_that_the_text_attends_to() -> None:
    """Row by row against a plain model whose weights have s Σ_i a_i B_i A_i added, in float64."""
    sapt, model = method(), tiny.model("t5")
    with torch.enable_grad():
        at = learnt(sapt, model, "text-to-text")
    model = model.double()
    batch = next(at.batches(3))
    tested = sapt.test_model(copy.deepcopy(model), reading(at, None))
    found = at.objective.forward(tested, batch).losses
    paths = [path for path, _ in model.named_modules() if path.endswith((".q", ".v"))]
    for row in range(3):
        real = batch["attention_mask"][row] > 0
        mixed = attention(sapt, model.shared.weight[batch["input_ids"][row][real]], 3)
        merged = copy.deepcopy(model)
        for number, path in enumerate(paths):
            for weight, one in zip(mixed, sapt._learnt.values(), strict=True):
                a, b = (one[f"layers.{number}.lora_{which}.own.weight"].double() for which in "AB")
                merged.get_submodule(path).weight += weight * ALPHA / R * b @ a
        inputs = {name: value[row : row + 1] for name, value in batch.items()}
        logits = merged(**at.objective.inputs(inputs)).logits[0]
        expected = F.cross_entropy(logits, inputs["labels"][0], reduction="none")
        torch.testing.assert_close(found[row].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("architecture", "objective"), [("t5", "text-to-text"), ("llama", "causal")])
def test_the_attention_of_earlier_domains_is_held(architecture: str, objective: str) -> None:
    """Mean attention vectors and the divergence from them, with the pseudo-samples that were drawn, in float64."""
    sapt, model = method(), tiny.model(architecture)
    learnt(sapt, model, objective, 2)
    words = model.get_input_embeddings().weight

    def texts(ids: Tensor, document: Tensor) -> list[Tensor]:
        """What each query is of: a row, or in a decoder a document up to each token."""
        if architecture == "t5":
            return [words[row[of >= 0]] for row, of in zip(ids, document, strict=True)]
        found = []
        for row, of in zip(ids, document, strict=True):
            found += [words[row[: s + 1][of[: s + 1] == of[s]]] for s in range(len(row))]
        return found

    for domain in ("d2",):  # whose projection is the last one
        kept = sapt._pseudo[domain]
        assert len(kept["input_ids"]) == 6
        with torch.no_grad():
            each = [attention(sapt, text, 2) for text in texts(kept["input_ids"], kept["document"])]
        torch.testing.assert_close(kept["attention"].double(), torch.stack(each).mean(0), atol=1e-6, rtol=1e-5)
    assert sapt._pseudo["d1"]["attention"].tolist() == [1.0]

    at = stages.stage(model, 3, objective)
    expected = []

    def look(protection: Any, batch: dict[str, Tensor]) -> None:
        module = attached(model, "sapt_lora")
        sapt._learnt["d3"] = {"key": module.key.detach()}
        projection = {name: value.detach() for name, value in module.project.state_dict().items()}
        total = torch.zeros((), dtype=torch.float64)
        for domain in ("d1", "d2"):
            lesson = sapt._lesson(at, domain)
            target = F.pad(lesson["attention"], (0, 3 - len(lesson["attention"]))).double()
            terms = []
            for text in texts(lesson["input_ids"], lesson["document"]):
                a = attention(sapt, text, 3, projection)
                terms.append(sum(p * (p.log() - q.log()) for p, q in zip(target, a, strict=True) if p > 0))
            total = total + torch.stack(terms).mean()
        del sapt._learnt["d3"]
        expected.append(0.1 * total.detach())

    parts = stages.learn([sapt], at, lr=0.1, each=look)
    found = torch.stack([part["sapt_lora/align"] for part in parts]).double()
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-6, rtol=1e-4)
    assert found[0] > 0


def test_earlier_blocks_and_keys_never_move_and_the_projection_goes_on() -> None:
    sapt, model = method(), tiny.model("t5")
    start = stages.weights(model)
    learnt(sapt, model, "text-to-text", 2)
    before = {name: value.clone() for name, value in sapt.memory().tensors.items()}
    at = stages.stage(model, 3, "text-to-text")
    projections: list[dict[str, Tensor]] = []

    def look(*_: Any) -> None:
        module = attached(model, "sapt_lora")
        projections.append({name: value.clone() for name, value in module.project.state_dict().items()})
        assert all(p.grad is None for p in module.parameters() if not p.requires_grad)

    stages.learn([sapt], at, lr=0.1, weight_decay=0.1, each=look)
    after = sapt.memory().tensors
    assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())
    for name, value in before.items():
        assert torch.equal(after[name], value) is not name.startswith("projection/")
    assert all(torch.equal(projections[0][n], before[f"projection/{n}"]) for n in projections[0])


def test_without_alignment_nothing_of_a_text_is_kept() -> None:
    sapt, model = method(align=0), tiny.model("t5")
    assert not sapt.needs.old_data
    at = learnt(sapt, model, "text-to-text", 2)
    assert all(value.is_floating_point() for value in sapt.memory().tensors.values())
    assert "sapt_lora/align" not in stages.learn([sapt], stages.stage(model, 3, "text-to-text"))[0]
    assert at.index == 2


def test_a_decoder_writes_its_own_pseudo_samples_the_same_for_the_same_seed() -> None:
    kept = []
    for seed in (0, 0, 1):
        sapt, model = method(pseudo="generated", pseudo_tokens=9, top_k=20), tiny.model("gpt2")
        assert not sapt.needs.old_data
        at = stages.stage(model, 1, "causal", steps=2, seed=seed)
        stages.learn([sapt], at)
        kept.append(sapt._pseudo["d1"]["input_ids"])
        assert "sapt_lora/align" in stages.learn([sapt], stages.stage(model, 2, "causal", steps=2, seed=seed))[0]
    assert kept[0].shape == (6, 9)
    assert torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[0], kept[2])
    assert len({tuple(row) for row in kept[0].tolist()}) > 1
    assert sapt.cost(model).outside(12) == len(kept[0]) / 3, "a forward pass over each"
    assert method().cost(model).outside(12) == method(pseudo="generated", align=0).cost(model).outside(12) == 0


def test_what_does_not_fit_is_refused() -> None:
    for architecture, objective in (("t5", "text-to-text"), ("roberta", "masked")):
        setting = stages.setting(tiny.model(architecture), [], objective)
        with pytest.raises(MethodError, match=r"cannot generate its own inputs.*Set `pseudo: stored`\."):
            method(pseudo="generated").check(setting)
        method(pseudo="generated", align=0).check(setting)


# -- Methods on two processes give what one process gives: the contrast, MIGU in all its forms, MoFO, the penalties ----


def _das(**options: Any) -> list[Method]:
    method = DAS(general="none", strength=0, **options)
    generator = torch.Generator().manual_seed(1)
    maps = {s.name: torch.rand(s.units, generator=generator) for s in anatomy(tiny.model()).sites}
    method.load_memory(Memory({f"accumulated/{name}": value for name, value in maps.items()}, {"domains": ["d1"]}))
    return [method]


def _migu(lora: bool = False, blocks: bool = False, **options: Any) -> list[Method]:
    beside: list[Method] = [IncLoRA(lora_dropout=0.0, r=4)] if lora else []
    beside += [MoCL(module="lora", lora_dropout=0.0, r=4)] if blocks else []
    return [*beside, MIGU(apply_to="gradient", **options)]


MIGUS: dict[str, dict[str, Any]] = {
    "migu": {},
    "migu_kept_rows": {"gradient_of": "kept-rows"},
    "migu_random": {"selector": "random"},
    "migu_weight": {"selector": "weight"},
    "migu_gradient": {"selector": "gradient"},
    "migu_lora": {"lora": True},
    "migu_lora_gradient": {"lora": True, "selector": "gradient"},
    "migu_blocks": {"blocks": True},
    "migu_head": {"components": ("head", "query"), "mask_bias": True},
}


def _penalty(name: str = "ewc", **options: Any) -> list[Method]:
    method = build({"name": name, "strength": 10.0, **options})
    generator = torch.Generator().manual_seed(2)
    tensors, importance = {}, inspect.getattr_static(method, "_importance").key
    for key, parameter in tiny.model().named_parameters():
        shape = () if name == "l2" else parameter.shape
        tensors[f"{importance}{key}"] = torch.rand(shape, generator=generator)
        tensors[f"anchor/{key}"] = parameter.detach() + 0.1 * torch.randn(parameter.shape, generator=generator)
    method.load_memory(Memory(tensors, {"domains": ["d1"]}))
    return [method]


def _gradients(methods: list[Method], wrap: str = "none", rows: slice = slice(None)) -> dict[str, torch.Tensor]:
    """Masked gradients of one batch's whole loss, and its parts."""
    stage = stages.stage(tiny.model(), 2)
    stages.begin(methods, stage)
    model = stage.model.train()
    # B starts at zero, and so does the gradient of A: rows of B alone would be compared.
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) / 8
    model = _wrapped(model, wrap)
    protection = Protection(methods, stage)
    batch = {name: value[rows] for name, value in next(stage.batches(4)).items()}
    loss, parts = protection.loss(model, batch)
    loss.backward()
    protection.after_backward()
    result = {f"parts {name}": value for name, value in parts.items() if name != "loss"}
    for name, parameter in stage.model.named_parameters():
        gradient = parameter.grad
        result[name] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return result


def _step(methods: list[Method], wrap: str = "none", rows: slice = slice(None)) -> dict[str, torch.Tensor]:
    """Weights and memory after one step."""
    stage = stages.stage(tiny.model(), 2)
    stages.begin(methods, stage)
    model = _wrapped(stage.model.train(), wrap)
    protection = Protection(methods, stage)
    optimizer = protection.optimizer(torch.optim.SGD(stage.model.parameters(), lr=0.1))
    protection.loss(model, {name: value[rows] for name, value in next(stage.batches(4)).items()})[0].backward()
    protection.after_backward()
    with protection.update():
        optimizer.step()
    result = {name: full_tensor(value) for method in methods for name, value in method.memory().tensors.items()}
    result |= {f"s of {m.name}": torch.tensor(m.memory().facts["s"]) for m in methods if "s" in m.memory().facts}
    for name, parameter in stage.model.named_parameters():
        value = parameter.detach()
        result[name] = full_tensor(value)
    return result


def _wrapped(model: torch.nn.Module, wrap: str) -> torch.nn.Module:
    if wrap == "ddp":
        return DistributedDataParallel(model)
    if wrap == "fsdp":
        for layer in [
            module for name, module in model.named_modules() if name.rpartition(".")[0].endswith("encoder.layer")
        ]:
            fully_shard(layer)
        fully_shard(model)
    return model


STEPS: dict[str, Any] = {
    "si": partial(_penalty, "si", damping=1e-3),
    "si pulled": partial(_penalty, "si", damping=1e-3, apply_to="update"),
    "aewc pulled": partial(_penalty, "aewc", apply_to="update", strength=0.01),
    "multi_task_adaptation": lambda: [build({"name": "multi_task_adaptation", "drift": 0, "rate": 0.5})],
}
"""What a step leaves: path, pulled weights, the balance of two tasks."""


def _moved(wrap: str = "none", rows: slice = slice(None)) -> dict[str, torch.Tensor]:
    """Which entries MoFO's first step moves, 1 or 0, whole."""
    stage, methods = stages.stage(tiny.model(), 2), [MoFO(fraction=0.2)]
    before = stages.weights(stage.model)
    stages.begin(methods, stage)
    if wrap == "fsdp":
        fully_shard(stage.model)
    protection = Protection(methods, stage)
    optimizer = protection.optimizer(torch.optim.AdamW(stage.model.parameters(), lr=1e-2))
    batch = {name: value[rows] for name, value in next(stage.batches(4)).items()}
    protection.loss(stage.model.train(), batch)[0].backward()
    protection.after_backward()
    with protection.update():
        optimizer.step()
    return {name: (full_tensor(p.detach()) != before[name]).float() for name, p in stage.model.named_parameters()}


def _process(rank: int, folder: Path) -> None:
    mine = slice(rank * 2, rank * 2 + 2)
    results = {
        "das": _gradients(_das(), "ddp", mine),
        # The released gather: every process has the whole loss but only its own gradient, so λ W does what λ should.
        "das_local": _gradients(_das(gather_grad="local", contrast=PROCESSES), "ddp", mine),
        "ewc": _gradients(_penalty(), "fsdp", mine),
        "rewc": _gradients(_penalty("rewc"), "fsdp", mine),
        "l2": _gradients(_penalty("l2"), "fsdp", mine),
        "mofo": _moved("fsdp", mine),
    }
    for name, make in STEPS.items():
        for wrap in ("ddp", "fsdp"):
            results[f"{wrap} {name}"] = _step(make(), wrap, mine)
    for name, options in MIGUS.items():
        for wrap in ("ddp", "fsdp"):
            results[f"{wrap} {name}"] = _gradients(_migu(**options), wrap, mine)
    results["unreached"] = _unreached()
    torch.save(results, folder / f"{rank}.pt")


def _unreached() -> dict[str, str]:
    """What is said when the optimizer was made before FSDP2 replaced the parameters, and of flat copies of them."""
    said = {}
    for form in ("stale", "flat"):
        stage = stages.stage(tiny.model(), 2)
        methods = _migu()
        stages.begin(methods, stage)
        protection = Protection(methods, stage)
        flat = torch.cat([parameter.detach().flatten() for parameter in stage.model.parameters()])
        steps = torch.optim.AdamW([flat] if form == "flat" else stage.model.parameters())
        protection.optimizer(steps)
        model: torch.nn.Module = stage.model.train()
        if form == "stale":
            fully_shard(model)
        else:
            model = DistributedDataParallel(model)
        batch = {name: value[:2] for name, value in next(stage.batches(4)).items()}
        protection.loss(model, batch)[0].backward()
        try:
            protection.after_backward()
        except MethodError as error:
            said[form] = str(error)
    return said


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("processes")
    in_two_processes(_process, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(PROCESSES)]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("das", _das),
        ("das_local", _das),
        ("ewc", _penalty),
        ("rewc", partial(_penalty, "rewc")),
        ("l2", partial(_penalty, "l2")),
        *((f"{wrap} {name}", partial(_migu, **options)) for name, options in MIGUS.items() for wrap in ("ddp", "fsdp")),
    ],
)
def test_two_processes_give_the_gradients_of_one(name: str, make, results: list[dict]) -> None:
    alone = _gradients(make())
    for result in (part[name] for part in results):
        assert result.keys() == alone.keys()
        for key, value in alone.items():
            if not key.startswith("parts") or name in ("ewc", "rewc", "l2"):
                torch.testing.assert_close(
                    result[key], value, rtol=1e-4, atol=1e-6, msg=lambda m, key=key: f"{key}: {m}"
                )
    if "migu" in name:
        found = {key: value for key, value in alone.items() if value is not None and not key.startswith("parts")}
        assert any((value == 0).flatten(1).all(1).any() for value in found.values() if value.dim() == 2), "masked rows"
    parts = [part[name].get("parts das/contrast") for part in results]
    if name == "das":  # each process reports the mean over its own rows
        torch.testing.assert_close(sum(parts) / PROCESSES, alone["parts das/contrast"])


@pytest.mark.distributed
def test_mofo_chooses_among_all_entries_of_a_sharded_parameter(results: list[dict]) -> None:
    """A threshold for each shard would move as many entries of the first rows as of the last."""
    alone, uneven = _moved(), 0
    for name, moved in alone.items():
        for result in results:
            # Sums of other order may exchange entries at the threshold.
            assert (result["mofo"][name] - moved).abs().sum() <= 2
        half = len(moved) // 2
        uneven += abs(float(moved[:half].sum() - moved[half : 2 * half].sum())) > 0.1 * float(moved.sum())
    assert uneven > len(alone) / 4


@pytest.mark.distributed
@pytest.mark.parametrize("name", [f"{wrap} {name}" for name in STEPS for wrap in ("ddp", "fsdp")])
def test_a_step_on_two_processes_leaves_what_one_leaves(name: str, results: list[dict]) -> None:
    alone = _step(STEPS[name.split(" ", 1)[1]]())
    for result in (part[name] for part in results):
        assert result.keys() == alone.keys()
        for key, value in alone.items():
            torch.testing.assert_close(result[key], value, rtol=1e-4, atol=1e-6, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.distributed
def test_a_mask_that_does_not_reach_the_optimizer_is_an_error_on_every_process(results: list[dict]) -> None:
    for result in results:
        assert result["unreached"].keys() == {"stale", "flat"}
        assert all("have no effect, because the optimizer" in sentence for sentence in result["unreached"].values())
