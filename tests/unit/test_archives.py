"""Archives that ask for more memory than any text does: one sentence, and the memory is never taken."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from everlearn.errors import DataError
from everlearn_bench.suites import archives
from everlearn_bench.suites.m2d2.corpus_folders import read_folder

NAME = "cs.CL.tar.gz"
MUCH = 2**24
"""Bytes; some kilobytes when they are packed."""


def described(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header of an archive that announces so many bytes."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def sparse(parts: int) -> bytes:
    """A file with holes, whose list of parts goes on and on."""
    more = b"\1".rjust(483, b"\0")
    first = bytearray(described("a", 512, tarfile.GNUTYPE_SPARSE))
    first[482:483] = b"\1"
    first[148:156] = b"%06o\0 " % (256 + sum(first[:148]) + sum(first[156:]))
    return bytes(first) + (b"0" * 504 + b"\1" + bytes(7)) * (parts // 21) + more


BEGINNINGS: dict[str, bytes] = {
    "a long name": described("././@LongLink", MUCH, tarfile.GNUTYPE_LONGNAME) + b"a" * MUCH,
    "a long link": described("././@LongLink", MUCH, tarfile.GNUTYPE_LONGLINK) + b"a" * MUCH,
    "an extended header": described("x", MUCH, tarfile.XHDTYPE) + b"a" * MUCH,
    "an extended header for all": described("x", MUCH, tarfile.XGLTYPE) + b"a" * MUCH,
    "names of names": (described("././@LongLink", 512, tarfile.GNUTYPE_LONGNAME) + b"d" * 512) * 5000,
    "many parts": sparse(MUCH // 25),
}
"""Of archives that say more about a file than anybody reads."""


def peak_of(work: Callable[[], object]) -> int:
    """The bytes that Python took at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("what", BEGINNINGS)
def test_an_archive_that_describes_a_file_at_length_is_a_sentence(tmp_path: Path, what: str) -> None:
    with gzip.open(tmp_path / NAME, "wb", 1) as file:
        file.write(BEGINNINGS[what])
    assert (tmp_path / NAME).stat().st_size < MUCH / 50
    said = "cannot be read: the description of a file has more than 65,536 bytes"

    def read() -> None:
        with pytest.raises(DataError, match=f"{NAME}' {said}"):
            list(read_folder(tmp_path).leaves[0].texts["train"]())
        with pytest.raises(DataError, match=f"{NAME} {said}"):
            list(archives.members(tmp_path / NAME, lambda name: True))

    assert peak_of(read) < MUCH / 8


def test_an_archive_of_any_number_of_files_takes_no_memory_for_each(tmp_path: Path) -> None:
    with gzip.open(tmp_path / NAME, "wb", 1) as file:
        file.write(described("a/b", 0) * 5_000 + bytes(1024))
    assert peak_of(lambda: list(archives.members(tmp_path / NAME, lambda name: False))) < 2**20


def test_a_file_of_less_than_nothing_is_a_sentence(tmp_path: Path) -> None:
    with gzip.open(tmp_path / NAME, "wb", 1) as file:
        file.write(described("a/b", -512) + bytes(1024))
    with pytest.raises(DataError, match=f"{NAME} cannot be read"):
        list(archives.members(tmp_path / NAME, lambda name: True))


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_that_nobody_wrote_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    monkeypatch.setattr(archives, "MOST_LINE", 1000)
    content = b"short\n\n" + b"x" * 999 + b"\n" + b"y" * 1001 + b"\nz\n"
    if packed:
        with tarfile.open(tmp_path / NAME, "w:gz") as tar:
            info = tarfile.TarInfo("cs.CL/train.txt")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    else:
        (tmp_path / "cs.CL").mkdir()
        for part in ("train", "valid", "test"):
            (tmp_path / f"cs.CL/{part}.txt").write_bytes(content)
    texts = read_folder(tmp_path).leaves[0].texts["train"]()
    assert [next(texts), next(texts)] == ["short", "x" * 999]
    with pytest.raises(DataError, match="line 4, is longer than 1,000 bytes: put each document on a line"):
        next(texts)
