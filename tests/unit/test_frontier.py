"""`benchmarks/frontier`: its rows, the rule of choice, its pages; and what `everlearn init` writes."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from everlearn.commands.recommendation import METHOD
from everlearn.commands.yaml_text import method_text
from everlearn.comparison.runs import Run
from everlearn.errors import RunError
from grid_cells import cell_of, like, made_of, write

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks/frontier"
ROWS = """
both:
  sequential: [{name: sequential}]
  ewc: [{name: ewc, strength: [10, 100]}]
  ewc+wise_ft:
    - - {name: ewc, strength: 10}
      - {name: wise_ft, alpha: [0.5, 0.75]}
  replay: [{name: replay, share: 0.05}]
  merged: [{name: merged}]
masked: {}
causal: {}
penalties:
  l2: [{name: l2, strength: 1}]
"""


class Scripts(NamedTuple):
    rows: ModuleType
    choice: ModuleType
    pages: ModuleType


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Scripts:
    monkeypatch.syspath_prepend(str(FOLDER))
    return Scripts(*(importlib.import_module(name) for name in Scripts._fields))


def cell(entry: str, seed: int, kept: float, forgotten: float, drift: float, **more: Any) -> Run:
    """Plain training learns 1, forgets 0.5 and drifts 0.4 bits per byte."""
    bits = {"base": 3.0, "learnt": 3.0 - kept, "final": 3.0 - kept + 0.5 * forgotten}
    last = bits | {"final": bits["learnt"]}
    return cell_of(
        suite="frontier", entry=entry, title=entry, order=0, seed=seed, settings={}, domains=["a", "b"],
        tokens=100, extra_tokens=0, seconds=1.0,
        bits_per_byte={"a": bits, "b": last, "general": {"base": 2.0, "final": 2.0 + 0.4 * drift}}, **more,
    )  # fmt: skip


def unordered(cell: Run) -> Run:
    """The same of one model for each domain, averaged."""
    bits = made_of(cell)["bits_per_byte"]
    return like(cell, order=None, bits_per_byte=bits | {"b": bits["a"]})


def test_a_list_of_values_is_a_way_each(scripts: Scripts) -> None:
    found = list(scripts.rows.ways([[{"name": "ewc", "strength": [1, 2]}, {"name": "wise_ft", "alpha": [0.5, 0.75]}]]))
    assert [(way[0]["strength"], way[1]["alpha"]) for way in found] == [(1, 0.5), (1, 0.75), (2, 0.5), (2, 0.75)]
    assert list(scripts.rows.ways([{"name": "kd"}])) == [[{"name": "kd"}]]


@pytest.mark.parametrize("stream", ["masked", "causal"])
def test_every_row_is_one_that_a_sweep_reads(scripts: Scripts, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    monkeypatch.chdir(ROOT)
    rows = scripts.rows.rows_of(stream)
    known = scripts.rows.entries(rows, FOLDER / f"{stream}.yaml")
    names = [name for each in known.values() for name in each]
    assert len(names) == len(set(names)) == sum(map(len, rows.values()))
    assert next(iter(known["sequential"])) == "sequential"
    assert {way[0]["source"] for way in rows["replay_general"]} == {"general"}
    assert ("das" in rows) == (stream == "masked")
    shares = [way[0]["share"] for way in rows["replay_earlier"]]
    assert sorted(shares) == [0.01, 0.05, 0.25]


def test_a_key_with_a_point_changes_the_recipe(scripts: Scripts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    rows = list(scripts.rows.ways([{"name": "ewc", "strength": 10, "train.learning_rate": [0.001, 0.002]}]))
    assert scripts.rows.parts_of(rows[1]) == ([{"name": "ewc", "strength": 10}], {"train.learning_rate": 0.002})
    assert scripts.rows.as_methods(rows[1:]) == '{"name": "ewc", "strength": 10}'
    assert scripts.rows.sets_of(rows[1]) == ("train.learning_rate=0.002",)
    found = scripts.rows.entries({"ewc": rows}, FOLDER / "causal.yaml")["ewc"]
    assert list(found) == ["ewc-strength10-learning_rate0.001", "ewc-strength10-learning_rate0.002"]


def test_the_best_reaches_the_aim_and_loses_least_else_it_is_nearest(scripts: Scripts) -> None:
    of = scripts.choice.AgainstPlain
    meets, meets_less, all_learnt = of(0.98, 0.2, 0.2), of(1.2, 0.25, 0.2), of(1.2, 0.8, 0.32)
    short, far = of(0.97, 0.1, 0.1), of(0.3, 0.0, 0.0)
    ways = {"far": [far], "short": [short], "all": [all_learnt], "less": [meets_less], "meets": [meets]}
    assert scripts.choice.best(ways) == ["meets", "less", "short", "all", "far"]
    assert short.distance == pytest.approx(0.01)
    assert of(1.0, 0.55, 0.65).distance == pytest.approx(0.5)
    assert of(0.98, 0.25, 0.25).meets
    assert not of(0.99, 0.25, 0.26).meets
    # On two streams: what reaches it on one alone does not.
    assert scripts.choice.best({"one": [meets, all_learnt], "both": [meets_less, meets_less]}) == ["both", "one"]


def test_only_files_lie_in_the_folder_of_the_corpora(scripts: Scripts) -> None:
    """A suite's own text has an address, and no folder is put before it."""
    found = dict(change.split("=", 1) for change in scripts.rows.places(FOLDER / "masked.yaml", Path("corpora")))
    assert found["domains.0.path"] == "corpora/domains/yelp_restaurants/train.jsonl.gz"
    assert found["general.validation"] == "corpora/D0/wikipedia/validation.jsonl.gz"
    assert set(found) == {
        f"{group}.{part}" for group in ("domains.0", "domains.2", "general") for part in ("path", "validation")
    }


