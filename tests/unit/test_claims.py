"""Claims judged from hand-made cells: numbers worked out by hand, the verdict rule at its edges, gaps, the page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from everlearn import files
from everlearn.comparison.pairs import aligned
from everlearn.comparison.runs import Run
from everlearn.errors import RunError
from everlearn.grid.numbers import numbers
from everlearn.grid.page import GridPage
from everlearn.grid.rows import resolve
from everlearn_bench.claims.constant_predictions import constant_table
from everlearn_bench.claims.crossed_effects import crossed_mean, holm, mean_of_these
from everlearn_bench.claims.judge import FAILS, HOLDS, MISSING, OPEN, ask, judge, parts, tasks_and_runs, verdict
from everlearn_bench.claims.order_effects import effect_tables, ends_table, order_table
from everlearn_bench.claims.page import page, question, write_claims
from everlearn_bench.suites import Suite, find_suite
from everlearn_bench.suites.claims import Claim, ClaimQuestion
from everlearn_bench.suites.six_domains.claims import CLAIMS
from grid_cells import cell_of, like, made_of, write

SIX = find_suite("six-domains")

ORDERS = {0: ["a", "b", "c", "d"], 1: ["c", "d", "a", "b"]}


def cell(
    entry: str,
    finals: list[float],
    *,
    seed: int | None = 0,
    order: int | None = 0,
    lost: float = 0.0,
    base: float = 0.5,
    title: str | None = None,
) -> Run:
    """Four tasks a, b, c, d with these F1 at the end; each had `lost` more right after its own domain."""
    domains = ORDERS[order or 0]
    tasks, bits = {}, {}
    for task, final in zip("abcd", finals, strict=True):
        learnt = final + (lost if task != domains[-1] else 0.0)
        values = {"base": base, "learnt": learnt, "final": final}
        tasks[task] = {
            moment: {"accuracy": [value / 2, value / 2], "macro_f1": [value], "f1": [value - 0.01, value + 0.01]}
            for moment, value in values.items()
        }
        bits[task] = {"base": 3.0, "learnt": 2.0 - final, "final": 2.0 - final + lost * (task != domains[-1])}
    bits["general"] = {"base": 1.0, "final": 1.5}
    if order is None:
        for at in (*tasks.values(), *bits.values()):
            at.pop("learnt", None)
    return cell_of(
        suite="six-domains", entry=entry, title=title or entry.upper(), order=order, seed=seed, domains=domains,
        tasks=tasks, bits_per_byte=bits, settings={"model": "small", "steps": 7, "corpora": {"a": ["digest"]}},
    )  # fmt: skip


def grid(gains: Mapping[int, list[float]]) -> list[Run]:
    """DAS and EWC: for each seed the gain of DAS on every task."""
    found = []
    for seed, gain in gains.items():
        found.append(cell("das", [0.6 + each for each in gain], seed=seed))
        found.append(cell("ewc", [0.6] * 4, seed=seed))
    return found


DAS_ABOVE = ClaimQuestion("das", "ewc", "f1", "above")


def test_a_difference_as_worked_out_by_hand() -> None:
    """Gains in points, tasks a to d: seed 0: 1 2 3 2, seed 1: 2 3 4 3, seed 2: 3 4 5 4.

    Mean 3. Task means 2 3 4 3: variance 2/3, V(tasks) = 1/6. Run means 2 3 4: variance 1, V(runs) = 1/3. V = 1/2 on
    (1/4) / ((1/36)/3 + (1/9)/2) = 3.857 degrees of freedom; t = 3 / sqrt(1/2) = 4.243.
    """
    cells = grid({0: [0.01, 0.02, 0.03, 0.02], 1: [0.02, 0.03, 0.04, 0.03], 2: [0.03, 0.04, 0.05, 0.04]})
    rows = ((1, 2, 3, 2), (2, 3, 4, 3), (3, 4, 5, 4))
    found = crossed_mean([dict(zip("abcd", row, strict=True)) for row in rows])
    assert (found.value, found.error, found.freedom) == pytest.approx((3, math.sqrt(0.5), 0.25 / (1 / 108 + 1 / 18)))
    answer = ask(cells, DAS_ABOVE)
    assert answer.verdict == HOLDS
    assert answer.difference.value == pytest.approx(0.03)
    assert answer.sides == pytest.approx((0.63, 0.6))
    assert answer.runs == ((0, 0), (0, 1), (0, 2))
    assert answer.tasks == 4
    # The density of Student's t, integrated here by the trapezoid rule.
    nu, t = found.freedom, 3 / math.sqrt(0.5)
    grid_ = np.linspace(0, t, 200_001)
    density = (1 + grid_**2 / nu) ** (-(nu + 1) / 2)
    density *= math.gamma((nu + 1) / 2) / (math.sqrt(nu * math.pi) * math.gamma(nu / 2))
    assert answer.p_value == pytest.approx(1 - 2 * np.trapezoid(density, grid_), abs=1e-8)
    # At either end of the interval p is exactly 0.05.
    low, high = found.interval() or (0.0, 0.0)
    assert found.p_value(low) == pytest.approx(0.05) == found.p_value(high)
    assert (answer.difference.low, answer.difference.high) == pytest.approx((low / 100, high / 100))
    assert ask(cells, ClaimQuestion("ewc", "das", "f1", "above")).verdict == FAILS
    assert ask(cells, ClaimQuestion("das", "ewc", "f1", "below")).verdict == FAILS


@pytest.mark.parametrize("number", ["f1", "accuracy", "f1_forgetting", "accuracy_forgetting", "bits", "bits_learnt",
                                    "bits_forgotten"])  # fmt: skip
def test_parts_average_to_the_numbers_of_the_table(number: str) -> None:
    one = cell("das", [0.7, 0.6, 0.5, 0.8], lost=0.04, order=1)
    found = parts(one, number)
    assert float(np.mean(list(found.values()))) == pytest.approx(numbers(one)[number])
    if number == "f1_forgetting":
        assert found == pytest.approx({"a": 0.04, "c": 0.04, "d": 0.04})  # b is last in order 1
    assert parts(one, "drift") == {"b": pytest.approx(numbers(one)["bits_drift"])} == {"b": 0.5}
    pooled = cell("pool", [0.7, 0.6, 0.5, 0.8], order=None)
    assert bool(parts(pooled, number)) == (number in numbers(pooled)) == (number in ("f1", "accuracy", "bits"))


def test_the_verdict_rule_at_its_edges() -> None:
    above, below = ClaimQuestion("das", None, "f1", "above"), ClaimQuestion("das", None, "f1", "below", 0.01)
    within = ClaimQuestion("das", None, "f1", "within", 0.01)
    cases = [
        (above, (0.001, 0.1), HOLDS), (above, (0.0, 0.1), OPEN), (above, (-0.1, 0.0), OPEN),
        (above, (-0.1, -0.001), FAILS), (above, None, OPEN),
        (below, (-0.5, 0.009), HOLDS), (below, (-0.5, 0.01), OPEN), (below, (0.01, 0.5), OPEN),
        (below, (0.011, 0.5), FAILS),
        (within, (-0.009, 0.009), HOLDS), (within, (0.002, 0.009), HOLDS), (within, (-0.01, 0.0), OPEN),
        (within, (0.0, 0.01), OPEN), (within, (-0.5, 0.5), OPEN), (within, (0.01, 0.5), OPEN),
        (within, (0.011, 0.5), FAILS), (within, (-0.5, -0.011), FAILS),
    ]  # fmt: skip
    for asked, interval, wanted in cases:
        assert verdict(asked, interval, 3) == wanted, (asked, interval)
        assert verdict(asked, interval, 2) == OPEN


def test_interval_and_p_value_say_the_same() -> None:
    """For every relation: there is a verdict exactly where p < 0.05."""
    rng = np.random.default_rng(1)
    seen = set()
    for centre in np.linspace(-0.03, 0.03, 25):
        gains = {seed: list(centre + 0.004 * rng.standard_normal(4)) for seed in range(3)}
        for relation, bar in (("above", 0.0), ("below", 0.01), ("within", 0.01)):
            found = ask(grid(gains), ClaimQuestion("das", "ewc", "f1", relation, bar))
            assert found.p_value is not None
            assert (found.verdict != OPEN) == (found.p_value < 0.05)
            seen.add((relation, found.verdict))
    assert len(seen) == 9


def test_false_findings_are_rare_whatever_is_noisy() -> None:
    """No true difference, three runs and six tasks: noise of tasks, of runs, of both, or of neither."""
    rng = np.random.default_rng(0)
    for tasks, runs, single in ((0, 0, 1), (1, 1, 1), (3, 0.3, 1), (0.3, 3, 1)):
        wrong = 0
        for _ in range(250):
            noise = tasks * rng.standard_normal((1, 6)) + runs * rng.standard_normal((3, 1))
            noise = noise + single * rng.standard_normal((3, 6))
            found = crossed_mean([{str(task): float(x) for task, x in enumerate(row)} for row in noise])
            wrong += (found.p_value() or 0) < 0.05
        assert wrong / 250 < 0.12, (tasks, runs, single)


def test_numbers_without_spread() -> None:
    """HAT's scores may be bit for bit the same in the end: forgetting is exactly 0, and known to be."""
    cells = [cell("hat", [0.6] * 4, seed=seed) for seed in range(3)]
    found = ask(cells, ClaimQuestion("hat", None, "f1_forgetting", "below", 0.01))
    assert (found.difference.value, found.difference.low, found.difference.high) == (0, 0, 0)
    assert (found.verdict, found.p_value) == (HOLDS, 0)
    zero = ask(cells, ClaimQuestion("hat", None, "f1_forgetting", "above"))
    assert (zero.verdict, zero.p_value) == (OPEN, 1)
    shifted = [cell("das", [0.6 + 0.1] * 4, seed=seed) for seed in range(3)] + [
        cell("ewc", [0.6] * 4, seed=seed) for seed in range(3)
    ]
    assert ask(shifted, DAS_ABOVE).p_value == 0  # rounding is no spread


