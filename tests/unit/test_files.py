"""Files and folders: modes, links, halves that are removed; and pages for others that name no path of this machine."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from report_fixture import results, write_run

import tiny
from everlearn import files
from everlearn.config.public_paths import recipe_without_folders, still_different, without_folders
from everlearn.data.corpus import Domain
from everlearn.data.prepare import prepare
from everlearn.errors import RunError, RunInUse
from everlearn.report import compare, page
from everlearn.report.card import model_card
from everlearn.report.tables import csv, latex, markdown
from everlearn.report.tables import json as as_json
from everlearn.run.folder import RunFolder


@pytest.fixture(params=[0o027, 0o002])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Another umask than the tests'."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.relative_to(folder).as_posix(): path.stat().st_mode & 0o777 for path in folder.rglob("*")}


def test_everything_follows_the_umask(umask: int, tmp_path: Path) -> None:
    files.write_json(tmp_path / "new" / "a.json", {}, sealed=True)
    files.save_tensors(tmp_path / "new" / "a.safetensors", {"a": torch.zeros(3)})
    with files.new_folder(tmp_path / "whole") as folder:
        tiny.model("gpt2").save_pretrained(folder)
        (folder / "memory").mkdir()
    run = RunFolder(tmp_path / "new")
    run.log({"step": 1})
    with run.lock():
        pass
    (tmp_path / "corpus.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in tiny.texts(20)))
    corpus = Domain(name="c", path=str(tmp_path / "corpus.jsonl"), validation=0.3)
    prepare(corpus, tiny.tokenizer(), "decoder", 16, seed=0, cache=tmp_path / "cache")
    found = modes(tmp_path)
    assert len(found) > 15
    folders = {name for name in found if (tmp_path / name).is_dir()}
    assert {name: mode for name, mode in found.items() if mode != (0o777 if name in folders else 0o666) & ~umask} == {}


def test_a_lock_is_not_taken_through_a_link(tmp_path: Path) -> None:
    mine, run = tmp_path / "mine", RunFolder(tmp_path / "run")
    mine.write_text("not ours")
    run.path.mkdir()
    (run.path / ".lock").symlink_to(mine)
    with pytest.raises(RunError, match=r"\.lock is a link.*Remove it"), run.lock():
        pytest.fail("locked")
    assert mine.read_text() == "not ours"


def test_a_lock_is_not_emptied(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    (tmp_path / ".lock").write_text("somebody's")
    with run.lock(), pytest.raises(RunInUse, match="Another process"), RunFolder(tmp_path).lock():
        pytest.fail("locked twice")
    assert (tmp_path / ".lock").read_text() == "somebody's"


def test_a_file_system_without_locks_is_not_taken_for_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for another process would wait without end."""

    def without(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without)
    with pytest.raises(RunError, match=r"has no locks.*`run.folder`") as raised, RunFolder(tmp_path).lock():
        pytest.fail("locked")
    assert not isinstance(raised.value, RunInUse)


def test_what_is_listed_must_be_as_it_was_and_what_is_not_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, {"a": 1}, sealed=True)
    files.write_json(tmp_path / "b.json", {"b": 1})
    files.write_json(path, {"a": 2}, sealed=True)
    assert files.read_json(path) == {"a": 2}
    assert set(files.listed(tmp_path)) == {"a.json"}
    path.write_text('{"a": 3}')
    with pytest.raises(RunError, match=r"a\.json is damaged: its content is not what was saved.*seal\.json"):
        files.read_json(path)
    files.unlist(path)
    assert files.read_json(path) == {"a": 3}
    path.unlink()
    path.mkdir()
    with pytest.raises(RunError, match=r"a\.json cannot be read: Is a directory"):
        files.read_json(path)


@pytest.mark.parametrize("content", ["[]", "null", "3", '{"a": 1}', "{", "[" * 100_000, "\x00"])
def test_a_damaged_seal_is_a_sentence(tmp_path: Path, content: str) -> None:
    with files.new_folder(tmp_path / "whole") as folder:
        (folder / "a").write_text("a")
    (tmp_path / "whole" / "seal.json").write_text(content)
    assert "seal.json is damaged" in str(files.damage(tmp_path / "whole"))
    with pytest.raises(RunError, match=r"seal\.json is damaged"):
        files.fault(tmp_path / "whole" / "a")


