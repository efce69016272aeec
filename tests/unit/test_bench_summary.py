"""Numbers of the table against hand-computed ones, and every way of showing them."""

from __future__ import annotations

import csv
import io
import json
import runpy
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import ttest_1samp, ttest_ind

import tiny
from everlearn.comparison.runs import Run
from everlearn.errors import RunError
from everlearn.evaluation.build import ONE_FINE_TUNING
from everlearn.evaluation.quantities import QUANTITIES
from everlearn.grid import State, summarise
from everlearn.grid.numbers import numbers
from everlearn.grid.page import GridPage, status_table
from everlearn.grid.summary import differences
from everlearn.methods import build
from everlearn.report.tables import markdown_table
from everlearn_bench.suites import Published
from everlearn_bench.suites import Suite as BaseSuite
from everlearn_bench.suites.six_domains.published import GROUPS, PAPER_NAMES
from grid_cells import cell_of, like, made_of, write

SETTINGS = {"steps": 2, "model": "tiny 0123", "corpora": {"a": ["1"]}}


class Suite(BaseSuite):
    groups, paper_names = GROUPS, PAPER_NAMES
    name = "tiny"
    orders: ClassVar = {0: ("a", "b", "c"), 1: ("c", "a", "b")}
    published = Published("a paper", ("F1", "accuracy"), {"sequential": (50.0, None), "hat": (40.0, 41.0)}, "Invented.")

    def recipe(self, *_: Any, **__: Any) -> Any:
        raise AssertionError


def scores(*values: float, f1: float | None = None) -> dict[str, list[float]]:
    other = [f1] * len(values) if f1 is not None else list(values)
    return {"accuracy": list(values), "macro_f1": other, "f1": other}


def stream(entry: str, order: int = 0, seed: int = 0, *, lift: float = 0.0, title: str | None = None) -> Run:
    """Learnt 0.8, 0.6, 0.5 and at the end 0.7, 0.66, 0.5 (+ lift), each the mean of two fine-tunings."""
    tasks = {
        "a": {"base": scores(0.5, 0.5), "learnt": scores(0.7, 0.9), "final": scores(0.6 + lift, 0.8 + lift)},
        "b": {"base": scores(0.4, 0.4), "learnt": scores(0.6, 0.6), "final": scores(0.66 + lift, 0.66 + lift)},
        "c": {"base": scores(0.3, 0.3), "learnt": scores(0.5, 0.5), "final": scores(0.4 + lift, 0.6 + lift)},
    }
    return cell_of(
        suite="tiny",
        entry=entry,
        title=title or entry,
        order=order,
        seed=seed,
        domains=list(Suite.orders[order]),
        settings=SETTINGS,
        tasks=tasks,
        bits_per_byte={
            "a": {"base": 2.0, "learnt": 1.0, "final": 1.2},
            "b": {"base": 3.0, "learnt": 2.0, "final": 1.9},
            "c": {"base": 4.0, "learnt": 3.5, "final": 3.5},
            "general": {"base": 1.0, "final": 1.5},
        },
        tokens=1000,
        seconds=10.0 * (1 + lift),
        notes=["Invented text."],
    )


def base() -> Run:
    tasks = {name: {"base": scores(x, x), "final": scores(x, x)} for name, x in (("a", 0.5), ("b", 0.4), ("c", 0.3))}
    bits = {name: {"base": x, "final": x} for name, x in (("a", 2.0), ("b", 3.0), ("c", 4.0), ("general", 1.0))}
    found = made_of(stream("none", title="No adaptation"))
    return cell_of(**found | {"order": None, "seed": None, "tasks": tasks, "bits_per_byte": bits})


def test_numbers_by_hand() -> None:
    found = numbers(stream("sequential"))
    assert found["accuracy"] == pytest.approx((0.7 + 0.66 + 0.5) / 3)
    assert found["accuracy/a"] == pytest.approx(0.7)
    assert found["accuracy_forgetting"] == pytest.approx(((0.8 - 0.7) + (0.6 - 0.66)) / 2)
    assert found["bits"] == pytest.approx((1.2 + 1.9 + 3.5) / 3)
    assert found["bits_learnt"] == pytest.approx((1.0 + 1.0 + 0.5) / 3)
    assert found["bits_forgotten"] == pytest.approx((0.2 - 0.1) / 2)
    assert found["bits_drift"] == pytest.approx(0.5)
    assert found["f1_forgetting"] == pytest.approx(found["accuracy_forgetting"])


