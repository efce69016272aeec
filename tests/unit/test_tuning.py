"""The parts of a search: ranges that methods declare, what is drawn of them, what the best of n trials scores."""

from __future__ import annotations

import itertools
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", reason="the extra `tune` is not installed")

from everlearn.config.recipe import parse
from everlearn.errors import RecipeError
from everlearn.methods import build, names
from everlearn.methods.base import REGISTRY, VARIANTS
from everlearn.ranges import Around, Between, OneOf
from everlearn.report.figures import draw
from everlearn.report.figures.trials import Trials, Tried
from everlearn.tuning.page import verdict
from everlearn.tuning.pilot import Trial, best, expected_best, scores_of, shortened, with_rate
from everlearn.tuning.search import DIMENSIONS, Found, Tuner, drawn
from everlearn.tuning.space import rows_of

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
    assert around.said(2.0) == "0.5 to 8, log-uniform"
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
    found = best([trial(0, 0.1), trial(1, 0.3, "stopped"), trial(2, 0.2), trial(3, 0.2), trial(4, 9.0, "failed")])
    assert found is not None
    assert found.number == 2
    assert best([trial(0, 1.0, "stopped")]) is None
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
    plain.row, plain.gained, mas.gained = "sequential", (0.15, 0.1, 0.2), gained
    found = Found(parse(RECIPE), rows, {"sequential": [plain], "mas": [mas]}, 0.25, 0.02, 2)
    said = " ".join(verdict(found))
    assert said.startswith("Take MAS with learning rate 0.001")
    assert ("Whether it is better than the base model is not clear" in said) == unclear
    assert ("these short runs do not tell the two apart" in said) == alike
    assert "2 trials of each were asked for" in said


def test_a_domains_own_rate_moves_with_the_drawn_one() -> None:
    own = RECIPE | {"domains": [{"name": "a", "path": "a.txt", "train": {"learning_rate": 5e-4}}, {"name": "b"}]}
    raw = with_rate(own, 2e-3, 1e-3)
    assert raw["train"]["learning_rate"] == 2e-3
    assert raw["domains"] == [{"name": "a", "path": "a.txt", "train": {"learning_rate": 1e-3}}, {"name": "b"}]


def test_what_was_stopped_or_failed_is_no_advantage() -> None:
    trials = [trial(0, 0.3), trial(1, 0.1), trial(2, 0.9, "stopped"), trial(3, 5.0, "failed")]
    assert sorted(scores_of(trials)) == [0.1, 0.1, 0.1, 0.3]
    assert scores_of(trials[2:]) == []


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
