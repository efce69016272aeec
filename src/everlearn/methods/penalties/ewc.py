"""EWC: a penalty on changes of the weights that mattered to earlier domains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from everlearn.data.blocks import BlockSource
from everlearn.errors import MethodError
from everlearn.importance import TrainingFisher, gradient_moment, labels_of_the_model
from everlearn.methods.base import FORWARD, Cost, Mask, MethodConfig, Needs, Stage, Variant, register
from everlearn.methods.penalties.penalty import MeasuredPenalty
from everlearn.methods.state import Fact, Tensors
from everlearn.model.sharding import of_shard
from everlearn.model.training_mode import evaluating, training

_RESCALED = "https://aclanthology.org/2022.coling-1.403/"


@register
class EWC(MeasuredPenalty):
    """Elastic weight consolidation (arXiv 1612.00796, eq. 3), in its online form (arXiv 1805.06370).

    L = L_t + λ/2 · Σ_i F_i (θ_i − θ*_i)², with θ* the weights after the last domain and F the diagonal Fisher
    information of the earlier domains. Anchor, norm and scale of F are options, and published choices of them have
    names of their own.
    """

    name = "ewc"
    title = "EWC"
    summary = "penalises moving weights that matter"
    paper = "https://arxiv.org/abs/1612.00796"
    needs = Needs(importance_pass=True, memory="statistics")
    identity: ClassVar[dict[str, Any] | None] = {"strength": 0}
    importance_samples = True
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant(
            name="ewc_released",
            title="EWC (released)",
            description="As in the DAS authors' code: Fisher information from squared gradients of batch means, with "
            "dropout and the penalty in the loss, as a running mean over domains.",
            options={
                "samples": 10_000,
                "gradients": "batch",
                "dropout": True,
                "include_penalty": True,
                "accumulate": "mean",
            },
            paper="https://arxiv.org/abs/2302.03241",
        ),
        Variant(
            name="ewc_separate",
            title="EWC (separate)",
            description="A penalty for each domain around the weights at its end, as in the first paper; stored as "
            "their exact sum.",
            options={"anchor": "separate"},
        ),
        Variant(
            name="ewc_normalised",
            title="EWCn",
            description="Fisher information of each tensor divided by its largest value, so that one strength fits all "
            "models.",
            options={"normalise": "max", "strength": 1.0},
            paper="https://arxiv.org/abs/1911.00202",
        ),
        Variant(
            name="rewc",
            title="REWC",
            description="The root of EWC's sum: λ · √(Σ F Δ² + 1e-8). Its gradient does not vanish near the anchor.",
            options={"norm": "root", "strength": 100.0},
            paper=_RESCALED,
        ),
        Variant(
            name="aewc",
            title="AEWC",
            description="Mean absolute gradients in place of squared ones, distances in place of their squares: "
            "λ · Σ |g| |Δ|.",
            options={"importance": "absolute", "norm": "absolute", "strength": 1.0},
            paper=_RESCALED,
        ),
    )

    class Config(MeasuredPenalty.Config):
        """How Fisher information is measured, and how strongly it holds the weights."""

        strength: float = Field(5000.0, ge=0, allow_inf_nan=False)
        """λ; 0 is plain training. The right size depends on the scale of F: tune it by factors of ten."""
        samples: int = Field(1000, ge=1)
        """Blocks for measuring the Fisher information of a domain."""
        importance: Literal["fisher", "absolute"] = "fisher"
        """F: the mean over samples of squared gradients, or of their absolute values."""
        labels: Literal["data", "model"] = "data"
        """The labels of the data (the empirical Fisher information, as in all released code), or one sample from the
        model for each position (the true one, which takes another forward pass)."""
        gradients: Literal["sample", "batch", "steps"] = "sample"
        """What is squared: the gradient of each sample, as the Fisher information is defined; the gradient of a batch's
        mean loss, times the rows of the batch (the DAS authors' code: Σ_b |b| (∇L_b)² over the number of batches b);
        or, without a separate pass, the gradients of the last training steps with `samples` rows in total, without this
        method's penalty, an approximation (see :class:`~everlearn.importance.TrainingFisher`). The base model, for
        which there are no steps, is measured by sample."""
        dropout: bool = False
        """Measure with dropout."""
        include_penalty: bool = False
        """Include this method's penalty in the measured loss; from the second domain on this adds λ F (θ − θ*)."""

    _squares = Tensors("squares/", at="_gathered.squares")
    _steps = Fact("steps", int, of=PositiveInt, at="_gathered.steps", beside="_squares")
    """Sums of squared gradients, while a domain is learnt."""

    _importance = Tensors("fisher/", like="_anchor")

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        passes = not self.reads_gradients or self.measures_base
        measures, sampled = self.config.strength > 0 and passes, self.config.labels == "model"
        self.needs = replace(self.needs, importance_pass=measures, losses=measures, predictions=sampled)
        self._gathered = TrainingFisher()
        if self.reads_gradients:
            self._refuse_other_sources()

    def _refuse_other_sources(self) -> None:
        for key in ("importance", "labels", "dropout", "include_penalty"):
            if (value := getattr(self.config, key)) != type(self.config).model_fields[key].default:
                raise MethodError(
                    f"Method '{self.label}', option '{key}': {value!r} needs a pass over samples, and `gradients: "
                    "steps` has none. Set one of the two."
                )

    @property
    def degree(self) -> int:
        return 2 if self.config.importance == "fisher" else 1

    @property
    def reads_gradients(self) -> bool:
        return bool(self.config.gradients == "steps" and self.config.anchor != "base")

    def reads_step(self, stage: Stage) -> bool:
        """Return whether a step is one of the last."""
        last = -(-self.config.samples // stage.rows_per_step)
        return self.reads_gradients and stage.step >= stage.steps - last

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: Fisher information and anchor; the pass over the samples, or the sums over steps."""
        beside = super().cost(model)
        if not self.config.strength:
            return beside
        beside = self.with_passes(beside, self.config.samples, 1 + FORWARD * (self.config.labels == "model"))
        copy = beside.memory_bytes // 2
        if self.config.include_penalty:  # its gradients
            beside = replace(beside, measuring_bytes=beside.measuring_bytes + copy)
        if self.reads_gradients:  # no per-sample gradients, and the sums exist already
            measuring = beside.measuring_bytes - copy
            return replace(beside, memory_bytes=3 * copy, measuring_bytes=measuring, passes_per_domain=0)
        return beside

    def mask(self, stage: Stage) -> Mask | None:
        """Read the gradients of the last steps before they are clipped; return no mask."""
        if self.config.strength and self.reads_step(stage):
            weights = self.held(stage)
            gradients = self.task_gradients(weights).items()
            shards = {name: of_shard(value, weights[name].parameter) for name, value in gradients}
            self._gathered.add(shards, stage.rows_per_step)
        return None

    def importance_of(self, stage: Stage, source: BlockSource | None) -> dict[str, Tensor]:
        """Return F: of the training steps if their gradients were summed, or else measured on `samples` blocks."""
        if self._gathered.steps:
            fisher, self._gathered = self._gathered.result(), TrainingFisher()
            return fisher
        held = self.held(stage)
        own = self._slopes(self._place(stage.model)) if self.config.include_penalty else {}
        batches = stage.batches(self.config.samples, source)
        if self.config.labels == "model":
            batches = labels_of_the_model(stage.model, batches, stage.objective, stage.seed, self.name, stage.domain)
        squared = self.config.importance == "fisher"
        with training(stage.model) if self.config.dropout else evaluating(stage.model):
            return gradient_moment(
                stage.model,
                batches,
                stage.objective.per_sample_loss,
                names=list(held),
                power=2 if squared else 1,
                batch_means=self.config.gradients == "batch",
                constant={name: own[number] for name, w in held.items() if (number := id(w.parameter)) in own},
                called="Fisher information" if squared else "Importance",
            )
