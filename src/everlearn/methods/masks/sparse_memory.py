"""Sparse memory fine-tuning: train only the neurons that a batch accesses much more than general text does."""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.importance.accesses import MemoryLayer, SlotAccesses, memory_layers, positions_in, rows_with_access
from everlearn.methods.base import FORWARD, Batch, Cost, Mask, Method, MethodConfig, Needs, Setting, Stage, register
from everlearn.methods.engine.attachment import refuse_frozen_model, refuse_without_units
from everlearn.methods.state import Fact, OneTensor
from everlearn.model.anatomy import Owned, anatomy
from everlearn.ranges import OneOf, ranges


@register
class SparseMemory(Method):
    """Sparse memory fine-tuning (arXiv 2510.15103), with neurons of feed-forward layers as memory slots.

    In each step only the t slots with the highest score are trained; all other parameters are frozen:

    score(i) = c(i) / Σ_j c(j) · log((|B| + 1) / (Σ_{b ∈ B} 1[c_b(i) > 0] + 1))

    c(i) counts the tokens of the step's batch that access slot i, and c_b(i) those of background text b.

    As in the paper, t is one number for all slots, the background is measured once, and only the values of the slots
    are trained. The paper's models have memory layers, in which a token reads the k slots with the most similar keys.
    Here the rule is applied to any transformer: a slot is a neuron of a feed-forward layer, its key a row of the
    widening projection and its value a column of the output projection (arXiv 2012.14913); a token accesses the k
    neurons of each layer with the largest activation |m|. Also unlike the paper, a background text b is a row and not
    a batch, so that scores do not depend on the batch size; and slots that the batch does not access are not trained,
    even if it accesses fewer than t.
    """

    name = "sparse_memory"
    title = "Sparse memory fine-tuning"
    summary = "trains only the neurons that a batch accesses more than general text does"
    paper = "https://arxiv.org/abs/2510.15103"
    needs = Needs(importance_pass=True, peft=False, predictions=True, anatomy=True, memory="statistics")

    class Config(MethodConfig):
        slots: int = Field(500, ge=1)
        """t, the number of neurons that are trained in a step, over all layers."""
        accessed: int = Field(8, ge=1)
        """k, the number of neurons of each layer that a token accesses; where it is large, every text accesses most of
        them, and scores say little."""
        background: int = Field(1000, ge=1)
        """|B|, the number of rows of the general corpus with which a batch is compared."""
        keys: bool = False
        """Train the keys of the slots too: rows of the widening projections, with their biases. The paper trains
        values only."""

    search = ranges(slots=OneOf((100, 500, 2000, 10000)), accessed=OneOf((4, 8, 16, 32)))
    config: Config
    _background = OneTensor("background", dims=1)
    _rows = Fact("rows", int, beside="_background")
    """For each slot the number of background rows in which any token accesses it, and the number of these rows."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._layers: list[MemoryLayer] = []
        self._accesses: SlotAccesses | None = None
        self._rarity = torch.empty(0)
        self._frozen: dict[str, Tensor] = {}

    def check(self, setting: Setting) -> None:
        super().check(setting)
        refuse_without_units(self, setting, ("neuron",))
        refuse_frozen_model(self, setting)
        if not setting.has_general:
            raise MethodError(
                f"Method '{self.label}' compares what a batch accesses with what general text does, and there is none. "
                "Name one (the recipe's own `general`)."
            )
        for other in setting.methods:
            if other.grows or other.needs.extra_parameters:
                raise MethodError(
                    f"Method '{self.label}' trains neurons of the model and nothing else, but method '{other.label}' "
                    "adds parameters. Remove one of them from `method`."
                )
        smallest = min(layer.slots for layer in memory_layers(setting.model, anatomy(setting.model)))
        if self.config.accessed >= smallest:
            raise MethodError(
                f"Method '{self.label}', option 'accessed': with {self.config.accessed} every token would access all "
                f"neurons of a layer that has {smallest}. Set it to {smallest - 1} or less; a few per cent are usual."
            )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: numbers per neuron, a copy of all trained parameters, and the passes over the background."""
        layers = list(memory_layers(model, anatomy(model)))
        slots = sum(layer.slots for layer in layers)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        factors = slots + sum(model.get_parameter(own.parameter).shape[own.dim] for own in self._keys(layers))
        held = sum(4 + parameter.numel() * parameter.element_size() for parameter in trained)
        return Cost(
            # Background, rarity, counts and choice; each factor is held here and beside its parameter.
            memory_bytes=held + 16 * slots + 8 * factors,
            measuring_bytes=4 * slots,
            disk_bytes=4 * slots,
            passes_once=math.ceil(self.config.background * FORWARD),
            samples=self.config.background,
        )

    def begin_domain(self, stage: Stage) -> None:
        """Measure the background, unless the memory has it."""
        self._close()
        self._layers = list(memory_layers(stage.model, stage.anatomy))
        if not self._rows:
            if stage.general is None:
                raise MethodError(f"Method '{self.label}' reads general text, and the stage has none.")
            batches = stage.batches(self.config.background, stage.general)
            self._background, self._rows = rows_with_access(
                stage.model, batches, stage.objective, self._layers, self.config.accessed
            )
        slots = sum(layer.slots for layer in self._layers)
        if len(self._background) != slots:
            raise MethodError(
                f"Method '{self.label}' has counted accesses of {len(self._background)} neurons (`background` in its "
                f"memory), and the model has {slots}. A memory belongs to the model that it was measured on."
            )
        device = next(stage.model.parameters()).device
        self._background = self._background.to(device)
        self._rarity = torch.log((self._rows + 1) / (self._background + 1))
        nothing = torch.zeros((), device=device)
        self._frozen = {name: nothing for name, value in stage.model.named_parameters() if value.requires_grad}

    def begin_training(self, stage: Stage) -> None:
        self._accesses = SlotAccesses(stage.model, self._layers, self.config.accessed)

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        """Set which tokens of the next pass are counted: text of the batch, not views of other methods."""
        if self._accesses is not None:
            self._accesses.rows = len(batch["labels"])
            self._accesses.positions = positions_in(batch, self._layers)
        return {}

    def mask(self, stage: Stage) -> Mask | None:
        """Return 1 for the slots that are trained in this step, 0 for everything else."""
        if self._accesses is None:
            return None
        counts = torch.cat(list(self._accesses.pop().values()))
        self._accesses.positions = {}
        chosen = most_specific(counts, self._rarity, self.config.slots)
        by_layer = chosen.split([layer.slots for layer in self._layers])
        factors = dict(self._frozen)
        for layer, units in zip(self._layers, by_layer, strict=True):
            factors |= {own.parameter: own.factors(units) for own in (layer.values, *self._keys([layer]))}
        return Mask(factors)

    def _keys(self, layers: list[MemoryLayer]) -> list[Owned]:
        return [own for layer in layers for own in layer.keys] if self.config.keys else []

    def detach(self, stage: Stage) -> None:
        self._close()

    def _close(self) -> None:
        if self._accesses is not None:
            self._accesses.close()
        self._accesses = None


def most_specific(counts: Tensor, rarity: Tensor, slots: int) -> Tensor:
    """Return 1 for the slots of a batch with the highest TF-IDF, 0 for the others, [slots] float32.

    Args:
        counts: c(i), the accesses of each slot.
        rarity: the logarithm in the score, for each slot.
        slots: t; of slots with equal scores the first are chosen, and none that the batch does not access.
    """
    scores = (counts / counts.sum() * rarity).masked_fill(counts == 0, -1)
    best = scores.argsort(descending=True, stable=True)[:slots]
    return torch.zeros_like(counts).index_fill_(0, best, 1.0) * (counts > 0)
