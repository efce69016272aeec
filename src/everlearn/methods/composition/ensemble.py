"""An ensemble of one model per domain, whose predictions are mixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from everlearn.errors import MethodError
from everlearn.methods.base import Method, MethodConfig, Needs, Reading, Setting, Stage, register
from everlearn.model.anatomy import kind_of
from everlearn.predictors.ensemble import Ensemble
from everlearn.predictors.predictor import Checkpoint, Predictor
from everlearn.predictors.weighted_ensemble import PerplexityEnsemble


@register
class DomainEnsemble(Method):
    """An ensemble of the models of all domains (deep ensembles, arXiv 1612.01474, section 2.4).

    p(y | x) = Σ_k w_k(x) p_k(y | x), with the checkpoints of the stream as members.

    A domain is trained plainly, from the base model (a model for each domain) or from the previous model. Members do
    not change later, so nothing is forgotten as long as the weights select the right member. They need no domain id,
    and depend on the input only, never on the prediction target:

    - ``by_perplexity``: softmax of −nats / temperature, where nats are the loss of a member on the tokens before the
      predicted one, on the prompt, or on the classified text; at temperature 0 only the member with the lowest
      perplexity is used;
    - ``by_confidence``: max p_k over its sum; ``by_entropy``: exp(−H(p_k)) over its sum; ``confident``: only the member
      with the largest max p_k is used;
    - ``mean``: 1/K.

    The members are the checkpoints of the stages, which the run keeps, so training costs nothing more. A test holds all
    of them and needs one pass each (two for masked text by perplexity); a single exported checkpoint is the model of
    its domain.
    """

    name = "ensemble"
    title = "Ensemble of domains"
    summary = "a model for each domain, whose predictions are mixed"
    paper = "https://arxiv.org/abs/1612.01474"
    kinds = ("ensembling",)
    needs = Needs(earlier_models=True)
    identity: ClassVar[dict[str, Any] | None] = {"start": "previous", "combine": "mean"}

    class Config(MethodConfig):
        start: Literal["base", "previous"] = "base"
        """The model that a domain starts from; `previous` is plain training."""
        combine: Literal["by_perplexity", "by_confidence", "by_entropy", "confident", "mean"] = "by_perplexity"
        """How the members are weighed. An encoder-decoder does not predict its prompts, so its members cannot be
        weighed by perplexity."""
        temperature: float = Field(0.0, ge=0, allow_inf_nan=False)
        """Temperature of the weights by perplexity, in nats per token."""

        def without_effect(self) -> Iterator[tuple[Sequence[str], str]]:
            if self.combine != "by_perplexity":
                yield ("temperature",), f"with `combine: {self.combine}`"

    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.goes_back = self.config.start == "base"
        self.needs = replace(type(self).needs, base_model=self.goes_back)
        self.idle = frozenset() if self.goes_back else frozenset({"starting_weights"})

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if self.config.combine == "by_perplexity" and kind_of(setting.model) == "encoder-decoder":
            raise MethodError(
                f"Method '{self.label}', option 'combine': '{type(setting.model).__name__}' does not predict its "
                "prompts, so their perplexity is unknown. Set `combine: by_confidence` or another."
            )
        for other in setting.methods:
            if other is not self and not other.tested_as_saved:
                raise MethodError(
                    f"Method '{self.label}' predicts with the checkpoints of earlier domains, but method "
                    f"'{other.label}' needs additional modules to read a text. Remove one of them from `method`."
                )
            if other is not self and other.grows:
                raise MethodError(
                    f"Method '{self.label}' starts from the base model's weights, which do not fit the larger model of "
                    f"method '{other.label}'. Remove one of them from `method`."
                )

    def starting_weights(self, stage: Stage) -> Mapping[str, Tensor]:
        if self.config.start == "previous" or stage.first:
            return {}
        known = dict(stage.model.named_parameters())
        return {name: weight for name, weight in stage.checkpoints[0].named_parameters() if name in known}

    def test_predictor(self, predictor: Predictor, reading: Reading) -> Predictor:
        """Return the ensemble of the earlier domains' models and the tested one; the base model is not a member."""
        earlier = [reading.checkpoints[k] for k in range(1, len(reading.learnt))]
        members = (*(Checkpoint(model, reading.objective) for model in earlier), predictor)
        if self.config.combine == "by_perplexity":
            return PerplexityEnsemble(members, reading.objective, self.config.temperature)
        return Ensemble(members, self.config.combine)
