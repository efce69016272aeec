"""``everlearn bench`` as a user types it: suites of documents, of tasks, and `m2d2`."""

from __future__ import annotations

import contextlib
import errno
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import continual_tasks as small
import tiny
from bench_suite import TinySuite
from cli_project import Project
from everlearn.errors import RecipeError, RunError
from everlearn.evaluation import Results
from everlearn.files import write_text
from everlearn.grid import Grid, load_results
from everlearn.run.writable import check_place
from everlearn_bench.suites import SUITES
from everlearn_bench.suites.continual_tasks.suite import StandardCL
from everlearn_bench.suites.sources import Fetchable
from grid_cells import cell_of, like, write


@pytest.fixture
def suite(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> TinySuite:
    made = TinySuite(everlearn.folder / "suite")
    monkeypatch.setitem(SUITES, "tiny", made)
    return made


def test_a_grid_from_the_command_line(everlearn: Project, suite: TinySuite) -> None:
    (everlearn.folder / "tiny.yaml").write_text("train: {max_steps: 1}\n")
    words = ("bench", "tiny", "--methods", "NCL,none", "--seeds", "0", "--settings", "tiny.yaml", "--json")
    first = everlearn(*words)
    assert first.code == 0, first.err
    value = json.loads(first.out)
    assert [cell["state"] for cell in value["cells"]] == ["done", "done"]
    assert [line["entry"] for line in value["lines"]] == ["none", "sequential"]
    assert (everlearn.folder / "bench/tiny/sequential-order0-seed0.json").is_file()
    assert (everlearn.folder / "bench/tiny/index.html").is_file()
    assert not list((everlearn.folder / "runs/bench-tiny").glob("*/*/stage-*"))
    again = everlearn(*words[:-1])
    assert again.code == 0
    assert "Learning" not in again.err
    assert "All 2 runs are done." in again.out
    everlearn.fails(
        *("bench", "tiny", "--methods", "ncl", "--seeds", "0", "--budget", "199"), says=("other settings", "--results")
    )


def test_show_runs_nothing(everlearn: Project, suite: TinySuite) -> None:
    everlearn.fails("bench", "tiny", "--show", says=("no results yet",))
    everlearn("bench", "tiny", "--methods", "none", "--seeds", "0")
    shown = everlearn("bench", "tiny", "--show", "-o", "table.md", "-o", "table.tex")
    assert shown.code == 0
    assert "No adaptation" in shown.out
    assert "Wrote table.tex" in shown.out
    assert (everlearn.folder / "table.md").read_text().startswith("### F1 of end tasks")
    everlearn.fails("bench", "tiny", "--show", "--reference", "das", says=("`--reference` is 'das'",))
    everlearn.fails("bench", "tiny", "--show", "--reference", "dass", says=("`--reference` names 'dass'",))
    copy = everlearn.folder / "bench/tiny/none-copy.json"
    copy.write_bytes((everlearn.folder / "bench/tiny/none.json").read_bytes())
    everlearn.fails("bench", "tiny", "--show", says=("none-copy.json' holds the run none",))
    copy.unlink()
    (everlearn.folder / "bench/tiny/none.json").write_text("[]")
    everlearn.fails("bench", "tiny", "--show", says=("none.json' is no run of a grid: Input should be",))


def test_a_part_of_the_results_does_not_replace_the_page_of_all(everlearn: Project, suite: TinySuite) -> None:
    everlearn("bench", "tiny", "--methods", "none,constant", "--seeds", "0")
    index = everlearn.folder / "bench/tiny/index.html"
    whole = index.read_text()
    assert "Most frequent label" in whole
    assert "No adaptation" in whole
    part = everlearn("bench", "tiny", "--show", "--methods", "none")
    assert part.code == 0
    assert "No adaptation" in part.out
    assert "Most frequent label" not in part.out
    assert "Wrote" not in part.out
    assert index.read_text() == whole
    written = everlearn("bench", "tiny", "--show", "--methods", "none", "-o", "part.md")
    assert "Wrote part.md" in written.out
    assert "Most frequent label" not in (everlearn.folder / "part.md").read_text()
    index.write_text("old")
    assert "Wrote bench/tiny/index.html" in everlearn("bench", "tiny", "--show").out
    assert index.read_text() == whole
    everlearn.fails(
        *("bench", "tiny", "--show", "--methods", "bcl,kd"),
        says=("no results of `bcl` or `kd`", "`--methods`", "only of constant, none"),
    )


def test_the_reference_needs_no_row(everlearn: Project, suite: TinySuite) -> None:
    everlearn("bench", "tiny", "--methods", "none,constant", "--seeds", "0")
    for words in (("--reference", "none"), ()):
        shown = everlearn("bench", "tiny", "--show", "--methods", "constant", *words, "--json")
        assert shown.code == 0, shown.err
        value = json.loads(shown.out)
        assert value["reference"] == "none"
        assert [line["entry"] for line in value["lines"]] == ["constant"]
        assert value["lines"][0]["differences"].keys() >= {"f1", "accuracy"}


def test_results_that_nobody_may_write_to_are_shown(
    everlearn: Project, suite: TinySuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    everlearn("bench", "tiny", "--methods", "constant", "--seeds", "0")

    def forbidden(path: Path, text: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", f"{path}.partial")

    monkeypatch.setattr("everlearn.files.write_text", forbidden)
    shown = everlearn("bench", "tiny", "--show")
    assert shown.code == 0, shown.err
    assert "Most frequent label" in shown.out
    assert "The page bench/tiny/index.html was not written: Read-only file system\n" in shown.out
    monkeypatch.undo()
    monkeypatch.setitem(SUITES, "tiny", suite)
    monkeypatch.chdir(everlearn.folder)
    (everlearn.folder / "there.md").mkdir()
    everlearn.fails("bench", "tiny", "--show", "-o", "there.md", says=("`--output` is 'there.md', which is a folder",))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-o", "there.md"), ("`--output` is 'there.md', which is a folder; it must be a file",)),
        (("-o", "a.jsonl/x.md"), ("`--output` is 'a.jsonl/x.md'", "/a.jsonl': Not a directory")),
        (("-o", "a.jsonl/new/x.md"), ("`--output` is 'a.jsonl/new/x.md'", "/a.jsonl': Not a directory")),
        (("--claims", "there.md"), ("`--claims` is 'there.md', which is a folder",)),
        (("--claims", "a.jsonl/x.md"), ("`--claims` is 'a.jsonl/x.md'", "Not a directory")),
        (("--results", "a.jsonl"), ("`--results` is 'a.jsonl', which is a file; it must be a folder",)),
        (("--runs", "a.jsonl/new"), ("`--runs` is 'a.jsonl/new'", "Not a directory")),
        (("--results", "link"), ("`--results` is 'link'", "/unmounted/disk': No such file")),
        (("--results", "link/new"), ("`--results` is 'link/new'", "/unmounted/disk': No such file")),
        (("-o", "link/x.md"), ("`--output` is 'link/x.md'", "/unmounted/disk': No such file")),
        (("--runs", "r" * 300), ("`--runs` is 'rrr", "File name too long")),
        (("-o", f"new/{'x' * 240}.md"), ("`--output` is 'new/xxx", "File name too long")),
    ],
)
def test_what_cannot_be_written_is_known_before_anything_runs(
    everlearn: Project, suite: TinySuite, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: tuple[str, ...]
) -> None:
    (everlearn.folder / "there.md").mkdir()
    (everlearn.folder / "link").symlink_to("unmounted/disk")
    monkeypatch.setattr(Grid, "run", lambda self: pytest.fail("the grid ran"))
    everlearn.fails("bench", "tiny", "--methods", "none", *words, says=says)
    assert not (everlearn.folder / "bench").exists()
    assert not (everlearn.folder / "runs").exists()


def test_the_longest_name_that_can_be_written(tmp_path: Path) -> None:
    """What passes is what :func:`write_text` can write: the partial file's name is longer."""
    fits = []
    for length in range(225, 256):
        place = tmp_path / ("x" * length)
        with contextlib.suppress(RunError):
            write_text(place, "")
        if place.exists():
            check_place("--output", place)
            fits.append(length)
        else:
            with pytest.raises(RecipeError, match="File name too long"):
                check_place("--output", place)
    assert fits
    assert max(fits) < 255
    assert len(list(tmp_path.iterdir())) == len(fits)


def test_a_forbidden_folder_is_known_before_anything_runs(
    everlearn: Project, suite: TinySuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, dir: object = None, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(dir))

    monkeypatch.setattr(Grid, "run", lambda self: pytest.fail("the grid ran"))
    monkeypatch.setattr("everlearn.run.writable.tempfile.NamedTemporaryFile", forbidden)
    everlearn.fails(
        *("bench", "tiny", "--methods", "none", "--results", "new/results"),
        says=("`--results` is 'new/results'", "cannot be written in", "Permission denied"),
    )


def test_one_failed_cell_ends_with_code_1(
    everlearn: Project, suite: TinySuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    from everlearn.learner import ContinualLearner

    def broken(*_: object) -> None:
        raise RuntimeError("no electricity")

    monkeypatch.setattr(ContinualLearner, "train_stage", broken)
    outcome = everlearn("bench", "tiny", "--methods", "ncl,none", "--seeds", "0")
    assert outcome.code == 1
    assert "RuntimeError: no electricity" in outcome.out
    assert "1 of 2 runs is done; failed: sequential-order0-seed0." in " ".join(outcome.out.split())
    alone = everlearn("bench", "tiny", "--methods", "ncl", "--seeds", "0", "--results", "other", "--json")
    assert alone.code == 1
    assert json.loads(alone.out)["cells"][0]["reason"] == "RuntimeError: no electricity"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("six-domain",), ("no suite 'six-domain'", "'six-domains'")),
        (("tiny",), ("--methods",)),
        (("tiny", "--methods", "dass"), ("'dass'", "Did you mean 'das'")),
        (("tiny", "--methods", "ncl", "--orders", "one"), ("`--orders` is 'one'",)),
        (("tiny", "--methods", "ncl", "--orders", "5"), ("`--orders` names 5", "0, 1")),
        (("tiny", "--methods", "ncl", "--settings", "nowhere.yaml"), ("nowhere.yaml",)),
        (("tiny", "--methods", "ncl", "-o", "table.xls"), ("table.xls", ".md")),
        (("tiny", "--methods", "ncl", "--model", "nowhere/at-all"), ("nowhere/at-all",)),
        (("six-domains", "--methods", "ncl"), ("base model", "--model")),
        (
            ("six-domains", "--methods", "ncl", "--model", "m", "--data", "nowhere"),
            ("`data` is 'nowhere'", "`--data`", "EVERLEARN_SIX_DOMAINS"),
        ),
        (("six-domains", "--methods", "ncl", "--model", "m"), ("no data", "`--data`", "EVERLEARN_SIX_DOMAINS")),
    ],
)
def test_mistakes(
    everlearn: Project, suite: TinySuite, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: tuple[str, ...]
) -> None:
    monkeypatch.delenv("EVERLEARN_SIX_DOMAINS", raising=False)
    everlearn.fails("bench", *words, says=says)


