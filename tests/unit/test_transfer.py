"""The causal study against matrices worked out by hand: its measures, controls, claims, tables and page."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from report_fixture import results, write_run

import tiny
from everlearn.comparison.runs import Run, read_run
from everlearn.config.recipe import parse
from everlearn.evaluation.quantities import QUANTITIES
from everlearn.grid.compute import evaluation_share
from everlearn.grid.page import GridPage
from everlearn.grid.recipe_template import RecipeTemplate
from everlearn.report import compare
from everlearn.report import page as page_of_runs
from everlearn.report.figures import draw
from everlearn.report.figures.matrices import matrix_heat
from everlearn.report.tables import Table
from everlearn_bench.claims.judge import FAILS, HOLDS, MISSING, ask, judge, parts
from everlearn_bench.claims.page import page as claims_page
from everlearn_bench.claims.page import question, write_claims
from everlearn_bench.suites import Suite as BaseSuite
from everlearn_bench.suites import find_suite, overlay_of
from everlearn_bench.suites.claims import ClaimQuestion
from everlearn_bench.suites.m2d2.claims import study_claims
from everlearn_bench.transfer_study.long_streams import LongStreams
from everlearn_bench.transfer_study.measures import MEASURES, StreamLosses
from everlearn_bench.transfer_study.saturation import forgotten, saturation
from everlearn_bench.transfer_study.tables import all_orders, half_width, perplexity_table, stream_of, transfer_table
from grid_cells import cell_of, like, made_of

LOSSES = [[4.0, 5.0, 6.0], [3.0, 4.8, 6.1], [3.2, 4.0, 5.5], [3.7, 4.1, 5.0]]
"""Base model, then after a, b and c; columns a, b, c."""
DOMAINS = ("a", "b", "c")


def stream(losses=LOSSES, missing=(), columns=(*DOMAINS, "general"), **options) -> StreamLosses:
    scores = {(i, name): losses[i][j] for i in range(4) for j, name in enumerate(DOMAINS) if (i, j) not in missing}
    return StreamLosses.of(["base", *DOMAINS], columns, scores | {(0, "general"): 9.0}, **options)


def test_each_measure_by_hand():
    found = stream(alone={"a": 2.9, "c": 5.2}).each()
    assert found["dapt"] == pytest.approx({"a": 4.0 - 2.9, "c": 6.0 - 5.2})
    assert found["continual"] == pytest.approx({"a": 1.0, "b": 1.0, "c": 1.0})
    assert found["continual_over_dapt"] == pytest.approx({"a": 2.9 - 3.0, "c": 5.2 - 5.0})
    assert found["lc"] == pytest.approx({"a": 0.3, "b": 0.9, "c": 1.0})
    assert found["fg"] == pytest.approx({"a": 0.7, "b": 0.1})
    assert found["fg_max"] == pytest.approx({"a": 0.7, "b": 0.1})
    assert found["backward"] == pytest.approx({"a": (0.8 + 0.3) / 2, "b": 0.9})
    assert found["backward_own"] == pytest.approx({"a": (-0.2 - 0.7) / 2, "b": -0.1})
    # θ_0 itself is no checkpoint of the stream: before a there is none.
    assert found["forward"] == pytest.approx({"b": 0.2, "c": (-0.1 + 0.5) / 2})


def test_the_max_form_counts_from_the_best_checkpoint_since():
    helped = [LOSSES[0], LOSSES[1], [2.5, 4.0, 5.5], LOSSES[3]]
    assert stream(helped).each()["fg_max"]["a"] == pytest.approx(3.7 - 2.5)
    assert stream(helped).each()["fg"]["a"] == pytest.approx(0.7)


def test_mean_and_median_of_all_and_of_each_super_domain():
    found = stream(groups={"a": "wiki", "b": "papers", "c": "papers"}).spread()
    assert list(found["lc"]) == ["all", "wiki", "papers"]
    assert (found["lc"]["all"].mean, found["lc"]["all"].median) == pytest.approx(((0.3 + 0.9 + 1.0) / 3, 0.9))
    assert (found["lc"]["papers"].mean, found["lc"]["papers"].domains) == (pytest.approx(0.95), 2)
    assert list(found["forward"]) == ["all", "papers"]
    assert "dapt" not in found


def test_what_was_not_measured_is_absent():
    """`evaluation.columns: own`: the base model, each domain's own stage, and the end."""
    found = stream(missing={(1, 1), (1, 2), (2, 0), (2, 2)}).each()
    assert "forward" not in found
    assert found["backward"] == pytest.approx({"a": 0.3, "b": 0.9})


