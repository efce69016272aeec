"""All stages' checkpoints answer together."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import nn

from everlearn.methods.base import Cost, Method, MethodConfig, Needs, Reading, register
from everlearn.predictors import Checkpoint, Ensemble, Predictor
from everlearn.predictors.predictor import models_of


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
        device = next(models_of(predictor)[0].parameters()).device
        earlier = [reading.checkpoints[k].to(device) for k in range(1, len(reading.learnt))]
        return Ensemble((*(Checkpoint(model, reading.objective) for model in earlier), predictor), self.config.mix)