def test_what_was_not_there_when_a_folder_was_sealed(tmp_path: Path) -> None:
    with files.new_folder(tmp_path / "whole") as folder:
        (folder / "a").write_text("a")
    (tmp_path / "whole" / "pytorch_model.bin").write_bytes(b"a pickle")
    assert files.damage(tmp_path / "whole") is None
    assert "pytorch_model.bin was not there" in str(files.damage(tmp_path / "whole", exactly=True))


# -- half-made folders ---------------------------------------------------------------------------------------------


def age(path: Path, seconds: float) -> Path:
    """As if nothing had been written into it for so long."""
    for each in (*path.rglob("*"), path):
        os.utime(each, (time.time() - seconds,) * 2)
    return path


def half_made(folder: Path, name: str, seconds: float) -> Path:
    path = folder / f"{files.PARTIAL}{name}"
    path.mkdir()
    (path / "train.input_ids.npy").write_bytes(b"half")
    return age(path, seconds)


def test_what_a_killed_process_was_making_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from everlearn import files\n"
        f"with files.new_folder(Path({str(tmp_path)!r}) / 'corpus'): os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    (left,) = tmp_path.iterdir()
    with files.new_folder(tmp_path / "other"):
        pass
    assert left.is_dir(), "it may have been made this moment"
    age(left, 120)
    with files.new_folder(tmp_path / "another"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"other", "another"}


def test_what_a_living_process_makes_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with files.new_folder(tmp_path / "slow") as slow:
        age(slow, 30 * 24 * 3600)
        with files.new_folder(tmp_path / "quick"):
            pass
        assert slow.is_dir()
        (slow / "a").write_text("a")
    assert (tmp_path / "slow" / "a").is_file()

    def no_locks(*arguments: object) -> None:
        raise OSError(errno.ENOTSUP, "no locks here")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    young, old = (half_made(tmp_path, name, days * 24 * 3600) for name, days in (("young", 2), ("old", 30)))
    files.remove_abandoned(tmp_path)
    assert young.is_dir()
    assert not old.exists()


def test_half_a_file_is_removed_once_nobody_writes_it(tmp_path: Path) -> None:
    left = tmp_path / f"{files.PARTIAL}cell.json.0"
    left.write_text("half")
    files.remove_abandoned(tmp_path)
    assert left.is_file(), "it may have been made this moment"
    with files._replaced(tmp_path / "slow.json", sealed=False) as slow:
        for each in (slow, left):
            age(each, 120)
        files.remove_abandoned(tmp_path)
        assert slow.is_file()
        assert not left.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["slow.json"]


def test_two_that_make_the_same_folder(tmp_path: Path) -> None:
    with files.new_folder(tmp_path / "same") as first:
        (first / "a").write_text("first")
        with files.new_folder(tmp_path / "same") as second:
            (second / "a").write_text("second")
    assert (tmp_path / "same" / "a").read_text() == "first"
    assert files.damage(tmp_path / "same") is None
    assert [path.name for path in tmp_path.iterdir()] == ["same"]


def test_a_folder_that_two_processes_make_does_not_vanish_while_a_third_reads(tmp_path: Path) -> None:
    def make(text: str) -> int:
        with files.new_folder(tmp_path / "cache") as folder:
            (folder / "corpus").write_text(text)
        return (tmp_path / "cache").stat().st_ino

    first = make("the same")
    assert make("the same") == first, "what is there stays"
    (tmp_path / "cache/corpus").write_text("damaged!")
    repaired = make("the same")
    assert repaired != first
    assert make("other") != repaired
    assert (tmp_path / "cache/corpus").read_text() == "other"
    assert {path.name for path in tmp_path.iterdir()} == {"cache"}


