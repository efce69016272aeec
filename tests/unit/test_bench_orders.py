"""Orders of a grid, and the archive of its cells."""

from __future__ import annotations

import bz2
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from everlearn import files
from everlearn.comparison.pairs import within
from everlearn.comparison.runs import Run
from everlearn.errors import RunError
from everlearn.evaluation import METRICS, QUANTITIES, Cell, Results, RunFacts, build_results, set_path
from everlearn.grid import load_results as load_grid
from everlearn.grid import summarise
from everlearn.grid.archive import ARCHIVE, find_cell, find_cells, pack, unpack
from everlearn.grid.arrangements import shares_of_options
from everlearn.grid.cells import load_cell, load_results
from everlearn.grid.identity import described, where_differ
from everlearn.grid.numbers import numbers
from everlearn.grid.page import GridPage
from everlearn.grid.relative_to_plain import shares_of_plain
from everlearn.tasks.prompts import Question
from everlearn_bench.claims.constant_predictions import constant_table
from everlearn_bench.claims.page import page
from everlearn_bench.suites import Suite as BaseSuite
from everlearn_bench.suites import find_suite
from everlearn_bench.transfer_study.long_streams import LongStreams
from grid_cells import cell_of, like

# -- Orders of a grid: transfer by order, forgetting at equal gap, orders with tasks of their own ----------------------


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
    assert table.caption.startswith("Counts runs whose accuracy equals that of always giving the same label;")
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
    assert right.caption.startswith(
        "Counts runs whose accuracy and macro-F1 both equal those of always giving the same label"
    )


def test_a_setting_that_every_row_replaces_is_not_said_to_be_what_was_measured() -> None:
    settings = {"recipe.train": {"max_steps": 7, "learning_rate": 3e-4}}
    base, *trained = (like(each, settings=settings) for each in grid())
    rated = [like(each, options={"train.learning_rate": 1e-3}) for each in trained]
    said = page(Suite(), "Claims", "", [], [base, *rated])
    assert r"- train.max\_steps: 7" in said
    assert "learning" not in said
    assert r"- train.learning\_rate: 0.0003" in page(Suite(), "Claims", "", [], [base, *rated[1:], trained[0]])


COUNT = 12
M2D2 = find_suite("m2d2")
SIMILAR, RANDOM = "Fine-tuning, order 0 (similar)", "Fine-tuning, order 11 (random-1)"


def streamed(order: int, seed: int, count: int = COUNT) -> Run:
    """Each domain is learnt by 1 + seed/10 bits per byte; a later stage costs 0.02, and 0.1 once the eighth is learnt.

    Before its own stage a domain gains 0.05, in order 11 (the first random one) 0.15.
    """
    names = [f"d{(number + 5 * (order > 0)) % count}" for number in range(count)]
    values = np.full((count + 1, count), 4.0)
    for place in range(count):
        values[1 : place + 1, place] -= 0.15 if order else 0.05
        for row in range(place + 1, count + 1):
            gap = row - place - 1
            values[row, place] = 3.0 - seed / 10 + 0.02 * gap + 0.1 * (gap > 0 and row >= 8)
    bits = {
        name: {"base": 4.0, "learnt": float(values[place + 1, place]), "final": float(values[-1, place])}
        for place, name in enumerate(names)
    }
    return cell_of(
        suite="m2d2", entry="sequential", title="Fine-tuning", order=order, seed=seed, domains=names,
        bits_per_byte=bits, matrix={"rows": ["base", *names], "columns": names, "values": values.tolist()},
        settings={"model": "small"},
    )  # fmt: skip


def alone(seed: int) -> Run:
    """0.7 bits per byte better than the base model, and a tenth a seed."""
    end = 3.3 - seed / 10
    bits = {f"d{number}": {"base": 4.0, "learnt": end, "final": end} for number in range(COUNT)}
    return cell_of(
        suite="m2d2", entry="separate", title="One model per domain", order=None, seed=seed, domains=list(bits),
        bits_per_byte=bits, settings={"model": "small"},
    )  # fmt: skip


CELLS = [*(streamed(order, seed) for order in (0, 11) for seed in range(3)), *map(alone, range(3))]


