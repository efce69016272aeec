"""The grid: every way of making a cell, missing cells only, kill and resume, a failing cell, sharing, settings."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import tiny
from bench_suite import STEPS, TinySuite
from cli_project import write_jsonl
from everlearn import files
from everlearn.comparison.comparison import compare
from everlearn.comparison.runs import Run
from everlearn.config.recipe import parse
from everlearn.data.corpus import Document, is_held_out
from everlearn.errors import MethodError, RecipeError, RunError, TrainingDiverged
from everlearn.evaluation import METRICS, Results
from everlearn.grid import Grid, GridRun, load_results, summarise
from everlearn.grid import arrangements as making_module
from everlearn.grid.archive import pack
from everlearn.grid.arrangements import Made
from everlearn.grid.cells import load_cell
from everlearn.grid.numbers import NUMBERS, numbers, parts
from everlearn.grid.page import status_table
from everlearn.grid.rows import entry_of, in_order, resolve
from everlearn.grid.runs import Once
from everlearn.learner import ContinualLearner
from everlearn.methods.penalties.ewc import EWC
from everlearn.report.tables import markdown_table
from everlearn.run.folder import RunFolder
from everlearn.run.progress import Reporter
from everlearn.run.row_scorer import RowScorer
from everlearn.tasks.labelled import EndTask, read_end_task
from everlearn_bench.suites import find_suite, overlay_of

ALL = ["constant", "none", "separate", "pool", "ncl", "ewc"]
EWC_OPTIONS = {"ewc": {"samples": 4, "strength": 10.0}}


SIX = find_suite("six-domains")


def grid(
    folder: Path, entries=("ncl",), orders=(0,), seeds=(0,), changes: dict[str, Any] | None = None, **options
) -> Grid:
    return Grid(
        TinySuite(folder).on(overlay_of(changes or {"grid": {"methods": EWC_OPTIONS}})),
        resolve(entries, TinySuite(folder)),
        orders,
        seeds,
        folder / "results",
        folder / "runs",
        **options,
    )


def cell(folder: Path, name: str) -> Run:
    found = load_cell(folder / "results", name)
    assert found is not None
    return found


def at(run: Run, row: int) -> dict[str, float | None]:
    """The scores of a row: its text in bits per byte, its end tasks in accuracy and F1."""
    return {
        f"{metric} {column}": run.matrices[metric].cell(row, column).value
        for metric in ("bits_per_byte", "accuracy", "macro_f1")
        if metric in run.matrices
        for column in run.matrices[metric].columns
    }


class Speaks(Reporter):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_a_group_leaves_out_what_the_model_cannot_have(tmp_path: Path) -> None:
    """Named outright it is refused; in the company of a group that has it, too."""

    class Grouped(TinySuite):
        groups: ClassVar = {"all": ("ncl", "lfpt5")}

    suite, reporter = Grouped(tmp_path), Speaks()
    for words, left in ((["all"], ["sequential-order0-seed0"]), (["lfpt5"], None), (["all", "lfpt5"], None)):
        entries = resolve(words, suite)
        made = Grid(suite, entries, (0,), (0,), tmp_path / "results", tmp_path / "runs", reporter=reporter)
        assert len({entry.name for entry in entries}) == len(entries)
        if left is None:
            with pytest.raises(MethodError, match=r"^lfpt5: Method 'lfpt5'"):
                made.check()
            continue
        made.check()
        assert [each.name for each in made.cells] == left
        said = [line for line in reporter.lines if line.startswith("Left out")]
        assert len(said) == 1
        assert "lfpt5. Method 'lfpt5' does not work with objective 'masked'" in said[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished grid with everything in it, models kept."""
    folder = tmp_path_factory.mktemp("grid")
    states = grid(folder, ALL, keep=True).run()
    assert [(state.state, state.reason) for state in states] == [("done", "")] * len(ALL)
    return folder


def copy_of(whole: Path, folder: Path) -> Path:
    """The same grid elsewhere, with its data where it was."""
    shutil.copytree(whole / "results", folder / "results")
    shutil.copytree(whole / "runs", folder / "runs")
    return folder


