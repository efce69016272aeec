"""Grids whose orders have different end tasks: what has no order is compared over the tasks that were learnt."""

from __future__ import annotations

from typing import ClassVar

import pytest

from everlearn.comparison.pairs import within
from everlearn.comparison.runs import Run
from everlearn.grid import summarise
from everlearn.grid.arrangements import shares_of_options
from everlearn.grid.page import GridPage
from everlearn.grid.relative_to_plain import shares_of_plain
from everlearn.tasks.prompts import Question
from everlearn_bench.claims.constant_predictions import constant_table
from everlearn_bench.claims.page import page
from everlearn_bench.suites import Suite as BaseSuite
from grid_cells import cell_of, like

SCORES = {"a": 0.9, "b": 0.5, "c": 0.1}
BITS = {"a": 4.0, "b": 8.0, "c": 20.0}


class Suite(BaseSuite):
    name = "tiny"
    orders: ClassVar = {1: ("a",), 2: ("b",), 3: ("c",)}
    tasks: ClassVar = {task: task for task in SCORES}
    metrics = ("accuracy",)


def cell(entry: str, order: int | None, seed: int | None, domains: str, lift: float = 0.0, seconds: float = 0.0) -> Run:
    """Asked each domain's task; a trained cell ends `lift` above the base model and at 1 bit per byte."""
    ends = {task: {"base": SCORES[task], "final": SCORES[task] + lift} for task in domains}
    bits = {task: {"base": BITS[task], "final": BITS[task] if order is None else 1.0} for task in domains}
    if order is not None:
        for task in domains:
            bits[task]["learnt"] = 1.0
    return cell_of(
        suite="tiny",
        entry=entry,
        title=entry,
        order=order,
        seed=seed,
        domains=list(domains),
        tasks={task: {m: {"accuracy": [x], "examples": 10} for m, x in at.items()} for task, at in ends.items()},
        bits_per_byte=bits | {"general": {"base": 1.0, "final": 1.0 if order is None else 1.5}},
        settings={},
        seconds=seconds,
        tokens=0 if order is None else 100,
    )


def grid() -> list[Run]:
    """Orders 1 and 2 of three, two seeds; the base model was asked all three tasks."""
    runs = [(order, seed) for order in (1, 2) for seed in (0, 1)]
    plain = [cell("sequential", order, seed, "ab"[order - 1], 0.04 + 0.02 * seed) for order, seed in runs]
    return [cell("none", None, None, "abc"), *plain]


def test_the_base_model_is_averaged_over_the_tasks_that_were_learnt() -> None:
    base, plain = summarise(grid())
    assert base.numbers["accuracy"].value == pytest.approx(0.7)  # not 0.5, with c
    assert base.numbers["accuracy_micro"].value == pytest.approx(0.7)
    assert base.numbers["bits"].value == pytest.approx(6.0)
    assert base.numbers["bits_drift"].value == 0  # the text of c is no general text
    assert plain.numbers["accuracy"].value == pytest.approx(0.75)
    found = base.differences["accuracy"]
    assert (found.estimate.value, found.pairs) == (pytest.approx(-0.05), 2)
    assert found.estimate.low == pytest.approx(-0.05 - 12.7062 * 0.01, abs=1e-4)  # t, one degree
    assert base.differences["bits"].estimate.value == pytest.approx(5.0)
    assert "accuracy/c" not in base.numbers


def test_each_side_has_the_tasks_of_its_own_runs() -> None:
    """An entry of one order, and one whose orders have different seeds."""
    cells = [*grid(), cell("ewc", 2, 0, "b", 0.1), cell("kd", 1, 0, "a", 0.1), cell("kd", 2, 1, "b", 0.2)]
    by = {line.entry: line for line in summarise(cells, "none")}
    assert by["ewc"].differences["accuracy"].estimate.value == pytest.approx(0.1)
    assert by["kd"].differences["accuracy"].estimate.value == pytest.approx(0.15)
    assert by["kd"].differences["bits"].estimate.value == pytest.approx(-5.0)


def test_what_is_held_is_of_the_domains_of_each_run() -> None:
    """Base 4 and 8 bits, 1 at the end: all of what is learnt, 3 and 7 bits."""
    _, plain = summarise(grid())
    found = shares_of_plain(plain, plain)
    assert (found["bits_held"].mean, found["bits_held"].deviation) == (pytest.approx(1.0), pytest.approx(0.0))


