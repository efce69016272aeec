"""The page in HTML: what it holds, how it looks on a phone (390 px), and what its script does in a browser."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
import report_fixture
from report_fixture import results, write_run

from everlearn.comparison.comparison import Comparison
from everlearn.comparison.formatting import flatten, named
from everlearn.comparison.runs import read_run
from everlearn.comparison.training_log import curve, starts
from everlearn.errors import RunError
from everlearn.evaluation.estimate import Estimate
from everlearn.report import compare, page, plots, write_report
from everlearn.report.drawing import SIZE, Drawing
from everlearn.report.figures import draw, figure, plate, registry
from everlearn.report.figures.balance import Balance, DomainBalance
from everlearn.report.figures.curves import Curve, Curves
from everlearn.report.figures.dots import Dots
from everlearn.report.figures.frontiers import Frontiers, Strength
from everlearn.report.figures.tradeoff import Tradeoff, TradeoffPoint
from everlearn.report.figures.violins import Violins
from everlearn.report.html import render, with_code
from everlearn.report.run_tables import cost_table
from everlearn.report.sections import Section
from everlearn.report.tables import Table, TableCell, column_table, further_tables, headline_table, legend_of_bold
from everlearn.report.verdict import verdict

VOID = {"meta", "br", "img", "link", "input", "hr"}
NASTY = '"><script>alert(1)</script>&amp;$x$\u202e'


class Reader(HTMLParser):
    """Collects tags, attributes and text, and refuses tags that do not close."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text, self.ids, self.links = [], [], [], [], []
        self.headers = []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append(tag)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [value for key, value in attributes if key in ("href", "src")]
        if tag == "th":
            self.headers.append(found.get("scope"))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(text):
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return report_fixture.write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def text(runs):
    return page(compare(runs))


def test_the_page_is_well_formed_and_accessible(text):
    found = read(text)
    assert found.tags.count("h1") == 1
    assert len(found.ids) == len(set(found.ids))
    assert set(found.headers) == {"col", "row"}
    figures = re.findall(r"<svg [^>]*>", text)
    assert len(figures) >= 12
    assert all('role="img"' in figure and 'aria-label="' in figure for figure in figures)
    assert {link[1:] for link in found.links if link.startswith("#") and "figure" not in link} <= set(found.ids)


