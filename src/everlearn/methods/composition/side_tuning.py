"""Side-tuning: a small network beside a frozen model, and a blend of the outputs of both."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from pydantic import Field
from torch import Tensor, nn

from everlearn.methods.base import Cost, Method, MethodConfig, Needs, Setting, Variant, register
from everlearn.methods.composition.beside_layers import BesideLayers, layers_path, layers_read, plain
from everlearn.methods.composition.composed import Learnt
from everlearn.methods.engine.attachment import (
    attached,
    computing_like,
    detach,
    fill,
    freeze_base,
    learnt_by,
    refuse_other_additions,
    without_decay,
)
from everlearn.methods.stage import Reading, Stage
from everlearn.methods.state import ByDomain
from everlearn.model.training_mode import evaluating
from everlearn.model.vocabulary_head import config_of

SHARED = "shared"
"""Key of the side network that is shared by the whole stream."""


@register
class SideTuning(Method):
    """Side-tuning (arXiv 1912.13503, section 3): R(x) = α B(x) + (1 − α) S(x), α = sigmoid(s).

    B is the frozen model, S a side network of the same kind, which reads the same tokens: the embeddings of B and some
    layers of its own, as wide as those of B. B(x) and S(x) are the outputs of the last layer, before any normalisation
    after it; in an encoder-decoder those of the encoder. S and s are trained, s without weight decay, from s = 0 (α =
    ½).

    Each domain has its own side network, so nothing that an earlier domain learnt can change: there is no forgetting
    and no backward transfer. A text is read with the network of its domain, a text of no learnt domain by B alone. With
    `shared` one side network is trained on the whole stream and may forget.
    """

    name = "side_tuning"
    title = "Side-tuning"
    summary = "a small network beside a frozen base for each domain, or for all"
    paper = "https://arxiv.org/abs/1912.13503"
    kinds = ("isolation", "ensembling")
    needs = Needs(domain_id_test=True, extra_parameters=True, peft=False, anatomy=True, memory="parameters")
    freezes = True
    variants = (
        Variant(
            "side_tuning_released",
            "Side-tuning (released)",
            "As in the authors' demonstration: a network of two layers merges B(x) and S(x), instead of α.",
            {"merge": "mlp"},
        ),
    )

    class Config(MethodConfig):
        layers: int = Field(3, ge=1)
        """Number of layers of a side network; all of them for a model with fewer layers."""
        initialise: Literal["copy", "random", "distilled"] = "copy"
        """Initial S: copies of B's first layers; random weights, by the class of the model; or copies distilled from B
        (the paper, for a side network smaller than B)."""
        samples: int = Field(512, ge=1)
        """Blocks of the domain that S is distilled on."""
        distil_rate: float = Field(3e-4, gt=0, allow_inf_nan=False)
        """Learning rate of the distillation (Adam)."""
        merge: Literal["blend", "mean", "mlp"] = "blend"
        """α is learnt; or constant ½, as in the released code without its blend; or R(x) is the output of a two-layer
        network on B(x) and S(x)."""
        start: float = Field(0.0, allow_inf_nan=False)
        """s at the beginning of a domain. The released code has 1.39 (α = 0.8) for imitation learning."""
        shared: bool = False
        """One side network for the whole stream instead of one for each domain."""
        freeze_base_at_end_task: bool = False
        """Fine-tune only the side network, the merge and the classification head."""

        def without_effect(self) -> Iterator[tuple[Sequence[str], str]]:
            if self.initialise != "distilled":
                yield ("distil_rate",), f"with `initialise: {self.initialise}`"
            if self.merge != "blend":
                yield ("start",), f"with `merge: {self.merge}`"

    config: Config
    _learnt = ByDomain()
    """Every side network."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.needs = replace(
            type(self).needs,
            domain_id_test=not self.config.shared,
            importance_pass=self.config.initialise == "distilled",
        )

    def check(self, setting: Setting) -> None:
        super().check(setting)
        refuse_other_additions(self, setting)

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of a side network and its merge, stored for each domain unless shared."""
        layers = layers_read(model)
        side = sum(p.numel() for layer in layers[: self.config.layers] for p in layer.parameters())
        with torch.device("meta"):
            merge = sum(p.numel() for p in self._merge(model).parameters() if p.requires_grad)
        kept = 4 * (side + merge)
        return Cost(
            memory_bytes=2 * kept,
            disk_bytes=kept if self.config.shared else 0,
            disk_bytes_per_domain=0 if self.config.shared else kept,
            parameters=side + merge,
            passes_per_step=min(self.config.layers, len(layers)) / len(layers),
            passes_per_domain=self.config.samples if self.config.initialise == "distilled" else 0,
        )

    def attach(self, stage: Stage) -> None:
        kept = self._learnt.get(SHARED) if self.config.shared else None
        net = self._build(stage.model, kept)
        net.attach(stage.model, self.name, freeze=True)
        if kept is None and self.config.initialise == "distilled":
            self._distil(stage, net)

    def parameter_groups(self, stage: Stage, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Exclude s from weight decay, which would pull α towards ½."""
        merge = attached(stage.model, self.name).merge
        return without_decay(groups, merge.s) if isinstance(merge, SideBlend) else groups

    def detach(self, stage: Stage) -> None:
        net = detach(stage.model, self.name)
        self._learnt[SHARED if self.config.shared else stage.domain] = learnt_by(dict(net.named_parameters()))

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        """Attach the side network of the text's domain, or the shared one; none for a text of no learnt domain."""
        kept = self._learnt.get(SHARED if self.config.shared else str(reading.domain))
        if kept is not None:
            if self.config.freeze_base_at_end_task:
                freeze_base(model)
            self._build(model, kept).attach(model, self.name)
        return model

    def _build(self, model: nn.Module, kept: Learnt | None) -> SideNet:
        layers = copy.deepcopy(layers_read(model)[: self.config.layers])
        layers.requires_grad_(True)
        if kept is None and self.config.initialise == "random":
            draw: Any = model._init_weights
            for module in layers.modules():
                draw(module)
        net = SideNet(layers, self._merge(model))
        if kept is not None:
            fill(dict(net.named_parameters()), kept, self)
        return net

    def _merge(self, model: nn.Module) -> nn.Module:
        features = config_of(model).hidden_size
        if self.config.merge == "mlp":
            return TwoLayers(features)
        learns = self.config.merge == "blend"
        return SideBlend(self.config.start if learns else 0.0, learns)

    def _distil(self, stage: Stage, net: SideNet) -> None:
        """Minimise Σ ‖S(x) − B(x)‖² / Σ ‖B(x)‖², summed over the tokens of a batch, one step per batch of the domain.

        Padding of encoder-decoder rows is excluded.
        """
        targets: list[Tensor] = []
        weights = list(net.layers.parameters())
        optimizer = torch.optim.Adam(weights, lr=self.config.distil_rate)
        last = layers_read(stage.model)[-1]
        hook = last.register_forward_hook(lambda *args: targets.append(plain(args[-1])), prepend=True)
        with hook, evaluating(stage.model):
            for batch in stage.batches(self.config.samples):
                inputs = stage.objective.inputs(batch)
                stage.objective.hidden(stage.model, inputs)
                side, target = net.side, targets.pop().detach()
                mask = inputs.get("attention_mask")
                if mask is not None and mask.dim() == 2:  # other masks isolate the documents of full rows
                    side, target = side[mask.bool()], target[mask.bool()]
                loss = F.mse_loss(side, target) / target.square().mean()
                for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                    weight.grad = gradient
                optimizer.step()
                optimizer.zero_grad()


