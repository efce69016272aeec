"""Claims of papers as comparisons that a grid can decide; :mod:`everlearn_bench.claims.judge` judges them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Number = Literal[
    "f1", "accuracy", "f1_forgetting", "accuracy_forgetting", "bits", "bits_learnt", "bits_forgotten", "drift",
    "kept", "kept_forgotten", "pass_at_1",
    "continual", "lc", "fg", "backward", "forward", "late",
]  # fmt: skip
"""What is compared; see :mod:`everlearn.grid.numbers`, and of the last line
:func:`everlearn_bench.transfer_study.claim_numbers.transfer`; ``drift`` is ``bits_drift`` of a stream, by its last
domain."""
TRANSFER: tuple[Number, ...] = ("continual", "lc", "fg", "backward", "forward", "late")
"""Of the causal study, in bits per byte: differences of log-perplexities, which its paper has."""
Relation = Literal["above", "below", "within"]
IN_GENERAL = """\
* The **verdict for tasks in general** treats both tasks and runs as samples, so it is about other seeds and other
  similar tasks. The test is min F′ of Clark (1973); the [claims of the DAS paper](claims.md) have the formula and the
  error rates."""
"""How the first verdict is found, for the page of claims that have both."""
THESE_TASKS = """\
* The **verdict for these tasks** treats the tasks and orders as fixed, and only seeds as a sample. It does not apply
  to other tasks or orders. Let y be the mean difference over the tasks of a run. The estimate is the mean over orders
  of the means over seeds, m = (1/O) Σ ȳ_o. The variance of single runs, s² = Σ_o Σ_s (y_os − ȳ_o)² / (R − O) over R
  runs of O orders, is assumed to be the same in every order, so m has the variance (1/O²) Σ s²/n_o. Student's t with
  R − O degrees of freedom gives interval and p."""
"""How the second verdict is found, for the page of claims that have one (:attr:`Claims.these_tasks`)."""
VERDICTS = """\
* A comparison **holds here** if its whole interval (95 %) lies on the claimed side, and **does not hold here** if all
  of it lies on the other side. Otherwise, or with fewer than three runs, it is **not decidable at this size**. It is
  **not measured yet** if a row has no run."""
"""What the verdicts mean."""
ALL_HOLD = """\
* A claim of several comparisons holds if all of them hold. It does not hold if one is contradicted with p < 0.05
  after Holm's correction over the claim's comparisons."""
"""When a claim of several comparisons holds."""


@dataclass(frozen=True)
class ClaimQuestion:
    """One comparison.

    Attributes:
        entry: the row whose number is judged.
        other: the row whose number is subtracted; None if the number is judged by itself.
        number: the number that is compared.
        relation: the claim about it: above `bar`, below `bar`, or between −`bar` and `bar`.
        bar: in the unit of the number; scores are fractions.
        orders: orders of the suite whose runs are used, averaged seed by seed; all by default.
        other_orders: the same for the other row.
    """

    entry: str
    other: str | None
    number: Number
    relation: Relation
    bar: float = 0.0
    orders: tuple[int, ...] | None = None
    other_orders: tuple[int, ...] | None = None

    @property
    def published(self) -> bool:
        """Return whether the paper has this number; it has no bits per byte."""
        return not self.number.startswith("bits")


@dataclass(frozen=True)
class Claim:
    """A sentence that holds if all of its comparisons hold.

    Attributes:
        sentence: the claim.
        questions: its comparisons.
        remark: Markdown below the table of comparisons.
        caveat: a limitation of any verdict, shown beside it.
    """

    sentence: str
    questions: tuple[ClaimQuestion, ...]
    remark: str = ""
    caveat: str = ""


@dataclass(frozen=True)
class Claims:
    """All claims of one paper.

    Attributes:
        title: heading of the page.
        introduction: Markdown: the source of the claims, and how they are decided.
        claims: in the order of the page.
        these_tasks: whether a second verdict is given besides the one for tasks in general: for these tasks and orders
            only, with seeds as the only sample.
    """

    title: str
    introduction: str
    claims: tuple[Claim, ...]
    these_tasks: bool = False


def questions(
    entries: str | Iterable[str],
    relation: Relation,
    others: str | Iterable[str] | None,
    numbers: Iterable[Number],
    bar: float = 0.0,
) -> tuple[ClaimQuestion, ...]:
    """Return the comparisons of every row with every other one, in every number."""

    def listed(names: str | Iterable[str] | None) -> list[str | None]:
        return [names] if names is None or isinstance(names, str) else list(names)

    return tuple(
        ClaimQuestion(entry, other, number, relation, bar)
        for entry in listed(entries)
        if entry is not None
        for other in listed(others)
        for number in numbers
    )
