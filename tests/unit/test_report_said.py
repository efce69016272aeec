"""The page's pictures of what moved and of what is said, against what lies in the run's folder."""

import json
import re

import numpy as np
import pytest
from report_fixture import results, write_run

from everlearn.evaluation import Cell
from everlearn.files import write_json
from everlearn.report import compare, model_card, page
from everlearn.report.figures import in_section
from everlearn.report.figures.weight_movement import said as named
from everlearn.tasks.samples import samples_path

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
    assert [named(layer) for layer in ("layers.0", "decoder.11", "embeddings", "other")] == [
        "layer 1", "decoder 12", "embeddings", "last norm",
    ]  # fmt: skip
