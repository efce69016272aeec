"""The budget's units: the Fisher information of labels, its directions, and what they predict of a loss."""

from __future__ import annotations

import argparse
import copy
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.importance import label_directions, label_fisher, labels_of_the_model
from everlearn.methods.penalties.drift_prediction import Ellipsoid, Known
from everlearn.model.loading import load_weights
from everlearn.model.objectives import make_objective

DOCS = Path(__file__).parents[2] / "docs"


BASE = DOCS.parent / "benchmarks/bases/english-decoder"


class _Bigram(nn.Module):
    """p(y | x) = softmax(W[x]): an objective whose Fisher information is known in closed form."""

    def __init__(self, words: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.table = nn.Parameter(torch.randn(words, words, generator=generator, dtype=torch.float64))


def _expected_form(model: _Bigram, ids: Tensor, delta: Tensor) -> float:
    """Δᵀ F Δ = E_x Var_{y ~ p(·|x)}(Δ[x]_y), of one label, with the expectation over y written out."""
    total = 0.0
    for word in ids.tolist():
        p = torch.softmax(model.table[word].detach(), 0)
        total += float((p * delta[word].square()).sum() - (p * delta[word]).sum().square())
    return total / len(ids)


def test_the_quadratic_form_of_a_label_is_its_loss() -> None:
    """Of a model whose Fisher information is known: brute force, the finite-difference Hessian, and rows of any length.

    The *full* form is twice the loss; a row's squared summed gradient over its labels estimates it without bias.
    """
    words, rows, labels = 5, 4000, 3
    model = _Bigram(words)
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(words, (rows, labels), generator=generator)
    delta = torch.randn(words, words, generator=generator, dtype=torch.float64)
    exact = _expected_form(model, ids.flatten(), delta)

    def loss(step: float) -> float:  # the expected loss per label, labels from the model as it is at 0
        p = torch.softmax(model.table.detach()[ids.flatten()], 1)
        return float(-(p * torch.log_softmax((model.table.detach() + step * delta)[ids.flatten()], 1)).sum(1).mean())

    hessian = (loss(1e-3) + loss(-1e-3) - 2 * loss(0.0)) / 1e-6
    assert hessian == pytest.approx(exact, rel=1e-4)
    p = torch.softmax(model.table.detach(), 1)
    drawn = torch.multinomial(p[ids.flatten()], 1, generator=generator).view(rows, labels)
    slopes = (delta[ids, drawn] - (p[ids] * delta[ids]).sum(-1)).sum(1)  # of a row's summed loss, along Δ
    assert float(slopes.square().sum() / (rows * labels)) == pytest.approx(exact, rel=0.05)
    assert float((slopes / labels).square().mean()) == pytest.approx(
        exact / labels, rel=0.05
    )  # of its mean: T too small


@pytest.mark.parametrize("objective", ["causal", "masked", "text-to-text"])
def test_label_fisher_is_the_loop_over_rows(objective: str) -> None:
    """Against one backward pass a row in float64, labels drawn by the same seed."""
    model = tiny.model(stages.ARCHITECTURE[objective])
    stage = stages.stage(model, objective=objective)
    found = label_fisher(model, stage.batches(6), stage.objective, 3)
    twin = copy.deepcopy(model).double()
    totals = {name: torch.zeros_like(p) for name, p in twin.named_parameters()}
    labels = 0
    for batch in labels_of_the_model(model, stage.batches(6), stage.objective, 3):
        labels += int((batch["labels"] != -100).sum())
        for row in range(len(batch["labels"])):
            twin.zero_grad()
            stage.objective.forward(
                twin, {key: value[row : row + 1] for key, value in batch.items()}
            ).losses.sum().backward()
            for name, p in twin.named_parameters():
                totals[name] += p.grad.square()
    for name, total in totals.items():
        torch.testing.assert_close(found[name].double(), total / labels, rtol=1e-4, atol=1e-9)


def test_directions_are_the_loop_over_rows_pile_by_pile() -> None:
    """Against one backward pass a row in float64, labels drawn by the same seed: 10 rows in piles of 4, 3 and 3."""
    model = tiny.model("gpt2")
    stage = stages.stage(model, objective="causal")
    found = label_directions(model, stage.batches(10), stage.objective, 3, rank=3, rows=10)
    twin = copy.deepcopy(model).double()
    piles = [{name: torch.zeros_like(p) for name, p in twin.named_parameters()} for _ in range(3)]
    labels = read = 0
    for batch in labels_of_the_model(model, stage.batches(10), stage.objective, 3):
        labels += int((batch["labels"] != -100).sum())
        for row in range(len(batch["labels"])):
            twin.zero_grad()
            own = {key: value[row : row + 1] for key, value in batch.items()}
            stage.objective.forward(twin, own).losses.sum().backward()
            for name, p in twin.named_parameters():
                piles[max(0, read - 1) // 3][name] += p.grad
            read += 1
    for number, pile in enumerate(piles):
        for name, total in pile.items():
            expected = total / labels**0.5
            torch.testing.assert_close(found[name][number].double(), expected, rtol=1e-2, atol=1e-5)


def test_directions_of_nothing_are_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = stages.stage(tiny.model("gpt2"), objective="causal")
    with pytest.raises(MethodError, match="no batch"):
        label_directions(stage.model, [], stage.objective, rank=2, rows=4)
    kind, forward = type(stage.objective), type(stage.objective).forward
    infinite = lambda *of, **options: SimpleNamespace(losses=forward(*of, **options).losses * math.inf)  # noqa: E731
    monkeypatch.setattr(kind, "forward", infinite)
    with pytest.raises(MethodError, match="not finite"):
        label_directions(stage.model, stage.batches(4), stage.objective, rank=2, rows=4)


def test_directions_are_the_whole_fisher_information() -> None:
    """Against F built as a matrix in float64: Σ_y p J Jᵀ of log p(y), with J by central differences."""
    stage = stages.stage(tiny.model("gpt2"), objective="causal")
    stages.learn([], stage, lr=3e-3)
    model, text, eps = stage.model.double().eval(), list(stage.batches(6)), 1e-4
    names = ["transformer.ln_f.weight", "transformer.ln_f.bias"]
    flat = [p.data for name, p in model.named_parameters() if name in names]

    @torch.no_grad()
    def words() -> Tensor:  # log p of every word at every label
        return torch.cat([stage.objective.log_probabilities(model, b)[b["labels"] != -100] for b in text])

    def slope(values: Tensor, index: int) -> Tensor:
        here = values[index].item()
        values[index] = here + eps
        ahead = words()
        values[index] = here - eps
        back = words()
        values[index] = here
        return (ahead - back) / (2 * eps)

    jacobian = torch.stack([slope(values, index) for values in flat for index in range(len(values))])
    form = torch.einsum("anw,nw,bnw->ab", jacobian, words().exp(), jacobian) / jacobian.shape[1]
    delta = torch.randn(len(form), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    estimates = []
    for draw in range(50):
        found = label_directions(model, text, stage.objective, draw, rank=4, rows=6, names=names)
        moved = torch.cat([found[name].double() for name in names], 1) @ delta
        estimates.append(float(moved.square().sum()))
    assert np.mean(estimates) == pytest.approx(float(delta @ form @ delta), rel=3 * (2 / 4 / 50) ** 0.5)


def test_the_form_along_a_small_step_is_the_hessian_of_the_loss() -> None:
    """A trained tiny model in float64, along a random direction: the finite-difference curvature of the expected loss
    per label, Σ_y p (∂ log p(y) · Δ)² with the sum over the vocabulary written out, and rows with drawn labels."""
    stage = stages.stage(tiny.model("gpt2"), objective="causal", count=16)
    stages.learn([], stage, lr=3e-3)
    model, text = stage.model.double().eval(), list(stage.batches(8))
    generator = torch.Generator().manual_seed(0)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    delta = {n: torch.randn(p.shape, generator=generator, dtype=torch.float64) * p.std() for n, p in start.items()}

    def at(step: float, read: Any) -> Tensor:
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(start[name] + step * delta[name])
            return torch.cat([read(batch) for batch in text])

    def words(batch: dict[str, Tensor]) -> Tensor:  # log p of every word at every label
        return stage.objective.log_probabilities(model, batch)[batch["labels"] != -100]

    eps = 3e-3
    ahead, here, back = (at(step, words) for step in (eps, 0.0, -eps))
    p = here.exp()
    curvature = float((-p * (ahead + back - 2 * here)).sum() / eps**2 / len(p))
    exact = float((p * ((ahead - back) / (2 * eps)).square()).sum() / len(p))
    assert exact == pytest.approx(curvature, rel=1e-3)

    at(0.0, words)
    draws = [b for draw in range(16) for b in labels_of_the_model(model, text, stage.objective, draw)]
    text = draws

    def nats(batch: dict[str, Tensor]) -> Tensor:
        return stage.objective.forward(model, batch).losses.double().sum(1)

    slopes = (at(eps, nats) - at(-eps, nats)) / (2 * eps)
    labels = sum(int((b["labels"] != -100).sum()) for b in draws)
    assert float(slopes.square().sum() / labels) == pytest.approx(exact, rel=0.3)


def test_on_the_shipped_base_it_predicts_what_is_lost() -> None:
    """A few steps on Python code, read back on English prose: gᵀΔ + ½ Δᵀ F Δ is the loss within 30 %, in float32.

    Eight directions are the form within twice their standard error; the diagonal is far below.
    """
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    model = load_weights(str(BASE)).eval()
    objective = make_objective("causal", model, tokenizer)

    def rows(files: list[Path], count: int) -> list[dict[str, Any]]:
        ids = tokenizer(" ".join(file.read_text(encoding="utf-8") for file in files))["input_ids"]
        cut = [np.array(ids[at : at + 64], np.int32) for at in range(0, 64 * count, 64)]
        return [{"input_ids": row, "segments": np.zeros_like(row)} for row in cut]

    known = objective.collate(rows([DOCS / "concepts.md", DOCS / "evaluation.md"], 24), range(24))
    new = objective.collate(rows([Path(argparse.__file__)], 16), range(16))
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        objective.forward(model, new).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    end = {name: p.detach().clone() for name, p in model.named_parameters()}

    def nats(share: float, batches: list[dict[str, Tensor]]) -> Tensor:
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(torch.lerp(start[name], end[name], share))
            return torch.cat([torch.zeros(0), *(objective.forward(model, b).losses.double().sum(1) for b in batches)])

    labels = float(objective.items(known).sum())
    before = nats(0.0, [known])
    drawn = [b for draw in range(3) for b in labels_of_the_model(model, [known], objective, draw)]
    slopes = (nats(0.1, drawn) - nats(-0.1, drawn)) / 0.2
    first = float((nats(0.1, [known]) - nats(-0.1, [known])).sum()) / 0.2 / labels
    form = float(slopes.square().sum()) / (3 * labels)
    for share in (0.5, 1.0):
        lost = float((nats(share, [known]) - before).sum()) / labels
        assert first * share + form / 2 * share**2 == pytest.approx(lost, rel=0.3)
    nats(0.0, [])
    text = Known()
    diagonal = label_fisher(model, [known], objective, 0)
    text.add("prose", diagonal, label_directions(model, [known], objective, 0, rank=8, rows=24), model)
    nats(1.0, [])
    inside = Ellipsoid("budget", text, model)
    assert inside.predicted() == pytest.approx(form / 2, rel=2 * (2 / 8) ** 0.5)
    assert inside.diagonal() < inside.predicted() / 5
