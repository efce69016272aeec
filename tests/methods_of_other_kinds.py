"""Methods that need the rest of the interface, as a user writes them: gradient surgery, another start, routers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.data.blocks import Block
from everlearn.data.reservoir import Reservoir
from everlearn.methods.base import REGISTRY, Cost, Memory, Method, MethodConfig, Needs, Reading, Stage, register
from everlearn.methods.gradients import Gradients
from everlearn.predictors import Checkpoint, Ensemble, Predictor, TextRouter
from everlearn.seeding import seed_for

KNOWN = set(REGISTRY)


@register
class AGEM(Method):
    """Averaged gradient episodic memory (arXiv 1812.00420, eq. 11): g ← g − (g·r / r·r) r where g·r < 0.

    r is the gradient of the loss on rows drawn from the memory of all earlier domains.
    """

    name = "agem"
    title = "A-GEM"
    paper = "https://arxiv.org/abs/1812.00420"
    needs = Needs(old_data=True)

    class Config(MethodConfig):
        """Options of A-GEM."""

        capacity: int = Field(512, ge=1)
        """Rows kept of all earlier domains together."""
        rows: int = Field(6, ge=1)
        """Rows that r is measured on at each step."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._kept: Reservoir | None = None

    def cost(self, model: nn.Module) -> Cost:
        """The memory (rows of 512 tokens), and in each step r and the projected gradient."""
        rows, trained = 4096 * self.config.capacity, sum(p.numel() for p in model.parameters() if p.requires_grad)
        return Cost(memory_bytes=rows + 8 * trained, disk_bytes=rows, passes_per_step=1.0)

    def references(self, stage: Stage) -> Mapping[str, Sequence[Block]]:
        """Rows of the memory, others at each step."""
        if self._kept is None:
            return {}
        places = (seed_for(stage.seed, "agem", stage.index, stage.step, row) for row in range(self.config.rows))
        return {"memory": [self._kept.blocks[place % len(self._kept)] for place in places]}

    def gradients(self, stage: Stage, own: Gradients, references: Mapping[str, Gradients]) -> Gradients:
        """The projection."""
        if "memory" not in references:
            return own
        old = references["memory"]
        return own - old * (own.dot(old).clamp(max=0) / old.dot(old).clamp(min=1e-30))

    def end_domain(self, stage: Stage) -> None:
        """Let the domain's rows go by the memory."""
        self._kept = self._kept or Reservoir(self.config.capacity, stage.seed)
        blocks = stage.source.fresh(seed_for(stage.seed, "agem", stage.index))
        self._kept.extend(islice(blocks, stage.source.size or stage.steps * stage.rows_per_step), stage.domain)

    def memory(self) -> Memory:
        """The rows."""
        return Memory(*self._kept.to_memory()) if self._kept is not None else Memory()

    def load_memory(self, memory: Memory) -> None:
        """Take them back."""
        self._kept = Reservoir.from_memory(memory.tensors, memory.facts)


@register
class TrimmedStart(Method):
    """Selective initialisation: of each parameter the entries that are nearest to the base model are reset to it.

    It is the trimming of TIES (arXiv 2306.01708, section 4.2, step 1), done to what the stream has learnt so far.
    """

    name = "trimmed_start"
    title = "Trimmed start"
    paper = "https://arxiv.org/abs/2306.01708"
    needs = Needs(peft=False)
    identity: ClassVar[dict[str, Any] | None] = {"share": 0}

    class Config(MethodConfig):
        """Options of the start."""

        share: float = Field(0.5, ge=0, lt=1)
        """Share of the entries of each parameter that is reset; 0 is plain training."""

    def starting_weights(self, stage: Stage) -> Mapping[str, Tensor]:
        """The last model, trimmed."""
        if stage.first or not self.config.share:
            return {}
        found = {}
        base = dict(stage.checkpoints[0].named_parameters())
        for name, parameter in stage.model.named_parameters():
            now = parameter.detach().cpu()
            near = (now - base[name]).abs().flatten().argsort(stable=True)[: int(self.config.share * now.numel())]
            reset = torch.zeros(now.numel(), dtype=torch.bool).scatter_(0, near, True).view(now.shape)
            found[name] = torch.where(reset, base[name].detach(), now)
        return found


@register
class StageEnsemble(Method):
    """Trains plainly; a text is read by the checkpoints of all stages so far, p(y|x) = 1/T Σ_k p_k(y|x) (deep
    ensembles, arXiv 1612.01474, section 2.4, whose members here are what the stream leaves behind)."""

    name = "stage_ensemble"
    title = "Ensemble of stages"
    paper = "https://arxiv.org/abs/1612.01474"
    needs = Needs(earlier_models=True)
    identity: ClassVar[dict[str, Any] | None] = {}

    class Config(MethodConfig):
        """Options of the ensemble."""

        mix: Literal["mean", "geometric", "confident"] = "mean"
        """How the members' distributions become one."""

    config: Config

    def cost(self, model: nn.Module) -> Cost:
        """Nothing in training: the members are read from the run folder at test."""
        return Cost()

    def test_predictor(self, predictor: Predictor, reading: Reading) -> Predictor:
        """The earlier stages' models beside the one that is tested; the base model is none of them."""
        earlier = [reading.checkpoints[k] for k in range(1, len(reading.learnt))]
        return Ensemble((*(Checkpoint(model, reading.objective) for model in earlier), predictor), self.config.mix)


@register
class StageByText(Method):
    """Trains plainly; a text is read by the checkpoint of smallest perplexity on it, argmin_k exp(mean loss of stage k)
    (the choice of AdapterCL, arXiv 2012.15504, eq. 6, among whole models)."""

    name = "stage_by_text"
    title = "Stage by text"
    paper = "https://arxiv.org/abs/2012.15504"
    needs = Needs(earlier_models=True)
    identity: ClassVar[dict[str, Any] | None] = {}

    def test_predictor(self, predictor: Predictor, reading: Reading) -> Predictor:
        """The earlier stages' models beside the one that is tested."""
        earlier = [reading.checkpoints[k] for k in range(1, len(reading.learnt))]
        members = (predictor, *(Checkpoint(model, reading.objective) for model in earlier))
        return TextRouter(members, reading.objective)


OTHERS: dict[str, type[Method]] = {name: REGISTRY.pop(name) for name in sorted(set(REGISTRY) - KNOWN)}
"""The methods by name; recipes know them inside :func:`registered` alone."""


@contextlib.contextmanager
def registered() -> Iterator[None]:
    """Inside, recipes know them."""
    REGISTRY.update(OTHERS)
    try:
        yield
    finally:
        for name in OTHERS:
            del REGISTRY[name]
