"""Claims of papers about fine-tuning remedies, as comparisons that a grid on the suite can decide.

Written before anything was measured; later corrections and additions are marked in remarks. The sentences are ours. The
papers measure the preservation of pre-training in different ways, most of them on large models; here it is always the
drift of general text.
"""

from __future__ import annotations

from everlearn.methods.sequential import PLAIN
from everlearn_bench.suites.claims import THESE_TASKS, Claim, Claims, Number, Relation, questions

SCORE: tuple[Number, ...] = ("accuracy",)
DRIFT: tuple[Number, ...] = ("drift",)
POINT = 0.01
"""One point of accuracy: the margin within which two count as equal."""

LEARNT_NOTHING = (
    "Added after the runs: these rows answer as the base model does, so what they forget less is forgotten less by "
    "models that have learnt nothing of the task."
)


def _claim(
    sentence: str,
    remark: str,
    entries: str | tuple[str, ...],
    *asked: tuple[Relation, str | tuple[str, ...], tuple[Number, ...]],
) -> Claim:
    """Return a claim whose comparisons all have the same rows on their left."""
    comparisons = (
        each
        for relation, others, numbers in asked
        for each in questions(entries, relation, others, numbers, POINT if relation == "within" else 0.0)
    )
    return Claim(sentence, tuple(comparisons), remark)


CLAIMS = (
    _claim(
        "A penalty that holds the weights where they came from keeps more of pre-training than plain fine-tuning.",
        "EWC (arXiv 1612.00796), MAS (1711.09601), and L2-SP (1802.01483) as a special case.",
        ("ewc", "mas", "l2_sp"),
        ("below", PLAIN, DRIFT),
    ),
    _claim("L2-SP does better on the task than plain fine-tuning.", "1802.01483.", "l2_sp", ("above", PLAIN, SCORE)),
    _claim(
        "EWC with a root or with absolute values does on the task what EWC does.",
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
        "1904.08039, whose formulas we could not obtain: our reading. First written with KD in place of LwF; corrected "
        "after the runs: KD compares representations here, while both LwF and multi-task adaptation compare outputs.",
        "multi_task_adaptation",
        ("below", ("ewc", "lwf"), DRIFT),
    ),
    _claim(
        "Distillation from the model before keeps more, and costs the task nothing.",
        "LwF (1606.09282), of old tasks with heads of their own.",
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
        "ULMFiT (1801.06146), of a language model that has read the domain's text before.",
        "ulmfit",
        ("above", PLAIN, SCORE),
    ),
    _claim(
        "Moving only the entries with the largest momentum keeps more, and costs the task nothing.",
        "MoFO (2407.20999).",
        "mofo",
        ("below", PLAIN, DRIFT),
        ("within", PLAIN, SCORE),
    ),
    _claim(
        "General text, replayed, keeps more, and costs the task nothing.",
        "2403.08763, of continual pre-training, where 5 % are enough; here the share was chosen.",
        "replay",
        ("below", PLAIN, DRIFT),
        ("within", PLAIN, SCORE),
    ),
    _claim(
        "Soft-masking what is important for general knowledge keeps more of it.",
        "DAS (2302.03241), of continual pre-training.",
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
        "Adapters that stay out of the way of what the model knows keep more than LoRA.",
        f"CLoRA (2410.16801), CorDA (2406.05223), LoRA-Null (2503.02659). {LEARNT_NOTHING}",
        ("clora", "corda", "lora_null"),
        ("below", "lora", DRIFT),
    ),
    _claim(
        "A side network beside the frozen model does on the task what fine-tuning does.",
        "Side-tuning (1912.13503).",
        "side_tuning",
        ("within", PLAIN, SCORE),
    ),
)

INTRODUCTION = f"""\
What papers say of remedies against forgetting when a pre-trained model is fine-tuned, in our words, and what the grid
on the suite [`glue`](glue.md) says. `benchmarks/grid_page.py` writes this page; nothing in it is edited by hand.

**What this can show.** Base model, tasks and steps stand under "Measured"; the strength and the learning rate of every
row were chosen by [one protocol](glue.md#rows), and the [results](results/glue.md) end with all that was tried. Each
claim names its paper. The papers' models are larger, their training longer and their measures of what is kept their
own: a verdict is about this model, these tasks and this budget ("here") and neither confirms nor refutes a paper. What
is kept is measured as **drift**: how much worse general text is read after the task than by the base model, in bits per
byte of masked text.

**How it is decided**, written down before anything was measured:

* Two entries are compared on runs of the same task and seed.
* The **verdict for tasks in general** takes tasks and runs both as samples: min F′ of Clark (1973), as on the page of
  the [claims of the DAS paper](claims.md), which has the formula and the error rates. A run learns one task, so what
  tasks differ by counts in both samples, and the verdict is careful.
{THESE_TASKS}
* **holds here**: the whole interval (95 %) lies on the claimed side. **does not hold here**: all of it lies on the
  other side. **not decidable at this size**: neither, or there are fewer than three runs. **not measured yet**: an
  entry has no run.
* Not to find a difference is not to find equality: "what the other does" needs the whole interval within one point of
  accuracy.
* A claim of several comparisons holds if all of them hold, and does not hold if one is contradicted with p < 0.05 after
  Holm's correction over the claim's comparisons.
* The strength of a row was chosen to keep fine-tuning's accuracy within two points and then to drift least: a row whose
  strengths all cost more has the most accurate one.
"""

GLUE_CLAIMS = Claims("What the papers of the remedies claim", INTRODUCTION, CLAIMS, these_tasks=True)