def test_few_runs_and_gaps() -> None:
    nothing = ask([], DAS_ABOVE)
    assert (nothing.verdict, nothing.difference.value, nothing.p_value, nothing.runs) == (MISSING, None, None, ())
    assert ask([cell("das", [0.7] * 4)], DAS_ABOVE).verdict == MISSING
    unpaired = [cell("das", [0.7] * 4, seed=0), cell("ewc", [0.6] * 4, seed=1)]
    assert ask(unpaired, DAS_ABOVE).verdict == MISSING
    one = ask(grid({0: [0.1] * 4}), DAS_ABOVE)
    assert (one.verdict, one.p_value, one.difference.low) == (OPEN, None, None)
    assert one.difference.value == pytest.approx(0.1)
    two = ask(grid({0: [0.1, 0.11, 0.1, 0.11], 1: [0.11, 0.1, 0.11, 0.1]}), DAS_ABOVE)
    assert two.p_value is not None
    assert two.p_value < 0.05
    assert two.verdict == OPEN
    pooled = [cell("pool", [0.6] * 4, order=None), cell("das", [0.7] * 4)]
    assert (
        ask(pooled, ClaimQuestion("das", "pool", "f1_forgetting", "below")).verdict == MISSING
    )  # Pool has no such rate


def test_what_has_no_order_or_no_seed_is_paired_all_the_same() -> None:
    ours = {(0, 0): {"a": 1.0, "b": 2.0}, (1, 0): {"a": 3.0, "b": 4.0}, (0, 1): {"a": 5.0, "b": 6.0}}
    pooled = {(None, 0): {"a": 1.0, "c": 9.0}, (None, 1): {"a": 2.0}}
    assert aligned(ours, pooled) == (
        {(None, 0): {"a": 2.0}, (None, 1): {"a": 5.0}},
        {(None, 0): {"a": 1.0}, (None, 1): {"a": 2.0}},
    )
    base = {(None, None): {"a": 7.0, "b": 8.0}}
    left, right = aligned(ours, base)
    assert left == {(None, 0): {"a": 2.0, "b": 3.0}, (None, 1): {"a": 5.0, "b": 6.0}}
    assert right == {(None, 0): base[None, None], (None, 1): base[None, None]}
    assert aligned(base, ours) == (right, left)
    other = {(0, 0): {"a": 0.0, "b": 0.0}, (1, 1): {"a": 0.0}}
    assert aligned(ours, other) == ({(0, 0): ours[0, 0]}, {(0, 0): other[0, 0]})


