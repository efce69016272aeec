"""Where a suite's data can be fetched: one table a suite, and what is known of each file."""

from __future__ import annotations

from dataclasses import dataclass

RAW = "https://raw.githubusercontent.com"
PACKED = "https://codeload.github.com"


@dataclass(frozen=True)
class Fetchable:
    """A file that anybody can fetch.

    Attributes:
        path: where it belongs in the data folder.
        address: where it is fetched.
        licence: as its repository states it.
        sha256: of its bytes; empty where nobody wrote it down: then that of the first fetch is, and holds from then on.
        rows: objects in it, of a file of JSON lines whose digest nobody wrote down; 0 where that is not known either.
        columns: that each of them has.
        packed: a ``.tar.gz`` that the server packs when it is asked: of the same files, but perhaps of other bytes next
            time. It is read to its end before it is taken; one that was removed may come back with another digest.
    """

    path: str
    address: str
    licence: str
    sha256: str = ""
    rows: int = 0
    columns: tuple[str, ...] = ()
    packed: bool = False


def github(repository: str, commit: str, path: str) -> str:
    """The address of a file at a commit of a public repository on GitHub."""
    return f"{RAW}/{repository}/{commit}/{path}"


def github_archive(repository: str, commit: str) -> str:
    """The address of all files of a public repository on GitHub at a commit, as one ``.tar.gz``."""
    return f"{PACKED}/{repository}/tar.gz/{commit}"
