"""Side-tuning: the blend against a slow reference, what stays as it was, and where a side network begins."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hard_attention_checks import classifier, reading
from torch import Tensor, nn

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.composition.beside_layers import layers_read
from everlearn.methods.composition.side_tuning import SideTuning
from everlearn.methods.engine.attachment import attached
from everlearn.methods.engine.protection import Protection
from everlearn.predictors import Checkpoint

IDS = torch.arange(5, 53).view(2, 24)
OWN = "everlearn_side_tuning."


def learnt(method: SideTuning, model: Any, domains: int = 1, objective: str = "masked", **options: Any) -> list[Any]:
    """A stream in a plain loop."""
    done = [stages.stage(model, index, objective) for index in range(1, domains + 1)]
    for at in done:
        stages.learn([method], at, **options)
    return done


@torch.no_grad()
def seen(method: SideTuning, at: Any, domain: str | None = "d1") -> Tensor:
    """What enters the vocabulary head for a fixed text, [B, S, H]."""
    model = method.test_model(copy.deepcopy(at.model).eval(), reading(at, domain))
    return at.objective.hidden(model, {"input_ids": IDS})


def norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def roberta_layer(x: Tensor, w: dict[str, Tensor], heads: int = 4) -> Tensor:
    """One layer by hand, float64, from its weights by name."""

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    rows, length, hidden = x.shape
    q, k, v = (
        linear(f"attention.self.{part}", x).view(rows, length, heads, -1).transpose(1, 2)
        for part in ("query", "key", "value")
    )
    context = (q @ k.transpose(2, 3) / (hidden // heads) ** 0.5).softmax(-1) @ v
    attention = linear("attention.output.dense", context.transpose(1, 2).reshape(rows, length, hidden))
    after = "attention.output.LayerNorm"
    x = norm(x + attention, w[f"{after}.weight"], w[f"{after}.bias"], 1e-12)
    inner = linear("intermediate.dense", x)
    out = linear("output.dense", inner * 0.5 * (1 + torch.erf(inner / 2**0.5)))
    return norm(x + out, w["output.LayerNorm.weight"], w["output.LayerNorm.bias"], 1e-12)


def weights_under(prefix: str, named: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): v.double() for name, v in named.items() if name.startswith(prefix)}


def shaken(method: SideTuning, scale: float = 0.3) -> None:
    """Give what a domain keeps values that show."""
    generator = torch.Generator().manual_seed(7)
    for kept in method._learnt.values():
        for value in kept.values():
            value.add_(torch.randn(value.shape, generator=generator) * scale)


def merged(w: dict[str, Tensor], base: Tensor, side: Tensor) -> Tensor:
    """R(x) in float64 from what a domain keeps of its merge: s, two layers, or nothing."""
    if "s" in w:
        alpha = 1 / (1 + torch.exp(-w["s"]))
        return alpha * base + (1 - alpha) * side
    if not w:
        return (base + side) / 2
    inner = torch.cat([base, side], -1) @ w["first.weight"].T + w["first.bias"]
    return inner.clamp(min=0) @ w["second.weight"].T + w["second.bias"]


@pytest.mark.parametrize("merge", ["blend", "mean", "mlp"])
def test_the_forward_pass_is_the_equation(merge: Any) -> None:
    options: dict[str, Any] = {"start": 0.5} if merge == "blend" else {}
    method, model = SideTuning(layers=1, merge=merge, **options), tiny.model(layer_norm_eps=1e-12)
    (at,) = learnt(method, model)
    shaken(method)
    named, kept = dict(model.named_parameters()), method._learnt["d1"]
    table = weights_under("roberta.embeddings.", named)
    x = table["word_embeddings.weight"][IDS] + table["position_embeddings.weight"][torch.arange(2, 26)]
    x = norm(x + table["token_type_embeddings.weight"][0], table["LayerNorm.weight"], table["LayerNorm.bias"], 1e-12)
    base = x
    for number in range(2):
        base = roberta_layer(base, weights_under(f"roberta.encoder.layer.{number}.", named))
    side = roberta_layer(x, weights_under("layers.0.", kept))
    found = seen(method, at).double()
    expected = merged(weights_under("merge.", kept), base, side)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, base, atol=1e-2)


def test_the_blend_is_before_the_last_normalisation() -> None:
    """GPT-2, from two ordinary models in float64: x_B of the base, x_S of one that has the side network's layers."""
    method, model = SideTuning(layers=1), tiny.model("gpt2")
    (at,) = learnt(method, model, objective="causal")
    shaken(method)
    kept = method._learnt["d1"]
    base, small = copy.deepcopy(model).double(), tiny.model("gpt2", n_layer=1).double()
    small.transformer.wte, small.transformer.wpe = base.transformer.wte, base.transformer.wpe
    small.transformer.h[0].load_state_dict(weights_under("layers.0.", kept), strict=False)
    last = base.transformer.ln_f
    base.transformer.ln_f = small.transformer.ln_f = nn.Identity()
    alpha = torch.sigmoid(kept["merge.s"].double())
    with torch.no_grad():
        x_b, x_s = (each.transformer(IDS).last_hidden_state for each in (base, small))
        expected = last(alpha * x_b + (1 - alpha) * x_s)
    torch.testing.assert_close(seen(method, at).double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"merge": "mlp"}, {"merge": "mean", "initialise": "random"}])
