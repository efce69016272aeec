"""Fisher information from one pass for each batch, against float64 loops over samples written from the definition."""

from __future__ import annotations

import copy
import math
from typing import Literal

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.importance import (
    Diagonal,
    Kronecker,
    TrainingFisher,
    gradient_moment,
    kronecker_fisher,
    labels_of_the_model,
)
from everlearn.importance.gradient_moments import BatchedSums, Sums, add_products, part_of, rows_of
from everlearn.importance.per_sample import PerSample

Loss = stages.Callable[[nn.Module, dict[str, Tensor]], Tensor]


def spread(model: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Larger random weights, so that gradients are not all alike."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.to(dtype)


def loop(model: nn.Module, batches: list[dict[str, Tensor]], loss: Loss, power: int = 2) -> dict[str, Tensor]:
    """(1/N) Σ_n |∂L_n/∂θ|ᵖ, a sample and a backward pass at a time, in float64."""
    twin = copy.deepcopy(model).double()
    totals = {name: torch.zeros_like(parameter) for name, parameter in twin.named_parameters()}
    count = 0
    for batch in batches:
        for row in range(rows_of(batch)):
            twin.zero_grad()
            loss(twin, part_of(batch, row, row + 1)).sum().backward()
            count += 1
            for name, parameter in twin.named_parameters():
                if parameter.grad is not None:
                    totals[name] += parameter.grad.abs() ** power
    return {name: total / count for name, total in totals.items()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    largest = max(float(value.max()) for value in expected.values())
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        error = float((found[name].double() - value).norm())
        assert error <= tolerance * float(value.norm()) + 1e-13 * largest, name
        assert (found[name] >= 0).all()


def batched_alone(model: nn.Module, batch: dict[str, Tensor], loss: Loss) -> frozenset[str]:
    """Which parameters had to be measured sample by sample."""
    parameters = dict(model.named_parameters())
    totals = {name: torch.zeros(value.shape) for name, value in parameters.items()}
    batched = BatchedSums(model, parameters, loss, totals)
    batched.add(batch)
    return batched.alone if batched.most != 1 else frozenset(parameters)


# -- whole models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["roberta", "bert", "llama", "gemma2", "gpt2", "t5", "bart"])
def test_one_pass_is_the_loop_over_samples(name: str, tied: bool) -> None:
    """Packed rows of two documents, masked positions, padded prompts and answers: as training has them."""
    model = spread(tiny.model(name, tie_word_embeddings=tied))
    stage = stages.stage(model, 1, tiny.objective_of(name), batch_size=5)
    batches = list(stage.batches(8))
    assert [rows_of(batch) for batch in batches] == [5, 3]
    assert not batched_alone(model, batches[0], stage.objective.per_sample_loss)
    found = gradient_moment(model, batches, stage.objective.per_sample_loss)
    assert_same(found, loop(model, batches, stage.objective.per_sample_loss))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize("name", ["roberta", "gpt2"])
def test_padding_isolated_and_plain_rows(name: str, isolate: bool) -> None:
    """Position ids for all rows alike and for each; labels that are missing."""
    model = spread(tiny.model(name))
    stage = stages.stage(model, 1, tiny.objective_of(name), batch_size=4)
    object.__setattr__(stage.objective, "isolate", isolate)
    batch = next(stage.batches(4))
    batch["labels"][1, 2:] = -100
    batch["labels"][2] = -100
    loss = stage.objective.per_sample_loss
    assert not batched_alone(model, batch, loss)
    assert_same(gradient_moment(model, [batch], loss), loop(model, [batch], loss))


def test_the_heads_projection_in_chunks_is_still_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks may cut a sample in two; then fewer rows go together."""
    model = spread(tiny.model("gpt2"))
    stage = stages.stage(model, 1, "causal", batch_size=8)
    batches = list(stage.batches(8))
    loss = stage.objective.per_sample_loss
    expected = loop(model, batches, loss)
    for rows in (50, 48, 17):  # of 24 labels each: two samples, exactly two, less than one
        monkeypatch.setattr("everlearn.model.vocabulary_head.LOGITS_PER_CHUNK", rows * tiny.VOCABULARY)
        assert_same(gradient_moment(model, batches, loss), expected)


def test_where_gradients_are_checkpointed_samples_go_one_by_one() -> None:
    """Memory is scarce there; and what is computed again in the backward pass is not watched."""
    model = spread(tiny.model("gpt2")).train()
    stage = stages.stage(model, 1, "causal")
    batches = list(stage.batches(4))
    expected = {
        name: value.double() for name, value in gradient_moment(model, batches, stage.objective.per_sample_loss).items()
    }
    model.activation_checkpointing_enable({"use_reentrant": False})
    assert batched_alone(model, batches[0], stage.objective.per_sample_loss) == expected.keys()
    assert_same(gradient_moment(model, batches, stage.objective.per_sample_loss), expected)


def test_bfloat16_weights_have_float32_squares() -> None:
    model = spread(tiny.model("llama"), torch.bfloat16)
    stage = stages.stage(model, 1, "causal")
    batches = list(stage.batches(4))
    found = gradient_moment(model, batches, stage.objective.per_sample_loss)
    assert not batched_alone(model, batches[0], stage.objective.per_sample_loss)
    assert {value.dtype for value in found.values()} == {torch.float32}
    assert_same(found, loop(model, batches, stage.objective.per_sample_loss), tolerance=0.1)


class Steep(nn.Module):
    """A lookup, a product of three positions, a product of one, and biases."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.inner, self.last = nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, index: Tensor) -> Tensor:
        return self.last(self.inner(self.table(index)).sum(1))


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float16, 1e-6), (torch.float16, 1e-4), (torch.float16, 1e3), (torch.bfloat16, 1e-6)]
)
def test_gradients_of_16_bits_are_squared_in_32(dtype: torch.dtype, size: float) -> None:
    """In float16 (1e-4)² is 0 and (1e3)² infinite; bfloat16 has the range, but rounds a square by up to 0.4 %."""
    model, index = Steep().to(dtype), torch.tensor([[0, 0, 2], [1, 2, 3], [5, 4, 5], [3, 3, 3]])

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return (model(batch["x"]).float() * size).sum(1)

    def of_mean(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        gradients = torch.autograd.grad(loss(model, batch).mean(), list(model.parameters()))
        return dict(zip(dict(model.named_parameters()), gradients, strict=True))

    samples, halves = ([{"x": part} for part in index.split(rows)] for rows in (1, 2))
    steps = TrainingFisher()
    for half in halves:
        steps.add(of_mean(half), rows=2)
    for found, batches, tolerance in (
        (
            gradient_moment(model, [{"x": index}], loss),
            samples,
            1e-2,
        ),  # of 16-bit factors, which autograd rounds once more
        (gradient_moment(model, samples, loss), samples, 1e-6),
        (gradient_moment(model, halves, loss, batch_means=True), halves, 1e-6),
        (steps.result(), halves, 1e-6),
    ):
        for name, value in found.items():
            squares = [rows_of(batch) * of_mean(batch)[name].double().square() for batch in batches]
            expected = torch.stack(squares).mean(0)
            assert float((value.double() - expected).norm()) <= tolerance * float(expected.norm()), name


def test_some_parameters_with_others_frozen() -> None:
    model = spread(tiny.model("roberta"))
    stage = stages.stage(model, 1)
    batches = list(stage.batches(4))
    expected = loop(model, batches, stage.objective.per_sample_loss)
    names = ["lm_head.bias", "roberta.encoder.layer.0.output.dense.bias", "roberta.encoder.layer.1.output.dense.weight"]
    model.get_input_embeddings().weight.requires_grad_(False)
    found = gradient_moment(model, batches, stage.objective.per_sample_loss, names=names)
    assert_same(found, {name: expected[name] for name in names})


# -- single uses -------------------------------------------------------------------------------------------------


class Small(nn.Module):
    """Every kind of use in one place; `x` is [B, S, 4], `index` [B, S]."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4, padding_idx=2)
        self.places = nn.Embedding(3, 4)
        self.norm = nn.LayerNorm(4)
        self.rms = nn.RMSNorm(4)
        self.twice = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.gemma = nn.Parameter(torch.randn(4))
        self.matrix = nn.Parameter(torch.randn(4, 4))
        self.last = last

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        x = self.norm(x + self.table(index) + self.places(torch.arange(index.shape[1])))
        x = self.twice(torch.tanh(self.twice(x))) * self.scale
        x = self.rms(x @ self.matrix) * (1.0 + self.gemma.float())
        return self.last(x.flatten(0, 1)).view(x.shape)


class Odd(nn.Module):
    """A use that no rule covers: the weight is multiplied by itself first."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.plain = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.plain(x) + F.linear(x, self.weight @ self.weight)


class Shifting(nn.Module):
    """Rows in another order than the samples': shapes cannot tell."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.roll(1, 0)).roll(-1, 0)


class Shifted(nn.Module):
    """A parameter meets a number before it meets the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(1, 4))
        self.plain = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.plain(x.view(-1, 3, 4) + self.shift * x.new_tensor(0.5)).flatten(0, 1)


