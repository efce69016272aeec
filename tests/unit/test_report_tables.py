"""Tables, labels of points, the model card and readings of runs in a report."""

import csv as csv_module
import io
import json as json_module
import math
import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations
from pathlib import Path

import pytest
import report_fixture
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from everlearn import wording
from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import compare_runs
from everlearn.comparison.formatting import again
from everlearn.comparison.runs import clean, from_results, read_run
from everlearn.errors import RunError
from everlearn.evaluation.estimate import Estimate, mean, number
from everlearn.evaluation.results import Results
from everlearn.evaluation.score_table import ScoreTable
from everlearn.methods import build, names
from everlearn.report import compare, csv, json, latex, markdown, model_card, terminal
from everlearn.report.drawing import SIZE, Drawing, width_of
from everlearn.report.figures import draw
from everlearn.report.figures.labels import Frame, Point, draw_names
from everlearn.report.figures.tradeoff import NARROW, WIDE, Tradeoff, TradeoffPoint
from everlearn.report.tables import escape_latex, escape_markdown

NASTY = ["a|b", "<script>alert(1)</script>", r"\end{document}%$&#_{}~^", "*[x](http://e)`", "[bold]", "日本", "$x$"]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return compare(report_fixture.write_runs(tmp_path_factory.mktemp("runs")))


@pytest.fixture(scope="module")
def nasty():
    found = report_fixture.results("plain", NASTY[1], 0.12, domains=NASTY)
    other = report_fixture.results("das", "[A] * & B", 0.06, domains=NASTY)
    return compare_runs([from_results(found), from_results(other)])


def shown(comparison):
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(terminal(comparison))
    return console.export_text()


def test_the_terminal_table(both, nasty):
    text = shown(both)
    assert "−0.069" in text
    assert "DAS trades" in text
    assert all(name in shown(nasty) for name in NASTY if name != NASTY[1])


def columns(line):
    return len(re.findall(r"(?<!\\)\|", line)) - 1


def test_markdown_tables_are_rectangular(both, nasty):
    for comparison in (both, nasty):
        text = markdown(comparison)
        for block in text.split("\n\n"):
            if block.startswith("|"):
                assert len({columns(line) for line in block.splitlines()}) == 1
        assert "<script" not in text
    assert "| Sequential | +0.460 [+0.452, +0.469] | **+0.576** [+0.568, +0.585] |" in markdown(both)


def unescaped_markdown(text):
    text = re.sub(r"\\([^\sa-zA-Z0-9])", r"\1", text)
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


@settings(deadline=None)
@given(st.text(max_size=30).map(clean))
@example(r"\|")
@example("1. a")
@example("# a")
@example("- a")
def test_markdown_names_survive(name):
    escaped = escape_markdown(name)
    assert unescaped_markdown(escaped) == " ".join(name.split())
    assert not re.search(r"(?<!\\)(?:\\\\)*[|*_`\[\]~$]", escaped)
    assert "<" not in escaped
    assert not re.match(r"\d*[#+=.)-]", escaped)


def test_latex_rows_are_rectangular(both, nasty):
    for comparison in (both, nasty):
        text = latex(comparison)
        assert text.count(r"\begin{table}") == text.count(r"\bottomrule") == text.count(r"\end{table}") == 6
        for table in text.split(r"\end{table}"):
            rows = [line for line in table.splitlines() if line.endswith(r"\\")]
            assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) <= 1
    assert r"\end{document}" not in latex(nasty)


@settings(deadline=None)
@given(st.text(max_size=30).map(clean))
@example(r"[*]--\\")
def test_latex_names_hold_no_live_character(name):
    escaped = escape_latex(name)
    dead = re.sub(r"\\text[a-z]+\{\}|\$\\(?:up|down)arrow\$|\$-\$|\\[&%$#_{}]|\{[\[\]*]\}|-\{\}-|\{\}", "", escaped)
    assert not re.search(r"[\\&%$#_{}~^<>|\[\]*\"`]", dead)
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", escaped.replace(r"\{", "").replace(r"\}", "")):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    assert depth == 0