def test_pages_say_what_was_chosen_and_recommend_once_the_candidates_have_all_seeds(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "rows.yaml").write_text(ROWS)
    pages, results = tmp_path / "pages", tmp_path / "results"
    ways = {  # the shares of the first seed; the fewer steps of some rows are in their names
        "sequential": (1.0, 1.0, 1.0),
        "ewc-strength10-max_steps96": (1.0, 0.5, 0.5),
        "ewc-strength100-max_steps96": (0.99, 0.2, 0.2),
        "ewc-strength10-wise_ft-alpha0.5": (0.5, 0.1, 0.1),
        "ewc-strength10-wise_ft-alpha0.75": (0.9, 0.3, 0.1),
        "replay-share0.05": (1.0, 0.1, 0.1),
        "l2-strength1": (0.7, 0.7, 0.7),
    }

    def make(seed: int) -> None:
        for stream in ("masked", "causal"):
            made = [
                cell(name, seed, *shares, old_data=name.startswith("replay"), options={"train.max_steps": 96})
                for name, shares in ways.items()
            ]
            write(results / stream, *[*made, unordered(cell("merged", seed, 1.0, 0.6, 0.3))])

    def written() -> dict[str, Any]:
        scripts.pages.write(pages, FOLDER, results, tmp_path / "rows.yaml")
        return dict(json.loads((pages / "frontier.json").read_text()))

    make(1)
    found = written()
    assert found["recommended"] is None
    chosen = {row: data["entry"] for row, data in found["streams"]["causal"]["rows"].items()}
    assert chosen == {
        "ewc": "ewc-strength100",
        "ewc+wise_ft": "ewc-strength10-wise_ft-alpha0.75",
        "replay": "replay-share0.05",
        "l2": "l2-strength1",
    }
    page = (pages / "frontier-causal.md").read_text()
    assert "is reached by `ewc`" in page, "replay keeps old data"
    assert "learns 1.000 bits per byte of its domains, forgets 0.500" in page
    assert "Both are at least 0.25" in page
    assert "| 99 |" in page
    once = page.partition("## Verdict")[0]
    assert "| merged | merged | 1 | no | 120 | 1.00× | 1.00× | 100 | 70 | – | 30 |  |" in once, (
        "no order, no forgetting"
    )
    for name in ("frontier-causal-forgetting", "frontier-causal-penalties-drift"):
        assert "<svg" in (pages / f"{name}.svg").read_text()
        assert f"({name}.svg)" in page
    assert "None yet: `ewc-strength100`, `ewc-strength10-wise_ft-alpha0.75`" in (pages / "frontier.md").read_text()

    assert "(99, 20, 20 %; the seed that it was chosen with)" in page

    ways["ewc-strength100-max_steps96"] = (0.7, 0.2, 0.2)  # the other seeds say something else
    make(2)
    assert written()["recommended"] is None, "three seeds"
    make(3)
    found = written()
    told = found["streams"]["masked"]["rows"]["ewc"]
    assert (told["other_seeds"], round(told["kept"], 6)) == (2, 0.7), "of the seeds that chose nothing"
    assert "is **not reached** by any row" in (pages / "frontier-masked.md").read_text()
    assert "(70, 20, 20 %; 2 seeds that chose no strength)" in (pages / "frontier-masked.md").read_text()
    assert found["streams"]["masked"]["rows"]["ewc"]["entry"] == "ewc-strength100", "chosen with the first seed"
    assert found["recommended"] == [{"name": "ewc", "strength": 10}, {"name": "wise_ft", "alpha": 0.75}]
    assert found["recommended_with"] == {}
    page = (pages / "frontier.md").read_text()
    assert "`method: [{name: ewc, strength: 10}, {name: wise_ft, alpha: 0.75}]`. Learning kept" in page
    assert "the rate it takes from [a rule](../learning-rates.md)" in page
    assert "± 17" in (pages / "frontier-masked.md").read_text()


