"""Stages under a penalty without training, and what is held against it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import stages
from everlearn.methods.base import Method
from everlearn.methods.engine.protection import Protection


def moved(model: nn.Module, size: float = 0.02, seed: int = 5) -> None:
    """Other weights."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))


def domain(method: Method, model: nn.Module, index: int, objective: str = "masked") -> None:
    """A domain in which the weights move a little, without training."""
    stage = stages.stage(model, index, objective)
    Protection([method], stage).begin()
    moved(model, seed=index)
    stages.end([method], stage)


def penalty(method: Method, model: nn.Module, index: int = 9) -> Tensor:
    """The penalty at the weights as they are, in a stage that begins with them."""
    protection = Protection([method], stage := stages.stage(model, index))
    protection.begin()
    return protection.forward(model.eval(), next(stage.batches(2)))[1][f"{method.name}/penalty"]


def doubled(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().double().clone() for name, parameter in model.named_parameters()}


def close(found: dict[str, Tensor], wanted: dict[str, Tensor], rtol: float) -> None:
    """Equal but for rounding, of which some tensors hold nothing else (a key's bias moves no attention)."""
    largest = max(float(value.abs().max()) for value in wanted.values())
    for name, value in wanted.items():
        torch.testing.assert_close(found[name].double(), value, rtol=rtol, atol=1e-5 * largest)


def kept(method: Method, kind: str) -> dict[str, Tensor]:
    """A part of the memory by parameter."""
    return {n.removeprefix(f"{kind}/"): v for n, v in method.memory().tensors.items() if n.startswith(f"{kind}/")}


def gradients_of(model: nn.Module, stage, value, samples: int) -> list[dict[str, Tensor]]:
    """Each sample's gradient of `value(model, batch)`, in float64."""
    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    found = []
    for batch in stage.batches(samples):
        for row in range(len(batch["labels"])):
            double.zero_grad()
            value(double, {name: part[row : row + 1] for name, part in batch.items()}).sum().backward()
            found.append(
                {
                    name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                    for name, p in double.named_parameters()
                }
            )
    return found
