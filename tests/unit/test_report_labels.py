"""Names beside points: each point has one, and none covers another or a point."""

import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlearn.evaluation.estimate import Estimate
from everlearn.report.drawing import SIZE, Drawing, width_of
from everlearn.report.figures import draw
from everlearn.report.figures.labels import Frame, Point, draw_names
from everlearn.report.figures.tradeoff import NARROW, WIDE, Standing, Standings

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
        Standing(
            f"Method {i} (strength=0.{i})",
            Estimate(0.4 + apart * i, 0.39 + apart * i, 0.41 + apart * i),
            Estimate(0.1 + apart * (i % 3), 0.07, 0.16 + apart),
        )
        for i in range(count)
    )
    (made,) = draw("standing", Standings(runs, "bits/byte"))
    for svg in (made.svg, made.narrow):
        shown = texts(svg)
        assert all(any(text.startswith(f"Method {i} ") for text in shown) for i in range(count)), shown
        assert "base model" in shown


def test_a_name_without_any_room_stands_under_the_picture(monkeypatch):
    monkeypatch.setattr("everlearn.report.figures.tradeoff.WIDE", Frame(300, 120, 40, 290, 40, 60))
    runs = tuple(Standing(f"run {i}", Estimate(0.4), Estimate(0.1)) for i in range(9))
    (made,) = draw("standing", Standings(runs, ""))
    assert float(re.search(r'viewBox="0 0 300 (\S+)"', made.svg).group(1)) > 120
    assert {f"run {i}" for i in range(9)} <= set(texts(made.svg))
