"""Figures of the page, and what is drawn of held-out curves, movement and samples, against what lies in the folder."""

import json
import re
import struct
import xml.etree.ElementTree as ElementTree
import zlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_fixture import results, write_run

from everlearn.comparison.runs import clean, read_run
from everlearn.comparison.training_log import looks
from everlearn.evaluation import Cell
from everlearn.evaluation.estimate import Estimate
from everlearn.files import write_json
from everlearn.report import compare, model_card, page
from everlearn.report.drawing import SERIES, WIDTH, Drawing, Scale, spread, tick_texts, ticks
from everlearn.report.figures import FIGURES, draw, in_section
from everlearn.report.figures.balance import Balance, DomainBalance
from everlearn.report.figures.curves import Curve, Curves
from everlearn.report.figures.dots import Dots
from everlearn.report.figures.frontiers import Frontiers, Strength
from everlearn.report.figures.heat import GAIN, LEVELS, LOSS, READABLE, Heat, Shade, level, png
from everlearn.report.figures.registry import standalone
from everlearn.report.figures.tradeoff import Tradeoff, TradeoffPoint, frontier
from everlearn.report.figures.weight_movement import layer_label
from everlearn.report.figures.within_stage import _line, ends
from everlearn.tasks.samples import samples_path

NAMES = st.text(min_size=1, max_size=20).map(clean).map(lambda name: " ".join(name.split()) or "x")
ESTIMATES = [[Estimate(0.1, 0.05, 0.2), Estimate()], [Estimate(0.3, None, 0.4), Estimate(-0.1, -0.2, 0.0)]]


def texts(svg):
    return [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]


def one(name, data):
    (plate,) = draw(name, data)
    return plate.svg


@settings(max_examples=20, deadline=None)
@given(NAMES)
def test_wild_names_are_drawn_as_they_are(name):
    svg = one("dots", Dots("bits/byte", [name, '"><script id="x'], ESTIMATES, name))
    assert name in texts(svg)
    assert '"><script id="x' in texts(svg)
    assert ElementTree.fromstring(svg).get("aria-label").split()[: len(name.split())] == name.split()


def test_colours_and_fonts_come_from_the_page():
    svg = one("dots", Dots("bits/byte", ["a", "b"], ESTIMATES, "Caption."))
    assert "fill:" not in "".join(re.findall(r"<text[^>]*>", svg)), "texts have the colour of the page"
    assert "var(--series-1)" in svg
    assert not re.search(r"#[0-9a-f]{3}", svg)
    assert "font-family" not in svg
    assert " id=" not in svg


def test_the_same_input_gives_the_same_bytes():
    data = Curves(
        "loss", [Curve(0, [0, 1, 2], [0.1, None, 0.3]), Curve(1, [0, 1, 2], [0.2] * 3)], "A.", zero=True, marks=[1]
    )
    assert one("curves", data) == one("curves", data)


def test_a_missing_value_interrupts_its_line():
    svg = one("curves", Curves("loss", [Curve(0, [0, 1, 2, 3], [0.1, 0.2, None, 0.3])], "A."))
    line = re.search(r'<path d="(M[^"]*)" style="fill:none;stroke:var\(--series-0\)', svg).group(1)
    assert re.sub(r"[-\d.,]+", "", line) == "MLM"


def test_many_names_are_turned_and_thinned():
    long = [f"a long domain {i}" for i in range(8)]
    svg = one("curves", Curves("loss", [Curve(0, range(8), [1.0] * 8)], "A.", ticks=long))
    assert svg.count("rotate(-40)") == 8
    many = [f"domain {i}" for i in range(237)]
    svg = one("curves", Curves("loss", [Curve(0, range(237), [1.0] * 237)], "A.", ticks=many))
    assert svg.count("rotate(-40)") <= 15
    assert "domain 236" in texts(svg)


def test_runs_after_the_sixth_are_grey():
    svg = one("curves", Curves("loss", [Curve(rank, [0, 1], [rank, rank]) for rank in range(10)], "A."))
    assert set(re.findall(r"var\(--series-(\d)\)", svg)) == {str(rank) for rank in range(SERIES)}
    assert "stroke:var(--faint);stroke-width:0.7" in svg


