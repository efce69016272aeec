"""SI: the importance of a weight is the loss reduction along its path in training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.data.blocks import BlockSource
from everlearn.methods.base import Cost, Mask, Stage, register
from everlearn.methods.penalties.penalty import Penalty
from everlearn.methods.state import Tensors
from everlearn.model.adapted import weights_of
from everlearn.model.sharding import divided_like, local, of_shard, shard_like


@register
class SI(Penalty):
    """Synaptic intelligence (arXiv 1703.04200, eq. 3 to 5): L = L_t + c · Σ_i Ω_i (θ_i − θ*_i)².

    While a domain is learnt ω_i ← ω_i − g_i · Δθ_i at every step, with g the gradient of the loss of the task, without
    this penalty, before clipping, and Δθ the update of the optimizer. At the end of the domain Ω_i ← Ω_i + max(0, ω_i /
    (Δ_i² + ξ)), with Δ_i the total change from its first to its last step. If another method then interpolates the
    weights (`wise_ft`, `budget`), Δ is still this change, and θ* are the interpolated weights.

    A negative ω (a weight that moved against its gradient, as happens by momentum and noise) would reward unbounded
    changes, so it counts as 0; the authors' code does that for the sum over domains. Losses of other methods in a list
    belong to the task. There is no extra pass, and the knowledge of the base model cannot be protected.
    """

    name = "si"
    title = "SI"
    summary = "penalises moving weights that lowered the loss"
    paper = "https://arxiv.org/abs/1703.04200"
    identity: ClassVar[dict[str, Any] | None] = {"strength": 0}
    halved = False

    class Config(Penalty.Config):
        """Strength of the penalty, and damping of the importance."""

        strength: float = Field(0.1, ge=0, allow_inf_nan=False)
        """c, without the ½ of the other penalties; 0 is plain training. The paper uses 0.1 for permuted MNIST."""
        anchor: Literal["online", "separate"] = "online"
        """The anchor: the weights after the last learnt domain, or those after each domain (as one quadratic,
        exactly)."""
        damping: float = Field(0.1, gt=0, allow_inf_nan=False)
        """ξ, which bounds the importance of weights that have hardly moved; 0.1 (the paper's) is far above the squared
        changes of a language model's weights in fine-tuning, so Ω is then about ω / ξ."""

    _path = Tensors("path/", like="_start")
    _start = Tensors("start/")
    """ω and the starting weights, while a domain is learnt."""

    def __init__(self, config: Any = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._step: dict[str, tuple[Tensor, Tensor]] = {}
        self._learnt: dict[str, Tensor] = {}

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: importance, anchor, path and start; within a step the gradient and the weights before it."""
        beside = super().cost(model)
        return replace(beside, memory_bytes=3 * beside.memory_bytes)

    def begin_training(self, stage: Stage) -> None:
        """Initialise ω, unless a resumed stage has it in its memory."""
        super().begin_training(stage)
        if self.config.strength and not self._start:
            for name, weight in self.held(stage).items():
                start = weight.value().detach().to(torch.float32, copy=True)
                self._start[name] = of_shard(start, weight.parameter)
                self._path[name] = torch.zeros_like(self._start[name])

    @property
    def reads_gradients(self) -> bool:
        return True

    def mask(self, stage: Stage) -> Mask | None:
        """Read the gradient of the task before it is clipped; return no mask."""
        weights = weights_of(stage.model)
        for name, task in self.task_gradients({name: weights[name] for name in self._path}).items():
            self._step[name] = (task, weights[name].value().detach().clone())
        return None

    def after_step(self, stage: Stage) -> None:
        """Update ω ← ω − g · Δθ."""
        weights = weights_of(stage.model)
        for name, (gradient, before) in self._step.items():
            path = self._path[name] = divided_like(self._path[name], weights[name].parameter)
            local(path).sub_(gradient.mul_(weights[name].value().detach() - before))
        self._step.clear()

    def end_training(self, stage: Stage) -> None:
        """Set Ω of the domain to max(0, ω / (Δ² + ξ)), before another method changes the final weights."""
        if self.config.strength:
            self._read_exact(stage)
        weights = weights_of(stage.model)
        for name, path in self._path.items():
            parameter = weights[name].parameter
            work, start = (shard_like(each, parameter, torch.float32) for each in (path, self._start[name]))
            change = weights[name].value().detach() - start
            self._learnt[name] = of_shard((work / (change.square() + self.config.damping)).clamp_(min=0), parameter)
        self._path, self._start = {}, {}

    def importance_of(self, stage: Stage, source: BlockSource | None) -> dict[str, Tensor]:
        learnt, self._learnt = self._learnt, {}
        return learnt