def test_what_learns_from_old_text_again_is_not_recommended(scripts: Scripts, tmp_path: Path) -> None:
    general = {"source": "general"}
    made = [
        cell("replay-sourcegeneral", 1, 1.0, 0.0, 0.0, options=general | {"train.max_steps": 9}),
        cell("ewc+replay", 1, 1.0, 0.0, 0.0, options={"ewc": {}, "replay": general}),
        cell("replay", 1, 1.0, 0.0, 0.0, old_data=True),
        cell("replay_generated", 1, 1.0, 0.0, 0.0, options={"share": 0.05}),
        cell("ewc", 1, 0.99, 0.5, 0.5),
        cell("sequential", 1, 1.0, 1.0, 1.0),
    ]
    for stream in scripts.rows.STREAMS:
        write(tmp_path / stream, *made)
    assert scripts.choice.candidates(tmp_path) == ["replay_generated", "ewc"]


def test_a_way_has_one_number_of_steps(scripts: Scripts, tmp_path: Path) -> None:
    write(tmp_path, *[cell(f"ewc-max_steps{steps}", 1, 1.0, 0.5, 0.5) for steps in (96, 97)])
    with pytest.raises(RunError, match="two numbers of steps, ewc-max_steps96 and ewc-max_steps97: remove"):
        scripts.rows.lines_of(tmp_path)


def test_init_writes_what_the_committed_results_recommend() -> None:
    file = ROOT / "docs/results/frontier.json"
    found = json.loads(file.read_text())["recommended"] if file.is_file() else None
    assert found is None or list(METHOD) == found


def test_methods_are_written_as_short_as_they_can_be() -> None:
    assert method_text([{"name": "das"}]) == "das"
    assert method_text([{"name": "ewc", "strength": 500.0}]) == "{name: ewc, strength: 500.0}"
    assert method_text([{"name": "ewc", "strength": 5}, {"name": "wise_ft"}]) == "[{name: ewc, strength: 5}, wise_ft]"


def test_the_page_of_fisher_rows_is_in_the_order_of_rows(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = importlib.import_module("fisher_rows")
    ways = [cell("sequential", 1, 1.0, 1.0, 1.0)]
    for rows, left in ((1000, 0.25), (100, 0.5)):
        options = {"strength": 1000.0} | ({} if rows == 1000 else {"samples": rows})  # a cell leaves defaults out
        ways.append(cell(f"ewc-{rows}", 1, 0.9, left, left, options=options))
    write(tmp_path / "results", *ways)
    lines = script.page(tmp_path / "results").splitlines()
    shown = [line for line in lines if line.startswith("| EWC")]
    names = [f"| EWC, strength 1000, {rows} rows" for rows in ("100", "1,000")]
    assert [line.split(" |")[0] for line in shown[:2]] == names
    assert "0.500" not in shown[1]
    assert "25" in shown[3], "a quarter of the forgetting is left"
    assert any(line.startswith("1 seed (1) and 1 strength (1000). Of one seed nothing is known") for line in lines)
    more = [cell("sequential", 2, 1.0, 1.0, 1.0), cell("ewc-7", 2, 0.9, 0.5, 0.5, options={"strength": 7.0})]
    write(tmp_path / "more", *ways, *more)
    assert "\n\n2 seeds (1, 2) and 2 strengths (7, 1000).\n\n" in script.page(tmp_path / "more")
