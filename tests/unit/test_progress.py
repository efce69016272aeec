"""What a person in front of a run is told: lines, a bar, an estimate, and the peak of memory of a stretch."""

from __future__ import annotations

import io
import mmap

import pytest
import torch
from rich.console import Console

from everlearn.config.recipe import parse
from everlearn.grid.runs import Once
from everlearn.learner import ContinualLearner
from everlearn.run import peak_memory
from everlearn.run.forecast import PASSES, ROWS, SETS, Forecast
from everlearn.run.progress import Logged, Reporter, Terminal

AT = Logged(
    domain="papers",
    stage=2,
    stages=6,
    step=120,
    steps=1000,
    loss=2.34567,
    learning_rate=9.1e-05,
    tokens_per_second=12345.6,
    stage_left=700.0,
    run_left=7300.0,
)


def printed(terminal: bool) -> tuple[Terminal, io.StringIO]:
    file = io.StringIO()
    return Terminal(Console(file=file, force_terminal=terminal, width=200)), file


def test_a_line_a_logging_step_where_there_is_no_terminal() -> None:
    reporter, file = printed(terminal=False)
    with reporter.activity("Learning papers (2/6)", 1000) as done:
        done(120)
        reporter.log(AT)
    activity, line = file.getvalue().splitlines()
    assert activity == "Learning papers (2/6)"
    clock, rest = line[:8], line[8:]
    assert [part.isdigit() for part in clock.split(":")] == [True] * 3
    assert rest.split("  ")[1:] == [
        "papers 2/6",
        "step 120/1,000",
        "loss 2.346",
        "learning rate 9.1e-05",
        "12,346 tokens/s",
        "stage ~12 min left",
        "run ~2.0 h left",
    ]


def test_a_long_line_is_one_line() -> None:
    file = io.StringIO()
    Terminal(Console(file=file, width=20)).log(AT)
    assert file.getvalue().count("\n") == 1


def test_loss_and_the_time_left_of_the_run_beside_the_bar() -> None:
    reporter, file = printed(terminal=True)
    with reporter.activity("Learning papers (2/6)", 1000) as done:
        done(120)
        reporter.log(AT)
    shown = file.getvalue()
    for part in ("Learning papers (2/6)", "120/1000", "loss 2.346", "run ~2.0 h left"):
        assert part in shown
    assert "papers 2/6" not in shown  # no line beside the bar


def test_what_is_not_known_is_not_said() -> None:
    assert str(Logged("a", 1, 1, 5, 5, 1.5, stage_left=0.0, run_left=0.2)) == "a 1/1  step 5/5  loss 1.5  run ~1 s left"


def test_what_methods_add_stands_beside_the_loss() -> None:
    at = Logged("a", 1, 1, 1, 5, 3.8312, added=11.748)
    assert str(at) == "a 1/1  step 1/5  loss 3.831 + 11.7 of methods"
    reporter, file = printed(terminal=True)
    with reporter.activity("Learning a", 5):
        reporter.log(at)
    assert "loss 3.831 + 11.7 of methods" in file.getvalue()


def test_a_reporter_of_ones_own_need_not_know_of_lines() -> None:
    class Mine(Reporter):
        def __init__(self) -> None:
            self.said: list[str] = []

        def say(self, text: str) -> None:
            self.said.append(text)

    mine = Mine()
    mine.log(AT)
    assert mine.said == []


def test_a_grid_names_the_cell_in_each_line() -> None:
    class Lines(Reporter):
        def log(self, at: Logged) -> None:
            lines.append(str(at))

    lines: list[str] = []
    once = Once(Lines())
    once.cell = "das-0"
    once.log(AT)
    assert lines[0].startswith("das-0: papers 2/6  step 120/1,000")


def test_the_estimate_is_what_is_ahead_times_what_it_has_taken() -> None:
    forecast = Forecast()
    forecast.ahead.update({ROWS: 100, SETS: 6, "topics": 2})
    forecast.took(SETS, 2, None)  # found in a cache: says nothing about the others
    assert forecast.seconds() == 0
    forecast.took(ROWS, 10, 5.0)
    assert forecast.seconds() == pytest.approx(90 * 0.5)
    forecast.took(ROWS, 30, 3.0)
    forecast.took(SETS, 1, 4.0)
    assert forecast.seconds() == pytest.approx(60 * 8 / 40 + 3 * 4)
    forecast.took("topics", 1, 100.0)
    assert forecast.seconds() == pytest.approx(60 * 8 / 40 + 3 * 4 + 100)
    assert forecast.seconds({ROWS: 20}) == pytest.approx(20 * 8 / 40)
    forecast.took(ROWS, 70, 1.0)  # more than was thought
    assert forecast.seconds({ROWS: forecast.ahead[ROWS]}) == 0


