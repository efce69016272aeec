"""The options of DAS, each a choice of the paper or of its released code, and its published variants."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from everlearn.importance.proxy import Representation, Softmax, Text
from everlearn.importance.scores import Normalisation
from everlearn.importance.units import Reduce
from everlearn.methods.base import ApplyTo, MethodConfig, Variant
from everlearn.methods.engine.processes import GatherGrad
from everlearn.methods.masks.contrast import Pair


class DASConfig(MethodConfig):
    """Options of DAS. The defaults are the paper's; D1 to D10 are deviations of the released code (docs/das.md)."""

    # The mask
    strength: float = Field(1.0, ge=0, le=1)
    """Parameters of a unit change by 1 − strength · I of what they would; 0 switches the mask off."""
    apply_to: ApplyTo = "update"
    """What the mask acts on. Paper and released code (D4) say gradients, which Adam's normalisation mostly undoes."""
    qkv_mask_axis: Literal["out", "in"] = "out"
    """Along what heads are masked in queries, keys and values: their own rows, or the input columns as in the released
    code (D5), which masks the bias of the attention's output along heads too, although it has none."""
    units: tuple[Literal["head", "neuron", "output"], ...] = Field(("head", "neuron", "output"), min_length=1)
    """Kinds of unit that have importance: they are masked, and gated in the contrast."""

    # Importance
    samples: int = Field(10_000, ge=1)
    """Blocks that importance is measured on, at most one pass over the domain."""
    general: Literal["proxy", "corpus_kl", "corpus_loss", "none"] = "proxy"
    """Importance for general knowledge, before the first domain: the paper's proxy on that domain's text; the proxy, or
    the training loss, on the recipe's general corpus (the paper's Wiki+KL and Wiki+MLM); or none."""
    accumulate: bool = True
    """Keep what matters to general knowledge and to every earlier domain. Off, only general knowledge counts, measured
    anew before each domain."""
    scores: Literal["measured", "random"] = "measured"
    """Where raw importance comes from; `random` draws it from U(0, 1) wherever it would be measured."""
    reduce: Reduce = "abs_per_sample"
    """From gradients to raw importance: the mean over samples of |∂L/∂g|; signed gradients, summed (D2); or summed with
    the first batches counting most, because they are never zeroed (D3)."""
    normalise: Normalisation = "tanh_abs"
    """Importance to [0, 1): the paper's |tanh(z)| also protects the least important units; `relu_tanh` only those
    above the average; `rank` is the share of units that are less important."""
    domain_input: Text = "masked"
    """Text of a domain's own importance: as the objective masks it, or unmasked (D10)."""
    domain_dropout: bool = False
    """Measure a domain's own importance under dropout, as the released code does (D10); the paper does not say."""
    proxy_dropout: bool = True
    """Run the proxy's two passes under dropout. Off (D1) they are equal and importance is rounding noise."""
    proxy_input: Text = "plain"
    """Text of the proxy: unmasked, or as the objective masks it (D10)."""
    proxy_output: Representation = "hidden"
    """What the proxy compares: last hidden states, or logits (a whole vocabulary for every token)."""
    proxy_softmax: Softmax = "features"
    """Axis of the distributions whose divergence the proxy is; the released code takes the sequence (D9)."""

    # The contrast
    contrast: float = Field(1.0, ge=0, allow_inf_nan=False)
    """Weight of the contrast; 0 switches it off, and with it its extra rows in each pass."""
    contrast_kind: Literal["full", "specific", "simcse"] = "full"
    """What a text's two representations are and what they differ from. `full`: of the whole network, against the one
    gated by importance I (the paper). `specific`: gated by 1 − I, against that one. `simcse`: of the whole network,
    against other texts only."""
    contrast_fraction: float = Field(1.0, gt=0, le=1)
    """Share of each batch that is contrasted (2 rows at least); the paper takes the whole batch."""
    temperature: float = Field(0.05, gt=0)
    """τ of the contrast."""
    anchor: Text = "plain"
    """The first representation of a text: of a pass over it unmasked, or of the masked pass that the loss needs
    anyway, which saves a pass. The same where the objective does not mask."""
    pair: Pair = "correct"
    """Pairs are two representations of one text, or neighbouring rows as in the released code (D6)."""
    gather_grad: GatherGrad = "full"
    """On several processes, differentiate every process's rows, or only one's own (D7: the weight becomes 1/W)."""
    stop_gradient_prev: bool = False
    """Do not differentiate through the network gated by I, which saves its backward pass; the paper does."""


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
"""What the released code does differently from the paper's equations, deviations D1 to D7, D9 and D10."""

VARIANTS = (
    Variant(
        "das_released",
        "DAS (released code)",
        "DAS with every deviation of the released code from the paper that concerns the method (D1 to D7, D9, D10).",
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
        "No mask, and nothing gated in the contrast: plain training with SimCSE between texts.",
        {"strength": 0, "contrast_kind": "simcse"},
    ),
    Variant(
        "das_random",
        "DAS (random)",
        "All importance is random, drawn anew wherever DAS would measure it, for the mask and for the contrast.",
        {"scores": "random"},
    ),
    Variant(
        "das_without_contrast",
        "DAS (w/o contrast)",
        "The soft-mask alone.",
        {"contrast": 0},
    ),
    Variant(
        "das_domain_specific",
        "DAS (domain-specific)",
        "The contrast takes a text's representations from the network gated by 1 − I instead of from the full one.",
        {"contrast_kind": "specific"},
    ),
    Variant(
        "das_wiki_mlm",
        "DAS (Wiki+MLM)",
        "Importance for general knowledge is that for the training loss on the recipe's general corpus.",
        {"general": "corpus_loss"},
    ),
    Variant(
        "das_wiki_kl",
        "DAS (Wiki+KL)",
        "Importance for general knowledge is the dropout proxy's, measured on the recipe's general corpus.",
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
