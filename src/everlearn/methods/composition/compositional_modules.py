"""Adaptive compositional modules: in each layer a new domain reuses an earlier adapter or adds one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.data.reservoir import Reservoir
from everlearn.errors import MethodError
from everlearn.methods.adapters.bottleneck import Activation, AfterFeedForward, Bottleneck, feed_forward_outputs
from everlearn.methods.base import FORWARD, Batch, Cost, Method, MethodConfig, Needs, Reading, Setting, Stage, register
from everlearn.methods.composition.layer_choice import LayerChoice
from everlearn.methods.cost import usual_row
from everlearn.methods.engine.attachment import attached, detach, refuse_other_additions, refuse_without_units
from everlearn.methods.rehearsal.generated import generated_rows
from everlearn.methods.rehearsal.rows_in_batch import own_rows, refuse_other_width
from everlearn.methods.state import Fact, Tensors, TextRows
from everlearn.methods.tricks.depth import Thaws, scaled_rates
from everlearn.model.anatomy import kind_of
from everlearn.model.objectives import Outputs, View, row_means
from everlearn.seeding import seed_for

ALL_ROWS = 2**31
"""Capacity of the stored rows: each domain brings `samples` of them, and none is dropped."""
ROWS, SWEEPS = "rows", 4


@register
class CompositionalModules(Thaws):
    """Adaptive compositional modules (ACL 2022, arXiv 2203.10652): each layer reuses an adapter or adds one.

    A_i(h) = h + W_up φ(W_down h) are the adapters behind a layer's feed-forward network; the model is frozen. A domain
    begins with a *decision*: a new adapter joins the k earlier ones of a layer,

        h ← Σ_i w_i A_i(h),   w = softmax(c),   c_1 = … = c_k = start,  c_{k+1} = −start at first,

        L_t + entropy · Σ_layers H(w)

    where the new adapters are trained, and in the second half c too. The adapter with the largest c_i becomes that of
    the domain in this layer; if it is an earlier one, the new one is dropped. In the *training* that follows, the
    chosen adapters, reused ones included, learn the domain together with rows x of the earlier domains that use any of
    them. There is one such row for each row of the domain, and it is read with the adapters of its own domain:

        L_t + replay · E[ℓ(x)]

    The other adapters of earlier domains are frozen. The formulas were read in the authors' code. They decide for two
    adapters at once, after attention and feed-forward network; here a layer has one, as in `dap_adapter`.
    """

    name = "compositional_modules"
    title = "Compositional modules"
    summary = "in each layer a domain reuses an adapter or adds one"
    paper = "https://arxiv.org/abs/2203.10652"
    kinds = ("isolation", "replay")
    needs = Needs(
        old_data=True, domain_id_test=True, extra_parameters=True, peft=False, anatomy=True, memory="parameters"
    )
    freezes = True

    class Config(MethodConfig):
        reduction_factor: int = Field(16, ge=1)
        """Hidden size divided by the width of an adapter (1 at least)."""
        activation: Activation = "relu"
        """Activation between the two projections."""
        decide: float = Field(0.33, ge=0, lt=1)
        """Share of a domain's steps in which the adapters are mixed, before one is chosen; 0 chooses by the sign of
        `start` alone. The authors use 6 epochs before 9 or 12 of training."""
        start: float = Field(0.03, allow_inf_nan=False)
        """Initial c of earlier adapters, and −c of the new one: above 0 it favours reuse, more so the larger it is. The
        authors use 0.03 to 0.07 for dissimilar tasks and 0.12 to 0.17 for similar ones."""
        entropy: float = Field(0.01, ge=0, allow_inf_nan=False)
        """Weight of the entropy of w, which drives w to one adapter."""
        choice_rate: float = Field(10.0, gt=0, allow_inf_nan=False)
        """Learning rate of c, as a multiple of the adapters'. The authors' 1 needs thousands of steps to decide."""
        tries: int = Field(8, ge=1)
        """Number of earlier adapters of a layer that can be reused, the latest of them. The authors try all."""
        replay: float = Field(1.0, ge=0, allow_inf_nan=False)
        """Weight of the loss on replayed rows; 0 stores and replays nothing."""
        pseudo: Literal["stored", "generated"] = "stored"
        """Replayed rows: a sample of each domain's own, which stores old text; or rows that the model generates with
        the adapters of the domain when it ends. The authors generate them again before each later domain."""
        samples: int = Field(100, ge=1)
        """Number of rows stored or generated for each domain. The authors use a fifth of a domain's."""

    config: Config
    _adapters = Tensors("adapters/")
    _paths = Fact("paths", dict[str, list[str]])
    _rows = TextRows[Reservoir | None]("rows/", lambda: None)
    """Adapters by "<domain that added it>/<layer>.<parameter>"; for each domain the one that added its adapter, layer
    by layer; and the rows to replay."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        generates = self.config.pseudo == "generated"
        self._generates, self._stores = self.config.replay > 0 and generates, self.config.replay > 0 and not generates
        self.needs = replace(type(self).needs, old_data=self._stores, importance_pass=self._generates)

    def check(self, setting: Setting) -> None:
        super().check(setting)
        refuse_without_units(self, setting, ("output",))
        refuse_other_additions(self, setting)
        if not self.config.replay:
            return
        if kind_of(setting.model) == "encoder-decoder":
            raise MethodError(
                f"Method '{self.label}' replays rows in the forward pass of the batch, and those of an encoder-decoder "
                "differ in width. Set `replay: 0`."
            )
        for other in setting.methods:
            if other is not self and type(other).views is not Method.views:
                raise MethodError(
                    f"Method '{self.label}' adds rows to the forward pass, and so may '{other.label}', whose rows "
                    "would be read with the wrong adapters. Set `replay: 0`, or remove one of them."
                )
        if self._generates and (setting.objective.name == "text-to-text" or not setting.block_size):
            raise MethodError(
                f"Method '{self.label}', option 'pseudo': 'generated' generates plain text, in rows as a run packs "
                "them, which this training does not learn from. Set `pseudo: stored`."
            )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: new adapters and c of each layer, and rows to replay, in rows of the usual length."""
        with torch.device("meta"):
            added = sum(parameter.numel() for parameter in self._build(model, []).parameters())
        held = 8 * self.config.samples * usual_row(model.config) if self.config.replay else 0
        return Cost(
            memory_bytes=12 * added + 2 * held,
            disk_bytes_per_domain=4 * added + held,
            parameters=added,
            passes_per_step=1.0 if self.config.replay else 0.0,
            passes_elsewhere=math.ceil(FORWARD * self.config.samples) if self._generates else 0,
        )

    def attach(self, stage: Stage) -> None:
        """Attach new adapters beside the frozen earlier ones."""
        paths = [path for domain, path in self._paths.items() if domain != stage.domain]
        named, kept = {owner for path in paths for owner in path}, {key.rpartition("/")[0] for key in self._adapters}
        if (named ^ kept) - {stage.domain} or {*map(len, paths)} - {len(feed_forward_outputs(stage.model))}:
            raise self._other_model()
        built = self._build(stage.model, [list(dict.fromkeys(owners)) for owners in zip(*paths, strict=True)])
        built.attach(stage.model, self.name, freeze=True)
        for number, layer in enumerate(_choices(built)):
            layer.earlier.requires_grad_(False)
            for owner, adapter in zip(layer.owners, layer.earlier, strict=True):
                self._fill(adapter, owner, number)

    def parameter_groups(self, stage: Stage, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return scaled_rates(groups, {id(layer.c): self.config.choice_rate for layer in self._layers(stage)})

    def begin_training(self, stage: Stage) -> None:
        """Leave c alone in the first half of the decision; decide at once where there is none.

        Nothing reads c after the decision.
        """
        deciding = self._deciding(stage)
        choices = [name for name, _ in stage.model.named_parameters() if name.endswith(".c")]
        self.thaw(stage, [(choices, deciding // 2 if deciding else stage.steps)])
        if not deciding and stage.domain not in self._paths:
            self._decide(stage)

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        """Choose as many rows to replay as the batch has, and set which adapters each row is read with."""
        count, path = len(batch["labels"]), self._paths.get(stage.domain)
        shared = [d for d, of in self._paths.items() if path and d != stage.domain and any(map(str.__eq__, of, path))]
        kept = [row for row, domain in enumerate(self._rows.domains if self._rows else ()) if domain in shared]
        numbers = range(stage.row, stage.row + count) if kept else ()
        rows = [kept[seed_for(stage.seed, self.name, stage.index, number) % len(kept)] for number in numbers]
        domains = [stage.domain] * count + [self._rows.domains[row] for row in rows] if self._rows else []
        for number, layer in enumerate(self._layers(stage)):
            of_rows = [self._paths[domain][number] for domain in domains] if path else []
            layer.choose(path[number] if path else None, of_rows)
        if not self._rows or not rows:
            return {}
        refuse_other_width(self, stage, len(self._rows.blocks[0]["input_ids"]), batch)
        old = stage.objective.reseeded(stage.seed, self.name).collate([self._rows.blocks[row] for row in rows], rows)
        return {name: value.to(batch["labels"].device) for name, value in old.items()}

    def views(self, stage: Stage, batch: Batch) -> list[View]:
        old = own_rows(self, batch)
        return [View(stage.objective.inputs(old), labels=old["labels"], positions=old.get("positions"))] if old else []

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return the entropy of w while deciding, and later the loss of the replayed rows."""
        if stage.domain not in self._paths:
            return {
                "entropy": self.config.entropy * torch.stack([layer.entropy for layer in self._layers(stage)]).sum()
            }
        if not outputs.view_losses or (nats := outputs.view_losses[0]) is None:
            return {}
        return {"replay": self.config.replay * row_means(nats, own_rows(self, batch)["labels"])}

    def after_step(self, stage: Stage) -> None:
        super().after_step(stage)
        if stage.domain not in self._paths and stage.step + 1 >= self._deciding(stage):
            self._decide(stage)

    def end_domain(self, stage: Stage) -> None:
        """Store or generate the rows that later domains replay."""
        if not self.config.replay:
            return
        if self._generates:
            rows, _ = generated_rows(stage, self.config.samples, SWEEPS)
        else:
            rows = [*islice(stage.source.once(seed_for(stage.seed, self.name, stage.index)), self.config.samples)]
        self._rows = self._rows or Reservoir(ALL_ROWS, stage.seed)
        self._rows.extend(rows, stage.domain)

    def detach(self, stage: Stage) -> None:
        """Store the adapters that the domain has learnt, new or reused."""
        super().detach(stage)
        path = self._paths[stage.domain]
        for number, (owner, layer) in enumerate(zip(path, _choices(detach(stage.model, self.name)), strict=True)):
            learnt = {name: value.detach().cpu().clone() for name, value in layer.own.named_parameters()}
            self._adapters |= {f"{owner}/{number}.{name}": value for name, value in learnt.items()}
        reused = sum(owner != stage.domain for owner in path)
        stage.notes.append(
            f"Method '{self.label}': '{stage.domain}' reuses an adapter in {reused} of {len(path)} layers"
            + (f" (of {', '.join(sorted({*path} - {stage.domain}))})." if reused else ".")
        )

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        """Attach the adapters of the text's domain; none for text of no learnt domain."""
        if reading.domain not in self._paths:
            return model
        built = self._build(model, [])
        for number, (owner, layer) in enumerate(zip(self._paths[reading.domain], _choices(built), strict=True)):
            self._fill(layer.own, owner, number)
        built.attach(model, self.name)
        return model

    def _layers(self, stage: Stage) -> list[LayerChoice]:
        return _choices(attached(stage.model, self.name))

    def _deciding(self, stage: Stage) -> int:
        """Return the number of steps of the decision; 0 in the first domain."""
        return math.ceil(self.config.decide * stage.steps) if {*self._paths} - {stage.domain} else 0

    def _decide(self, stage: Stage) -> None:
        self._paths[stage.domain] = [layer.decided(stage) or stage.domain for layer in self._layers(stage)]

    def _build(self, model: nn.Module, owners: Sequence[Sequence[str]]) -> AfterFeedForward:
        """Return new adapters for each layer, with places for those that the owners in each layer added."""
        options, sites = self.config, feed_forward_outputs(model)
        widths = [(site.units, max(1, site.units // options.reduction_factor)) for site in sites]
        return AfterFeedForward(
            LayerChoice(partial(Bottleneck, *width, options.activation), of, options.tries, options.start)
            for width, of in zip(widths, owners or [()] * len(sites), strict=True)
        )

    def _fill(self, adapter: nn.Module, owner: str, number: int) -> None:
        with torch.no_grad():
            for name, parameter in adapter.named_parameters():
                kept = self._adapters.get(f"{owner}/{number}.{name}")
                if kept is None or kept.shape != parameter.shape:
                    raise self._other_model()
                parameter.copy_(kept)

    def _other_model(self) -> MethodError:
        return MethodError(
            f"Method '{self.label}' remembers adapters that do not fit this model. Its memory belongs to another model "
            "or another `reduction_factor`."
        )


def _choices(built: AfterFeedForward) -> list[LayerChoice]:
    return [layer for layer in built.layers if isinstance(layer, LayerChoice)]
