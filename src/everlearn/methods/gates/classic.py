"""CLASSIC: hard attention in adapters, and a contrast that brings earlier domains' knowledge into the new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from everlearn.errors import MethodError
from everlearn.methods.adapters.bottleneck import feed_forward_outputs
from everlearn.methods.base import FORWARD, Batch, Cost, Setting, Stage, register
from everlearn.methods.engine.attachment import attached
from everlearn.methods.engine.processes import everywhere, rank
from everlearn.methods.gates.gated_mlp import hidden_size
from everlearn.methods.gates.hard_attention import GatedAttachment, settled
from everlearn.methods.gates.hat_adapter import GatedAdapters, HATAdapter
from everlearn.model.anatomy import Site, kind_of

if TYPE_CHECKING:
    from everlearn.model.objectives import Outputs


@register
class CLASSIC(HATAdapter):
    """Contrastive continual learning with hard attention in adapters (arXiv 2112.02714), as in DAS's comparison.

    HAT-Adapter, and from the second domain on a contrast. With h_k the mean last hidden state of a text under the
    gates of domain k (earlier ones without gradient) and X = [h_1 … h_t],

        A = softmax((W_q X)ᵀ (W_k X)),   Y = γ (W_v X) Aᵀ + X,   y = normalise(dropout(Σ_k Y_k)),

    and SimCLR's loss (arXiv 2002.05709, eq. 1) makes h_t and y of the same text a pair among those of all texts. γ
    starts at 0; W_q and W_k give an eighth of the features, as in the self-attention that this is (arXiv 1805.08318).
    What the original distils into its classifiers, so that they need no domain id, has no place in pre-training.
    """

    name = "classic"
    title = "CLASSIC"
    paper = "https://arxiv.org/abs/2112.02714"

    class Config(HATAdapter.Config):
        """Options of CLASSIC."""

        contrast: float = Field(1.0, ge=0, allow_inf_nan=False)
        """Weight of the contrast; 0 switches it off, and with it the passes with earlier domains' gates."""
        temperature: float = Field(1.0, gt=0)
        """τ of the contrast."""
        contrast_dropout: float = Field(0.1, ge=0, lt=1)
        """Dropout on Σ_k Y_k."""
        past_gates: Literal["own", "current"] = "own"
        """Gates of the passes for earlier domains: each domain's own; the released code uses the current domain's in
        all of them, so that they differ by dropout alone."""

    config: Config

    def check(self, setting: Setting) -> None:
        """The contrast needs representations of texts."""
        super().check(setting)
        if self.config.contrast > 0 and kind_of(setting.model) == "encoder-decoder":
            raise MethodError(
                f"Method '{self.label}', option 'contrast': it compares representations of whole texts, but an "
                "encoder-decoder's last layer represents only the answer. Set `contrast: 0`."
            )

    def cost(self, model: nn.Module) -> Cost:
        """That of HAT-Adapter, and for each earlier domain a forward pass (the number given is for one)."""
        return replace(super().cost(model), passes_per_step=FORWARD if self.config.contrast else 0.0)

    def build(self, model: nn.Module, domains: int) -> GatedAttachment:
        """An adapter after each feed-forward network, and the mixing of representations."""
        mixing = Mixing(hidden_size(model), self.config.contrast_dropout)
        return ContrastedAdapters(feed_forward_outputs(model), self.inner(model), self.config.smax, mixing)

    def at_end_task(self, model: nn.Module, attachment: GatedAttachment) -> None:
        """The mixing has no part in reading a text."""
        super().at_end_task(model, attachment)
        attachment.get_submodule("mixing").requires_grad_(False)

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        """The batch's representations under the gates of each earlier domain, [B, t − 1, H]."""
        told = super().before_forward(stage, batch)
        if not self.config.contrast or not self._embeddings:
            return told
        attention, inputs = attached(stage.model, self.name).attention, stage.objective.inputs(batch)
        past = []
        with torch.no_grad():
            for embedding in self._embeddings.values():
                if self.config.past_gates == "own":
                    attention.fixed = settled(embedding, self.config.smax).to(attention.embedding.device)
                past.append(stage.objective.hidden(stage.model, inputs).float().mean(1))
        attention.fixed = None
        return told | {"past": torch.stack(past, dim=1)}

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """λ · R, and the contrast when there are earlier domains."""
        losses = super().extra_losses(stage, batch, outputs)
        if (past := batch.get("classic/past")) is not None:
            own = outputs.hidden.float().mean(1)
            mixed = attached(stage.model, self.name).mix(torch.cat([past, own[:, None]], dim=1))
            losses["contrast"] = self.config.contrast * simclr(own, mixed, self.config.temperature)
        return losses


class Mixing(nn.Module):
    """Self-attention over the domains' representations of a text.

    Args:
        hidden: features H.
        dropout: on the sum.
    """

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, max(1, hidden // 8))
        self.key = nn.Linear(hidden, max(1, hidden // 8))
        self.value = nn.Linear(hidden, hidden)
        self.gamma = nn.Parameter(torch.zeros(1))
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        """X, [n, t, H], to y, [n, H]."""
        attention = (self.query(states) @ self.key(states).transpose(1, 2)).softmax(-1)
        mixed = self.gamma * (attention @ self.value(states)) + states
        return F.normalize(self.dropout(mixed.sum(1)), dim=-1)


class ContrastedAdapters(GatedAdapters):
    """Gated adapters with the mixing that the contrast needs.

    Args:
        sites: whose modules' outputs the adapters change.
        inner: size between `down` and `up`.
        smax: the largest s.
        mixing: of the domains' representations.
    """

    def __init__(self, sites: Sequence[Site], inner: int, smax: float, mixing: Mixing) -> None:
        super().__init__(sites, inner, smax)
        self.mixing = mixing
        self.whole: dict[str, Tensor] = {}

    def place(self, model: nn.Module) -> None:
        """Also end every pass with the mixing's parameters in hand."""
        super().place(model)
        model.register_forward_hook(self.tie)

    def tie(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        """Forward hook of the whole model.

        The contrast is computed after the pass, where FSDP2 has sharded the parameters again; so take them now. And
        make them a part of the pass (times 0), or DDP takes them for unused.
        """
        if self.attention.fixed is None:
            self.whole = {name: parameter.clone() for name, parameter in self.mixing.named_parameters()}
            output.logits = output.logits + 0 * torch.stack([value.sum() for value in self.whole.values()]).sum()
        return output

    def mix(self, states: Tensor) -> Tensor:
        """The mixing, with the parameters as the last pass found them."""
        weights, self.whole = self.whole, {}
        mixed: Tensor = functional_call(self.mixing, weights, (states,))
        return mixed


def simclr(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """SimCLR's loss of two views, [n, H] each, over the rows of all processes (arXiv 2002.05709, eq. 1).

    ℓ(i, j) = −log( e^{s(i, j)/τ} / Σ_{k ≠ i} e^{s(i, k)/τ} ), s the cosine, over all 2N rows k, averaged over this
    process's rows i of both views, with j the other view of i. The gathered rows keep their gradient, so that the
    average over processes is the loss of one process with all rows.
    """
    views = [F.normalize(view.float(), dim=-1) for view in (first, second)]
    gathered = [everywhere(view) for view in views]
    mine = torch.arange(len(first), device=first.device) + rank() * len(first)
    own = torch.cat([mine, mine + len(gathered[0])])
    logits = torch.cat(views) @ torch.cat(gathered).T / temperature
    logits = logits.scatter(1, own[:, None], float("-inf"))
    return F.cross_entropy(logits, own.roll(len(first)))
