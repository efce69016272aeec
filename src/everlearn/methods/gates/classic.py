"""CLASSIC: hard attention in adapters, and a contrastive loss that transfers knowledge of earlier domains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

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
from everlearn.model.content import counted, mean_state
from everlearn.model.objectives import Outputs


@register
class CLASSIC(HATAdapter):
    """Contrastive continual learning with hard attention in adapters (arXiv 2112.02714), as in DAS's comparison.

    HAT-Adapter, with a contrastive loss from the second domain on. With h_k the mean last hidden state of a text under
    the gates of domain k (earlier ones without gradient) and X = [h_1 … h_t],

        A = softmax((W_q X)ᵀ (W_k X)),   Y = γ (W_v X) Aᵀ + X,   y = normalise(dropout(Σ_k Y_k)),

    and the loss of SimCLR (arXiv 2002.05709, eq. 1) makes h_t and y of the same text a pair among those of all texts. γ
    starts at 0; W_q and W_k project to an eighth of the features, as in the self-attention of arXiv 1805.08318. The
    distillation of the original into its classifiers, which removes the need for a domain id, does not apply to
    pre-training.
    """

    name = "classic"
    title = "CLASSIC"
    summary = "gated adapters and a contrastive loss over domains"
    paper = "https://arxiv.org/abs/2112.02714"

    class Config(HATAdapter.Config):
        contrast: float = Field(1.0, ge=0, allow_inf_nan=False)
        """Weight of the contrastive loss; 0 disables it, and the passes with earlier domains' gates."""
        temperature: float = Field(1.0, gt=0)
        """τ of the contrastive loss."""
        contrast_dropout: float = Field(0.1, ge=0, lt=1)
        """Dropout on Σ_k Y_k."""
        past_gates: Literal["own", "current"] = "own"
        """Gates of the passes for earlier domains: each domain's own; the released code uses the current domain's in
        all of them, so that they differ by dropout only."""

    config: Config

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if self.config.contrast > 0 and kind_of(setting.model) == "encoder-decoder":
            raise MethodError(
                f"Method '{self.label}', option 'contrast': the loss compares representations of complete texts, but "
                "an encoder-decoder's last layer represents only the answer. Set `contrast: 0`."
            )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of HAT-Adapter, plus a forward pass per earlier domain (the number is for one)."""
        return replace(super().cost(model), passes_per_step=FORWARD if self.config.contrast else 0.0)

    def build(self, model: nn.Module, domains: int) -> GatedAttachment:
        """Create an adapter after each feed-forward network, and the mixing of representations."""
        mixing = Mixing(hidden_size(model), self.config.contrast_dropout)
        return ContrastedAdapters(feed_forward_outputs(model), self.inner(model), self.config.smax, mixing)

    def at_end_task(self, model: nn.Module, attachment: GatedAttachment) -> None:
        """Freeze the mixing, which is not used at test time."""
        super().at_end_task(model, attachment)
        attachment.get_submodule("mixing").requires_grad_(False)

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        """Compute the representations of the batch under the gates of each earlier domain, [B, t − 1, H]."""
        tensors = super().before_forward(stage, batch)
        if not self.config.contrast or not self._embeddings:
            return tensors
        attention, inputs = attached(stage.model, self.name).attention, stage.objective.inputs(batch)
        past = []
        with torch.no_grad():
            for embedding in self._embeddings.values():
                if self.config.past_gates == "own":
                    attention.fixed = settled(embedding, self.config.smax).to(attention.embedding.device)
                past.append(mean_state(stage.objective.hidden(stage.model, inputs), counted(batch)))
        attention.fixed = None
        return tensors | {"past": torch.stack(past, dim=1)}

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return λ · R, and the contrastive loss if there are earlier domains."""
        losses = super().extra_losses(stage, batch, outputs)
        if (past := batch.get("classic/past")) is not None:
            own = mean_state(outputs.hidden, counted(batch))
            mixed = attached(stage.model, self.name).mix(torch.cat([past, own[:, None]], dim=1))
            losses["contrast"] = self.config.contrast * simclr(own, mixed, self.config.temperature)
        return losses


class Mixing(nn.Module):
    """Self-attention over the domains' representations of a text.

    Args:
        hidden: number of features H.
        dropout: dropout on the sum.
    """

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, max(1, hidden // 8))
        self.key = nn.Linear(hidden, max(1, hidden // 8))
        self.value = nn.Linear(hidden, hidden)
        self.gamma = nn.Parameter(torch.zeros(1))
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        """Mix X, [n, t, H], to y, [n, H]."""
        attention = (self.query(states) @ self.key(states).transpose(1, 2)).softmax(-1)
        mixed = self.gamma * (attention @ self.value(states)) + states
        return F.normalize(self.dropout(mixed.sum(1)), dim=-1)


class ContrastedAdapters(GatedAdapters):
    """Gated adapters with the mixing of the domains' representations that the contrastive loss needs."""

    def __init__(self, sites: Sequence[Site], inner: int, smax: float, mixing: Mixing) -> None:
        super().__init__(sites, inner, smax)
        self.mixing = mixing
        self.captured: dict[str, Tensor] = {}

    def place(self, model: nn.Module) -> None:
        """Register hooks on the adapters, and one that captures the parameters of the mixing at the end of a pass."""
        super().place(model)
        model.register_forward_hook(self.capture)

    def capture(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        """Capture the parameters of the mixing; a forward hook of the complete model.

        The contrastive loss is computed after the pass, where FSDP2 has sharded the parameters again, so they are
        captured here. They are also added to the output (times 0), or DDP would regard them as unused.
        """
        if self.attention.fixed is None:
            self.captured = {name: parameter.clone() for name, parameter in self.mixing.named_parameters()}
            output.logits = output.logits + 0 * torch.stack([value.sum() for value in self.captured.values()]).sum()
        return output

    def mix(self, states: Tensor) -> Tensor:
        """Apply the mixing with the parameters that the last pass captured."""
        weights, self.captured = self.captured, {}
        mixed: Tensor = functional_call(self.mixing, weights, (states,))
        return mixed


def simclr(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return the SimCLR loss of two views, [n, H] each, over the rows of all processes (arXiv 2002.05709, eq. 1).

    ℓ(i, j) = −log( e^{s(i, j)/τ} / Σ_{k ≠ i} e^{s(i, k)/τ} ), s the cosine, over all 2N rows k, averaged over the rows
    i of this process in both views, with j the other view of i. Gathered rows keep their gradient, so the average over
    processes equals the loss of one process with all rows.
    """
    views = [F.normalize(view.float(), dim=-1) for view in (first, second)]
    gathered = [everywhere(view) for view in views]
    mine = torch.arange(len(first), device=first.device) + rank() * len(first)
    own = torch.cat([mine, mine + len(gathered[0])])
    logits = torch.cat(views) @ torch.cat(gathered).T / temperature
    logits = logits.scatter(1, own[:, None], float("-inf"))
    return F.cross_entropy(logits, own.roll(len(first)))
