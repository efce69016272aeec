"""Mixout: randomly replace weights by those of an earlier model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from everlearn.methods.base import Cost, Method, MethodConfig, Needs, Setting, Stage, Transform, Variant, register
from everlearn.methods.engine.anchor import Anchored, anchor_weights
from everlearn.methods.engine.attachment import refuse_frozen_model
from everlearn.model.sharding import divided_like, full_tensor
from everlearn.model.training_mode import without_dropout
from everlearn.ranges import Between, ranges


@register
class Mixout(Method):
    """Mixout (arXiv 1909.11299, eq. 5): dropout of the difference from an earlier model.

    The pass reads w̃ = (M ⊙ w + (1 − M) ⊙ u − p u) / (1 − p), M ~ Bernoulli(1 − p), that is u + M/(1 − p) ⊙ (w − u),
    with E[w̃] = w and the gradient M/(1 − p). The weights of linear layers are mixed; biases, norms and embeddings,
    including tied heads, are not. All micro-batches and processes of a step use the same sample.
    """

    name = "mixout"
    title = "Mixout"
    summary = "randomly replaces weights by the old ones"
    paper = "https://arxiv.org/abs/1909.11299"
    needs = Needs(peft=False)
    reads_shards = True
    identity: ClassVar[dict[str, Any] | None] = {"probability": 0}
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant(
            name="mixconnect",
            title="Mixconnect",
            description="Every entry of a matrix is mixed independently, as in DropConnect.",
            options={"mask": "entries"},
        ),
        Variant(
            name="mixout_released",
            title="Mixout (released)",
            description="As in the authors' code: p = 0.9, and a gradient without the factor 1/(1 − p).",
            options={"probability": 0.9, "gradient": "unscaled"},
        ),
    )

    class Config(Anchored):
        probability: float = Field(0.7, ge=0, lt=1)
        """p, the share that is read from the anchor; the paper tries 0.7, 0.8 and 0.9. 0 is plain training."""
        mask: Literal["inputs", "entries"] = "inputs"
        """What is sampled: an input unit of a layer, with all its outgoing weights (the paper's mixout), or each entry
        (what the authors call mixconnect)."""
        dropout: bool = False
        """Keep the model's own dropout too; in the paper mixout replaces it."""
        gradient: Literal["exact", "unscaled"] = "exact"
        """M/(1 − p), or only M, as in the authors' backward pass: at p = 0.9 ten times too small, which has little
        effect with Adam, but changes clipping."""

    search = ranges(probability=Between(0.3, 0.95))
    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        active = self.config.probability > 0
        self.needs = replace(type(self).needs, base_model=active and self.config.anchor == "base")
        self._anchors: dict[str, Tensor] = {}
        self._restore_dropout: Callable[[], None] | None = None

    def check(self, setting: Setting) -> None:
        super().check(setting)
        refuse_frozen_model(self, setting)

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: u, of which FSDP2 leaves a shard, and the mixed weights of a pass, and M of each entry."""
        if not self.config.probability:
            return Cost()
        linear = sum(weight.numel() * weight.element_size() for _, weight, _ in linear_weights(model))
        of_a_pass = linear * (2 if self.config.mask == "entries" else 1)
        return Cost(memory_bytes=linear + of_a_pass, whole_bytes=of_a_pass)

    def begin_domain(self, stage: Stage) -> None:
        """Store u; a resumed domain begins with the same weights."""
        if self.config.probability:
            mixed = {name for name, _, _ in linear_weights(stage.model)}
            weights = anchor_weights(stage, self.config.anchor)
            self._anchors = {name: value for name, value in weights.items() if name in mixed}

    def begin_training(self, stage: Stage) -> None:
        """Divide u as the parameters are divided now, and disable dropout, which Mixout replaces."""
        parameters = dict(stage.model.named_parameters())
        self._anchors = {name: divided_like(value, parameters[name]) for name, value in self._anchors.items()}
        if self.config.probability and not self.config.dropout:
            self._restore_dropout = without_dropout(stage.model)

    def transforms(self, stage: Stage) -> Mapping[str, Transform]:
        inputs = {name: dim for name, _, dim in linear_weights(stage.model)}
        return {name: self._mixing(anchor, inputs[name]) for name, anchor in self._anchors.items() if name in inputs}

    def detach(self, stage: Stage) -> None:
        """Restore the dropout of the model, after the measurements of all methods."""
        if self._restore_dropout is not None:
            self._restore_dropout()
        self._restore_dropout, self._anchors = None, {}

    def _mixing(self, anchor: Tensor, inputs: int) -> Transform:
        keep = 1 - self.config.probability

        def mix(weight: Tensor) -> Tensor:
            shape = list(weight.shape)
            if self.config.mask == "inputs":
                shape[1 - inputs] = 1
            kept = torch.empty(shape, dtype=weight.dtype, device=weight.device).bernoulli_(keep)
            read = weight
            if self.config.gradient == "unscaled" and weight.requires_grad:
                read = weight.view_as(weight)
                read.register_hook(lambda gradient: gradient * keep)
            start = full_tensor(anchor)  # like the weight, which FSDP2 has gathered for this pass
            return start + (read - start) * (kept / keep)

        return mix


def linear_weights(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, int]]:
    """Yield name, matrix and input dimension of the trained linear layers that share no weight with an embedding."""
    embeddings = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    dims: dict[int, int] = {}
    for module in model.modules():
        if isinstance(module, (nn.Linear, Conv1D)):
            dims[id(module.weight)] = 0 if isinstance(module, Conv1D) else 1
    for name, parameter in model.named_parameters():
        if id(parameter) in dims and id(parameter) not in embeddings and parameter.requires_grad:
            yield name, parameter, dims[id(parameter)]
