"""A forgetting budget: an upper limit for the loss of old text in bits per byte, instead of a penalty's strength."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.data.blocks import Block, BlockSource
from everlearn.data.holdout_view import Without
from everlearn.errors import MethodError
from everlearn.importance import label_directions, label_fisher
from everlearn.methods.base import FORWARD, Cost, Method, MethodConfig, Needs, Setting, Stage, register
from everlearn.methods.cost import usual_row
from everlearn.methods.penalties.budget_state import EARLIER, GENERAL, KeptProbes, KnownTexts
from everlearn.methods.penalties.drift_prediction import Ellipsoid, Known, ellipsoid
from everlearn.methods.penalties.drift_probe import LEVEL, Drift, DriftProbe, mean_drift
from everlearn.methods.penalties.penalty import refuse_additions, refuse_other_starts, trained_weights
from everlearn.methods.state import Fact, OneTensor
from everlearn.model.adapted import weights_of
from everlearn.model.training_mode import evaluating
from everlearn.ranges import Between, ranges
from everlearn.seeding import seed_for
from everlearn.wording import percent

HALVINGS = 7
"""Steps of the line search at the end of a domain: s is exact to 1/128."""
LEAST = 1e-6
"""Lower limit of the predicted drift's limit, as a share of the budget."""
MOST_HELD_OUT = 10
"""At most one row in this number is held out for a probe."""


@dataclass
class LastCheck:
    """The last measurement for a group of texts, which determines the limit of the next steps.

    Attributes:
        predicted: p = ½ Δᵀ F Δ, in bits per byte.
        measured: m; predicted times ratio if there is no probe.
        error: standard error of m.
        ratio: κ, measured over predicted, at least 1.
    """

    predicted: float
    measured: float
    error: float
    ratio: float

    def lost(self, sure: bool) -> float:
        """Return m, or with `sure` the upper end of its 95 % interval."""
        return self.measured + LEVEL * self.error if sure else self.measured

    def limit(self, budget: float, sure: bool = False) -> float:
        """Return the limit L of the predicted drift that keeps the measured one within the budget B.

        It is p + (B − m) / κ, or p B / m if m exceeds B; with `sure` the upper end of m's interval replaces m. It is
        above 0 even if p is 0.
        """
        lost = self.lost(sure)
        if lost > budget:
            return max(self.predicted * budget / lost, LEAST * budget)
        return self.predicted + (budget - lost) / self.ratio


