"""DAS against its equations in float64, and its variants."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import TrainerCallback

import stages
import tiny
from everlearn.config.arguments import training_arguments
from everlearn.config.recipe import load
from everlearn.data.loader import BlockLoader
from everlearn.errors import MethodError
from everlearn.importance import general_importance, normalise, unit_importance
from everlearn.methods import build
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.base import Memory, Stage
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.methods.masks.contrast import contrast, contrasted
from everlearn.methods.masks.das import DAS
from everlearn.methods.masks.das_options import RELEASED
from everlearn.model.anatomy import anatomy
from everlearn.model.gates import Gates
from everlearn.model.training_mode import evaluating
from everlearn.run.trainer import StageTrainer
from everlearn.seeding import seeded, set_all

OFF = {"contrast": 0, "general": "none"}


def _with_importance(method: DAS, model, make) -> dict[str, Tensor]:
    """Give the method importance maps as if loaded from a stage folder."""
    maps = {site.name: make(site) for site in anatomy(model).sites}
    method.load_memory(Memory({f"accumulated/{name}": value for name, value in maps.items()}, {"domains": ["d0"]}))
    return maps


# -- importance (eq. 3) ---------------------------------------------------------------------------------------


def _reference_importance(model, stage, samples: int) -> dict[str, Tensor]:
    """(1/N) Σ_n |∂L_n/∂g| in float64 without any hook: scaling a unit is scaling its weights, so the chain rule gives
    ∂L/∂g = Σ w ∂L/∂w over the columns of the attention's output projection, or the rows (and bias) of a feed-forward.
    """
    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    total: dict[str, Tensor] = {}
    count = 0
    for batch in stage.batches(samples):
        for row in range(len(batch["labels"])):
            double.zero_grad()
            stage.objective.per_sample_loss(double, {n: v[row : row + 1] for n, v in batch.items()}).sum().backward()
            count += 1
            for index, layer in enumerate(double.roberta.encoder.layer):
                o = layer.attention.output.dense.weight
                parts = {"attention.heads": (o * o.grad).sum(0).view(4, 8).sum(1)}
                for site, dense in (("ffn.neurons", layer.intermediate.dense), ("ffn.output", layer.output.dense)):
                    parts[site] = (dense.weight * dense.weight.grad).sum(1) + dense.bias * dense.bias.grad
                for site, value in parts.items():
                    name = f"layers.{index}.{site}"
                    total[name] = total.get(name, 0) + value.detach().abs()
    return {name: value / count for name, value in total.items()}


def _squashed(raw: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.tanh((value - value.mean()) / value.std()).abs() for name, value in raw.items()}


def test_a_domains_importance_is_the_equation_and_maps_accumulate_by_maximum() -> None:
    method = DAS(strength=0.5, samples=6, **OFF)
    model = tiny.model(dropout=0.1)
    expected: dict[str, Tensor] = {}
    for index in (1, 2):
        stage = stages.stage(model, index, steps=2)
        stages.learn([method], stage)
        new = _squashed(_reference_importance(model, stage, 6))
        expected = {name: torch.maximum(value, expected.get(name, value)) for name, value in new.items()}
    saved = method.memory()
    assert saved.facts == {"domains": ["d1", "d2"]}
    assert set(saved.tensors) == {f"accumulated/{name}" for name in expected}
    for name, value in expected.items():
        torch.testing.assert_close(saved.tensors[f"accumulated/{name}"].double(), value, rtol=1e-3, atol=1e-4)


def test_general_importance_is_measured_once_before_the_first_domain() -> None:
    method, model = DAS(samples=4, contrast=0), tiny.model(dropout=0.1)
    stages.begin([method], stages.stage(model, 1))
    general = method.memory().tensors
    assert {key.split("/")[0] for key in general} == {"general", "accumulated"}
    assert all(float(value.min()) >= 0 and float(value.max()) < 1 for value in general.values())
    assert sum(float(value.sum()) for value in general.values()) > 0
    stages.begin([method], stages.stage(model, 1))
    stages.end([method], stages.stage(model, 1))
    for key, value in method.memory().tensors.items():
        kind, name = key.split("/")
        assert (
            torch.equal(value, general[key]) if kind == "general" else bool((value >= general[f"general/{name}"]).all())
        )


# -- the mask (eq. 4) -----------------------------------------------------------------------------------------


def test_padding_of_answers_has_no_part_in_general_importance() -> None:
    """An encoder-decoder's last hidden state is of the answers, which a batch pads to its longest."""
    model = tiny.model("t5").double()  # sums in another order: nothing else may differ
    at = stages.stage(model, objective="text-to-text")
    (batch,) = at.batches(4)
    more = {"labels": -100, "decoder_input_ids": at.tokenizer.pad_token_id}
    wide = batch | {key: torch.nn.functional.pad(batch[key], (0, 8), value=value) for key, value in more.items()}
    # Two representations that differ, but not by chance: the second copy reads its text shifted.
    model.encoder.embed_tokens.register_forward_hook(lambda _, __, out: torch.cat([a := out.chunk(2)[0], a.roll(1, 1)]))
    first, second = (
        general_importance(model, [one], at.objective, reduce="signed_sum", dropout=False) for one in (batch, wide)
    )
    scale = max(value.abs().max() for value in first.values())
    assert scale > 0
    for name, value in first.items():
        torch.testing.assert_close(second[name] / scale, value / scale, rtol=1e-9, atol=1e-10)