def test_the_page_asks_for_nothing(text):
    found = read(text)
    assert not {"link", "img", "iframe"} & set(found.tags)
    scripts = re.findall(r"<script(.*?)>(.*?)</script>", text, re.DOTALL)
    assert [attributes for attributes, _ in scripts] == [""]
    digest = base64.b64encode(hashlib.sha256(scripts[0][1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text, "no other script may run"
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    outside = [link for link in found.links if not link.startswith("#")]
    assert set(outside) == {"https://arxiv.org/abs/2302.03241"}
    assert "default-src 'none'" in text


def test_the_page_adapts(text):
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_the_page_has_everything(text):
    for words in (
        "DAS trades", "What each domain gained and lost", "Along the stream", "Score matrices", "End tasks", "Training",
        "das/contrast", "Time, tokens and memory", "1.45 GB", "9.98 %", "Notes", "Glossary",
        "everlearn report runs/plain-again runs/das-again", "per_device_train_batch_size", "versions.torch",
        "2.13.0+cpu",
    ):  # fmt: skip
        assert words in text, words
    assert "causal study" not in text


def test_every_quantity_is_on_the_page_with_the_word_of_the_bold_ones(comparison):
    tables = further_tables(comparison)
    assert tables[0].title == "Further quantities: Bits per byte"
    rows = dict(tables[0].rows)
    (title,) = [name for name in rows if name.startswith("Backward transfer")]
    value = comparison.measure("bits_per_byte", "backward_transfer").estimates[comparison.ranking[0]].value
    assert float(rows[title][0].text.replace("−", "-")) == pytest.approx(value, abs=1e-2)
    assert not [name for name in rows if name.startswith("Learnt")], "it is in the first table"
    assert "<summary>Further quantities</summary>" in page(comparison)
    assert any(cell.best for cells in rows.values() for cell in cells)
    for table in (*tables, *(column_table(each, comparison) for each in comparison.headline)):
        assert table.caption == legend_of_bold(table.rows)


def test_the_page_of_some_runs_says_that_others_are_missing(comparison):
    text = page(comparison, "2 of 3 runs are done; missing: mas.")
    assert "2 of 3 runs are done; missing: mas." in text.split("</section>")[0]


def test_the_diagonal_is_outlined_and_the_base_row_is_plain(text):
    first = next(t for t in re.findall(r'<table class="heat">.*?</table>', text, re.DOTALL) if "base model" in t)
    rows = re.findall(r"<tr>.*?</tr>", first, re.DOTALL)[1:]
    for stage, row in enumerate(rows):
        cells = re.findall(r'<td(?: class="([^"]*)")?', row)
        assert [i for i, names in enumerate(cells) if "own" in names] == ([stage - 1] if stage else [])
        assert stage or not any(cells)


def test_the_page_opens_with_one_picture_then_the_choice_then_the_table(text):
    places = [text.index(mark) for mark in ("<figure>", '<p class="verdict">', "<caption>Result", "<dl class=")]
    assert places == sorted(places)
    assert text.index("<figure>") == text.index('<figure><svg role="img" aria-label="Learning against forgetting')
    assert '<p class="verdict"><strong>Take DAS: at the end of the stream it is 0.488 bits/byte' in text


def test_the_picture_of_one_run_is_what_each_domain_gained_and_kept(tmp_path):
    text = page(compare([write_run(tmp_path / "run", results("das", "DAS", 0.1), steps=1)]))
    first = re.search(r'<figure><svg role="img" aria-label="([^"]*)"', text).group(1)
    assert "what it had gained right after its own stage (ring), and what is left of it at the end" in first
    assert text.count('class="dot"') == 2 * (1 + len(report_fixture.DOMAINS)), "drawn for large screens and for phones"


def test_models_without_a_stream_have_their_scores_and_no_verdict(tmp_path):
    found = results("das", "DAS", 0.1) | {"domains": [], "general": ["a", "b"], "summary": {}, "run": "models"}
    scores = [["gpt <1>", "a", 2.0, 1.9, 2.1], ["gpt <1>", "b", 1.0, None, None], ["gpt 2", "a", 1.5, 1.4, 1.6]]
    table = {"higher_is_better": False, "unit": "bits/byte", "rows": ["gpt <1>", "gpt 2"], "columns": ["a", "b"]}
    found["matrices"], found["methods"] = {"bits_per_byte": table | {"cells": scores}}, []
    text = page(compare([write_run(tmp_path / "models", found | {"methods": [{"name": "x", "title": "M"}]}, steps=1)]))
    assert "M holds 2 models that were measured; they are no stream" in text
    assert "<code>everlearn diff BEFORE AFTER</code>" in text
    assert '<th scope="row">gpt &lt;1&gt;</th>' in text
    assert "better than gpt &lt;1&gt; by 0.500" in text
    assert "base model:" not in text


def test_models_without_a_stream_are_beside_each_other_and_beside_a_run(tmp_path):
    found = results("das", "DAS", 0.1)
    scores = [["one", "a", 2.0, 1.9, 2.1], ["two", "a", 1.5, 1.4, 1.6]]
    text = {"higher_is_better": False, "unit": "bits/byte", "rows": ["one", "two"], "columns": ["a"], "cells": scores}
    asked = [["one", "ask", 0.25, 0.2, 0.3], ["two", "ask", 0.75, 0.7, 0.8]]
    task = {"title": "Accuracy", "higher_is_better": True, "unit": "fraction", "rows": ["one", "two"]}
    task |= {"columns": ["ask"], "cells": asked, "task_domains": {"ask": None}}
    measured = found | {"domains": [], "general": ["a"], "summary": {}, "methods": [{"name": "x", "title": "M"}]}
    measured["matrices"] = {"bits_per_byte": text, "accuracy": task}
    models = write_run(tmp_path / "models", measured, steps=1)
    alone = compare([models])
    assert headline_table(alone).header == ("Model", "a\u00a0↓ (bits/byte)", "ask\u00a0↑ (accuracy)")
    shown = [(name, [cell.text for cell in cells]) for name, cells in headline_table(alone).rows]
    assert shown == [("one", ["2.000", "0.250"]), ("two", ["1.500", "0.750"])]
    assert "Base model" not in page(alone), "the first of them is no base of the others"
    run = write_run(tmp_path / "run", found, steps=1)
    for folders in ([models, run], [run, models], [models, models]):
        both = compare(folders)
        rows = [name for name, _ in headline_table(both).rows]
        assert sum(name.endswith("two") for name in rows) == folders.count(models)
        assert page(both)
        assert " ".join(verdict(both))


@pytest.mark.parametrize(("domains", "limit"), [(15, 300_000), (60, 300_000), (100, 400_000)])
def test_a_page_of_many_domains_stays_light(tmp_path, domains, limit):
    names = [f"domain-{number:03d}" for number in range(domains)]
    found = results("das", "DAS", 0.1, domains=names)
    text = page(compare([write_run(tmp_path / "run", found, steps=3)]))
    assert len(text.encode()) < limit
    assert f"{domains + 1} × {domains + 1}" in text or domains == 15
    assert "The numbers are in runs/run/results.json." in text or domains == 15


def test_ten_runs_are_one_picture_and_one_ranked_table(tmp_path):
    runs = [
        write_run(
            tmp_path / f"run{i}", results(f"m{i}", f"Method {i}", 0.2 / (i + 1), learning=0.4 - 0.02 * i), steps=2
        )
        for i in range(10)
    ]
    comparison = compare(runs)
    text = page(comparison)
    assert len(text.encode()) < 300_000
    verdicts = re.findall(r'<p class="verdict[^"]*">.*?</p>', text, re.DOTALL)
    assert len(verdicts) == 2, "which run to take, and the rule"
    table = re.search(r"<caption>Result</caption>.*?</table>", text, re.DOTALL).group()
    order = re.findall(r'<th scope="row">(Method \d)</th>', table)
    gained = comparison.measure("bits_per_byte", "gained")
    assert order == sorted(comparison.labels, key=lambda label: -gained.estimates[comparison.labels.index(label)].value)
    assert "<details><summary>Difference to Method 0</summary>" in text


def for_a_while(monkeypatch, name):
    """Let a test register a figure, which is taken out afterwards."""
    monkeypatch.setitem(registry.FIGURES, name, None)
    del registry.FIGURES[name]


def test_the_figure_of_the_guide_is_on_the_page(runs, monkeypatch):
    for_a_while(monkeypatch, "final scores")
    guide = (Path(__file__).parents[2] / "docs" / "add-a-figure.md").read_text(encoding="utf-8")
    exec(re.search(r"```python\n(.*?)```", guide, re.DOTALL).group(1), {"__name__": "final_scores"})
    text = page(compare(runs))
    assert "<figcaption>Gained at the end of the stream." in text
    sections = re.search(r"part of a run's page where it appears:(.*?)\n\*", guide, re.DOTALL).group(1)
    named = set(re.findall(r"`([^`]*)`", " ".join(sections.split())))
    assert named == {found.section for found in registry.FIGURES.values() if found.data is Comparison} - {""}


def test_the_plot_of_the_guide_is_drawn_of_runs(tmp_path, monkeypatch):
    report_fixture.write_run(tmp_path / "runs" / "first", results("plain", "Sequential", 0.12))
    report_fixture.write_run(tmp_path / "runs" / "second", results("das", "DAS", 0.06))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(plots.PLOTS, "at the end", raising=False)
    guide = (Path(__file__).parents[2] / "docs" / "add-a-figure.md").read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", guide.split("## For Python")[1], re.DOTALL):
        exec(block, {"__name__": "at_the_end"})
    monkeypatch.delitem(plots.PLOTS, "at the end")
    assert (tmp_path / "at-the-end.png").stat().st_size > 1000


def test_a_new_plot_is_one_function(runs, monkeypatch):
    for_a_while(monkeypatch, "three lines")

    @figure("three lines", data=Comparison, section="stream")
    def three_lines(comparison):
        drawing = Drawing(100, 20)
        drawing.text(0, 15, f"{len(comparison.pools)} runs")
        yield plate(drawing, "My own plot.")

    text = page(compare(runs))
    assert "2 runs</text>" in text
    assert "<figcaption>My own plot.</figcaption>" in text
    with pytest.raises(ValueError, match="There is a figure 'three lines' already"):
        figure("three lines", data=Comparison)(three_lines)


def test_the_same_run_gives_the_same_bytes(tmp_path):
    run = write_run(tmp_path / "run", results("das", "DAS", 0.1, domains=["a"]), steps=3)
    path = write_report([run], tmp_path / "deep" / "report.html")
    assert path.read_text(encoding="utf-8") == page(compare([run]))


def test_what_stands_between_backticks_is_code():
    assert with_code("set `a<b` & go") == "set <code>a&lt;b</code> &amp; go"


def test_a_name_that_repeats_what_it_names_is_left_out():
    assert named("General text", "general") == "General text"
    assert named("General text", "wikipedia") == "General text (wikipedia)"


def test_wild_names_are_text(tmp_path):
    found = results("a b", NASTY, 0.1, domains=[NASTY, "]]>--><x y='"], seed=3)
    found["methods"][0]["paper"] = "javascript:alert(1)"
    found["notes"] = [NASTY]
    run = write_run(tmp_path / "a b", found, steps=3)
    (run / "environment.json").write_text(json.dumps({NASTY: [NASTY, 1]}))
    text = page(compare([run]))
    reader = read(text)
    assert reader.tags.count("script") == 1
    assert "alert(1)" not in re.search(r"<script>(.*?)</script>", text, re.DOTALL).group(1)
    assert "x" not in reader.tags
    assert "javascript" not in " ".join(reader.links)
    assert NASTY.replace("\u202e", "\ufffd") in "".join(reader.text)
    assert "everlearn run 'runs/a b/recipe.yaml'" in "".join(reader.text)


def test_the_causal_study(tmp_path):
    found = results("gpt", "Sequential", 0.1, domains=["a", "b"]) | {"objective": "causal"}
    text = page(compare([write_run(tmp_path / "run", found, steps=2)]))
    table = re.search(r"<caption>Sequential: the causal study</caption>.*?</table>", text, re.DOTALL).group()
    assert "Zero-shot (ZS)" in table
    assert ">–</td>" in table


@pytest.mark.parametrize(("status", "words"), [("running", ""), ("failed", " (failed)")])
def test_a_run_that_has_only_begun(tmp_path, status, words):
    found = {"run": "x", "matrices": {}, "domains": ["a"], "status": status, "methods": [], "summary": {}}
    (tmp_path / "results.json").write_text(json.dumps(found))
    assert f"x is not finished{words}: 0 of 1 stage is measured" in page(compare([tmp_path]))


def test_a_folder_without_results_is_an_error(tmp_path):
    with pytest.raises(RunError, match=r"results\.json"):
        write_report([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_loss_curves_run_through_the_stages(tmp_path):
    run = read_run(write_run(tmp_path / "run", results("das", "DAS", 0.1), steps=60))
    x, y = curve(run, "loss")
    assert x[-1] == pytest.approx(359.5, abs=1)
    assert len(x) < 200
    assert y.count(None) == 5
    assert starts(run) == [60.5, 120.5, 180.5, 240.5, 300.5]
    assert curve(run, "nothing") == ([], [])


def test_a_step_logged_twice_counts_once_and_last(tmp_path):
    run = read_run(write_run(tmp_path / "run", results("das", "DAS", 0.1, domains=["a"]), steps=1))
    run.log.append({"stage": 1, "step": 1, "loss": 42.0})
    assert curve(run, "loss") == ([1.0], [42.0])


def test_steps_that_already_run_through_are_kept(tmp_path):
    run = read_run(write_run(tmp_path / "run", results("das", "DAS", 0.1, domains=["a", "b"]), steps=1))
    run.log[:] = [{"stage": 1, "step": 5, "loss": 1.0}, {"stage": 2, "step": 6, "loss": 2.0}]
    assert curve(run, "loss")[0] == [5.0, 5.0, 6.0]


def test_nested_environments_are_flattened():
    assert flatten({"a": {"b": 1, "c": [1, 2]}, "d": None}) == [("a.b", "1"), ("a.c", "1, 2"), ("d", "None")]


PHONE, READABLE = 358, 11
SCREENS = ("wide", "narrow")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    return compare(report_fixture.write_runs(tmp_path_factory.mktemp("runs")))


@pytest.fixture(scope="module")
def narrow_text(comparison):
    return page(comparison)


def on_a_phone(narrow_text):
    """Each figure's SVG that a phone shows."""
    figures = re.findall(r"<figure>(.*?)<figcaption>", narrow_text, re.DOTALL)
    for drawing in figures:
        drawn = re.findall(r"<svg role.*?</svg>\n?(?=<svg role|$)", drawing.strip(), re.DOTALL)
        wide, narrow = ([svg for svg in drawn if f'class="{screen}"' in svg.split(">")[0]] for screen in SCREENS)
        assert len(narrow) == len(wide)
        yield (narrow or drawn)[0]


def smallest(svg):
    """Pixels of the smallest text when the figure is as wide as a phone leaves it."""
    root = ElementTree.fromstring(svg)
    if root.get("class") == "picture":
        return SIZE  # its texts are not scaled
    sizes = [
        float(size) for e in root.iter("text") for size in re.findall(r"font-size:([\d.]+)px", e.get("style") or "")
    ]
    return min([SIZE, *sizes]) * PHONE / float(root.get("viewBox").split()[2])


def test_texts_of_every_figure_can_be_read_on_a_phone(narrow_text, tmp_path):
    one = page(compare([write_run(tmp_path / "run", results("das", "DAS", 0.1), steps=3)]))
    many = page(
        compare([write_run(tmp_path / "many", results("das", "DAS", 0.1, [f"d{i}" for i in range(45)]), steps=1)])
    )
    sizes = [smallest(svg) for shown in (narrow_text, one, many) for svg in on_a_phone(shown)]
    assert len(sizes) > 30
    assert min(sizes) >= READABLE


def test_texts_of_figures_of_other_pages_can_be_read_on_a_phone(comparison):
    name = "a method with a name that is very long indeed (strength=0.001)"
    (learnt,) = [m for m in comparison.headline if m.quantity.key == "learnt"]
    balance = [DomainBalance(f"domain {i}", 0.5, 0.1) for i in range(50)]
    data = (
        ("dots", Dots("bits/byte", [name, "b"], [list(learnt.estimates)], "A.")),
        ("violins", Violins("norm", [name], [[0.1, 0.2, 0.4]], "A.")),
        ("frontiers", Frontiers([(name, [Strength("1", 0.9, 0.5), Strength("2", 0.5, 0.1)])], "forgetting left")),
        ("balance", Balance(tuple(balance), "")),
        ("balance", Balance(tuple(balance[:3]), "")),
        ("curves", Curves("loss", [Curve(0, [0, 1], [1.0, 2.0])], "A.", small=True)),
    )
    for kind, values in data:
        (made,) = draw(kind, values)
        assert smallest(made.narrow or made.svg) >= READABLE, kind


def test_a_phone_shows_learnt_forgotten_and_general_drift_beside_each_other(comparison, narrow_text):
    table = headline_table(comparison)
    titles = [table.header[place].split("\u00a0")[0] for place in table.narrow]
    assert titles == ["Gain at the end", "Learnt", "Forgotten", "General drift"]
    shown = re.search(r"<table[^>]*>\s*<caption>Result</caption>.*?</table>", narrow_text, re.DOTALL).group()
    assert 'style="--columns:4"' in shown
    assert 'class="data cards"' in shown
    row = re.search(r'<tr><th scope="row">.*?</tr>', shown, re.DOTALL).group()
    assert len(re.findall(r"<td(?! class=\"more\")", row)) == 4
    assert 'class="more" data-label="End-task accuracy' in row, "what comes after them stands behind its name"


@pytest.mark.parametrize(
    ("header", "rows", "narrow"),
    [
        (("Run", "Learnt", "Forgotten"), 300, (1, 2)),
        (("Run", "Learnt", "The accuracy of a fine-tuned copy"), 3, ()),
        (("Run", *"abcdef"), 3, ()),
        (("Run", *"abcdef"), 60, None),
    ],
)
def test_wide_tables_are_cards_on_a_phone_and_scroll_only_where_they_are_very_long(header, rows, narrow):
    cells = (TableCell("1"),) * (len(header) - 1)
    assert Table("A", header, (("run", cells),) * rows).narrow == narrow


def test_every_number_that_sorts_otherwise_than_it_reads_says_so(comparison):
    (_, cells), *_ = cost_table(comparison).rows
    assert [cell.order for cell in cells if " min" in cell.text or "iB" in cell.text or cell.text.endswith(" s")]
    assert all(cell.order is not None for cell in cells if re.search(r" (min|s|h|GB|MB|kB)\b", cell.text)), (
        "times and sizes are written in several units"
    )


def test_points_and_lines_say_their_values_and_intervals(narrow_text):
    titles = re.findall(r"<title>(.*?)</title>", narrow_text, re.DOTALL)[1:]
    top = [title for title in titles if title.startswith("1. DAS\n")]
    assert len(top) == 2
    assert re.fullmatch(r"1\. DAS\nlearnt 0\.\d{3} \[0\.\d{3}, 0\.\d{3}\] bits/byte\nforgotten .*", top[0])
    assert any(re.fullmatch(r"DAS, sympy: \S+ \[\S+, \S+\]", title) for title in titles), "dots"
    assert any(title.startswith("DAS · stage: bits/byte\n0: ") for title in titles), "lines"
    for element in re.findall(r"<path [^>]*data-v=[^>]*>", narrow_text):
        points = re.findall(r"[ML]-?[\d.]+,", re.search(r' d="([^"]*)"', element).group(1))
        assert len(points) == len(re.search(r'data-v="([^"]*)"', element).group(1).split("|"))


def test_a_value_of_a_line_has_its_interval():
    (made,) = draw("curves", Curves("loss", [Curve(0, [0, 1], [1.0, 2.0], [0.5, 1.5], [1.5, 2.5], "EWC")], "A."))
    assert "<title>EWC · loss\n0: 1.0000 [0.5000, 1.5000]\n1: 2.0000 [1.5000, 2.5000]</title>" in made.svg


TELL = (
    "const svg = document.querySelector('figure > svg');"
    "svg.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}));"
)


class Rows(HTMLParser):
    """Names of the rows of a page's first table, and the state of its headings, as a browser left them."""

    def __init__(self):
        super().__init__()
        self.names, self.sorted, self.tables, self.in_row = [], [], 0, False

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tables += tag == "table"
        self.in_row = tag == "th" and found.get("scope") == "row" and self.tables == 1
        if tag == "th" and "aria-sort" in found and self.tables == 1:
            self.sorted.append(found["aria-sort"])

    def handle_data(self, data):
        if self.in_row:
            self.names.append(data.strip())
            self.in_row = False


def browsed(narrow_text, script, folder):
    """The page after a script of the test has run in a browser, as HTML."""
    page = re.sub(r"<meta http-equiv[^>]*>", "", narrow_text).replace("</body>", f"<script>{script}</script></body>")
    (folder / "page.html").write_text(page, encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    command = [
        BROWSER,
        *options,
        f"--user-data-dir={folder / 'profile'}",
        "--dump-dom",
        f"file://{folder / 'page.html'}",
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_in_a_browser_tables_sort_and_figures_tell_their_values(tmp_path):
    numbers = {
        "one": ("+0.200", None),
        "two": ("\u22121,000.5", None),
        "three": ("1 min 05 s", 65.0),
        "none": ("–", None),
    }
    rows = tuple((name, (TableCell(shown, "[0, 1]", order=order),)) for name, (shown, order) in numbers.items())
    table = Table("A", ("Run", "Forgotten ↓"), (*rows, ("mean", (TableCell("+5.000"),))))
    runs = [TradeoffPoint(name, Estimate(0.5, 0.4, 0.6), Estimate(0.1)) for name in numbers]
    section = Section("A", plates=draw("tradeoff", Tradeoff(tuple(runs), "bits/byte")), tables=[table], layout="")
    narrow_text = render(
        "analysis.html.jinja", title="A", kicker="", version="", importance=None, outputs=[], output_tables=[],
        sections=[section],
    )  # fmt: skip
    orders = []
    for place, clicks in ((1, 1), (1, 2), (0, 1)):
        click = f"document.querySelectorAll('table thead button')[{place}].click();"
        dom = browsed(narrow_text, click * clicks + TELL, tmp_path)
        shown = Rows()
        shown.feed(dom)
        orders.append((shown.names, shown.sorted))
        told = re.search(r'class="tip shown"[^>]*>([^<]*)<', dom).group(1)
        assert told == "1. one\nlearnt 0.500 [0.400, 0.600] bits/byte\nforgotten 0.100 bits/byte"
    assert orders == [
        (["two", "one", "three", "none", "mean"], ["ascending"]),
        (["three", "one", "two", "none", "mean"], ["descending"]),
        (["none", "one", "three", "two", "mean"], ["ascending"]),
    ]


def test_without_its_script_the_page_has_no_dead_button(narrow_text):
    assert "<button" not in narrow_text
    assert "aria-sort" in re.search(r"<script>(.*?)</script>", narrow_text, re.DOTALL).group(1)


def test_training_losses_of_several_runs_are_laid_over_each_other(narrow_text):
    training = narrow_text[narrow_text.index('<section id="losses">') :]
    first = re.search(r"<figure>.*?</figure>", training, re.DOTALL).group()
    assert "Training loss; dashed lines are where a stage starts." in first
    assert {"0", "1"} <= set(re.findall(r"stroke:var\(--series-(\d)\)", first))


def test_small_multiples_have_one_scale(comparison):
    """A difference has the same height in all of them."""
    each = re.findall(
        r"<figure>.*?</figure>", page(comparison).split("Each domain after every stage</h3>")[1], re.DOTALL
    )
    heights = set()
    for svg in each[:6]:
        labels = [
            (float(y), float(value.replace("\u2212", "-")))
            for y, value in re.findall(
                r'<text x="[\d.]+" y="([\d.]+)" style="text-anchor:end">([\u2212\d.]+)</text>', svg
            )
        ]
        (y1, one), (y2, other) = labels[:2]
        heights.add((y1 - y2) / (other - one))
    assert max(heights) < 1.02 * min(heights), "coordinates are written to a tenth of a pixel"


def colours(style, scheme):
    """The variables of the page's style in one scheme."""
    parts = {"light": style[: style.index("@media")], "dark": style[style.index("@media (prefers-color-scheme") :]}
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", parts["light"]))
    return found | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", parts[scheme].split("* {")[0]))


def luminance(colour):
    """As WCAG 2 defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_marks_stand_out_as_much_as_wcag_asks(narrow_text, scheme):
    found = colours(re.search(r"<style>(.*?)</style>", narrow_text, re.DOTALL).group(1), scheme)

    def contrast(name):
        high, low = sorted((luminance(found[name]), luminance(found["paper"])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    assert all(contrast(name) >= 4.5 for name in ("ink", "faint", "link"))
    assert all(contrast(f"series-{number}") >= 3 for number in range(6))


def test_print_has_the_light_colours_and_no_tools(narrow_text):
    printed = narrow_text[narrow_text.index("@media print") : narrow_text.index("</style>")]
    assert "--paper: #fff" in printed
    assert re.search(r"nav, \.tip, \.here, th button::after \{ display: none; \}", printed)