def test_transfer_has_a_row_for_each_order_and_one_of_models_alone() -> None:
    table, _ = LongStreams(M2D2, CELLS).tables()
    rows = {name: [cell.text for cell in cells] for name, cells in table.rows}
    assert list(rows) == [
        "Fine-tuning, order 0 (similar)",
        "Fine-tuning, order 11 (random-1)",
        "One model per domain (DAPT)",
    ]
    fg = sum(0.02 * (COUNT - 1 - place) + 0.1 for place in range(COUNT - 1)) / (COUNT - 1)
    lc = 1.1 - fg * (COUNT - 1) / COUNT
    backward = np.mean(
        [
            np.mean([1.1 - 0.02 * (row - place) - 0.1 * (row >= 8) for row in range(place + 1, COUNT + 1)])
            for place in range(1, COUNT)
        ]
    )
    # What is best of a domain is its own stage; the mean of later ones against it is backward less what was learnt.
    wanted = [1.1, 0.3, lc, fg, fg, backward, backward - 1.1]
    for label, forward in ((SIMILAR, 0.05), (RANDOM, 0.15)):
        assert rows[label] == [f"{value:+.3f}".replace("-", "\u2212") for value in (*wanted, forward)]
    assert rows["One model per domain (DAPT)"] == ["+0.800", *["–"] * 7]
    (_, first), *_ = table.rows
    assert first[0].detail
    assert first[1].detail == "(+0.300) [+0.300, +0.300]", "both sides differ by seed alike"


def test_forgetting_is_compared_at_equal_gap_and_over_all_orders() -> None:
    found = LongStreams(M2D2, CELLS)
    _, table = found.tables()
    rows = {name: [cell.text for cell in cells] for name, cells in table.rows}
    names = {name.rpartition(":")[0] for name in rows}
    assert names == {SIMILAR, RANDOM, "All 2 orders of Fine-tuning"}
    # Checkpoints 2 to 4, 5 to 7, 8 to 10, 11 and 12; the last two forget more.
    assert rows[f"{SIMILAR}: 5 to 7"][1] == "0.000"
    assert rows[f"{SIMILAR}: 11 to 12"][1] == "+0.100"
    assert rows["All 2 orders of Fine-tuning: 11 to 12"][2] == "+0.100", "with a term of each domain"
    plates = [plate for plate in found.plates() if "by the domains learnt since" in plate.caption]
    assert len(plates) == 3
    assert "bits/byte" in plates[0].svg


def test_the_score_matrix_is_the_mean_of_seeds() -> None:
    similar, random = list(LongStreams(M2D2, CELLS).plates())[:2]
    assert f"{SIMILAR}: bits/byte of each text after each domain, mean of 3 seeds" in similar.svg
    assert f"{RANDOM}: bits/byte" in random.svg
    own = re.findall(r'<td class="[^"]*own[^"]*">([\d.]+)</td>', similar.svg)
    assert own == ["2.900"] * COUNT, "3.0, 2.9 and 2.8"
    assert ">4.000</td>" in similar.svg, "the base model"


def test_a_matrix_of_many_domains_is_a_picture() -> None:
    first, _ = LongStreams(M2D2, [streamed(0, 1, count=24)]).plates()
    assert "data:image/png" in first.svg
    assert "25 × 24" in first.caption
    assert "seed 1" in first.caption


def test_without_seeds_in_common_nothing_stands_beside_models_alone() -> None:
    table, _ = LongStreams(M2D2, [streamed(0, 0), alone(1)]).tables()
    (_, cells), _ = table.rows
    assert [cell.text for cell in cells][:2] == ["+1.000", "–"]
    assert cells[0].detail == "(+1.000)", "one run has no interval"


def test_short_streams_have_none_of_it() -> None:
    short = [streamed(0, seed, count=6) for seed in range(2)]
    found = LongStreams(M2D2, short)
    assert not found
    assert found.tables() == list(found.plates()) == []
    assert "Transfer" not in GridPage(M2D2, short).markdown()


@pytest.mark.parametrize("writer", ["md", "html", "tex"])
def test_they_are_on_the_page_of_a_grid(writer: str) -> None:
    text = GridPage(M2D2, CELLS).written(writer)
    assert "Transfer" in text
    assert "Do later stages forget more?" in text
    if writer == "html":
        assert text.count("by the domains learnt since") >= 3


# -- Cells of a grid: in one archive, committed, and what cells of one table share -------------------------------------


