import base64
import hashlib
import json
import re
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
from everlearn.report import compare, page, write_report
from everlearn.report.drawing import Drawing
from everlearn.report.figures import figure, plate, registry
from everlearn.report.html import with_code
from everlearn.report.tables import headline_table
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
        "das/contrast", "Time, tokens and memory", "1.35 GiB", "9.98 %", "Notes", "What the words mean",
        "everlearn report runs/plain-again runs/das-again", "per_device_train_batch_size", "versions.torch",
        "2.13.0+cpu",
    ):  # fmt: skip
        assert words in text, words
    assert "causal study" not in text


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
    assert '<p class="verdict"><strong>Take DAS: at the end of the stream its domains are 0.488 bits/byte' in text


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
    sections = re.search(r"page of runs:(.*?)\n\*", guide, re.DOTALL).group(1)
    named = set(re.findall(r"`([^`]*)`", " ".join(sections.split())))
    assert named == {found.section for found in registry.FIGURES.values() if found.data is Comparison} - {""}


def test_a_new_plot_is_one_function(runs, monkeypatch):
    for_a_while(monkeypatch, "three lines")

    @figure("three lines", title="A line", data=Comparison, section="stream")
    def three_lines(comparison):
        drawing = Drawing(100, 20)
        drawing.text(0, 15, f"{len(comparison.pools)} runs")
        yield plate(drawing, "My own plot.")

    text = page(compare(runs))
    assert "2 runs</text>" in text
    assert "<figcaption>My own plot.</figcaption>" in text
    with pytest.raises(ValueError, match="There is a figure 'three lines' already"):
        figure("three lines", title="", data=Comparison)(three_lines)


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


@pytest.mark.parametrize("status", ["running", "failed"])
def test_a_run_that_has_only_begun(tmp_path, status):
    found = {"run": "x", "matrices": {}, "domains": ["a"], "status": status, "methods": [], "summary": {}}
    (tmp_path / "results.json").write_text(json.dumps(found))
    assert f"x is not finished ({status}): 0 of 1 stage is measured" in page(compare([tmp_path]))


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