def test_what_was_not_done_yet_takes_what_its_weight_says() -> None:
    forecast = Forecast()
    forecast.ahead.update({ROWS: 100, PASSES: 200, SETS: 6, "topics": 2})
    forecast.weights.update({ROWS: 1.5, PASSES: 1.0, SETS: 4.0, "topics": 30.0})
    assert forecast.left() is None
    forecast.took(SETS, 2, 2.0)  # 0.25 seconds a row, by the base model's scores
    assert forecast.left() == pytest.approx(100 * 1.5 / 4 + 200 / 4 + 4 * 1 + 2 * 30 / 4)
    forecast.took(ROWS, 10, 30.0)  # 2 seconds a row: training says it better
    beside = 4 * (2 + 0.4 * 8) / 2.4 + 2 * 30 * 2
    assert forecast.left() == pytest.approx(90 * 3 + 200 * 2 + beside)
    forecast.took(PASSES, 4, 80.0)  # slow at first
    held = 0.1 * 196
    assert forecast.left() == pytest.approx(90 * 3 + 196 * (80 + held * 2) / (4 + held) + beside)
    forecast.took(PASSES, 100, 100.0)
    forecast.settle(PASSES, 50, counts=True)  # 150 rows were declared, 104 counted
    held = 0.1 * 50
    assert forecast.seconds({PASSES: 50}) == pytest.approx(50 * (180 + held * 2) / (150 + held))


def test_nothing_is_said_of_the_time_left_where_the_work_was_not_counted() -> None:
    """A grid scores the base model alone, without a run of stages."""
    forecast = Forecast()
    forecast.took(SETS, 1, 2.0)
    assert forecast.left() is None


def test_a_phase_inside_another_has_a_bar_below_it() -> None:
    reporter, file = printed(terminal=True)
    with reporter.activity("Learning papers", 10):
        reporter.left(7300.0)
        with reporter.activity("Scores after step 5", 4) as done:
            done(3)
    for part in ("Learning papers", "Scores after step 5", "3/4", "run ~2.0 h left"):
        assert part in file.getvalue()
    reporter, file = printed(terminal=False)
    reporter.left(7300.0)
    with reporter.activity("Measuring importance: MAS on papers", 1000) as done:
        done(3)
    assert file.getvalue().splitlines() == ["Measuring importance: MAS on papers  run ~2.0 h left"]


def test_a_run_begins_without_the_estimate_of_the_one_before() -> None:
    told: list[float | None] = []

    class Told(Reporter):
        def left(self, seconds: float | None) -> None:
            told.append(seconds)

    reporter = Told()
    reporter.left(1.0)
    ContinualLearner(parse({"model": "nowhere", "domains": [{"name": "a", "path": "a.txt"}]}), reporter=reporter)
    assert told == [1.0, None]


LARGE = 64 * 2**20


@pytest.mark.skipif(torch.cuda.is_available(), reason="the accelerator's own counter is asked there")
def test_a_later_stretch_does_not_inherit_an_earlier_peak() -> None:
    before = peak_memory.peak_memory()
    peak_memory.reset_peak_memory()
    if not peak_memory._CLEAR.exists():
        pytest.skip("the system does not reset a process's peak")
    quiet = peak_memory.peak_memory()
    # pages of the system's own: an array may be put where an earlier one lay, which takes no new memory
    held = mmap.mmap(-1, LARGE)
    held.write(b"\1" * LARGE)
    assert peak_memory.peak_memory() >= quiet + LARGE * 0.9
    high = peak_memory.peak_memory()
    held.close()
    assert peak_memory.peak_memory() >= high - 0.1 * LARGE, "a peak stays until it is reset"
    peak_memory.reset_peak_memory()
    assert peak_memory.peak_memory() <= high - LARGE * 0.9
    assert before > 0


def test_a_system_without_the_counters_is_asked_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(peak_memory, "_STATUS", tmp_path / "none")
    monkeypatch.setattr(peak_memory, "_CLEAR", tmp_path / "none" / "either")
    peak_memory.reset_peak_memory()
    assert peak_memory.peak_memory() > 10 * 2**20
