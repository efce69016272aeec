"""CPT: hard attention in plug-ins parallel to the attention and feed-forward networks of a frozen model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F  # noqa: N812
from pydantic import Field
from torch import Tensor, nn

from everlearn.methods.base import Setting, Stage, register
from everlearn.methods.engine.attachment import freeze_base, refuse_without_attention
from everlearn.methods.gates.gated_mlp import GatedMLP, GatedNetworks, hidden_size
from everlearn.methods.gates.hard_attention import GatedAttachment
from everlearn.methods.gates.hard_attention_method import HardAttentionMethod
from everlearn.model.anatomy import anatomy


@register
class CPT(HardAttentionMethod):
    """Continual post-training with CL-plugins (arXiv 2210.05549).

    Parallel to each attention and feed-forward network f there is a plug-in of two layers with hard attention (arXiv
    1801.01423),

        f(x) + a₂ ⊗ ReLU(W₂ (a₁ ⊗ ReLU(W₁ x + b₁)) + b₂),   a = σ(s · e),

    shared by all domains; the model is frozen. At the end of a domain its gates become 0 or 1 (a > ½ at s = smax):
    these are used at test time and determine which units are taken, so that a learnt domain does not change at all. As
    in the released code, the update is masked: Adam would undo a mask on gradients.
    """

    name = "cpt"
    title = "CPT"
    summary = "gated plug-ins beside a frozen base"
    paper = "https://arxiv.org/abs/2210.05549"
    freezes = True
    binary: ClassVar[bool] = True

    units: ClassVar[tuple[str, ...]] = ("head", "output")

    class Config(HardAttentionMethod.Config):
        attention_size: float = Field(2 / 3, gt=0)
        """Width of a plug-in of attention, as a factor of the hidden size (512 of 768 as published)."""
        feed_forward_size: float = Field(1.0, gt=0)
        """Width of a plug-in of a feed-forward network, as a factor of the hidden size (768 of 768 as published)."""
        train_normalisation: bool = False
        """Train the normalisation layers of the model too, as in the released code. All domains share them and nothing
        protects them, so earlier domains drift."""
        freeze_base_at_end_task: bool = False
        """Fine-tune only the plug-ins and the classification head; as published the model is fine-tuned too."""

    config: Config

    def check(self, setting: Setting) -> None:
        super().check(setting)
        refuse_without_attention(self, setting, "adds plug-ins to attention")

    def build(self, model: nn.Module, domains: int) -> GatedAttachment:
        hidden = hidden_size(model)
        sizes = {"head": self.config.attention_size, "output": self.config.feed_forward_size}
        inner = {kind: max(1, round(size * hidden)) for kind, size in sizes.items()}
        return PlugIns(list(sublayers(model)), hidden, inner, self.config.smax)

    def attach(self, stage: Stage) -> None:
        super().attach(stage)
        if self.config.train_normalisation:
            for module in stage.model.modules():
                if "norm" in type(module).__name__.lower():
                    for parameter in module.parameters(recurse=False):
                        parameter.requires_grad_(True)

    def at_end_task(self, model: nn.Module, attachment: GatedAttachment) -> None:
        if self.config.freeze_base_at_end_task:
            freeze_base(model)


@dataclass(frozen=True)
class Sublayer:
    """An attention or feed-forward network, with the paths of its first and last projection."""

    kind: str
    first: str
    last: str


def sublayers(model: nn.Module) -> Iterator[Sublayer]:
    """Yield the sublayers from the first layer to the last."""
    first = ""
    for site in anatomy(model).sites:
        if site.kind != "output":
            first = site.owned[0].parameter.rsplit(".", 1)[0]
        if site.kind != "neuron":
            yield Sublayer(site.kind, first, site.module)


class PlugIns(GatedNetworks):
    """A plug-in for each of some sublayers.

    Args:
        places: the sublayers.
        hidden: number of input and output features of a sublayer.
        inner: width of the plug-ins by kind of sublayer.
        smax: the largest s.
    """

    def __init__(self, places: Sequence[Sublayer], hidden: int, inner: dict[str, int], smax: float) -> None:
        sizes = [(hidden, inner[place.kind], hidden) for place in places]
        units: dict[str, int] = {}
        for number, each in enumerate(sizes):
            units |= GatedMLP.units(f"{number}", each)
        super().__init__(units, smax)
        self.places = list(places)
        self.plugins = nn.ModuleList(
            PlugIn(f"{number}", each, self.attention.values) for number, each in enumerate(sizes)
        )

    def place(self, model: nn.Module) -> None:
        """Register hooks that read the input of a sublayer's first projection and change the output of its last."""
        super().place(model)
        for place, plugin in zip(self.places, self.plugins, strict=True):
            model.get_submodule(place.first).register_forward_pre_hook(plugin.on_first)  # type: ignore[arg-type]
            model.get_submodule(place.last).register_forward_hook(plugin.on_last)  # type: ignore[arg-type]


class PlugIn(nn.Module):
    """A gated network in parallel to a sublayer."""

    def __init__(self, name: str, sizes: tuple[int, int, int], values: dict[str, Tensor]) -> None:
        super().__init__()
        self.network = GatedMLP(name, sizes, F.relu, values)
        self.network.start()
        self.input: Tensor | None = None

    def on_first(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Capture the input of the sublayer; a forward pre-hook of the first projection."""
        self.input = inputs[0]

    def on_last(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """Add the output of the plug-in; a forward hook of the last projection."""
        captured, self.input = self.input, None
        changed: Tensor = output + self.network(captured)
        return changed