@settings(deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 10))
def test_ticks_are_round_and_inside(low, span, count):
    found = ticks(low, low + span, count)
    slack = 1e-9 * (abs(low) + span)
    assert all(low - slack <= value <= low + span + slack for value in found)
    assert len(found) <= count + 1
    if len(found) > 1:
        step = found[1] - found[0]
        assert any(step / 10**power == pytest.approx(round(step / 10**power), rel=1e-3) for power in range(-8, 8))
    assert len(tick_texts(found)) == len(found)


def test_an_axis_of_integers_has_no_halves():
    assert tick_texts(ticks(0, 2, 4, integer=True)) == ["0", "1", "2"]
    assert tick_texts(ticks(0, 2, 4)) == ["0.0", "0.5", "1.0", "1.5", "2.0"]
    assert ticks(0, 1000, 4, integer=True) == ticks(0, 1000, 4)
    trials = Curves("score", [Curve(0, (1, 2, 3, 4), (0.1, 0.2, 0.3, 0.4))], "Caption.", x_label="trials")
    assert {"1", "2", "3", "4"} <= set(texts(one("curves", trials)))
    assert "1.5" not in texts(one("curves", trials))


def test_a_page_enlarges_a_figure_a_little_at_most_and_a_picture_of_its_own_has_its_size():
    (drawn,) = draw("curves", Curves("score", [Curve(0, (1, 2), (0.1, 0.2))], "Caption."))
    assert f'style="max-width: {1.25 * WIDTH:g}px"' in drawn.svg
    assert "max-width" not in standalone(drawn)


def test_a_range_holds_every_value_and_zero():
    low, high = spread([0.2, None, 0.5])
    assert low == 0.0
    assert high > 0.5
    assert spread([]) == (0.0, 1.0)
    assert spread([-1.0, 1.0])[0] < -1.0
    assert Scale(0, 2, 10, 20)(1) == 15


# Pictures of big tables.