def test_forgetting_counts_the_earlier_domains_of_the_order() -> None:
    found = numbers(stream("sequential", order=1))  # c, a, b: the last one is b
    assert found["accuracy_forgetting"] == pytest.approx(((0.5 - 0.5) + (0.8 - 0.7)) / 2)
    assert found["bits_forgotten"] == pytest.approx((0.0 + 0.2) / 2)


def test_arrangements_have_no_forgetting() -> None:
    found = numbers(base())
    assert found.keys() == {
        "f1",
        "accuracy",
        *(f"{m}/{t}" for m in ("f1", "accuracy") for t in "abc"),
        "macro_f1",
        "bits",
        "bits_held",
        "bits_drift",
    }
    assert found["accuracy"] == pytest.approx(0.4)
    assert found["bits_held"] == 0
    assert found["bits_drift"] == 0


def test_f1_is_the_one_that_the_task_asks_for() -> None:
    tasks = made_of(stream("sequential"))["tasks"]
    tasks["c"]["final"]["f1"] = [0.9, 0.9]
    cell = like(stream("sequential"), tasks=tasks)
    assert numbers(cell)["f1/c"] == pytest.approx(0.9)
    assert numbers(cell)["f1"] == pytest.approx((0.7 + 0.66 + 0.9) / 3)


def test_means_over_runs_and_paired_differences() -> None:
    lifts = {("das", 0, 0): 0.02, ("das", 0, 1): 0.05, ("das", 1, 0): 0.03, ("das", 1, 1): 0.06}
    cells = [stream(entry, order, seed, lift=x) for (entry, order, seed), x in lifts.items()]
    cells += [stream("sequential", order, seed, lift=0.01 * seed) for order in (0, 1) for seed in (0, 1)]
    das, plain = summarise(cells)
    assert (das.entry, len(das.runs), len(plain.runs)) == ("das", 4, 4)
    value = das.numbers["accuracy"]
    assert value.value == pytest.approx(0.62 + 0.04)
    assert value.low is not None
    assert value.high is not None
    half = 3.182446305284263 * np.std([*lifts.values()], ddof=1) / 2  # Student's t, 3 degrees of freedom
    assert value.interval == pytest.approx((0.66 - half, 0.66 + half))
    found = das.differences["accuracy"]
    assert found.pairs == 4
    assert found.estimate.value == pytest.approx((0.02 + 0.04 + 0.03 + 0.05) / 4)
    assert found.p_value == pytest.approx(ttest_1samp([0.02, 0.04, 0.03, 0.05], 0).pvalue)
    assert plain.differences == {}
    assert das.seconds == pytest.approx(10.4)


def test_differences_to_what_has_no_order_or_no_seed() -> None:
    def difference(ours: dict[Any, float], theirs: dict[Any, float]) -> Any:
        a, b = ({unit: {"f1": value} for unit, value in side.items()} for side in (ours, theirs))
        return differences(a, b)["f1"]

    ours = {(0, 0): 1.0, (1, 0): 3.0, (0, 1): 5.0, (1, 1): 7.0}
    assert difference(ours, {(None, 0): 1.0, (None, 1): 2.0}).estimate.value == pytest.approx((1.0 + 4.0) / 2)
    assert difference(ours, {(None, None): 1.0}).estimate.value == pytest.approx((1.0 + 5.0) / 2)
    assert difference({(None, None): 1.0}, ours).estimate.value == pytest.approx(-3.0)
    alone = difference({(0, 0): 2.0}, {(0, 0): 1.0})
    assert (alone.estimate.value, alone.estimate.low, alone.p_value, alone.pairs) == (1.0, None, None, 1)
    more = difference({(0, 0): 2.0}, {(0, 0): 1.0, (0, 1): 9.0, (1, 0): 100.0})  # of the other order nothing is known
    assert (more.estimate.value, more.pairs) == (-3.0, 0)
    assert more.p_value == pytest.approx(ttest_ind([2.0], [1.0, 9.0]).pvalue)
    assert differences({(0, 0): {"f1": 2.0}}, {(1, 0): {"f1": 1.0}}) == {}
    assert differences({(0, 0): {"f1": 2.0, "bits": 1.0}}, {(0, 0): {"f1": 1.0}}).keys() == {"f1"}


