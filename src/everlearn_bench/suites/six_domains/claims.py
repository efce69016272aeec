"""Claims of the DAS paper (arXiv 2302.03241), as comparisons that a grid on `six-domains` can decide.

Written before anything was measured. The sentences are ours; rows have the names that ``everlearn bench`` uses.
"""

from __future__ import annotations

from everlearn_bench.suites.claims import Claim, Claims, Number, questions

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
        "Pool has a claim of its own below.",
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
        "With one adapter per domain on a frozen model (DEMIX) nothing can be forgotten: where fine-tuning is "
        "deterministic its rate is exactly 0.",
    ),
    Claim("Each component of DAS helps its average.", questions("das", "above", COMPONENTS, AVERAGES)),
    Claim(
        "The proxy's KL, which needs no general data, is as good as the KL on general data.",
        questions("das", "within", "das_wiki_kl", AVERAGES, POINT),
        "As good: within one point either way. Not to see a difference is not enough.",
    ),
    Claim(
        "Importance for general knowledge by KL is better than by the masked-language-model loss.",
        questions(("das", "das_wiki_kl"), "above", "das_wiki_mlm", AVERAGES),
    ),
    Claim(
        "Learning in the whole language model beats adapters and prompts.",
        questions("separate", "above", ("dap_adapter", "dap_prompt"), (*AVERAGES, "bits_learnt"))
        + questions("sequential", "above", "ncl_adapter", (*AVERAGES, "bits_learnt")),
        "One model per domain against one adapter or prompt per domain; plain training in the stream against one "
        "adapter for the stream.",
    ),
    Claim(
        "HAT does not forget.",
        questions("hat", "below", None, FORGETTING, POINT),
        "Does not forget: the rate is below one point.",
    ),
    Claim(
        "HAT learns badly: worse than training without protection.",
        questions("hat", "below", "sequential", (*AVERAGES, "bits_learnt")),
        "HAT is told at test where a text comes from; plain training is not.",
    ),
    Claim("DAS is better than Pool, which learns all domains at once.", questions("das", "above", "pool", AVERAGES)),
    Claim(
        "The MIGU paper: its mask helps plain training, and is as good as DAS.",
        questions("migu", "above", "sequential", AVERAGES) + questions("migu", "within", "das", AVERAGES, POINT),
        "Table 3 of arXiv 2406.17245, with a run of DAS by its authors (76.59 / 81.07; MIGU 76.73 / 81.19). The DAS "
        "paper's own row, which stands there too, is better than both (77.90 / 81.90).",
    ),
)

INTRODUCTION = """\
What the paper of DAS ([arXiv 2302.03241](https://arxiv.org/abs/2302.03241)) says, in our words, and what the
committed grid on the suite [`six-domains`](six-domains.md) says. `python benchmarks/six-domains/claims.py` writes this
page; nothing in it is edited by hand.

**What this can show.** The base model is small, the corpora are proxies for the paper's, and the budget is far
below its 2,500 steps a domain with RoBERTa. The end tasks are the paper's own, though perhaps not all of their examples
are used (`end_tasks` below). A verdict is about this model, text and budget ("here"): it neither confirms nor refutes
the paper.

**How it is decided**, written down before anything was measured:

* Two entries are compared on runs of the same order and seed, task by task: one difference for each run and task
  (for bits per byte: for each run and domain). An entry that does not depend on the order is compared with the
  other's mean over orders, seed by seed; the base model, which has no seed, with every seed.
* Six tasks and three seeds are not eighteen independent observations: a run differs on all tasks at once (they
  start from one model), and a task differs in all runs at once. Tasks and runs are both taken as samples, so that a
  verdict is about other seeds, and other tasks like these. With m the mean difference over K tasks and R runs,
  V(tasks) and V(runs) the variances that m has because of each, and V their sum, t = m / √V has V² / (V(tasks)² /
  (K − 1) + V(runs)² / (R − 1)) degrees of freedom: the min F′ of Clark (1973). Interval (95 %) and p-value come
  from it.
* In simulations of three runs without any true difference (`benchmarks/six-domains/error_rates.py`: 5 or 6 tasks, six
  mixtures of the two kinds of noise) this finds one in up to 7 % of cases, and in up to 13 % if noise is very skewed.
  A bootstrap over tasks and runs finds one in up to 28 %, sign flips over tasks in up to 68 %, sign flips over single
  differences in up to 53 %; sign flips over three runs can never go below p = 0.25. With two runs this test's rate
  reaches 17 %, so no verdict rests on fewer than three. The price: **with three seeds and six tasks only large and even
  differences can be decided.**
* **holds here**: the whole interval lies on the claimed side. **does not hold here**: all of it lies on the other
  side. **not decidable at this size**: neither, or there are fewer than three runs (with one there is no interval).
  **not measured yet**: an entry has no run.
* Not to find a difference is not to find equality. "As good as" needs the whole interval within one point of F1 or
  accuracy of zero, "does not forget" the whole interval below one point; p is then for the true value lying on that
  bound (the nearer one).
* A claim of several comparisons holds if all of them hold, and does not hold if one is contradicted with p < 0.05
  after Holm's correction over the claim's comparisons. Single comparisons are judged without it: about one in
  twenty of those without any difference gets a verdict by chance. Bits per byte are our addition: the paper has
  none, and they do not count in a claim's verdict.

F1 is macro-F1, for ChemProt micro-F1. The forgetting rate is (1/(T−1)) Σ (A_kk − A_Tk) over the domains before the
last: below 0 is good. Scores are in points (percent); "Measured" has both sides.
"""

DAS_PAPER = Claims("The claims of the DAS paper", INTRODUCTION, CLAIMS)