def decoded(data):
    """Width, height and palette entries of a PNG of four bits a pixel, read as the standard says."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, place = {}, 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        assert struct.unpack(">I", data[place + 8 + length : place + 12 + length])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        place += 12 + length
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour) == (4, 3)
    raw, stride = zlib.decompress(chunks[b"IDAT"]), 1 + (width + 1) // 2
    rows = [raw[stride * i + 1 : stride * (i + 1)] for i in range(height)]
    assert all(raw[stride * i] == 0 for i in range(height))
    return [[(row[j // 2] >> (0 if j % 2 else 4)) & 15 for j in range(width)] for row in rows], chunks


@settings(deadline=None)
@given(st.integers(1, 9).flatmap(lambda n: st.lists(st.lists(st.integers(0, 15), min_size=n, max_size=n), min_size=1)))
def test_a_picture_holds_every_cell(levels):
    assert decoded(png(levels))[0] == levels


def test_the_palette_tells_gain_from_loss_by_hue_and_size_by_strength():
    _, chunks = decoded(png([[0, 1]]))
    colours = [tuple(chunks[b"PLTE"][3 * i : 3 * i + 3]) for i in range(16)]
    alpha = list(chunks[b"tRNS"])
    changes = [step / LEVELS for step in range(1, LEVELS + 1)]
    for sign, colour in ((1, LOSS), (-1, GAIN)):
        entries = [level(sign * change, 1.0) for change in changes]
        assert [colours[entry] for entry in entries] == [colour] * LEVELS
        assert [alpha[entry] for entry in entries] == sorted({alpha[entry] for entry in entries})
    assert (level(0.0, 1.0), alpha[1]) == (1, 0)
    assert level(None, 1.0) == 0
    assert level(9.0, 1.0) == level(1.0, 1.0)
    assert level(1.0, 0.0) == 1


def shades(rows, columns):
    return Heat("t", "after", [f"c{j}" for j in range(columns)], [
        (f"r{i}", [Shade((i - j) / 10, f"{i - j}", own=i == j) for j in range(columns)]) for i in range(rows)
    ], note="The numbers are elsewhere.")  # fmt: skip


def test_a_small_table_has_its_numbers_and_a_big_one_is_a_picture():
    small, big = one("heat", shades(20, 20)), one("heat", shades(20, 21))
    assert READABLE == 20 * 20
    assert small.count("<td") == 400
    assert small.count('own"') == 20
    assert "<td" not in big
    assert 'href="data:image/png;base64,' in big
    assert "The numbers are elsewhere." in big


def test_one_wild_column_does_not_make_the_others_pale():
    rows = [("r", [Shade(0.1 * (j % 10)) for j in range(500)] + [Shade(100.0)])]
    svg = one("heat", Heat("t", "run", [str(j) for j in range(501)], rows))
    assert "The strongest colour is a change of 0.900 or more." in svg


def test_a_picture_grows_with_its_cells_and_stays_small():
    # Half a byte a cell at most, and a third more as text; names and marks are bounded by the size on paper.
    assert len(one("heat", shades(237, 236))) < 0.7 * 237 * 236 + 20_000


# The picture of all runs.


def test_the_frontier_is_what_no_other_run_beats():
    points = [(0.1, 0.5), (0.2, 0.4), (0.05, 0.3), (0.3, 0.6), (0.3, 0.55), (-0.1, -0.2)]
    assert frontier(points) == [(-0.1, -0.2), (0.0, 0.0), (0.05, 0.3), (0.1, 0.5), (0.3, 0.6)]
    beaten = [p for p in points if any(q != p and q[0] <= p[0] and q[1] >= p[1] for q in [*points, (0.0, 0.0)])]
    assert not set(beaten) & set(frontier(points))


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), max_size=12))
def test_the_frontier_beats_or_holds_every_point(points):
    best = frontier(points)
    assert all(any(f <= p[0] and learnt >= p[1] for f, learnt in best) for p in [*points, (0.0, 0.0)])
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(best))


def runs(count):
    return Tradeoff(
        tuple(
            TradeoffPoint(f"Run {i}", Estimate(0.5 - 0.01 * i, 0.4, 0.6), Estimate(0.01 * i, 0.0, 0.02 * i), i == 0)
            for i in range(count)
        ),
        "bits/byte",
    )


def test_the_picture_of_all_runs_names_them_and_says_where_better_is():
    svg = one("tradeoff", runs(3))
    assert {"Run 0", "Run 1", "Run 2", "base model", "better: more learnt, less forgotten"} <= set(texts(svg))
    assert svg.count("<title>") == 3


@pytest.mark.parametrize("count", [3, 13, 36])
def test_every_line_of_a_frontier_is_named_or_said_to_have_no_room(count):
    """All lines begin and end at the same places, as those of penalties from no strength to the largest do."""
    lines = [
        (f"line {i}", [Strength("0", 0.99, 0.98), Strength("1", 0.95 - 0.03 * i, 0.9 - 0.04 * i), Strength("2", 0, 0)])
        for i in range(count)
    ]
    (made,) = draw("frontiers", Frontiers(lines, "forgetting left"))
    named = [text for text in texts(made.svg) if text.startswith("line")]
    _, _, without = made.caption.partition("No room for the name of: ")
    assert {*named, *filter(None, without.removesuffix(".").split(", "))} == {name for name, _ in lines}
    assert "plain training" in texts(made.svg)


def test_many_runs_are_named_by_their_rank():
    svg = one("tradeoff", runs(30))
    assert "Run 0" in texts(svg)
    assert {"30", "15"} & set(texts(svg))
    assert "Run 29" not in texts(svg)
    assert "<title>30. Run 29\nlearnt" in svg


def test_one_run_is_no_comparison():
    assert draw("tradeoff", runs(1)) == []
    unknown = TradeoffPoint("x", Estimate(), Estimate())
    assert draw("tradeoff", Tradeoff((unknown, unknown), "")) == []


def test_where_nothing_was_measured_nothing_is_drawn():
    empty = Drawing(1, 1)
    assert empty.svg("").count("<path") == 0
    assert draw("dots", Dots("", [], [], "")) == []
    assert draw("curves", Curves("", [Curve(0, [0], [None])], "")) == []
    assert draw("heat", Heat("", "", [], [])) == []
    assert draw("balance", Balance((DomainBalance("a", None, None),), "")) == []


@pytest.mark.parametrize("count", [3, 40, 41, 236])
def test_every_domain_of_a_run_has_its_two_ends(count):
    found = Balance(tuple(DomainBalance(f"d{i}", 0.5, 0.5 - i / 100) for i in range(count)), "bits/byte")
    svg = one("balance", found)
    assert svg.count('class="ring"') == svg.count('class="dot"') == count + 1  # and the legend's
    assert ("d2" in texts(svg)) == (count <= 40)
    assert "at the end" in texts(svg)


def test_every_figure_says_what_it_shows():
    assert all(found.draw.__doc__ for found in FIGURES.values())


THREE = ["one", "two", "three"]
SETS = [*THREE, "general"]


def logged(folder, shift=0.0, every=(10, 20, 30), sets=lambda stage: SETS, title="DAS", seed=7, name=None):
    """A run whose held-out scores inside the stages are a formula; tokens are 100 a step, anew in each stage."""
    found = results(name or folder.name, title, 0.1, THREE, learning=0.4) | {"seed": seed}
    write_run(folder, found, steps=30)
    with (folder / "metrics.jsonl").open("a") as file:
        for stage, domain in enumerate(THREE, 1):
            for step in every:
                scores = {name: score(stage, step, name) + shift for name in sets(stage)}
                line = {"stage": stage, "domain": domain, "step": step, "tokens": 100 * step, "bits_per_byte": scores}
                file.write(json.dumps(line) + "\n")
    return folder


def score(stage, step, name):
    return 2 + 0.1 * stage - 0.003 * step + 0.01 * len(name)


def test_lines_count_tokens_through_the_stream_and_start_at_the_base_model(tmp_path):
    run = read_run(logged(tmp_path / "a"))
    found = looks(run)
    assert [(look.stage, look.step, look.tokens) for look in found] == [
        (stage, step, 3000 * (stage - 1) + 100 * step) for stage in (1, 2, 3) for step in (10, 20, 30)
    ]
    assert ends(found) == [3000, 6000, 9000]
    comparison = compare([tmp_path / "a"])
    line = _line(comparison.pools[0], [found], "two", 1000.0, 0)
    cells = run.results["matrices"]["bits_per_byte"]["cells"]
    base = next(value for row, column, value, *_ in cells if (row, column) == ("base", "two"))
    wanted = [(0.0, base)] + [
        (3 * (stage - 1) + step / 10, score(stage, step, "two")) for stage in (1, 2, 3) for step in (10, 20, 30)
    ]
    assert list(zip(line.x, line.y, strict=True)) == [(pytest.approx(x), pytest.approx(y)) for x, y in wanted]
    assert (line.low, line.high) == ((), ())


def test_seeds_of_one_recipe_are_one_line_with_a_band_over_the_moments_that_all_have(tmp_path):
    folders = [logged(tmp_path / "a", seed=1, name="x"), logged(tmp_path / "b", 0.3, every=(10, 30), seed=2, name="x")]
    comparison = compare(folders)
    (pool,) = comparison.pools
    line = _line(pool, [looks(run) for run in pool.runs], "one", 1.0, 0)
    moments = [(stage, step) for stage in (1, 2, 3) for step in (10, 30)]
    assert line.x[1:] == pytest.approx([3000 * (stage - 1) + 100 * step for stage, step in moments])
    assert line.y[1:] == pytest.approx([score(*moment, "one") + 0.15 for moment in moments])
    assert line.low[1:] == pytest.approx([score(*moment, "one") for moment in moments])
    assert line.high[1:] == pytest.approx([score(*moment, "one") + 0.3 for moment in moments])
    plates = in_section("inside", comparison)
    assert [plate.caption for plate in plates] == ["general", *THREE]
    assert all(plate.svg.count("opacity:0.2") == 1 for plate in plates)
    assert "its band goes from the lowest seed to the highest" in page(comparison)


def test_a_line_is_interrupted_where_a_set_was_not_scored(tmp_path):
    folder = logged(tmp_path / "a", sets=lambda stage: ["one", "general"] if stage != 2 else ["two", "general"])
    run = read_run(folder)
    line = _line(compare([folder]).pools[0], [looks(run)], "one", 1.0, 0)
    assert [value is None for value in line.y] == [False] * 4 + [True] + [False] * 3
    svg = draw("curves", Curves("", [line], "A."))[0].svg
    path = re.search(r'<path d="(M[^"]*)" style="fill:none;stroke:var\(--series-0\)', svg).group(1)
    assert path.count("M") == 2


def test_a_line_that_a_resumed_stage_wrote_again_counts(tmp_path):
    folder = logged(tmp_path / "a")
    again = {"stage": 2, "step": 20, "tokens": 2000, "bits_per_byte": {"one": 9.0}}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(again) + "\n" + json.dumps(again | {"step": 21, "tokens": None}) + "\n")
    found = looks(read_run(folder))
    assert [look.scores["one"] for look in found if (look.stage, look.step) == (2, 20)] == [9.0]
    assert len(found) == 9


def test_rules_stand_where_domains_end_in_all_runs_and_nowhere_else(tmp_path):
    same = compare([logged(tmp_path / "a"), logged(tmp_path / "b", 0.1, title="EWC")])
    assert in_section("inside", same)[0].svg.count("stroke-dasharray:2 3") == 2
    shorter = compare([tmp_path / "a", logged(tmp_path / "c", 0.1, every=(10, 20), title="KD")])
    assert "stroke-dasharray:2 3" not in in_section("inside", shorter)[0].svg


def test_without_scores_inside_the_stages_each_domain_stands_in_the_open(tmp_path):
    plain = page(compare([write_run(tmp_path / "plain", results("plain", "Plain", 0.1, THREE), steps=2)]))
    assert "<h3>Each domain after every stage</h3>" in plain
    assert "Held-out text while" not in plain
    with_lines = page(compare([logged(tmp_path / "a")]))
    assert "<summary>Each domain after every stage</summary>" in with_lines
    assert "dashed line is where one domain ends" in with_lines


def test_a_band_of_nothing_is_no_band():
    line = Curve(0, [0, 1, 2], [1.0, None, 2.0], [0.5, None, 1.5], [1.5, None, 2.5])
    svg = draw("curves", Curves("", [line], "A."))[0].svg
    band = re.search(r'<path d="([^"]*)" style="fill:var\(--series-0\)[^"]*opacity:0.2', svg).group(1)
    assert (band.count("M"), band.count("z")) == (2, 2)
    assert "opacity" not in draw("curves", Curves("", [Curve(0, [0, 1], [1.0, 2.0])], "A."))[0].svg


DOMAINS = ["one", "two"]
PASSAGE = ["The ", "cat", " sat on <b>the</b> ", "mat", "."]


def blanks(row, first, second, likely=(0.5, 0.25, 0.125), truth=(0.2, 0.02)):
    return Cell(
        "samples", "one", row,
        {"likely": np.array([likely, likely]).T, "truth": np.array(truth)},
        {"text": np.array([0, 0])},
        {"form": "blanks", "shown": [PASSAGE]},
        texts=("\n".join(first), "\n".join(second)),
    )  # fmt: skip


def written(row, text):
    shown = [["Once upon a time ", "there was a king.", ""]]
    given = {"likely": np.zeros((3, 1)), "truth": np.zeros(1)}
    facts = {"form": "continuation", "shown": shown}
    return Cell("samples", "one", row, given, {"text": np.array([0])}, facts, texts=(text,))


def run(folder, cells=(), title="DAS", forgetting=0.1):
    write_run(folder, results(folder.name, title, forgetting, DOMAINS), steps=1)
    for row, cell in enumerate(cells):
        cell.save(samples_path(folder / "evaluation", row, "one"))
    return folder


def plain(html):
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


@pytest.fixture
def filled(tmp_path):
    base = blanks("base", ("dog", "cat", "a"), ("mat", "rug", "it"))
    own = blanks("one", ("cat", "dog", "a"), ("rug", "mat", "it"), truth=(0.5, 0.021))
    end = blanks("two", ("dog", "<i>", "a"), ("mat", "rug", "it"), truth=(0.09, 0.001))
    return run(tmp_path / "run", (base, own, end))


def test_a_run_shows_the_base_model_and_its_stages_side_by_side(filled):
    (plate,) = in_section("samples", compare([filled]))
    head = re.findall(r'<th scope="col">([^<]*)</th>', plate.svg)
    assert head == ["true word", "base model", "after one", "after two"]
    assert plain(plate.svg).startswith("one The cat 1 sat on &lt;b&gt;the&lt;/b&gt; mat 2 .")
    rows = [re.findall(r"<td.*?</td>", row) for row in re.findall(r"<tr><th scope=\"row\">.*?</tr>", plate.svg)]
    assert [plain(cell) for cell in rows[0]] == [
        "dog 50 % cat / a true: 20 %", "cat ✓ 50 % dog / a true: 50 %", "dog 50 % &lt;i&gt; / a true: 9.0 %",
    ]  # fmt: skip
    assert ["<b>" in cell for cell in rows[0]] == [False, True, False]
    # Twice as likely, at most half as likely; and 2.0 % to 2.1 % is no change.
    classes = [[re.match(r'<td(?: class="(\w+)")?', cell).group(1) for cell in row] for row in rows]
    assert classes == [[None, "gain", "loss"], [None, None, "loss"]]


def test_of_several_runs_each_ones_end_is_shown_and_the_stages_of_the_best(filled, tmp_path):
    other = run(tmp_path / "other", [blanks(row, ("x", "y", "z"), ("x", "y", "z")) for row in "abc"], "EWC", 0.3)
    comparison = compare([other, filled])
    (plate,) = in_section("samples", comparison)
    head = re.findall(r'<th scope="col">([^<]*)</th>', plate.svg)
    assert head == ["true word", "base model", "DAS, at the end", "EWC, at the end"]
    (stages,) = in_section("samples by stage", comparison)
    assert "after one" in stages.svg
    assert "<h3>one: DAS</h3>" in stages.svg


def test_what_is_written_stands_below_the_truth_and_new_words_are_bold(tmp_path):
    texts = ("there was a cat", "there was a queen & a cat", "there was a cat")
    folder = run(tmp_path / "run", [written(str(row), text) for row, text in enumerate(texts)])
    (plate,) = in_section("samples", compare([folder]))
    rows = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', plate.svg)
    assert rows == [
        ("what follows", "there was a king."),
        ("base model", "there was a cat"),
        ("after one", "there was a <b>queen &amp; a</b> cat"),
        ("after two", "there was a cat"),
    ]


def test_other_texts_and_damaged_files_cost_a_column_and_not_the_page(filled):
    samples_path(filled / "evaluation", 1, "one").write_bytes(b"x" * 40)
    (plate,) = in_section("samples", compare([filled]))
    assert re.findall(r'<th scope="col">([^<]*)</th>', plate.svg)[1:] == ["base model", "after two"]
    written("two", "else").save(samples_path(filled / "evaluation", 2, "one"))
    assert in_section("samples", compare([filled])) == []
    assert "What the model says" not in page(compare([filled]))


def test_control_characters_do_not_reach_the_page(tmp_path):
    cells = [written(str(row), f"a\u202e{row}") for row in range(3)]
    assert "\u202e" not in page(compare([run(tmp_path / "run", cells)]))


def test_no_text_of_the_samples_is_in_the_model_card(filled):
    assert "sat on" in page(compare([filled]))
    card = model_card(json.loads((filled / "results.json").read_text()), "a: b", folder=filled)
    assert "sat on" not in card


# Which layers moved.


def parts(change, moved=10, norm=2.0):
    layers = (("embeddings", "embeddings"), ("layers.0", "attention"), ("layers.0", "feed-forward"), ("head", "head"))
    names = ("layer", "part", "change", "norm", "moved", "count", "after", "product", "largest")
    found = [(*place, change * i, norm, moved, 10, norm, norm**2, change) for i, place in enumerate(layers, 1)]
    return [dict(zip(names, values, strict=True)) for values in found]


def moves(folder, *stages):
    for stage, (before, base) in enumerate(stages, 1):
        path = folder / "evaluation" / f"stage-{stage:02d}" / "_moved.json"
        write_json(path, {"since_before": before, "since_base": base})
    return folder


def test_layers_are_rows_stages_are_columns_and_the_end_is_beside_them(tmp_path):
    folder = moves(run(tmp_path / "run"), (parts(0.1), parts(0.1)), (parts(0.2, moved=5), parts(0.3)))
    (plate,) = in_section("layers", compare([folder]))
    rows = re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', plate.svg)
    cells = {name: [plain(cell) for cell in re.findall(r"<td.*?</td>", row)] for name, row in rows}
    # A layer's change is the norm over its parts: √(2² + 3²) / √(2² + 2²) of what a part changed.
    layer = np.hypot(2, 3) / np.hypot(2, 2)
    assert cells["embeddings"] == ["5.0 %", "10.0 % (50 % of it)", "15.0 %"]
    assert cells["layer 1"] == [f"{10 * layer:.1f} %", f"{20 * layer:.1f} % (50 % of it)", f"{30 * layer:.1f} %"]
    assert list(cells) == ["embeddings", "layer 1", "head"]
    (detail,) = in_section("layers by stage", compare([folder]))
    assert "attention" in plain(detail.svg)


def test_runs_are_side_by_side_and_seeds_are_a_mean(tmp_path):
    one = moves(run(tmp_path / "a", title="DAS"), *[(parts(0.1), parts(0.1))] * 2)
    two = moves(run(tmp_path / "b", title="EWC"), *[(parts(0.3), parts(0.3))] * 2)
    (plate,) = in_section("layers", compare([one, two]))
    assert "DAS</th>" in plate.svg
    assert "EWC</th>" in plate.svg
    seeds = [results("x", "DAS", 0.1, DOMAINS) | {"seed": seed} for seed in (1, 2)]
    folders = [write_run(tmp_path / f"s{seed}", found, steps=1) for seed, found in enumerate(seeds)]
    for folder, change in zip(folders, (0.1, 0.3), strict=True):
        moves(folder, *[(parts(change), parts(change))] * 2)
    comparison = compare(folders)
    assert len(comparison.pools) == 1
    (plate,) = in_section("layers", comparison)
    assert plain(plate.svg).count("10.0 %") >= 3  # (5 + 15) / 2


def test_what_did_not_move_and_what_grew_is_said(tmp_path):
    still = moves(run(tmp_path / "still"), *[(parts(0.0, moved=0), parts(0.0, moved=0))] * 2)
    plates = in_section("layers", compare([still]))
    assert "the base model did not move" in plates[-1].svg
    grown = moves(run(tmp_path / "grown"), (parts(0.1), parts(0.1)), (None, None))
    plates = in_section("layers", compare([grown]))
    assert "the model grew" in plates[-1].svg
    assert "–" in plates[0].svg


def test_a_damaged_file_costs_the_picture_and_not_the_page(tmp_path):
    folder = moves(run(tmp_path / "run"), (parts(0.1), parts(0.1)))
    for content in ("[]", "null", "x", '{"since_before": [1], "since_base": null}', '{"since_before": [{}]}'):
        (folder / "evaluation" / "stage-01" / "_moved.json").write_text(content)
        assert "Which layers moved" not in page(compare([folder]))


def test_layers_are_named_as_people_count():
    assert [layer_label(layer) for layer in ("layers.0", "decoder.11", "embeddings", "other")] == [
        "layer 1", "decoder 12", "embeddings", "last norm",
    ]  # fmt: skip
