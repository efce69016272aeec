"""Numbers of the DAS paper on its six domains, and the names and order of the rows of its tables."""

from __future__ import annotations

from everlearn_bench.suites.base import Published

PUBLISHED = Published(
    "DAS, ICLR 2023 (second hand)",
    ("first", "second", "forgetting, first", "forgetting, second"),
    {
        "none": (77.25, None, None, None),
        "pool": (80.63, 90.83, None, None),
        "sequential": (80.70, 76.66, 1.14, 1.05),
        "demix": (74.70, None, 0.15, None),
        "ewc": (74.84, None, 0.02, -0.01),
        "derpp": (75.51, None, 2.36, 1.53),
        "das": (81.91, 77.93, -1.09, -0.60),
    },
    "Published averages in percent, copied from a note in a public survey repository, since the paper's own table "
    "could not be read: not verified. The note calls the columns macro-F1 and accuracy, but they look swapped "
    "(macro-F1 above accuracy on unbalanced tasks), and the rows of the base model and of Pool look mixed up. The MIGU "
    "paper (arXiv 2406.17245, table 3) copies macro-F1 77.90 and accuracy 81.90 for DAS, 75.78 and 80.46 for DER++, "
    "74.70 and 79.66 for DEMIX: the note's columns are swapped in the first of these rows and not in the last. "
    "RoBERTa-base, other corpora and budgets: nothing here is a comparison of the same experiment.",
)
PAPER_NAMES = {"ncl": "sequential", "der++": "derpp", "roberta": "none", "daproberta": "separate"}
"""Names of the DAS paper where they are not ours."""
GROUPS = {
    "all": ("constant", "RoBERTa", "Pool", "DAP-RoBERTa", "DAP-Adapter", "DAP-Prompt", "NCL", "NCL-Adapter", "DEMIX",
            "B-CL", "CLASSIC", "KD", "EWC", "DER++", "HAT", "HAT-All", "HAT-Adapter", "DAS"),
    "ablations": ("das_without_initialisation", "das_without_soft_mask", "das_random", "das_without_contrast",
                  "das_domain_specific", "das_wiki_mlm", "das_wiki_kl"),
    "relatives": ("CPT", "DGA", "AdapterCL", "ELLE", "MIGU"),
}  # fmt: skip
"""Words for several entries: what no model is needed for and the systems of the DAS paper's main table; its ablations;
what its authors' other papers and its related work have beside them, and a later mask on gradients. Tables list entries
in this order."""