def test_csv_is_long_and_parses(both):
    rows = list(csv_module.DictReader(io.StringIO(csv(both))))
    assert {row["run"] for row in rows} == {"Sequential", "DAS"}
    found = [r for r in rows if (r["run"], r["metric"], r["measure"], r["column"]) ==
             ("DAS", "bits_per_byte", "forgotten", "mean")]  # fmt: skip
    assert float(found[0]["value"]) == both.measure("bits_per_byte", "forgotten").estimates[1].value
    seconds = next(row for row in rows if row["measure"] == "seconds")
    assert seconds["low"] == fmt.MISSING


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_csv_has_no_formula(both, monkeypatch, name):
    monkeypatch.setattr(type(both), "labels", (name, "a=b"))
    rows = list(csv_module.DictReader(io.StringIO(csv(both))))
    assert {f"'{name}", "a=b"} <= {row["run"] for row in rows}
    assert not any(value.startswith(tuple("=+@\t")) for row in rows for value in row.values())
    assert any(float(row["value"]) < 0 for row in rows if row["value"] != fmt.MISSING)  # numbers stay numbers


def test_json_holds_estimates_and_judgements(both, nasty):
    found = json_module.loads(json(both))
    assert [entry["judgement"] for entry in found["differences"]] == ["better", "worse", "better", "better", "unclear"]
    assert found["runs"][1]["methods"][0]["paper"].startswith("https://")
    assert json_module.loads(json(nasty))["domains"] == NASTY


def test_absent_numbers_are_dashes():
    found = report_fixture.results("das", "DAS", 0.1)
    found["summary"]["bits_per_byte"]["learnt"]["mean"] = None
    comparison = compare_runs([from_results(found)])
    assert re.search(r"\| DAS \| \S+ \[[^|]*\| – \| ", markdown(comparison))
    assert re.search(r"DAS & [^&]* & – & ", latex(comparison))


@pytest.mark.parametrize(
    ("value", "places", "signed", "text"),
    [
        (None, 3, False, "–"),
        (0.0, 3, True, "0.000"),
        (-0.0001, 3, True, "0.000"),
        (-0.5, 2, False, "−0.50"),
        (0.5, 2, True, "+0.50"),
        (12345.678, 1, False, "12,345.7"),
    ],
)
def test_numbers(value, places, signed, text):
    assert fmt.fixed(value, places, signed) == text


def test_units_of_time_and_memory():
    assert [fmt.precise_duration(s) for s in (None, 3.21, 42, 131, 7500)] == [
        "–",
        "3.2 s",
        "42 s",
        "2 min 11 s",
        "2 h 05 min",
    ]
    values = {14600.0: "14600", 1e-05: "1e-05", 0.5: "0.5", 3: "3", True: "True", "mean": "mean", (1.0, 2.5): "1, 2.5"}
    assert [wording.value(each) for each in values] == list(values.values())
    assert [wording.size(b) for b in (12, 1536, 3 * 2**30)] == ["12 B", "1.54 kB", "3.22 GB"]
    assert fmt.estimate(Estimate(0.5, 0.4, 0.6), 1) == "0.5 [0.4, 0.6]"
    assert fmt.listing(["a", "b", "c"]) == "a, b and c"
    assert [fmt.shorten(t, 7) for t in ("short", "domain-12")] == ["short", "dom…-12"]


FRAMES = pytest.mark.parametrize("frame", [WIDE, NARROW], ids=["wide", "narrow"])
LONG = "Elastic weight cons"


