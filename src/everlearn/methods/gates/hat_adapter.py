"""HAT-Adapter: hard attention inside adapters of a frozen model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F  # noqa: N812
from pydantic import Field
from torch import Tensor, nn

from everlearn.methods.adapters.bottleneck import feed_forward_outputs
from everlearn.methods.base import register
from everlearn.methods.engine.attachment import freeze_base
from everlearn.methods.gates.gated_mlp import GatedMLP, GatedNetworks, hidden_size
from everlearn.methods.gates.hard_attention import GatedAttachment
from everlearn.methods.gates.hard_attention_method import HardAttentionMethod
from everlearn.model.anatomy import Site


@register
class HATAdapter(HardAttentionMethod):
    """Hard attention to the task in adapters (the baseline HAT-Adapter of DAS, arXiv 2302.03241).

    After the second feed-forward projection of each layer, before dropout, residual and normalisation,

        x ← x + up(down(x)),   down: H → d' → d',   up: d' → H → H,

    where every layer is h ← a ⊗ GELU(W h + b) with the gates a = σ(s · e) of HAT (arXiv 1801.01423), at test time those
    of the text's domain. The adapters are shared by all domains and the model itself is frozen. For units that earlier
    domains use, updates of rows of the first layer of `down` and of `up` are multiplied by 1 − a, those of weights of
    the second layer by 1 − min(a_i, a_j).
    """

    name = "hat_adapter"
    title = "HAT-Adapter"
    summary = "gated adapters shared by all domains"
    paper = "https://arxiv.org/abs/2302.03241"
    freezes = True

    class Config(HardAttentionMethod.Config):
        reduction_factor: int = Field(16, ge=1)
        """Hidden size divided by the width d' of the adapter (1 at least)."""
        freeze_base_at_end_task: bool = False
        """Fine-tune only the adapters and the classification head, as in the released code; the paper fine-tunes the
        model too."""

    config: Config

    def build(self, model: nn.Module, domains: int) -> GatedAttachment:
        return GatedAdapters(feed_forward_outputs(model), self.inner(model), self.config.smax)

    def inner(self, model: nn.Module) -> int:
        """Return d', the width of the adapters of a model."""
        return max(1, hidden_size(model) // self.config.reduction_factor)

    def at_end_task(self, model: nn.Module, attachment: GatedAttachment) -> None:
        if self.config.freeze_base_at_end_task:
            freeze_base(model)


class GatedAdapters(GatedNetworks):
    """A gated adapter after each of some projections.

    Args:
        sites: the sites whose module outputs the adapters change.
        inner: width between `down` and `up`.
        smax: the largest s.
    """

    def __init__(self, sites: Sequence[Site], inner: int, smax: float) -> None:
        units: dict[str, int] = {}
        for number, site in enumerate(sites):
            units |= GatedAdapter.units(f"{number}", site.units, inner)
        super().__init__(units, smax)
        self.modules_after = [site.module for site in sites]
        self.adapters = nn.ModuleList(
            GatedAdapter(f"{number}", site.units, inner, self.attention.values) for number, site in enumerate(sites)
        )

    def place(self, model: nn.Module) -> None:
        super().place(model)
        for path, adapter in zip(self.modules_after, self.adapters, strict=True):
            model.get_submodule(path).register_forward_hook(adapter.hook)  # type: ignore[arg-type]


class GatedAdapter(nn.Module):
    """x + up(down(x)), both of two gated layers."""

    def __init__(self, name: str, hidden: int, inner: int, values: dict[str, Tensor]) -> None:
        super().__init__()
        self.down = GatedMLP(f"{name}.down", (hidden, inner, inner), F.gelu, values)
        self.up = GatedMLP(f"{name}.up", (inner, hidden, hidden), F.gelu, values)
        self.up.start()

    @staticmethod
    def units(name: str, hidden: int, inner: int) -> dict[str, int]:
        down = GatedMLP.units(f"{name}.down", (hidden, inner, inner))
        return down | GatedMLP.units(f"{name}.up", (inner, hidden, hidden))

    def forward(self, hidden: Tensor) -> Tensor:
        changed: Tensor = hidden + self.up(self.down(hidden))
        return changed

    def hook(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return self.forward(output)