def test_tasks_may_be_missing_in_single_runs() -> None:
    """Forgetting over two orders: the last domain of each is absent. Variances from sums, by hand."""
    found = crossed_mean([{"a": 1.0, "b": 2.0}, {"b": 4.0, "c": 5.0}])
    # mean 3; deviations -2 -1 | 1 2; task sums -2 0 2, run sums -3 3; N = 4
    tasks, runs = (4 + 0 + 4) * 3 / 2 / 16, (9 + 9) * 2 / 1 / 16
    assert found.value == 3
    assert found.error == pytest.approx(math.sqrt(tasks + runs))
    assert found.freedom == pytest.approx((tasks + runs) ** 2 / (tasks**2 / 2 + runs**2 / 1))
    with pytest.raises(ValueError, match="nothing"):
        crossed_mean([])


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_claim_of_several_comparisons() -> None:
    def against(*names: str) -> Claim:
        return Claim("Best.", tuple(ClaimQuestion("das", name, "f1", "above") for name in names))

    rng = np.random.default_rng(0)
    cells = []
    for seed in range(3):
        for name, level in (("das", 0.6), ("ewc", 0.5), ("kd", 0.7), ("hat", 0.6)):
            cells.append(cell(name, list(level + 0.005 * rng.standard_normal(4)), seed=seed))
    (clear,), (worse,), (mixed,), (unclear,), (gap,) = (
        judge(cells, [against(*names)]) for names in (("ewc",), ("kd",), ("ewc", "kd"), ("ewc", "hat"), ("ewc", "none"))
    )
    assert [each.verdict for each in (clear, worse, mixed, unclear, gap)] == [HOLDS, FAILS, FAILS, OPEN, MISSING]
    ps = [finding.p_value for finding in mixed.findings]
    assert None not in ps
    assert [finding.adjusted for finding in mixed.findings] == pytest.approx(holm(ps))
    assert gap.findings[0].adjusted == gap.findings[0].p_value
    assert gap.findings[1].adjusted is None
    # A contradiction that correction takes away leaves the claim open.
    weak = [cell("das", [0.6] * 4, seed=seed) for seed in range(3)]
    steps = [0.004, 0.012, 0.02, 0.012]
    weak += [cell("ewc", [0.6 + each * (1 + 0.2 * seed) for each in steps], seed=seed) for seed in range(3)]
    noisy = [[0.6 + 0.05 * x for x in rng.standard_normal(4)] for _ in range(12)]
    names = ("kd", "hat", "bcl", "demix")
    weak += [cell(name, noisy[3 * i + seed], seed=seed) for i, name in enumerate(names) for seed in range(3)]
    (found,) = judge(weak, [against("ewc", *names)])
    assert found.findings[0].verdict == FAILS
    assert (found.findings[0].adjusted or 0) > 0.05
    assert found.verdict == OPEN
    # Bits per byte are shown and do not count.
    both = Claim("Less.", (DAS_ABOVE, ClaimQuestion("das", "ewc", "bits", "above")))
    (bits,) = judge(cells, [both])
    assert [finding.verdict for finding in bits.findings] == [HOLDS, FAILS]
    assert bits.verdict == HOLDS


