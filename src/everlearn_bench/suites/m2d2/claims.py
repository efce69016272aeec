"""Claims of the causal study of many domains (arXiv 2402.17400, two versions), as comparisons that a grid can decide.

Written before anything was measured. The sentences are ours; the suite defines which of its orders and rows are meant.
"""

from __future__ import annotations

from collections.abc import Sequence

from everlearn.methods.sequential import PLAIN
from everlearn_bench.suites.claims import ALL_HOLD, IN_GENERAL, VERDICTS, Claim, ClaimQuestion, Claims, Number

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

    all_claims = [
        Claim(
            "In the similar order a domain is learnt better than by training on it alone.",
            tuple(plain(["continual"], alike, ALONE)),
            "From the first version of the paper. CPT is compared with FT. Both are measured right after the domain "
            "was learnt, as the gain over the base model on its held-out text.",
        ),
        Claim(
            "In random order more is transferred, backward and forward, and the last checkpoint is better.",
            tuple(
                ClaimQuestion(PLAIN, PLAIN, number, "above", orders=shuffled, other_orders=alike)
                for number in ("backward", "forward", "lc")
            ),
            "From the first version of the paper.",
        ),
        Claim(
            "Late stages forget more.",
            (*plain(["late"], alike), *plain(["late"], shuffled)),
            "From the first version of the paper. The gap is the number of domains learnt since a domain. What "
            "checkpoints in the second half of the stream have forgotten is compared with the same for the first "
            "half, at equal gaps: one difference for each gap that both halves have.",
        ),
        Claim(
            "Continual pre-training beats training on each domain alone.",
            (*plain(["continual"], alike, ALONE), *plain(["continual"], shuffled, ALONE)),
            "From the second version of the paper, about models below 1.5 billion parameters. CPT is compared with "
            "DAPT in every order.",
        ),
    ]
    if small is not None and large is not None:
        sizes = tuple(ClaimQuestion(small, large, number, "above") for number in ("continual", "fg"))
        all_claims.insert(
            2,
            Claim(
                "Small models learn most and forget most.",
                sizes,
                "From both versions of the paper, in bits per byte of the same text. The smaller base model of the "
                "committed grid is the first layer of the larger one, trained further for 2.5 million tokens. So the "
                "two differ in size and in training, and one pair cannot tell which of the two matters.",
                caveat="one pair of models; size is confounded with training",
            ),
        )
    return Claims(
        "The findings of the causal study", f"{INTRODUCTION}\n{introduction}".strip(), tuple(all_claims), True
    )


INTRODUCTION = f"""\
A study trained language models on many domains, one after another ([arXiv
2402.17400](https://arxiv.org/abs/2402.17400)), and reported what they learn and forget. This page states its findings
as claims, in our own words, and tests each with runs of the suite [`m2d2`](m2d2.md). The two versions of the paper
differ, so each claim says which of them it is from. The measures are defined in [transfer](transfer.md); here they
are in bits per byte.

The study's abbreviations: **CPT** is continual pre-training on one domain after another. **FT** (first version) or
**DAPT** (second version) is training of the base model on a single domain. **ZS** is the base model without
training. **FG** is what the last checkpoint has forgotten of a domain.

**Limits.** The paper trained GPT-2, Llama 2 and RoBERTa on up to 159 domains of M2D2. "Measured" lists the base
model, the domains and the budget used here. A verdict is about these ("here"). It neither confirms nor refutes the
paper.

**Rules.** They were written down before anything was measured:

* Two rows are compared on runs of the same seed, domain by domain. Several orders are averaged first, seed by seed.
  Two orders of the same row are compared in the same way. Domains that are learnt alone have no order.
{IN_GENERAL} Here the tasks are the domains. Random orders are averaged, not treated as a sample.
* The **verdict for these tasks** treats the domains as fixed, and only seeds as a sample.
{VERDICTS}
{ALL_HOLD}
* Late stages: the gaps of one run share their checkpoints, so they are less independent than domains are. For this
  claim read the verdict for these tasks.
"""