def test_nothing_of_earlier_domains_changes(options: dict[str, Any]) -> None:
    method, model = SideTuning(layers=1, **options), tiny.model()
    start = stages.weights(model)
    first = learnt(method, model)[0]
    before, read = copy.deepcopy(method._learnt["d1"]), seen(method, first)
    second = stages.stage(model, 2)
    stages.learn([method], second)
    assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())
    assert all(torch.equal(value, before[name]) for name, value in method._learnt["d1"].items())
    assert torch.equal(seen(method, second, "d1"), read)
    assert not torch.allclose(seen(method, second, "d2"), read, atol=1e-4)
    plain = second.objective.hidden(model, {"input_ids": IDS})
    assert torch.equal(seen(method, second, None), plain)
    assert torch.equal(seen(method, second, "d3"), plain)


def test_one_side_network_for_the_stream() -> None:
    method, model = SideTuning(shared=True, layers=1), tiny.model()
    assert not method.needs.domain_id_test
    learnt(method, model)
    kept = copy.deepcopy(method._learnt["shared"])
    at = stages.stage(model, 2)
    stages.begin([method], at)
    now = dict(attached(model, "side_tuning").named_parameters())
    assert all(torch.equal(now[name], value) for name, value in kept.items())
    stages.end([method], at)
    assert torch.equal(seen(method, at, "d1"), seen(method, at, None))


def test_alpha_begins_at_a_half_and_is_not_decayed() -> None:
    method, model = build("side_tuning"), tiny.model()
    at = stages.stage(model)
    protection = Protection([method], at)
    protection.begin()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = protection.optimizer(torch.optim.AdamW(trained, lr=0.1, weight_decay=0.5))
    s = attached(model, "side_tuning").merge.s
    assert torch.sigmoid(s).tolist() == [0.5]
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay == {id(p): 0.0 if p is s else 0.5 for p in trained}
    at = stages.stage(tiny.model())
    started = SideTuning(start=1.39)
    stages.begin([started], at)
    assert torch.sigmoid(attached(at.model, "side_tuning").merge.s).item() == pytest.approx(0.8, abs=1e-3)


def sharper() -> Any:
    """A model whose layers do more to what they read."""
    model = tiny.model()
    with torch.no_grad():
        for layer in layers_read(model):
            for parameter in layer.parameters():
                parameter.mul_(5 if parameter.dim() > 1 else 1)
    return model


def begun(**options: Any) -> tuple[Any, Any]:
    at = stages.stage(sharper(), count=96)
    stages.begin([SideTuning(layers=1, **options)], at)
    return attached(at.model, "side_tuning"), at


