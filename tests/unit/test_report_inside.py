"""Held-out curves inside the stages: the numbers that are drawn, against a slow reading of the same lines."""

import json
import re

import pytest
from report_fixture import results, write_run

from everlearn.comparison.runs import read_run
from everlearn.comparison.training_log import looks
from everlearn.report import compare, page
from everlearn.report.figures import draw, in_section
from everlearn.report.figures.curves import Curve, Curves
from everlearn.report.figures.within_stage import _line, ends

DOMAINS = ["one", "two", "three"]
SETS = [*DOMAINS, "general"]


def logged(folder, shift=0.0, every=(10, 20, 30), sets=lambda stage: SETS, title="DAS", seed=7, name=None):
    """A run whose held-out scores inside the stages are a formula; tokens are 100 a step, anew in each stage."""
    found = results(name or folder.name, title, 0.1, DOMAINS, learning=0.4) | {"seed": seed}
    write_run(folder, found, steps=30)
    with (folder / "metrics.jsonl").open("a") as file:
        for stage, domain in enumerate(DOMAINS, 1):
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
    assert [plate.caption for plate in plates] == ["general", *DOMAINS]
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
    plain = page(compare([write_run(tmp_path / "plain", results("plain", "Plain", 0.1, DOMAINS), steps=2)]))
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
