"""Claims of the MIGU paper (arXiv 2406.17245), as comparisons that a grid on its orders can decide.

Written before anything was measured, from its tables. The sentences are ours; rows have the names that ``everlearn
bench`` uses.
"""

from __future__ import annotations

from everlearn.methods.sequential import PLAIN
from everlearn_bench.suites.claims import (
    ALL_HOLD,
    IN_GENERAL,
    THESE_TASKS,
    VERDICTS,
    Claim,
    ClaimQuestion,
    Claims,
    Number,
    Relation,
    questions,
)

AVERAGE: tuple[Number, ...] = ("accuracy",)
FORGETTING: tuple[Number, ...] = ("accuracy_forgetting", "bits_forgotten")
POINT = 0.01
"""One point of accuracy: the margin within which two count as equal."""
PAIRS = {"migu": PLAIN, "lora+migu": "lora", "inc_lora+migu": "inc_lora", "lora+replay+migu": "lora+replay"}
"""A system with MIGU → the same without, wherever both were run by the paper's authors on all six orders."""
ADAPTERS = ("lora", "inc_lora", "o_lora", "lora+migu", "inc_lora+migu", "o_lora+migu")


def _pairs(pairs: dict[str, str], relation: Relation, numbers: tuple[Number, ...]) -> tuple[ClaimQuestion, ...]:
    return tuple(each for own, other in pairs.items() for each in questions(own, relation, other, numbers))


def claims(*, long: bool) -> tuple[Claim, ...]:
    """Return the claims about the orders 1 to 3, or 4 to 6."""
    adapters = " The abstract gives the difference: 15.2 points in the orders 4 to 6." if long else ""
    all_claims = [
        Claim("MIGU helps full fine-tuning.", _pairs({"migu": PLAIN}, "above", AVERAGE)),
        Claim("MIGU helps LoRA.", _pairs({"lora+migu": "lora"}, "above", AVERAGE), adapters.strip()),
        Claim(
            "MIGU helps a new adapter for each task (IncLoRA).", _pairs({"inc_lora+migu": "inc_lora"}, "above", AVERAGE)
        ),
        Claim(
            "MIGU helps O-LoRA.",
            _pairs({"o_lora+migu": "o_lora"}, "above", AVERAGE),
            "The paper's row without MIGU is copied from the paper of O-LoRA; its table 8 has "
            + ("70.0 against 69.5." if long else "76.6 for both."),
        ),
        Claim(
            "MIGU helps where old examples are replayed, too.",
            _pairs({"lora+replay+migu": "lora+replay"} | ({} if long else {"replay+migu": "replay"}), "above", AVERAGE),
        ),
        Claim(
            "With MIGU a system forgets less than without.",
            _pairs(PAIRS, "below", FORGETTING),
            "The paper shows end scores and the overlap of updates; we compare the rate of forgetting.",
        ),
        Claim(
            "Full fine-tuning with MIGU is better than every system of adapters that is not told the task.",
            questions("migu", "above", ADAPTERS, AVERAGE),
        ),
        Claim(
            "A new adapter for each task with MIGU is as good as O-LoRA.",
            questions("inc_lora+migu", "within", "o_lora", AVERAGE, POINT),
            "As good means within one point either way. Finding no difference is not enough.",
        ),
        Claim(
            "Replaying 2 % of old examples is better than no replay.",
            questions("lora+replay", "above", "lora", AVERAGE)
            + questions("lora+replay+migu", "above", "lora+migu", AVERAGE),
        ),
        Claim(
            "A mixture of LoRA experts is worse than one LoRA.",
            questions("moe_lora", "below", "lora", AVERAGE),
            "The paper leaves details of the mixture open; we chose them.",
        ),
        Claim(
            "Learning all tasks at once is better than any way to learn them one after another.",
            questions("mtl", "above", (PLAIN, "migu", *ADAPTERS, "lora+replay", "lora+replay+migu"), AVERAGE),
            "In the paper's table 8 LoRA with replay and MIGU equals it in the orders 4 to 6." if long else "",
        ),
    ]
    all_claims.append(
        Claim(
            "Rows chosen by outputs do better than rows chosen by weights or gradients, and any of the three better "
            "than plain training.",
            questions("migu", "above", ("migu_by_weight", "migu_by_gradient"), AVERAGE)
            + questions(("migu", "migu_by_weight", "migu_by_gradient"), "above", PLAIN, AVERAGE),
            "Table 11, which does not define selection by weights and gradients; here it uses the sums of |w| "
            "and of |g| over a row.",
        )
    )
    if not long:
        all_claims.append(
            Claim(
                "Masking attention alone does as well as masking everything; the feed-forward layers alone bring "
                "little, the keys alone harm.",
                questions("migu_of_attention", "within", "migu", AVERAGE, POINT)
                + questions("migu_of_attention", "above", ("migu_of_ffn", PLAIN), AVERAGE)
                + questions("migu_of_ffn", "within", PLAIN, AVERAGE, POINT)
                + questions("migu_of_key", "below", PLAIN, AVERAGE),
                "Table 5. Its rows for full fine-tuning with and without MIGU are from another run "
                "than those of table 8.",
            )
        )
    else:
        all_claims.append(
            Claim(
                "Systems with separate parameters for each task, selected by the text or the given task, do better "
                "still.",
                questions(("progressive_prompts", "sapt_lora"), "above", "migu", AVERAGE),
                "Both rows of the paper are copied from other papers with other protocols.",
            )
        )
    published = {"migu_on_gradient": PLAIN, "lora+migu_on_gradient": "lora"}
    all_claims.append(
        Claim(
            "With the mask on the gradient, as published, MIGU helps full fine-tuning and LoRA, and they forget less.",
            _pairs(published, "above", AVERAGE) + _pairs(published, "below", FORGETTING),
            "This claim was added after the claims above had been measured, whose rows mask the update.",
        )
    )
    return tuple(all_claims)