def test_a_domain_without_held_out_text_keeps_its_place_in_the_stream():
    found = stream(columns=["a", "c"])
    assert found.stages == (1, 3)
    assert found.each()["continual"] == pytest.approx({"a": 1.0, "c": 1.0})


def made(order: list[int], late: float, hard: float = 0.0) -> StreamLosses:
    """Forgetting = 0.1 · gap, more by `late` for the checkpoints of the second half, and by `hard` · domain."""
    last = len(order)
    losses = np.zeros((last + 1, last))
    for column, domain in enumerate(order):
        for row in range(column + 2, last + 1):
            losses[row, column] = 0.1 * (row - column - 1) + late * (row > (last + 2) / 2) + hard * domain
    names = tuple(f"d{domain}" for domain in order)
    return StreamLosses(names, tuple(range(1, last + 1)), losses, np.full(last, np.nan), {})


def test_buckets_are_compared_at_equal_gap():
    """The plain means differ even where later checkpoints forget no more; at equal gap they do not."""
    none = saturation([made([*range(12)], late=0.0)], buckets=2)
    assert [(bucket.first, bucket.last) for bucket in none.buckets] == [(2, 7), (8, 12)]
    assert none.buckets[0].gaps == pytest.approx({gap: 0.1 * gap for gap in range(1, 7)})
    assert none.buckets[0].mean == pytest.approx(0.1 * sum(g * (7 - g) for g in range(1, 7)) / 21)
    assert none.buckets[1].mean > 1.8 * none.buckets[0].mean
    assert none.later == pytest.approx((0.0,))
    assert none.adjusted == pytest.approx((0.0,))
    more = saturation([made([*range(12)], late=0.3)], buckets=2)
    assert more.later == pytest.approx((0.3,))
    assert more.adjusted == pytest.approx((0.3,))


def test_several_orders_take_the_domain_out():
    """Domains that are easier to forget stand late in one order: only other orders can tell that it was they."""
    forward = [*range(12)]
    one = saturation([made(forward, late=0.0, hard=0.05)], buckets=2)
    assert one.later[0] > 0.1
    several = saturation([made(order, 0.2, 0.05) for order in (forward, forward[::-1], forward[6:] + forward[:6])], 2)
    assert several.orders == 3
    assert several.adjusted == pytest.approx((0.2,))


def test_short_streams_have_no_buckets_and_pairs_that_were_not_measured_do_not_count():
    assert saturation([made([*range(8)], 0.1)]) is None
    long = made([*range(12)], 0.3)
    assert np.isnan(forgotten(long)[3, 2:]).all()
    own = np.where(np.tril(np.ones((13, 12)), -2) * (np.arange(13)[:, None] < 12) > 0, np.nan, long.losses)
    found = saturation([StreamLosses(long.domains, long.stages, own, long.alone, {})], buckets=2)
    assert found.buckets[0].mean is None
    assert found.later == (None,)


COUNT = 8


