"""Importance: gates per row, exact per-sample gradients, proxy, scores, Fisher, magnitudes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from peft import LoraConfig, get_peft_model

import tiny
from everlearn.errors import MethodError
from everlearn.importance import (
    OutputMagnitude,
    general_importance,
    gradient_moment,
    proxy_kl_per_sample,
    unit_importance,
)
from everlearn.model.anatomy import anatomy, kind_of
from everlearn.model.gates import Gates, row_gates
from two_processes import in_two_processes

REFERENCE = ["roberta", "gpt2", "llama", "t5"]


def batch_for(model, rows: int = 4, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 300, (rows, 10), generator=generator)
    labels = torch.randint(5, 300, (rows, 7), generator=generator)
    batch = {"input_ids": ids, "labels": labels}
    if kind_of(model) == "encoder-decoder":
        batch["decoder_input_ids"] = labels.roll(1, 1)
    return batch


def model_inputs(batch) -> dict[str, torch.Tensor]:
    return {name: value for name, value in batch.items() if name not in ("labels", "plain_ids")}


def per_sample_loss(model, batch) -> torch.Tensor:
    logits = model(**model_inputs(batch), use_cache=False).logits[:, :7]
    losses = F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
    return losses.mean(1)


class Hidden:
    """Stands in for an objective."""

    def inputs(self, batch):
        return model_inputs(batch)

    def hidden(self, model, inputs):
        out = model(**inputs, output_hidden_states=True)
        return (out.decoder_hidden_states if "decoder_input_ids" in inputs else out.hidden_states)[-1]


def spread(model, scale: float = 0.2, seed: int = 3):
    """Larger random weights, so that gradients are not all alike."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(parameter) * scale)
    return model


class Multiply(torch.nn.Module):
    """A module that really multiplies the input or output of another by g, unit by unit."""

    def __init__(self, inner, site):
        super().__init__()
        self.inner, self.site = inner, site
        self.g = torch.ones(site.units, dtype=torch.float64, requires_grad=True)

    @property
    def weight(self):  # T5 looks at the type of its second projection
        return self.inner.weight

    def forward(self, x):
        full = torch.stack([self.g] * self.site.width, 1).reshape(-1)
        return self.inner(x * full) if self.site.where == "input" else self.inner(x) * full


def reference_importance(model, batch, loss=per_sample_loss):
    """float64, gates as modules, one sample and one backward pass at a time."""
    twin = copy.deepcopy(model).double()
    gates = {}
    for site in anatomy(model).sites:
        parent, _, leaf = site.module.rpartition(".")
        wrapper = Multiply(twin.get_submodule(site.module), site)
        # A projection may be gated on both sides (neurons and outputs of a gated feed-forward): wrap the wrapper.
        setattr(twin.get_submodule(parent), leaf, wrapper)
        gates[site.name] = wrapper.g
    rows = len(batch["input_ids"])
    totals = {name: torch.zeros_like(g) for name, g in gates.items()}
    signed = {name: torch.zeros_like(g) for name, g in gates.items()}
    for row in range(rows):
        value = loss(twin, {name: tensor[row : row + 1] for name, tensor in batch.items()}).sum()
        for (name, _), gradient in zip(gates.items(), torch.autograd.grad(value, list(gates.values())), strict=True):
            totals[name] += gradient.abs() / rows
            signed[name] += gradient
    return totals, signed


def relative_error(found, expected) -> float:
    return max(float((found[n].double() - expected[n]).norm() / expected[n].norm()) for n in expected)


# -- gates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFERENCE)
def test_rows_of_one_pass_have_their_own_gates(name):
    model = spread(tiny.model(name))
    batch = model_inputs(batch_for(model, rows=5))
    sites = anatomy(model).sites
    values = {site.name: torch.rand(site.units) for site in sites}
    some = {sites[0].name: torch.rand(sites[0].units)}
    with torch.no_grad():
        plain = model(**batch).logits
        with row_gates(model, [(2, None), (1, values), (2, some)]):
            mixed = model(**batch).logits
        alone = []
        for gate in (values, some):
            with Gates(model) as gates:
                gates.set(gate)
                alone.append(model(**batch).logits)
    assert torch.equal(mixed[:2], plain[:2])
    torch.testing.assert_close(mixed[2:3], alone[0][2:3])
    torch.testing.assert_close(mixed[3:], alone[1][3:])
    assert (mixed[2:] - plain[2:]).abs().max() > 1e-3