def test_mask_factors_are_one_minus_strength_times_importance() -> None:
    model = tiny.model()
    method = DAS(strength=0.5, **OFF)
    maps = _with_importance(method, model, lambda site: torch.rand(site.units))
    stage = stages.stage(model, 2)
    stages.begin([method], stage)
    factors = method.mask(stage).factors
    assert method.mask(stage) is method.mask(stage), "a constant mask is one object"
    head = 1 - 0.5 * maps["layers.1.attention.heads"].repeat_interleave(8)
    at = "roberta.encoder.layer.1."
    for projection in ("query", "key", "value"):
        torch.testing.assert_close(factors[f"{at}attention.self.{projection}.weight"], head[:, None])
        torch.testing.assert_close(factors[f"{at}attention.self.{projection}.bias"], head)
    torch.testing.assert_close(factors[f"{at}attention.output.dense.weight"], head[None, :])
    assert f"{at}attention.output.dense.bias" not in factors, "its entries are hidden features, not heads"
    for module, site in (("intermediate", "neurons"), ("output", "output")):
        free = 1 - 0.5 * maps[f"layers.1.ffn.{site}"]
        torch.testing.assert_close(factors[f"{at}{module}.dense.weight"], free[:, None])
        torch.testing.assert_close(factors[f"{at}{module}.dense.bias"], free)


def _entries_of_unit_2(model: nn.Module, site: str) -> dict[str, Tensor]:
    """Where the third unit's own weights are (eq. 4), by hand: 4 heads of 8 features, 64 neurons, 32 outputs.

    A head: rows and biases of query, key and value, columns of the attention's output projection (whose bias is of
    hidden features). A neuron or output: its row and its bias.
    """
    at = f"roberta.encoder.layer.{site.split('.')[1]}."
    places: dict[str, tuple[slice | int, ...]] = {}
    if site.endswith("heads"):
        head = slice(16, 24)
        for name in ("query", "key", "value"):
            places[f"{at}attention.self.{name}.weight"] = places[f"{at}attention.self.{name}.bias"] = (head,)
        places[f"{at}attention.output.dense.weight"] = (slice(None), head)
    else:
        module = "intermediate" if site.endswith("neurons") else "output"
        places[f"{at}{module}.dense.weight"] = places[f"{at}{module}.dense.bias"] = (2,)
    kept = {name: torch.zeros_like(model.get_parameter(name), dtype=torch.bool) for name in places}
    for name, place in places.items():
        kept[name][place] = True
    return kept


