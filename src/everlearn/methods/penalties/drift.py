"""How much of a text is lost, in bits per byte: predicted by ½ Δᵀ F Δ, and measured on a few held-out rows of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from everlearn.data.blocks import Block, PackedBlocks
from everlearn.evaluation.perplexity import block_losses
from everlearn.methods.engine.processes import everywhere, processes
from everlearn.methods.penalties.penalty import Placed, joined, place
from everlearn.methods.stage import Stage
from everlearn.model.objectives import IGNORE
from everlearn.model.sharding import local, sum_over_shards

MASKS = "drift"
"""Seeds the masks of probes: the same ones in every stage, so that losses can be compared."""
LEVEL = 1.96
"""Standard errors on each side of a measured drift: 95 %."""
CLOSE, ROUNDS = 1e-3, 50
"""How near the limit a projection ends, as a share of it, and the Newton steps that it may take."""


@dataclass
class Known:
    """What Σ_k ½ (θ − θ_k)ᵀ F_k (θ − θ_k) is made of, the predicted drifts of several texts: one quadratic, exactly.

    Attributes:
        importance: Σ_k F_k, by parameter name.
        anchor: θ̄ = Σ_k F_k θ_k / Σ_k F_k.
        constant: c of ½ Σ F (θ − θ̄)² + ½ c.
        texts: names of the texts.
    """

    importance: dict[str, Tensor] = field(default_factory=dict)
    anchor: dict[str, Tensor] = field(default_factory=dict)
    constant: float = 0.0
    texts: list[str] = field(default_factory=list)

    def add(self, text: str, fisher: Mapping[str, Tensor], model: nn.Module) -> None:
        """Add a text, known with the weights as they are.

        Args:
            text: its name.
            fisher: F, in bits per byte, by parameter name.
            model: a plain one.
        """
        weights = dict(model.named_parameters())
        for name, new in fisher.items():
            here = weights[name].detach().to(torch.float32, copy=True)
            if (known := self.importance.get(name)) is None:
                self.importance[name], self.anchor[name] = new, here
                continue
            known = known.to(here.device)
            self.anchor[name], apart = joined(self.anchor[name].to(here.device), known, here, new)
            self.importance[name] = known.add_(new)
            self.constant += apart
        self.texts.append(text)


class Ellipsoid:
    """The weights whose predicted drift, the mean over the texts, is at most a limit.

    Args:
        label: of the method, for errors.
        known: the texts.
        model: whose weights are looked at, as this process holds them.
    """

    def __init__(self, label: str, known: Known, model: nn.Module) -> None:
        self._placed: Placed = place(label, model, known.importance, known.anchor)
        self._constant, self._texts = known.constant, len(known.texts)

    def predicted(self) -> float:
        """½ Δᵀ F Δ in bits per byte."""
        return (self._sums(0.0, [0.0] * len(self._placed))[0] + self._constant / 2) / self._texts

    def enter(self, limit: float, optimizer: Optimizer | None) -> bool:
        """Move the weights to the nearest ones inside; whether they were outside.

        What is near is said by the optimizer, which steps by −η P g: of Δ' with ½ Δ'ᵀ F Δ' ≤ limit the one that
        minimises (Δ' − Δ)ᵀ P⁻¹ (Δ' − Δ) is Δ' = Δ / (1 + μ P F), entry by entry. In this metric, and in no other, a
        point that step and projection leave where it is satisfies ∇L + λ F Δ = 0, the condition of a penalty. P is
        1 / (√v + ε) where the optimizer has a second moment v, else 1. μ ≥ 0 is the root of a secular equation, found
        by Newton's method, which converges from below (Moré and Sorensen, SIAM J. Sci. Stat. Comput. 4, 1983).

        Args:
            limit: bits per byte, above 0.
            optimizer: what has stepped.
        """
        room = self._texts * limit - self._constant / 2
        # Where domains disagree by more than the limit, as near to all of them as such a limit leaves.
        room = max(room, CLOSE * self._texts * limit)
        rates: list[Tensor | float] = [0.0] * len(self._placed)
        if self._sums(0.0, rates)[0] <= room:
            return False
        rates = [_preconditioner(optimizer, p) * importance for p, importance, _ in self._placed]
        pull = 0.0
        for _ in range(ROUNDS):
            lost, slope = self._sums(pull, rates)
            if lost <= room * (1 + CLOSE) or slope <= 0:
                break
            pull += 2 * lost * (math.sqrt(lost / room) - 1) / slope
        for (parameter, _, anchor), rate in zip(self._placed, rates, strict=True):
            own = local(parameter)
            own.copy_(anchor + (own - anchor).div_(1 + pull * rate))
        return True

    def _sums(self, pull: float, rates: Sequence[Tensor | float]) -> tuple[float, float]:
        """½ Σ F Δ'² with Δ' = Δ / (1 + μ P F), and how fast it falls with μ: Σ F Δ'² P F / (1 + μ P F)."""
        terms = []
        for (parameter, importance, anchor), rate in zip(self._placed, rates, strict=True):
            shrunk = 1 + pull * rate
            lost = (local(parameter) - anchor).div_(shrunk).square_().mul_(importance)
            slope = lost * (rate / shrunk)
            terms.append(torch.stack([lost.sum(dtype=torch.float64) / 2, slope.sum(dtype=torch.float64)]))
        parameters = [parameter for parameter, _, _ in self._placed]
        lost_, slope_ = sum_over_shards(torch.stack(terms), parameters).sum(0).tolist()
        return lost_, slope_