@pytest.mark.parametrize("suite", [SIX, find_suite("glue"), find_suite("code")], ids=lambda suite: suite.name)
def test_the_claims_name_entries_that_there_are(suite: Suite) -> None:
    assert suite.claims is not None
    claims = suite.claims.claims
    names = {name for claim in claims for asked in claim.questions for name in (asked.entry, asked.other) if name}
    assert {entry.name for entry in resolve(sorted(names), suite)} == names
    questions = [asked for claim in claims for asked in claim.questions]
    assert len(questions) == len(set(questions))
    assert all(asked.bar > 0 for asked in questions if asked.relation == "within")
    assert all(any(asked.published for asked in claim.questions) for claim in claims)


def test_single_tasks_from_the_base_model_are_compared_task_by_task() -> None:
    """Of the suite `glue`, where an order is one task: what is learnt, and what general text drifts after it."""
    cells = [
        like(
            cell(entry, [0.7, 0.6, 0.5, 0.8], seed=seed, order=order),
            domains=[task],
            tasks={},
            bits_per_byte={"general": {"base": 1.0, "final": 1.0 + drift + 0.01 * seed + 0.02 * order}},
        )
        for entry, drift in (("ewc", 0.1), ("sequential", 0.4))
        for order, task in enumerate("ab")
        for seed in range(3)
    ]
    question_of_drift = ClaimQuestion("ewc", "sequential", "drift", "below")
    assert parts(cells[0], "drift") == {"a": pytest.approx(0.1)}
    found = ask(cells, question_of_drift, mean_of_these)
    assert found.sides == pytest.approx((0.12, 0.42))
    assert found.difference.value == pytest.approx(-0.3)
    assert (found.verdict, found.tasks, len(found.runs)) == (HOLDS, 2, 6)
    assert question_of_drift.published, "a claim about drift alone is decided by drift"
    titles = {"ewc": "EWC", "sequential": "Fine-tuning"}
    assert question(question_of_drift, titles) == "EWC < Fine-tuning: drift of general text (bits per byte)"