@pytest.mark.parametrize("name", REFERENCE)
def test_gradients_of_gated_rows_are_those_of_the_product(name):
    """Rows are scaled in place, out of autograd's sight: the gradients must not notice."""
    model = spread(tiny.model(name, dropout=0.1)).train()
    batch = batch_for(model, rows=5)
    values = {site.name: torch.rand(site.units) for site in anatomy(model).sites}
    whole = {n: torch.cat([torch.ones(2, len(v)), v.expand(2, -1), torch.ones(1, len(v))]) for n, v in values.items()}

    def gradients(gated):
        model.zero_grad()
        torch.manual_seed(0)
        with gated as gates:
            if gates is not None:
                gates.set(whole)
            loss = per_sample_loss(model, batch).sum()
        loss.backward()
        return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    expected, product = gradients(Gates(model))
    found, scaled = gradients(row_gates(model, [(2, None), (2, values), (1, None)]))
    torch.testing.assert_close(found, expected)
    for parameter, gradient in product.items():
        torch.testing.assert_close(scaled[parameter], gradient, rtol=1e-4, atol=1e-6)


def test_gates_find_modules_that_were_replaced():
    model = spread(tiny.model("llama"))
    batch = model_inputs(batch_for(model))
    values = {site.name: torch.rand(site.units) for site in anatomy(model).sites}

    def gated():
        with torch.no_grad(), row_gates(model, [(4, values)]):
            return model(**batch).logits

    before = gated()
    get_peft_model(model, LoraConfig(target_modules=["o_proj", "down_proj"]))  # wraps them inside `model`
    torch.testing.assert_close(gated(), before)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["roberta", "llama", "t5"])
def test_checkpointed_layers_recompute_with_the_gates_of_their_forward_pass(name, reentrant):
    """The backward pass runs after the context was left, and after another pass without gates."""
    model = spread(tiny.model(name)).train()
    batch = batch_for(model)
    values = {site.name: torch.rand(site.units) for site in anatomy(model).sites}

    def gradients():
        model.zero_grad()
        with row_gates(model, [(2, None), (2, values)]):
            gated = per_sample_loss(model, batch).sum()
        (gated + per_sample_loss(model, batch).sum()).backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    found = gradients()
    assert expected.keys() == found.keys()
    for name_ in expected:
        torch.testing.assert_close(found[name_], expected[name_])
    assert not any(module._forward_pre_hooks for module in model.modules() if not reentrant)


@pytest.mark.parametrize("name", REFERENCE)
def test_gates_of_one_change_nothing(name):
    """Cheap test 1 of the paper's traps."""
    model = spread(tiny.model(name))
    batch = model_inputs(batch_for(model))
    with torch.no_grad():
        plain = model(**batch).logits
        with Gates(model) as gates:
            gates.set({site.name: torch.ones(site.units) for site in gates.sites})
            assert torch.equal(model(**batch).logits, plain)


def test_gates_follow_the_activation_type():
    model = spread(tiny.model("roberta"))
    batch = model_inputs(batch_for(model))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        plain = model(**batch).logits
        with Gates(model) as gates:
            gates.set({site.name: torch.ones(site.units) for site in gates.sites})
            assert torch.equal(model(**batch).logits, plain)


def test_wrong_gates_are_refused():
    model = tiny.model("roberta")
    with Gates(model) as gates, pytest.raises(MethodError, match="has 4 units"):
        gates.set({"layers.0.attention.heads": torch.ones(5)})
    with pytest.raises(MethodError, match="no unit site 'layers"), row_gates(model, [(1, {"layers.9": torch.ones(1)})]):
        pass
    matrix = {"layers.0.attention.heads": torch.ones(2, 4)}
    with pytest.raises(MethodError, match="one factor per unit"), row_gates(model, [(1, matrix)]):
        pass


# -- importance --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFERENCE)
def test_importance_equals_the_float64_reference(name):
    model = spread(tiny.model(name))
    batch = batch_for(model, rows=6)
    parts = [{n: t[:4] for n, t in batch.items()}, {n: t[4:] for n, t in batch.items()}]
    absolute, signed = reference_importance(model, batch)
    found = unit_importance(model, parts, per_sample_loss)
    assert list(found) == [site.name for site in anatomy(model).sites]
    assert all(score.dtype == torch.float32 for score in found.values())
    assert relative_error(found, absolute) < 1e-5
    assert relative_error(unit_importance(model, parts, per_sample_loss, reduce="signed_sum"), signed) < 1e-4
    # The signed mean is another quantity: the test above would notice if the absolute value came too late.
    assert relative_error({n: s.abs() / 6 for n, s in signed.items()}, absolute) > 0.05