def small_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return (model(batch["x"].to(next(model.parameters()).dtype), batch["index"]) ** 2).flatten(1).mean(1)


def small_batch(rows: int = 4) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    index = torch.tensor([[0, 0, 2], [1, 2, 3], [5, 4, 5], [3, 3, 3], [2, 2, 2]])
    return {"x": torch.randn(rows, 3, 4, generator=generator), "index": index[:rows]}


def test_every_kind_of_use_is_known() -> None:
    """Padding, tables for all rows alike, a layer that is used twice, scalars, flattened rows; also 3 rows of 3."""
    torch.manual_seed(0)
    model, batches = Small(nn.Linear(4, 4)).double(), [small_batch(4), small_batch(3)]
    assert not batched_alone(model, batches[0], small_loss)
    assert_same(gradient_moment(model, batches, small_loss), loop(model, batches, small_loss))


@pytest.mark.parametrize(
    ("last", "alone"),
    [
        (Odd, {"last.weight"}),
        (Shifting, {"last.inner.weight", "last.inner.bias"}),
        (Shifted, {"last.shift"}),
    ],
)
def test_what_is_not_known_is_measured_sample_by_sample(last: type[nn.Module], alone: set[str]) -> None:
    torch.manual_seed(0)
    model, batches = Small(last()).double(), [small_batch(5)]
    assert batched_alone(model, batches[0], small_loss) == alone
    assert_same(gradient_moment(model, batches, small_loss), loop(model, batches, small_loss))


