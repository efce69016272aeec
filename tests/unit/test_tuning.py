"""Search for a learning rate and a strength; the rule and the method that a new recipe gets."""

from __future__ import annotations

import ast
import io
import itertools
import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from everlearn.commands.first_recipe import first_recipe
from everlearn.commands.recommendation import (
    EVIDENCE,
    METHOD,
    RATES,
    learning_rate,
    models_in_words,
    rate_text,
    size_text,
)
from everlearn.commands.yaml_text import method_text
from everlearn.config.recipe import parse
from everlearn.errors import RecipeError
from everlearn.methods import build, names
from everlearn.methods.base import REGISTRY, VARIANTS
from everlearn.ranges import Around, Between, OneOf
from everlearn.report.figures import draw
from everlearn.report.figures.trials import Trials, Tried
from everlearn.run.progress import Logged, Reporter, Terminal
from everlearn.tuning import search
from everlearn.tuning.page import as_data, recommended, tables, verdict
from everlearn.tuning.page import page as page_of
from everlearn.tuning.pilot import Trial, best, expected_best, scores_of, shortened, with_rate
from everlearn.tuning.search import DIMENSIONS, SearchResult, Tuner, drawn
from everlearn.tuning.space import rows_of

# -- What is recommended stands in one place: documents say the same, and the numbers that they quote are in a file ----


ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
QUOTED = re.compile(r'\[([^\]]*\d[^\]]*)\]\((\S+?\.json) "([^"]+)"\)')
"""A number that links to the file that it comes from, its key there as the link's title: ``[97 %](a.json "kept")``."""


def quoted() -> list[tuple[Path, str, Path, str]]:
    found = []
    for page in PAGES:
        for text, file, key in QUOTED.findall(page.read_text(encoding="utf-8")):
            found.append((page, text, page.parent / file, key))
    return found


def value_at(data: object, key: str) -> float:
    """The number at a dotted key, whose parts may have dots themselves."""
    while key:
        assert isinstance(data, dict | list), key
        names = map(str, range(len(data))) if isinstance(data, list) else data
        name = max((n for n in names if key == n or key.startswith(f"{n}.")), key=len)
        data, key = data[int(name) if isinstance(data, list) else name], key[len(name) + 1 :]
    assert isinstance(data, int | float)
    return float(data)


def agrees(text: str, value: float) -> bool:
    """Whether a number as it is written is the value, rounded to the digits that are written."""
    written = text.replace("−", "-").replace(",", "").replace("+", "")
    if percent := written.endswith("%"):
        value *= 100
    number = written.removesuffix("%").split()[0]
    digits, _, exponent = number.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return abs(float(number) - value) <= 0.5 * unit * (1 + 1e-9) + (0 if percent else 1e-12)


@pytest.mark.parametrize(("page", "text", "file", "key"), quoted(), ids=lambda value: str(value)[-40:])
def test_a_number_that_names_its_file_is_in_it(page: Path, text: str, file: Path, key: str) -> None:
    assert agrees(text, value_at(json.loads(file.read_text(encoding="utf-8")), key)), f"{page.name}: {text}"


def test_numbers_are_quoted_and_compared() -> None:
    assert {page.name for page, *_ in quoted()} >= {"bench.md", "learning-rates.md", "demo.md"}
    for text, value, same in (
        ("97 %", 0.9672, True), ("96 %", 0.9672, False), ("0.0035", 0.0035, True), ("3.5e-3", 0.0035, True),
        ("3.4e-3", 0.0035, False), ("−0.03 bits", -0.0312, True), ("+0.04", -0.04, False), ("1,200", 1200.4, True),
    ):  # fmt: skip
        assert agrees(text, value) is same, text


def test_documents_write_the_recommended_method_as_it_is() -> None:
    assert parse({"model": "m", "domains": [{"name": "a", "path": "a.txt"}], "method": list(METHOD)}).methods()
    text = method_text(METHOD)
    for page in (EVIDENCE, "docs/bench.md", "docs/quickstart.md", "docs/recipes.md", "docs/methods/penalties.md"):
        assert text in (ROOT / page).read_text(encoding="utf-8"), page


@pytest.mark.parametrize("page", ["docs/quickstart.md", "docs/recipes.md"])
def test_the_first_recipe_of_a_page_is_what_init_writes(page: str) -> None:
    shown = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)[0]
    written = first_recipe().text()
    assert yaml.safe_load(shown) == yaml.safe_load(written)
    assert shown == written