def streamed(order: int, seed: int, entry: str = "sequential", learnt: float = 1.0, late: float = 0.1) -> Run:
    """Domains learnt by `learnt`; each later stage costs 0.02, and `late` more from the fifth checkpoint on."""
    noise = np.random.default_rng([order, seed]).normal(0, 0.005, COUNT)
    names = [f"d{(number + 3 * order) % COUNT}" for number in range(COUNT)]
    values = np.full((COUNT + 1, COUNT), 4.0)
    for place in range(COUNT):
        for row in range(1, COUNT + 1):
            gap = row - (place + 1)
            own = 4.0 - learnt + noise[place]
            values[row, place] = 4.0 - 0.1 * order if gap < 0 else own + 0.02 * gap + late * (gap > 0 and row > 5)
    bits = {
        name: {"base": 4.0, "learnt": float(values[place + 1, place]), "final": float(values[-1, place])}
        for place, name in enumerate(names)
    }
    return cell_of(
        suite="docs", entry=entry, title=entry.upper(), order=order, seed=seed, domains=names, bits_per_byte=bits,
        matrix={"rows": ["base", *names], "columns": names, "values": values.tolist()}, settings={"model": "small"},
    )  # fmt: skip


def alone(seed: int, learnt: float) -> Run:
    bits = {f"d{number}": {"base": 4.0, "learnt": 4.0 - learnt, "final": 4.0 - learnt} for number in range(COUNT)}
    return cell_of(
        suite="docs", entry="separate", title="SEPARATE", order=None, seed=seed, domains=list(bits),
        bits_per_byte=bits, settings={"model": "small"},
    )  # fmt: skip


def test_measures_of_a_cell_by_hand() -> None:
    one = streamed(1, 0)
    for name, key in (("continual", "learnt"), ("lc", "gained"), ("fg", "forgotten")):
        own = parts(one, name)
        bits = made_of(one)["bits_per_byte"]
        assert own == pytest.approx({d: QUANTITIES[key].at(bits[d], False) for d in own})
        assert len(own) == COUNT - (name == "fg")
    assert parts(one, "fg") == pytest.approx({d: 0.02 * (COUNT - 1 - i) + 0.1 for i, d in enumerate(one.domains[:-1])})
    assert parts(one, "forward") == pytest.approx(dict.fromkeys(one.domains[1:], 0.1))
    first = np.mean([4 - one.matrices["bits_per_byte"].values[row][0] for row in range(2, COUNT + 1)])
    assert parts(one, "backward")[one.domains[0]] == pytest.approx(first)
    # Checkpoints 2 to 5 against 6 to 8, at the gaps that both have.
    found = parts(one, "late")
    assert list(found) == ["gap 1", "gap 2", "gap 3", "gap 4"]
    assert all(value == pytest.approx(0.1, abs=0.02) for value in found.values())
    assert parts(alone(0, 0.5), "late") == parts(alone(0, 0.5), "forward") == parts(alone(0, 0.5), "fg") == {}
    assert parts(alone(0, 0.5), "continual") == pytest.approx({f"d{number}": 0.5 for number in range(COUNT)})


def test_orders_of_one_entry_are_compared_seed_by_seed() -> None:
    cells = [streamed(order, seed) for order in (0, 1, 2) for seed in range(3)]
    found = ask(cells, ClaimQuestion("sequential", "sequential", "forward", "above", orders=(1, 2), other_orders=(0,)))
    assert found.runs == ((None, 0), (None, 1), (None, 2))
    # Order 1 is better by 0.1 before the own stage, order 2 by 0.2.
    assert found.difference.value == pytest.approx(0.15)
    assert found.verdict == HOLDS
    missing = ClaimQuestion("sequential", "sequential", "forward", "above", orders=(7,), other_orders=(0,))
    assert ask(cells, missing).verdict == MISSING


def test_the_suite_has_a_page_of_claims_before_anything_is_measured(tmp_path: Path) -> None:
    judged = write_claims(find_suite("m2d2"), tmp_path / "results", tmp_path / "page.md")
    assert len(judged) == 5
    assert all(each.verdict == MISSING for each in judged)
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "smaller base model" in text
    assert "in orders 11 to 30" in text