def test_an_empty_grid_makes_an_honest_page(tmp_path: Path) -> None:
    judged = write_claims(SIX, tmp_path / "absent", tmp_path / "claims.md")
    assert {each.verdict for each in judged} == {MISSING}
    text = (tmp_path / "claims.md").read_text(encoding="utf-8")
    assert "**Nothing is measured yet**" in text
    assert "holds here |" in text
    assert "**holds here** |" not in text
    rows = [line for line in text.splitlines() if line.startswith("| DAS &gt; EWC: F1")]
    assert rows == ["| DAS &gt; EWC: F1 | – | – | – | – | – | not measured yet |"]


def test_the_page_of_a_small_grid(tmp_path: Path) -> None:
    results = tmp_path / "results"
    cells = grid({0: [0.01, 0.02, 0.03, 0.02], 1: [0.02, 0.03, 0.04, 0.03], 2: [0.03, 0.04, 0.05, 0.04]})
    cells = [like(each, title="E|W*C <b>") if each.grid.row == "ewc" else each for each in cells]
    write(results, *cells)
    write_claims(SIX, results, tmp_path / "claims.md")
    text = (tmp_path / "claims.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| DAS &gt; E"))
    cells_of = [part.strip() for part in re.split(r"(?<!\\)\|", row)[1:-1]]
    assert cells_of[0] == r"DAS &gt; E\|W\*C &lt;b&gt;: F1"
    assert cells_of[1] == "63.00 / 60.00"
    assert cells_of[2].startswith("+3.00 [+1.0")
    assert cells_of[5:] == ["3 × 4", "holds here"]
    assert "<b>" not in text
    assert "digest" not in text
    assert "- Runs: 6, of 2 rows" in text
    assert "- steps: 7" in text
    widths: set[int] = set()
    for line in text.splitlines():  # every row of a table has as many cells as its header
        if line.startswith("|"):
            widths.add(len(re.split(r"(?<!\\)\|", line)))
        elif widths:
            assert len(widths) == 1
            widths = set()
    assert page(SIX, "x", "y", judge(cells, CLAIMS), cells) == page(SIX, "x", "y", judge(cells, CLAIMS), cells)
    files.write_json(results / "bad.json", {"suite": "six-domains"})
    with pytest.raises(RunError, match="no run of a grid"):
        write_claims(SIX, results, tmp_path / "claims.md")


def test_an_end_task_that_runs_answer_with_one_label_is_named() -> None:
    constant = cell("constant", [0.2, 0.3, 0.4, 0.5], order=None, seed=None)
    cells = [constant, *(cell("das", [0.2, 0.3, 0.4, 0.6], seed=seed) for seed in range(2))]
    cells += [cell("ewc", [0.2, 0.31, 0.4, 0.6], lost=0.1), cell("kd", [0.21, 0.3, 0.41, 0.5])]
    table = constant_table(cells)
    assert table is not None
    counts = {name: [cell.text for cell in row] for name, row in table.rows}
    assert counts == {"a": ["3", "4"], "b": ["3", "4"], "c": ["3", "4"], "d": ["1", "4"]}
    assert "Degenerate: a (in 3 of 4 runs), b (in 3 of 4 runs), c (in 3 of 4 runs)." in table.caption
    # The same macro-F1 with another accuracy is another answer.
    tasks = made_of(cells[1])["tasks"]
    tasks["a"]["final"]["accuracy"] = [0.11, 0.11]
    cells[1] = like(cells[1], tasks=tasks)
    assert constant_table(cells).rows[0][1][0].text == "2"
    assert constant_table(cells[1:]) is None


