"""Predict the drift of a text in bits per byte, ½ Δᵀ F Δ, and move weights to reduce it.

Two estimates of the matrix F are stored. K *directions* G with E[Gᵀ G] = F predict the drift as ½ ‖G Δ‖². The
*diagonal* ignores that weights move together, but it has a value for every weight, by which weights can be moved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from everlearn.methods.penalties.penalty import Placed, joined, place
from everlearn.model.adapted import Weight, weights_of
from everlearn.model.sharding import local, shard_like, sum_over_shards

CLOSE, ROUNDS = 1e-3, 50
"""Tolerance of a projection, as a share of its goal, and its largest number of Newton steps."""
NEWTON, HALVINGS = 8, 5
"""Largest number of Newton steps of a projection with adapters, and how often one that leads too far is halved."""
TRIES = 4
"""Largest number of projections after a step until the predicted drift is within its limit."""


@dataclass
class Known:
    """The sum Σ_k ½ (θ − θ_k)ᵀ F_k (θ − θ_k) of the predicted drifts of several texts, in constant memory.

    The diagonals give one quadratic around one anchor, exactly. The directions give ½ ‖G (θ − θ̄) + o‖² in expectation:
    Σ_k ‖G_k (θ − θ_k)‖² and products of directions of different texts, which are independent with expectation 0.

    Attributes:
        importance: diag Σ_k F_k, by parameter name.
        anchor: θ̄ = Σ_k F_k θ_k / Σ_k F_k.
        directions: G = Σ_k G_k, bfloat16 [K, *shape], by parameter name.
        offset: o = Σ_k G_k (θ̄ − θ_k), float64 [K].
        constant: c of ½ Σ F (θ − θ̄)² + ½ c, with the diagonal.
        texts: names of the texts.
    """

    importance: dict[str, Tensor] = field(default_factory=dict)
    anchor: dict[str, Tensor] = field(default_factory=dict)
    directions: dict[str, Tensor] = field(default_factory=dict)
    offset: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    constant: float = 0.0
    texts: list[str] = field(default_factory=list)

    def add(self, text: str, fisher: Mapping[str, Tensor], directions: Mapping[str, Tensor], model: nn.Module) -> None:
        """Add a text with the current weights as its anchor.

        Args:
            text: its name.
            fisher: diagonal of F, in bits per byte, by parameter name.
            directions: directions of the full F, in the square root of its unit, [K, *shape].
            model: the model, with or without adapters.
        """
        weights = weights_of(model)
        for name, new in fisher.items():
            here, rows = weights[name].value().detach().to(torch.float32, copy=True), directions[name]
            if (known := self.importance.get(name)) is None:
                self.importance[name], self.anchor[name], self.directions[name] = new, here, rows
                continue
            known, before = known.to(here.device), self.anchor[name].to(here.device)
            earlier = self.directions[name].to(here.device)
            self.anchor[name], apart = joined(before.clone(), known, here, new)
            self.importance[name] = known.add_(new)
            self.constant += apart
            shift = along(earlier, self.anchor[name] - before) + along(rows, self.anchor[name] - here)
            self.offset = self.offset + shift.cpu()
            self.directions[name] = earlier.add_(rows)
        self.texts.append(text)


def along(directions: Iterable[Tensor], step: Tensor) -> Tensor:
    """Return G Δ of one parameter, float64 [K]; row by row, since all of G in float32 would double its memory."""
    return torch.stack([torch.dot(row.flatten().float(), step.flatten()) for row in directions]).double()


class Ellipsoid:
    """The set of weights whose predicted drift, averaged over the texts, is at most a limit.

    Args:
        label: label of the method, for error messages.
        known: the texts.
        model: the model, with its local parameters.
    """

    def __init__(self, label: str, known: Known, model: nn.Module) -> None:
        self._placed: Placed = place(label, model, known.importance, known.anchor)
        self._constant, self._offset, self._texts = known.constant, known.offset, len(known.texts)
        names = {id(weight.parameter): name for name, weight in weights_of(model).items()}
        self._directions = [
            [shard_like(row, w.parameter, row.dtype) for row in known.directions[names[id(w.parameter)]]]
            for w, _, _ in self._placed
        ]

    def predicted(self) -> float:
        """Return ½ ‖G (θ − θ̄) + o‖², an estimate of ½ Δᵀ F Δ with the full F, in bits per byte."""
        placed = zip(self._directions, self._placed, strict=True)
        terms = torch.stack([along(rows, w.value().detach() - anchor) for rows, (w, _, anchor) in placed])
        moved = sum_over_shards(terms, [weight.parameter for weight, _, _ in self._placed]).sum(0).cpu() + self._offset
        return float(moved.square().sum()) / 2 / self._texts

    def enter(self, limit: float, optimizer: Optimizer | None) -> bool:
        """Move the weights until the predicted drift is within the limit; return whether they were moved.

        The predicted p (of the full form) decreases about as fast as the form d of the diagonal. So weights are moved
        to reduce d by the factor L/p, and again if p still exceeds L.

        Args:
            limit: L, in bits per byte, above 0.
            optimizer: the optimizer that made the step.
        """
        moved = False
        for _ in range(TRIES):
            predicted = self.predicted()
            if predicted <= limit * (1 + CLOSE):
                break
            self._shrink(max(limit / predicted, CLOSE), optimizer)
            moved = True
        return moved

    def diagonal(self) -> float:
        """Return ½ Σ_k (θ − θ_k)ᵀ diag(F_k) (θ − θ_k), summed over the texts, in bits per byte."""
        return self._sums(0.0, [0.0] * len(self._placed))[0] + self._constant / 2

    def _shrink(self, share: float, optimizer: Optimizer | None) -> None:
        """Move the weights to the nearest ones that reduce the form of the diagonal to a share of its value.

        The metric is that of the optimizer, which steps by −η P g: among Δ' with ½ Δ'ᵀ F Δ' ≤ limit the one that
        minimises (Δ' − Δ)ᵀ P⁻¹ (Δ' − Δ) is Δ' = Δ / (1 + μ P F), element-wise. In this metric, and in no other, a fixed
        point of step and projection satisfies ∇L + λ F Δ = 0, the condition of a penalty. P is 1 / (√v + ε) if the
        optimizer has a second moment v, else 1. μ ≥ 0 is the root of a secular equation, found by Newton's method,
        which converges from below (Moré and Sorensen, SIAM J. Sci. Stat. Comput. 4, 1983).
        """
        goal = share * self.diagonal()
        # If the anchors of the texts differ too much for the goal, move as close to all of them as possible.
        room = max(goal - self._constant / 2, CLOSE * goal)
        rates = [_preconditioner(optimizer, w.parameter) * importance for w, importance, _ in self._placed]
        pull = 0.0
        for _ in range(ROUNDS):
            lost, slope = self._sums(pull, rates)
            if lost <= room * (1 + CLOSE) or slope <= 0:
                break
            pull += 2 * lost * (math.sqrt(lost / room) - 1) / slope
        for (weight, _, anchor), rate in zip(self._placed, rates, strict=True):
            own = local(weight.parameter)
            own.copy_(anchor + (own - anchor).div_(1 + pull * rate))

    def _sums(self, pull: float, rates: Sequence[Tensor | float]) -> tuple[float, float]:
        """Return ½ Σ F Δ'² with Δ' = Δ / (1 + μ P F), and minus its derivative by μ: Σ F Δ'² P F / (1 + μ P F)."""
        terms = []
        for (weight, importance, anchor), rate in zip(self._placed, rates, strict=True):
            shrunk = 1 + pull * rate
            lost = (weight.value().detach() - anchor).div_(shrunk).square_().mul_(importance)
            slope = lost * (rate / shrunk)
            terms.append(torch.stack([lost.sum(dtype=torch.float64) / 2, slope.sum(dtype=torch.float64)]))
        parameters = [weight.parameter for weight, _, _ in self._placed]
        lost_, slope_ = sum_over_shards(torch.stack(terms), parameters).sum(0).tolist()
        return lost_, slope_


