"""The options of DAS, each a choice of the paper or of its released code, and its published variants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field

from everlearn.importance.normalisation import Normalisation
from everlearn.importance.proxy import Representation, Softmax, Text
from everlearn.importance.units import Reduce
from everlearn.methods.base import ApplyTo, MethodConfig, Variant
from everlearn.methods.engine.processes import GatherGrad
from everlearn.methods.masks.contrast import Pair


class DASConfig(MethodConfig):
    """Options of DAS. The defaults are the paper's; D1 to D10 are deviations of the released code (docs/das.md)."""

    # The mask
    strength: float = Field(1.0, ge=0, le=1)
    """Updates of the parameters of a unit are multiplied by 1 − strength · I; 0 disables the mask."""
    apply_to: ApplyTo = "update"
    """Whether the mask applies to updates or gradients. Paper and released code mask gradients, which Adam's
    normalisation mostly undoes."""
    qkv_mask_axis: Literal["out", "in"] = "out"
    """Axis along which heads are masked in queries, keys and values: their own rows, or the input columns as in the
    released code, which also masks the bias of the attention's output, as if its entries belonged to heads."""
    units: tuple[Literal["head", "neuron", "output"], ...] = Field(("head", "neuron", "output"), min_length=1)
    """Kinds of units with importance: they are masked, and gated in the contrastive loss."""

    # Importance
    samples: int = Field(10_000, ge=1)
    """Blocks for measuring importance, at most one pass over the domain."""
    general: Literal["proxy", "corpus_kl", "corpus_loss", "none"] = "proxy"
    """How importance for general knowledge is measured before the first domain: `proxy`, the paper's proxy on the text
    of that domain; `corpus_kl` or `corpus_loss`, the proxy or the training loss on the recipe's general corpus (the
    paper's Wiki+KL and Wiki+MLM); or not at all."""
    accumulate: bool = True
    """Accumulate importance for general knowledge and every earlier domain. Otherwise only general knowledge counts,
    measured again before each domain."""
    scores: Literal["measured", "random"] = "measured"
    """Source of raw importance; `random` samples it from U(0, 1) instead of measuring it."""
    reduce: Reduce = "abs_per_sample"
    """Raw importance from gradients: the mean over samples of |∂L/∂g|; the sum of signed gradients; or a sum in
    which the first batches count most, because gradients are never zeroed (both as in the released code)."""
    normalise: Normalisation = "tanh_abs"
    """Normalisation of importance to [0, 1): the paper's |tanh(z)| also protects the least important units; `relu_tanh`
    only those above the average; `rank` is the share of units that are less important."""
    domain_input: Text = "masked"
    """Text for the importance of a domain: as the objective masks it, or unmasked as in the released code."""
    domain_dropout: bool = False
    """Measure the importance of a domain with dropout, as in the released code; the paper does not say."""
    proxy_dropout: bool = True
    """Run the two passes of the proxy with dropout. Without it, as in the released code, they are equal and
    importance is rounding noise."""
    proxy_input: Text = "plain"
    """Text for the proxy: unmasked, or as the objective masks it (released code)."""
    proxy_output: Representation = "hidden"
    """What the proxy compares: last hidden states, or logits (over the vocabulary for every token)."""
    proxy_softmax: Softmax = "features"
    """Axis of the distributions of the proxy's divergence; the released code uses the sequence."""

    # The contrast
    contrast: float = Field(1.0, ge=0, allow_inf_nan=False)
    """Weight of the contrastive loss; 0 disables it, and its extra rows in each pass."""
    contrast_kind: Literal["full", "specific", "simcse"] = "full"
    """The two representations of a text, and their negatives. `full`: of the full network, against those gated by
    importance I (the paper). `specific`: gated by 1 − I, against the same. `simcse`: of the full network, against other
    texts only."""
    contrast_fraction: float = Field(1.0, gt=0, le=1)
    """Share of each batch in the contrastive loss (2 rows at least); the paper uses the whole batch."""
    temperature: float = Field(0.05, gt=0)
    """τ of the contrastive loss."""
    anchor: Text = "plain"
    """The first representation of a text: of a separate pass over unmasked text, or of the masked pass of the loss,
    which saves a pass. Without masking both are the same."""
    pair: Pair = "correct"
    """Pairs are two representations of one text, or adjacent rows as in the released code."""
    gather_grad: GatherGrad = "full"
    """With several processes, differentiate the rows of every process, or only the local ones, as in the released
    code, where the weight becomes 1/W."""
    stop_gradient_prev: bool = False
    """Do not differentiate through the network gated by I, which saves its backward pass; the paper differentiates."""

    def without_effect(self) -> Iterator[tuple[Sequence[str], str]]:
        if self.scores == "random":
            yield ("reduce", *PROXY, *OF_DOMAINS), "with `scores: random`, which measures nothing"
        if self.general in ("none", "corpus_loss"):
            yield PROXY, f"with `general: {self.general}`"
        if not self.accumulate:
            yield OF_DOMAINS, "with `accumulate: false`, where only general knowledge counts"


PROXY = ("proxy_dropout", "proxy_input", "proxy_output", "proxy_softmax")
"""Options of the proxy for general knowledge alone."""
OF_DOMAINS = ("domain_input", "domain_dropout")
"""Options of the importance of domains alone."""
RELEASED = {
    "proxy_dropout": False,
    "reduce": "signed_cumulative",
    "apply_to": "gradient",
    "qkv_mask_axis": "in",
    "pair": "interleaved",
    "gather_grad": "local",
    "proxy_softmax": "sequence",
    "proxy_input": "masked",
    "domain_input": "plain",
    "domain_dropout": True,
}
"""Deviations of the released code from the paper's equations, D1 to D7, D9 and D10."""

VARIANTS = (
    Variant(
        "das_released",
        "DAS (released code)",
        "DAS with every deviation of the released code from the paper that concerns the method.",
        RELEASED,
    ),
    Variant(
        "das_without_initialisation",
        "DAS (w/o initialization)",
        "No importance for general knowledge: the first domain is learnt without mask and without gated rows.",
        {"general": "none"},
    ),
    Variant(
        "das_without_soft_mask",
        "DAS (w/o softmask)",
        "No mask, and no gated representations in the contrastive loss: plain training with SimCSE.",
        {"strength": 0, "contrast_kind": "simcse"},
    ),
    Variant(
        "das_random",
        "DAS (random)",
        "All importance is random, sampled wherever DAS would measure it, for mask and contrastive loss.",
        {"scores": "random"},
    ),
    Variant(
        "das_without_contrast",
        "DAS (w/o contrast)",
        "The soft-mask only.",
        {"contrast": 0},
    ),
    Variant(
        "das_domain_specific",
        "DAS (domain-specific)",
        "The contrastive loss represents texts by the network gated by 1 − I instead of the full one.",
        {"contrast_kind": "specific"},
    ),
    Variant(
        "das_wiki_mlm",
        "DAS (Wiki+MLM)",
        "Importance for general knowledge is measured by the training loss on the recipe's general corpus.",
        {"general": "corpus_loss"},
    ),
    Variant(
        "das_wiki_kl",
        "DAS (Wiki+KL)",
        "Importance for general knowledge is measured by the dropout proxy on the recipe's general corpus.",
        {"general": "corpus_kl"},
    ),
    Variant(
        "dga",
        "DGA",
        "Protects general knowledge only: heads, by the dropout proxy, measured anew before each domain.",
        {"units": ["head"], "accumulate": False},
        paper="https://arxiv.org/abs/2301.08986",
    ),
)
