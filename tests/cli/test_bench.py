"""``everlearn bench`` as a user types it."""

from __future__ import annotations

import contextlib
import errno
import json
from pathlib import Path

import pytest

from bench_suite import TinySuite
from cli_project import Project
from everlearn.errors import RecipeError, RunError
from everlearn.files import write_text
from everlearn.grid import Grid
from everlearn.run.writable import check_place
from everlearn_bench.suites import SUITES


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
    assert "All 2 cells are measured." in again.out
    everlearn.fails(
        *("bench", "tiny", "--methods", "ncl", "--seeds", "0", "--budget", "199"), says=("other settings", "--results")
    )


def test_show_runs_nothing(everlearn: Project, suite: TinySuite) -> None:
    everlearn.fails("bench", "tiny", "--show", says=("no result yet",))
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
    everlearn.fails("bench", "tiny", "--show", says=("none-copy.json' holds the cell none",))
    copy.unlink()
    (everlearn.folder / "bench/tiny/none.json").write_text("[]")
    everlearn.fails("bench", "tiny", "--show", says=("none.json' is no cell of a grid: Input should be",))


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
        says=("no result of `bcl` or `kd`", "`--methods`", "only of constant, none"),
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
    assert "1 of 2 cells is measured; failed: sequential-order0-seed0." in " ".join(outcome.out.split())
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
