"""The engine: transforms, gradient surgery, the optimizer's place, what a stage knows, what is attached for a while."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.base import Method, Stage, Transform
from everlearn.methods.engine.attachment import Attachment, attached, detach
from everlearn.methods.engine.protection import Protection
from everlearn.methods.gradients import Gradients
from everlearn.model.parameter_substitution import substituted
from methods_of_other_kinds import OTHERS, registered

LAYER = "roberta.encoder.layer.0.output.dense.weight"
TIED = "roberta.embeddings.word_embeddings.weight"


@pytest.fixture(autouse=True)
def known() -> Any:
    """The methods of the tests have names."""
    with registered():
        yield


class Probe(Method):
    """What a test wants of one hook."""

    name = "probe"
    title = "Probe"
    paper = ""

    def __init__(self, **hooks: Any) -> None:
        super().__init__()
        self.__dict__.update(hooks)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every gradient."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def noise(*names: str) -> dict[str, Transform]:
    """Noise on some parameters."""
    return {name: lambda weight: weight + 0.1 * torch.randn_like(weight) for name in names}


def reading(model: nn.Module, path: str) -> list[Tensor]:
    """What a module's forward pass reads as its weight, appended in each pass."""
    found: list[Tensor] = []
    module: Any = model.get_submodule(path)
    module.register_forward_pre_hook(lambda m, _: found.append(m.weight.detach().clone()))
    return found


# -- transforms -----------------------------------------------------------------------------------------------


def test_one_draw_for_the_micro_batches_of_a_step_and_for_every_holder_of_a_tied_weight() -> None:
    model = tiny.model().train()
    stage = stages.stage(model, 1)
    protection = Protection([Probe(transforms=lambda stage: noise(LAYER, TIED))], stage)
    protection.start()
    paths = [LAYER.removesuffix(".weight"), TIED.removesuffix(".weight"), "lm_head.decoder"]
    layer, table, head = (reading(model, path) for path in paths)
    for _ in range(2):
        for batch in list(stage.batches(8)):
            protection.forward(model, batch)[0].loss.backward()
        protection.after_backward()
        with protection.update():
            pass
    assert [len(each) for each in (layer, table, head)] == [4, 4, 4]
    for draws in (layer, table, head):
        assert torch.equal(draws[0], draws[1]), "the micro-batches of a step"
        assert not torch.equal(draws[1], draws[2]), "another step"
    assert all(torch.equal(*pair) for pair in zip(table, head, strict=True))
    twin = tiny.model()
    assert not torch.equal(layer[0], twin.get_parameter(LAYER)), "it is at work"