INTRODUCTION = """\
This page judges the claims in the tables of the MIGU paper ([arXiv 2406.17245](https://arxiv.org/abs/2406.17245)). We
state each claim in our own words and test it with our runs of the suite [`{suite}`](continual-fine-tuning.md).
`everlearn bench {suite} --show --claims FILE` writes the page; nothing in it is edited by hand.

**Limits.** The paper's model is T5-large; "Measured" lists the base model, the number of examples and the steps used
here. Some tasks may be proxies, which the notes of the results name. A verdict is about this model, these examples
and this budget ("here"). It neither confirms nor refutes the paper. Rows with MIGU mask the update (`apply_to:
update`, our default). The paper and its released code mask the gradient, and Adam then still moves masked rows; the
rows "on the gradient" and the last claim use this form.

**Rules.** They were written down before anything was measured:

* Two rows are compared on runs of the same order and seed, task by task. This gives one difference for each run and
  task. A row that does not depend on the order is compared with the mean of the other one over orders, seed by seed.
{in_general}
{these_tasks}
{verdicts}
* Finding no difference does not show equality. For "as good as" the whole interval has to lie within one point of
  accuracy of zero.
{all_hold} Bits per byte of held-out answers are our addition, and do not count in a claim's verdict.

Accuracy is the exact match of the answer, or of the likeliest label (`suite.answers`); the average is the unweighted
mean over tasks. The forgetting rate is (1/(T−1)) Σ (A_kk − A_Tk) over the tasks before the last: below 0 is good.
Scores are in points (percent); "Measured" has both sides.
"""


def _claims(suite: str, *, long: bool) -> Claims:
    return Claims(
        f"The claims of the MIGU paper on {suite}",
        INTRODUCTION.format(
            suite=suite, in_general=IN_GENERAL, these_tasks=THESE_TASKS, verdicts=VERDICTS, all_hold=ALL_HOLD
        ),
        claims(long=long),
        these_tasks=True,
    )


STANDARD_CLAIMS = _claims("standard-cl", long=False)
LONG_CLAIMS = _claims("long-sequence", long=True)
