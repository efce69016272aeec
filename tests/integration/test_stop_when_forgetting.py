"""A domain ends where the model has forgotten too much (`stop`): at its best step within the bounds."""

from __future__ import annotations

import json
import random
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import Killer, assert_same, elsewhere, kill_and_resume, recipe, tensors

import tiny
from everlearn.comparison.comparison import compare
from everlearn.comparison.runs import read_run
from everlearn.config.recipe import Recipe
from everlearn.errors import RecipeError
from everlearn.evaluation import METRICS, Cell, set_path
from everlearn.learner import ContinualLearner
from everlearn.report.figures.within_stage import inside
from everlearn.report.run_results import RunResults
from everlearn.report.run_tables import stage_table
from everlearn.run import notification
from everlearn.run.forgetting_guard import ForgettingGuard, worse
from everlearn.run.interruption import Interrupted
from everlearn.run.progress import Reporter

pytestmark = pytest.mark.usefixtures("no_report")
STEPS = 8
RATE = {"max_steps": STEPS, "learning_rate": 0.02, "lr_scheduler_type": "constant", "save_steps": 2}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows the general text, of which the domains have no word."""
    folder = tmp_path_factory.mktemp("base")
    learnt = recipe(folder, "gpt2", domains=("general",), dropout=0.0, train=RATE | {"max_steps": 30}, report={})
    learnt = learnt.changed(domains=[{"name": "general", "path": str(written(folder, "general")), "validation": 0.15}])
    ContinualLearner(learnt).run()
    return folder / "run" / "stage-01-general"


def written(folder: Path, name: str) -> Path:
    """A corpus of words of its own."""
    path = folder / f"{name}.jsonl"
    own = [word for place, word in enumerate(tiny.WORDS) if place % 3 == ("general", "first", "second").index(name)]
    rng = random.Random(name)
    rows = [{"text": " ".join(rng.choices(own, k=30))} for _ in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def made(folder: Path, stop: dict[str, Any] | None, name: str = "run", **groups: Any) -> Recipe:
    """A run whose general text gets worse."""
    names = groups.pop("domains", ("first", "second"))
    known = {"general": True, "dropout": 0.0, "train": RATE | groups.pop("train", {}), "domains": names}
    built = recipe(folder, "gpt2", **known, **groups, **({} if stop is None else {"stop": stop}))
    texts = [{"name": each, "path": str(written(folder, each)), "validation": 0.15} for each in (*names, "general")]
    return elsewhere(built.changed(domains=texts[:-1], general=texts[-1], model=str(folder / "base")), folder / name)


@pytest.fixture(autouse=True)
def _base_of_the_test(tmp_path: Path, base: Path) -> None:
    (tmp_path / "base").symlink_to(base)


def curve(folder: Path, stage: int, name: str) -> dict[int, float]:
    """Step → bits per byte of a held-out text."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        line["step"]: line["bits_per_byte"][name]
        for line in lines
        if line["stage"] == stage and "bits_per_byte" in line
    }


def base_of(folder: Path, name: str, row: int = 0) -> float:
    """Bits per byte of a held-out text after a number of domains."""
    return METRICS["bits_per_byte"].score(Cell.load(set_path(folder / "evaluation", row, name)))


def weights(folder: Path, stage: str) -> dict[str, torch.Tensor]:
    """The weights of a stage."""
    return {name: tensor for name, tensor in tensors(folder).items() if name.startswith(f"{stage}/model")}


@pytest.fixture
def drift(tmp_path: Path) -> dict[int, float]:
    """Step → general drift of the first domain without bounds."""
    free = made(tmp_path, None, "free", evaluation={"every": 1})
    ContinualLearner(free).run()
    found = curve(free.folder(), 1, "general")
    base = base_of(free.folder(), "general")
    return {step: value - base for step, value in found.items()}