def test_a_transform_draws_from_a_generator_of_its_own_and_leaves_nothing_behind() -> None:
    model = tiny.model().train()
    stage = stages.stage(model, 1)
    keys, protection = list(model.state_dict()), Protection([Probe(transforms=lambda stage: noise(LAYER))], stage)
    batch, before = next(stage.batches(4)), torch.get_rng_state()
    changed = protection.forward(model, batch)[0].loss
    assert torch.equal(before, torch.get_rng_state())
    assert list(model.state_dict()) == keys
    assert model.get_parameter(LAYER) is dict(model.named_parameters())[LAYER]
    plain = stage.objective.forward(model.eval(), batch).loss
    model.train()
    assert not torch.equal(changed, plain)
    protection.end()
    assert torch.equal(stage.objective.forward(model, batch).loss, plain), "eval and end: as if it had not been"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_pass_that_breaks_off_leaves_nothing_either(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.model().train()
    stage = stages.stage(model, 1)
    protection, batch = Protection([Probe(transforms=lambda stage: noise(LAYER))], stage), next(stage.batches(4))
    module = model.get_submodule(LAYER.removesuffix(".weight"))

    def broken(*_: Any) -> None:
        raise error

    monkeypatch.setattr(module, "forward", broken)
    with pytest.raises(error):
        protection.forward(model, batch)
    protection.end()
    assert not substituted(module)
    assert not module._forward_hooks


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_gradient_flows_through_the_function(
    checkpointing: bool, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W' = a W + b has dL/dW = a dL/dW', with a and b drawn; also where backward comes by a second time."""
    drawn: dict[str, Tensor] = {}

    def scale(name: str) -> Transform:
        def function(weight: Tensor) -> Tensor:
            factor = drawn[name] = torch.rand(()) + 0.5
            return factor * weight + 0.1 * torch.ones_like(weight)

        return function

    model = tiny.model().train()
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    if chunked:
        monkeypatch.setattr("everlearn.model.vocabulary_head.LOGITS_PER_CHUNK", 4 * tiny.VOCABULARY)
    stage = stages.stage(model, 1)
    batch, twin = next(stage.batches(4)), tiny.model()
    probe = Probe(transforms=lambda stage: {name: scale(name) for name in (LAYER, TIED)})
    protection = Protection([probe], stage)
    loss = protection.forward(model, batch)[0].loss
    loss.backward()
    with torch.no_grad():
        for name in (LAYER, TIED):
            twin.get_parameter(name).mul_(drawn[name]).add_(0.1)
    expected = stage.objective.forward(twin.train(), batch).loss
    torch.testing.assert_close(loss, expected)
    expected.backward()
    found, wanted = gradients(model), gradients(twin)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value * drawn.get(name, torch.ones(())), msg=lambda m, n=name: n + m)


def test_what_cannot_be_transformed_is_a_sentence() -> None:
    stage = stages.stage(tiny.model(), 1)
    with pytest.raises(MethodError, match=r"'probe' transforms 'nothing', which is not a parameter"):
        Protection([Probe(transforms=lambda stage: noise("nothing"))], stage).start()
    other = Probe(transforms=lambda stage: noise(LAYER))
    other.name = other.label = "other"  # type: ignore[misc]
    with pytest.raises(MethodError, match=rf"'other' and 'probe' both transform parameter '{LAYER}'"):
        Protection([other, Probe(transforms=lambda stage: noise(LAYER))], stage).start()
    hat = build("hat")
    stages.begin([hat], stage)
    protection = Protection([hat, Probe(transforms=lambda s: noise("everlearn_hat.attention.embedding"))], stage)
    protection.loss(stage.model.train(), next(stage.batches(4)))[0].backward()
    with pytest.raises(MethodError, match="is not read by the module that owns it"), protection.update():
        pass


# -- gradients ------------------------------------------------------------------------------------------------


def test_agem_projects_as_its_paper_says() -> None:
    """g − (g·r / r·r) r in float64 where g·r < 0, else g; and r is the gradient of the mean over the rows."""
    agem, model = OTHERS["agem"](capacity=8, rows=5), tiny.model()
    stages.learn([agem], stages.stage(model, 1, steps=1))
    stage = stages.stage(model, 2)
    protection = Protection([agem], stage)
    rows = agem.references(stage)["memory"]
    objective = stage.objective.reseeded(stage.seed, 2, "reference", "memory")
    twin = copy.deepcopy(model).train()
    objective.forward(twin, objective.collate(list(rows), range(5))).loss.backward()
    r = {name: value.double() for name, value in gradients(twin).items()}
    for sign in (1.0, -1.0):
        model.zero_grad()
        loss, _ = protection.loss(model.train(), next(stage.batches(4)))
        loss.backward()
        for name, parameter in model.named_parameters():  # towards the memory's gradient, or against it
            parameter.grad += 3 * sign * r[name].float()
        g = {name: value.double() for name, value in gradients(model).items()}
        dot, square = (sum((a[n] * r[n]).sum() for n in r) for a in (g, r))
        assert float(dot) * sign > 0
        protection.after_backward()
        for name, value in gradients(model).items():
            expected = g[name] - min(dot, 0 * dot) / square * r[name]
            torch.testing.assert_close(value, expected.float(), rtol=1e-4, atol=1e-6)


def test_gradients_are_vectors() -> None:
    model = tiny.model("gpt2")
    parameters = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(0)
    values = [{n: torch.randn(p.shape, generator=generator) for n, p in parameters.items()} for _ in range(2)]
    a, b = (Gradients(value, parameters) for value in values)
    flat = [torch.cat([v.double().flatten() for v in value.values()]) for value in values]
    torch.testing.assert_close(a.dot(b).double(), flat[0] @ flat[1], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(a.norm().double(), flat[0].norm())
    for got, wanted in (((a - b * 2.0), flat[0] - 2 * flat[1]), ((a + b), flat[0] + flat[1])):
        found = torch.cat([v.flatten() for v in got.values()]).double()
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    part = Gradients({"transformer.wte.weight": values[0]["transformer.wte.weight"]}, parameters)
    assert torch.equal((a - part)["transformer.wte.weight"], torch.zeros_like(part["transformer.wte.weight"]))
    assert (part - a).keys() == a.keys()
    assert a.like(a.full_tensors()).dot(b) == a.dot(b)
    with pytest.raises(MethodError, match="no parameter of the model"):
        a.like({"nothing": torch.zeros(1)})


class Asking(Probe):
    """Wants gradients of other rows, and changes nothing."""

    def gradients(self, stage: Stage, own: Gradients, references: Mapping[str, Gradients]) -> Gradients:
        """As they are."""
        return own


def test_asking_for_gradients_of_other_rows_changes_nothing_of_the_training() -> None:
    """Their pass has dropout of its own."""
    found = []
    for rows in ({}, {"old": stages.blocks(4, seed=7)}):
        model = tiny.model(dropout=0.1)
        stages.learn([Asking(references=lambda stage, rows=rows: rows)], stages.stage(model, 1))
        found.append(stages.weights(model))
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def test_migu_ranks_by_the_outputs_of_the_batch_alone() -> None:
    """Not by those of rows whose gradient another method wants, which are run after the mask is made."""
    masks = []
    for rows in ({}, {"old": stages.blocks(4, seed=7)}):
        migu: Any = build("migu")
        model = tiny.model()
        stage = stages.stage(model.train(), 2)
        protection = Protection([migu, Asking(references=lambda stage, rows=rows: rows)], stage)
        protection.begin()
        for batch in stage.batches(8):
            protection.loss(model, batch)[0].backward()
            protection.after_backward()
            model.zero_grad()
        assert migu._magnitude is not None
        assert not migu._magnitude._sums
        protection.loss(model, batch)[0].backward()
        masks.append(migu._magnitude.pop())
    assert all(torch.equal(value, masks[1][name]) for name, value in masks[0].items())


def test_migu_ranks_by_the_batch_beside_somebody_elses_pass_too() -> None:
    """There other methods' views run in a pass of their own."""
    found = []
    for others in ([], [build({"name": "das", "general": "none"})]):
        migu: Any = build("migu")
        stage = stages.stage(tiny.model().train(), 2)
        protection, batch = Protection([migu, *others], stage), next(stage.batches(4))
        protection.begin()
        _, extra = protection.beside(stage.model, batch, lambda s=stage, b=batch: s.objective.forward(s.model, b).loss)
        assert ("das/contrast" in extra) == bool(others)
        found.append(migu._magnitude.pop())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


@pytest.mark.parametrize("hook", ["parameter_groups", "optimizer", "schedule", "begin_training", "transforms"])
def test_what_a_hook_draws_before_training_is_its_own(hook: str) -> None:
    """The same wherever the global generators are, which stay there: a resumed run draws what the killed one drew."""
    drawn = []

    class Drawing(Probe):
        """Draws in one hook."""

    def draw(self: Method, stage: Stage, given: Any = None) -> Any:
        drawn.append(torch.rand(4))
        return {} if given is None else given

    setattr(Drawing, hook, draw)
    for seed in (0, 1):
        stage = stages.stage(tiny.model(), 1)
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        protection = Protection([Drawing()], stage)
        optimizer = protection.optimizer(torch.optim.SGD(stage.model.parameters(), lr=0.1))
        protection.schedule(LambdaLR(optimizer, lambda step: 1.0))
        protection.start()
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(*drawn)


# -- what a stage knows ---------------------------------------------------------------------------------------


def test_step_row_and_learning_rate_are_the_present_ones() -> None:
    found: list[tuple[str, int, int, float]] = []

    def see(hook: str) -> Any:
        def at(stage: Stage, *_: Any) -> Mapping[str, Tensor]:
            found.append((hook, stage.step, stage.row, stage.learning_rate))
            return {}

        return at

    probe = Probe(before_forward=see("forward"), after_step=see("update"))
    stage = stages.stage(tiny.model().train(), 1, batch_size=2)
    with pytest.raises(MethodError, match="no learning rate before the first step"):
        _ = stage.learning_rate
    protection = Protection([probe], stage)
    optimizer = protection.optimizer(torch.optim.SGD(stage.model.parameters(), lr=0.5))
    schedule = protection.schedule(LambdaLR(optimizer, lambda step: 1 / (1 + step)))
    for _ in range(2):
        for batch in stage.batches(4):
            protection.loss(stage.model, batch)[0].backward()
        protection.after_backward()
        with protection.update():
            optimizer.step()
        schedule.step()
    expected = [("forward", 0, 0, 0.5), ("forward", 0, 2, 0.5), ("update", 0, 2, 0.5)]
    expected += [("forward", 1, 4, 0.25), ("forward", 1, 6, 0.25), ("update", 1, 6, 0.25)]
    assert found == expected
    assert stage.step == 2


class _Watching(OTHERS["agem"]):  # type: ignore[name-defined,misc]
    """A-GEM that keeps what it is shown."""

    def mask(self, stage: Stage) -> None:
        self.seen = {name: p.grad.clone() for name, p in stage.model.named_parameters() if p.grad is not None}

    def references(self, stage: Stage) -> Mapping[str, Any]:
        return {"memory": stages.blocks(2)}

    def gradients(self, stage: Stage, own: Any, references: Any) -> Any:
        self.old = {name: value.clone() for name, value in references["memory"].items()}
        return own - references["memory"] * 0.5


def test_methods_see_gradients_without_the_scale_of_fp16() -> None:
    """A scaler multiplies losses by a power of two, and takes it out of the gradients when clipping or stepping."""
    shown, left = [], []
    for scale in (1.0, 2.0**10):
        stage, method = stages.stage(tiny.model(), 1, batch_size=2), _Watching()
        protection = Protection([method], stage)
        protection.begin()
        protection.optimizer(torch.optim.SGD(stage.model.parameters(), lr=0.5))
        loss, _ = protection.loss(stage.model.train(), next(stage.batches(2)))
        (loss * scale).backward()
        protection.after_backward(lambda loss, scale=scale: (loss * scale).backward(), scale)
        shown.append((method.seen, method.old))
        left.append({n: p.grad / scale for n, p in stage.model.named_parameters() if p.grad is not None})
    for plain, scaled in (*zip(*shown, strict=True), left):
        assert plain.keys() == scaled.keys()
        for name, value in plain.items():
            torch.testing.assert_close(scaled[name], value, rtol=1e-6, atol=1e-9)


def test_a_schedule_starts_from_the_full_rate_whatever_was_made_before_it() -> None:
    rates = []
    method = build({"name": "infinite_schedule", "warmup": 0.2, "cooldown": 0.8, "constant": 0.5})
    for index in (1, 2):
        stage = stages.stage(tiny.model(), index, steps=10)
        protection = Protection([method], stage)
        optimizer = protection.optimizer(torch.optim.SGD(stage.model.parameters(), lr=0.8))
        own = get_scheduler("linear", optimizer, num_warmup_steps=4, num_training_steps=10)
        schedule = protection.schedule(own)
        for _ in range(10):
            rates.append(stage.learning_rate)
            with protection.update():
                optimizer.step()
            schedule.step()
        protection.end()
    assert rates[:3] == pytest.approx([0, 0.4, 0.8])
    assert rates[2] > rates[5] > rates[9] > 0.4
    assert rates[10:] == [0.4] * 10


def test_a_group_of_parameters_may_say_only_what_is_different_in_it() -> None:
    def halves(stage: Stage, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        parameters = [parameter for group in groups for parameter in group["params"]]
        return [{"params": parameters[:3], "lr": 0.5}, {"params": parameters[3:]}]

    stage = stages.stage(tiny.model(), 1)
    asked = torch.optim.AdamW(stage.model.parameters(), lr=0.1, betas=(0.8, 0.9))
    optimizer = Protection([Probe(parameter_groups=halves)], stage).optimizer(asked)
    stage.objective.forward(stage.model, next(stage.batches(4))).loss.backward()
    optimizer.step()
    assert [(group["lr"], group["betas"]) for group in optimizer.param_groups] == [(0.5, (0.8, 0.9)), (0.1, (0.8, 0.9))]


# -- weights --------------------------------------------------------------------------------------------------


def test_a_domain_ends_with_what_a_method_says_and_the_others_measure_it() -> None:
    model = tiny.model()
    start = stages.weights(model)
    stage, ewc = stages.stage(model, 1, steps=2), build({"name": "ewc", "samples": 4})
    trained: dict[str, Tensor] = {}
    average = build({"name": "wise_ft", "alpha": 0.25})
    stages.learn([ewc, average], stage, each=lambda *_: trained.update(stages.weights(model)))
    anchors = ewc.memory().tensors
    for name, value in stages.weights(model).items():
        assert torch.equal(anchors[f"anchor/{name}"], value), "measured on the merged model"
    moved = stages.weights(model)[LAYER] - start[LAYER]
    whole = copy.deepcopy(tiny.model())
    again = stages.stage(whole, 1, steps=2)
    stages.learn([build({"name": "ewc", "samples": 4})], again)
    torch.testing.assert_close(moved, 0.25 * (stages.weights(whole)[LAYER] - start[LAYER]), rtol=1e-4, atol=1e-7)


def test_a_domain_starts_with_what_a_method_says() -> None:
    stage = stages.stage(tiny.model(), 2)
    with torch.no_grad():
        for parameter in stage.model.parameters():
            parameter.add_(torch.linspace(0, 1, parameter.numel()).view(parameter.shape))
    before, base = stages.weights(stage.model), stage.checkpoints[0].get_parameter(LAYER)
    with torch.no_grad():
        before[LAYER].copy_(stage.model.get_parameter(LAYER))
    stages.begin([OTHERS["trimmed_start"](share=0.25)], stage)
    now = stage.model.get_parameter(LAYER)
    reset = now == base
    assert int(reset.sum()) == now.numel() // 4
    assert torch.equal(now[~reset], before[LAYER][~reset])
    far = (before[LAYER] - base).abs()
    assert far[reset].max() <= far[~reset].min()


def test_weights_of_another_model_are_a_sentence() -> None:
    stage = stages.stage(tiny.model(), 1)
    probe = Probe(starting_weights=lambda stage: {LAYER: torch.zeros(3)})
    with pytest.raises(MethodError, match=rf"'probe' returns weights for '{LAYER}' with shape \(3,\)"):
        Protection([probe], stage).begin()


def test_checkpoints_are_counted_from_the_base_model() -> None:
    stage = stages.stage(tiny.model(), 2)
    assert len(stage.checkpoints) == 2
    same = zip(stage.checkpoints[-1].parameters(), stage.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)
    with pytest.raises(MethodError, match=r"There is no checkpoint 2: 0 is the base model, the last is 1\."):
        _ = stage.checkpoints[2]
    bare = Stage(**{**vars(stage), "checkpoints": type(stage.checkpoints)()})
    with pytest.raises(MethodError, match="kept in a run folder"):
        _ = bare.checkpoints[0]


# -- methods together -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_extra_pass_of_das_leaves_the_gates_of_hat_their_gradient(checkpointing: bool) -> None:
    """λ R must reach the embedding: its gradient is that with λ = 0 plus λ dR/de."""
    found = []
    for sparsity in (0.0, 8.0):
        model = tiny.model()
        das = build({"name": "das", "general": "corpus_loss", "samples": 4, "stop_gradient_prev": True})
        methods = [das, build({"name": "hat", "sparsity": sparsity})]
        stage = stages.stage(model, 1, general=True)
        protection = Protection(methods, stage)
        protection.begin()
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        loss, parts = protection.loss(model.train(), next(stage.batches(4)))
        loss.backward()
        attention = attached(model, "hat").attention
        found.append((attention.embedding.grad.clone(), parts))
    gate = torch.nn.Parameter(attention.embedding.detach().clone())
    opened = torch.sigmoid(gate)
    own = attention.smax * opened * (1 - opened) / gate.numel()  # the compensated gradient of the mean of all gates
    torch.testing.assert_close(found[1][0] - found[0][0], 8.0 * own.detach(), rtol=1e-3, atol=1e-4)
    assert float(found[1][1]["hat/sparsity"]) > 0


class Shift(nn.Module):
    """Adds a learnt number to a module's output."""

    def __init__(self) -> None:
        super().__init__()
        self.amount = nn.Parameter(torch.tensor(0.5))

    def hook(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """The forward hook."""
        return output + self.amount


class Shifts(Attachment):
    """Shifts the second feed-forward projection of every layer, and halves what enters the first."""

    def __init__(self) -> None:
        super().__init__()
        self.shifts = nn.ModuleList([Shift(), Shift()])

    def place(self, model: nn.Module) -> None:
        for shift, layer in zip(self.shifts, model.roberta.encoder.layer, strict=True):
            layer.output.dense.register_forward_hook(shift.hook)
            layer.intermediate.dense.register_forward_pre_hook(self.halve)

    def halve(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The forward pre-hook."""
        return (inputs[0] / 2,)


IDS = torch.arange(5, 25)[None]


def logits(model: nn.Module) -> Tensor:
    return model(input_ids=IDS).logits.detach()


def test_attach_changes_the_function_and_detach_restores_everything() -> None:
    model = tiny.model()
    plain, names = logits(model), set(model.state_dict())
    model.roberta.embeddings.word_embeddings.weight.requires_grad_(False)
    Shifts().attach(model, "shifts", freeze=True)
    assert not torch.equal(logits(model), plain)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained == ["everlearn_shifts.shifts.0.amount", "everlearn_shifts.shifts.1.amount"]
    gone = detach(model, "shifts")
    assert isinstance(gone, Shifts)
    assert set(model.state_dict()) == names
    assert torch.equal(logits(model), plain)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert frozen == ["roberta.embeddings.word_embeddings.weight"], "what was frozen before stays frozen"


def test_other_hooks_stay() -> None:
    model, calls = tiny.model(), []
    model.roberta.encoder.layer[0].output.dense.register_forward_hook(lambda *_: calls.append(1))
    Shifts().attach(model, "shifts")
    detach(model, "shifts")
    logits(model)
    assert calls == [1]


def test_a_copy_of_the_model_has_hooks_of_its_own() -> None:
    model = tiny.model()
    plain = logits(model)
    Shifts().attach(model, "shifts")
    shifted, other = logits(model), copy.deepcopy(model)
    with torch.no_grad():
        attached(other, "shifts").shifts[0].amount.fill_(3.0)
    assert torch.equal(logits(model), shifted)
    assert not torch.equal(logits(other), shifted)
    detach(other, "shifts")
    assert torch.equal(logits(other), plain)
    assert torch.equal(logits(model), shifted)


def test_one_attachment_of_a_name_and_none_is_an_error() -> None:
    model = tiny.model()
    with pytest.raises(MethodError, match="'shifts' lost its attached modules"):
        attached(model, "shifts")
    Shifts().attach(model, "shifts")
    with pytest.raises(MethodError, match="attached to this model already"):
        Shifts().attach(model, "shifts")


def _trains_float32(protection: Protection, _: dict[str, Tensor]) -> None:
    trained = [value for value in protection.stage.model.parameters() if value.grad is not None]
    assert torch.float32 in {value.dtype for value in trained}


@pytest.mark.parametrize("architecture", ["roberta", "gpt2"])
@pytest.mark.parametrize(
    "name", ["dap_adapter", "hat_adapter", "bcl", "classic", "cpt", "k_adapter", "side_tuning_released"]
)
def test_beside_16_bit_weights_what_is_attached_is_float32_and_computes_in_16(name: str, architecture: str) -> None:
    objective, first = tiny.objective_of(architecture), {}
    for dtype in (torch.float32, torch.bfloat16):
        method, model = build(name), tiny.model(architecture).to(dtype)
        for index in (1, 2):
            at = stages.stage(model, index, objective, steps=1, batch_size=2)
            parts = stages.learn([method], at, each=_trains_float32)
            first.setdefault(dtype, float(parts[0]["loss"]))
        assert {value.dtype for value in model.parameters()} == {dtype}, "the model stays what it was"
    assert first[torch.bfloat16] == pytest.approx(first[torch.float32], rel=0.02)
