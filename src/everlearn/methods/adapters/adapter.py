"""Adapters in a frozen model: one per domain or one for all, selected by domain id or by perplexity."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.adapters.bottleneck import Activation, AfterFeedForward, bottlenecks
from everlearn.methods.base import FORWARD, Cost, Method, MethodConfig, Needs, Setting, Variant, register
from everlearn.methods.engine.attachment import (
    PREFIX,
    detach,
    fill,
    freeze_base,
    learnt_by,
    refuse_other_additions,
    refuse_without_units,
)
from everlearn.methods.stage import Batch, Reading, Stage
from everlearn.methods.state import ByDomain, Fact
from everlearn.model.anatomy import kind_of
from everlearn.model.objectives import Objective
from everlearn.model.vocabulary_head import output_head
from everlearn.predictors import Checkpoint, Predictor, TextRouter

SHARED = "shared"
"""Key of the adapter that is shared by the whole stream."""
_DAS = "https://arxiv.org/abs/2302.03241"


@register
class Adapter(Method):
    """Bottleneck adapters after the feed-forward networks of a frozen model (arXiv 1902.00751).

    There is one per layer, as in arXiv 2005.00247, section 3.1: h ← h + W_up relu(W_down h), where h is the output of
    the second feed-forward projection, before dropout, residual and normalisation (arXiv 2302.03241, the baseline
    DAP-Adapter). Only the adapters are trained on a domain, so the checkpoint remains the base model, bit for bit, and
    the adapters are the memory of the method. A text is read with the adapters of its domain; a text of no learnt
    domain without any.

    W_up is initialised with 0, so that a domain starts from the function of the base model. The adapters library, which
    the authors use, draws both matrices from N(0, 0.02²) and feeds W_down the normalised sum of h and the residual.
    There the parts of the vocabulary head that are not tied to the embeddings are trained too (`train_head`).

    The defaults are DAP-Adapter: an adapter for each domain. Variants with names of their own: one adapter for the
    whole stream (NCL-Adapter); a new adapter that starts from j* = argmin_{j<t} exp(mean loss of adapter j on D_t)
    (DEMIX, arXiv 2108.05036, as in DAS); the adapter selected at test time by the same measure on each example, without
    a domain id (AdapterCL, arXiv 2012.15504, eq. 6, :class:`~everlearn.predictors.TextRouter`). An end task that
    fine-tunes has one adapter, chosen by its texts.
    """

    name = "dap_adapter"
    title = "DAP-Adapter"
    summary = "adapters beside a frozen base"
    paper = "https://arxiv.org/abs/2005.00247"
    needs = Needs(domain_id_test=True, extra_parameters=True, peft=False, anatomy=True, memory="parameters")
    freezes = True
    variants = (
        Variant(
            "ncl_adapter",
            "NCL-Adapter",
            "One adapter beside the frozen base model, trained on every domain in turn.",
            {"shared": True},
            paper=_DAS,
        ),
        Variant(
            "demix",
            "DEMIX",
            "An adapter for each domain, initialised as the earlier one with the lowest perplexity on the new domain.",
            {"initialise": "nearest"},
            paper="https://arxiv.org/abs/2108.05036",
        ),
        Variant(
            "adapter_cl",
            "AdapterCL",
            "An adapter for each domain; at test time each example is read with the one of lowest perplexity on it.",
            {"choose": "perplexity"},
            paper="https://arxiv.org/abs/2012.15504",
        ),
    )

    class Config(MethodConfig):
        reduction_factor: int = Field(16, ge=1)
        """Hidden size divided by the width of the bottleneck (1 at least)."""
        activation: Activation = "relu"
        """Activation between the two projections."""
        shared: bool = False
        """One adapter for the whole stream instead of one for each domain."""
        initialise: Literal["fresh", "nearest"] = "fresh"
        """Initial values of a new domain's adapter: fresh, or a copy of the earlier one with the lowest loss on the new
        domain."""
        choose: Literal["domain", "perplexity"] = "domain"
        """The adapter at test time: that of the text's domain, or for each example the one with the lowest perplexity
        on it."""
        samples: int = Field(512, ge=1)
        """Blocks on which adapters are evaluated to find the one with the lowest loss."""
        train_head: bool = False
        """Train the vocabulary head with the adapters, except for the part shared with the embeddings, as in the
        released code of DAS. Each adapter has its own head, so the checkpoint remains the base model."""
        freeze_base_at_end_task: bool = False
        """Fine-tune only the adapters and the classification head, as in the released code; the paper fine-tunes the
        model too."""

        @model_validator(mode="after")
        def _there_is_a_choice(self) -> Self:
            for option, value in (("initialise", "nearest"), ("choose", "perplexity")):
                if self.shared and getattr(self, option) == value:
                    raise ValueError(
                        f"option '{option}': '{value}' chooses among adapters, but `shared: true` has one for the "
                        "whole stream. Set one of the two"
                    )
            return self

    config: Config
    _kept = ByDomain("adapters")
    _nearest = Fact("nearest", dict[str, str])
    """Adapter of each domain, and the earlier adapter that it was initialised with."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.needs = replace(
            type(self).needs,
            domain_id_test=not self.config.shared and self.config.choose == "domain",
            importance_pass=self.config.initialise == "nearest",
        )
        self._base_head: dict[str, Tensor] = {}

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if self.config.choose == "perplexity" and kind_of(setting.model) == "encoder-decoder":
            raise MethodError(
                f"Method '{self.label}', option 'choose': '{type(setting.model).__name__}' does not predict its "
                "prompts, so their perplexity is unknown. Set `choose: domain`."
            )
        refuse_without_units(self, setting, ("output",))
        refuse_other_additions(self, setting)

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of the adapter, kept for each domain unless shared.

        The nearest adapter is found with a forward pass over the sample for each adapter.
        """
        with torch.device("meta"):
            added = sum(parameter.numel() for parameter in self._build(model).parameters())
        head = sum(p.numel() for _, p in _head_parameters(model)) if self.config.train_head else 0
        kept, tried = 4 * (added + head), self.config.samples if self.config.initialise == "nearest" else 0
        return Cost(
            memory_bytes=4 * added + 8 * head,
            disk_bytes=kept if self.config.shared else 0,
            disk_bytes_per_domain=0 if self.config.shared else kept,
            parameters=added,
            passes_per_earlier=math.ceil(FORWARD * tried),
            samples=tried,
        )

    # -- a domain ----------------------------------------------------------------------------------------------

    def begin_domain(self, stage: Stage) -> None:
        self._start(stage)  # evaluates adapters on the plain model

    def attach(self, stage: Stage) -> None:
        start = self._start(stage)
        self._build(stage.model).attach(stage.model, self.name, freeze=True)
        if self.config.train_head:
            for name, parameter in _head_parameters(stage.model):
                self._base_head[name] = parameter.detach().cpu().clone()
                parameter.requires_grad_(True)
        if start is not None:
            self._fill(stage.model, self._kept[start])

    def detach(self, stage: Stage) -> None:
        self._kept[SHARED if self.config.shared else stage.domain] = learnt_by(dict(stage.model.named_parameters()))
        detach(stage.model, self.name)
        self._fill(stage.model, self._base_head)
        self._base_head = {}

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        """Attach the adapter of the text's domain, or the shared one; otherwise none.

        With `choose: perplexity` a classifier gets the adapter with the lowest perplexity on its texts; for a language
        model :meth:`test_predictor` chooses one for each example.
        """
        key: str | None = SHARED if self.config.shared else reading.domain
        if self._routes:
            if output_head(model) is not None:
                return model
            key = self.least_perplexed(reading.language_model(), reading.objective, reading.batches)
        if key not in self._kept:
            return model
        if self.config.freeze_base_at_end_task:
            freeze_base(model)
        return self._with(model, key)

    def test_predictor(self, predictor: Predictor, reading: Reading) -> Predictor:
        """Return a router among the adapters, which share the frozen weights."""
        if not self._routes:
            return predictor
        plain, members = reading.language_model(), []
        for key, kept in self._kept.items():
            model = self._with(sharing(plain, kept), key)
            members.append(Checkpoint(model, reading.objective))
        return TextRouter(tuple(members), reading.objective, classifies=predictor)

    # -- which adapter -----------------------------------------------------------------------------------------

    def least_perplexed(self, model: nn.Module, objective: Objective, batches: Callable[[int], Iterable[Batch]]) -> str:
        """Return j* = argmin_j exp(mean nats per label of adapter j); the earliest if tied.

        Args:
            model: the plain language model, which is left unchanged.
            objective: the objective of the run.
            batches: returns batches of the text, for a number of blocks.
        """
        losses = {key: self._loss(model, key, objective, batches(self.config.samples)) for key in self._kept}
        return min(losses, key=lambda key: losses[key])

    def _loss(self, model: nn.Module, key: str, objective: Objective, batches: Iterable[Batch]) -> float:
        """Return the mean nats per label with one of the stored adapters."""
        trained = _head_parameters(model) if self.config.train_head else []
        head = {name: parameter.detach().clone() for name, parameter in trained}
        self._build(model).attach(model, self.name)
        try:
            self._fill(model, self._kept[key])
            return objective.mean_loss(model, batches)
        finally:
            detach(model, self.name)
            self._fill(model, head)

    def _start(self, stage: Stage) -> str | None:
        """Return the adapter that this domain starts from; None for a new one."""
        if self.config.shared:
            return SHARED if SHARED in self._kept else None
        if self.config.initialise == "fresh" or not self._kept:
            return None
        if stage.domain not in self._nearest:
            self._nearest[stage.domain] = self.least_perplexed(stage.model, stage.objective, stage.batches)
        return self._nearest[stage.domain]

    @property
    def _routes(self) -> bool:
        return self.config.choose == "perplexity" and bool(self._kept)

    def _with(self, model: nn.Module, key: str) -> nn.Module:
        """Attach one of the stored adapters to a model, and return it."""
        self._build(model).attach(model, self.name)
        self._fill(model, self._kept[key])
        return model

    def _build(self, model: nn.Module) -> AfterFeedForward:
        return bottlenecks(model, self.config.reduction_factor, self.config.activation)

    def _fill(self, model: nn.Module, kept: Mapping[str, Tensor]) -> None:
        """Load stored parameters into a model; a classifier has no vocabulary head to load."""
        own = dict(model.named_parameters())
        fill(own, {name: value for name, value in kept.items() if name in own}, self)


def _head_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters of the vocabulary head that are not shared with the base model's embeddings."""
    base: Any = model.base_model
    inside = {id(parameter) for parameter in base.parameters()}
    return [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if id(parameter) not in inside and not name.startswith(PREFIX)
    ]


def sharing(model: nn.Module, own: Collection[str] = ()) -> nn.Module:
    """Return a copy of a model whose modules are new and whose parameters and buffers are the same tensors.

    Args:
        model: without a distributed wrapper.
        own: names of parameters that the copy has for itself.
    """
    shared = itertools.chain(model.named_parameters(), model.named_buffers())
    return copy.deepcopy(model, {id(value): value for name, value in shared if name not in own})