def test_the_findings_and_their_page() -> None:
    cells = [streamed(order, seed) for order in (0, 1, 2) for seed in range(3)]
    cells += [alone(seed, 0.8 + 0.01 * seed) for seed in range(3)]
    cells += [streamed(0, seed, "small", learnt=0.7, late=0.3) for seed in range(3)]
    cells += [streamed(0, seed, "large", learnt=0.9, late=0.0) for seed in range(3)]
    claims = study_claims((0,), (1, 2), "small", "large", "Eight domains.")
    judged = judge(cells, claims.claims)
    similar, random, sizes, late, dapt = judged
    assert [finding.verdict for finding in similar.findings] == [HOLDS]
    assert random.findings[1].verdict == HOLDS
    assert [finding.verdict for finding in sizes.findings] == [FAILS, HOLDS]
    assert sizes.verdict == FAILS
    assert late.verdict == dapt.verdict == HOLDS
    assert all(finding.question.published for each in judged for finding in each.findings)
    text = claims_page(find_suite("docs"), claims.title, claims.introduction, judged, cells, judged)
    said = question(random.findings[1].question, {"sequential": "Plain"})
    assert said == "Plain in orders 1 and 2 > Plain in order 0: forward transfer (bits per byte)"
    said = question(random.findings[1].question, {"sequential": "Plain"}, {0, 2})
    assert said == "Plain in order 2 > Plain in order 0: forward transfer (bits per byte)", "those that were measured"
    assert "comparisons, by their verdict for tasks in general. There are 10 comparisons in all" in " ".join(
        text.split()
    )
    assert "**5 claims**, tested with 18 runs. Base model, unless a row names another: small." in text
    number = [each.verdict for each in judged].count(HOLDS)
    assert f" Verdict for tasks in general – holds here: {number}, does not hold here: " in text
    assert "Eight domains." in text
    assert len(study_claims((0,), (1,)).claims) == 4


def test_the_page_names_the_rows_that_the_claim_about_sizes_compares() -> None:
    text = (Path(__file__).parents[2] / "docs" / "transfer.md").read_text(encoding="utf-8")
    (sizes,) = [claim for claim in find_suite("m2d2").claims.claims if claim.sentence.startswith("Small models")]
    ((entry, other),) = {(question.entry, question.other) for question in sizes.questions}
    assert f"CPT and FG: entry `{entry}` > `{other}` |" in text


def test_a_verdict_stands_with_what_limits_it() -> None:
    """The committed grid has one pair of models, which differ in size and in training."""
    text = (Path(__file__).parents[2] / "docs" / "claims-m2d2.md").read_text(encoding="utf-8")
    (row,) = [line for line in text.splitlines() if line.startswith("| 3\\. Small models learn most")]
    assert row.count("(one pair of models; size is confounded with training)") == 2


TWELVE = [f"d{number}" for number in range(12)]


def causal(domains=TWELVE, name="plain", seed=0):
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
    text = page_of_runs(compare([run]))
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
        for seed, (name, order) in enumerate({"one": TWELVE, "two": TWELVE[::-1]}.items())
    ]
    comparison = compare(runs)
    (name, together), *others = all_orders(comparison).items()
    assert (name, together.orders, others) == ("All 2 orders of Sequential", 2, [])
    assert all_orders(compare(runs[:1])) == {}
    assert "All 2 orders of Sequential" in page_of_runs(comparison)
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
    plain, other = causal(), causal(TWELVE[::-1], "ewc", 1)
    other["methods"][0]["name"] = "ewc"
    comparison = compare([write_run(tmp_path / "plain", plain), write_run(tmp_path / "ewc", other)])
    assert all_orders(comparison) == {}


NAMES = [f"d{number}" for number in range(9)]
GAINS = [1.0] * 8 + [1.9]
"""Mean 1.1, median 1."""
LOST = [0.9] + [0.1] * 7
"""Of the first eight: mean 0.2, median 0.1."""
ALONE = [0.5] * 8 + [1.4]
"""Mean 0.6, median 0.5."""
LEVELS = {name: "wiki" if place < 3 else "papers" for place, name in enumerate(NAMES)}


