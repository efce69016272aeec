import re
import xml.etree.ElementTree as ElementTree

from everlearn.report.plots import Series, dot_whisker, labelled, lines
from hypothesis import given, settings
from hypothesis import strategies as st

from everlearn.report.runs import Estimate, clean

NAMES = st.text(min_size=1, max_size=20).map(clean).map(lambda name: " ".join(name.split()) or "x")
ESTIMATES = [[Estimate(0.1, 0.05, 0.2), Estimate()], [Estimate(0.3, None, 0.4), Estimate(-0.1, -0.2, 0.0)]]


def texts(svg):
    return [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]


@settings(max_examples=6, deadline=None)
@given(NAMES)
def test_wild_names_are_drawn_as_they_are(name):
    svg = labelled(dot_whisker("f", "bits/byte", [name, '#010101 id="figure_1"'], ESTIMATES), name)
    assert name in texts(svg)
    assert '#010101 id="figure_1"' in texts(svg)
    assert ElementTree.fromstring(svg).get("aria-label").split() == name.split()


def test_colours_come_from_the_page():
    svg = dot_whisker("f", "bits/byte", ["a", "b"], ESTIMATES).svg
    assert "currentColor" in svg
    assert "var(--series-1)" in svg
    assert not re.search(r"(fill|stroke): #", svg)
    assert "<style" not in svg
    assert "font-family" not in svg


def test_the_same_input_gives_the_same_bytes_and_ids_of_its_own():
    series = [Series(0, [0, 1, 2], [0.1, None, 0.3]), Series(1, [0, 1, 2], [0.2, 0.2, 0.2])]
    first, again, other = (lines(name, "loss", series, zero=True, marks=[1]).svg for name in ("f1", "f1", "f2"))
    assert first == again
    ids = [set(re.findall(r'\sid="([^"]*)"', svg)) for svg in (first, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for svg in (first, other):
        used = set(re.findall(r'(?:href="#|url\(#)([^")]*)', svg))
        assert used <= set(re.findall(r'\sid="([^"]*)"', svg))


def test_many_names_are_turned():
    svg = lines(
        "f", "loss", [Series(0, range(8), [1.0] * 8)], ticks=[f"a long domain {i}" for i in range(8)], small=True
    )
    assert "rotate(-35" in svg.svg
