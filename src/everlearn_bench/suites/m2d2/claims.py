"""Claims of the causal study of many domains (arXiv 2402.17400, two versions), as comparisons that a grid can decide.

Written before anything was measured. The sentences are ours; the suite defines which of its orders and rows are meant.
"""

from __future__ import annotations

from collections.abc import Sequence

from everlearn.methods.sequential import PLAIN
from everlearn_bench.suites.claims import Claim, ClaimQuestion, Claims, Number

ALONE = "separate"
"""The base model trained on each domain alone: FT in the first version, DAPT in the second."""


def study_claims(
    similar: Sequence[int],
    random: Sequence[int],
    small: str | None = None,
    large: str | None = None,
    introduction: str = "",
) -> Claims:
    """Return the findings of the study as claims about one suite.

    Args:
        similar: orders of the suite in which neighbours are similar.
        random: its shuffled orders.
        small: row of plain training of a smaller model; without both sizes that finding is left out.
        large: row of plain training of a larger model.
        introduction: Markdown on what is special about this suite, after the general introduction.
    """
    alike, shuffled = tuple(similar), tuple(random)

    def plain(numbers: Sequence[Number], orders: tuple[int, ...], other: str | None = None) -> list[ClaimQuestion]:
        return [ClaimQuestion(PLAIN, other, number, "above", orders=orders) for number in numbers]

    found = [
        Claim(
            "In the similar order a domain is learnt better than by training on it alone.",
            tuple(plain(["continual"], alike, ALONE)),
            "First version. CPT against FT: both are how much better than the base model right after the domain.",
        ),
        Claim(
            "In random order more is transferred, backward and forward, and the last checkpoint is better.",
            tuple(
                ClaimQuestion(PLAIN, PLAIN, number, "above", orders=shuffled, other_orders=alike)
                for number in ("backward", "forward", "lc")
            ),
            "First version.",
        ),
        Claim(
            "Late stages forget more.",
            (*plain(["late"], alike), *plain(["late"], shuffled)),
            "First version. Of the checkpoints in the second half of the stream what is forgotten, less that of the "
            "first half, at equal gap: one difference for each gap n − i that both halves have.",
        ),
        Claim(
            "Continual pre-training beats training on each domain alone.",
            (*plain(["continual"], alike, ALONE), *plain(["continual"], shuffled, ALONE)),
            "Second version, of models below 1.5 billion parameters: CPT against DAPT in every order.",
        ),
    ]
    if small is not None and large is not None:
        sizes = tuple(ClaimQuestion(small, large, number, "above") for number in ("continual", "fg"))
        found.insert(
            2,
            Claim(
                "Small models learn most and forget most.",
                sizes,
                "Both versions. In bits per byte of the same text. The smaller base of the committed grid is the first "
                "layer of the larger one, trained on for 2.5 million tokens: the two differ in size and in training, "
                "and one pair cannot tell which of the two matters.",
                caveat="one pair of models; size is confounded with training",
            ),
        )
    return Claims("The findings of the causal study", f"{INTRODUCTION}\n{introduction}".strip(), tuple(found), True)


INTRODUCTION = """\
What the study of continual pre-training on many domains ([arXiv 2402.17400](https://arxiv.org/abs/2402.17400)) found,
in our words, and what a grid on this suite says. Its two versions differ; each claim names its own. The measures are
those of [transfer](transfer.md), in bits per byte.

**What this can show.** The paper trained GPT-2, Llama 2 and RoBERTa on up to 159 domains of M2D2. The base model, the
domains and the budget here stand under "Measured". A verdict is about these ("here"): it neither confirms nor refutes
the paper.

**How it is decided**, written down before anything was measured:

* Two entries are compared on runs of the same seed, domain by domain; of several orders the mean, seed by seed. Two
  orders of the same entry are compared in the same way. Domains that are learnt alone have no order.
* The **verdict for tasks in general** takes domains and runs both as samples, so that it is about other seeds, and
  other domains like these: min F′ of Clark (1973), as on the page of the [claims of the DAS paper](claims.md), which
  has the formula and the error rates. Random orders are not a sample here but a mean.
* The **verdict for these tasks** takes the domains as they are; seeds are the only sample.
* **holds here**: the whole interval (95 %) lies on the claimed side. **does not hold here**: all of it lies on the
  other side. **not decidable at this size**: neither, or there are fewer than three runs. **not measured yet**: an
  entry or an order has no run.
* A claim of several comparisons holds if all of them hold, and does not hold if one is contradicted with p < 0.05 after
  Holm's correction over the claim's comparisons.
* Late stages: gaps of one run share their checkpoints, so they are less independent than domains are; of this claim
  the verdict for these tasks is the one to read.
"""