def test_questions_in_words() -> None:
    titles = {"das": "DAS", "hat": "HAT"}
    assert question(ClaimQuestion("das", "hat", "f1", "above"), titles) == "DAS > HAT: F1"
    assert question(ClaimQuestion("hat", "das", "bits_learnt", "below"), titles) == "HAT < DAS: bits per byte learnt"
    assert question(ClaimQuestion("das", "hat", "accuracy", "within", 0.01), titles) == "DAS = HAT ± 1 point: accuracy"
    assert (
        question(ClaimQuestion("hat", None, "f1_forgetting", "below", 0.02), titles) == "HAT: F1 forgetting < 2 points"
    )
    assert question(ClaimQuestion("das", None, "f1_forgetting", "below"), titles) == "DAS: F1 forgetting < 0"


def test_effect_of_the_order() -> None:
    cells = [
        cell("das", [0.6] * 4, seed=0), cell("das", [0.64] * 4, seed=1),
        cell("das", [0.7] * 4, seed=0, order=1), cell("das", [0.7] * 4, seed=1, order=1),
        cell("ewc", [0.5] * 4, seed=0),
    ]  # fmt: skip
    table = order_table(cells, "f1", "average")
    assert table.header == ("Method", "order 0", "order 1", "spread over orders", "spread over seeds")
    das, ewc = (dict(table.rows)[name] for name in ("DAS", "EWC"))
    # Means 62 and 70: sd 8/√2; variances over seeds 8 and 0: √4.
    assert [(at.text, at.detail) for at in das] == [
        ("62.00", "(2)"), ("70.00", "(2)"), ("5.66", ""), ("2.00", ""),
    ]  # fmt: skip
    assert [at.text for at in ewc] == ["50.00", "–", "–", "–"]
    assert "One order only" not in table.caption
    assert "One order only so far (0)" in order_table(cells[:2], "f1", "average").caption
    assert effect_tables([cell("pool", [0.5] * 4, order=None)], SIX) == []


def test_entries_stand_in_the_order_of_the_main_table() -> None:
    names = ["das", "das_random", "ewc", "kd", "sequential", "migu", "dap_adapter"]
    cells = [cell(name, [0.6] * 4, seed=seed, title=name) for name in sorted(names) for seed in (0, 1)]
    wanted = ["dap_adapter", "sequential", "kd", "ewc", "das", "das_random", "migu"]
    tables = effect_tables(cells, SIX)
    assert len(tables) == 3
    for table in tables:
        assert [name for name, _ in table.rows] == wanted
    assert [line.entry for line in GridPage(SIX, cells).lines] == wanted


def test_first_two_domains_against_the_last_two() -> None:
    cells = [cell("das", [0.6, 0.7, 0.8, 0.9], lost=0.02, seed=seed) for seed in (0, 1)]
    (title, found), *rest = ends_table(cells, "f1", "F1, points").rows
    assert title == "DAS"
    assert not rest
    # Base 50. The third domain lost 2 points since it was learnt, the last cannot have.
    assert [at.text for at in found] == ["65.00", "85.00", "+15.00", "+35.00", "−2.00", "−1.00"]
    assert {at.detail for at in found} == {"± 0.00"}
    turned = ends_table([cell("das", [0.6, 0.7, 0.8, 0.9], lost=0.02, order=1)], "bits", "bits per byte").rows[0][1]
    # Order 1 begins with c, d: (1.22 + 1.12) / 2 at the end; 3 − that over the base; 0.02 more bits since: worse.
    assert [at.text for at in turned] == ["1.1700", "1.3600", "+1.8300", "+1.6400", "−0.0200", "−0.0100"]
    bare = [like(each, tasks={}) for each in cells]
    assert [table.title for table in effect_tables(bare, SIX)] == [
        "Effect of the order: bits per byte at the end",
        "Effect of the order: bits per byte forgotten",
        "First two against last two domains (bits per byte)",
    ]
    unknown = like(cells[0], tasks={}, bits_per_byte={})
    assert effect_tables([unknown], SIX), "one run without a score that both ends have"
    assert not [table.title for table in GridPage(SIX, [unknown]).tables() if table.title.startswith("First two")]


