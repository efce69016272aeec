"""A-GEM: gradients that do not raise the loss on remembered text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from pydantic import Field
from torch import nn

from everlearn.data.blocks import Block
from everlearn.data.reservoir import Reservoir
from everlearn.methods.base import Cost, Memory, Method, MethodConfig, Needs, Stage, register
from everlearn.methods.gradients import Gradients
from everlearn.seeding import seed_for


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