def test_importance_of_chosen_sites_and_with_checkpointing():
    model = spread(tiny.model("gpt2")).train()
    batch = batch_for(model)
    everything = unit_importance(model, [batch], per_sample_loss)
    sites = anatomy(model).sites[1:3]
    some = unit_importance(model, [batch], per_sample_loss, sites=sites)
    assert list(some) == [site.name for site in sites]
    model.activation_checkpointing_enable()
    again = unit_importance(model, [batch], per_sample_loss)
    for name, score in everything.items():
        torch.testing.assert_close(again[name], score)
        if name in some:
            torch.testing.assert_close(some[name], score)


def test_importance_leaves_the_model_as_it_was():
    model = tiny.model("roberta", dropout=0.1).train()
    model.roberta.embeddings.eval()
    model.lm_head.dense.weight.requires_grad_(False)
    batch = batch_for(model)
    per_sample_loss(model, batch).sum().backward()
    before = {n: (p.detach().clone(), p.requires_grad, p.grad) for n, p in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    with torch.no_grad():
        unit_importance(model, [batch], per_sample_loss)
        general_importance(model, [batch], Hidden())
        gradient_moment(model, [batch], per_sample_loss, names=["lm_head.bias"])
    for name, parameter in model.named_parameters():
        value, required, gradient = before[name]
        assert torch.equal(parameter, value)
        assert parameter.requires_grad == required
        assert parameter.grad is gradient
    assert [module.training for module in model.modules()] == modes


def test_importance_ignores_autocast():
    model = spread(tiny.model("roberta"))
    batch = batch_for(model)
    expected = unit_importance(model, [batch], per_sample_loss)
    with torch.autocast("cpu", torch.bfloat16):
        found = unit_importance(model, [batch], per_sample_loss)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_importance_with_adapters():
    model = get_peft_model(spread(tiny.model("llama")), LoraConfig(target_modules=["q_proj", "v_proj", "down_proj"]))
    batch = batch_for(model)
    absolute, _ = reference_importance(model, batch)
    assert relative_error(unit_importance(model, [batch], per_sample_loss), absolute) < 1e-5


def test_no_data_and_overflow_are_errors():
    model = tiny.model("roberta")
    with pytest.raises(MethodError, match="no batch"):
        unit_importance(model, [], per_sample_loss)
    with pytest.raises(MethodError, match="no batch"):
        gradient_moment(model, [], per_sample_loss)
    broken = [batch_for(model)]
    with pytest.raises(MethodError, match="not finite"):
        unit_importance(model, broken, lambda m, b: per_sample_loss(m, b) * float("inf"))
    with pytest.raises(MethodError, match="not finite"):
        gradient_moment(model, broken, lambda m, b: per_sample_loss(m, b) * float("inf"))


def test_released_reduce_counts_early_batches_most():
    """Gradients that are never zeroed: after batch k they are the sum of k batches' means, and are added up."""
    model = spread(tiny.model("roberta"))
    batch = batch_for(model, rows=6)
    parts = [{n: t[i : i + 2] for n, t in batch.items()} for i in (0, 2, 4)]
    means = [{n: g / 2 for n, g in reference_importance(model, part)[1].items()} for part in parts]
    expected = {n: 3 * means[0][n] + 2 * means[1][n] + means[2][n] for n in means[0]}
    found = unit_importance(model, parts, per_sample_loss, reduce="signed_cumulative")
    assert relative_error(found, expected) < 1e-4


# -- proxy -------------------------------------------------------------------------------------------------------


def test_proxy_is_the_kl_over_features():
    first, second = torch.randn(2, 3, 5, 8).unbind()
    p, q = torch.distributions.Categorical(logits=first), torch.distributions.Categorical(logits=second)
    expected = torch.distributions.kl_divergence(p, q)
    torch.testing.assert_close(proxy_kl_per_sample(first, second), expected.mean(1))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
    by_hand = torch.stack([expected[0].mean(), expected[1, :2].mean(), torch.tensor(0.0)])
    torch.testing.assert_close(proxy_kl_per_sample(first, second, mask), by_hand)
    assert torch.equal(proxy_kl_per_sample(first, first), torch.zeros(3))


def test_proxy_over_the_sequence():
    first, second = torch.randn(2, 3, 5, 8).unbind()
    p, q = (torch.distributions.Categorical(logits=x.transpose(1, 2)) for x in (first, second))
    expected = torch.distributions.kl_divergence(p, q).mean(1)
    torch.testing.assert_close(proxy_kl_per_sample(first, second, softmax="sequence"), expected)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])
    found = proxy_kl_per_sample(first, second, mask, softmax="sequence")
    short = proxy_kl_per_sample(first[1:2, :2], second[1:2, :2], softmax="sequence")
    torch.testing.assert_close(found[:2], torch.stack([expected[0], short[0]]))