def test_in_16_bits_what_is_not_known_is_still_found_out() -> None:
    """A hundred times bfloat16's precision is as large as a gradient: noise of that size would excuse every mistake."""
    torch.manual_seed(0)

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return (model(batch["x"].bfloat16().flatten(0, 1)) ** 2).view(len(batch["x"]), -1).mean(1)

    assert batched_alone(Shifting().bfloat16(), small_batch(5), loss) == {"inner.weight", "inner.bias"}


def test_rows_that_are_not_whole_samples_are_measured_sample_by_sample() -> None:
    """As in a mixture of experts, where a layer sees some tokens of every sample."""

    class Some(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            chosen = torch.arange(len(x)) % 3 == 0
            return x.index_put((chosen.nonzero()[:, 0],), F.linear(x[chosen], self.weight, self.bias))

    torch.manual_seed(0)
    model, batches = Small(Some(4, 4)).double(), [small_batch(5)]
    assert_same(gradient_moment(model, batches, small_loss), loop(model, batches, small_loss))


def test_dropout_is_drawn_as_training_draws_it_and_the_try_leaves_the_mode_alone() -> None:
    model = tiny.model("roberta", dropout=0.3).train()
    stage = stages.stage(model, 1)
    torch.manual_seed(0)
    first, second = (gradient_moment(model, stage.batches(4), stage.objective.per_sample_loss) for _ in range(2))
    assert model.training
    assert any(not torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(("positions", "limit"), [(1, 2**18), (3, 2**18), (3, 8), (3, 100)])
def test_powers_in_chunks(monkeypatch: pytest.MonkeyPatch, positions: int, limit: int, power: Literal[1, 2]) -> None:
    monkeypatch.setattr("everlearn.importance.gradient_moments.ELEMENTS_AT_ONCE", {"cpu": limit})
    left, right = torch.randn(5, positions, 7), torch.randn(5, positions, 6)
    total = torch.ones(7, 6)
    add_products(total, left, right, power)
    expected = 1 + (torch.einsum("nso,nsi->noi", left.double(), right.double()).abs() ** power).sum(0)
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["roberta", "t5", "bart"])
def test_mean_absolute_gradients(name: str) -> None:
    """Their signs cancel in a batch's gradient even more; embedding and head share a weight."""
    model = spread(tiny.model(name))
    stage = stages.stage(model, 1, tiny.objective_of(name), batch_size=5)
    batches = list(stage.batches(5))
    found = gradient_moment(model, batches, stage.objective.per_sample_loss, power=1)
    expected = loop(model, batches, stage.objective.per_sample_loss, power=1)
    largest = max(float(value.max()) for value in expected.values())
    for each, value in expected.items():
        assert float((found[each].double() - value).norm()) <= 1e-5 * float(value.norm()) + 1e-7 * largest, each


def test_a_loss_that_reaches_nothing_measured_gives_zeros() -> None:
    model = nn.Linear(2, 2)
    with PerSample(dict(model.named_parameters()), 3, Sums({}, 2)) as seen:
        seen.backward(torch.zeros(3).sum())
    assert not seen.events


# -- traps -------------------------------------------------------------------------------------------------------


class Softmax(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.inner = nn.Linear(features, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def calibrated(rows: int = 4096) -> tuple[nn.Module, dict[str, Tensor], Tensor]:
    """A softmax regression, data whose labels are its own draws, and each label's probability."""
    torch.manual_seed(0)
    model, x = Softmax(3, 4), torch.randn(rows, 3)
    probabilities = model(x).softmax(-1).detach()
    return model, {"x": x, "labels": torch.multinomial(probabilities, 1)[:, 0]}, probabilities


def negative_log_likelihood(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["labels"], reduction="none")


def test_where_the_model_is_calibrated_the_empirical_fisher_is_the_true_one() -> None:
    """And what public code takes for it is not: squares of batch means, and squares weighted by the label's p."""
    model, data, probabilities = calibrated()
    weight = model.get_parameter("inner.weight").detach().double()
    # E_y[(p − e_y)_k²] = p_k (1 − p_k), times the feature's square.
    p = (data["x"].double() @ weight.T).softmax(-1)
    true = torch.einsum("nk,ni->ki", p * (1 - p), data["x"].double().square()) / len(p)
    size = 16
    batches = [part_of(data, start, start + size) for start in range(0, len(p), size)]
    found = gradient_moment(model, batches, negative_log_likelihood)["inner.weight"].double()
    assert float((found - true).norm() / true.norm()) < 0.1

    means = torch.zeros_like(true)
    for batch in batches:
        (gradient,) = torch.autograd.grad(negative_log_likelihood(model, batch).mean(), list(model.parameters()))
        means += gradient.double().square() / len(batches)
    assert size / 1.3 < float(true.sum() / means.sum()) < size * 1.3
    scaled = gradient_moment(model, batches, negative_log_likelihood, batch_means=True)["inner.weight"].double()
    torch.testing.assert_close(scaled, size * means, rtol=1e-4, atol=0)

    label = probabilities.gather(1, data["labels"][:, None])[:, 0]
    weighted = gradient_moment(
        model,
        [{**data, "p": label}],
        lambda model, batch: batch["p"].sqrt() * negative_log_likelihood(model, batch),
    )["inner.weight"].double()
    assert float(weighted.sum() / true.sum()) < 0.7


# -- labels of the model -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["roberta", "gemma2", "t5", "bart"])
def test_labels_are_drawn_from_the_models_own_probabilities(name: str) -> None:
    model = spread(tiny.model(name), torch.float32)
    stage = stages.stage(model, 1, tiny.objective_of(name), batch_size=3)
    batch = next(stage.batches(3))
    batch["labels"][0, 1] = -100
    probabilities = stage.objective.log_probabilities(model, batch).exp()
    chances = torch.rand(batch["labels"].shape, dtype=torch.float64)
    drawn = stage.objective.drawn_labels(model, batch, chances)
    assert ((drawn == -100) == (batch["labels"] == -100)).all()
    for row, column in (batch["labels"] != -100).nonzero():
        summed = probabilities[row, column].cumsum(0)
        word = int(drawn[row, column])
        assert (summed[word - 1] if word else 0) - 1e-6 <= chances[row, column] <= summed[word] + 1e-6


def test_draws_depend_on_the_row_and_the_seed_only() -> None:
    model = tiny.model("gpt2")
    stage = stages.stage(model, 1, "causal", batch_size=6)
    whole = list(stage.batches(6))
    cut = [part_of(whole[0], start, start + 2) for start in (0, 2, 4)]

    def drawn(batches: list[dict[str, Tensor]], *seed: object) -> Tensor:
        found = [batch["labels"] for batch in labels_of_the_model(model, batches, stage.objective, *seed)]
        return torch.cat(found)

    assert torch.equal(drawn(whole, 1, "ewc"), drawn(cut, 1, "ewc"))
    assert not torch.equal(drawn(whole, 1, "ewc"), drawn(whole, 2, "ewc"))
    assert not torch.equal(drawn(whole, 1, "ewc"), whole[0]["labels"])


def test_the_true_fisher_of_a_masked_model_is_its_expectation() -> None:
    """Many draws against the sum over the vocabulary, for the bias of the head: E[(p − e_y)²] per label."""
    model = spread(tiny.model("roberta"), torch.float32)
    stage = stages.stage(model, 1, batch_size=2)
    batch = next(stage.batches(2))
    batch["labels"][:, 1:] = -100  # one label a row, so that the row's gradient is the label's
    with torch.no_grad():
        model.get_parameter("lm_head.bias")[:4] += 8  # a few words to choose from
        p = stage.objective.log_probabilities(model, batch).exp()[:, 0]
    expected = (p * (1 - p)).mean(0)
    copies = {name: value.repeat(400, *[1] * (value.dim() - 1)) for name, value in batch.items()}
    drawn = labels_of_the_model(model, [copies], stage.objective, 0)
    found = gradient_moment(model, drawn, stage.objective.per_sample_loss, names=["lm_head.bias"])["lm_head.bias"]
    assert float((found - expected).norm() / expected.norm()) < 0.15


# -- from training -----------------------------------------------------------------------------------------------


def test_fisher_from_training_steps_is_n_times_the_mean_square() -> None:
    gradients = [{"w": torch.randn(3), "b": torch.randn(2)} for _ in range(4)]
    seen = TrainingFisher()
    for step, each in enumerate(gradients):
        if step == 2:  # a checkpoint
            seen = TrainingFisher(seen.squares, seen.steps)
        seen.add(each, rows=8)
    for name, found in seen.result().items():
        torch.testing.assert_close(found, 8 * torch.stack([g[name] for g in gradients]).square().mean(0))
    with pytest.raises(MethodError, match="without a step"):
        TrainingFisher().result()
    seen.add({"w": torch.tensor([math.inf, 0, 0])}, 1)
    with pytest.raises(MethodError, match="'w' is not finite"):
        seen.result()


def test_fisher_from_training_approaches_the_fisher_where_the_mean_gradient_is_zero() -> None:
    """Data that the model itself labelled: independent rows around a mean gradient of 0."""
    model, data, _ = calibrated()
    seen = TrainingFisher()
    for start in range(0, 4096, 16):
        loss = negative_log_likelihood(model, part_of(data, start, start + 16)).mean()
        (gradient,) = torch.autograd.grad(loss, list(model.parameters()))
        seen.add({"inner.weight": gradient}, 16)
    expected = gradient_moment(model, [data], negative_log_likelihood)["inner.weight"]
    assert float((seen.result()["inner.weight"] - expected).norm() / expected.norm()) < 0.15


# -- quadratic forms ---------------------------------------------------------------------------------------------


def test_the_diagonal_form_is_the_sum() -> None:
    values, delta = {"w": torch.rand(3, 2), "b": torch.rand(3)}, {"w": torch.randn(3, 2), "b": torch.randn(3)}
    found = Diagonal.of_tensors(Diagonal(values).tensors()).quadratic(delta)
    torch.testing.assert_close(found, sum((values[name] * delta[name] ** 2).sum() for name in values))
    assert Diagonal({}).quadratic(delta) == 0


@pytest.mark.parametrize("name", ["roberta", "gpt2"])
def test_the_kronecker_form_is_the_product_of_moments(name: str) -> None:
    """vec(Δ)ᵀ (L ⊗ R) vec(Δ) in float64, with δ and x caught by hooks of one layer."""
    model = spread(tiny.model(name))
    stage = stages.stage(model, 1, tiny.objective_of(name), batch_size=3)
    batches = list(stage.batches(6))
    found = kronecker_fisher(model, batches, stage.objective.per_sample_loss, largest=200)
    layer = {"roberta": "roberta.encoder.layer.1.output.dense", "gpt2": "transformer.h.1.mlp.c_fc"}[name]
    module = model.get_submodule(layer)
    left = right = 0
    positions = 0
    for batch in batches:
        caught: dict[str, Tensor] = {}

        def keep(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, caught: dict[str, Tensor] = caught) -> None:
            caught["x"] = inputs[0].detach().flatten(0, 1)
            output.register_hook(lambda gradient: caught.update(d=gradient.flatten(0, 1)))

        handle = module.register_forward_hook(keep)
        stage.objective.per_sample_loss(model, batch).sum().backward()
        handle.remove()
        reached = (caught["d"] != 0).any(1)
        x, d = caught["x"][reached], caught["d"][reached]
        left, right, positions = left + d.T @ d, right + x.T @ x, positions + len(x)
    form = torch.kron(left / 6, right / positions)
    weight = f"{layer}.weight"
    delta = torch.randn(*reversed(module.weight.shape) if name == "gpt2" else module.weight.shape, dtype=torch.float64)
    expected = delta.flatten() @ form @ delta.flatten()
    moved = {n: torch.zeros(p.shape) for n, p in model.named_parameters()}
    moved[weight] = (delta.T if name == "gpt2" else delta).float().requires_grad_()
    again = Kronecker.of_tensors(found.tensors())
    torch.testing.assert_close(again.quadratic(moved).double(), expected, rtol=1e-4, atol=0)
    again.quadratic(moved).backward()
    assert moved[weight].grad is not None

    rest = {n: v for n, v in loop(model, batches, stage.objective.per_sample_loss).items() if n in found.rest.values}
    assert_same(found.rest.values, rest)
    assert not {"lm_head.bias", *[n for n in rest if "LayerNorm" in n or "ln_" in n]} & found.factors.keys()
    assert not any("word_embeddings" in n or "wte" in n for n in found.factors)


def test_one_constant_position_makes_the_kronecker_form_exact() -> None:
    """Δᵀ F Δ = E[(gᵀ Δ)²] with the whole Fisher matrix of a layer."""
    torch.manual_seed(0)
    model = Softmax(3, 4)
    data = {"x": torch.randn(1, 3).repeat(50, 1), "labels": torch.randint(4, (50,))}
    found = kronecker_fisher(model, [data], negative_log_likelihood)
    delta = torch.randn(4, 3)
    squares = []
    for row in range(50):
        loss = negative_log_likelihood(model, part_of(data, row, row + 1)).sum()
        (gradient,) = torch.autograd.grad(loss, list(model.parameters()))
        squares.append((gradient * delta).sum().square())
    torch.testing.assert_close(found.quadratic({"inner.weight": delta}), torch.stack(squares).mean(), rtol=1e-4, atol=0)
    with pytest.raises(MethodError, match="no batch"):
        kronecker_fisher(model, [], negative_log_likelihood)
    with pytest.raises(MethodError, match="not finite"):
        kronecker_fisher(model, [data], lambda m, b: negative_log_likelihood(m, b) * math.inf)
