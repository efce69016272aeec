"""What a page shows of transfer: measures by super-domain, lines between them, forgetting at equal gap."""

from __future__ import annotations

import json
import math
import re

import pytest
from report_fixture import results, write_run

from everlearn.comparison.runs import read_run
from everlearn.report import compare, page
from everlearn.report.figures import draw
from everlearn.report.figures.matrices import matrix_heat
from everlearn_bench.transfer_study.measures import MEASURES
from everlearn_bench.transfer_study.tables import all_orders, half_width, perplexity_table, stream_of, transfer_table

DOMAINS = [f"d{number}" for number in range(12)]


def causal(domains=DOMAINS, name="plain", seed=0):
    """A run of two super-domains."""
    found = results(name, "Sequential", 0.12, domains, seed)
    groups = {domain: "wiki" if int(domain[1:]) < 5 else "papers" for domain in domains}
    found |= {"objective": "causal", "groups": groups, "seed": seed}
    found["methods"][0]["name"] = "sequential"
    return found


def scored(found, domain, value, row=None):
    """Set the losses of a domain, after one stage or all of them."""
    for cell in found["matrices"]["loss"]["cells"]:
        if cell[1] == domain and row in (None, cell[0]):
            cell[2] = value


def test_the_section_of_the_study(tmp_path):
    found = causal()
    run = write_run(tmp_path / "plain", found)
    text = page(compare([run]))
    table = re.search(r"<caption>Sequential: transfer</caption>.*?</table>", text, re.DOTALL).group()
    header = re.findall(r'scope="col">([^<]*)', table)
    assert header[1:] == [
        "All domains (nats/token)", "All domains (bits/byte)", "wiki (nats/token)", "papers (nats/token)",
    ]  # fmt: skip
    forward = stream_of(read_run(run)).spread()["forward"]
    assert forward["wiki"].domains == 4
    assert f"{forward['papers'].mean:+.3f}".replace("-", "−") in table
    assert "<h2>Causal study</h2>" in text
    assert "Do later stages forget more?" in text
    assert text.count(">gap n − i, domains learnt since</text>") == 1
    assert half_width(read_run(run)) == pytest.approx(0.05)


def test_other_objectives_without_super_domains_have_no_such_table(tmp_path):
    found = causal() | {"objective": "masked", "groups": {}}
    run = read_run(write_run(tmp_path / "plain", found))
    assert transfer_table("x", [run]) is None
    assert transfer_table("x", [read_run(write_run(tmp_path / "old", results("old", "Old", 0.1)))]) is None


def test_lines_stand_between_super_domains(tmp_path):
    found = causal()
    comparison = compare([write_run(tmp_path / "plain", found)])
    heat = matrix_heat(comparison, 0, "bits_per_byte")
    assert (heat.column_rules, heat.row_rules) == ([5, 12], [1, 6])
    (shown,) = draw("heat", heat)
    assert len(re.findall(r'<td class="[^"]*\bleft\b', shown.svg)) == 13 * 2
    assert len(re.findall(r'<td class="[^"]*\babove\b', shown.svg)) == 13 * 2
    many = causal([f"d{number}" for number in range(24)])
    (picture,) = draw("heat", matrix_heat(compare([write_run(tmp_path / "many", many)]), 0, "bits_per_byte"))
    rules = re.search(r'<path d="([^"]*)" style="[^"]*stroke-width:0.8px', picture.svg).group(1)
    assert len(re.findall("M", rules)) == 4


def test_several_orders_are_put_together(tmp_path):
    runs = [
        write_run(tmp_path / name, causal(order, name, seed))
        for seed, (name, order) in enumerate({"one": DOMAINS, "two": DOMAINS[::-1]}.items())
    ]
    comparison = compare(runs)
    (name, together), *others = all_orders(comparison).items()
    assert (name, together.orders, others) == ("All 2 orders of Sequential", 2, [])
    assert all_orders(compare(runs[:1])) == {}
    assert "All 2 orders of Sequential" in page(comparison)
    assert stream_of(comparison.runs[0]).groups["d0"] == "wiki"
    assert json.loads((runs[0] / "results.json").read_text())["groups"]["d11"] == "papers"


def test_the_numbers_of_several_seeds_are_means(tmp_path):
    one, two = causal(seed=0), causal(seed=1)
    scored(two, "d1", 9.0, "base")
    runs = [read_run(write_run(tmp_path / name, found)) for name, found in (("one", one), ("two", two))]
    known = [stream_of(run).spread()["continual"]["wiki"] for run in runs]
    assert known[0].mean != known[1].mean
    table, single = transfer_table("x", runs), transfer_table("x", runs[:1])
    column = list(table.header).index("wiki (nats/token)") - 1
    shown = next(cells for title, cells in table.rows if title == MEASURES["continual"].title)[column]
    assert shown.text == f"{sum(each.mean for each in known) / 2:+.3f}".replace("-", "−")
    assert f"{sum(each.median for each in known) / 2:+.3f}".replace("-", "−") in shown.detail
    assert table.caption.endswith("Means over 2 seeds.")
    assert "seeds" not in single.caption


def test_perplexities_of_several_seeds_are_geometric_means(tmp_path):
    found = [causal(seed=seed) for seed in (0, 1)]
    for each, perplexity in zip(found, (10.0, 40.0), strict=True):
        scored(each, "d0", math.log(perplexity))
        scored(each, "d0", math.log(perplexity) - 2.0, "d0")
        each["alone"] = {"loss": {"d0": math.log(perplexity)}}
    found[1]["alone"]["loss"] = {}
    runs = [read_run(write_run(tmp_path / str(place), each)) for place, each in enumerate(found)]
    cells = [cell.text for cell in perplexity_table("x", runs).rows[0][1]]
    assert [float(cells[0]), float(cells[3]), float(cells[4])] == [20.0, 20.0, 2.0]
    assert float(cells[2]) == pytest.approx(20 * math.exp(-2), abs=0.01)
    assert cells[1] == "–", "one of the seeds lacks it"


def test_runs_of_other_methods_are_no_other_orders(tmp_path):
    """A method that forgets more and learnt a domain later would make it seem that late stages forget more."""
    plain, other = causal(), causal(DOMAINS[::-1], "ewc", 1)
    other["methods"][0]["name"] = "ewc"
    comparison = compare([write_run(tmp_path / "plain", plain), write_run(tmp_path / "ewc", other)])
    assert all_orders(comparison) == {}
