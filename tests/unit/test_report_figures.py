import re
import struct
import xml.etree.ElementTree as ElementTree
import zlib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlearn.comparison.runs import clean
from everlearn.evaluation.estimate import Estimate
from everlearn.report.drawing import SERIES, Drawing, Scale, spread, tick_texts, ticks
from everlearn.report.figures import FIGURES, draw
from everlearn.report.figures.balance import Balance, DomainBalance
from everlearn.report.figures.curves import Curve, Curves
from everlearn.report.figures.dots import Dots
from everlearn.report.figures.frontiers import Frontiers, Strength
from everlearn.report.figures.heat import READABLE, Heat, Shade
from everlearn.report.figures.tradeoff import Standing, Standings, frontier
from everlearn.report.png import GAIN, LEVELS, LOSS, level, png

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
    return Standings(
        tuple(
            Standing(f"Run {i}", Estimate(0.5 - 0.01 * i, 0.4, 0.6), Estimate(0.01 * i, 0.0, 0.02 * i), i == 0)
            for i in range(count)
        ),
        "bits/byte",
    )


def test_the_picture_of_all_runs_names_them_and_says_where_better_is():
    svg = one("standing", runs(3))
    assert {"Run 0", "Run 1", "Run 2", "base model", "better: more learnt, less forgotten"} <= set(texts(svg))
    assert svg.count("<title>") == 3


@pytest.mark.parametrize("count", [3, 13, 60])
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
    svg = one("standing", runs(30))
    assert "Run 0" in texts(svg)
    assert {"30", "15"} & set(texts(svg))
    assert "Run 29" not in texts(svg)
    assert "<title>30. Run 29\nlearnt" in svg


def test_one_run_is_no_comparison():
    assert draw("standing", runs(1)) == []
    unknown = Standing("x", Estimate(), Estimate())
    assert draw("standing", Standings((unknown, unknown), "")) == []


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
    assert all(found.title and found.draw.__doc__ for found in FIGURES.values())