def boxes(drawing):
    """Name → the box that its text takes."""
    root = ElementTree.fromstring(drawing.svg("A."))
    found = {}
    for text in (element for element in root.iter("text")):
        x, y = float(text.get("x")), float(text.get("y"))
        found[text.text] = (x, y - 0.8 * SIZE, x + width_of(text.text), y + 0.2 * SIZE)
    return found


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def check(frame, places, names):
    drawing = Drawing(frame.width, frame.height)
    assert draw_names(drawing, [Point(*at, name) for at, name in zip(places, names, strict=True)], frame) == []
    found = boxes(drawing)
    assert set(found) == set(names)
    assert not [pair for pair in combinations(found, 2) if overlap(found[pair[0]], found[pair[1]])]
    marks = [(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    assert not [name for name, box in found.items() if any(overlap(box, mark) for mark in marks)]
    assert all(
        box[0] >= 0 and box[2] <= frame.width and box[1] >= 0 and box[3] <= frame.height for box in found.values()
    )
    return drawing


@FRAMES
@settings(max_examples=25, deadline=None)
@given(shares=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=12))
def test_every_point_is_named_and_nothing_is_covered(frame, shares):
    places = [
        (frame.left + x * (frame.right - frame.left), frame.bottom + y * (frame.top - frame.bottom)) for x, y in shares
    ]
    check(frame, places, [f"{LONG} {number}" for number in range(len(places))])


@FRAMES
@pytest.mark.parametrize("count", range(2, 13))
@pytest.mark.parametrize("at", [(0.5, 0.5), (0.0, 0.0), (1.0, 1.0)], ids=["middle", "origin", "corner"])
def test_points_that_coincide_are_all_named_with_lines_that_lead_to_them(frame, count, at):
    x = frame.left + at[0] * (frame.right - frame.left)
    y = frame.bottom + at[1] * (frame.top - frame.bottom)
    drawing = check(frame, [(x, y)] * count, [f"{LONG} {number}" for number in range(count)])
    leaders = re.findall(r'<path d="M([\d.]+),([\d.]+)L', drawing.svg("A."))
    assert len(leaders) >= count - 6
    assert all(abs(float(a) - x) <= 6.1 and abs(float(b) - y) <= 6.1 for a, b in leaders)


def test_the_same_points_give_the_same_places():
    drawings = [check(WIDE, [(200, 200)] * 9, [f"run {number}" for number in range(9)]) for _ in range(2)]
    assert drawings[0].svg("A.") == drawings[1].svg("A.")


def texts(svg):
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("text")]


@pytest.mark.parametrize("count", range(2, 13))
@pytest.mark.parametrize("apart", [0.0, 0.001, 0.03])
def test_the_first_picture_names_every_run_on_every_screen(count, apart):
    """Five runs at equal rates stood so close that one had no name."""
    runs = tuple(
        TradeoffPoint(
            f"Method {i} (strength=0.{i})",
            Estimate(0.4 + apart * i, 0.39 + apart * i, 0.41 + apart * i),
            Estimate(0.1 + apart * (i % 3), 0.07, 0.16 + apart),
        )
        for i in range(count)
    )
    (made,) = draw("tradeoff", Tradeoff(runs, "bits/byte"))
    for svg in (made.svg, made.narrow):
        shown = texts(svg)
        assert all(any(text.startswith(f"Method {i} ") for text in shown) for i in range(count)), shown
        assert "base model" in shown


def test_a_name_without_any_room_stands_under_the_picture(monkeypatch):
    monkeypatch.setattr("everlearn.report.figures.tradeoff.WIDE", Frame(300, 120, 40, 290, 40, 60))
    runs = tuple(TradeoffPoint(f"run {i}", Estimate(0.4), Estimate(0.1)) for i in range(9))
    (made,) = draw("tradeoff", Tradeoff(runs, ""))
    assert float(re.search(r'viewBox="0 0 300 (\S+)"', made.svg).group(1)) > 120
    assert {f"run {i}" for i in range(9)} <= set(texts(made.svg))


RECIPE = "model: roberta-base\n"


def front(card):
    return yaml.safe_load(card.split("---\n")[1])


@pytest.fixture
def results():
    return report_fixture.results("das", "DAS", 0.06, learning=0.52)


def test_the_front_matter(results):
    found = front(model_card(results | {"model": "FacebookAI/roberta-base"}, RECIPE))
    assert found["library_name"] == "transformers"
    assert found["base_model"] == "FacebookAI/roberta-base"
    assert found["pipeline_tag"] == "fill-mask"
    assert found["tags"] == ["everlearn", "continual-learning", "continual-pretraining", "das"]


@pytest.mark.parametrize("model", ["/somewhere/model", "../model", "a/b/c", "", "C:\\model"])
def test_a_local_base_is_not_named_to_the_hub(results, model):
    assert "base_model" not in front(model_card(results | {"model": model}))