def test_a_cell_of_a_stream_is_its_run_and_what_the_grid_says_of_it(whole: Path) -> None:
    found = cell(whole, "sequential-order0-seed0")
    results = Results.load(whole / "runs/sequential-order0-seed0/run")
    assert found.results == results.model_dump(mode="json") | {"grid": found.results["grid"]}
    assert found.grid.examples == {"a": 24, "b": 24, "c": 24}
    assert found.tokens == results.cost.tokens == 3 * STEPS * 2 * 32
    assert cell(whole, "ewc-order0-seed0").grid.options == {"samples": 4, "strength": 10.0}


def test_both_pages_of_a_grid_say_one_thing(whole: Path) -> None:
    """Every number of the grid's tables is the measure of the report of its runs: quantity, columns and mean."""
    names = ("sequential-order0-seed0", "ewc-order0-seed0")
    plain, ewc = summarise([cell(whole, name) for name in names])
    comparison = compare([whole / "runs" / name / "run" for name in names])
    said = {number: comparison.measure(metric, quantity) for number, (metric, quantity) in NUMBERS.items()}
    shown = {number: measure for number, measure in said.items() if measure is not None}
    assert {"accuracy", "accuracy_forgetting", "bits", "bits_learnt", "bits_held", "bits_drift"} <= shown.keys()
    for number, measure in shown.items():
        if measure.estimates[0].value is None:  # a column of it was not measured
            assert number not in plain.numbers
            continue
        for place, line in enumerate((plain, ewc)):
            assert line.numbers[number].value == pytest.approx(measure.estimates[place].value, rel=1e-12), number
        apart = ewc.differences[number].estimate.value
        assert apart == pytest.approx(measure.difference(1).value, rel=1e-9, abs=1e-12), number


def test_only_diagonal_and_final_end_tasks_are_fine_tuned(whole: Path) -> None:
    evaluation = whole / "runs/sequential-order0-seed0/run/evaluation"
    places = [evaluation / f"stage-0{row}/tasks" for row in range(4)]
    measured = [sorted(path.stem for path in place.glob("*.safetensors")) for place in places]
    assert measured == [["a", "b", "c"], ["a"], ["b"], ["a", "b", "c"]]