def test_one_run_has_no_interval() -> None:
    (line,) = summarise([stream("das")])
    assert line.numbers["accuracy"].interval is None
    assert line.differences == {}


def test_the_reference_must_be_there() -> None:
    with pytest.raises(RunError, match=r"`--reference` is 'ewcc'.*Did you mean 'ewc'"):
        summarise([stream("ewc")], "ewcc")
    with pytest.raises(RunError, match="no results yet"):
        summarise([])


def test_headings_of_held_out_text_are_the_quantities_own() -> None:
    """A level and a gain have two names, and each is the one that the report has."""
    tables = {table.title: table for table in GridPage(Suite(), [stream("das"), stream("sequential")]).tables()}
    keys = ("average", "learnt", "forgotten", "general_drift")
    titles = [QUANTITIES[key].title for key in keys]
    assert [name[:-2] for name in tables["Held-out text (bits per byte)"].header[1:]] == titles
    shown = [name for name in tables["Difference to sequential"].header if "bits per byte" in name]
    assert [name.rpartition(" (")[0][:-2] for name in shown] == titles
    assert QUANTITIES["gained"].title not in titles
    glossary = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    for key in (*keys, "gained"):
        assert f"*{QUANTITIES[key].title.lower()}*: " in " ".join(glossary.split())


def test_without_plain_training_the_base_model_is_the_reference() -> None:
    das, none = summarise([stream("das"), base()])
    assert das.differences.keys() == {*none.numbers}
    assert none.differences == {}
    assert summarise([stream("ewc"), stream("das")])[0].differences == {}


def test_what_is_not_shown_may_still_be_the_reference() -> None:
    cells = [stream("bcl"), stream("sequential"), stream("das", lift=0.1), stream("ewc", lift=0.2)]
    shown = GridPage(Suite(), cells, shown=["das", "ewc"])
    assert (shown.reference.entry, [line.entry for line in shown.lines]) == ("sequential", ["ewc", "das"])
    (gap,) = (table for table in shown.tables() if table.title == "Difference to sequential")
    assert {name: row[0].text for name, row in gap.rows} == {"ewc": "+20.00", "das": "+10.00"}
    assert "bcl" not in shown.csv()
    alone = GridPage(Suite(), cells, "ewc", ["das"])
    assert alone.lines[0].differences["f1"].estimate.value == pytest.approx(-0.1)
    without = GridPage(Suite(), [cell for cell in cells if cell.grid.row != "sequential"], shown=["das", "ewc"])
    assert without.reference.entry == "das"
    with pytest.raises(RunError, match=r"no results of `kd` \(`--methods`\), only of bcl, sequential, das, ewc"):
        GridPage(Suite(), cells, shown=["kd"])


def test_cheaper_forms_are_compared_over_the_runs_that_both_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(__file__).parents[2] / "benchmarks/six-domains/shortcuts.py"
    shortcuts = runpy.run_path(str(script))
    entry, table = shortcuts["entry"], shortcuts["table"]
    exact = [stream("das", order, seed, lift=0.3 * order) for order in (0, 1) for seed in (0, 1)]
    forms = [stream(entry("quarter").name, 0, seed, lift=0.1) for seed in (0, 1, 2)]
    rows = [line for line in table(exact, forms).splitlines() if line.startswith("| ")][2:]
    assert [row.split(" | ")[:3] for row in rows] == [
        ["| exact (default)", "2", "62.00"],
        ["| quarter", "2", "+10.00 (p < 0.01)"],
    ]
    assert "| quarter" not in table(exact[2:], forms)  # no run in common
    monkeypatch.setitem(shortcuts["exact"].__globals__, "HERE", tmp_path)
    write(tmp_path / "results", exact[0])
    assert [cell.name for cell in shortcuts["exact"](SETTINGS)] == ["das-order0-seed0"]
    with pytest.raises(RunError, match=r"das-order0-seed0 in '.*' was measured with other settings \(`steps`"):
        shortcuts["exact"](SETTINGS | {"steps": 3})


