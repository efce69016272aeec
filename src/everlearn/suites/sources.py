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
    """

    path: str
    address: str
    licence: str
    sha256: str = ""


def github(repository: str, commit: str, path: str) -> str:
    """The address of a file at a commit of a public repository on GitHub."""
    return f"{RAW}/{repository}/{commit}/{path}"