class CurvedEllipsoid(Ellipsoid):
    """The same set for a model with adapters, whose effective weights θ(φ) cannot be moved independently.

    φ are the parameters of the optimizer, such as A and B of LoRA. They move against the gradient of the form of the
    diagonal, in the metric P of the optimizer, by damped Newton steps to its goal:

        φ ← φ − μ P g / (1 + μ P c),   g = ∂d/∂φ,   d(φ) = ½ Σ F (θ(φ) − θ̄)²,   μ = (d − goal) / (gᵀ P g),

    with c = m gᵀ Jᵀ F J g / gᵀ g of each tensor of φ, the curvature along its gradient, J = ∂θ/∂φ, and m tensors that
    move one weight. A fixed point of step and projection satisfies ∇L + λ g / (1 + μ P c) = 0, which for small steps is
    the condition of a penalty.
    """

    def _shrink(self, share: float, optimizer: Optimizer | None) -> None:
        """Move the trained parameters until the form of the diagonal is at most a share of its value."""
        now = self.diagonal()
        goal = max(share * now, self._constant / 2 + CLOSE * share * now)
        for _ in range(NEWTON):
            if now <= goal * (1 + CLOSE):
                break
            slopes = [
                (p, p.detach().clone(), g, _preconditioner(optimizer, p), c) for p, (g, c) in self._slopes().items()
            ]
            length = sum(float((g * rate * g).sum()) for _, _, g, rate, _ in slopes)
            pulls = [(now - goal) / length / 2**halving for halving in range(HALVINGS)] if length > 0 else []
            before = now
            for pull in (*pulls, 0.0):  # 0: no step in this direction reduces it
                for parameter, start, slope, rate, curvature in slopes:
                    parameter.copy_(start - pull * rate * slope / (1 + pull * rate * curvature))
                if (now := self.diagonal()) < before:
                    break
            if now >= before:
                break

    def _slopes(self) -> dict[nn.Parameter, tuple[Tensor, Tensor]]:
        """Return g and c of each trained tensor; weight by weight, so that no second copy of all weights is held."""
        slopes: dict[nn.Parameter, Tensor] = {}
        for weight, importance, anchor in self._placed:
            with torch.enable_grad():
                lost = ((weight.value() - anchor).square() * importance).sum() / 2
                parts = torch.autograd.grad(lost, moving := _moving(weight), allow_unused=True)
            for parameter, part in zip(moving, parts, strict=True):
                if part is not None:
                    slopes[parameter] = slopes[parameter] + part if parameter in slopes else part
        curved = {parameter: torch.zeros((), device=slope.device) for parameter, slope in slopes.items()}
        for weight, importance, _ in self._placed:
            moving = [parameter for parameter in _moving(weight) if parameter in slopes]
            for parameter in moving:
                moved = _moved(weight, parameter, slopes[parameter])
                curved[parameter] += len(moving) * (importance * moved.square()).sum()
        return {p: (g, curved[p] / g.square().sum().clamp(min=torch.finfo(g.dtype).tiny)) for p, g in slopes.items()}