@pytest.mark.parametrize("what", ["file", "link", "folder"])
def test_whatever_stands_in_a_folders_place_is_replaced(tmp_path: Path, what: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept").write_text("not ours")
    place = tmp_path / "whole"
    {
        "file": lambda: place.write_text("x"),
        "link": lambda: place.symlink_to(tmp_path / "mine"),
        "folder": lambda: (place / "old").mkdir(parents=True),
    }[what]()
    with files.new_folder(place) as folder:
        (folder / "a").write_text("a")
    assert (tmp_path / "mine" / "kept").is_file()
    assert sorted(path.name for path in place.iterdir()) == ["a", "seal.json"]
    assert not place.is_symlink()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/ann/data/law.jsonl", "law.jsonl"),
        ("/home/ann/my data/law.jsonl", "law.jsonl"),
        ("~/data/law.jsonl", "law.jsonl"),
        ("~ann/data/law.jsonl", "law.jsonl"),
        ("C:\\Users\\ann\\law.jsonl", "law.jsonl"),
        ("file:///home/ann/law.jsonl", "law.jsonl"),
        ("/home/ann/data/*.jsonl", "*.jsonl"),
        ("/home/ann/models/base/", "base"),
        ("'law' (/home/ann/law.jsonl) has 3 rows.", "'law' (law.jsonl) has 3 rows."),
        ("everlearn run /home/ann/r.yaml x.y=/srv/a/b", "everlearn run r.yaml x.y=b"),
        ("https://arxiv.org/abs/2302.03241", "https://arxiv.org/abs/2302.03241"),
        ("suite:docs/law/train.jsonl", "suite:docs/law/train.jsonl"),
        ("data/law.jsonl", "data/law.jsonl"),
        ("hf-org/model-135M", "hf-org/model-135M"),
        ("0.2 bits/byte and/or 3 tokens/s", "0.2 bits/byte and/or 3 tokens/s"),
        ("-1.5 ~ 2", "-1.5 ~ 2"),
        (3, 3),
    ],
)
def test_of_an_absolute_path_the_last_part_is_left(text, shown):
    assert without_folders(text) == shown
    assert without_folders({"a": [text]}) == {"a": [shown]}


def test_paths_with_spaces_inside_a_sentence_are_known_from_the_recipe():
    path = "/home/ann/my data/law.jsonl"
    assert without_folders(f"The file {path} is empty.", known=[path]) == "The file law.jsonl is empty."


def test_different_files_of_one_name_stay_different():
    assert still_different(("/x/a/t.jsonl", "/x/b/t.jsonl")) == ("a/t.jsonl", "b/t.jsonl")
    assert still_different(("/x/a.jsonl", "/y/b.jsonl", "/x/a.jsonl")) == ("a.jsonl", "b.jsonl", "a.jsonl")
    assert still_different(("/x/a/b/c/d/t", "/y/a/b/c/d/t", "/x/a/b/c/d/t")) == ("t (1)", "t (2)", "t (1)")
    assert still_different(("0.1", "0.2")) == ("0.1", "0.2")


def test_a_recipe_without_absolute_paths_keeps_every_letter():
    text = "domains:\n- {name: law,   path: data/law.jsonl}\n"
    assert recipe_without_folders(text) == text
    assert recipe_without_folders("model: /home/ann/base\nrun: {seed: 1}\n") == "model: base\nrun:\n  seed: 1\n"
    assert recipe_without_folders("model: [/home/ann/base") == "model: [base", "also of a recipe that is damaged"


def test_no_output_of_a_report_has_a_folder_of_the_machine(tmp_path):
    secret = tmp_path / "quiet-harbour 4711"
    folders = []
    for name in ("one", "two"):
        found = results(name, name, 0.1, ["a", "b"]) | {"model": str(secret / "models" / name)}
        found["notes"] = [f"The file {secret}/text.jsonl has rows without text; {tmp_path}/x/y.jsonl too."]
        found["methods"][0]["options"] = {"reference": str(secret / "reference")}
        folder = write_run(secret / name, found, steps=1)
        recipe = (folder / "recipe.yaml").read_text().replace("base-docs", f"'{secret}/models/{name}'")
        recipe = recipe.replace('"text.jsonl"', json.dumps(str(secret / f"{name}.jsonl")), 1)
        recipe += f"data: {{cache: '{secret}/cache'}}\n"
        (folder / "recipe.yaml").write_text(recipe.replace('"text.jsonl"', json.dumps(str(secret / "text.jsonl"))))
        (folder / "environment.json").write_text(json.dumps({"command": f"everlearn run {secret}/recipe.yaml"}))
        folders.append(folder)
    assert all(str(secret) in (folder / "recipe.yaml").read_text() for folder in folders), "there they are needed"
    comparison = compare(folders)
    written = [write(comparison) for write in (page, markdown, latex, csv, as_json)]
    written += [page(compare([folder])) for folder in folders]
    written += [
        model_card(json.loads((f / "results.json").read_text()), (f / "recipe.yaml").read_text(), folder=f)
        for f in folders
    ]
    for text in written:
        assert "quiet-harbour" not in text
        assert str(tmp_path) not in text
    assert "path of a" in comparison.differing
    assert "one.jsonl" in written[0]