def test_where_a_side_network_begins() -> None:
    copied, at = begun()
    own = layers_read(at.model)[0].state_dict()
    assert all(torch.equal(value, own[name]) for name, value in copied.layers[0].state_dict().items())
    drawn, again = begun(initialise="random")[0], begun(initialise="random")[0]
    weight = drawn.layers[0].output.dense.weight
    assert torch.equal(weight, again.layers[0].output.dense.weight)
    assert not torch.allclose(weight, own["output.dense.weight"])
    assert weight.detach().std() == pytest.approx(0.02, rel=0.2)

    def distance(net: Any, at: Any) -> float:
        """Mean ‖S(x) − B(x)‖², by reading either alone."""
        with torch.no_grad():
            found = []
            for s in (100.0, -100.0):
                net.merge.s.fill_(s)
                found.append(at.objective.hidden(at.model, {"input_ids": IDS}))
        return float((found[0] - found[1]).square().mean())

    taught, at_taught = begun(initialise="distilled", samples=96, distil_rate=3e-3)
    assert distance(taught, at_taught) < 0.7 * distance(copied, at)
    assert all(parameter.grad is None for parameter in at_taught.model.parameters())


def test_distillation_goes_down_the_relative_squared_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain steps in the place of Adam's, which would hide the size of a gradient: −η ∂/∂w Σ ‖S − B‖² / Σ ‖B‖² of each
    batch, by two ordinary models in float64."""
    monkeypatch.setattr(torch.optim, "Adam", torch.optim.SGD)
    rate, model = 0.1, sharper()
    with torch.no_grad():  # or ‖B‖² would be 1 a feature, as the last normalisation leaves it
        layers_read(model)[-1].output.LayerNorm.weight.mul_(3)
    at = stages.stage(model)
    teacher, pupil = copy.deepcopy(model).double(), tiny.model(num_hidden_layers=1).double()
    pupil.load_state_dict(teacher.state_dict(), strict=False)
    (layer,) = layers_read(pupil)
    copied = {name: value.clone() for name, value in layer.state_dict().items()}
    for batch in at.batches(8):
        inputs = at.objective.inputs(batch)
        said, aim = at.objective.hidden(pupil, inputs), at.objective.hidden(teacher, inputs).detach()
        loss = ((said - aim) ** 2).sum() / (aim**2).sum()
        gradients = torch.autograd.grad(loss, list(layer.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(layer.parameters(), gradients, strict=True):
                weight -= rate * gradient
    stages.begin([SideTuning(layers=1, initialise="distilled", samples=8, distil_rate=rate)], at)
    taught = attached(model, "side_tuning").layers[0].state_dict()
    for name, value in layer.state_dict().items():
        found, wanted = taught[name].double() - copied[name], value - copied[name]
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-7, msg=lambda m, name=name: f"{name}: {m}")
        assert "key.bias" in name or wanted.abs().max() > 1e-5, "more than rounding, but no attention depends on that"


def test_distillation_learns_nothing_from_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    def taught(more: int) -> dict[str, Tensor]:
        at = stages.stage(tiny.model("t5"), objective="text-to-text")
        batches = list(at.batches(32))
        for batch in batches:
            padding = torch.zeros(len(batch["input_ids"]), more, dtype=torch.long)
            for name in ("input_ids", "attention_mask"):
                batch[name] = torch.cat([batch[name], padding], 1)
        monkeypatch.setattr(type(at), "batches", lambda *_: iter(batches))
        stages.begin([SideTuning(layers=1, initialise="distilled", samples=32, distil_rate=1e-3)], at)
        monkeypatch.undo()
        return attached(at.model, "side_tuning").layers[0].state_dict()

    short, long = taught(0), taught(16)
    for name, value in short.items():
        torch.testing.assert_close(long[name], value, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("architecture", ["distilbert", "gpt_neox", "qwen3", "gemma2", "t5"])
def test_it_stands_beside_every_architecture(architecture: str) -> None:
    model, objective = tiny.model(architecture), tiny.objective_of(architecture)
    method = SideTuning(layers=1)
    (at,) = learnt(method, model, objective=objective)
    size = sum(value.numel() for value in method._learnt["d1"].values())
    assert size == method.cost(model).parameters == 1 + sum(p.numel() for p in layers_read(model)[0].parameters())
    batch = next(at.batches(4))
    tested = method.test_model(copy.deepcopy(model), reading(at, "d1"))
    with torch.no_grad():
        assert not torch.equal(at.objective.per_sample_loss(tested, batch), at.objective.per_sample_loss(model, batch))


@pytest.mark.parametrize("architecture", ["llama", "t5"])
def test_it_writes_what_reading_again_would_say(architecture: str) -> None:
    """Token by token, with whatever caches there are, as with all tokens at once."""
    objective = tiny.objective_of(architecture)
    model = tiny.model(architecture)
    method = SideTuning(layers=1)
    (at,) = learnt(method, model, objective=objective, lr=0.1)
    tested: Any = method.test_model(model, reading(at, "d1")).eval()
    inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    with torch.no_grad():
        found = Checkpoint(tested, at.objective).generate(inputs, max_new_tokens=5, stop=())
        written = torch.full((2, 1), 1) if architecture == "t5" else IDS
        for _ in range(5):
            more = {"decoder_input_ids": written} if architecture == "t5" else {"input_ids": written}
            logits = tested(**{**inputs, "attention_mask": None, **more}, use_cache=False).logits
            written = torch.cat([written, logits[:, -1:].argmax(-1)], 1)
    assert written[:, -5:].tolist() == found


def test_padding_and_checkpointing_change_nothing() -> None:
    method, model = SideTuning(layers=1), tiny.model()
    (at,) = learnt(method, model)
    tested: Any = method.test_model(model, reading(at, "d1"))
    padded, mask = torch.ones(2, 30, dtype=torch.long), torch.zeros(2, 30, dtype=torch.long)
    padded[:, :24], mask[:, :24] = IDS, 1
    with torch.no_grad():
        short = tested(input_ids=IDS).logits
        long = tested(input_ids=padded, attention_mask=mask).logits[:, :24]
    torch.testing.assert_close(short, long, rtol=1e-5, atol=1e-5)
    gradients = []
    for on in (False, True):
        if on:
            tested.activation_checkpointing_enable({"use_reentrant": False})
        tested.train().zero_grad()
        at.objective.forward(tested, next(at.batches(4))).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in tested.named_parameters() if p.grad is not None})
    assert f"{OWN}merge.s" in gradients[0]
    for name, value in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], value, rtol=1e-5, atol=1e-7)


def test_end_tasks_and_what_is_refused() -> None:
    method, model = SideTuning(layers=1), tiny.model()
    (at,) = learnt(method, model)
    for freeze in (False, True):
        other = SideTuning(layers=1, freeze_base_at_end_task=freeze)
        other.load_memory(method.memory())
        tested = other.test_model(classifier(model), reading(at, "d1"))
        tested(input_ids=IDS).logits.square().sum().backward()
        moved = {name for name, p in tested.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
        assert {f"{OWN}merge.s", f"{OWN}layers.0.output.dense.weight", "classifier.out_proj.weight"} <= moved
        assert any(name.startswith("roberta.") for name in moved) is not freeze
    deeper = SideTuning(layers=2, merge="mlp")
    deeper.load_memory(method.memory())
    with pytest.raises(MethodError, match=r"'side_tuning' remembers 'merge\.s' with shape \(1,\).*other options"):
        deeper.test_model(model, reading(at, "d1"))
    with pytest.raises(MethodError, match="'side_tuning' does not work on a model with PEFT"):
        method.check(stages.setting(model, [method, build("inc_lora")]))
    with pytest.raises(MethodError, match=r"'side_tuning' freezes all parameters except its own, .* 'k_adapter'"):
        method.check(stages.setting(model, [method, build("k_adapter")]))
    ewc = build("ewc")
    with pytest.raises(MethodError, match="weights of the model, but method 'side_tuning' trains"):
        ewc.check(stages.setting(model, [ewc, method]))
    released = build("side_tuning_released")
    assert released.config.merge == "mlp"
