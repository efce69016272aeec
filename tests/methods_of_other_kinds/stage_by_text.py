"""Each text is read by the stage's checkpoint that it surprises least."""

from __future__ import annotations

from typing import Any, ClassVar

from everlearn.methods.base import Method, Needs, Reading, register
from everlearn.predictors import Checkpoint, Predictor, TextRouter
from everlearn.predictors.predictor import models_of


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
        device = next(models_of(predictor)[0].parameters()).device
        earlier = [reading.checkpoints[k].to(device) for k in range(1, len(reading.learnt))]
        members = (predictor, *(Checkpoint(model, reading.objective) for model in earlier))
        return TextRouter(members, reading.objective)