def test_proxy_without_dropout_is_rounding_noise():
    """Cheap test 3 of the paper's traps: above 0 with dropout, 0 without."""
    model = spread(tiny.model("roberta", dropout=0.1))
    batch = batch_for(model)
    on = general_importance(model, [batch], Hidden())
    off = general_importance(model, [batch], Hidden(), dropout=False)
    assert all(float(off[name].max()) < 1e-4 * float(score.max()) for name, score in on.items())


@pytest.mark.parametrize("name", ["roberta", "gpt2", "llama", "qwen3", "t5", "distilbert"])
def test_general_importance_needs_dropout(name):
    """Llama-type models have only a functional dropout on attention; without any the proxy is refused."""
    model = tiny.model(name)
    batch = batch_for(model)
    with pytest.raises(MethodError, match="no dropout"):
        general_importance(model, [batch], Hidden())
    found = general_importance(tiny.model(name, dropout=0.1), [batch], Hidden())
    assert sum(float(score.sum()) for score in found.values()) > 0
    assert all(torch.isfinite(score).all() for score in found.values())


def test_general_importance_is_per_sample_and_shares_gates():
    """With dropout replaced by fixed noise that differs between the copies, equals the float64 reference, in which
    both copies of a sample run through one gate."""
    model = spread(tiny.model("roberta", dropout=0.1))
    batch = batch_for(model)
    batch["plain_ids"] = batch["input_ids"].flip(1)
    rows = len(batch["input_ids"])
    noise = torch.rand(2, rows, 10, 32, generator=torch.Generator().manual_seed(5)) + 0.5
    current = {}

    def fixed(module, args, output):
        return output * current["noise"].to(output)

    class Noisy(Hidden):
        def hidden(self, model, inputs):
            current["noise"] = noise[:, current["rows"]].flatten(0, 1)
            # The noise replaces dropout: the model's own must not disturb the comparison.
            model.eval()
            handle = model.roberta.embeddings.register_forward_hook(fixed)
            try:
                return super().hidden(model, inputs)
            finally:
                handle.remove()

    def loss(model, part):
        match = (batch["input_ids"][:, None] == part["input_ids"][None]).all(-1).float().argmax(0)
        current["rows"] = match
        ids = part["plain_ids"]
        hidden = Noisy().hidden(model, {"input_ids": torch.cat([ids, ids])})
        first, second = hidden.chunk(2)
        p, q = first.softmax(-1), second.softmax(-1)
        return (p * (p.log() - q.log())).sum(-1).mean(1)

    expected, _ = reference_importance(model, batch, loss)
    current["rows"] = torch.arange(rows)
    found = general_importance(model, [batch], Noisy())
    assert relative_error(found, expected) < 1e-4


# -- Fisher ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["roberta", "gpt2", "t5"])
def test_fisher_equals_the_float64_loop(name):
    model = spread(tiny.model(name))
    frozen = next(iter(model.parameters()))
    frozen.requires_grad_(False)
    batch = batch_for(model, rows=4)
    found = gradient_moment(
        model, [{n: t[:3] for n, t in batch.items()}, {n: t[3:] for n, t in batch.items()}], per_sample_loss
    )
    twin = copy.deepcopy(model).double()
    expected = {n: torch.zeros_like(p) for n, p in twin.named_parameters() if p.requires_grad}
    for row in range(4):
        twin.zero_grad()
        per_sample_loss(twin, {n: t[row : row + 1] for n, t in batch.items()}).backward()
        for n in expected:
            gradient = twin.get_parameter(n).grad
            if gradient is not None:
                expected[n] += gradient.square() / 4
    assert found.keys() == expected.keys()
    largest = max(float(value.abs().max()) for value in expected.values())
    for n, value in expected.items():
        torch.testing.assert_close(found[n].double(), value, rtol=1e-4, atol=1e-8 * largest)