class Suite(BaseSuite):
    name = "two levels"
    orders: ClassVar = {0: tuple(NAMES)}

    def __init__(self, levels: Mapping[str, str], sizes: Mapping[str, int] | None = None) -> None:
        self.levels, self.sizes = levels, sizes or {}

    @property
    def super_domains(self) -> Mapping[str, str]:
        return self.levels

    @property
    def training_bytes(self) -> Mapping[str, int]:
        return self.sizes


def streamed_cell(**own: object) -> Run:
    """Nine domains; the second is 0.4 better after the third than right after its own stage."""
    values = np.full((10, 9), 4.0)
    for place, gain in enumerate(GAINS):
        values[place + 1 :, place] -= gain
        values[9, place] += LOST[place] if place < 8 else 0.0
    values[3, 1] -= 0.4
    bits = {n: {"base": 4.0, "learnt": values[i + 1, i], "final": values[9, i]} for i, n in enumerate(NAMES)}
    keys = {
        "suite": "two levels", "entry": "sequential", "title": "Plain", "order": 0, "seed": 0, "domains": NAMES,
        "bits_per_byte": bits, "settings": {},
        "matrix": {"rows": ["base", *NAMES], "columns": NAMES, "values": values.tolist()},
    }  # fmt: skip
    return cell_of(**keys | own)


def alone_cell() -> Run:
    own = zip(NAMES, ALONE, strict=True)
    bits = {name: {"base": 4.0, "learnt": 4.0 - gain, "final": 4.0 - gain} for name, gain in own}
    return streamed_cell(entry="separate", title="Alone", order=None, bits_per_byte=bits, matrix=None)


def tables(suite: BaseSuite, *cells: Run) -> dict[str, Table]:
    return {table.title: table for table in LongStreams(suite, cells).tables()}


def row(table: Table, label: str) -> dict[str, str]:
    """Column → what it says, without arrows."""
    cells = dict(table.rows)[label]
    return {name[:-2]: f"{cell.text} {cell.detail}".strip() for name, cell in zip(table.header[1:], cells, strict=True)}


def test_medians_stand_beside_means_and_the_max_form_beside_forgetting() -> None:
    table = tables(Suite({}), streamed_cell(), alone_cell())["Transfer (bits/byte)"]
    found = row(table, "Plain, order 0")
    assert found["CPT against ZS"] == "+1.100 (+1.000)"
    assert found["CPT against DAPT"] == "+0.500 (+0.500)"
    assert found["FG"] == "+0.200 (+0.100)"
    # The second domain's best was 0.4 below its own stage: (0.9 + 0.5 + 6 × 0.1) / 8.
    assert found["FG, max form"] == "+0.250 (+0.100)"
    # Lost is lost at the last of 8, 7, …, 1 later checkpoints; the second domain's seven have gained 0.4 once.
    backward = [-0.9 / 8, (0.4 - 0.1) / 7, *(-0.1 / later for later in range(6, 0, -1))]
    mean, middle = sum(backward) / 8, sorted(backward)[3:5]
    assert found["Backward against CPT"] == f"{mean:+.3f} ({sum(middle) / 2:+.3f})".replace("-", "\u2212")
    assert found["Backward against ZS"] == f"{1 + mean:+.3f} ({1 + sum(middle) / 2:+.3f})"
    assert row(table, "Alone (DAPT)")["CPT against ZS"] == "+0.600 (+0.500)"


def test_domains_alone_are_beside_streams_of_their_own_base_model() -> None:
    """A model of another size loses something else to begin with."""
    plain = streamed_cell()
    matrix = made_of(plain)["matrix"]
    matrix["values"] = [[value + 0.3 for value in values] for values in matrix["values"]]
    small = streamed_cell(entry="small", title="Smaller", bits_per_byte={}, matrix=matrix)
    table = tables(Suite({}), plain, small, alone_cell())["Transfer (bits/byte)"]
    assert row(table, "Plain, order 0")["CPT against DAPT"] == "+0.500 (+0.500)"
    assert row(table, "Smaller, order 0")["CPT against DAPT"] == "–"