def _moving(weight: Weight) -> list[nn.Parameter]:
    return [parameter for parameter in weight.moved_by if parameter.requires_grad]


def _moved(weight: Weight, parameter: nn.Parameter, step: Tensor) -> Tensor:
    """Return J v, the first-order change of a weight by a step of a parameter: the gradient of (Jᵀ u) · v by u."""
    with torch.enable_grad():
        value = weight.value()
        u = torch.zeros_like(value, requires_grad=True)
        (back,) = torch.autograd.grad(value, parameter, u, create_graph=True)
        (moved,) = torch.autograd.grad(back, u, step)
    return moved


def ellipsoid(label: str, known: Known, model: nn.Module) -> Ellipsoid:
    """Return the set for a model with adapters or without.

    Raises:
        MethodError: the memory belongs to another model.
    """
    adapted = any(weight.adapted for weight in weights_of(model).values())
    return (CurvedEllipsoid if adapted else Ellipsoid)(label, known, model)


def _preconditioner(optimizer: Optimizer | None, parameter: nn.Parameter) -> Tensor:
    """Return the local part of P for a parameter."""
    state = optimizer.state.get(parameter, {}) if optimizer is not None else {}
    second = state.get("exp_avg_sq")
    own = local(parameter)
    if not isinstance(second, Tensor) or second.shape != parameter.shape:
        return torch.ones((), device=own.device)
    return local(second).float().sqrt().add_(1e-8).reciprocal_()
