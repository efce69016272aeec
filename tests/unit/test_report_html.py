import json
import re
from html.parser import HTMLParser

import pytest
import report_fixture
from everlearn.report.sections import curve, starts
from report_fixture import results, write_run

from everlearn.errors import RunError
from everlearn.report import compare, page, write_report
from everlearn.report.formatting import flatten
from everlearn.report.runs import read_run

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
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
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
    first = re.search(r'<table class="heat">.*?</table>', text, re.DOTALL).group()
    rows = re.findall(r"<tr>.*?</tr>", first, re.DOTALL)[1:]
    for stage, row in enumerate(rows):
        cells = re.findall(r'<td class="([^"]*)" style="--strength: ([\d.]+)"', row)
        assert [i for i, (names, _) in enumerate(cells) if "own" in names] == ([stage - 1] if stage else [])
        assert stage or all(float(strength) == 0 for _, strength in cells)


def test_the_same_run_gives_the_same_bytes(tmp_path):
    run = write_run(tmp_path / "run", results("das", "DAS", 0.1, domains=["a"]), steps=3)
    path = write_report([run], tmp_path / "deep" / "report.html")
    assert path.read_text(encoding="utf-8") == page(compare([run]))


def test_wild_names_are_text(tmp_path):
    found = results("a b", NASTY, 0.1, domains=[NASTY, "]]>--><x y='"], seed=3)
    found["methods"][0]["paper"] = "javascript:alert(1)"
    found["notes"] = [NASTY]
    run = write_run(tmp_path / "a b", found, steps=3)
    (run / "environment.json").write_text(json.dumps({NASTY: [NASTY, 1]}))
    text = page(compare([run]))
    reader = read(text)
    assert "script" not in reader.tags
    assert "x" not in reader.tags
    assert "javascript" not in " ".join(reader.links)
    assert NASTY.replace("\u202e", "\ufffd") in "".join(reader.text)
    assert "everlearn run 'runs/a b/recipe.yaml'" in "".join(reader.text)


def test_the_causal_study(tmp_path):
    found = results("gpt", "Sequential", 0.1, domains=["a", "b"]) | {"objective": "causal"}
    text = page(compare([write_run(tmp_path / "run", found, steps=2)]))
    table = re.search(r"<caption>Sequential: the causal study</caption>.*?</table>", text, re.DOTALL).group()
    assert "Zero-shot (ZS)" in table
    assert "<td>–</td>" in table


@pytest.mark.parametrize("status", ["running", "failed"])
def test_a_run_that_has_only_begun(tmp_path, status):
    found = {"run": "x", "matrices": {}, "domains": ["a"], "status": status, "methods": [], "summary": {}}
    (tmp_path / "results.json").write_text(json.dumps(found))
    assert f"x is not finished ({status}): 0 of 1 stages" in page(compare([tmp_path]))


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
