"""Claims of papers about fine-tuning without forgetting, as comparisons that a grid on the suite can decide.

Written before anything was measured; later corrections and additions are marked in remarks. The sentences are ours. The
papers measure the preservation of pre-training in different ways, most of them on large models; here it is always the
drift of general text.
"""

from __future__ import annotations

from everlearn.methods.sequential import PLAIN
from everlearn_bench.suites.claims import (
    ALL_HOLD,
    IN_GENERAL,
    THESE_TASKS,
    VERDICTS,
    Claim,
    Claims,
    Number,
    Relation,
    questions,
)

SCORE: tuple[Number, ...] = ("accuracy",)
DRIFT: tuple[Number, ...] = ("drift",)
POINT = 0.01
"""One point of accuracy: the margin within which two count as equal."""

LEARNT_NOTHING = (
    "Added after the runs: these rows answer as the base model does. So they forget less, but they have not learnt the "
    "task either."
)


def _claim(
    sentence: str,
    remark: str,
    entries: str | tuple[str, ...],
    *groups: tuple[Relation, str | tuple[str, ...], tuple[Number, ...]],
) -> Claim:
    """Return a claim whose comparisons all have the same rows on their left."""
    comparisons = (
        each
        for relation, others, numbers in groups
        for each in questions(entries, relation, others, numbers, POINT if relation == "within" else 0.0)
    )
    return Claim(sentence, tuple(comparisons), remark)


CLAIMS = (
    _claim(
        "A penalty that holds the weights near the pre-trained ones keeps more of pre-training than plain fine-tuning.",
        "From the papers of EWC (arXiv 1612.00796), MAS (1711.09601) and, for a penalty on all weights alike, "
        "L2-SP (1802.01483).",
        ("ewc", "mas", "l2_sp"),
        ("below", PLAIN, DRIFT),
    ),
    _claim("L2-SP does better on the task than plain fine-tuning.", "1802.01483.", "l2_sp", ("above", PLAIN, SCORE)),
    _claim(
        "EWC with a root or with absolute values does as well on the task as EWC.",
        "Mitigating the diminishing effect of EWC (COLING 2022): comparable results with much smaller strengths.",
        ("rewc", "aewc"),
        ("within", "ewc", SCORE),
    ),
    _claim(
        "Several penalties together keep more than each of them.",
        "Forget Me Not (arXiv 1911.00202).",
        "forget_me_not",
        ("below", ("ewc", "ewc_normalised", "l2_sp"), DRIFT),
    ),
    _claim(
        "Holding weights and outputs together keeps more than either.",
        "Our reading of 1904.08039, whose formulas we could not obtain. The claim was first written with KD instead of "
        "LwF, and corrected after the runs: KD compares representations here, LwF and multi-task adaptation outputs.",
        "multi_task_adaptation",
        ("below", ("ewc", "lwf"), DRIFT),
    ),
    _claim(
        "Distillation from the earlier model keeps more, and costs the task nothing.",
        "LwF (1606.09282), which has old tasks with separate heads.",
        "lwf",
        ("below", PLAIN, DRIFT),
        ("within", PLAIN, SCORE),
    ),
    _claim(
        "RecAdam does better on the task, and recalls what pre-training learnt.",
        "2004.12651.",
        "recadam",
        ("above", PLAIN, SCORE),
        ("below", PLAIN, DRIFT),
    ),
    _claim("Mixout does better on the task.", "1909.11299, on small training sets.", "mixout", ("above", PLAIN, SCORE)),
    _claim(
        "Discriminative rates, a slanted triangle and gradual unfreezing do better on the task.",
        "ULMFiT (1801.06146), whose language model was trained on the domain's text before.",
        "ulmfit",
        ("above", PLAIN, SCORE),
    ),
    _claim(
        "Updating only the entries with the largest momentum keeps more, and costs the task nothing.",
        "MoFO (2407.20999).",
        "mofo",
        ("below", PLAIN, DRIFT),
        ("within", PLAIN, SCORE),
    ),
    _claim(
        "Replay of general text keeps more, and costs the task nothing.",
        "2403.08763, on continual pre-training, where 5 % are enough; here the share was chosen by trials.",
        "replay",
        ("below", PLAIN, DRIFT),
        ("within", PLAIN, SCORE),
    ),
    _claim(
        "Soft masks on the units that general knowledge depends on keep more of it.",
        "DAS (2302.03241), on continual pre-training.",
        "das_without_contrast",
        ("below", PLAIN, DRIFT),
    ),
    _claim(
        "LoRA learns less and forgets less.",
        f"2405.09673. {LEARNT_NOTHING}",
        "lora",
        ("below", PLAIN, SCORE),
        ("below", PLAIN, DRIFT),
    ),
    _claim(
        "Adapters that avoid the directions that the model already uses keep more than LoRA.",
        f"CLoRA (2410.16801), CorDA (2406.05223), LoRA-Null (2503.02659). {LEARNT_NOTHING}",
        ("clora", "corda", "lora_null"),
        ("below", "lora", DRIFT),
    ),
    _claim(
        "A side network beside the frozen model does as well on the task as fine-tuning.",
        "Side-tuning (1912.13503).",
        "side_tuning",
        ("within", PLAIN, SCORE),
    ),
)

INTRODUCTION = f"""\
This page judges claims of papers about methods that reduce forgetting when a pre-trained model is fine-tuned. We
state each claim in our own words and test it with the runs of the suite [`glue`](glue.md). `benchmarks/grid_page.py`
writes the page; nothing in it is edited by hand.

**Limits.** "Measured" lists the base model, tasks and steps. The strength and the learning rate of every row were
chosen by [one protocol](glue.md#rows); the [results](results/glue.md) end with all values that were tried. Each claim
names its paper. The papers have larger models, longer training, and their own measures of what is kept. So a verdict
is about this model, these tasks and this budget ("here"). It neither confirms nor refutes a paper. What is kept is
measured as **drift**: how much worse the model reads general text after the task than the base model does, in bits
per byte of masked text.

**Rules.** They were written down before anything was measured:

* Two rows are compared on runs of the same task and seed.
{IN_GENERAL} Each run learns one task, so differences between tasks count in both samples, which makes the verdict
  conservative.
{THESE_TASKS}
{VERDICTS}
* Finding no difference does not show equality. For "as well as" the whole interval has to lie within one point of
  accuracy of zero.
{ALL_HOLD}
* The strength of a row was chosen for the least drift among those that keep fine-tuning's accuracy within two points.
  If all strengths of a row lose more than that, the most accurate one was chosen.
"""

GLUE_CLAIMS = Claims("Claims of papers about fine-tuning without forgetting", INTRODUCTION, CLAIMS, these_tasks=True)