KNOWN = {"recipe.evaluation": {"blocks": 32}, "recipe.data": {"block_size": 128}}


def test_evaluation_is_counted_against_training() -> None:
    # 10 × 9 texts of 32 rows, forward only: 960 passes; 128 × 2000 tokens are 2000 rows.
    plain = streamed_cell(tokens=128 * 2000, settings=KNOWN)
    assert evaluation_share(plain) == pytest.approx(0.48)
    matrix = made_of(plain)["matrix"]
    matrix["values"][:9] = [[None] * len(NAMES)] * 9
    assert evaluation_share(like(plain, matrix=matrix, bits_per_byte={})) == pytest.approx(0.048)
    shown = GridPage(Suite({}), [plain, streamed_cell(seed=1, tokens=128 * 1000, settings=KNOWN), alone_cell()])
    (takes,) = (table for table in shown.tables() if table.title == "What each takes")
    assert takes.header[-1] == "Evaluation, of training"
    assert {name: cells[-1].text for name, cells in takes.rows} == {"Plain": "72.00 %", "Alone": "–"}, "0.48 and 0.96"
    assert "each text counts as `blocks` rows" in takes.caption


@pytest.mark.parametrize(
    "own",
    [
        {"settings": {"recipe.data": {"block_size": 128}}},
        {"settings": {"recipe.evaluation": {"blocks": 32}}},
        {"options": {"data.block_size": 64}},
        {"options": {"evaluation.stride": 64}},
        {"tasks": {"d0": {"final": {"accuracy": [0.5]}}}},
        {"tokens": 0},
        {"matrix": None, "bits_per_byte": {}},
        {"order": None},
    ],
)
def test_evaluation_whose_rows_are_not_known_is_left_out(own: dict[str, Any]) -> None:
    cell = streamed_cell(**{"tokens": 1000, "settings": KNOWN} | own)
    assert evaluation_share(cell) is None
    (takes,) = (table for table in GridPage(Suite({}), [cell]).tables() if table.title == "What each takes")
    assert takes.header[-1] == "Tokens learnt from"
    assert "Evaluation" not in takes.caption


def test_every_super_domain_has_its_mean_and_median() -> None:
    table = tables(Suite(LEVELS), streamed_cell(), alone_cell())["Transfer by super-domain (bits/byte)"]
    assert [label for label, _ in table.rows] == [
        "Plain, order 0: wiki", "Plain, order 0: papers", "Alone (DAPT): wiki", "Alone (DAPT): papers",
    ]  # fmt: skip
    assert list(row(table, "Plain, order 0: wiki").values()) == [
        "3", "+1.000 (+1.000)", "+0.633 (+0.900)", "+0.367 (+0.100)",
    ]  # fmt: skip
    assert list(row(table, "Plain, order 0: papers").values()) == [
        "6", "+1.150 (+1.000)", "+1.067 (+0.900)", "+0.100 (+0.100)",
    ]  # fmt: skip
    assert list(row(table, "Alone (DAPT): papers").values()) == ["6", "+0.650 (+0.500)", "–", "–"]


def test_domains_without_a_super_domain_leave_the_other_tables() -> None:
    wanted = ["Transfer (bits/byte)", "Do later stages forget more?"]
    some = {name: level for name, level in LEVELS.items() if name != "d4"}
    for suite in (Suite({}), Suite(some), Suite(dict.fromkeys(NAMES, "wiki")), find_suite("docs"), find_suite("m2d2")):
        assert list(tables(suite, streamed_cell())) == wanted


SIZES = dict(zip(NAMES, [200_000, 1_000_000, 249_999, *[250_000] * 5, 1_999_999], strict=True))
BY_SIZE = "What domains gain by the size of their training text (bits/byte)"


