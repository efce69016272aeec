"""Claims of the DAS paper (arXiv 2302.03241), as comparisons that a grid on `six-domains` can decide.

Written before anything was measured. The sentences are ours; rows have the names that ``everlearn bench`` uses.
"""

from __future__ import annotations

from everlearn_bench.suites.claims import ALL_HOLD, VERDICTS, Claim, Claims, Number, questions

AVERAGES: tuple[Number, ...] = ("f1", "accuracy")
FORGETTING: tuple[Number, ...] = ("f1_forgetting", "accuracy_forgetting")
POINT = 0.01
"""One point of a score: the margin within which scores count as equal, and forgetting as none."""
LEARNT_IN_ORDER = ("sequential", "ncl_adapter", "demix", "bcl", "classic", "kd", "ewc", "derpp", "hat", "hat_all",
                   "hat_adapter")  # fmt: skip
COMPONENTS = ("das_without_initialisation", "das_without_soft_mask", "das_random", "das_without_contrast",
              "das_domain_specific")  # fmt: skip

CLAIMS = (
    Claim(
        "DAS has the best average of all systems.",
        questions("das", "above", ("none", "separate", "dap_adapter", "dap_prompt", *LEARNT_IN_ORDER), AVERAGES),
        "Claim 11 compares with Pool.",
    ),
    Claim(
        "DAS has a negative forgetting rate: what is learnt later helps earlier domains.",
        questions("das", "below", None, (*FORGETTING, "bits_forgotten")),
    ),
    Claim(
        "DAS has the lowest forgetting rate.",
        questions("das", "below", LEARNT_IN_ORDER, FORGETTING)
        + questions("das", "below", "sequential", ("bits_forgotten",)),
    ),
    Claim(
        "Plain continual training, NCL-Adapter, DEMIX, KD, EWC and DER++ forget.",
        questions(("sequential", "ncl_adapter", "demix", "kd", "ewc", "derpp"), "above", None, FORGETTING)
        + questions("sequential", "above", None, ("bits_forgotten",)),
        "DEMIX has one adapter per domain on a frozen model, so it cannot forget: with deterministic fine-tuning its "
        "rate is exactly 0.",
    ),
    Claim("Each component of DAS helps its average.", questions("das", "above", COMPONENTS, AVERAGES)),
    Claim(
        "The proxy's KL, which needs no general data, is as good as the KL on general data.",
        questions("das", "within", "das_wiki_kl", AVERAGES, POINT),
        "As good means within one point either way. Finding no difference is not enough.",
    ),
    Claim(
        "Importance for general knowledge by KL is better than by the masked-language-model loss.",
        questions(("das", "das_wiki_kl"), "above", "das_wiki_mlm", AVERAGES),
    ),
    Claim(
        "Learning in the whole language model beats adapters and prompts.",
        questions("separate", "above", ("dap_adapter", "dap_prompt"), (*AVERAGES, "bits_learnt"))
        + questions("sequential", "above", "ncl_adapter", (*AVERAGES, "bits_learnt")),
        "One model per domain is compared with one adapter or prompt per domain, and plain training on the stream with "
        "one adapter for the stream.",
    ),
    Claim(
        "HAT does not forget.",
        questions("hat", "below", None, FORGETTING, POINT),
        "Does not forget means that the rate is below one point.",
    ),
    Claim(
        "HAT learns badly: worse than training without protection.",
        questions("hat", "below", "sequential", (*AVERAGES, "bits_learnt")),
        "HAT knows the domain of a text at test; plain training does not.",
    ),
    Claim("DAS is better than Pool, which learns all domains at once.", questions("das", "above", "pool", AVERAGES)),
    Claim(
        "The MIGU paper: its mask helps plain training, and is as good as DAS.",
        questions("migu", "above", "sequential", AVERAGES) + questions("migu", "within", "das", AVERAGES, POINT),
        "Table 3 of arXiv 2406.17245, with a run of DAS by its authors (76.59 / 81.07; MIGU 76.73 / 81.19). The DAS "
        "paper's own row in that table is better than both (77.90 / 81.90).",
    ),
)

INTRODUCTION = f"""\
This page judges the claims of the DAS paper ([arXiv 2302.03241](https://arxiv.org/abs/2302.03241)). We state each
claim in our own words and test it with the committed runs of the suite [`six-domains`](six-domains.md). `python
benchmarks/six-domains/claims.py` writes the page; nothing in it is edited by hand.

**Limits.** The base model is small, the corpora are proxies for the paper's, and the budget is far below the paper's
2,500 steps per domain with RoBERTa. The end tasks are the paper's own, perhaps with fewer examples (`end_tasks`
below). A verdict is about this model, text and budget ("here"). It neither confirms nor refutes the paper.

**Rules.** They were written down before anything was measured:

* Two rows are compared on runs of the same order and seed, task by task. This gives one difference for each run and
  task (for bits per byte: for each run and domain). A row that does not depend on the order is compared with the mean
  of the other one over orders, seed by seed. The base model has no seed, and is compared with every seed.
* Six tasks and three seeds are not eighteen independent observations. All tasks of a run start from one model, so
  they differ together, and a task differs in the same way in all runs. Therefore both tasks and runs are treated as
  samples, and a verdict is about other seeds and other similar tasks. Let m be the mean difference over K tasks and R
  runs, V(tasks) and V(runs) the variances of m due to each, and V their sum. Then t = m / √V has V² / (V(tasks)² / (K
  − 1) + V(runs)² / (R − 1)) degrees of freedom: the min F′ of Clark (1973). It gives the interval (95 %) and the
  p-value.
* How often does this test find a difference where there is none? In simulations of three runs
  (`benchmarks/six-domains/error_rates.py`: 5 or 6 tasks, six mixtures of the two kinds of noise) in up to 7 % of
  cases, and in up to 13 % if the noise is very skewed. Other tests are worse: a bootstrap over tasks and runs does so
  in up to 28 %, sign flips over tasks in up to 68 %, sign flips over single differences in up to 53 %; sign flips
  over three runs can never reach p < 0.25. With two runs the rate of this test is 17 %, so every verdict needs at
  least three. The price is that **with three seeds and six tasks only large and consistent differences can be
  decided.**
{VERDICTS}
* Finding no difference does not show equality. For "as good as" the whole interval has to lie within one point of F1
  or accuracy of zero, for "does not forget" below one point. The p-value is then for a true value at that bound (the
  nearer one).
{ALL_HOLD} Single comparisons are judged without the correction, so about one in twenty of those without any
  difference gets a verdict by chance. Bits per byte are our addition: the paper has none, and they do not count in a
  claim's verdict.

F1 is macro-F1, for ChemProt micro-F1. The forgetting rate is (1/(T−1)) Σ (A_kk − A_Tk) over the domains before the
last: below 0 is good. Scores are in points (percent); "Measured" has both sides.
"""

DAS_PAPER = Claims("The claims of the DAS paper", INTRODUCTION, CLAIMS)