def test_a_mean_over_these_tasks_as_worked_out_by_hand() -> None:
    """Run means: order 0: 1 and 3, order 1: 6 and 8 and 10. m = (2 + 8) / 2 = 5; s² = (2 + 8) / (5 − 2) = 10/3; the
    error is sqrt(10/3 · (1/2 + 1/3)) / 2 on 3 degrees of freedom."""
    rows = {(0, 0): 1.0, (0, 1): 3.0, (1, 0): 6.0, (1, 1): 8.0, (1, 2): 10.0}
    found = mean_of_these({unit: {"a": value - 1, "b": value + 1} for unit, value in rows.items()})
    assert (found.value, found.freedom) == (5.0, 3)
    assert found.error == pytest.approx(math.sqrt(10 / 3 * (1 / 2 + 1 / 3)) / 2)
    low, high = found.interval() or (0.0, 0.0)
    assert found.p_value(low) == pytest.approx(0.05) == found.p_value(high)
    assert mean_of_these({(0, 0): {"a": 1.0}, (1, 0): {"a": 2.0}}).interval() is None
    assert mean_of_these({(0, seed): {"a": 0.1, "b": 0.2} for seed in range(3)}).error == 0.0
    with pytest.raises(ValueError, match="nothing"):
        mean_of_these({})


def test_tasks_that_differ_much_can_be_decided_for_these_tasks_alone(tmp_path: Path) -> None:
    """Gains of 1, 2, 40 and 80 points, alike in every seed: true of these tasks, and unknown of others."""
    gains = [0.01, 0.02, 0.40, 0.80]
    cells = [
        each
        for seed in range(3)
        for each in (
            cell("migu", [0.1 + gain + 0.001 * seed for gain in gains], seed=seed, order=1),
            cell("sequential", [0.1] * 4, seed=seed, order=1),
        )
    ]
    asked = ClaimQuestion("migu", "sequential", "accuracy", "above")
    assert ask(cells, asked).verdict == OPEN
    assert ask(cells, asked, mean_of_these).verdict == HOLDS
    write(tmp_path, *cells)
    standard = find_suite("standard-cl")
    write_claims(standard, tmp_path, tmp_path / "claims.md")
    text = (tmp_path / "claims.md").read_text()
    assert "| Claim | Verdict for tasks in general | Verdict for these tasks |" in text
    line = next(line for line in text.splitlines() if "MIGU helps full fine-tuning." in line)
    assert line.split(" | ")[1:3] == [f"**{OPEN}**", f"**{HOLDS}**"]
    assert "These tasks: difference" in text
    assert (
        "The last four columns count each claim's comparisons of F1 and accuracy, "
        "by their verdict for tasks in general." in text
    )


def test_one_task_is_decided_for_itself_alone() -> None:
    """Of code there is one number: seeds say what is true of it, and nothing says what is true of other tasks."""
    code = find_suite("code")
    assert code.claims is not None
    assert code.claims.these_tasks
    (solved,) = (asked for asked in code.claims.claims[1].questions if asked.number == "pass_at_1")
    kept = {"choice_accuracy_per_byte": {"hellaswag": 0.3, "winogrande": 0.5}}
    cells = [
        cell_of(
            suite="code", entry=entry, title=entry, order=0, seed=seed, domains=["code"], settings={},
            points=[
                {"tokens": at, "learnt": {"pass_at_1": {"humaneval": 0.1 + gain + 0.001 * seed}}, "kept": kept}
                for at in (0.0, 9.0)
            ],
        )
        for seed in range(3)
        for entry, gain in (("lora", 0.0), ("lora+migu", 0.004 + 0.001 * seed))
    ]  # fmt: skip
    assert ask(cells, solved).verdict == OPEN
    assert ask(cells, solved, mean_of_these).verdict == HOLDS
    none = [point | {"learnt": {"pass_at_1": {"humaneval": 0.0}}} for point in made_of(cells[0])["points"]]
    unsolved = ask([like(cell, points=none) for cell in cells], solved, mean_of_these)
    assert (unsolved.verdict, unsolved.p_value, unsolved.runs) == (OPEN, None, ((0, 0), (0, 1), (0, 2)))
    judged, these = (judge(cells, code.claims.claims, sampled) for sampled in (tasks_and_runs, mean_of_these))
    text = page(code, code.claims.title, code.claims.introduction, judged, cells, these)
    assert "The **verdict for these tasks** treats the tasks and orders as fixed" in text
    assert "Verdict for these tasks" in text
