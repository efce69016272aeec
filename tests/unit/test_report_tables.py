import csv as csv_module
import io
import json as json_module
import re

import pytest
import report_fixture
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import compare_runs
from everlearn.comparison.runs import clean, from_results
from everlearn.evaluation.estimate import Estimate
from everlearn.report import compare, csv, json, latex, markdown, terminal
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
    assert [fmt.duration(s) for s in (None, 3.21, 42, 131, 7500)] == ["–", "3.2 s", "42 s", "2 min 11 s", "2 h 05 min"]
    assert [fmt.size(b) for b in (None, 12, 1536, 3 * 2**30)] == ["–", "12 B", "1.50 KiB", "3.00 GiB"]
    assert fmt.estimate(Estimate(0.5, 0.4, 0.6), 1) == "0.5 [0.4, 0.6]"
    assert fmt.listing(["a", "b", "c"]) == "a, b and c"
    assert [fmt.shorten(t, 7) for t in ("short", "domain-12")] == ["short", "dom…-12"]