def test_the_recipe_of_the_readme_is_what_init_writes() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert yaml.safe_load(shown) == yaml.safe_load(first_recipe().text())


def test_python_in_the_documents_uses_the_recommended_method() -> None:
    text = "".join((ROOT / f"docs/{page}.md").read_text(encoding="utf-8") for page in ("quickstart", "protect"))
    nodes = [
        node for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) for node in ast.walk(ast.parse(block))
    ]
    objects = [
        {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
        for node in nodes
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "MAS"
    ]
    options = {key: value for key, value in METHOD[0].items() if key != "name"}
    assert objects == [options]
    mappings = [ast.literal_eval(node) for node in nodes if isinstance(node, ast.Dict) and "name" in ast.dump(node)]
    assert [each for each in mappings if each.get("name") == METHOD[0]["name"]] == [METHOD[0]] * 2


def test_the_notebook_uses_the_recommended_method() -> None:
    names = {}
    for node in ast.parse((ROOT / "notebooks/first_steps.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("SAMPLES", "recommended"):
            names[node.targets[0].id] = node.value
        if isinstance(node, ast.AugAssign) and getattr(node.target, "id", "") == "recommended":
            more = node.value
    for value in (names["recommended"], more):
        value.values = [names["SAMPLES"] if isinstance(own, ast.Name) else own for own in value.values]
    assert ast.literal_eval(names["recommended"]) | ast.literal_eval(more) == METHOD[0]


def test_the_docs_have_the_table_of_learning_rates() -> None:
    text = (ROOT / "docs/learning-rates.md").read_text(encoding="utf-8")
    for kind, sizes in RATES.items():
        for size in map(int, sizes):
            rates = [rate_text(learning_rate(kind, size, **of)) for of in ({}, {"examples": True}, {"adapters": True})]
            if kind == "encoder-decoder":
                rates[0] = rates[2] = "–"
            assert f"| {kind} | {size_text(size)} | {' | '.join(rates)} | " in text


@pytest.mark.parametrize(
    ("kind", "parameters", "options", "rate"),
    [
        ("decoder", 125_000_000, {}, 3e-4),
        ("decoder", 134_515_008, {}, 2.9e-4),
        ("decoder", 5_000_000, {}, 3e-4),
        ("decoder", 70_000_000_000, {}, 5e-5),
        ("decoder", 125_000_000, {"examples": True}, 6e-5),
        ("decoder", 125_000_000, {"adapters": True}, 3e-3),
        ("encoder", 125_000_000, {}, 1e-4),
        ("encoder", 125_000_000, {"examples": True}, 2e-5),
        ("encoder-decoder", 60_000_000, {}, 1e-4),
        ("encoder-decoder", 60_000_000, {"examples": True}, 1e-4),
    ],
)
def test_the_rule_of_the_learning_rate(kind: str, parameters: int, options: dict[str, bool], rate: float) -> None:
    assert learning_rate(kind, parameters, **options) == rate


def test_between_two_sizes_the_rate_is_between_their_rates() -> None:
    for kind, table in RATES.items():
        sizes = sorted(table)
        between = [math.exp((math.log(a) + math.log(b)) / 2) for a, b in itertools.pairwise(sizes)]
        rates = [learning_rate(kind, int(size)) for size in sorted([*sizes, *between])]
        assert rates == sorted(rates, reverse=True), kind
    assert rate_text(2.9e-4) == "2.9e-4"
    assert yaml.safe_load("2.9e-4") == 2.9e-4, "a number, not a word, for every reader of YAML"


@pytest.mark.parametrize(
    ("kind", "parameters", "words"),
    [
        ("encoder", 125_000_000, "encoders of 125 M"),
        ("encoder", 5_400_000, "encoders of at most 110 M"),
        ("decoder", 70_000_000_000, "decoders of at least 13 B"),
        ("encoder-decoder", 770_000_000, "encoder-decoders of 770 M"),
    ],
)
def test_outside_the_table_the_rate_is_that_of_the_nearest_size(kind: str, parameters: int, words: str) -> None:
    assert models_in_words(kind, parameters) == words


# -- The parts of a search: ranges that methods declare, what is drawn of them, what the best of n trials scores -------


RECIPE = {
    "model": {"path": "nowhere"},
    "domains": [{"name": "a", "path": "a.txt"}, {"name": "b", "path": "b.txt", "train": {"max_steps": 7}}],
    "general": {"path": "g.txt"},
    "method": [{"name": "mas", "anchor": "separate", "strength": 0.02, "follow": 0.4}],
    "train": {"learning_rate": 1e-3, "max_steps": 100, "warmup_steps": 20},
}


@pytest.mark.parametrize("name", names())
def test_every_range_gives_values_that_the_method_takes(name: str) -> None:
    cls = REGISTRY[name] if name in REGISTRY else VARIANTS[name][0]
    config = build(name).config
    for option, range_ in cls.search.items():
        value = getattr(config, option)
        if isinstance(range_, Around) and not value:
            continue
        for u in (0.0, 0.5, 1 - 1e-9):
            found = range_.at(u, value)
            # A variant may set options beside which this one is without effect; the class itself takes it.
            spec = {"name": cls.name, option: found} | ({"anchor": "separate"} if option == "follow" else {})
            assert getattr(build(spec).config, option) == found


def test_ranges() -> None:
    around = Around(4)
    assert [around.at(u, 2.0) for u in (0, 0.5, 1)] == [0.5, 2.0, 8.0]
    assert around.describe(2.0) == "0.5 to 8, log-uniform"
    assert [Between(0.01, 1, log=True).at(u, None) for u in (0, 0.5, 1)] == [0.01, 0.1, 1.0]
    assert [Between(2, 4).at(u, None) for u in (0, 0.5, 1)] == [2.0, 3.0, 4.0]
    assert [OneOf(("x", "y", "z")).at(u, None) for u in (0, 0.34, 0.67, 0.999)] == ["x", "y", "z", "z"]


def test_points_lie_evenly_and_more_of_them_begin_with_the_same() -> None:
    points = drawn(16, DIMENSIONS)
    assert drawn(5, DIMENSIONS) == points[:5]
    assert all(0 <= u < 1 for point in points for u in point)
    for dimension in zip(*points, strict=True):
        quarters = [sum(low <= u < low + 0.25 for u in dimension) for low in (0, 0.25, 0.5, 0.75)]
        assert min(quarters) >= 3, "of 16 points each quarter has about 4"


def test_a_row_draws_the_rate_the_main_option_and_what_the_recipe_sets() -> None:
    plain, mas, both = rows_of(parse(RECIPE), "mas,[ewc,replay:share=0.1]")
    assert [draw.option for draw in plain.draws] == ["learning_rate"]
    assert [(draw.method, draw.option, draw.value) for draw in mas.draws] == [
        (None, "learning_rate", 1e-3),
        (0, "strength", 0.02),
        (0, "follow", 0.4),
    ]
    assert [(draw.method, draw.option) for draw in both.draws] == [
        (None, "learning_rate"),
        (0, "strength"),
        (1, "share"),
    ]
    rate, methods, told = both.at([0.5, 1 - 1e-9, 0.0])
    assert rate == 1e-3
    assert methods[0]["strength"] == pytest.approx(30 * 5000, rel=1e-2)
    assert methods[1]["share"] == 0.02
    assert told == {"ewc.strength": methods[0]["strength"], "replay.share": 0.02}


def test_a_strength_of_nothing_is_not_drawn_around() -> None:
    (_, row) = rows_of(parse(RECIPE | {"method": [{"name": "mas", "strength": 0}]}))
    assert [draw.option for draw in row.draws] == ["learning_rate"]


def test_rows_that_do_not_train_in_turn_are_refused() -> None:
    with pytest.raises(RecipeError, match="'pool'"):
        rows_of(parse(RECIPE), "mas,pool")


def test_a_pilot_is_the_recipe_with_fewer_steps() -> None:
    raw = shortened(parse(RECIPE), 0.25, {"a": 100, "b": 7})
    assert [domain["train"]["max_steps"] for domain in raw["domains"]] == [25, 7]
    assert raw["train"]["warmup_steps"] == 5
    assert "max_steps" not in raw["train"]
    assert raw["end_tasks"] == []
    parse(raw)
    warm = parse(RECIPE | {"train": {"warmup_steps": 0.1, "num_train_epochs": 3}})
    raw = shortened(warm, 0.5, {"a": 90, "b": 7})
    assert (raw["train"]["warmup_steps"], raw["train"]["save_strategy"]) == (0.1, "no")
    assert "num_train_epochs" not in raw["train"]
    assert raw["domains"][0]["train"] == {"max_steps": 45}


def test_the_expected_best_of_n_is_the_mean_over_all_ways_to_draw_them() -> None:
    scores = [0.3, -0.1, 0.7, 0.2]
    for k, found in enumerate(expected_best(scores), 1):
        every = [max(way) for way in itertools.product(scores, repeat=k)]
        assert found == pytest.approx(statistics.fmean(every), abs=1e-12)


def trial(number: int, score: float, state: str = "complete") -> Trial:
    return Trial("mas", number, 1e-3, [], {}, state, [score])  # type: ignore[arg-type]


def test_the_best_is_a_complete_trial() -> None:
    trials = [trial(0, 0.1), trial(1, 0.3, "stopped"), trial(2, 0.2), trial(3, 0.2), trial(4, 9.0, "failed")]
    found = best(trials, 0.02)
    assert found is not None
    assert found.number == 2
    assert best([trial(0, 1.0, "stopped")], 0.02) is None
    assert trial(0, 1.0, "failed").score == -math.inf


def test_a_broken_trial_is_left_out_of_the_picture_and_counted() -> None:
    near = [Tried(0.1, 0.2, "a"), Tried(0.3, 0.1, "b")]
    far = [Tried(9.0, 0.1, "far"), Tried(0.1, -3.0, "broken")]
    (drawn_near,) = draw("trials", Trials([("Plain", near), ("MAS", near)], "forgotten", "bits/byte"))
    (with_far,) = draw("trials", Trials([("Plain", near), ("MAS", [*near, *far])], "forgotten", "bits/byte"))
    assert "left out" not in drawn_near.caption
    assert with_far.caption.endswith("Far outside and left out: 2.")
    assert str(with_far.svg).count("<path") == str(drawn_near.svg).count("<path")


@pytest.mark.parametrize(
    ("gained", "unclear", "alike"),
    [((0.2, 0.1, 0.3), False, True), ((0.2, -0.1, 0.3), True, True), ((0.3, 0.25, 0.35), False, False)],
)
def test_the_verdict_says_what_the_intervals_do_not_tell(gained: Any, unclear: bool, alike: bool) -> None:
    rows = rows_of(parse(RECIPE))
    plain, mas = trial(0, 0.15), trial(0, gained[0])
    plain.row, plain.gained, mas.gained = "sequential", (0.15, -0.1 if unclear else 0.1, 0.2), gained
    found = SearchResult(parse(RECIPE), rows, {"sequential": [plain], "mas": [mas]}, 0.25, 0.02, 2)
    said = " ".join(verdict(found))
    assert said.startswith("No trial is worth taking; the best is MAS" if unclear else "Take MAS with learning rate")
    assert ("Whether it is better than the base model is not clear" in said) == unclear
    assert ("these short runs do not tell the two apart" in said) == alike
    assert "2 trials of each were asked for" in said


WITHIN, BEYOND, BETWEEN = (0.01, 0.005, 0.015), (0.08, 0.07, 0.09), (0.03, 0.01, 0.05)


def judged(number: int, drift: tuple[float, float, float], gain: float = 0.3) -> Trial:
    """A trial whose gain is clear, with the score that it has."""
    of = trial(number, gain - max(0.0, drift[0] - 0.02))
    of.gained, of.drifts = (gain, gain - 0.01, gain + 0.01), {"general": drift}
    return of


@pytest.mark.parametrize(
    ("trials", "number", "worth", "opening", "also"),
    [
        ([judged(0, BEYOND)], 0, False, "No trial is worth taking; the best is MAS", "General text lost more than"),
        ([judged(0, BETWEEN)], 0, None, "No trial is clearly worth taking; the best is MAS", "is undecided"),
        ([judged(0, WITHIN)], 0, True, "Take MAS", "general drift +0.010 (+0.005 to +0.015)"),
        ([judged(0, BEYOND, 0.9), judged(1, WITHIN)], 1, True, "Take MAS", "has a higher score, but is not clearly"),
        ([judged(0, BEYOND, 0.9), judged(1, BETWEEN)], 1, None, "No trial is clearly worth taking", "is undecided"),
    ],
)
def test_a_trial_is_taken_by_the_rule_of_reports(
    trials: list[Trial], number: int, worth: bool | None, opening: str, also: str
) -> None:
    plain = [replace(each, row="sequential", state="stopped") for each in trials]
    found = SearchResult(
        parse(RECIPE), rows_of(parse(RECIPE)), {"sequential": plain, "mas": trials}, 0.25, 0.02, len(trials)
    )
    chosen = found.chosen
    assert chosen is trials[number]
    assert chosen.worth_taking(0.02) is worth
    assert verdict(found)[0].startswith(opening)
    assert also in " ".join(verdict(found))
    assert all(f"# {sentence}\n" in recommended(found, chosen) for sentence in verdict(found))
    rows = dict(tables(found)[0].rows)
    word, state = rows[f"MAS {number + 1}"][5].text, rows[f"MAS {number + 1}"][-1].text
    assert (word, state) == ({True: "yes", False: "no", None: "undecided"}[worth], "complete, chosen")
    assert rows["Sequential 1"][5].text == "–"
    assert as_data(found)["chosen"]["worth_taking"] is worth
    assert "clearly best" not in page_of(found), "one seed without an interval of the score"


def test_the_worst_of_several_general_sets_decides() -> None:
    of = judged(0, WITHIN)
    of.drifts["code"] = BEYOND
    assert of.worth_taking(0.02) is False


def test_a_domains_own_rate_moves_with_the_drawn_one() -> None:
    own = RECIPE | {"domains": [{"name": "a", "path": "a.txt", "train": {"learning_rate": 5e-4}}, {"name": "b"}]}
    raw = with_rate(own, 2e-3, 1e-3)
    assert raw["train"]["learning_rate"] == 2e-3
    assert raw["domains"] == [{"name": "a", "path": "a.txt", "train": {"learning_rate": 1e-3}}, {"name": "b"}]


def test_what_was_stopped_or_failed_is_no_advantage() -> None:
    trials = [trial(0, 0.3), trial(1, 0.1), trial(2, 0.9, "stopped"), trial(3, 5.0, "failed")]
    assert sorted(scores_of(trials)) == [0.1, 0.1, 0.1, 0.3]
    assert scores_of(trials[2:]) == []


def test_the_time_left_of_the_search_is_no_run_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of a trial show the time left of its run, once as its phase and once as its logging step."""
    file = io.StringIO()
    tuner = Tuner(parse(RECIPE), tmp_path, trials=2, reporter=Terminal(Console(file=file, width=120)))
    replace(trial(0, 0.1), row="sequential", seconds=60.0).save(tmp_path / "trials" / "sequential-0.json")

    def pilot(raw: Any, of: Trial, place: Path, ask: Any, reporter: Reporter, tolerate: float) -> None:
        reporter.log(Logged("a", 1, 1, 4, 4, 1.0, run_left=7.0))
        with reporter.activity("Saving a", None):
            pass

    monkeypatch.setattr(search, "run_pilot", pilot)
    tuner._advance(tuner.rows[1], 0, [0.5] * DIMENSIONS, {"domains": []})
    said, step, phase = file.getvalue().splitlines()
    assert said == "MAS 1/2: search ~3 min left", "three trials of a minute"
    assert step.endswith("run ~7 s left")
    assert phase == "MAS 1/2: Saving a  run ~7 s left"


@pytest.mark.parametrize(
    ("scores", "stops"),
    [
        ([0.5, -9.0], True),  # after the second domain it is the worst, however good it was before
        ([0.5, 0.15], False),
        ([-9.0], False),  # nothing can be forgotten yet
        ([None, -9.0], True),
        ([0.1, None], False),
    ],
)
def test_only_what_is_worse_than_the_worst_quarter_stops(tmp_path: Path, scores: list[Any], stops: bool) -> None:
    tuner = Tuner(parse(RECIPE), tmp_path, trials=8)
    mas = tuner.rows[1]
    for number, second in enumerate((0.1, 0.2, 0.3, 0.4)):
        Trial("mas", number, 1e-3, [], {}, "complete", [0.0, second]).save(tmp_path / "trials" / f"mas-{number}.json")
    now = Trial("mas", 4, 1e-3, [], {}, "running", scores)
    assert tuner._hopeless(mas, now) == stops
    (tmp_path / "trials" / "mas-0.json").unlink()
    assert not tuner._hopeless(mas, now), "with fewer complete trials none is stopped"
