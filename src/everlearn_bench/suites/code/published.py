"""Numbers and claims of the MIGU paper (arXiv 2406.17245) for Llama-2-7B on code."""

from __future__ import annotations

from everlearn.methods.sequential import PLAIN
from everlearn_bench.suites.base import Published
from everlearn_bench.suites.claims import THESE_TASKS, Claim, ClaimQuestion, Claims, questions

PUBLISHED = Published(
    "MIGU, EMNLP 2024, Llama-2-7B",
    ("mean of HellaSwag, WinoGrande and ARC-challenge",),
    {"lora": (58.4,), "lora+migu": (59.4,)},
    "After 32 passes over a fifth of Magicoder-Evol-Instruct-110K, in percent, from the text of section 4.3. The "
    "numbers of its figure 3 are in no table; its axes go from 15 to 25 (HumanEval), 60 to 64 (the mean), 40 to 48 "
    "(ARC-challenge), 72 to 78 (HellaSwag), 66 to 70 (WinoGrande), so the printed means lie below their own axis. What "
    "the paper calls FT there is LoRA; rank, modules, batch, length and threshold are not said, and there is no code. "
    "Rows without a published number are ours. Nothing here is a comparison of the same experiment.",
)
POINT = 0.01
"""One point: the margin within which two count as equal."""


def _kept(own: str, other: str) -> tuple[ClaimQuestion, ...]:
    return questions(own, "above", other, ("kept",)) + questions(own, "below", other, ("kept_forgotten",))


def _learnt(own: str, other: str) -> tuple[ClaimQuestion, ...]:
    return questions(own, "within", other, ("pass_at_1",), POINT) + questions(own, "above", other, ("bits_learnt",))


INTRODUCTION = f"""\
This page judges the claims of the MIGU paper ([arXiv 2406.17245](https://arxiv.org/abs/2406.17245), section 4.3)
about Llama-2-7B. We state each claim in our own words and test it with the runs of the suite `code`, so a verdict is
about their model, text and budget. What the paper calls FT is LoRA, so its claims compare LoRA + MIGU with LoRA. The
claims about full fine-tuning are our addition.

* The **verdict for tasks in general** treats both runs and tasks as samples, by the rules of the [claims of the DAS
  paper](claims.md). Pass@1 and bits of code come from a single task, which tells nothing about other tasks.
{THESE_TASKS}

A small base model solves no problem of HumanEval. If pass@1 is 0 before and after, it tells nothing that two values
are within one point of each other.
"""
CLAIMS = Claims(
    "The claims of the MIGU paper about code",
    INTRODUCTION,
    (
        Claim(
            "At the end LoRA with MIGU has kept more of general abilities than LoRA.",
            _kept("lora+migu", "lora"),
            "59.4 against 58.4 points in the paper.",
        ),
        Claim(
            "LoRA with MIGU has learnt as much about code as LoRA.",
            _learnt("lora+migu", "lora"),
            "As much means pass@1 within one point either way, which decides nothing if no problem is solved. Bits per "
            "byte are our addition.",
        ),
        Claim(
            "Our addition: full fine-tuning with MIGU has kept more of general abilities than plain fine-tuning.",
            _kept("migu", PLAIN),
            "The paper has no such pair for code.",
        ),
        Claim(
            "Our addition: full fine-tuning with MIGU has learnt as much about code as plain fine-tuning.",
            _learnt("migu", PLAIN),
            "The same as claim 2, for full fine-tuning.",
        ),
    ),
    these_tasks=True,
)