TASKS = ("copa", "mnli")
SETTINGS = {
    "data": {"block_size": 64},
    "domains": {"*": {"max_documents": 8}},
    "train": {
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-3,
    },
    "evaluation": {"blocks": 2},
}


class TwoTasks(StandardCL):
    """Two of the tasks, in both orders."""

    name = "two-tasks"
    orders = {1: TASKS, 2: TASKS[::-1]}  # noqa: RUF012 - see Suite
    sources = (Fetchable("a", "http://127.0.0.1:9/a", "none"),)


@pytest.fixture
def data(everlearn: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setitem(SUITES, "two-tasks", TwoTasks())
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in TASKS:
        small.publish(everlearn.folder / "data", name)
    return everlearn.folder / "data"


def bench(everlearn: Project, model: str, methods: str, *words: str, **settings: Any) -> Any:
    (everlearn.folder / "tasks.yaml").write_text(yaml.safe_dump(SETTINGS | settings))
    shared = ("--seeds", "0", "--settings", "tasks.yaml", "--data", "data", "--json")
    done = everlearn(
        "bench", "two-tasks", "--methods", methods, "--model", str(everlearn.models / model), *shared, *words
    )
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_one_command_runs_an_order(everlearn: Project, data: Path) -> None:
    value = bench(
        everlearn,
        "t5",
        "ft,inc_lora+migu,mtl,per_task,constant",
        *("--orders", "2", "-o", "page.md", "--claims", "c.md"),
        end_tasks={"*": {"max_test": 4}},
        grid={"rows": {"inc_lora+migu": {"train.learning_rate": 0.01}}},
    )
    assert [cell["state"] for cell in value["cells"]] == ["done"] * 5
    assert [line["title"] for line in value["lines"]] == [
        "Most frequent label",
        "FT",
        "IncLoRA + MIGU",
        "One model per task (PerTaskFT)",
        "All tasks at once (MTL)",
    ]
    numbers = {line["entry"]: line["numbers"] for line in value["lines"]}
    assert {"accuracy", "accuracy_micro", "accuracy_bwt", "accuracy_fwt_over_all"} <= set(numbers["sequential"])
    assert numbers["mtl"].keys() >= {"accuracy", "accuracy_micro", "bits"}
    cell = json.loads((everlearn.folder / "bench/two-tasks/inc_lora+migu-order2-seed0.json").read_text())
    assert cell["domains"] == ["mnli", "copa"]
    table = cell["matrices"]["exact_match"]
    assert (table["rows"], table["columns"]) == (["base", "mnli", "copa"], ["mnli", "copa"])
    assert len(table["cells"]) == 6
    assert all(0 <= value <= 1 for _, _, value, *_ in table["cells"])
    assert cell["grid"]["options"]["train.learning_rate"] == 0.01
    assert cell["grid"]["examples"]["mnli"] == 4
    page = (everlearn.folder / "page.md").read_text()
    assert "### End tasks along the stream (accuracy)" in page
    assert "### Beside the MIGU paper on " in page
    assert "not measured yet" in (everlearn.folder / "c.md").read_text()


def test_a_decoder_chooses_the_likeliest_label(everlearn: Project, data: Path) -> None:
    value = bench(everlearn, "llama", "migu,constant", suite={"answers": "chosen"}, end_tasks={"*": {"max_test": 4}})
    assert [line["title"] for line in value["lines"]] == ["Most frequent label", "FT + MIGU"]
    cell = json.loads((everlearn.folder / "bench/two-tasks/migu-order1-seed0.json").read_text())
    assert "macro_f1" not in cell["matrices"]
    assert set(cell["matrices"]["choice_accuracy"]["columns"]) == {"copa", "mnli"}
    assert value["lines"][1]["numbers"].keys() >= {"accuracy", "accuracy_learnt", "accuracy_micro"}


def test_an_encoder_is_given_a_head(everlearn: Project, data: Path) -> None:
    value = bench(
        everlearn,
        "roberta",
        "ft",
        suite={"answers": "head"},
        end_tasks={"*": {"max_train": 8, "max_test": 4, "epochs": 0.9}},
    )
    assert value["lines"][0]["numbers"].keys() >= {"accuracy", "bits"}
    (everlearn.folder / "bare.yaml").write_text("{grid: {rows: {nothing: {train.learning_rate: 1}}}}")
    words = ("bench", "two-tasks", "--methods", "ft", "--model", "m", "--data", "data", "--settings", "bare.yaml")
    everlearn.fails(*words, says=("`grid.rows` names 'nothing'",))


def test_fetching_from_nowhere_says_where_to_get_it(everlearn: Project, data: Path) -> None:
    everlearn.fails(
        *("bench", "two-tasks", "--data", "fetch"),
        says=("http://127.0.0.1:9/a could not be fetched", "CL_Benchmark", "github.com/cmnfriend/O-LoRA"),
    )
    everlearn.fails("bench", "docs", "--data", "fetch", says=("`docs` has nothing to fetch",))


M2D2_SETTINGS = """\
model: models
suite: {{samples: 5, order: {order}}}
data: {{block_size: 32}}
train: {{max_steps: 1, per_device_train_batch_size: 2, save_steps: 1, use_cpu: true}}
evaluation: {{blocks: 2}}
"""


def test_orders_by_name_and_what_results_say(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = everlearn.folder
    monkeypatch.setenv("EVERLEARN_CACHE", str(folder / "cache"))
    for seed, name in enumerate(("law/cases", "law/statutes", "health/notes")):
        (folder / "own" / name).mkdir(parents=True)
        for offset, part in enumerate(("train", "valid", "test")):
            text = "\n".join(tiny.texts(20, 10 * seed + offset, words=30))
            (folder / "own" / name / f"{part}.txt").write_text(text)
    (folder / "mine.txt").write_text("cases\nnotes\nstatutes\n")
    settings = M2D2_SETTINGS.format(order="mine.txt").replace("models", str(everlearn.models / "llama"))
    (folder / "m2d2.yaml").write_text(settings)
    words = ("bench", "m2d2", "--methods", "sequential", "--seeds", "0", "--data", "own", "--settings", "m2d2.yaml")
    made = everlearn(*words, "--orders", "swapped,file", "--json")
    assert made.code == 0, made.err
    assert {cell["state"] for cell in json.loads(made.out)["cells"]} == {"done"}
    cells = {cell.grid.order: cell for cell in load_results(folder / "bench/m2d2")}
    assert cells[2].domains == ["cases", "notes", "statutes"]
    assert set(cells[1].domains[:2]) == {"cases", "statutes"}
    assert any(note.startswith("Order `file`: cases → notes → statutes") for note in cells[2].notes)
    results = Results.load(folder / "runs/bench-m2d2/sequential-order2-seed0/run")
    assert results.groups == {"cases": "law", "notes": "health", "statutes": "law"}
    page = (folder / "bench/m2d2/index.html").read_text()
    assert "2 (file): cases → notes → statutes" in page
    assert "What became of the text of the domains: " in made.err
    everlearn.fails(
        *words,
        "--orders",
        "0,similer",
        says=("`--orders` names 'similer', which is not an order", "Did you mean 'similar'"),
    )
    everlearn.fails(*words, "--orders", "foo", says=("names 'foo'", "Known: file, random-1,", "similar, swapped"))
    words = (*words[:3], "sequential,small", *words[4:])
    everlearn.fails(
        *words, says=("The row 'small' needs its own `model.path`", "`grid: {rows: {small: {model.path: …}}}`")
    )


def test_shown_results_have_the_super_domains_of_the_data_that_is_named(
    everlearn: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, names = everlearn.folder, [f"d{number}" for number in range(9)]
    monkeypatch.setenv("EVERLEARN_CACHE", str(folder / "cache"))
    for seed, name in enumerate((*names, "other")):
        place = folder / "own" / ("law" if seed < 4 else "health") / name
        place.mkdir(parents=True)
        for offset, part in enumerate(("train", "valid", "test")):
            (place / f"{part}.txt").write_text("\n".join(tiny.texts(8, 10 * seed + offset, words=30)))
    values = [[4.0 - (row > place) for place in range(9)] for row in range(10)]
    cell = cell_of(
        suite="m2d2", entry="sequential", title="Plain", order=2, seed=0, domains=names,
        bits_per_byte={name: {"base": 4.0, "learnt": 3.0, "final": 3.0} for name in names},
        matrix={"rows": ["base", *names], "columns": names, "values": values},
        settings={"suite": {"domains": names}},
    )  # fmt: skip
    write(folder / "bench/m2d2", cell)
    words = ("bench", "m2d2", "--show", "-o", "page.md")
    assert everlearn(*words).code == 0
    assert "by super-domain" not in (folder / "page.md").read_text()
    assert everlearn(*words, "--data", "own").code == 0
    page = (folder / "page.md").read_text()
    assert "| Plain, order 2 (file): law | 4 | +1.000 (+1.000) |" in page
    assert "| Plain, order 2 (file): health | 5 | +1.000 (+1.000) |" in page
    everlearn.fails(*words, "--data", "none", says=("`data` is 'none', and there is no such folder",))
    write(folder / "bench/m2d2", like(cell, settings={"suite": {"domains": names, "domain": "d0"}}))
    everlearn.fails(*words, "--data", "own", says=("Unknown key `suite.domain` in the settings",))
