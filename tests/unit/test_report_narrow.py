"""The page on a phone (390 px, of which 358 are left between the margins), and what its script does in a browser."""

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
import report_fixture
from report_fixture import results, write_run

from everlearn.evaluation.estimate import Estimate
from everlearn.report import compare, page
from everlearn.report.drawing import SIZE
from everlearn.report.figures import draw
from everlearn.report.figures.balance import Balance, DomainBalance
from everlearn.report.figures.curves import Curve, Curves
from everlearn.report.figures.dots import Dots
from everlearn.report.figures.frontiers import Frontiers, Strength
from everlearn.report.figures.tradeoff import Standing, Standings
from everlearn.report.figures.violins import Violins
from everlearn.report.html import render
from everlearn.report.run_tables import cost_table
from everlearn.report.sections import Section
from everlearn.report.tables import Table, TableCell, headline_table

PHONE, READABLE = 358, 11
SCREENS = ("wide", "narrow")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    return compare(report_fixture.write_runs(tmp_path_factory.mktemp("runs")))


@pytest.fixture(scope="module")
def text(comparison):
    return page(comparison)


def on_a_phone(text):
    """Each figure's SVG that a phone shows."""
    figures = re.findall(r"<figure>(.*?)<figcaption>", text, re.DOTALL)
    for figure in figures:
        drawn = re.findall(r"<svg role.*?</svg>\n?(?=<svg role|$)", figure.strip(), re.DOTALL)
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


def test_texts_of_every_figure_can_be_read_on_a_phone(text, tmp_path):
    one = page(compare([write_run(tmp_path / "run", results("das", "DAS", 0.1), steps=3)]))
    many = page(
        compare([write_run(tmp_path / "many", results("das", "DAS", 0.1, [f"d{i}" for i in range(45)]), steps=1)])
    )
    sizes = [smallest(svg) for shown in (text, one, many) for svg in on_a_phone(shown)]
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


def test_a_phone_shows_learnt_forgotten_and_general_drift_beside_each_other(comparison, text):
    table = headline_table(comparison)
    titles = [table.header[place].split("\u00a0")[0] for place in table.narrow]
    assert titles == ["Gain at the end", "Learnt", "Forgotten", "General drift"]
    shown = re.search(r"<table[^>]*>\s*<caption>Result</caption>.*?</table>", text, re.DOTALL).group()
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
    assert all(cell.order is not None for cell in cells if re.search(r" (min|s|h|GiB|MiB|KiB)\b", cell.text)), (
        "times and sizes are written in several units"
    )


def test_points_and_lines_say_their_values_and_intervals(text):
    titles = re.findall(r"<title>(.*?)</title>", text, re.DOTALL)[1:]
    top = [title for title in titles if title.startswith("1. DAS\n")]
    assert len(top) == 2
    assert re.fullmatch(r"1\. DAS\nlearnt 0\.\d{3} \[0\.\d{3}, 0\.\d{3}\] bits/byte\nforgotten .*", top[0])
    assert any(re.fullmatch(r"DAS, sympy: \S+ \[\S+, \S+\]", title) for title in titles), "dots"
    assert any(title.startswith("DAS · stage: bits/byte\n0: ") for title in titles), "lines"
    for element in re.findall(r"<path [^>]*data-v=[^>]*>", text):
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


def browsed(text, script, folder):
    """The page after a script of the test has run in a browser, as HTML."""
    page = re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</body>", f"<script>{script}</script></body>")
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
    runs = [Standing(name, Estimate(0.5, 0.4, 0.6), Estimate(0.1)) for name in numbers]
    section = Section("A", plates=draw("standing", Standings(tuple(runs), "bits/byte")), tables=[table], layout="")
    text = render(
        "analysis.html.jinja", title="A", kicker="", version="", importance=None, outputs=[], output_tables=[],
        sections=[section],
    )  # fmt: skip
    orders = []
    for place, clicks in ((1, 1), (1, 2), (0, 1)):
        click = f"document.querySelectorAll('table thead button')[{place}].click();"
        dom = browsed(text, click * clicks + TELL, tmp_path)
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


def test_without_its_script_the_page_has_no_dead_button(text):
    assert "<button" not in text
    assert "aria-sort" in re.search(r"<script>(.*?)</script>", text, re.DOTALL).group(1)


def test_training_losses_of_several_runs_are_laid_over_each_other(text):
    training = text[text.index('<section id="losses">') :]
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
def test_texts_and_marks_stand_out_as_much_as_wcag_asks(text, scheme):
    found = colours(re.search(r"<style>(.*?)</style>", text, re.DOTALL).group(1), scheme)

    def contrast(name):
        high, low = sorted((luminance(found[name]), luminance(found["paper"])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    assert all(contrast(name) >= 4.5 for name in ("ink", "faint", "link"))
    assert all(contrast(f"series-{number}") >= 3 for number in range(6))


def test_print_has_the_light_colours_and_no_tools(text):
    printed = text[text.index("@media print") : text.index("</style>")]
    assert "--paper: #fff" in printed
    assert re.search(r"nav, \.tip, \.here, th button::after \{ display: none; \}", printed)
