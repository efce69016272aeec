"""Cells of a grid in one archive: what is read from it is what the files said."""

import bz2
import json
import os
from pathlib import Path

import pytest

from everlearn import files
from everlearn.errors import RunError
from everlearn.grid.archive import ARCHIVE, find_cell, find_cells, pack, unpack
from everlearn.grid.cells import load_cell, load_results

CELLS = {
    "das-order0-seed1": {"learnt": 0.1 + 0.2, "text": "caf\u00e9 \u2028 \u0085"},
    "das": {"b": [1, None, 2.0], "a": {"nested": True}},
    "ewc-order1-seed0": {},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, value in CELLS.items():
        files.write_json(tmp_path / f"{name}.json", value)
    return tmp_path


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}


def values(folder: Path) -> list[tuple[str, object]]:
    return [(name, kept.value) for name, kept in find_cells(folder).items()]


def test_packed_cells_are_what_they_were(folder: Path) -> None:
    before, loose = values(folder), texts(folder)
    assert [name for name, _ in before] == [*CELLS], "as their files are sorted: `das-…` before `das.json`"
    assert pack(folder) == 3
    assert [path.name for path in folder.iterdir()] == [ARCHIVE]
    assert values(folder) == before
    assert str(find_cells(folder)["das"].where) == f"das in {folder / ARCHIVE}"
    assert unpack(folder) == 3
    assert texts(folder) == loose


def test_the_same_cells_make_the_same_bytes(folder: Path) -> None:
    pack(folder)
    first = (folder / ARCHIVE).read_bytes()
    assert bz2.decompress(first).count(b"\n") == 3, "one line a cell"
    unpack(folder)
    for number, path in enumerate(sorted(folder.iterdir(), reverse=True)):
        os.utime(path, (number, number))
    pack(folder)
    assert (folder / ARCHIVE).read_bytes() == first
    pack(folder)
    assert (folder / ARCHIVE).read_bytes() == first, "with nothing new there is nothing to write"


def test_a_new_cell_stands_beside_the_archive_and_counts_more(folder: Path) -> None:
    pack(folder)
    assert find_cell(folder, "other") is None
    files.write_json(folder / "das.json", {"again": 1})
    files.write_json(folder / "other.json", {"new": 1})
    kept = find_cell(folder, "das")
    assert kept is not None
    assert kept.value == {"again": 1}
    assert [name for name, _ in values(folder)] == ["das-order0-seed1", "das", "ewc-order1-seed0", "other"]
    assert pack(folder) == 4
    assert dict(values(folder))["das"] == {"again": 1}


DAMAGED = [b"no archive", bz2.compress(b"{}\n"), bz2.compress(b"x\n"), bz2.compress(b"[]" * 9)[:-4]]


@pytest.mark.parametrize("content", DAMAGED, ids=["other", "no name", "no JSON", "cut"])
def test_a_damaged_archive_is_named(folder: Path, content: bytes) -> None:
    (folder / ARCHIVE).write_bytes(content)
    with pytest.raises(RunError, match=ARCHIVE):
        find_cells(folder)
    with pytest.raises(RunError, match=ARCHIVE):
        find_cell(folder, "other")
    assert len(texts(folder)) == 3, "no file is removed"
    with pytest.raises(RunError, match=ARCHIVE):
        pack(folder)
    assert len(texts(folder)) == 3


def test_what_is_no_cell_is_named_with_its_archive(folder: Path) -> None:
    pack(folder)
    assert load_cell(folder, "none") is None
    with pytest.raises(RunError, match=rf"das in .*{ARCHIVE}' is no cell of a grid"):
        load_cell(folder, "das")
    with pytest.raises(RunError, match="is no cell of a grid"):
        load_results(folder)


def test_a_line_is_plain_json(folder: Path) -> None:
    pack(folder)
    lines = [json.loads(line) for line in bz2.decompress((folder / ARCHIVE).read_bytes()).splitlines()]
    assert [line["name"] for line in lines] == [*CELLS]
    assert all(line["cell"] == CELLS[line["name"]] for line in lines)