@pytest.mark.parametrize("chosen", ["layers.0.attention.heads", "layers.1.ffn.neurons", "layers.0.ffn.output"])
def test_a_fully_important_unit_never_changes_and_all_others_learn_as_without_a_mask(chosen: str) -> None:
    protected, plain = tiny.model(), tiny.model()
    start = stages.weights(plain)
    method = DAS(**OFF)
    _with_importance(method, protected, lambda site: torch.eye(site.units)[2] * (site.name == chosen))
    kept = _entries_of_unit_2(plain, chosen)
    stages.learn([method], stages.stage(protected, 2, steps=50), weight_decay=0.1)

    # The reference: plain training in which the units' own weights are put back by hand after every step.
    reference = stages.stage(plain, 2, steps=50)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1)
    set_all(reference.seed, "train", 2)
    plain.train()
    for batch in BlockLoader(reference.source, reference.objective, 4, 50):
        reference.objective.forward(plain, batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for name, mine in kept.items():
                parameter = plain.get_parameter(name)
                parameter.copy_(torch.where(mine, start[name], parameter))
    for name, parameter in protected.named_parameters():
        assert torch.equal(parameter, plain.get_parameter(name)), name
        if name in kept:
            mine = kept[name]
            assert torch.equal(parameter[mine], start[name][mine])
            assert not torch.equal(parameter[~mine], start[name][~mine])


def test_a_gradient_mask_is_undone_by_adam_and_an_update_mask_is_not() -> None:
    """The figures that docs/das.md quotes: how far units move, each beside itself without a mask."""
    importance = torch.zeros(64).index_copy(0, torch.arange(3), torch.tensor([1.0, 0.9, 0.5]))
    moved = {}
    for apply_to in (None, "gradient", "update"):
        model = tiny.model()
        name = "roberta.encoder.layer.1.intermediate.dense.weight"
        start = stages.weights(model)[name]
        method = DAS(**OFF) if apply_to is None else DAS(apply_to=apply_to, **OFF)
        of_neurons = importance if apply_to else torch.zeros(64)
        _with_importance(
            method, model, lambda site, i=of_neurons: i if site.kind == "neuron" else torch.zeros(site.units)
        )
        stages.learn([method], stages.stage(model, 2, steps=50), lr=1e-3, weight_decay=0.1)
        moved[apply_to] = (model.get_parameter(name) - start)[:3].detach().norm(dim=1)
    gradient, update = (moved[apply_to] / moved[None] for apply_to in ("gradient", "update"))
    assert gradient.tolist() == pytest.approx([0.01, 1.0, 1.0], abs=0.005), "weight decay; the whole update twice"
    assert update.tolist() == pytest.approx([0.0, 0.1, 0.5], abs=0.04)
    assert update[0] == 0


# -- the contrast ---------------------------------------------------------------------------------------------


def _reference_contrast(a: Tensor, p: Tensor, v: Tensor | None, temperature: float) -> Tensor:
    def similarity(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y) / (x.norm() * y.norm()) / temperature

    total = torch.zeros((), dtype=torch.float64)
    for n in range(len(a)):
        bottom = sum(torch.exp(similarity(a[n], p[j])) for j in range(len(p)))
        if v is not None:
            bottom = bottom + sum(torch.exp(similarity(a[n], v[j])) for j in range(len(v)))
        total = total - torch.log(torch.exp(similarity(a[n], p[n])) / bottom)
    return total / len(a)


@pytest.mark.parametrize("gated", [True, False])
def test_contrast_is_the_equation(gated: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(5, 16, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    a, p, v = rows
    expected = _reference_contrast(a, p, v if gated else None, 0.05)
    gradients = torch.autograd.grad(expected, rows if gated else rows[:2])
    value = contrast(a, p, v if gated else None, 0.05)
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(torch.autograd.grad(value, rows if gated else rows[:2]), gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("architecture", "objective"), [("roberta", "masked"), ("gpt2", "causal")])
def test_views_are_the_plain_text_twice_and_once_through_the_gated_network(architecture: str, objective: str) -> None:
    model = tiny.model(architecture)
    method = DAS(contrast=0.7, general="none")
    maps = _with_importance(method, model, lambda site: torch.rand(site.units))
    stage = stages.stage(model, 2, objective)
    stages.begin([method], stage)
    batch = next(stage.batches(4))
    inputs = stage.objective.inputs(batch)
    inputs["input_ids"] = batch.get("plain_ids", batch["input_ids"])
    assert len(method.views(stage, batch)) == (3 if objective == "masked" else 2), (
        "unmasked text is in the pass already"
    )
    full = stage.objective.hidden(model, inputs).mean(1)
    with Gates(model) as gates:
        gates.set(maps)
        previous = stage.objective.hidden(model, inputs).mean(1)
    _, extra = Protection([method], stage).forward(model, batch)
    # Without dropout the two copies of a text are equal, so a pairing of different texts would show in the value.
    expected = 0.7 * _reference_contrast(full.double(), full.double(), previous.double(), 0.05)
    torch.testing.assert_close(extra["das/contrast"].double(), expected, rtol=1e-4, atol=1e-5)
    shifted = _reference_contrast(full.double(), full.roll(1, 0).double(), previous.double(), 0.05)
    assert shifted > expected


def test_dropout_differs_between_the_copies_and_every_representation_learns() -> None:
    model = tiny.model(dropout=0.1).train()
    hidden = {}
    for stop in (False, True):
        method = DAS(stop_gradient_prev=stop, general="none")
        _with_importance(method, model, lambda site: torch.rand(site.units))
        stage = stages.stage(model, 2)
        stages.begin([method], stage)
        batch = next(stage.batches(4))
        outputs = stage.objective.forward(model, batch, method.views(stage, batch))
        full, again, *_ = outputs.views
        assert (full - again).abs().max() > 1e-3
        for view in outputs.views:
            view.retain_grad()
        method.extra_losses(stage, batch, outputs)["contrast"].backward()
        hidden[stop] = [view.grad is not None and bool(view.grad.abs().max() > 0) for view in outputs.views]
    assert hidden == {False: [True, True, True], True: [True, True]}, "without its gradient v is not in the pass"


@pytest.mark.parametrize(
    ("rows", "fraction", "expected"), [(8, 1, 8), (8, 0.25, 2), (8, 0.1, 2), (4, 0.75, 3), (1, 0.5, 1)]
)
def test_contrasted_rows(rows: int, fraction: float, expected: int) -> None:
    assert contrasted(rows, fraction) == expected


def test_without_any_importance_the_contrast_has_no_gated_rows() -> None:
    method = DAS(general="none")
    stage = stages.stage(tiny.model(dropout=0.1), 1)
    stages.begin([method], stage)
    batch = next(stage.batches(4))
    assert [view.gates for view in method.views(stage, batch)] == [None, None]
    assert method.mask(stage) is None
    _, extra = Protection([method], stage).forward(stage.model, batch)
    assert torch.isfinite(extra["das/contrast"])


def test_a_stage_takes_its_steps_and_the_rate_reaches_zero_only_then(tmp_path: Path) -> None:
    """Cheap test 8: the released code runs on at a rate of 0 when the steps are used up (D8)."""
    method, model = DAS(samples=4), tiny.model(dropout=0.1)
    stage = stages.stage(model, 1, steps=6)
    protection = Protection([method], stage)
    data = protection.begin()
    arguments = {
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "linear",
        "warmup_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
    }
    updates: list[float] = []

    class Seen(TrainerCallback):
        def on_pre_optimizer_step(self, *args: object, **kwargs: object) -> None:
            (rate,) = {group["lr"] for group in trainer.optimizer.param_groups}
            updates.append(rate)

    trainer = StageTrainer(
        protection=protection,
        loader=BlockLoader(data, stage.objective, 4, stage.steps),
        args=training_arguments(arguments, tmp_path, stage.seed, stage.steps),
        callbacks=[Seen()],
    )
    trainer.train()
    assert updates == pytest.approx([0, 0.5e-3, 1e-3, 0.75e-3, 0.5e-3, 0.25e-3])
    assert trainer.lr_scheduler.get_last_lr()[0] == 0


# -- state and refusals ---------------------------------------------------------------------------------------


def test_memory_is_the_whole_state() -> None:
    method, model = DAS(samples=4), tiny.model(dropout=0.1)
    stages.learn([method], stages.stage(model, 1, steps=2))
    restored, twin = DAS(samples=4), tiny.model(dropout=0.1)
    restored.load_memory(method.memory())
    twin.load_state_dict(model.state_dict())
    stages.learn([method], stages.stage(model, 2))
    stages.learn([restored], stages.stage(twin, 2))
    assert all(torch.equal(p, twin.get_parameter(name)) for name, p in model.named_parameters())
    assert restored.memory().facts == method.memory().facts


def test_memory_of_another_model_is_refused() -> None:
    method = DAS(**OFF)
    _with_importance(method, tiny.model(), lambda site: torch.rand(site.units))
    with pytest.raises(MethodError, match="units"):
        stages.begin([method], stages.stage(tiny.model(intermediate_size=48), 2))


def test_refusals() -> None:
    t5 = tiny.model("t5", dropout=0.1)
    with pytest.raises(MethodError, match="contrast: 0"):
        check_methods([DAS()], stages.setting(t5, [DAS()], "text-to-text"))
    check_methods([DAS(contrast=0)], stages.setting(t5, [DAS()], "text-to-text"))
    with pytest.raises(MethodError, match="general: none"):
        check_methods([DAS()], stages.setting(tiny.model(), [DAS()]))
    check_methods([DAS(general="none")], stages.setting(tiny.model(), [DAS()]))
    check_methods([DAS(scores="random")], stages.setting(tiny.model(), [DAS()]))
    with pytest.raises(MethodError, match=r"'corpus_kl' measures importance on the recipe's general"):
        check_methods([DAS(scores="random", general="corpus_kl")], stages.setting(tiny.model(), [DAS()]))
    model = tiny.model(dropout=0.1)
    with pytest.raises(MethodError, match="PEFT"):
        check_methods([DAS()], stages.setting(model, [DAS(), IncLoRA()]))
    with pytest.raises(MethodError, match="'strength'"):
        DAS(strength=2)


SWITCHES = [{name: value} for name, value in RELEASED.items()] + [{"reduce": "signed_sum"}]

# -- the presets ----------------------------------------------------------------------------------------------


def test_released_is_all_switches_together() -> None:
    assert set(RELEASED) == {
        "reduce",
        "proxy_dropout",
        "proxy_softmax",
        "proxy_input",
        "domain_input",
        "domain_dropout",
        "qkv_mask_axis",
        "apply_to",
        "pair",
        "gather_grad",
    }
    released = build("das_released")
    assert released.config == DAS(**RELEASED).config
    assert all(getattr(DAS().config, name) != value for name, value in RELEASED.items())


def _two_steps(**options) -> dict[str, Tensor]:
    """The weights after a domain of one step and the first step of the next."""
    model = tiny.model(dropout=0.1)
    method = DAS(samples=6, **options)
    for index in (1, 2):
        stages.learn([method], stages.stage(model, index, steps=1))
    return stages.weights(model)


@pytest.fixture(scope="module")
def paper() -> dict[str, Tensor]:
    return _two_steps()


@pytest.mark.parametrize("switch", [s for s in SWITCHES if "gather_grad" not in s], ids=str)
def test_each_switch_changes_what_is_learnt(switch: dict, paper: dict[str, Tensor]) -> None:
    """Another gradient of gathered rows shows on several processes only (test_methods_composition.py)."""
    changed = _two_steps(**switch)
    assert any(not torch.equal(value, changed[name]) for name, value in paper.items())


ABLATIONS = [
    "das_released",
    "das_without_initialisation",
    "das_without_soft_mask",
    "das_random",
    "das_without_contrast",
    "das_domain_specific",
    "das_wiki_mlm",
    "das_wiki_kl",
    "dga",
]


def test_no_two_published_settings_learn_the_same(paper: dict[str, Tensor]) -> None:
    assert [variant.name for variant in DAS.variants] == ABLATIONS
    learnt = {"das": paper}
    for name in ABLATIONS:
        model, method = tiny.model(dropout=0.1), build({"name": name, "samples": 6})
        for index in (1, 2):
            stages.learn([method], stages.stage(model, index, steps=1, general=True))
        assert bool(method.memory()) == (name != "das_without_soft_mask")
        learnt[name] = stages.weights(model)
    for name, weights in learnt.items():
        assert all(torch.isfinite(value).all() for value in weights.values())
        twins = [
            other for other, theirs in learnt.items() if all(torch.equal(weights[key], theirs[key]) for key in theirs)
        ]
        assert twins == [name]


# -- the ablations' importance --------------------------------------------------------------------------------


def _begun(name: str, stage: Stage, **options) -> DAS:
    method = build({"name": name, "samples": 8, **options})
    stages.hook(method, "begin_domain", stage)
    return method


def test_general_importance_from_a_corpus_is_measured_on_that_corpus() -> None:
    model = tiny.model(dropout=0.1)
    here = stages.stage(model, 1, general=True)
    there = stages.stage(model, 1)
    there.source = here.general
    mlm = _begun("das_wiki_mlm", here).memory()
    with evaluating(model):
        raw = unit_importance(model, there.batches(8), here.objective.per_sample_loss)
    for key, value in normalise(raw).items():
        assert torch.equal(mlm.tensors[f"general/{key}"], value)
    kl = _begun("das_wiki_kl", here).memory()
    proxy = _begun("das", there).memory()
    assert all(torch.equal(value, proxy.tensors[key]) for key, value in kl.tensors.items())
    method = build("das_wiki_kl")
    with pytest.raises(MethodError, match="there is none"):
        check_methods([method], stages.setting(model, [method]))


def test_random_importance_is_seeded_uniform_and_needs_no_pass() -> None:
    model = tiny.model()
    method = _begun("das_random", stages.stage(model, 1))
    again = _begun("das_random", stages.stage(model, 1))
    check_methods([method], stages.setting(model, [method]))
    assert method.cost(model).passes_per_domain == 0
    assert not method.needs.importance_pass
    for key, value in method.memory().tensors.items():
        assert torch.equal(value, again.memory().tensors[key])
    with seeded(0, "hook", "das", "begin_domain", 1):
        raw = {site.name: torch.rand(site.units).double() for site in anatomy(model).sites}
    for name, value in raw.items():
        expected = torch.tanh((value - value.mean()) / value.std()).abs()
        torch.testing.assert_close(method.memory().tensors[f"general/{name}"].double(), expected, rtol=1e-5, atol=1e-6)
    before = method.memory().tensors
    stages.hook(method, "end_domain", stages.stage(model, 1))
    after = method.memory().tensors
    assert all(bool((after[key] >= value).all()) for key, value in before.items())
    assert any(not torch.equal(after[key], value) for key, value in before.items())


def test_what_random_maps_leave_free_is_what_the_page_says() -> None:
    """docs/das.md quotes 0.38, 0.23, 0.17, 0.14; of one map it is 1 − ln cosh(√3) / √3."""
    model = tiny.model(intermediate_size=100_000, num_hidden_layers=1)
    method, left = DAS(scores="random", contrast=0), []
    stages.hook(method, "begin_domain", stages.stage(model, 1))
    for index in range(1, 5):
        left.append(float(1 - method.memory().tensors["accumulated/layers.0.ffn.neurons"].mean()))
        stages.hook(method, "end_domain", stages.stage(model, index))
    assert left[0] == pytest.approx(1 - math.log(math.cosh(math.sqrt(3))) / math.sqrt(3), abs=2e-3)
    assert left == pytest.approx([0.38, 0.23, 0.17, 0.14], abs=5e-3)


def test_dga_protects_heads_by_a_proxy_of_its_own_for_each_domain() -> None:
    model = tiny.model(dropout=0.1)
    method = build({"name": "dga", "samples": 8})
    first, second = stages.stage(model, 1), stages.stage(model, 2)
    stages.learn([method], first)
    maps = method.memory()
    assert {key.split("/")[1].split(".", 2)[2] for key in maps.tensors} == {"attention.heads"}
    stages.hook(method, "begin_domain", second)
    assert any(not torch.equal(value, method.memory().tensors[key]) for key, value in maps.tensors.items())
    assert all(".attention." in name for name in method.mask(second).factors)
    fresh = build({"name": "dga", "samples": 8})
    stages.hook(fresh, "begin_domain", second)
    now = method.memory()
    assert all(torch.equal(value, fresh.memory().tensors[key]) for key, value in now.tensors.items())
    # A resume inside the domain finds the map of this domain and keeps it.
    resumed = build({"name": "dga", "samples": 8})
    resumed.load_memory(now)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    stages.hook(resumed, "begin_domain", second)
    assert all(torch.equal(value, resumed.memory().tensors[key]) for key, value in now.tensors.items())


def test_domain_specific_views_are_gated_by_the_rest() -> None:
    model = tiny.model()
    method = DAS(contrast_kind="specific", general="none")
    maps = {site.name: torch.rand(site.units) for site in anatomy(model).sites}
    method.load_memory(Memory({f"accumulated/{name}": value for name, value in maps.items()}, {"domains": ["d0"]}))
    stage = stages.stage(model, 2)
    stages.begin([method], stage)
    full, again, previous = method.views(stage, next(stage.batches(4)))
    for name, value in maps.items():
        assert torch.equal(full.gates[name], 1 - value)
        assert torch.equal(again.gates[name], 1 - value)
        assert torch.equal(previous.gates[name], value)


def test_more_refusals() -> None:
    model = tiny.model(dropout=0.1)
    for options, match in (
        ({"contrast_kind": "specific", "anchor": "masked"}, "anchor: plain"),
        ({"accumulate": False, "general": "none"}, "leaves nothing"),
    ):
        with pytest.raises(MethodError, match=match):
            check_methods([DAS(**options)], stages.setting(model, [DAS()]))
    with pytest.raises(MethodError, match="'units"):
        DAS(units=[])
    assert math.isclose(DAS(contrast_fraction=0.25, anchor="masked").cost(model).passes_per_step, 0.5)


def test_shipped_recipes_load_and_their_commands_parse() -> None:
    root = Path(__file__).parents[2]
    paths = sorted((root / "recipes" / "das").glob("*.yaml"))
    assert len(paths) == 2
    for path in paths:
        assert [method.name for method in load(path).methods()] == ["das"]
        commands = re.findall(r"^#   everlearn run (\S+) ?(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert commands
        for recipe, overrides in commands:
            load(root / recipe, overrides.split())
    assert load(paths[1]).methods()[0].config == build({"name": "das_released"}).config
    single = load(paths[1], ["method=das", "method.pair=interleaved"]).methods()[0]
    assert single.config == DAS(pair="interleaved").config