def test_the_body(results):
    card = model_card(results, RECIPE)
    assert "sympy → networkx" in card
    assert "<https://arxiv.org/abs/2302.03241>" in card
    assert "AutoModelForMaskedLM.from_pretrained(folder)" in card
    assert "folder = 'stage-06-torch'" in card
    assert "everlearn run runs/das/recipe.yaml run.name=das-again run.folder=runs/das-again" in card
    assert f"```yaml\n{RECIPE.strip()}\n```" in card
    assert "| DAS | +0.488 [+0.480, +0.497] | +0.546 [+0.538, +0.555] |" in card
    assert "attention leaks" in card


def test_a_model_that_transformers_does_not_know_is_loaded_with_its_module(results):
    """What the code block says is run elsewhere, where nothing was imported yet."""
    card = model_card(results | {"objective": "causal"}, RECIPE, own_module="pytest.model")
    assert "```python\nimport pytest.model  #" in card
    assert "loads this way, with pytest installed, which brings the architecture" in card
    assert "without everlearn" not in card
    seeing = model_card(results, RECIPE, architecture="AutoModelForImageTextToText")
    assert "model = AutoModelForImageTextToText.from_pretrained(folder)" in seeing
    plain = model_card(results, RECIPE, own_module=None)
    assert "loads this way, without everlearn installed" in plain
    assert "from here on" not in plain


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("das", False),
        ("sequential", False),
        ("inc_lora", False),
        ("hat_all", False),
        ("hat", True),
        ("demix", True),
        ("ncl_adapter", True),
        ("dap_prompt", True),
        ("elle", True),
        ({"name": "elle", "prompts": False}, False),
        ("somebodys_own", False),
    ],
)
def test_it_says_when_the_folder_is_not_what_was_measured(results, method, told):
    name = method if isinstance(method, str) else method["name"]
    options = {} if isinstance(method, str) else {key: value for key, value in method.items() if key != "name"}
    used = {"name": name, "title": name, "paper": "", "options": options}
    if name in names():  # as a run's results say it; those of an older version, or of another program, say nothing
        used["as_saved"] = build({"name": name, **options}).tested_as_saved
    card = model_card(results | {"methods": [used]})
    assert ("not the model of the scores above" in card) == told
    assert ("ContinualLearner.open('runs/das').tested('torch')" in card) == told


@pytest.mark.parametrize(
    ("folder", "shown"),
    [
        (None, "runs/das"),
        (Path("runs/das"), "runs/das"),
        (Path("studies/one/first"), "studies/one/first"),
        (Path("/somewhere/first"), "runs/first"),
        (Path("../first"), "runs/first"),
        (Path("my runs/first"), "my runs/first"),
    ],
)
def test_the_run_folder_is_named_without_a_path_of_this_machine(results, folder, shown):
    method = {"name": "hat", "title": "HAT", "paper": "", "options": {}, "as_saved": False}
    card = model_card(results | {"methods": [method]}, folder=folder)
    assert f"ContinualLearner.open({shown!r})" in card
    assert again(shown) in card
    assert "somewhere" not in card


def test_objects_and_mappings_give_the_same_card(results):
    assert model_card(Results.model_validate(results)) == model_card(Results.model_validate(results).model_dump())


def test_a_recipe_cannot_leave_its_fence(results):
    card = model_card(results, "a: |\n  ```\n  # not a heading\n")
    assert "````yaml\na: |\n  ```\n" in card
    assert card.count("````") == 2


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=12), st.text(max_size=12))
def test_wild_names_stay_in_their_place(domain, run):
    found = report_fixture.results("das", run, 0.1, domains=[domain, "b" if domain != "b" else "c"])
    card = model_card(found | {"run": run, "notes": [domain]}, run)
    assert front(card)["library_name"] == "transformers"
    body = card.split("---\n", 2)[2]
    code = next(block for block in re.findall(r"```python\n(.*?)```", body, re.DOTALL))
    compile(code, "card", "exec")
    assert clean(domain).encode("utf-8") is not None


def test_what_is_no_result_is_an_error():
    with pytest.raises(RunError, match="matrices"):
        model_card({"run": "x"})


finite = st.floats(-1e3, 1e3)
width = st.floats(0, 1e3)


@settings(deadline=None)
@given(finite, width, finite, width)
def test_the_difference_of_symmetric_intervals_adds_their_squares(a, half_a, b, half_b):
    difference = Estimate(a, a - half_a, a + half_a).minus(Estimate(b, b - half_b, b + half_b))
    assert difference.value == a - b
    low, high = difference.interval
    half = math.sqrt(half_a**2 + half_b**2)
    assert low == pytest.approx(a - b - half, abs=1e-9)
    assert high == pytest.approx(a - b + half, abs=1e-9)