def _preconditioner(optimizer: Optimizer | None, parameter: nn.Parameter) -> Tensor:
    """P, as this process holds the parameter."""
    state = optimizer.state.get(parameter, {}) if optimizer is not None else {}
    second = state.get("exp_avg_sq")
    own = local(parameter)
    if not isinstance(second, Tensor) or second.shape != parameter.shape:
        return torch.ones((), device=own.device)
    return local(second).float().sqrt().add_(1e-8).reciprocal_()


@dataclass(frozen=True)
class Drift:
    """Bits per byte that are lost.

    Attributes:
        value: measured; below 0 the text is read better than before.
        error: standard error of it, of a sample of rows.
    """

    value: float
    error: float

    @property
    def interval(self) -> tuple[float, float]:
        """95 %."""
        return self.value - LEVEL * self.error, self.value + LEVEL * self.error


@dataclass
class DriftProbe:
    """A few held-out rows of a text, and how well they were read when it was known.

    Attributes:
        rows: of the text; nothing else of it is kept.
        width: UTF-8 bytes that a label stands for.
        nats: of each row when the text was known, float64 [n]; None before.
    """

    rows: list[Block]
    width: float
    nats: Tensor | None = None

    @classmethod
    def of(cls, rows: list[Block], stage: Stage) -> DriftProbe:
        """These rows."""
        return cls(rows, bytes_per_label(rows, stage))

    def learn(self, stage: Stage) -> None:
        """Remember how well the rows are read now."""
        self.nats = self._losses(stage)[0]

    def first(self, count: int) -> DriftProbe:
        """The first so many of the rows."""
        return DriftProbe(self.rows[:count], self.width, None if self.nats is None else self.nats[:count])

    def drift(self, stage: Stage) -> Drift:
        """How much worse the rows are read now; of a single row nothing says how sure that is: as much as it is."""
        assert self.nats is not None
        now, labels = self._losses(stage)
        lost = now - self.nats
        mean = float(lost.sum() / labels.sum())
        apart, rows = lost - mean * labels, len(lost)
        error = float(apart.square().sum() * rows / max(rows - 1, 1)) ** 0.5 / float(labels.sum())
        bits = math.log(2) * self.width
        return Drift(mean / bits, (error if rows > 1 else abs(mean)) / bits)

    def _losses(self, stage: Stage) -> tuple[Tensor, Tensor]:
        """Nats and labels of each row, float64 [n]; the same on every process."""
        objective, size = stage.objective.reseeded(MASKS), len(self.rows)
        source = PackedBlocks.from_blocks(self.rows, 0, "probe")
        found = block_losses(stage.model, source, objective, batch_size=stage.batch_size)
        nats = torch.from_numpy(found.nats)
        if processes() > 1:  # processors that round otherwise would lead the processes' weights apart
            nats = everywhere(nats.to(next(stage.model.parameters()).device))[:size].cpu()
        return nats, torch.from_numpy(found.items).double()


def mean_drift(drifts: Sequence[Drift]) -> Drift:
    """Of several texts, each counting the same."""
    values, errors = ([getattr(each, key) for each in drifts] for key in ("value", "error"))
    return Drift(float(np.mean(values)), float(np.sqrt(np.square(errors).sum()) / len(drifts)))


def bytes_per_label(rows: Sequence[Block], stage: Stage) -> float:
    """UTF-8 bytes of text that a predicted token of these rows stands for; special tokens have none.

    A masked model predicts some of the tokens, so there it is the mean over all but special ones.
    """
    ids: list[int] = []
    special = set(stage.tokenizer.all_special_ids)
    for number, row in enumerate(rows):
        batch = stage.objective.collate([row], [number])
        if "plain_ids" in batch:
            ids += [each for each in batch["plain_ids"].flatten().tolist() if each not in special]
        else:
            ids += [each for each in batch["labels"].flatten().tolist() if each != IGNORE]
    text = str(stage.tokenizer.decode(ids, skip_special_tokens=True))
    return max(len(text.encode()), 1) / max(len(ids), 1)
