"""Selective initialisation: start a domain from the earlier model with the lowest loss on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.base import FORWARD, Cost, Method, MethodConfig, Needs, Setting, Stage, register


@register
class SelectiveInit(Method):
    """Selective initialisation from past checkpoints (arXiv 2307.05741, the idea of its section 4).

    θ_t begins as θ_{j*}, j* = argmin_{0 ≤ j < t} L(θ_j; a sample of D_t), with θ_0 the base model; the latest if tied.

    The loss is that of the objective, in nats per label, without dropout; masked text has the same masks for all
    candidates. The paper predicts from several such features which checkpoint transfers best; the loss alone is the
    simplest of them, and does not show how fast a model would learn. The stream becomes a tree: later models do not
    contain what was learnt on other branches, so it counts as forgotten. The selected model and the loss of every
    candidate are recorded in the log and in the results.
    """

    name = "selective_init"
    title = "Selective initialisation"
    summary = "starts each domain from the earlier model with the lowest loss on it"
    paper = "https://arxiv.org/abs/2307.05741"
    needs = Needs(importance_pass=True, earlier_models=True, base_model=True)
    identity: ClassVar[dict[str, Any] | None] = {"samples": 0}

    class Config(MethodConfig):
        samples: int = Field(64, ge=0)
        """Rows of the new domain on which each candidate is evaluated; 0 is plain training, from the last model."""

    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        active = self.config.samples > 0
        self.needs = replace(type(self).needs, importance_pass=active, earlier_models=active, base_model=active)
        self.goes_back = active
        self.idle = frozenset() if active else frozenset({"starting_weights"})

    def check(self, setting: Setting) -> None:
        """Require that all models of the stream have the same parameters."""
        super().check(setting)
        for other in setting.methods:
            if self.config.samples and (other.needs.extra_parameters or other.grows):
                raise MethodError(
                    f"Method '{self.label}' goes back to earlier models, which lack the parameters that method "
                    f"'{other.label}' adds. Remove one of them from `method`."
                )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: from the second domain on, a forward pass over the sample for each model so far.

        The base model is a candidate too. One model at a time is in memory, before training.
        """
        rows = math.ceil(FORWARD * self.config.samples)
        # The first domain has only the base model and evaluates no candidate.
        return Cost(passes_per_domain=rows, passes_per_earlier=rows, samples=self.config.samples, at_most=True)

    def starting_weights(self, stage: Stage) -> Mapping[str, Tensor]:
        if not self.config.samples or len(stage.checkpoints) < 2:
            return {}
        last = len(stage.checkpoints) - 1
        device = next(stage.model.parameters()).device
        models = (stage.checkpoints[number].to(device) if number < last else stage.model for number in range(last + 1))
        losses = [stage.objective.mean_loss(model, stage.batches(self.config.samples)) for model in models]
        best = max(range(last + 1), key=lambda number: (-losses[number], number))
        names = ["the base model", *(f"the model after '{name}'" for name in stage.earlier)]
        compared = ", ".join(f"{name} {loss:.3f}" for name, loss in zip(names, losses, strict=True))
        stage.notes.append(f"'{stage.domain}' begins with {names[best]} (nats per label on a sample: {compared}).")
        if best == last:
            return {}
        own = dict(stage.model.named_parameters())
        return {name: weight for name, weight in stage.checkpoints[best].named_parameters() if name in own}