def test_the_base_model_is_measured_once(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = cell(whole, "none")
    assert base.grid.order is None
    assert base.grid.seed is None
    assert at(base, 0) == at(base, -1)
    assert None not in at(base, 0).values()
    for name in ("sequential-order0-seed0", "ewc-order0-seed0", "separate-seed0", "pool-seed0"):
        assert at(cell(whole, name), 0) == at(base, 0)
    rows: list[int] = []
    original = RowScorer.measure_task
    monkeypatch.setattr(RowScorer, "measure_task", lambda s, config: (rows.append(s.row), original(s, config))[1])
    shutil.copytree(whole / "runs/base", tmp_path / "runs/base")
    again = grid(whole, ["ncl"])
    again.results, again.runs = tmp_path / "results", tmp_path / "runs"
    assert [state.state for state in again.run()] == ["done"]
    assert 0 not in rows
    assert at(cell(tmp_path, "sequential-order0-seed0"), -1) == at(cell(whole, "sequential-order0-seed0"), -1)


def test_the_most_frequent_label_of_the_training_part(whole: Path, tmp_path: Path) -> None:
    """By hand: after max_train, over the labels of the training part, at both moments alike."""
    found = cell(whole, "constant")
    assert (found.grid.order, found.grid.seed, found.tokens, found.training_seconds) == (None, None, 0, 0.0)
    assert "bits_per_byte" not in found.matrices
    assert found.domains == ["a", "b", "c"]
    assert found.tasks == cell(whole, "none").tasks
    for name in found.tasks:  # half of the 24 test examples have either label: F1 is 2/3 and 0
        assert numbers(found)[f"accuracy/{name}"] == 0.5
        assert parts(found, "macro_f1")[name] == pytest.approx(1 / 3)
        assert numbers(found)[f"f1/{name}"] == (0.5 if name == "c" else parts(found, "macro_f1")[name])
        assert found.grid.shares[name] == [0.5, 0.5]
    labels = {"train": "xxyyyzzzz", "test": "xyyyzw"}
    for part, words in labels.items():
        lines = [f'{{"text": "t", "label": "{word}"}}\n' for word in words]
        (tmp_path / f"{part}.jsonl").write_text("".join(lines))
    own = {"name": "t", "train": str(tmp_path / "train.jsonl"), "test": str(tmp_path / "test.jsonl")}
    told = making_module.always_the_most_frequent(EndTask(**own, unseen_labels="wrong"))
    assert told["predictions"].tolist() == [[2] * 6]
    scores = {name: METRICS[name].score(told) for name in ("accuracy", "macro_f1", "f1")}
    assert scores == {"accuracy": pytest.approx(1 / 6), "macro_f1": pytest.approx(2 / 7 / 3), "f1": scores["macro_f1"]}
    fewer = EndTask(**own, unseen_labels="wrong", max_train=4, max_test=3)
    train, test = read_end_task(fewer)
    counts = Counter(train.labels.tolist())
    told = making_module.always_the_most_frequent(fewer)
    assert told["truth"].tolist() == test.labels.tolist()
    assert told["predictions"].tolist() == [[max(sorted(counts), key=counts.__getitem__)] * 3]
    assert told.facts["classes"] == sorted(counts)


def test_separate_models_start_from_the_base(whole: Path) -> None:
    """The first domain of plain training is that domain alone; the others are not what the stream made of them."""
    alone, stream = cell(whole, "separate-seed0"), cell(whole, "sequential-order0-seed0")
    first, streamed = at(alone, 1), at(stream, 1)
    for score in ("accuracy a", "macro_f1 a", "bits_per_byte a"):
        assert first[score] == streamed[score]
    assert first["bits_per_byte b"] != at(stream, 2)["bits_per_byte b"]
    assert alone.tokens == stream.tokens
    drifts = [
        Results.load(whole / f"runs/separate-seed0/{name}").matrices["bits_per_byte"].values[1][1] for name in "abc"
    ]
    assert first["bits_per_byte general"] == pytest.approx(sum(drifts) / 3)
    learnt = alone.matrices["bits_per_byte"].learnt_at
    assert learnt == {"a": "alone", "b": "alone", "c": "alone"}
    assert "bits_learnt" in numbers(alone)
    assert "bits_forgotten" not in numbers(alone)


def test_pool_learns_all_domains_in_one_training(whole: Path) -> None:
    found = cell(whole, "pool-seed0")
    documents = (whole / "runs/pool-corpus/documents.jsonl").read_text().splitlines()
    assert len(documents) == 3 * 40
    recipe = RunFolder(whole / "runs/pool-seed0/run").recipe()
    assert recipe.train["max_steps"] == 3 * STEPS
    assert recipe.train["warmup_steps"] == 3
    assert found.tokens == cell(whole, "sequential-order0-seed0").tokens
    assert found.tasks == ["a", "b", "c"]
    assert found.matrices["bits_per_byte"].columns == ["a", "b", "c", "general"]
    assert at(found, 1)["bits_per_byte a"] < at(found, 0)["bits_per_byte a"]
    assert {"bits", "bits_held", "bits_drift", "accuracy"} <= numbers(found).keys()
    assert "bits_learnt" not in numbers(found)


def test_the_pool_has_what_the_stream_learns_and_nothing_that_it_measures(tmp_path: Path) -> None:
    """Sources one by one, wherever it is called from; of a corpus that is one text, all but the end."""
    one = " ".join(f"word{number}" for number in range(200))
    files = {"some": tiny.texts(40, 1), "more": tiny.texts(40, 2), "one": [one]}
    for name, texts in files.items():
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": text} for text in texts])
    sources = [{"path": str(tmp_path / f"{name}.jsonl")} for name in ("some", "more")]
    recipe = parse(
        {
            "model": "none",
            "domains": [
                {"name": "two", "sources": sources, "validation": 0.25},
                {"name": "one", "path": str(tmp_path / "one.jsonl"), "validation": 0.25},
            ],
        }
    )
    lines = making_module.pooled(recipe, tmp_path / "pool").read_text().splitlines()
    found = [json.loads(line)["text"] for line in lines]
    kept = [text for text in (*files["some"], *files["more"]) if not is_held_out(Document(text), 0.25)]
    assert found[:-1] == kept
    assert len(kept) < 80
    assert one.startswith(found[-1].strip())
    assert 0.6 < len(found[-1]) / len(one) < 0.9


def test_a_domain_that_is_learnt_again_is_pooled_once(tmp_path: Path) -> None:
    texts = tiny.texts(60, 1)
    for name, own in (("old", texts[:40]), ("grown", texts)):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": text} for text in own])
    first = {"name": "a", "path": str(tmp_path / "old.jsonl"), "validation": 0.25}
    again = [
        {"name": "a-2", "continues": "a"},
        {"name": "a-3", "continues": "a", "path": str(tmp_path / "grown.jsonl")},
    ]
    recipe = parse({"model": "none", "domains": [first, *again]})
    lines = making_module.pooled(recipe, tmp_path / "pool").read_text().splitlines()
    kept = [text for text in texts if not is_held_out(Document(text), 0.25)]
    assert [json.loads(line)["text"] for line in lines] == kept


@pytest.mark.parametrize("packed", [False, True], ids=["files", "archive"])
def test_only_missing_cells_are_made(
    packed: bool, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_of(whole, tmp_path)
    (tmp_path / "results/sequential-order0-seed0.json").unlink()
    if packed:
        assert pack(tmp_path / "results") == len(ALL) - 1
    shutil.rmtree(tmp_path / "runs/sequential-order0-seed0")
    trained: list[Path] = []
    original = ContinualLearner.train_stage
    monkeypatch.setattr(
        ContinualLearner,
        "train_stage",
        lambda self, *rest: (trained.append(self.folder.path), original(self, *rest))[1],
    )
    again = grid(whole, ALL)
    again.results, again.runs = tmp_path / "results", tmp_path / "runs"
    assert [state.state for state in again.states()].count("missing") == 1
    again.run()
    assert set(trained) == {tmp_path / "runs/sequential-order0-seed0/run"}
    assert len(trained) == 3
    kept = list((tmp_path / "runs/sequential-order0-seed0/run").glob("stage-*"))
    assert kept == []
    assert (tmp_path / "runs/sequential-order0-seed0/run/evaluation/stage-01/tasks/a.safetensors").is_file()
    trained.clear()
    (tmp_path / "results/sequential-order0-seed0.json").unlink()
    again.run()
    assert trained == []  # a lost result comes from the run that is there
    assert at(cell(tmp_path, "sequential-order0-seed0"), -1) == at(cell(whole, "sequential-order0-seed0"), -1)


def test_a_killed_grid_goes_on_and_ends_the_same(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    original, calls = ContinualLearner.train_stage, []

    def dying(self: ContinualLearner, index: int, *rest: object) -> None:
        calls.append(index)
        if calls == [1, 2]:
            raise Killed
        original(self, index, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ContinualLearner, "train_stage", dying)
    first = grid(whole, ["ewc"])
    first.results, first.runs = tmp_path / "results", tmp_path / "runs"
    with pytest.raises(Killed):
        first.run()
    assert [state.state for state in first.states()] == ["missing"]
    assert not list((tmp_path).glob("results/*"))
    for place in (first.results, first.runs, first.runs / "ewc-order0-seed0"):
        place.mkdir(exist_ok=True)
        left = place / f"{files.PARTIAL}half.0"
        left.mkdir()
        os.utime(left, (0, 0))
    first.run()
    assert calls == [1, 2, 2, 3]
    assert not list(tmp_path.rglob(f"{files.PARTIAL}*"))
    mine, theirs = cell(tmp_path, "ewc-order0-seed0"), cell(whole, "ewc-order0-seed0")
    assert all(at(mine, row) == at(theirs, row) for row in range(4))


def test_a_failing_cell_does_not_stop_the_others(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: EWC, *rest: object) -> None:
        raise ZeroDivisionError("no Fisher today")

    with monkeypatch.context() as patch:
        patch.setattr(EWC, "end_domain", broken)
        found = grid(whole, ["ewc", "ncl"])
        found.results, found.runs = tmp_path / "results", tmp_path / "runs"
        states = {state.cell: state for state in found.run()}
        failed = states["ewc-order0-seed0"]
        assert (failed.state, failed.reason) == ("failed", "ZeroDivisionError: no Fisher today")
        assert states["sequential-order0-seed0"].state == "done"
        assert "broken" in files.read_json(tmp_path / "runs/ewc-order0-seed0/failed.json")["traceback"]
    assert {state.state for state in found.run()} == {"done"}


def test_two_methods_that_fail_alike_stop_the_grid_and_one_method_does_not(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each cell of a row raises; sequential (`ncl`) and EWC are made in turn, for two seeds."""
    tries: list[str] = []

    def made(raised: Mapping[str, Exception]) -> list[str]:
        def make(self: Grid, which: GridRun, place: Path) -> Made:
            tries.append(which.name)
            raise raised[which.entry.name]

        tries.clear()
        found = grid(whole, ["ncl", "ewc"], seeds=(5, 6))
        found.results, found.runs = tmp_path / "results", tmp_path / "runs"
        found.cells = [replace(cell, entry=replace(cell.entry, make=make)) for cell in found.cells]
        assert {state.state for state in found.run()} == {"failed"}
        return tries

    monkeypatch.setattr(Grid, "base", lambda self, job: None)
    same = TypeError("unhashable type: 'slice'")
    with pytest.raises(RunError) as stopped:
        made({"sequential": same, "ewc": same})
    assert tries == ["sequential-order0-seed5", "ewc-order0-seed5"]
    for part in (
        "sequential-order0-seed5 and ewc-order0-seed5 failed one after the other with the same error: TypeError: "
        "unhashable type: 'slice'. 0 of 4 runs are done; ",
        "missing: sequential-order0-seed6, ewc-order0-seed6",
        "failed: sequential-order0-seed5, ewc-order0-seed5",
        "ewc-order0-seed5/failed.json), and start the same command again",
    ):
        assert part in str(stopped.value)
    assert len(made({"sequential": same, "ewc": TypeError("another")})) == 4
    diverged = TrainingDiverged("The loss is not finite.")
    assert len(made({"sequential": diverged, "ewc": diverged})) == 4, "that is a result of such a learning rate"


def test_settings_of_one_method_may_fail_alike(whole: Path) -> None:
    ewc, plain, pool = grid(whole, ["ewc", "ncl", "pool"]).cells
    assert ewc.same_method(replace(ewc, changes={"train.learning_rate": 1.0}, seed=1))
    assert not ewc.same_method(plain)
    assert not plain.same_method(pool)


def test_a_cell_of_another_process_is_left_alone(whole: Path, tmp_path: Path) -> None:
    copy_of(whole, tmp_path)
    (tmp_path / "results/sequential-order0-seed0.json").unlink()
    found = grid(whole, ["ncl"])
    found.results, found.runs = tmp_path / "results", tmp_path / "runs"
    with RunFolder(tmp_path / "runs/sequential-order0-seed0").lock():
        assert [state.state for state in found.run()] == ["running"]
    assert not (tmp_path / "results/sequential-order0-seed0.json").exists()
    assert [state.state for state in found.run()] == ["done"]


def test_what_a_killed_process_left_is_made_after_the_rest(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second cell is missing at first, locked when its turn comes, and free once the third is made."""
    copy_of(whole, tmp_path)
    shutil.rmtree(tmp_path / "results")
    said: list[str] = []
    monkeypatch.setattr(Once, "say", lambda self, text: said.append(text))
    found = grid(whole, ["none", "ncl", "ewc"])
    found.results, found.runs = tmp_path / "results", tmp_path / "runs"
    other, made = contextlib.ExitStack(), []
    original = Grid._make

    def make(self: Grid, which: GridRun, place: Path) -> None:
        made.append(which.entry.name)
        original(self, which, place)
        if which.entry.name == "none":
            other.enter_context(RunFolder(tmp_path / "runs/sequential-order0-seed0").lock())
        elif which.entry.name == "ewc":
            other.close()  # the other process dies

    monkeypatch.setattr(Grid, "_make", make)
    assert [state.state for state in found.run()] == ["done"] * 3
    assert made == ["none", "ewc", "sequential"]
    assert "sequential-order0-seed0: another process works on it." in said


def test_processes_that_share_a_grid_try_a_failing_cell_once(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process starts and ends while the first makes its first cell."""
    tries: list[str] = []

    def broken(self: Grid, which: GridRun, place: Path) -> Made:
        tries.append(which.name)
        raise ZeroDivisionError("never")

    def sharing() -> Grid:
        found = grid(whole, ["ncl", "ewc"])
        found.results, found.runs = tmp_path / "results", tmp_path / "runs"
        found.cells[1] = replace(found.cells[1], entry=replace(found.cells[1].entry, make=broken))
        return found

    copy_of(whole, tmp_path)
    original = Grid._make
    for tried in (1, 2):  # the second time there is a failure of an earlier start
        shutil.rmtree(tmp_path / "results")
        first, second = sharing(), sharing()
        seen: list[str] = []

        def make(
            self: Grid, which: GridRun, place: Path, first: Grid = first, second: Grid = second, seen: list[str] = seen
        ) -> None:
            if self is first:
                seen += [state.state for state in second.run()]
            original(self, which, place)

        with monkeypatch.context() as patch:
            patch.setattr(Grid, "_make", make)
            states = first.run()
        assert seen == ["running", "failed"]
        assert [state.state for state in states] == ["done", "failed"]
        assert tries == ["ewc-order0-seed0"] * tried


def test_a_state_holds_while_other_processes_go_on(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right before the lock is taken another process finishes the cell; right after it a try begins."""
    copy_of(whole, tmp_path)
    result, failed = tmp_path / "results/ewc-order0-seed0.json", tmp_path / "runs/ewc-order0-seed0/failed.json"
    text = result.read_text()
    found = grid(whole, ["ewc"])
    found.results, found.runs = tmp_path / "results", tmp_path / "runs"
    original = RunFolder.lock

    @contextlib.contextmanager
    def lock(self: RunFolder, *rest: bool) -> Iterator[None]:
        before()
        with original(self, *rest):
            yield
        failed.unlink(missing_ok=True)

    monkeypatch.setattr(RunFolder, "lock", lock)
    result.unlink()
    before: Callable[[], object] = lambda: result.write_text(text)  # noqa: E731
    assert [state.state for state in found.states()] == ["done"]
    result.unlink()
    before = lambda: files.write_json(failed, {"sentence": "No disk."})  # noqa: E731
    assert [(state.state, state.reason) for state in found.states()] == [("failed", "No disk.")]


def test_the_base_model_is_not_measured_for_what_does_without(tmp_path: Path) -> None:
    assert [state.state for state in grid(tmp_path, ["constant"]).run()] == ["done"]
    assert numbers(cell(tmp_path, "constant"))["accuracy/a"] == 0.5
    assert not (tmp_path / "runs/base").exists()


def test_the_corpus_of_all_domains_is_written_by_one_process(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = grid(whole, ["pool"])
    found.runs = tmp_path

    def writing(*_: object) -> Path:
        with pytest.raises(RunError, match="Another process"), RunFolder(tmp_path).lock():
            pass
        raise ZeroDivisionError("locked")

    monkeypatch.setattr(making_module, "pooled", writing)
    with pytest.raises(ZeroDivisionError, match="locked"):
        making_module.pool(found, found.cells[0], tmp_path / "pool-seed0")


def test_a_call_tries_each_cell_once_and_says_what_runs_elsewhere(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def broken(self: Grid, which: GridRun, place: Path) -> Made:
        tries.append(which.name)
        raise ZeroDivisionError("never")

    copy_of(whole, tmp_path)
    shutil.rmtree(tmp_path / "results")
    found = grid(whole, ["ncl", "ewc", "none"])
    found.results, found.runs = tmp_path / "results", tmp_path / "runs"
    found.cells[1] = replace(found.cells[1], entry=replace(found.cells[1].entry, make=broken))
    with RunFolder(tmp_path / "runs/sequential-order0-seed0").lock():
        states = found.run()
    assert tries == ["ewc-order0-seed0"]
    assert [state.state for state in states] == ["running", "failed", "done"]
    text = markdown_table(status_table(states), 3)
    assert "1 of 3 runs is done; failed: ewc-order0-seed0; running: sequential-order0-seed0." in text
    assert "| sequential-order0-seed0 | running | Another process works on it." in text


def test_other_settings_are_refused(whole: Path) -> None:
    with pytest.raises(RunError, match=r"other settings \(`train.max_steps`: 2 there, 7 here\).*--results"):
        grid(whole, changes={"train": {"max_steps": 7}})
    with pytest.raises(RunError, match=r"other options of 'ewc'.*10\.0.*11\.0"):
        grid(whole, ["ewc"], changes={"grid": {"methods": {"ewc": {"samples": 4, "strength": 11.0}}}}).run()
    assert [state.state for state in grid(whole, ["ncl"], changes={"grid": {"methods": {}}}).states()] == ["done"]
    with pytest.raises(RecipeError, match=r"`--orders` names 9; `tiny` has 0, 1"):
        grid(whole, orders=(9,))


def test_other_data_is_other_settings(whole: Path, tmp_path: Path) -> None:
    """The place of the data does not matter, what is in it does."""
    for path in whole.glob("*.jsonl"):
        shutil.copy(path, tmp_path)
    shutil.copytree(whole / "model", tmp_path / "model")
    shutil.copytree(whole / "results", tmp_path / "results")
    assert [state.state for state in grid(tmp_path, ALL).states()] == ["done"] * 6
    with (tmp_path / "b.train.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    with pytest.raises(RunError, match=r"`corpora.b`"):
        grid(tmp_path)


def test_cells_are_entries_by_orders_by_seeds(tmp_path: Path) -> None:
    names = [each.name for each in grid(tmp_path, ALL[1:5], orders=(0, 1), seeds=(0, 1)).cells]
    own = [f"{name}-seed{seed}" for seed in (0, 1) for name in ("separate", "pool")]
    streams = [f"sequential-order{order}-seed{seed}" for seed in (0, 1) for order in (0, 1)]
    assert sorted(names) == sorted(["none", *own, *streams])
    assert names.index("sequential-order1-seed0") < names.index("sequential-order0-seed1")


def test_a_damaged_or_foreign_result_is_named(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "results", tmp_path / "results")
    assert len(load_results(tmp_path / "results")) == 6
    files.write_json(tmp_path / "results/notes.json", {"hello": 1})
    with pytest.raises(RunError, match=r"notes\.json' is no run"):
        load_results(tmp_path / "results")


def test_names_of_the_paper_and_ours() -> None:
    wanted = ["NCL", "das", "DER++", "HAT-All", "sequential", "Pool", "RoBERTa"]
    assert [entry.name for entry in resolve(wanted, SIX)] == [
        "sequential",
        "das",
        "derpp",
        "hat_all",
        "pool",
        "none",
    ]
    assert resolve(["DAP-RoBERTa"], SIX)[0].name == "separate"
    assert resolve(["hat_all"], SIX)[0].title == "HAT-All"
    table = resolve(["all", "das"], SIX)
    assert [entry.name for entry in table[:2]] == ["constant", "none"]
    assert len(table) == len(SIX.groups["all"]) == len({entry.title for entry in table})
    everything = resolve(["all", "ablations", "relatives"], SIX)
    assert [entry.name for entry in everything[-5:]] == ["cpt", "dga", "adapter_cl", "elle", "migu"]
    shown = [entry.name for entry in everything]
    assert shown == in_order(sorted(shown), SIX)
    with pytest.raises(MethodError, match=r"`--methods` names 'ewcc'.*Did you mean 'ewc'"):
        resolve(["ewcc"], SIX)
    assert entry_of("ewc", SIX).make is making_module.stream


def test_kept_models_are_whole(whole: Path) -> None:
    for run in (
        "sequential-order0-seed0/run/stage-03-c",
        "separate-seed0/b/stage-01-b",
        "pool-seed0/run/stage-01-pool",
    ):
        assert files.damage(whole / "runs" / run) is None
        assert all(
            torch.isfinite(x).all() for x in files.load_tensors(whole / "runs" / run / "model.safetensors").values()
        )
