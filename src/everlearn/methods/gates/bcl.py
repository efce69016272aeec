"""B-CL: share knowledge through capsules and separate domains by hard attention, in adapters of a frozen model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from pydantic import Field
from torch import Tensor, nn

from everlearn.methods.adapters.bottleneck import feed_forward_outputs
from everlearn.methods.base import register
from everlearn.methods.engine.attachment import computing_like
from everlearn.methods.gates.gated_mlp import hidden_size
from everlearn.methods.gates.hard_attention import GatedAttachment
from everlearn.methods.gates.hat_adapter import GatedAdapter, GatedAdapters, HATAdapter
from everlearn.model.anatomy import Site


@register
class BCL(HATAdapter):
    """BERT-based continual learning (arXiv 2112.03271), as in DAS's comparison: HAT-Adapter with capsule networks.

    Each gated adapter has a capsule network in front. For each token with features x, each domain k ≤ t has a semantic
    capsule p_k = squash(W₂ GELU(W₁ x)), which predicts the transfer capsules, u_{j|k} = W_{jk} p_k. Dynamic routing
    (arXiv 1710.09829) gives more weight to predictions that agree: from b = 0, three times

        c = softmax_k(b),   s_j = Σ_k c_{jk} u_{j|k},   b_{jk} ← b_{jk} + ⟨u_{j|k}, squash(s_j)⟩

    with squash(v) = |v|² / (1 + |v|²) · v / |v|. Then x' = x + W_t [s_1 …] and, as in HAT-Adapter, x + up(down(x')).

    The capsules of a domain are its own and are frozen when it ends, so that a learnt domain does not change; the
    released code continues to train them. It also routes complete sequences of one fixed length through one capsule;
    here every token is routed by itself, which supports any length and is required for causal models.
    """

    name = "bcl"
    title = "B-CL"
    summary = "gated adapters and capsules"
    paper = "https://arxiv.org/abs/2112.03271"

    class Config(HATAdapter.Config):
        capsule_size: int = Field(3, ge=1)
        """Number of transfer capsules, and of features of each capsule of either kind."""
        routing_iterations: int = Field(3, ge=1)
        """Rounds of routing."""

    config: Config

    def build(self, model: nn.Module, domains: int) -> GatedAttachment:
        """Create adapters with the capsules of every domain so far; those of the last domain are trained."""
        hidden, inner, sites = hidden_size(model), self.inner(model), feed_forward_outputs(model)
        routers = [
            Capsules(hidden, inner, self.config.capsule_size, domains, self.config.routing_iterations) for _ in sites
        ]
        return CapsuleAdapters(sites, inner, self.config.smax, routers)


class CapsuleAdapters(GatedAdapters):
    """Gated adapters with a capsule network, one of `routers`, in front of each."""

    def __init__(self, sites: Sequence[Site], inner: int, smax: float, routers: Sequence[Capsules]) -> None:
        super().__init__(sites, inner, smax)
        self.adapters = nn.ModuleList(
            CapsuleAdapter(f"{number}", site.units, inner, self.attention.values, router)
            for number, (site, router) in enumerate(zip(sites, routers, strict=True))
        )


class CapsuleAdapter(GatedAdapter):
    """x + up(down(x + capsules(x)))."""

    def __init__(self, name: str, hidden: int, inner: int, values: dict[str, Tensor], capsules: Capsules) -> None:
        super().__init__(name, hidden, inner, values)
        self.capsules = capsules

    def forward(self, hidden: Tensor) -> Tensor:
        changed: Tensor = hidden + self.up(self.down(hidden + self.capsules(hidden)))
        return changed


class Capsules(nn.Module):
    """Semantic capsules of every domain so far, routed to transfer capsules that the last domain reads.

    Args:
        hidden: number of features H.
        inner: width between the two layers of a capsule.
        size: number of transfer capsules, and features of a capsule.
        domains: number of domains; all but the last are frozen.
        iterations: rounds of routing.
    """

    def __init__(self, hidden: int, inner: int, size: int, domains: int, iterations: int) -> None:
        super().__init__()
        self.domains = nn.ModuleList(SemanticCapsule(hidden, inner, size) for _ in range(domains))
        self.domains[:-1].requires_grad_(False)
        self.iterations = iterations

    def forward(self, features: Tensor) -> Tensor:
        """Return the contribution of the shared knowledge, [..., H] to [..., H]."""
        with computing_like(features):
            predictions = torch.stack([domain(features) for domain in self.domains], dim=-3)
            reader: SemanticCapsule = self.domains[-1]  # type: ignore[assignment]
            return reader.reading(route(predictions, self.iterations).flatten(-2))


class SemanticCapsule(nn.Module):
    """The capsule of one domain, its predictions of the transfer capsules, and its projection of the routed ones."""

    def __init__(self, hidden: int, inner: int, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, inner)
        self.capsule = nn.Linear(inner, size)
        self.route = nn.Parameter(torch.randn(size, size, size))
        self.reading = nn.Linear(size * size, hidden)
        # Initially the projection is 0, so that the function of the model is unchanged.
        nn.init.zeros_(self.reading.weight)
        nn.init.zeros_(self.reading.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return u_{j|k}, [..., H] to [..., transfer capsules, size]."""
        capsule = squash(self.capsule(F.gelu(self.inner(features))))
        return torch.einsum("...c,jcd->...jd", capsule, self.route)


def squash(vectors: Tensor) -> Tensor:
    """Return |v|² / (1 + |v|²) · v / |v| along the last dimension: same direction, length less than 1."""
    square = vectors.square().sum(-1, keepdim=True)
    # |v| / (1 + |v|²) · v; the small term makes the root differentiable at 0.
    return vectors * (square + 1e-12).sqrt() / (1 + square)


def route(predictions: Tensor, iterations: int) -> Tensor:
    """Route by agreement (arXiv 1710.09829, procedure 1).

    Args:
        predictions: u_{j|k}, [..., k, j, d].
        iterations: rounds.

    Returns:
        s_j of the last round, [..., j, d].
    """
    logits = predictions.new_zeros(predictions.shape[:-1])
    for _ in range(iterations - 1):
        votes = _votes(predictions, logits)
        logits = logits + (predictions * squash(votes).unsqueeze(-3)).sum(-1)
    return _votes(predictions, logits)


def _votes(predictions: Tensor, logits: Tensor) -> Tensor:
    return (logits.softmax(-2).unsqueeze(-1) * predictions).sum(-3)
