"""Penalties on changes of the weights.

A penalty sums the changes of the weights since an anchor (earlier weights), each weighted by the importance of its
weight. Subclasses define how importance is measured. Which weights are the anchor, and which norm of the changes is
penalised, are options that all of them share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from accelerate.state import AcceleratorState, is_initialized
from pydantic import Field
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from everlearn.data.blocks import BlockSource
from everlearn.errors import MethodError
from everlearn.methods.base import Batch, Cost, Method, MethodConfig, Needs, Setting, Stage
from everlearn.methods.engine.layer_gradients import LayerGradients
from everlearn.methods.engine.processes import processes
from everlearn.methods.engine.protection import overrides
from everlearn.methods.penalties.norms import NORMS, Norm
from everlearn.methods.state import Fact, Tensors
from everlearn.model.adapted import Weight, use_exact, weights_of
from everlearn.model.objectives import Outputs
from everlearn.model.sharding import full_tensor, kept, local, shard_like, sum_over_shards, value_over_shards
from everlearn.model.vocabulary_head import output_head
from everlearn.ranges import Around, Between, ranges

MEASURING, JOINING = 8, 32
"""Bytes per entry of the current tensor: to square its gradient and check that it is finite; and to join two penalties
(:func:`joined`)."""
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-6, torch.bfloat16: 5e-4, torch.float16: 6e-5}
"""Gradients below this share of the largest one are rounding errors. In 16 bits true gradients can be little larger: in
measurements of small models in bfloat16, errors were up to 2.7e-4 and true gradients from 1.2e-3."""
Placed = list[tuple[Weight, Tensor, Tensor]]
"""Weights with their importance and anchor, as local tensors of this process."""


class Penalty(Method):
    """Base class of penalties L = L_t + λ · N(Ω, θ − θ*), with independent importance Ω, anchor θ* and norm N.

    A subclass defines its importance (:meth:`importance_of`); anchors and norms are options. One Ω and one θ* are
    stored, whatever the length of the stream:

    * Anchor `online`: Ω ← γ Ω + Ω_t, θ* the weights after the last domain (online EWC, arXiv 1805.06370). The first
      domain is not constrained, unlike with the anchor `last` of other methods.
    * `separate`: Σ_k ½ Σ Ω_k (θ − θ_k)², a penalty for each domain (EWC, arXiv 1612.00796). It is stored as ½ Σ (Σ_k
      Ω_k)(θ − θ̄)² + c with θ̄ = Σ_k Ω_k θ_k / Σ_k Ω_k and the number c = ½ Σ_k Σ Ω_k (θ_k − θ̄)², which is exactly the
      same function of θ. That holds for the quadratic norm only; others are refused. With `follow` β each θ_k moves by
      β (θ_t − θ̄) when domain t is added: 0 is EWC, 1 is online EWC.
    * `base`: the weights before the first domain, for the whole stream (L2-SP, arXiv 1802.01483).

    θ are the *effective* weights, with LoRA W + s B A, under the names of the plain model
    (:mod:`everlearn.model.adapted`); W is exact, also where a run trains A and B on a quantised copy of it. So Ω and θ*
    remain valid when an adapter is merged and the next one is trained; and A and B may change as long as W + s B A does
    not.

    Attributes:
        halved: whether λ of the paper multiplies ½ Σ Ω Δ², not Σ Ω Δ².
    """

    needs = Needs(memory="statistics")
    reads_shards = True
    halved: ClassVar[bool] = True

    class Config(MethodConfig):
        """Importance, anchor and norm: the options that all penalties share."""

        strength: float = Field(1.0, ge=0, allow_inf_nan=False)
        """λ; 0 is plain training."""
        anchor: Literal["online", "separate", "base"] = "online"
        """The anchor: the weights after the last learnt domain, those after each domain (as one quadratic, exactly), or
        those before the first domain, for the whole stream."""
        follow: float = Field(0.0, ge=0, le=1)
        """β of separate anchors: the share of the distance to the new weights by which earlier anchors move when a
        domain is added. 0 leaves them unchanged; 1 moves all to the last learnt domain's weights, as `online`."""
        norm: Literal["quadratic", "root", "absolute"] = "quadratic"
        """½ Σ Ω Δ²; √(Σ Ω Δ² + 1e-8); or Σ Ω |Δ|."""
        normalise: Literal["none", "mean", "max"] = "none"
        """Divide the importance for each domain by its mean over all weights (recorded in memory), so that λ means the
        same for every model, or that of each tensor by its largest value."""
        accumulate: Literal["sum", "mean"] = "sum"
        """Importance over several domains: their sum, or their mean (the DAS authors' EWC)."""
        decay: float = Field(1.0, ge=0, le=1)
        """γ, the factor of the earlier importance when a domain is added to the sum."""
        exclude: tuple[Literal["embeddings", "head", "vectors"], ...] = ()
        """Parameters without a penalty: embeddings, the vocabulary head (tied weights are both), `vectors`: biases and
        norms."""
        apply_to: Literal["loss", "update"] = "loss"
        """Add the penalty to the loss, or pull the weights after each optimizer step. In the loss, its gradient is
        clipped together with that of the task, so a large λ reduces the latter, and Adam's normalisation removes the
        scale of λ. The pull is a separate implicit step with learning rate η, Δ ← Δ / (1 + η λ Ω), which is stable for
        every λ; it is not logged."""

    search = ranges(strength=Around(30), follow=Between(0, 1))
    config: Any

    _importance = Tensors("importance/", like="_anchor")
    _anchor = Tensors("anchor/", beside="_importance")
    """By parameter name."""
    _measured = Fact("domains", list[str], beside="_importance")
    _constant = Fact("constant", float)
    _means = Fact("means", list[float], rows="_measured")

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.norm: Norm = NORMS[self.config.norm]
        self.idle = frozenset() if self.config.apply_to == "update" else frozenset({"pull"})
        self._refuse_options()
        self._placed: Placed | None = None
        self._precomputed: Tensor | None = None
        self._gradients = LayerGradients()

    def _refuse_options(self) -> None:
        rules = (
            ("anchor", "separate", not self.norm.adds_up, "`norm: quadratic`, the only one whose sums have one anchor"),
            ("apply_to", "update", self.norm.pulled is None, "`norm: quadratic` or `norm: absolute`"),
            ("accumulate", "mean", self.config.decay < 1, "`decay: 1`: in a mean no domain decays"),
            ("follow", self.config.follow, self.config.follow and not self._separate, "`anchor: separate`"),
        )
        for key, value, broken, needed in rules:
            if getattr(self.config, key) == value and broken:
                raise MethodError(f"Method '{self.name}', option '{key}': '{value}' needs {needed}.")

    @property
    def _separate(self) -> bool:
        return bool(self.config.anchor == "separate")

    @property
    def degree(self) -> int:
        """1 if importance is proportional to gradients, 2 if to their squares."""
        return 1

    @property
    def factor(self) -> float:
        """2 for the quadratic norm if λ of the paper multiplies Σ Ω Δ², without the ½; otherwise 1."""
        return 1.0 if self.halved or self.config.norm != "quadratic" else 2.0

    def importance_of(self, stage: Stage, source: BlockSource | None) -> dict[str, Tensor]:
        """Return Ω at the current weights by name: new float32 tensors, in the shape of the parameter or scalar.

        Of a divided model (:attr:`reads_shards`) they may be divided like it.

        Args:
            stage: at the beginning or end of a domain.
            source: text to measure on; None for that of the domain.
        """
        raise NotImplementedError

    def held(self, stage: Stage) -> dict[str, Weight]:
        """Return the penalised weights by the names of the plain model."""
        free = _free(stage.model, self.config.exclude)
        return {name: weight for name, weight in trained_weights(stage).items() if id(weight.parameter) not in free}

    def check(self, setting: Setting) -> None:
        super().check(setting)
        refuse_additions(self, setting)
        if self.config.anchor != "base":
            refuse_other_starts(self, setting)
        if setting.has_peft and self.config.apply_to == "update":
            raise MethodError(
                f"Method '{self.label}', option 'apply_to': 'update' pulls single weights, which is not possible with "
                "adapters. Set `apply_to: loss`."
            )
        weights_of(setting.model)  # refuses unsupported adapters

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of importance and anchor, in float32."""
        if not self.config.strength:
            return Cost()
        numbers = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        # Under FSDP2 both are shards; what was read from a file is in the host's memory.
        return Cost(memory_bytes=8 * numbers, whole_bytes=0, exact_bytes=4 * numbers, disk_bytes=8 * numbers)

    # -- a domain ---------------------------------------------------------------------------------------------

    def begin_training(self, stage: Stage) -> None:
        """Place importance and anchor beside the parameters.

        Under FSDP2 every parameter is sharded at this moment, whereas the outermost ones stay gathered after a pass.

        Raises:
            MethodError: importance is computed from the gradients of training, and the loss is scaled (fp16), so that
                gradients may overflow.
        """
        if not self.config.strength:
            return
        if self.reads_gradients and is_initialized() and AcceleratorState().mixed_precision == "fp16":
            raise MethodError(
                f"Method '{self.label}' adds up gradients, which `train.fp16` multiplies by a varying scale. Set "
                "`train.bf16` instead, or neither."
            )
        self._read_exact(stage)
        held = self.held(stage)
        if self.reads_gradients:
            self._gradients.watch(held, lambda: self.reads_step(stage))
        if self._importance:
            self._placed = self._place(stage.model)
            self._note_stability(stage)

    def _read_exact(self, stage: Stage) -> None:
        """Read exact weights in place of rounded ones, else the penalty would pull the adapter to undo the rounding."""
        if stage.rounded is not None:
            number = stage.rounded
            use_exact(stage.model, lambda: stage.checkpoints[number])

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        """Compute the penalty before the forward pass.

        Its backward pass then runs last, when activations are freed, which saves a copy of the weights in memory. With
        several processes the penalty is computed after the pass, so that the reduction of gradients starts early.
        """
        placed = self._in_loss
        self._precomputed = self._penalty(placed) if placed and processes() == 1 else None
        return {}

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return λ · N(Ω, θ − θ*)."""
        precomputed, self._precomputed = self._precomputed, None
        if not (placed := self._in_loss):
            return {}
        return {"penalty": self._penalty(placed) if precomputed is None else precomputed}

    def pull(self, stage: Stage) -> None:
        """Pull the weights towards their anchors, with `apply_to: update`."""
        if not self._placed or self.config.apply_to == "loss" or self.norm.pulled is None or stage.optimizer is None:
            return
        rates = {id(p): group["lr"] for group in stage.optimizer.param_groups for p in group["params"]}
        with torch.no_grad():
            for weight, importance, anchor in self._placed:
                parameter = weight.parameter
                if id(parameter) not in rates:
                    raise MethodError(
                        f"Method '{self.label}', option 'apply_to': 'update' must pull the tensors that the optimizer "
                        "updates, but it updates its own (DeepSpeed ZeRO does). Train with DDP or FSDP2, or set "
                        "`apply_to: loss`."
                    )
                if parameter.grad is None:
                    continue
                pull = importance * (rates[id(parameter)] * self.config.strength * self.factor)
                own = local(parameter)
                own.copy_(anchor + self.norm.pulled(own - anchor, pull))

    def consolidate(self, stage: Stage, domain: str, source: BlockSource | None = None) -> None:
        """Add the importance at the current weights, and move the anchor.

        Both are in the host's memory afterwards, or beside the shards of a divided model and divided like it.
        """
        with stage.as_plain():
            new = self._normalised(self.importance_of(stage, source), stage.model)
        weights, seen = weights_of(stage.model), len(self._measured)
        mean = self.config.accumulate == "mean"
        fading = seen if mean else self.config.decay
        self._constant *= fading
        for name in list(new):
            # Tensors are moved and freed one by one, so that there are never two copies of all.
            old, old_anchor = self._importance.pop(name, None), self._anchor.pop(name, None)
            parameter = weights[name].parameter
            beside = partial(shard_like, parameter=parameter, dtype=torch.float32)
            value, anchor = beside(new.pop(name)), weights[name].value().detach().to(torch.float32, copy=True)
            if old is not None and old_anchor is not None:
                old = beside(old)
                if self._separate:
                    old_anchor = beside(old_anchor).lerp_(anchor, self.config.follow)
                    anchor, apart = joined(old_anchor, old * fading, anchor, value)
                    self._constant += float(sum_over_shards(torch.tensor([apart], device=anchor.device), [parameter]))
                value.add_(old, alpha=fading)
                if mean:
                    value.div_(seen + 1)
            self._importance[name], self._anchor[name] = kept(value, parameter), kept(anchor, parameter)
        if mean:
            self._constant /= seen + 1
        # Parameters that were frozen in this domain keep their importance.
        self._measured = [*self._measured, domain]

    def _normalised(self, new: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
        if self.config.normalise == "max":
            largest = maxima(new, self.degree, dict(model.named_parameters()))
            for name, value in new.items():
                value.div_(largest[name])
        if self.config.normalise == "mean":
            mean = float(sum(full_tensor(value.sum(dtype=torch.float64)) for value in new.values()))
            mean /= max(1, sum(value.numel() for value in new.values()))
            self._means = [*self._means, mean]
            for value in new.values() if mean > 0 else ():
                value.div_(mean)
        return new

    # -- the penalty ------------------------------------------------------------------------------------------

    @property
    def _in_loss(self) -> Placed | None:
        return self._placed if self.config.apply_to == "loss" else None

    def _penalty(self, placed: Placed) -> Tensor:
        terms = [self._term(*each) for each in placed]
        total = value_over_shards(torch.stack(terms), [weight.parameter for weight, _, _ in placed]).sum()
        return self.config.strength * self.factor * self.norm.of(total + self._constant if self._constant else total)

    def _slopes(self, placed: Placed) -> dict[int, Tensor]:
        """Return the gradients of the penalty, laid out like the parameters, by the ids of these."""
        if not placed:
            return {}
        parameters = [weight.parameter for weight, _, _ in placed]
        with torch.enable_grad():
            slopes = torch.autograd.grad(self._penalty(placed), parameters)
        return {id(parameter): slope for parameter, slope in zip(parameters, slopes, strict=True)}

    def _term(self, weight: Weight, importance: Tensor, anchor: Tensor) -> Tensor:
        def term() -> Tensor:
            value: Tensor = self.norm.terms.apply(weight.value(), importance, anchor)
            return value

        # W + s B A is recomputed in the backward pass, so that no second copy of the weights is held.
        return checkpoint(term, use_reentrant=False, preserve_rng_state=False) if weight.adapted else term()

    def _place(self, model: nn.Module) -> Placed:
        return place(self.label, model, self._importance, self._anchor)

    def _note_stability(self, stage: Stage) -> None:
        """Add a note if λ Ω ≥ 2/η, where gradient descent diverges."""
        sgd = isinstance(stage.optimizer, torch.optim.SGD)
        if not (sgd and self._placed and self.config.norm == "quadratic" and self.config.apply_to == "loss"):
            return
        rate = max(group.get("initial_lr", group["lr"]) for group in stage.optimizer.param_groups)  # type: ignore[union-attr]
        # From full tensors: a shard may be empty, and all processes must agree.
        largest = max(float(full_tensor(importance).max()) for importance in self._importance.values())
        step = rate * self.config.strength * self.factor * largest
        if step >= 2:
            stage.notes.append(
                f"Method '{self.label}': learning rate × strength × the largest importance is {step:.3g}, and from "
                "2 on SGD's steps towards the anchor diverge. Lower `strength`, or set `apply_to: update`."
            )

    # -- the task's own gradients ------------------------------------------------------------------------------

    @property
    def reads_gradients(self) -> bool:
        """Return whether the gradients of training are used to measure importance."""
        return False

    def reads_step(self, stage: Stage) -> bool:
        """Return whether the gradients of the current step are used."""
        return self.reads_gradients

    def task_gradients(self, weights: Mapping[str, Weight]) -> dict[str, Tensor]:
        """Return the local gradients of the weights without the part of the penalty, float32."""
        placed = [each for each in self._in_loss or () if not each[0].adapted]
        own = {number: local(part) for number, part in self._slopes(placed).items()}
        gradients = {
            name: local(weight.parameter.grad).float() - own.get(id(weight.parameter), 0.0)
            for name, weight in weights.items()
            if weight.parameter.grad is not None and not weight.adapted
        }
        # The gradients of layer outputs do not contain the penalty, which depends on the weights only.
        return gradients | self._gradients.take()

    def end_domain(self, stage: Stage) -> None:
        """Add the importance for the domain and move the anchor to its final weights."""
        self._placed = None
        self._gradients.stop()
        if self.config.strength and self.config.anchor != "base":
            self._read_exact(stage)  # a stage that is resumed after its last step has not begun to train
            self.consolidate(stage, stage.domain)


class MeasuredPenalty(Penalty):
    """Base class of penalties whose importance is measured in a pass over text, also for the base model."""

    class Config(Penalty.Config):
        protect_base: bool = False
        """Also protect the base model, with its importance on the general corpus (or on the first domain if the recipe
        names none). The papers protect only what was learnt within the stream."""

        def without_effect(self) -> Iterator[tuple[Sequence[str], str]]:
            yield from super().without_effect()
            if self.anchor == "base":
                what = "which measures importance once, on the base model"
                yield ("decay", "accumulate", "protect_base"), f"with `anchor: base`, {what}"

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        if not (self.config.strength and self.measures_base):
            self.idle |= {"begin_domain"}

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if setting.rounded and self.config.strength and self.measures_base:
            key = "anchor: base" if self.config.anchor == "base" else "protect_base: true"
            raise MethodError(
                f"Method '{self.label}', option '{key}' reads the weights of the base model before it has adapters, "
                "but with `model.quantization_config` they are in few bits then. Leave one of the two out."
            )

    @property
    def measures_base(self) -> bool:
        """Return whether importance is measured for the base model."""
        return bool(self.config.protect_base or self.config.anchor == "base")

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of importance and anchor, and of measuring.

        While importance is measured, the new importance and the gradients of one sample are held; the gradients are
        freed before penalties with different anchors are joined.
        """
        beside = super().cost(model)
        if not self.config.strength:
            return beside
        sizes = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
        numbers, largest = sum(sizes), max(sizes, default=0)
        joining = 4 * numbers + JOINING * largest if self.config.anchor == "separate" else 0
        return replace(beside, measuring_bytes=max(8 * numbers + MEASURING * largest, joining))

    def with_passes(self, cost: Cost, samples: int, each: float = 1.0) -> Cost:
        """Add the passes of a measurement to a cost, after each domain and once for the base model.

        Args:
            cost: the cost without it.
            samples: number of rows.
            each: number of passes over each row.
        """
        rows = math.ceil(samples * each)
        return replace(
            cost,
            passes_per_domain=0 if self.config.anchor == "base" else rows,
            passes_once=rows if self.measures_base else 0,
            samples=samples,
        )

    def begin_domain(self, stage: Stage) -> None:
        """Measure the importance for the base model, if configured."""
        if self.config.strength and self.measures_base and not self._measured:
            self.consolidate(stage, "base", stage.general)


def trained_weights(stage: Stage) -> dict[str, Weight]:
    """Return the weights that a domain changes, directly or by adapters, by the names of the plain model."""
    return {
        name: weight
        for name, weight in weights_of(stage.model).items()
        if weight.trained and (stage.moved is None or name in stage.moved)
    }


def maxima(importance: Mapping[str, Tensor], degree: int, weights: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the largest value of each tensor, as a divisor; ∞ if it is rounding error (as for the bias of keys)."""
    largest = {name: float(full_tensor(value).max()) for name, value in importance.items()}
    top = max(largest.values(), default=0.0)
    return {
        name: value if value > top * ROUNDING[weights[name].dtype] ** degree else math.inf
        for name, value in largest.items()
    }


def refuse_additions(method: Method, setting: Setting) -> None:
    """Raise ``MethodError`` if another method trains its own parameters, which this one does not constrain.

    Low-rank matrices that are merged into the weights when a domain ends are allowed.
    """
    for other in setting.methods:
        if other.name != method.name and other.needs.extra_parameters and other.moves(setting.model) is None:
            raise MethodError(
                f"Method '{method.label}' protects the weights of the model, but method '{other.label}' trains "
                "additional parameters. Remove one of them."
            )


def refuse_other_starts(method: Method, setting: Setting) -> None:
    """Raise ``MethodError`` if another method sets starting weights: the penalty would pull them back to the anchor."""
    for other in setting.methods:
        if overrides(other, "starting_weights"):
            raise MethodError(
                f"Method '{method.label}' keeps weights close to those at the end of a domain, but method "
                f"'{other.label}' starts the next domain from others. Remove one of them from `method`."
            )


def place(label: str, model: nn.Module, importance: Mapping[str, Tensor], anchors: Mapping[str, Tensor]) -> Placed:
    """Return importance and anchors with the weights of a model, as local tensors of this process.

    Raises:
        MethodError: they belong to another model; the message names the method by its `label`.
    """
    weights = weights_of(model)
    for name, values in anchors.items():
        if name not in weights or weights[name].shape != values.shape:
            raise MethodError(
                f"Method '{label}' remembers '{name}' with shape {tuple(values.shape)}, which the model does not have. "
                "Its memory belongs to another model."
            )
    beside = partial(shard_like, dtype=torch.float32)
    # A tied weight is penalised once. The order does not depend on a file, so the rounding of the sum is reproducible.
    return [
        (weight, beside(importance[name], weight.parameter), beside(anchors[name], weight.parameter))
        for name, weight in weights.items()
        if weight.trained and name in importance
    ]


def joined(there: Tensor, known: Tensor, here: Tensor, new: Tensor) -> tuple[Tensor, float]:
    """Join two penalties: ½ Σ Ω (θ − θ₁)² + ½ Σ Ω' (θ − θ₂)² = ½ Σ (Ω + Ω') (θ − θ̄)² + ½ c.

    Args:
        there: θ₁, which is overwritten by θ̄.
        known: Ω.
        here: θ₂.
        new: Ω'.

    Returns:
        θ̄ and c.
    """
    share = (new / (known + new)).nan_to_num(1.0)  # 0/0: neither penalty constrains it
    apart = here - there
    constant = float((known * share * apart.square()).sum(dtype=torch.float64))
    return there.add_(share * apart), constant


def _free(model: nn.Module, exclude: tuple[str, ...]) -> set[int]:
    """Return the ids of the parameters that `exclude` names."""
    free: set[int] = set()
    if "embeddings" in exclude:
        free |= {id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    if "head" in exclude and (head := output_head(model)) is not None:
        free |= {id(parameter) for parameter in head.parameters()}
    if "vectors" in exclude:
        free |= {id(parameter) for parameter in model.parameters() if parameter.dim() < 2}
    return free
