"""Where a suite's data can be fetched: one table a suite, and what is known of each file."""

from __future__ import annotations

from dataclasses import dataclass

RAW = "https://raw.githubusercontent.com"


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
    """

    path: str
    address: str
    licence: str
    sha256: str = ""
    rows: int = 0
    columns: tuple[str, ...] = ()


def github(repository: str, commit: str, path: str) -> str:
    """The address of a file at a commit of a public repository on GitHub."""
    return f"{RAW}/{repository}/{commit}/{path}"