CELLS_BENCH_ARCHIVE = {
    "das-order0-seed1": {"learnt": 0.1 + 0.2, "text": "caf\u00e9 \u2028 \u0085"},
    "das": {"b": [1, None, 2.0], "a": {"nested": True}},
    "ewc-order1-seed0": {},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, value in CELLS_BENCH_ARCHIVE.items():
        files.write_json(tmp_path / f"{name}.json", value)
    return tmp_path


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}


def values(folder: Path) -> list[tuple[str, object]]:
    return [(name, kept.value) for name, kept in find_cells(folder).items()]


def test_packed_cells_are_what_they_were(folder: Path) -> None:
    before, loose = values(folder), texts(folder)
    assert [name for name, _ in before] == [*CELLS_BENCH_ARCHIVE], (
        "as their files are sorted: `das-…` before `das.json`"
    )
    assert pack(folder) == 3
    assert [path.name for path in folder.iterdir()] == [ARCHIVE]
    assert values(folder) == before
    assert str(find_cells(folder)["das"].where) == f"das in {folder / ARCHIVE}"
    assert unpack(folder) == 3
    assert texts(folder) == loose


def test_the_same_cells_make_the_same_bytes(folder: Path) -> None:
    pack(folder)
    first = (folder / ARCHIVE).read_bytes()
    assert bz2.decompress(first).count(b"\n") == 3, "one line a cell"
    unpack(folder)
    for number, path in enumerate(sorted(folder.iterdir(), reverse=True)):
        os.utime(path, (number, number))
    pack(folder)
    assert (folder / ARCHIVE).read_bytes() == first
    pack(folder)
    assert (folder / ARCHIVE).read_bytes() == first, "with nothing new there is nothing to write"


def test_a_new_cell_stands_beside_the_archive_and_counts_more(folder: Path) -> None:
    pack(folder)
    assert find_cell(folder, "other") is None
    files.write_json(folder / "das.json", {"again": 1})
    files.write_json(folder / "other.json", {"new": 1})
    kept = find_cell(folder, "das")
    assert kept is not None
    assert kept.value == {"again": 1}
    assert [name for name, _ in values(folder)] == ["das-order0-seed1", "das", "ewc-order1-seed0", "other"]
    assert pack(folder) == 4
    assert dict(values(folder))["das"] == {"again": 1}


DAMAGED = [b"no archive", bz2.compress(b"{}\n"), bz2.compress(b"x\n"), bz2.compress(b"[]" * 9)[:-4]]


@pytest.mark.parametrize("content", DAMAGED, ids=["other", "no name", "no JSON", "cut"])
def test_a_damaged_archive_is_named(folder: Path, content: bytes) -> None:
    (folder / ARCHIVE).write_bytes(content)
    with pytest.raises(RunError, match=ARCHIVE):
        find_cells(folder)
    with pytest.raises(RunError, match=ARCHIVE):
        find_cell(folder, "other")
    assert len(texts(folder)) == 3, "no file is removed"
    with pytest.raises(RunError, match=ARCHIVE):
        pack(folder)
    assert len(texts(folder)) == 3


def test_what_is_no_cell_is_named_with_its_archive(folder: Path) -> None:
    pack(folder)
    assert load_cell(folder, "none") is None
    with pytest.raises(RunError, match=rf"das in .*{ARCHIVE}' is no run of a grid"):
        load_cell(folder, "das")
    with pytest.raises(RunError, match="is no run of a grid"):
        load_results(folder)


def test_a_line_is_plain_json(folder: Path) -> None:
    pack(folder)
    lines = [json.loads(line) for line in bz2.decompress((folder / ARCHIVE).read_bytes()).splitlines()]
    assert [line["name"] for line in lines] == [*CELLS_BENCH_ARCHIVE]
    assert all(line["cell"] == CELLS_BENCH_ARCHIVE[line["name"]] for line in lines)


ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import demo_page  # noqa: E402

GRID = ROOT / "benchmarks" / "six-domains" / "results"


