"""What the MIGU paper (arXiv 2406.17245) reports of Llama-2-7B on code, and claims."""

from __future__ import annotations

from everlearn.suites.base import Published
from everlearn.suites.claims import THESE_TASKS, Claim, Claims, questions

PUBLISHED = Published(
    "MIGU, EMNLP 2024, Llama-2-7B",
    ("mean of HellaSwag, WinoGrande and ARC-challenge",),
    {"sequential": (58.4,), "migu": (59.4,)},
    "After 32 passes over a fifth of Magicoder-Evol-Instruct-110K, in percent, from the text of section 4.3. The "
    "numbers of its figure 3 are in no table; its axes go from 15 to 25 (HumanEval), 60 to 64 (the mean), 40 to 48 "
    "(ARC-challenge), 72 to 78 (HellaSwag), 66 to 70 (WinoGrande), so the printed means lie below their own axis. What "
    "the paper calls FT there is LoRA; rank, modules, batch, length and threshold are not said, and there is no code. "
    "Nothing here is a comparison of the same experiment.",
)
POINT = 0.01
"""One point: the margin within which two count as equal."""
INTRODUCTION = (
    """\
What section 4.3 of the MIGU paper ([arXiv 2406.17245](https://arxiv.org/abs/2406.17245)) says of Llama-2-7B, in our
words, and what a grid on the suite `code` says. A verdict is about this model, text and budget.

* The **verdict for tasks in general** takes runs and tasks both as samples, by the rules of the
  [claims of the DAS paper](claims.md). Pass@1 and bits of code are of one task, from which nothing follows for others.
"""
    + THESE_TASKS
    + """

A small base model solves no problem of HumanEval: where pass@1 is 0 before and after, that two are within a point of
each other says nothing.
"""
)
CLAIMS = Claims(
    "The claims of the MIGU paper about code",
    INTRODUCTION,
    (
        Claim(
            "At the end MIGU has kept more of general abilities than plain fine-tuning.",
            questions("migu", "above", "sequential", ("kept",))
            + questions("migu", "below", "sequential", ("kept_forgotten",)),
            "59.4 against 58.4 points in the paper.",
        ),
        Claim(
            "And it has learnt as much about code.",
            questions("migu", "within", "sequential", ("pass_at_1",), POINT)
            + questions("migu", "above", "sequential", ("bits_learnt",)),
            "As much: pass@1 within one point either way, which decides nothing where no problem is solved. Bits per "
            "byte are our addition.",
        ),
    ),
    these_tasks=True,
)
