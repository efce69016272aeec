"""DAS: soft-masking of updates to important units, and a contrastive loss that integrates old and new knowledge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from everlearn.data.blocks import BlockSource
from everlearn.errors import MethodError
from everlearn.importance import accumulate, general_importance, normalise, unit_importance
from everlearn.importance.proxy import has_dropout
from everlearn.methods.base import Mask, Method, MethodConfig, Needs, Setting, UnitImportance, View, register
from everlearn.methods.cost import FORWARD, Cost
from everlearn.methods.engine.attachment import refuse_frozen_model, refuse_without_units
from everlearn.methods.masks.contrast import contrast, contrasted, paired
from everlearn.methods.masks.das_mask import mask_factors
from everlearn.methods.masks.das_options import VARIANTS, DASConfig
from everlearn.methods.stage import Batch, Stage
from everlearn.methods.state import Fact, Tensors
from everlearn.model.anatomy import Anatomy, Site, anatomy, kind_of
from everlearn.model.content import counted, mean_state
from everlearn.model.gates import row_gates
from everlearn.model.objectives import Outputs
from everlearn.model.training_mode import evaluating, training
from everlearn.ranges import Between, ranges

Map = dict[str, Tensor]


@register
class DAS(Method):
    """Continual domain-adaptive pre-training with soft-masking (arXiv 2302.03241).

    The importance of a unit (attention head, neuron, output) is I = (1/N) Σ_n |∂L(x_n)/∂g| at g = 1 (eq. 3); before the
    first domain with L = KL of two dropout passes, a proxy for general knowledge (eq. 5), after each domain with its
    own loss. Each map is normalised to [0, 1) layer by layer, and the maximum over general knowledge and all earlier
    domains is used. While a domain is learnt, updates of the parameters of a unit are multiplied by 1 − I (eq. 4), and
    a contrastive loss pulls the representation of a text towards itself under another dropout and away from all other
    texts and from the representations of any text in the gated network (g = I).
    """

    name = "das"
    title = "DAS"
    summary = "protects units that matter by a soft mask, and adds a contrastive loss"
    paper = "https://arxiv.org/abs/2302.03241"
    needs = Needs(importance_pass=True, peft=False, predictions=True, anatomy=True, memory="statistics")
    importance_samples = True
    reads_shards = True
    variants = VARIANTS
    identity: ClassVar[dict[str, Any] | None] = {"strength": 0, "contrast": 0}

    class Config(DASConfig):
        """What is measured, masked and contrasted; the defaults are the paper's."""

    search = ranges(strength=Between(0.5, 1))
    config: Config
    _general = Tensors("general/", like="_importance")
    _importance = Tensors("accumulated/")
    _learnt = Fact("domains", list[str], beside="_importance")
    _measured_before = Fact[int | None]("measured_before", lambda: None, of=int | None)
    """Importance for general knowledge; the accumulated importance, and the domains in it."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.needs = replace(type(self).needs, importance_pass=self._important and self.config.scores == "measured")
        self._specific: Map = {}
        self._mask: Mask | None = None

    @property
    def _gated(self) -> bool:
        """Return whether the contrastive loss uses importance gates."""
        return self.config.contrast > 0 and self.config.contrast_kind != "simcse"

    @property
    def _important(self) -> bool:
        """Return whether importance is used at all."""
        return self.config.strength > 0 or self._gated

    def check(self, setting: Setting) -> None:
        super().check(setting)
        options = self.config
        if options.contrast > 0 and kind_of(setting.model) == "encoder-decoder":
            raise MethodError(
                f"Method '{self.label}', option 'contrast': the loss compares representations of complete texts, but "
                "an encoder-decoder's last layer represents only the answer. Set `contrast: 0`."
            )
        if self._gated and options.contrast_kind == "specific" and options.anchor == "masked":
            raise MethodError(
                f"Method '{self.label}', option 'anchor': with `contrast_kind: specific` both representations must be "
                "gated, but the masked pass of the loss is not. Set `anchor: plain`."
            )
        if not self._important:
            return
        instead = ", or leave heads out of the option `units`" if len(options.units) > 1 else ""
        refuse_without_units(self, setting, options.units, instead)
        if not options.accumulate and options.general == "none":
            raise MethodError(
                f"Method '{self.label}', option 'accumulate': without it only general knowledge is protected, and "
                "`general: none` leaves nothing. Choose another `general`."
            )
        if options.strength > 0:
            refuse_frozen_model(self, setting, ", or set `strength: 0`")
            layout = anatomy(setting.model)
            ones = {site.name: torch.ones(site.units) for site in self._sites(layout)}
            mask_factors(setting.model, layout, ones, options.qkv_mask_axis)
        self._check_general(setting)

    def _check_general(self, setting: Setting) -> None:
        general = self.config.general
        if general in ("corpus_kl", "corpus_loss") and not setting.has_general:
            raise MethodError(
                f"Method '{self.label}', option 'general': '{general}' measures importance on the recipe's general "
                "corpus, and there is none. Name one (the recipe's own `general`), or set the option to `proxy`."
            )
        proxy = self.config.scores == "measured" and general in ("proxy", "corpus_kl")
        if proxy and self.config.proxy_dropout and not has_dropout(setting.model):
            raise MethodError(
                f"Method '{self.label}', option 'general': the proxy for general knowledge compares two passes with "
                "different dropout, but every dropout rate of this model is 0. Set `general: none`, or give the model "
                "dropout."
            )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: maps and mask with one number per unit, the copy of the masked parameters, and extra rows.

        There are three extra rows per row; two if the batch's own pass replaces one (plain text, ``anchor: masked``) or
        nothing is gated. While importance is measured, a new map and its sums are held. The proxy for general
        importance takes two passes over ``samples``.
        """
        options, layout = self.config, anatomy(model)
        extra = 0.0
        if options.contrast:
            own = options.contrast_kind != "specific" and (layout.kind != "encoder" or options.anchor == "masked")
            extra = (1 if own else 2) + self._gated * (FORWARD if options.stop_gradient_prev else 1)
        if not self._important:
            return Cost(passes_per_step=extra * options.contrast_fraction)
        sites = self._sites(layout)
        units = sum(site.units for site in sites)
        held, copies = (12 if options.contrast_kind == "specific" else 8) * units, 0
        if options.strength:
            ones = {site.name: torch.ones(site.units) for site in sites}
            factors = mask_factors(model, layout, ones, options.qkv_mask_axis)
            parameters = dict(model.named_parameters())
            # Each factor is held by this method and, beside its parameter, by the training step.
            held += sum(8 * factor.numel() for factor in factors.values())
            if options.apply_to == "update":
                copies = sum(parameters[name].numel() * parameters[name].element_size() for name in factors)
        measured = options.samples if options.scores == "measured" else 0
        general = {"none": 0, "corpus_loss": 1}.get(options.general, 2)
        return Cost(
            memory_bytes=held + copies,
            whole_bytes=held,
            measuring_bytes=8 * units if measured else 0,
            disk_bytes=8 * units,
            passes_per_step=extra * options.contrast_fraction,
            passes_per_domain=measured * (1 if options.accumulate else general),
            passes_once=measured * (general if options.accumulate else 0),
            once_over="domain" if options.general == "proxy" else "general",
            samples=measured,
        )

    # -- importance -------------------------------------------------------------------------------------------

    def begin_domain(self, stage: Stage) -> None:
        """Measure general importance, unless the memory has it; then create the mask of this domain."""
        self._mask, self._specific = None, {}
        if not self._important:
            return
        known = bool(self._importance) if self.config.accumulate else self._measured_before == stage.index
        if self.config.general != "none" and not known:
            self._general = self._map(stage, *self._general_source(stage))
            self._importance = dict(self._general)
            self._measured_before = None if self.config.accumulate else stage.index
        device = next(stage.model.parameters()).device
        self._importance = {name: values.to(device) for name, values in self._importance.items()}
        if self._importance and self.config.strength:
            free = {name: 1 - self.config.strength * values for name, values in self._importance.items()}
            factors = mask_factors(stage.model, stage.anatomy, free, self.config.qkv_mask_axis)
            self._mask = Mask(factors, self.config.apply_to)
        if self.config.contrast_kind == "specific":
            self._specific = {name: 1 - values for name, values in self._importance.items()}

    def end_domain(self, stage: Stage) -> None:
        """Measure the importance for the domain by its training loss, on masked input if the objective masks."""
        self._mask, self._specific = None, {}
        if not self._important or not self.config.accumulate:
            return
        new = self._map(stage, stage.source, proxy=False)
        self._importance = accumulate([self._importance, new] if self._importance else [new])
        self._learnt = [*self._learnt, stage.domain]

    def _general_source(self, stage: Stage) -> tuple[BlockSource, bool]:
        """Return the text for measuring general importance, and whether the proxy is used."""
        if self.config.general == "proxy":
            return stage.source, True
        if stage.general is None:
            raise MethodError(f"Method '{self.label}', option 'general': the stage has no general corpus.")
        return stage.general, self.config.general == "corpus_kl"

    def _map(self, stage: Stage, source: BlockSource, proxy: bool) -> Map:
        """Return importance in [0, 1) on a text: by the proxy (eq. 5), by the training loss (eq. 3), or random."""
        options, sites = self.config, self._sites(stage.anatomy)
        batches = stage.batches(options.samples, source)
        if options.scores == "random":
            raw = {site.name: torch.rand(site.units) for site in sites}
        elif proxy:
            raw = general_importance(
                stage.model,
                batches,
                stage.objective,
                sites,
                options.reduce,
                dropout=options.proxy_dropout,
                text=options.proxy_input,
                representation=options.proxy_output,
                softmax=options.proxy_softmax,
            )
        else:
            if options.domain_input == "plain":
                batches = ({**batch, "input_ids": _plain_ids(batch)} for batch in batches)
            with (training if options.domain_dropout else evaluating)(stage.model):
                raw = unit_importance(stage.model, batches, stage.objective.per_sample_loss, sites, options.reduce)
        return normalise(raw, options.normalise)

    # -- the mask ---------------------------------------------------------------------------------------------

    def mask(self, stage: Stage) -> Mask | None:
        """Return 1 − strength · I for every parameter of a unit; it is constant within a domain."""
        return self._mask

    def _sites(self, layout: Anatomy) -> tuple[Site, ...]:
        return tuple(site for site in layout.sites if site.kind in self.config.units)

    # -- the contrast -----------------------------------------------------------------------------------------

    def views(self, stage: Stage, batch: Batch) -> list[View]:
        """Return unmasked rows for the contrastive loss: the text, another dropout sample of it, and the gated text.

        The first is in the batch already, unless the objective masked it.
        """
        if not self.config.contrast:
            return []
        inputs = self._contrasted(stage, batch)
        new = View(inputs, self._specific or None)
        views = [new] if self._has_anchor(batch) else [new, new]
        if self._gated and self._importance and not self.config.stop_gradient_prev:
            views.append(View(inputs, self._importance))
        return views

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return λ times the contrastive loss of mean hidden states."""
        if not self.config.contrast:
            return {}
        hidden = list(outputs.views)
        if self._has_anchor(batch):
            hidden.insert(0, outputs.hidden[: len(hidden[0])])
        if self._gated and self._importance and self.config.stop_gradient_prev:
            # In a separate pass: in that of the batch its rows would be differentiated in any case.
            inputs, rows = self._contrasted(stage, batch), len(hidden[0])
            with torch.no_grad(), row_gates(stage.model, [(rows, self._importance)]):
                hidden.append(stage.objective.hidden(stage.model, inputs))
        real = counted(batch)
        full, again, *gated = [mean_state(state, None if real is None else real[: len(state)]) for state in hidden]
        full, again = paired(full, again, self.config.pair)
        previous = gated[0] if gated else None
        loss = contrast(full, again, previous, self.config.temperature, self.config.gather_grad)
        return {"contrast": self.config.contrast * loss}

    def _contrasted(self, stage: Stage, batch: Batch) -> Batch:
        inputs = {**stage.objective.inputs(batch), "input_ids": _plain_ids(batch)}
        rows = contrasted(len(batch["labels"]), self.config.contrast_fraction)
        return {name: value[:rows] for name, value in inputs.items()}

    def _has_anchor(self, batch: Batch) -> bool:
        """Return whether the pass of the batch itself provides the first representation."""
        plain = "plain_ids" not in batch or self.config.anchor == "masked"
        return plain and self.config.contrast_kind != "specific"

    # -- state ------------------------------------------------------------------------------------------------

    def importance(self) -> UnitImportance | None:
        if not self._importance:
            return None
        return UnitImportance(self._general, self._importance, self.config.normalise, self.config.accumulate)


def _plain_ids(batch: Batch) -> Tensor:
    """Return the text before masking."""
    return batch.get("plain_ids", batch["input_ids"])
