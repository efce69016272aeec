"""Tarballs as nobody packs them: their texts are read, or one sentence says what is wrong."""

from __future__ import annotations

import contextlib
import gzip
import io
import random
import tarfile
import tracemalloc
from pathlib import Path

from everlearn.errors import EverlearnError
from everlearn_bench.suites.archives import broken, members
from everlearn_bench.suites.m2d2.layouts import read_folder
from fuzz.harness import fuzz
from fuzz.test_corpora import damaged, some_text

PARTS = [f"cs.CL/{part}.txt" for part in ("train", "valid", "test")]
NAMES = [*PARTS, "../up", "/absolute", "a" * 300, "é", "", ".", "cs.CL", "cs.CL/train.txt/x", "\udcff"]
KINDS = [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE]
KINDS += [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, b"Z"]
PAX = [{}, {"path": "cs.CL/train.txt"}, {"size": "9" * 30}, {"GNU.sparse.map": "0,9,9"}, {"GNU.sparse.major": "1"}]
PAX += [{"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "x"}, {"comment": "é" * 400}]


def packed(chance: random.Random) -> bytes:
    """A tarball of some files; now and then a header says another kind, or another size, than its content has."""
    out = io.BytesIO()
    form = chance.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name in [*chance.sample(PARTS, chance.randint(0, 3)), *chance.choices(NAMES, k=chance.randint(0, 3))]:
            content = "\n".join(some_text(chance) for _ in range(chance.randint(0, 4))).encode()
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(content), chance.choice(PAX)
            if chance.random() < 0.3:
                info.type, info.linkname = chance.choice(KINDS), chance.choice(NAMES)
            with contextlib.suppress(ValueError):  # what this format cannot write
                tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_archives(tmp_path: Path) -> None:
    def case(chance: random.Random) -> None:
        raw = packed(chance)
        raw = damaged(raw, chance) if chance.random() < 0.5 else raw
        raw = gzip.compress(raw, 1)
        path = tmp_path / "cs.CL.tar.gz"
        path.write_bytes(damaged(raw, chance) if chance.random() < 0.3 else raw)
        tracemalloc.start()
        try:
            for part, read in read_folder(tmp_path).leaves[0].texts.items():
                with contextlib.suppress(EverlearnError):
                    assert all(line.strip() for line in read()), part
            with contextlib.suppress(EverlearnError):
                list(members(path, lambda name: True))
            broken(path)
            assert tracemalloc.get_traced_memory()[1] < 2**24, "takes much memory"
        finally:
            tracemalloc.stop()

    fuzz("archives", 80, case)