@register
class Budget(Method):
    """Learn as much as a forgetting budget allows: at most B bits per byte lost on a group of texts.

    The groups are the general text, relative to the base model, and the mean of the earlier domains, each relative to
    the model that had just learnt it. For a text that was known with weights θ*, the predicted loss of a step Δ = θ −
    θ* is

        d(θ) = ½ Δᵀ F Δ ≈ ½ ‖G Δ‖²,   g_j = Σ_{n in group j} Σ_t ∂ℓ_nt/∂θ / √(Σ_n T_n · ln 2 · bytes per label),

    in bits per byte, with the Fisher information of one label, for labels sampled from the model (EWC's quadratic,
    arXiv 1612.00796, in the units of the loss and with the full F: K directions G have E[Gᵀ G] = F; a diagonal would
    predict far too little, because weights move together). After every optimizer step that violates d(θ) ≤ L, weights
    are moved back: to the nearest ones, in the metric of the optimizer, for which the quadratic form of the *diagonal*
    of F, which has a value for every weight, decreases by the required factor. A step within the limit is plain
    training; the multiplier of the projection plays the role of λ. Drift is also measured at some steps, on a probe of
    held-out rows, and corrects the limit: with the last predicted p and measured m, and κ = max(1, (m² m/p + e² κ')/(m²
    + e²)), where e is the standard error of m and κ' the previous κ,

        L = p + (B − m)/κ,   and p B/m if m > B.

    At the end of a domain the weights are θ_start + s · Δ_stage with the largest s ≤ 1 whose measured drift is within
    every budget (a line search as in arXiv 2510.16089, on the complete update); s = 0 rolls the domain back.
    Predictions and measurements are written to the log, and a sentence to the results.

    The limit holds for the rows of the probe, which are a sample: other text loses more than B after about half of the
    domains, by the probe's error. With `sure` the upper end of the measured 95 % interval replaces m, so that the limit
    holds for other text too, and less is learnt.

    A budget is for the complete stream: if the first domain uses it up, later ones can change only what does not affect
    old text.

    θ are the effective weights, with adapters W + s B A. The trained A and B are moved back against the gradient of the
    diagonal's form (:class:`CurvedEllipsoid`), and scaled back at the end.
    """

    name = "budget"
    title = "Forgetting budget"
    summary = "limits how many bits per byte are lost"
    paper = "https://arxiv.org/abs/2510.16089"
    needs = Needs(old_data=True, importance_pass=True, predictions=True, memory="statistics", start=True)
    importance_samples = True
    identity: ClassVar[dict[str, Any] | None] = {GENERAL: None, EARLIER: None}

    class Config(MethodConfig):
        """The limits, and how drift is predicted and measured."""

        general: float | None = Field(0.02, gt=0, allow_inf_nan=False)
        """B of the general text (the recipe's `general`), in bits per byte relative to the base model; null: no
        limit."""
        earlier: float | None = Field(0.02, gt=0, allow_inf_nan=False)
        """B of the earlier domains, averaged over them, each relative to the model that had just learnt it; null: no
        limit."""
        earlier_by: Literal["measured", "predicted"] = "measured"
        """Hold out and store a small sample of each domain, on which drift is measured; or store no text and use the
        prediction, corrected by the measurements on general text. As this correction comes from another text, a
        predicted budget is not guaranteed."""
        samples: int = Field(500, ge=1)
        """Rows for measuring the Fisher information of a text."""
        rank: int = Field(8, ge=1)
        """K, the number of stored directions of the full F of a group, two bytes per parameter each. The relative
        standard error of the prediction is √(2/K); use more directions if nothing is measured."""
        probe: int = Field(128, ge=2)
        """Rows for measuring the drift of general text, and of all earlier domains together: the share of each domain
        shrinks as more are learnt. At most a tenth of a text is held out."""
        checks: int = Field(20, ge=1)
        """Number of measurements in a domain, more frequent at its beginning: after ⌈(i / checks)² · steps⌉ steps."""

        sure: bool = False
        """Require that the upper end of the probe's 95 % interval, instead of its mean, is within the budget. A
        predicted drift has no interval."""

        def without_effect(self) -> Iterator[tuple[Sequence[str], str]]:
            if self.earlier is None:
                yield ("earlier_by",), "with `earlier: null`"
            if self.general is None and (self.earlier is None or self.earlier_by == "predicted"):
                yield ("probe", "checks"), "where no drift is measured"
            if self.general is None and self.earlier is None:
                yield ("samples", "rank"), "without a budget"

    search = ranges(general=Between(0.005, 0.1, log=True), earlier=Between(0.005, 0.1, log=True))
    config: Config
    _known = KnownTexts("", dict[str, Known])
    _probes = KeptProbes("", dict[str, DriftProbe])  # of earlier domains
    _checks = Fact("checks", dict[str, LastCheck], of=dict[str, LastCheck])
    _ratio = Fact("ratio", lambda: 1.0, of=float)
    _general_nats = OneTensor("nats", dims=1)
    _general_text = Fact("general_text", str, beside="_general_nats")
    """Fisher information and anchor of each group, probes with their first losses, and the last measurements."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        budgets = {GENERAL: self.config.general, EARLIER: self.config.earlier}
        self.budgets = {group: float(budget) for group, budget in budgets.items() if budget is not None}
        self._keeps = EARLIER in self.budgets and self.config.earlier_by == "measured"
        active = bool(self.budgets)
        self.needs = replace(type(self).needs, old_data=self._keeps, importance_pass=active, start=active)
        self._known = {group: Known() for group in self.budgets}
        self._general_probe: DriftProbe | None = None
        self._own: list[Block] = []
        self._general: list[Block] = []
        self._inside: dict[str, Ellipsoid] = {}

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if GENERAL in self.budgets and not setting.has_general:
            raise MethodError(
                f"Method '{self.label}', option 'general': {self.config.general} limits what is lost of general text, "
                "and there is none. Add `general` to the recipe, or set `general: null`."
            )
        if self.budgets and setting.objective.tokenizer is None:
            raise MethodError(
                f"Method '{self.label}' counts the bytes of old text, for which it needs the tokenizer. Give it to the "
                "trainer (`processing_class`) or to `protect` (`tokenizer`)."
            )
        refuse_additions(self, setting)
        if setting.rounded:
            raise MethodError(
                f"Method '{self.label}' measures how much old text loses with the model in training, but with "
                "`model.quantization_config` that is rounded to few bits, and the adapter is added to the exact "
                "weights: the model that is saved would lose another amount. Remove one of the two, or use a penalty "
                "such as `mas`."
            )
        if self.config.sure and GENERAL not in self.budgets and not self._keeps:
            raise MethodError(
                f"Method '{self.label}', option 'sure': true needs a probe, and there is none. Set a budget of "
                "`general`, or one of `earlier` with `earlier_by: measured`."
            )
        if EARLIER in self.budgets:
            refuse_other_starts(self, setting)
        weights_of(setting.model)  # refuses unsupported adapters

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: importance, anchor and directions of each group, the starting weights, and the probes.

        During measurements it also holds the new importance, the new directions (twice if there are earlier domains),
        and the gradients of a batch and of a group of rows. Evaluations of probes are counted at their maximum, with a
        complete probe and a line search in every domain.
        """
        if not self.budgets:
            return Cost()
        numbers = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        row = 8 * usual_row(getattr(model, "config", None)) + 8
        rows = self.config.probe * row
        probes = (GENERAL in self.budgets) + self._keeps
        # Initial losses of the rows; the beginning of a domain, its checks, its end; the line search and its result.
        evaluated = probes * self.config.probe * (1 + 1 + self.config.checks + 1 + HALVINGS + 1)
        known = len(self.budgets) * (8 + 2 * self.config.rank) * numbers
        measuring = (12 + 2 * self.config.rank if EARLIER in self.budgets else 4) * numbers
        passes = 2 * self.config.samples  # for the diagonal and for the directions; labels are sampled for each
        measured = passes + round(FORWARD * passes)
        return Cost(
            memory_bytes=known + 4 * numbers + 3 * rows,
            measuring_bytes=measuring,
            disk_bytes=known + 2 * rows,
            disk_bytes_per_domain=self._keeps * row,  # at least one row of each domain is stored
            passes_per_domain=measured * (EARLIER in self.budgets),
            passes_once=measured * (GENERAL in self.budgets),
            samples=self.config.samples,
            passes_elsewhere=round(FORWARD * evaluated),
            at_most=True,
        )

    # -- a domain ---------------------------------------------------------------------------------------------

    def hold_out(self, stage: Stage) -> None:
        if GENERAL in self.budgets and stage.general is not None:
            self._general = self._held_out(stage.general, stage, "set `general: null`")
            stage.general = Without(stage.general, self._general)
        if self._keeps:
            self._own = self._held_out(stage.source, stage, "set `earlier_by: predicted`")
            stage.source = Without(stage.source, self._own)

    def begin_domain(self, stage: Stage) -> None:
        """Measure the Fisher information and the losses of the general text, once per stream."""
        if not self.budgets:
            return
        self._check_memory()
        if GENERAL not in self.budgets or stage.general is None:
            return
        probe = DriftProbe.of(self._general, stage)
        if not len(self._general_nats):
            probe.learn(stage)
            assert probe.nats is not None
            self._general_nats, self._general_text = probe.nats, stage.general.fingerprint
            self._add_fisher(stage, GENERAL, stage.general, probe.width)
        if self._general_text != stage.general.fingerprint:
            raise MethodError(
                f"Method '{self.label}' measures drift on the general text of the first domain, but `general` has "
                "changed since. Restore it, or set `general: null` in the method."
            )
        self._general_probe = replace(probe, nats=self._general_nats)

    def _check_memory(self) -> None:
        """Check that the memory of earlier domains matches the options, since this domain is added to it.

        Raises:
            MethodError: it has another number of directions, or a sample is missing or not expected.
        """
        known = self._known.get(EARLIER, Known())
        ranks = {len(rows) for rows in known.directions.values()} - {self.config.rank}
        kept = [text for text in known.texts if text in self._probes]
        if ranks:
            what, was, now = "rank", str(ranks.pop()), str(self.config.rank)
        elif known.texts and kept != (known.texts if self._keeps else []):
            what, was, now = "earlier_by", "predicted" if self._keeps else "measured", self.config.earlier_by
        else:
            return
        raise MethodError(
            f"Method '{self.label}', option '{what}': earlier domains were learnt with {was}, and their memory does "
            f"not fit {now}. Set `{what}: {was}`, or `earlier: null`."
        )

    def _rows(self, text: BlockSource, stage: Stage) -> list[Block]:
        """Return the first rows of a seeded pass, which are always the same."""
        most = self.config.probe if text.size is None else min(self.config.probe, -(-text.size // MOST_HELD_OUT))
        return list(islice(text.once(seed_for(stage.seed, self.name)), most))

    def _held_out(self, text: BlockSource, stage: Stage, otherwise: str) -> list[Block]:
        """Return the rows to hold out, if enough are left for training."""
        rows = self._rows(text, stage)
        if text.size is not None and text.size <= len(rows):
            raise MethodError(
                f"Method '{self.label}' holds out rows of '{text.name}' to measure drift, but it has only {text.size}. "
                f"Add text, or {otherwise} in the method."
            )
        return rows

    def _add_fisher(self, stage: Stage, group: str, text: BlockSource, width: float) -> None:
        """Add F of a text, in bits per byte, at the current weights.

        The diagonal and the directions use separately sampled labels. With the same ones, a projection by the diagonal
        would mostly change weights whose samples are large by chance, and the directions would predict too little.
        """
        per_bit, most = 1 / (math.log(2) * width), self.config.samples
        rows = most if text.size is None else min(most, text.size)
        seeds = stage.objective, stage.seed, self.name, text.name
        rank = self.config.rank
        with stage.as_plain(), evaluating(stage.model):
            model, names = stage.model, list(trained_weights(stage))
            diagonal = label_fisher(model, stage.batches(most, text), *seeds, names=names)
            directions = label_directions(
                model, stage.batches(most, text), *seeds, "directions", rank=rank, rows=rows, names=names
            )
        diagonal = {name: value.mul_(per_bit) for name, value in diagonal.items()}
        directions = {name: value.mul_(per_bit**0.5) for name, value in directions.items()}
        self._known[group].add(GENERAL if group == GENERAL else stage.domain, diagonal, directions, stage.model)

    def begin_training(self, stage: Stage) -> None:
        """Place F and θ* beside the local parameters, and measure the drift at the beginning of the domain.

        Raises:
            MethodError: the optimizer updates tensors other than the parameters.
        """
        self._inside = self._ellipsoids(stage)
        if not self._inside:
            return
        stepped = {
            id(p) for group in (stage.optimizer.param_groups if stage.optimizer else []) for p in group["params"]
        }
        if stepped and any(p.requires_grad and id(p) not in stepped for p in stage.model.parameters()):
            raise MethodError(
                f"Method '{self.label}' must move the tensors that the optimizer updates, but it updates its own "
                "(DeepSpeed ZeRO does). Train with DDP or FSDP2."
            )
        if not self._checks:
            self._check(stage, stage.step)

    def _ellipsoids(self, stage: Stage) -> dict[str, Ellipsoid]:
        return {g: ellipsoid(self.label, known, stage.model) for g, known in self._known.items() if known.texts}

    @torch.no_grad()
    def confine(self, stage: Stage) -> None:
        if not self._inside:
            return
        limits = {g: self._checks[g].limit(self.budgets[g], self.config.sure) for g in self._inside}
        moved = True
        for _ in self._inside:  # the projection onto one set may lie slightly outside of the other
            moved = moved and sum(self._inside[g].enter(limit, stage.optimizer) for g, limit in limits.items()) > 0

    @torch.no_grad()
    def after_step(self, stage: Stage) -> None:
        step = stage.step + 1
        if self._inside and step in {
            math.ceil((i / self.config.checks) ** 2 * stage.steps) for i in range(1, self.config.checks + 1)
        }:
            self._check(stage, step)

    def final_weights(self, stage: Stage) -> Mapping[str, Tensor]:
        """Return θ_start + s (θ_end − θ_start) with the largest s ≤ 1 that is within every budget.

        With adapters, their parameters are interpolated.
        """
        self._inside = self._ellipsoids(stage)
        if not self._inside:
            return {}
        trained = {name: p for name, p in stage.model.named_parameters() if name in stage.start}
        end = {name: p.detach().clone() for name, p in trained.items()}

        def weights(share: float) -> dict[str, Tensor]:
            return {name: torch.lerp(stage.start[name].to(value.device), value, share) for name, value in end.items()}

        @torch.no_grad()
        def within(share: float) -> bool:
            for name, value in weights(share).items():
                trained[name].copy_(value)
            self._check(stage, stage.steps, share)
            return all(self._checks[g].lost(self.config.sure) <= self.budgets[g] for g in self._inside)

        share = 1.0
        if not within(share):
            share, above = 0.0, 1.0
            for _ in range(HALVINGS):
                middle = (share + above) / 2
                share, above = (middle, above) if within(middle) else (share, middle)
            within(share)
        stage.notes.append(self._sentence(stage, share))
        return weights(share)

    def end_domain(self, stage: Stage) -> None:
        """Add the domain to the earlier ones: F, θ* and the current losses of its probe."""
        if EARLIER not in self.budgets:
            return
        rows = self._own or self._rows(stage.source, stage)
        probe = DriftProbe.of(rows, stage)
        if self._keeps:
            probe.learn(stage)
            self._probes[stage.domain] = probe
            each = max(1, self.config.probe // (len(self._known[EARLIER].texts) + 1))
            for name in (*self._known[EARLIER].texts, stage.domain):
                self._probes[name] = self._probes[name].first(each)
        self._add_fisher(stage, EARLIER, stage.source, probe.width)

    def detach(self, stage: Stage) -> None:
        self._own, self._general, self._inside, self._checks = [], [], {}, {}

    # -- drift ------------------------------------------------------------------------------------------------

    def _check(self, stage: Stage, step: int, share: float | None = None) -> None:
        """Predict and measure the drift of each group; `share` is s of the line search at the end."""
        line: dict[str, Any] = {}
        for group, inside in self._inside.items():
            probes: dict[str, DriftProbe | None] = {GENERAL: self._general_probe}
            if group == EARLIER:  # a domain may have the name of the general text
                probes = {text: self._probes.get(text) for text in self._known[EARLIER].texts}
            drifts = {text: probe.drift(stage) for text, probe in probes.items() if probe is not None}
            before = self._checks[group].ratio if group in self._checks else self._ratio
            line[group] = {"allowed": self.budgets[group]} | self._store(group, inside.predicted(), drifts, before)
        stage.log({"step": step, "drift": line} | ({} if share is None else {"share": share}))

    def _store(self, group: str, predicted: float, drifts: Mapping[str, Drift], ratio: float) -> dict[str, Any]:
        """Store a measurement of a group; return it for the log."""
        if not drifts:
            ratio = self._checks[GENERAL].ratio if GENERAL in self._checks else ratio
            self._checks[group] = LastCheck(predicted, predicted * ratio, 0.0, ratio)
            return {"predicted": predicted, "corrected": predicted * ratio}
        mean = mean_drift(list(drifts.values()))
        squared, variance = max(mean.value, 0.0) ** 2, mean.error**2
        if predicted > 0 and squared + variance > 0:
            ratio = max(1.0, (squared * mean.value / predicted + variance * ratio) / (squared + variance))
        self._ratio = ratio
        self._checks[group] = LastCheck(predicted, mean.value, mean.error, ratio)
        low, high = mean.interval
        each = {"each": {text: drift.value for text, drift in drifts.items()}} if group == EARLIER else {}
        return {"predicted": predicted, "measured": mean.value, "low": low, "high": high, "ratio": ratio} | each

    def _sentence(self, stage: Stage, share: float) -> str:
        parts = []
        for group, check in self._checks.items():
            text = "general text" if group == GENERAL else "earlier domains"
            how = "on held-out rows" if group == GENERAL or self._keeps else "as predicted"
            half = f" ± {LEVEL * check.error:.4f}" if check.error else ""
            sure = ", for its upper end" if self.config.sure and half else ""
            parts.append(
                f"{text} lost {check.measured:.4f}{half} bits per byte {how} (budget {self.budgets[group]:g}{sure})"
            )
        done = "All of the update was kept."
        if share == 0:
            done = "The domain was rolled back to the weights that it began with: no part of its update was within."
        elif share < 1:
            done = f"The update was scaled back to {percent(share)} of its way."
        return f"Forgetting budget after '{stage.domain}': {'; '.join(parts)}. {done}"
