"""The recommended method with its options, and the rule for the learning rate.

This is the only place that defines them: `everlearn init`, the demo, README and the documentation read them from here
or are compared with them by tests. The module imports nothing heavy, so that reading it is cheap.
"""

from __future__ import annotations

import math
from typing import Any

METHOD: tuple[dict[str, Any], ...] = (
    {
        "name": "mas",
        "protect_base": True,
        "samples": 50,
        "normalise": "mean",
        "anchor": "separate",
        "follow": 0.4,
        "strength": 0.0215,
    },
)
"""The recommended method, as under `method` in a recipe; docs/results/frontier.json has the evidence."""
EVIDENCE = "docs/results/frontier.md"
"""The page that compares the method with others."""

RATES: dict[str, dict[float, float]] = {
    "decoder": {
        125e6: 6e-4 / 2,
        350e6: 3e-4 / 2,
        760e6: 2.5e-4 / 2,
        1.3e9: 2e-4 / 2,
        2.7e9: 1.6e-4 / 2,
        6.7e9: 1.2e-4 / 2,
        13e9: 1e-4 / 2,
    },
    "encoder": {110e6: 1e-4, 340e6: 1e-4},
    "encoder-decoder": {770e6: 1e-4},
}
"""Kind of model → number of parameters → learning rate when all weights are trained with Adam; docs/learning-rates.md
names the sources."""
EXAMPLES = 0.2
"""Factor for prompts and answers (`--task sft`). Fine-tuning needs smaller rates than pre-training: BERT's authors
fine-tune at 2e-5 to 5e-5, a fifth to a half of 1e-4. Rates of encoder-decoders are for prompts and answers already."""
ADAPTERS = 10.0
"""Factor for adapters such as LoRA (Schulman et al. 2025, "LoRA without regret"; MIGU trains LoRA at 1e-3, all weights
at 1e-4)."""


def learning_rate(kind: str, parameters: int, *, examples: bool = False, adapters: bool = False) -> float:
    """Return the learning rate of the rule, rounded to two digits.

    Between two sizes of the table it is interpolated in the logarithms of size and rate; outside of the table it is
    that of the nearest size.

    Args:
        kind: `decoder`, `encoder` or `encoder-decoder`.
        parameters: number of parameters of the complete model.
        examples: whether prompts and answers are learnt, not plain text.
        adapters: whether only adapters are trained.
    """
    table = sorted(RATES[kind].items())
    size = min(max(float(parameters), table[0][0]), table[-1][0])
    upper = next(number for number, (known, _) in enumerate(table) if size <= known)
    (below, low), (above, high) = table[max(upper - 1, 0)], table[upper]
    share = math.log(size / below) / math.log(above / below) if above > below else 0.0
    rate = low * (high / low) ** share
    rate *= EXAMPLES if examples and kind != "encoder-decoder" else 1.0
    rate *= ADAPTERS if adapters else 1.0
    return float(f"{rate:.1e}")


def models_in_words(kind: str, parameters: int) -> str:
    """Describe the models for which the rule gives this learning rate: "decoders of 135 M".

    A model that is smaller or larger than all in the table gets the rate of the nearest one.

    Args:
        kind: `decoder`, `encoder` or `encoder-decoder`.
        parameters: number of parameters of the complete model.
    """
    sizes = sorted(RATES[kind])
    for outside, nearest, word in (
        (parameters < sizes[0], sizes[0], "at most"),
        (parameters > sizes[-1], sizes[-1], "at least"),
    ):
        if outside:
            return f"{kind}s of {word} {size_text(nearest)}"
    return f"{kind}s of {size_text(parameters)}"


def rate_text(rate: float) -> str:
    """Return a rate as recipes and tables have it: 3.0e-4."""
    digits, exponent = f"{rate:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


def size_text(parameters: float) -> str:
    """Return a number of parameters in a few characters: 135 M."""
    return f"{parameters / 1e9:.3g} B" if parameters >= 1e9 else f"{parameters / 1e6:.3g} M"
