"""Files and folders: as the umask wants them, never through a link, half-made ones removed when nobody makes them."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tiny
from everlearn import files
from everlearn.data.corpus import Domain
from everlearn.data.prepare import prepare
from everlearn.errors import RunError
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
    with run.lock(), pytest.raises(RunError, match="Another process"), RunFolder(tmp_path).lock():
        pytest.fail("locked twice")
    assert (tmp_path / ".lock").read_text() == "somebody's"


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