def test_a_domain_ends_with_the_weights_of_its_best_step_within_the_bound(
    tmp_path: Path, drift: dict[int, float]
) -> None:
    bound = sorted(drift.values())[STEPS // 2]
    first_beyond = min(step for step, value in drift.items() if value > bound)
    own = curve(tmp_path / "free", 1, "first")
    inside = {step: own[step] for step in own if step < first_beyond}
    expected = min(inside, key=lambda step: (inside[step], step)) if inside else 0

    stopped = made(tmp_path, {"general": bound, "every": 1}, domains=("first",))
    results = ContinualLearner(stopped).run()

    stage = results.cost.stages[0]
    assert (stage.steps, stage.planned_steps) == (expected, STEPS)
    assert base_of(stopped.folder(), "general", 1) - base_of(stopped.folder(), "general") <= bound
    note = next(note for note in results.notes if f"step {first_beyond:,} of {STEPS}: " in note)
    assert f"`stop.general` allows ({bound:g})" in note
    assert "(" in note
    # The weights are those of plain training that ended there, under the same schedule.
    short = made(tmp_path, None, "short", domains=("first",), train={"max_steps": expected})
    ContinualLearner(short).run()
    ours, theirs = (weights(one.folder(), "stage-01-first") for one in (stopped, short))
    assert ours
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_what_was_taken_back_is_counted_as_spent(tmp_path: Path, drift: dict[int, float]) -> None:
    bound = sorted(drift.values())[STEPS // 2]
    stopped = made(tmp_path, {"general": bound, "every": 1}, domains=("first",))
    results = ContinualLearner(stopped).run()
    first_beyond = min(step for step, value in drift.items() if value > bound)
    per_step = RunResults.load(tmp_path / "free").cost.stages[0].tokens / STEPS
    assert results.cost.stages[0].tokens == first_beyond * per_step
    # What the page draws shows why the domain ended.
    assert max(curve(stopped.folder(), 1, "general")) == first_beyond


def test_the_page_says_where_a_domain_ended(tmp_path: Path, drift: dict[int, float]) -> None:
    bound = sorted(drift.values())[STEPS // 2]
    stopped = made(tmp_path, {"general": bound, "every": 1}, domains=("first",))
    kept = ContinualLearner(stopped).run().cost.stages[0].steps
    table = stage_table("run", read_run(stopped.folder()))
    assert table is not None
    steps = table.rows[0][1][table.header.index("Steps") - 1]
    assert (steps.text, steps.detail) == (str(kept), f"of {STEPS}")
    assert "of those planned" in table.caption
    drawn = compare([stopped.folder()])
    plots = [plate.svg for plate in inside(drawn)]
    assert plots
    assert all("weights kept" in plot for plot in plots) == (kept > 0)
    free = stage_table("run", read_run(tmp_path / "free"))
    assert free is not None
    assert free.caption == ""


def test_without_bounds_a_domain_ends_where_its_own_text_is_predicted_best(tmp_path: Path) -> None:
    best = made(tmp_path, {"every": 2}, "best", domains=("first",))
    results = ContinualLearner(best).run()
    own = curve(best.folder(), 1, "first")
    assert list(own) == [2, 4, 6, 8]
    step = min(own, key=lambda each: (own[each], each))
    assert results.cost.stages[0].steps == step
    assert base_of(best.folder(), "first", 1) == pytest.approx(own[step], abs=1e-6)


def test_a_bound_that_is_passed_at_once_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    stopped = made(tmp_path, {"general": 0.0, "every": 1}, domains=("first",), train={"learning_rate": 0.3})
    results = ContinualLearner(stopped).run()
    assert results.cost.stages[0].steps == 0
    assert base_of(stopped.folder(), "general", 1) == base_of(stopped.folder(), "general")
    assert any(
        "as it was at its beginning, since no measured step was within the bounds" in note for note in results.notes
    )


def test_earlier_domains_are_compared_with_right_after_they_were_learnt(tmp_path: Path) -> None:
    stopped = made(tmp_path, {"earlier": 0.0, "every": 1}, evaluation={"columns": "own"})
    results = ContinualLearner(stopped).run()
    second = results.cost.stages[1]
    assert curve(stopped.folder(), 2, "first")
    assert second.steps < STEPS
    assert base_of(stopped.folder(), "first", 2) <= base_of(stopped.folder(), "first", 1)
    assert any("`stop.earlier`" in note and "right after it was learnt" in note for note in results.notes)
    assert not any("`stop.earlier`" in note and "of 'first'" in note for note in results.notes)


def test_a_lower_rate_goes_on_from_the_best_step(tmp_path: Path, drift: dict[int, float]) -> None:
    bound = sorted(drift.values())[STEPS // 2]
    lowered = made(tmp_path, {"general": bound, "every": 1, "then": "lower"}, domains=("first",))
    results = ContinualLearner(lowered).run()
    assert base_of(lowered.folder(), "general", 1) - base_of(lowered.folder(), "general") <= bound
    told = [note for note in results.notes if "of the learning rate" in note]
    assert told
    assert "with 0.5 of the learning rate" in told[0]
    lines = [json.loads(line) for line in (lowered.folder() / "metrics.jsonl").read_text().splitlines()]
    rates = {line["step"]: line["learning_rate"] for line in lines if "learning_rate" in line}
    assert set(rates.values()) <= {0.02 * 0.5**times for times in range(4)}
    assert 0.01 in rates.values() or len(told) > 1
    assert [line["step"] for line in lines if "loss" in line] == sorted(
        {line["step"] for line in lines if "loss" in line}
    )


def test_a_warning_changes_nothing(tmp_path: Path, drift: dict[int, float]) -> None:
    bound = sorted(drift.values())[STEPS // 2]
    warned = made(tmp_path, {"general": bound, "every": 1, "then": "warn"}, domains=("first",))
    results = ContinualLearner(warned).run()
    notes = [note for note in results.notes if "`stop.general`" in note]
    assert len(notes) == 1
    ours, theirs = weights(warned.folder(), "stage-01-first"), weights(tmp_path / "free", "stage-01-first")
    assert ours
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("then", ["end", "lower"])
@pytest.mark.parametrize(
    ("method", "general"),
    [
        ("sequential", 0.3),
        ([{"name": "mas", "strength": 0.001, "samples": 4}, {"name": "replay", "share": 0.3}], 0.0),
        ("si", 0.3),
    ],
    ids=["sequential", "mas, replay", "si"],
)
def test_a_killed_run_ends_in_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, method: Any, general: float
) -> None:
    stop = {"general": general, "earlier": 0.03, "every": 2, "then": then}
    broken = made(tmp_path, stop, method=method, train={"save_steps": 3, "learning_rate": 0.005})
    whole = elsewhere(broken, tmp_path / "whole")
    killer = Killer(monkeypatch)
    results = ContinualLearner(whole).run()
    assert any("`stop." in note or "ends with the weights of step" in note for note in results.notes)
    kinds = ("step", "checkpoint", "end", "seal", "scored")
    moments = [each for each in dict.fromkeys(killer.passed) if each.split()[0] in kinds]
    kill_and_resume(killer, broken, moments[1::2])
    assert_same(broken.folder(), whole.folder())


@pytest.mark.parametrize("then", ["end", "lower"])
def test_an_interruption_at_the_step_that_is_taken_back_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    stop = {"general": 0.3, "earlier": 0.03, "every": 2, "then": then}
    broken = made(tmp_path, stop, train={"save_steps": 3, "learning_rate": 0.005})
    whole = elsewhere(broken, tmp_path / "whole")
    results = ContinualLearner(whole).run()
    note = next(note for note in results.notes if "`stop." in note)
    judge, learner = ForgettingGuard.judge, ContinualLearner(broken)

    def interrupted(self: ForgettingGuard, *args: Any) -> tuple[bool, bool]:
        decided = judge(self, *args)
        if decided[1]:
            learner.interruption.stop_requested = True
        return decided

    monkeypatch.setattr(ForgettingGuard, "judge", interrupted)
    with pytest.raises(Interrupted):
        learner.run()
    monkeypatch.undo()
    ContinualLearner.open(broken.folder()).resume()
    assert_same(broken.folder(), whole.folder())
    assert note in RunResults.load(broken.folder()).notes


def test_a_checkpoint_of_an_epoch_keeps_nothing_that_is_taken_back(tmp_path: Path) -> None:
    stop = {"general": 0.3, "earlier": 0.03, "every": 2, "then": "lower"}
    epochs = made(tmp_path, stop, "epochs", train={"save_strategy": "epoch", "learning_rate": 0.005})
    steps = made(tmp_path, stop, "steps", train={"save_steps": 100, "learning_rate": 0.005})
    for each in (epochs, steps):
        ContinualLearner(each).run()
    ours, theirs = (weights(each.folder(), "stage-02-second") for each in (epochs, steps))
    assert ours
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_reader_is_told_at_once(tmp_path: Path) -> None:
    said: list[str] = []

    class Told(Reporter):
        def say(self, text: str) -> None:
            said.append(text)

    ContinualLearner(made(tmp_path, {"general": 0.0, "every": 1}, domains=("first",)), reporter=Told()).run()
    assert any("more than `stop.general` allows" in text for text in said)


def test_a_command_is_told_what_happened(tmp_path: Path) -> None:
    write = "import sys, pathlib; pathlib.Path(sys.argv[1]).open('a').write(sys.stdin.read() + '\\n')"
    events = tmp_path / "events.jsonl"
    told = {"general": 0.0, "every": 1, "notify": [sys.executable, "-c", write, str(events)]}
    results = ContinualLearner(made(tmp_path, told, domains=("first",))).run()
    event, *more = [json.loads(line) for line in events.read_text().splitlines()]
    assert not more
    assert event["text"] in results.notes
    assert (event["run"], event["domain"], event["step"]) == ("run", "first", 1)


def test_a_webhook_gets_the_event_and_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[dict[str, Any]] = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if self.path == "/good" else 500)
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Chat)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("CHAT", f"{address}/good")
    assert notification.send("$CHAT", {"text": "worse"}) is None
    failed = notification.send(f"{address}/secret", {"text": "worse"})
    server.shutdown()
    server.server_close()
    assert got == [{"text": "worse"}] * 2
    assert failed is not None
    assert "HTTP Error 500" in failed
    assert "secret" not in failed
    for notify, why in ((address, "refused"), (("false",), "exit code 1"), ("$NOT_SET", "unknown url type")):
        failed = notification.send(notify, {})
        assert failed is not None
        assert why in failed


@pytest.mark.parametrize(
    ("notify", "sentence"),
    [
        (("no-such-command",), "there is no command 'no-such-command'"),
        ("$NOT_SET", r"is the environment variable \$NOT_SET, which is not set"),
        ("chat.example.org", "'chat.example.org' is no address"),
    ],
)
def test_nobody_to_tell_is_found_before_a_run(notify: Any, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        notification.check(notify)


def test_the_interval_is_paired() -> None:
    rng = np.random.default_rng(0)
    nats, items = rng.uniform(50, 150, 64), np.full(64, 40)

    def cell(values: np.ndarray) -> Cell:
        return Cell("text", "general", "", {"nats": values}, {"items": items}, {"bytes_per_token": 3.0})

    change = worse(cell(nats), cell(nats * 1.01), "general")
    direct = (nats.sum() * 0.01) / (items.sum() * 3.0 * np.log(2))
    assert change.value == pytest.approx(direct)
    assert change.interval is not None
    low, high = change.interval
    assert low < direct < high
    assert high - low < 0.2 * direct  # unpaired it would be wider than the change itself


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ({"stop": {"general": 0.1}, "general": None}, "`stop.general` needs held-out general text"),
        ({"stop": {"every": 5}, "evaluation": {"every": 5}}, "remove `evaluation.every`"),
        ({"stop": {"every": 5}, "each": {"validation": None}}, "`stop` needs held-out text"),
        ({"stop": {"generall": 0.1}}, "generall"),
        ({"stop": {"then": "lower"}}, "needs a bound"),
        ({"stop": {"earlier": 0.1}, "method": "ensemble"}, "'ensemble' is evaluated with more than that model"),
        (
            {"stop": {"general": 0.1, "then": "lower"}, "train": {"lr_scheduler_type": "reduce_lr_on_plateau"}},
            "`stop.then: lower`",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path: Path, groups: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        recipe(tmp_path, "gpt2", **{"general": True, **groups})