def test_gains_stand_by_the_size_of_a_domain() -> None:
    suite = Suite({}, SIZES)
    table = tables(suite, streamed_cell(), streamed_cell(order=1, seed=1), alone_cell())[BY_SIZE]
    assert table.header == ("Training text of a domain", "Domains", "Alone (DAPT) ↑", "Plain (CPT) ↑")
    assert {label: [f"{c.text} {c.detail}".strip() for c in cells] for label, cells in table.rows} == {
        "0.125 to 0.25 MB": ["2", "+0.500 (+0.500)", "+1.000 (+1.000)"],
        "0.25 to 0.5 MB": ["5", "+0.500 (+0.500)", "+1.000 (+1.000)"],
        "1 to 2 MB": ["2", "+0.950 (+0.950)", "+1.450 (+1.450)"],
    }
    better = made_of(streamed_cell())["matrix"]
    for place in range(len(NAMES)):
        better["values"][place + 1][place] = 2.0
    other = streamed_cell(order=1, seed=1, bits_per_byte={}, matrix=better)
    cells = dict(tables(suite, streamed_cell(), other)[BY_SIZE].rows)["1 to 2 MB"]
    # Over orders the one has gained (1 + 2) / 2, the other (1.9 + 2) / 2.
    assert [cell.text for cell in cells] == ["2", "+1.725"]


def test_without_sizes_or_with_sizes_that_are_alike_nothing_stands_by_size() -> None:
    other = {name: size for name, size in SIZES.items() if name != "d4"}
    for sizes in ({}, other, dict.fromkeys(NAMES, 990_000)):
        assert BY_SIZE not in tables(Suite({}, sizes), streamed_cell(), alone_cell())


def test_m2d2_knows_the_super_domains_of_its_names_before_it_knows_its_data() -> None:
    levels = find_suite("m2d2").super_domains
    chosen = [
        "cs.CL",
        "hep-ph",
        "Health_and_fitness__Exercise",
        "amazon_books",
        "robotics",
        "docs_sympy",
        "code_python",
    ]
    assert [levels[name] for name in chosen] == [
        "S2ORC", "S2ORC", "wiki", "reviews", "papers", "documentation", "code",
    ]  # fmt: skip
    assert find_suite("docs").super_domains == {}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two super-domains of one's own; one of the domains is called as a built-in one of another."""
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path / "cache"))
    for seed, name in enumerate(("law/cases", "health/notes", "health/movies")):
        (tmp_path / "own" / name).mkdir(parents=True)
        for offset, part in enumerate(("train", "valid", "test")):
            text = "\n".join(tiny.texts(20, 10 * seed + offset, words=30)) + "\n"
            (tmp_path / "own" / name / f"{part}.txt").write_text(text)
    return tmp_path / "own"


def test_the_data_says_the_super_domains_of_a_corpus_of_ones_own(corpus: Path) -> None:
    bound = find_suite("m2d2").on(overlay_of({}), corpus)
    assert bound.super_domains == {"cases": "law", "notes": "health", "movies": "health"}
    chosen = find_suite("m2d2").on(overlay_of({"suite": {"domains": ["health"]}}), corpus)
    assert set(chosen.super_domains) == {"notes", "movies"}


def test_the_data_says_the_sizes_that_were_kept(corpus: Path) -> None:
    assert find_suite("m2d2").training_bytes == {}
    options = {"duplicates": "report", "domain_bytes": 1500}
    found = find_suite("m2d2").on(overlay_of({"suite": options}), corpus)
    for name, size in found.training_bytes.items():
        rows = (found.stream_data.folder / name / "train.jsonl").read_text().splitlines()
        assert size == sum(len(json.loads(row)["text"]) for row in rows) <= 1500
    assert set(found.training_bytes) == {"cases", "notes", "movies"}


def test_a_recipe_says_the_super_domains_of_its_domains() -> None:
    domains = [{"name": "a", "path": "a.txt", "group": "law"}, {"name": "b", "path": "b.txt"}]
    recipe = parse({"model": "m", "domains": domains, "method": "sequential", "run": {"name": "x"}})
    assert RecipeTemplate(recipe, "x").super_domains == {"a": "law"}