def test_the_difference_keeps_skew():
    difference = Estimate(1.0, 0.9, 1.4).minus(Estimate(0.5, 0.2, 0.6))
    assert difference.low == pytest.approx(0.5 - math.sqrt(0.1**2 + 0.1**2))
    assert difference.high == pytest.approx(0.5 + math.sqrt(0.4**2 + 0.3**2))


def test_a_difference_without_an_interval_has_none():
    assert Estimate(1.0, 0.9, 1.1).minus(Estimate(0.5)) == Estimate(0.5)
    assert Estimate(1.0, 0.9, 1.1).minus(Estimate()) == Estimate()


def test_the_mean_of_independent_estimates():
    found = mean([Estimate(1.0, 0.7, 1.3), Estimate(3.0, 2.6, 3.4), Estimate()])
    assert found.value == 2.0
    assert found.low == pytest.approx(2 - math.hypot(0.3, 0.4) / 2)
    assert mean([Estimate(1.0), Estimate(3.0, 2.0, 4.0)]) == Estimate(2.0)
    assert mean([]) == Estimate()


@pytest.mark.parametrize(("low", "high", "sign"), [(0.1, 0.2, 1), (-0.2, -0.1, -1), (-0.1, 0.1, 0), (None, 0.1, None)])
def test_the_sign_is_that_of_the_whole_interval(low, high, sign):
    assert Estimate(0.0, low, high).sign == sign


@pytest.mark.parametrize("raw", [None, True, "1", float("nan"), float("inf"), [1]])
def test_what_is_no_finite_number_is_absent(raw):
    assert number(raw) is None
    assert Estimate.read({"value": raw}) == Estimate()


@settings(deadline=None)
@given(st.text(st.characters(categories=None), max_size=20))
def test_every_cleaned_value_can_be_written_as_utf8(text):
    found = clean({text: [text, {"x": text, "y": 1}], "none": None})
    json_module.dumps(found, ensure_ascii=False).encode("utf-8")
    assert found["none"] is None


def test_worse_is_positive_for_every_metric():
    cells = [["base", "a", 1.0, None, None], ["a", "a", 3.0, None, None]]
    raw = {"rows": ["base", "a"], "columns": ["a"], "cells": cells}
    assert ScoreTable.lenient("m", raw | {"higher_is_better": True}).worsening("a", 0, 1) == -2.0
    assert ScoreTable.lenient("m", raw | {"higher_is_better": False}).worsening("a", 0, 1) == 2.0


def test_a_domain_called_base_is_not_the_base_row():
    matrix = ScoreTable.lenient("m", {"rows": ["base", "x", "base"], "columns": ["x", "base", "general"], "cells": []})
    assert [matrix.own_stage(column) for column in matrix.columns] == [1, 2, None]
    assert matrix.cell(1, "x") == Estimate()


def test_the_fixture_is_what_everlearn_writes():
    found = report_fixture.results("plain", "Sequential", 0.1)
    assert from_results(Results.model_validate(found)).domains == report_fixture.DOMAINS


def test_a_run_with_nothing_but_results(tmp_path):
    (tmp_path / "results.json").write_text(json_module.dumps({"matrices": {}}))
    run = read_run(tmp_path)
    assert (run.name, run.title, run.domains, run.log, run.recipe) == (tmp_path.name, tmp_path.name, [], [], None)


def test_half_a_line_of_the_log_is_counted_and_left_out(tmp_path):
    folder = report_fixture.write_run(tmp_path / "run", report_fixture.results("plain", "Sequential", 0.1), steps=2)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"stage": 1, "st')
    run = read_run(folder)
    assert (len(run.log), run.broken_lines) == (12, 1)


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(RunError, match=r"has no results\.json"):
        read_run(tmp_path)
    with pytest.raises(RunError, match="nowhere is not a run that can be reported: there is no such folder"):
        read_run(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"matrices": 3}'])
def test_damaged_results_are_named(tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(RunError, match="damaged"):
        read_run(tmp_path)