def test_fisher_of_chosen_parameters():
    model = tiny.model("roberta")
    batch = batch_for(model)
    assert list(gradient_moment(model, [batch], per_sample_loss, names=["lm_head.bias"])) == ["lm_head.bias"]
    with pytest.raises(MethodError, match=r"no trainable parameter 'lm_head\.bia'.*'lm_head\.bias'"):
        gradient_moment(model, [batch], per_sample_loss, names=["lm_head.bia"])


# -- magnitude ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFERENCE)
def test_magnitude_is_the_sum_of_outputs_whatever_the_split(name):
    model = spread(tiny.model(name)).train()
    batch = batch_for(model, rows=4)
    linears = anatomy(model).linears
    outputs = {}
    handles = [
        model.get_submodule(path).register_forward_hook(lambda m, a, out, path=path: outputs.update({path: out}))
        for path in linears
    ]
    magnitude = OutputMagnitude(model, linears)
    per_sample_loss(model, batch).sum().backward()
    whole = magnitude.pop()
    for handle in handles:
        handle.remove()
    for path in linears:
        torch.testing.assert_close(whole[path], outputs[path].abs().flatten(0, 1).sum(0))
    for rows in (slice(0, 1), slice(1, 4)):
        per_sample_loss(model, {n: t[rows] for n, t in batch.items()}).sum().backward()
    split = magnitude.pop()
    for path in linears:
        torch.testing.assert_close(split[path], whole[path], rtol=1e-4, atol=1e-5)
        assert whole[path].dtype == torch.float32
        assert not whole[path].requires_grad


def test_magnitude_counts_training_passes_of_its_rows_only():
    model = spread(tiny.model("roberta")).train()
    batch = batch_for(model, rows=4)
    magnitude = OutputMagnitude(model, anatomy(model).linears)
    magnitude.rows = 3
    per_sample_loss(model, batch)
    some = magnitude.pop()
    magnitude.rows = None
    per_sample_loss(model, {n: t[:3] for n, t in batch.items()})
    three = magnitude.pop()
    for path in three:
        torch.testing.assert_close(some[path], three[path])
    with torch.no_grad():
        per_sample_loss(model, batch)
    per_sample_loss(model.eval(), batch)
    with pytest.raises(MethodError, match="use_reentrant"):
        magnitude.pop()
    model.train()
    magnitude.close()
    per_sample_loss(model, batch)
    assert not any(module._forward_hooks for module in model.modules())


def test_magnitude_does_not_count_recomputation():
    model = spread(tiny.model("llama")).train()
    batch = batch_for(model)
    magnitude = OutputMagnitude(model, anatomy(model).linears)
    per_sample_loss(model, batch).sum().backward()
    once = magnitude.pop()
    model.activation_checkpointing_enable()
    per_sample_loss(model, batch).sum().backward()
    for path, value in magnitude.pop().items():
        torch.testing.assert_close(value, once[path])


def test_magnitude_of_adapters():
    lora = LoraConfig(target_modules=["query"], r=4, init_lora_weights=False)
    model = get_peft_model(spread(tiny.model("roberta")), lora).train()
    path = "base_model.model.roberta.encoder.layer.0.attention.self.query"
    magnitude = OutputMagnitude(model, [path])
    seen = []
    model.get_submodule(path).register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    per_sample_loss(model, batch_for(model))
    found = magnitude.pop()
    layer = model.get_submodule(path)
    down = layer.lora_A["default"](seen[0])
    whole = layer.base_layer(seen[0]) + layer.scaling["default"] * layer.lora_B["default"](down)
    assert found.keys() == {path, f"{path}.lora_A.default"}
    torch.testing.assert_close(found[path], whole.abs().sum((0, 1)))
    torch.testing.assert_close(found[f"{path}.lora_A.default"], down.abs().sum((0, 1)))


def _rank(rank: int, folder: Path) -> None:
    model = spread(tiny.model("roberta")).train()
    magnitude = OutputMagnitude(model, anatomy(model).linears)
    batch = batch_for(model, rows=4)
    per_sample_loss(model, {n: t[2 * rank : 2 * rank + 2] for n, t in batch.items()})
    torch.save(magnitude.pop(), folder / f"{rank}.pt")


@pytest.mark.distributed
def test_magnitude_over_two_processes(tmp_path):
    in_two_processes(_rank, tmp_path)
    model = spread(tiny.model("roberta")).train()
    magnitude = OutputMagnitude(model, anatomy(model).linears)
    per_sample_loss(model, batch_for(model, rows=4))
    for path, value in magnitude.pop().items():
        for rank in range(2):
            torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt", weights_only=True)[path], value)