def most_frequent() -> Run:
    tasks = {name: {"base": scores(x), "final": scores(x)} for name, x in (("a", 0.6), ("b", 0.3), ("c", 0.3))}
    own = {"entry": "constant", "title": "Most frequent label", "bits_per_byte": {}, "tokens": 0, "seconds": 0.0}
    return cell_of(**made_of(base()) | own | {"tasks": tasks})


def sheet() -> GridPage:
    titles = {"sequential": "Sequential", "das": "DAS <i>&"}
    runs = [
        stream(e, s // 2, s % 2, lift=0.01 * s * (e == "das"), title=t) for e, t in titles.items() for s in range(4)
    ]
    return GridPage(Suite(), [*runs, base()])


def test_the_most_frequent_label_stands_above_all_others_and_has_no_bits() -> None:
    cells = [stream("das"), most_frequent(), base(), stream("ewc"), stream("hat"), stream("sequential")]
    shown = GridPage(Suite(), cells)
    tables = {table.title: table for table in shown.tables()}
    order = ["Most frequent label", "No adaptation", "sequential", "ewc", "hat", "das"]
    for title, table in tables.items():
        places = [order.index(name) for name, _ in table.rows]
        assert places == sorted(places), title
    rows = {
        title: [cell.text for cell in dict(table.rows).get("Most frequent label", ())]
        for title, table in tables.items()
    }
    assert rows["Accuracy of end tasks after the last domain"] == ["60.00", "30.00", "30.00", "40.00", "–"]
    assert rows["Held-out text (bits per byte)"] == ["–"] * 4
    assert rows["What each takes"] == ["1", "no", "no", "0", "0", "–", "–", "0"]
    assert rows["Beside a paper"][2:] == ["40.00", "40.00", "–", "–"]
    assert not any(title.startswith("Effect of the order") for title in rows), "one run of each row has no spread"
    assert "Most frequent label" in shown.page()


def test_extra_passes_are_those_that_the_method_declares() -> None:
    found = {}
    for name in ("kd", "derpp", "classic", "das", "ewc"):
        passes = build(name).cost(tiny.model("roberta")).passes_per_step
        shown = GridPage(Suite(), [like(stream(name), passes_per_step=passes)])
        (costs,) = (table for table in shown.tables() if table.title == "What each takes")
        found[name] = costs.rows[0][1][costs.header.index("Extra passes a step") - 1].text
    assert found == {"kd": "1.33", "derpp": "1", "classic": "0.333", "das": "3", "ewc": "0"}


def test_a_note_on_intervals_of_single_runs_is_not_repeated_over_runs() -> None:
    noted = like(stream("ewc"), notes=["Invented text.", ONE_FINE_TUNING])
    shown = GridPage(Suite(), [noted, stream("das")])
    assert shown.notes[0] == "Invented text."
    assert "intervals are over runs" in shown.notes[1]
    assert len(shown.notes) == 2
    for text in (shown.page(), shown.markdown(), shown.json()):
        assert "intervals cover the choice of test examples" not in text
        assert "intervals are over runs" in text


def test_tables_stand_in_the_papers_order_beside_its_numbers() -> None:
    tables = {table.title: table for table in sheet().tables()}
    first = tables["Accuracy of end tasks after the last domain"]
    assert first.header == ("Method", "a", "b", "c", "Average ↑", "Forgetting ↓")
    assert [name for name, _ in first.rows] == ["No adaptation", "Sequential", "DAS <i>&"]
    assert [cell.text for cell in first.rows[0][1]] == ["50.00", "40.00", "30.00", "40.00", "–"]
    assert [cell.text for cell in first.rows[1][1]][:4] == ["70.00", "66.00", "50.00", "62.00"]
    gap = tables["Difference to Sequential"]
    assert [name for name, _ in gap.rows] == ["No adaptation", "DAS <i>&"]
    assert gap.rows[1][1][1].text == "+1.50"
    assert "p = 0." in gap.rows[1][1][1].detail
    beside = {name: [cell.text for cell in cells] for name, cells in tables["Beside a paper"].rows}
    assert beside["Sequential"][:4] == ["50.00", "–", "62.00", "62.00"]
    assert beside["HAT"] == ["40.00", "41.00", "–", "–", "–", "–"]
    costs = dict(tables["What each takes"].rows)
    assert [cell.text for cell in costs["Sequential"]] == ["4", "no", "no", "0", "0", "–", "1.00×", "1,000"]


class Reader(HTMLParser):
    """Collects what a page would load, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.tables = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tables += tag == "table"
        self.outside += [v or "" for k, v in attrs if k in ("src", "srcset") or (k == "href" and tag != "a")]


def test_the_page_stands_alone_and_names_are_text() -> None:
    page, reader = sheet().page(), Reader()
    reader.feed(page)
    assert reader.tables == len(sheet().tables())
    assert [place for place in reader.outside if not place.startswith("#")] == []
    assert "DAS &lt;i&gt;&amp;" in page
    assert "<i>&" not in page
    assert "0: a → b → c; 1: c → a → b" in page
    assert page == sheet().page()
    assert page.index('aria-label="Learning against forgetting') < page.index("<dl class=")


def test_other_formats() -> None:
    shown = sheet()
    rows = list(csv.DictReader(io.StringIO(shown.csv())))
    assert {row["entry"] for row in rows} == {"none", "sequential", "das"}
    picked = next(r for r in rows if (r["entry"], r["order"], r["seed"], r["number"]) == ("das", "1", "1", "accuracy"))
    assert float(picked["value"]) == pytest.approx(0.65)
    assert [row["value"] for row in rows if row["entry"] == "none" and row["number"] == "bits_drift"] == ["0.0"]
    value = json.loads(shown.json())
    assert value["reference"] == "sequential"
    assert value["lines"][2]["differences"]["accuracy"]["pairs"] == 4
    assert "| No adaptation | 50.00" in shown.markdown()
    assert r"DAS \textless{}i\textgreater{}\&" in shown.latex()
    console = Console(record=True, file=io.StringIO(), width=200)
    console.print(shown.terminal())
    assert "Beside a paper" in console.export_text()


def test_states_are_counted_and_failures_say_why() -> None:
    states = [State("x", "done"), State("y", "failed", "No disk."), State("z", "missing")]
    text = markdown_table(status_table(states), 3)
    assert "1 of 3 runs is done; missing: z; failed: y." in text
    assert "| y | failed | No disk. |" in text
    assert "| x |" not in text


def test_the_stream_of_end_tasks_as_worked_out_by_hand() -> None:
    """Rows: base, after a, after b, after c; columns a, b, c.

    Just learnt .8, .6, .9. BWT: a .5 − .8, b .7 − .6: −.2 / 2. Max form: a .8 − .5, b .7 − .7: .3 / 2. FWT: b .3 − .1,
    c .4 − .2: .4 / 2. Divided by T = 3 instead: × 2/3.
    """
    values = [[0.2, 0.1, 0.2], [0.8, 0.3, 0.1], [0.6, 0.6, 0.4], [0.5, 0.7, 0.9]]
    cell = streamed_tasks(values)
    assert stream_numbers(cell) == pytest.approx(
        {
            "accuracy_learnt": 2.3 / 3,
            "accuracy_bwt": -0.1,
            "accuracy_bwt_over_all": -0.2 / 3,
            "accuracy_forgetting_max": 0.15,
            "accuracy_forgetting_max_over_all": 0.1,
            "accuracy_fwt": 0.2,
            "accuracy_fwt_over_all": 0.4 / 3,
        }
    )
    text = GridPage(Suite(), [cell]).markdown()
    assert "### End tasks along the stream (accuracy)" in text
    cell = streamed_tasks([values[0], [0.8, None, 0.1], *values[2:]])  # `b` was not measured before its own stage
    assert set(stream_numbers(cell)) == {
        "accuracy_learnt", "accuracy_bwt", "accuracy_bwt_over_all", "accuracy_forgetting_max",
        "accuracy_forgetting_max_over_all",
    }  # fmt: skip
    assert "along the stream" not in GridPage(Suite(), [cell]).markdown()
    assert stream_numbers(like(base(), tasks={})) == {}


def streamed_tasks(values: list[list[float | None]]) -> Run:
    """A stream with these accuracies of a, b and c: of the base model, after a, after b and after c."""
    table = {"rows": ["base", "a", "b", "c"], "columns": ["a", "b", "c"], "values": values}
    return like(stream("ewc"), tasks={}, accuracies=table)


def stream_numbers(cell: Run) -> dict[str, float]:
    start = ("accuracy_learnt", "accuracy_bwt", "accuracy_forgetting_max", "accuracy_fwt")
    return {name: value for name, value in numbers(cell).items() if name.startswith(start)}


def test_a_stream_of_tasks_that_was_asked_on_the_diagonal_has_what_follows_from_it() -> None:
    """No FWT and no maximum over stages that nobody measured; BWT and micro average all the same."""
    cell = streamed_tasks([[0.2, 0.1, 0.2], [0.8, None, None], [None, 0.6, None], [0.5, 0.7, 0.9]])
    assert stream_numbers(cell) == pytest.approx(
        {"accuracy_learnt": 2.3 / 3, "accuracy_bwt": -0.1, "accuracy_bwt_over_all": -0.2 / 3}
    )

    class Tasks(Suite):
        metrics = ("accuracy",)

    text = GridPage(Tasks(), [cell]).markdown()
    assert "### End tasks along the stream (accuracy)" in text
    (header,) = (line for line in text.splitlines() if "BWT, T−1" in line and line.startswith("|"))
    assert "FWT" not in header
    assert "max form" not in header
    assert "along the stream" not in GridPage(Suite(), [cell]).markdown()


def test_a_task_is_forgotten_with_its_domain_whatever_it_is_called() -> None:
    cell = stream("ewc")
    raw = json.loads(json.dumps(cell.results).replace('"a"', '"first"'))
    assert raw["matrices"]["accuracy"]["task_domains"]["first"] == "first"
    tables = raw["matrices"]
    for metric in ("accuracy", "f1", "macro_f1"):
        table = tables[metric]
        table["columns"] = ["reviews" if column == "first" else column for column in table["columns"]]
        table["cells"] = [[row, "reviews" if c == "first" else c, *score] for row, c, *score in table["cells"]]
        table["task_domains"]["reviews"] = table["task_domains"].pop("first")
    named = numbers(replace(cell, results=raw))
    assert named["accuracy/reviews"] == numbers(cell)["accuracy/a"]
    assert named["accuracy_forgetting"] == pytest.approx(numbers(cell)["accuracy_forgetting"])


def test_micro_average_counts_examples() -> None:
    cell = stream("ewc")
    assert "accuracy_micro" not in numbers(cell)  # a file of an earlier version
    tasks = made_of(cell)["tasks"]
    for task, examples in (("a", 10), ("b", 30), ("c", 60)):
        tasks[task]["final"]["examples"] = examples
    cell = like(cell, tasks=tasks)
    assert numbers(cell)["accuracy_micro"] == pytest.approx((10 * 0.7 + 30 * 0.66 + 60 * 0.5) / 100)


def test_published_columns_stand_beside_our_orders() -> None:
    class Ordered(Suite):
        metrics = ("accuracy",)
        published = Published(
            "a paper", ("order 0", "mean"), {"ewc": (50.0, 51.0)}, "Invented.", (("accuracy", 0), ("accuracy", None))
        )

    cells = [stream("ewc", 0), stream("ewc", 1, lift=0.1)]
    table = GridPage(Ordered(), cells).tables()[-1]
    assert table.header[-2:] == ("here: accuracy, order 0", "here: accuracy")
    assert [cell.text for cell in table.rows[0][1]] == ["50.00", "51.00", "62.00", "67.00"]