class SideNet(BesideLayers):
    """S, and the merge of its output with that of B.

    A pass of S is a pass of B with the layers replaced by those of S, so that embeddings, masks, positions and rotary
    tables are those of B.

    Args:
        layers: the layers of S.
        merge: function from B(x) and S(x), [B, S, H] each, to R(x).

    Attributes:
        side: S(x) of the last pass.
    """

    def __init__(self, layers: nn.ModuleList, merge: nn.Module) -> None:
        super().__init__()
        self.layers, self.merge = layers, merge
        self.side = torch.empty(0)
        self.path, self.reading = "", False

    def place(self, model: nn.Module) -> None:
        super().place(model)
        self.path = layers_path(model)
        self.layers[-1].register_forward_hook(self.keep)

    def read(self, reader: nn.Module, inputs: dict[str, Any], document: Tensor) -> None:
        if self.reading:
            return
        if "use_cache" in inspect.signature(reader.forward).parameters:
            inputs = inputs | {"use_cache": False}
        parent, _, name = self.path.rpartition(".")
        owner = reader.get_submodule(parent)
        layers = getattr(owner, name)
        self.reading = True
        setattr(owner, name, self.layers)
        try:
            reader(**inputs)
        finally:
            setattr(owner, name, layers)
            self.reading = False

    def keep(self, layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Capture the output of S's last layer; a forward hook."""
        self.side = plain(output)

    def leave(self, hidden: Tensor) -> Tensor:
        merged: Tensor = self.merge(hidden, self.side)
        return merged


class SideBlend(nn.Module):
    """α B + (1 − α) S, α = sigmoid(s).

    Args:
        start: initial value of s.
        trained: whether s is trained.
    """

    def __init__(self, start: float, trained: bool) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.full((1,), start), requires_grad=trained)

    def forward(self, base: Tensor, side: Tensor) -> Tensor:
        return torch.lerp(side, base, torch.sigmoid(self.s).to(base.dtype))


class TwoLayers(nn.Module):
    """W₂ relu(W₁ [B; S] + b₁) + b₂, with the width of B inside."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2 * features, features), nn.Linear(features, features)

    def forward(self, base: Tensor, side: Tensor) -> Tensor:
        with computing_like(base):
            merged: Tensor = self.second(F.relu(self.first(torch.cat([base, side], -1))))
        return merged