def test_tasks_that_nothing_learnt_have_no_column() -> None:
    sheet = GridPage(Suite(), grid())
    assert sheet.tables()[0].header == ("Method", "a", "b", "Average ↑", "Forgetting ↓")
    assert GridPage(Suite(), grid()[1:]).tasks == ["a", "b"], "the first cell has only one of them"
    assert GridPage(Suite(), grid()[:1]).tasks == ["a", "b", "c"], "the base model alone"


def test_a_cell_of_an_order_stays_as_it_is() -> None:
    base, first, *_ = grid()
    assert within(first, [base]) is first
    assert within(base, [first]).domains == ["a"]
    assert within(base, [first]).matrices["bits_per_byte"].columns == ["a", "general"]
    assert base.domains == ["a", "b", "c"]


def test_one_run_that_waited_does_not_change_the_time() -> None:
    """Three seeds of 90, 91 and 654 seconds."""
    cells = [cell("sequential", 1, seed, "a", seconds=spent) for seed, spent in enumerate((90.0, 654.0, 91.0))]
    assert summarise(cells)[0].seconds == 91.0


def test_labels_are_the_options_that_every_question_has() -> None:
    questions = [
        Question("?", ("yes", "no", "red"), 0),
        Question("?", ("no", "yes"), 1),
        Question("?", ("yes", "no"), 1),
    ]
    assert shares_of_options(questions) == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert shares_of_options([Question("?", ("here", "there")), Question("?", ("now", "then"))]) == []


def constant(shares: list[float]) -> Run:
    """Of 10 examples of `a`, 6 have the training part's most frequent label."""
    answers = {"final": {"accuracy": [0.6], "shares": shares}}
    return like(cell("constant", None, None, "ac"), tasks={"a": answers, "c": answers})


def runs(*accuracies: float, macro_f1: float | None = None) -> list[Run]:
    f1 = [] if macro_f1 is None else [macro_f1]
    return [
        like(cell("lora", 1, seed, "a"), tasks={"a": {"final": {"accuracy": [accuracy], "macro_f1": f1}}})
        for seed, accuracy in enumerate(accuracies)
    ]


def test_the_score_of_any_label_counts() -> None:
    ends = runs(0.6, 0.4, 0.4, 0.5, 0.0)
    table = constant_table([constant([0.6, 0.4, 0.0]), *ends])
    assert table is not None
    assert [(name, [each.text for each in row]) for name, row in table.rows] == [("a", ["3", "5"])]
    assert "Degenerate: a (in 3 of 5 runs)" in table.caption
    assert table.caption.startswith("Counted where accuracy is exactly that of one of the labels, whichever it is;")
    assert "macro-F1" not in table.caption
    unknown = constant_table([constant([]), *ends])
    assert unknown is not None
    assert unknown.rows[0][1][0].text == "1"
    assert "the most frequent label of the training part" in unknown.caption


def test_macro_f1_is_compared_where_a_run_has_it() -> None:
    """One of two labels, of share 0.4, has F1 2 · 0.4 / 1.4, the other 0."""
    right = constant_table([constant([0.6, 0.4]), *runs(0.4, macro_f1=0.4 / 1.4)])
    other = constant_table([constant([0.6, 0.4]), *runs(0.4, macro_f1=0.39)])
    assert right is not None
    assert other is not None
    assert (right.rows[0][1][0].text, other.rows[0][1][0].text) == ("1", "0")
    assert right.caption.startswith("Counted where accuracy and macro-F1 both are those of one of the labels")


def test_a_setting_that_every_row_replaces_is_not_said_to_be_what_was_measured() -> None:
    settings = {"recipe.train": {"max_steps": 7, "learning_rate": 3e-4}}
    base, *trained = (like(each, settings=settings) for each in grid())
    rated = [like(each, options={"train.learning_rate": 1e-3}) for each in trained]
    said = page(Suite(), "Claims", "", [], [base, *rated])
    assert r"- train.max\_steps: 7" in said
    assert "learning" not in said
    assert r"- train.learning\_rate: 0.0003" in page(Suite(), "Claims", "", [], [base, *rated[1:], trained[0]])