def test_the_committed_cells_of_the_grid_say_the_same() -> None:
    """Against sums written out here, from the files as they are."""
    found = load_grid(GRID)
    files = find_cells(GRID)
    assert [cell.name for cell in found] == [*files]
    assert len(found) > 50
    for cell in found:
        raw, own = files[cell.name].value, numbers(cell)
        domains, stream = raw["domains"], raw["grid"]["order"] is not None
        if bits := scores(raw, "bits_per_byte"):
            end = raw["matrices"]["bits_per_byte"]["rows"][-1]
            assert own["bits"] == np.mean([bits[end, name] for name in domains])
            just = {name: name if stream else "alone" for name in domains}
            learnt = [bits["base", name] - bits[just[name], name] for name in domains if (just[name], name) in bits]
            assert own.get("bits_learnt") == (np.mean(learnt) if learnt else None)
            if stream:
                lost = [bits[end, name] - bits[name, name] for name in domains[:-1]]
                assert own["bits_forgotten"] == np.mean(lost)
        if f1 := scores(raw, "f1"):
            end = raw["matrices"]["f1"]["rows"][-1]
            assert own["f1"] == np.mean([f1[end, task] for task in domains])
            if stream:
                lost = [f1[task, task] - f1[end, task] for task in domains[:-1]]
                assert own["f1_forgetting"] == np.mean(lost)


def scores(raw: dict[str, Any], metric: str) -> dict[tuple[str, str], float]:
    """Return row and column → score, from the file as it is."""
    table = raw["matrices"].get(metric, {"cells": []})
    return {(row, column): value for row, column, value, *_ in table["cells"]}


@pytest.fixture(scope="module")
def demo() -> Path:
    return Path(demo_page.unpacked().name)


@pytest.mark.parametrize("name", demo_page.METHODS)
def test_the_committed_cells_of_a_run_make_its_committed_results(demo: Path, name: str) -> None:
    """Scores, intervals and every quantity, but for the last bits, which another processor may round otherwise."""
    kept = json.loads((demo / name / "results.json").read_text(encoding="utf-8"))
    facts = RunFacts(**{key: kept[key] for key in RunFacts.model_fields})
    places = {
        (row, column): set_path(demo / name / "evaluation", row, column)
        for row in range(len(kept["domains"]) + 1)
        for column in [*kept["domains"], *kept["general"]]
    }
    cells = {where: Cell.load(place) for where, place in places.items()}
    again = json.loads(build_results(facts, kept["domains"], kept["general"], cells).model_dump_json())
    assert list(again["matrices"]) == list(kept["matrices"])
    assert set(kept["matrices"]) <= set(METRICS)
    for key in ("matrices", "summary"):
        assert same(again[key], kept[key]), key
    assert all(set(found) <= set(QUANTITIES) for found in kept["summary"].values())
    assert Results.load(demo / name).summary["bits_per_byte"].forgotten, "there is something to compare"


def same(found: Any, kept: Any) -> bool:
    if isinstance(kept, dict):
        return found.keys() == kept.keys() and all(same(found[key], kept[key]) for key in kept)
    if isinstance(kept, list):
        return len(found) == len(kept) and all(map(same, found, kept))
    return bool(found == pytest.approx(kept, rel=1e-12) if isinstance(kept, float) else found == kept)


def test_what_all_items_share_is_said_once() -> None:
    facts = {
        "recipe.domains": {"a": {"name": "a", "group": "x", "keep_last": 8}, "b": {"name": "b", "keep_last": 8}},
        "recipe.end_tasks": [
            {"name": "a", "domain": "a", "max_test": 3, "epochs": 1},
            {"name": "b", "domain": "b", "max_test": 3, "epochs": 2},
        ],
        "recipe.train": {"save_steps": 500, "logging_steps": 5, "max_steps": 7},
        "suite": {"answers": "head"},
        "model": "m 123",
        "corpora": {"a": ["1"]},
        "end_task_files": {"a": ["2"]},
    }
    assert described(facts) == [
        ("domains.*.keep_last", "8"),
        ("end_tasks.*.max_test", "3"),
        ("end_tasks.a.epochs", "1"),
        ("end_tasks.b.epochs", "2"),
        ("train.logging_steps", "5"),
        ("train.max_steps", "7"),
        ("suite.answers", "head"),
        ("model", "m 123"),
    ]


def test_a_difference_is_named_by_its_innermost_key() -> None:
    there, here = {"bf16": True, "max_steps": 5}, {"bf16": True, "max_steps": 7}
    assert where_differ("recipe.train", there, here) == ("train.max_steps", 5, 7)
    assert where_differ("recipe.train", None, here) == ("train", None, here)
    assert where_differ("model", "a", "b") == ("model", "a", "b")
