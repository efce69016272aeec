"""Muon for the matrices inside the layers, AdamW for everything else: an optimizer that a recipe names as a method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pydantic import Field
from torch import nn
from torch.optim import Optimizer

from everlearn.methods.base import Method, MethodConfig, Stage, register


@register
class Muon(Method):
    """Muon (Jordan et al. 2024; arXiv 2502.16982, eq. 4): W ← W − η (0.2 √max(A, B) · O + λ W).

    O is the momentum of the gradient with all its singular values near 1, A and B are the sides of W. The factor gives
    an update the size that AdamW's has, so both share ``train.learning_rate``.
    """

    name = "muon"
    title = "Muon"
    paper = "https://arxiv.org/abs/2502.16982"

    class Config(MethodConfig):
        """Options of Muon."""

        momentum: float = Field(0.95, ge=0, lt=1)
        """Of the gradient, with Nesterov's step."""

    config: Config

    def optimizer(self, stage: Stage, optimizer: Optimizer) -> Optimizer:
        """Split each group of the recipe's optimizer."""
        return MuonBeside(optimizer, matrices(stage.model), momentum=self.config.momentum)


def matrices(model: nn.Module) -> set[int]:
    """Ids of the weights of linear layers, without what is also an embedding and without the vocabulary head."""
    words = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    head: Any = model.get_output_embeddings  # type: ignore[assignment]
    linear = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not head()]
    return {id(m.weight) for m in linear} - words


class MuonBeside(Optimizer):
    """One optimizer made of two that share its groups and its state, so that it is scheduled and saved as one.

    Args:
        other: has the groups of all parameters, and goes on with those that are not for Muon.
        chosen: ids of the parameters for Muon.
        momentum: of Muon.
    """

    def __init__(self, other: Optimizer, chosen: set[int], momentum: float) -> None:
        left: list[dict[str, Any]] = []
        taken: list[dict[str, Any]] = []
        for group in other.param_groups:
            mine = [p for p in group["params"] if id(p) in chosen]
            rest = [p for p in group["params"] if id(p) not in chosen]
            if rest:
                left.append({**group, "params": rest, "muon": False})
            if mine:
                taken.append({"params": mine, "lr": group["lr"], "weight_decay": group["weight_decay"], "muon": True})
        self._other = other
        self._muon = torch.optim.Muon(taken, momentum=momentum, adjust_lr_fn="match_rms_adamw")
        super().__init__([*left, *self._muon.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Both optimizers' steps, each on its groups as they are now (loading a state replaces them)."""
        for part, muon in ((self._other, False), (self._muon, True)):
            part.param_groups = [group for group in self.param_groups if group["muon"] is muon]
            part.state = self.state
            part.step()
