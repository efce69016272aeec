"""Where the data of a suite can be fetched: one table per suite, and the known facts about each file."""

from __future__ import annotations

from dataclasses import dataclass

RAW = "https://raw.githubusercontent.com"
PACKED = "https://codeload.github.com"


@dataclass(frozen=True)
class Fetchable:
    """A file that anyone can download.

    Attributes:
        path: its place in the data folder.
        address: the download address.
        licence: licence that its repository states.
        sha256: digest of its bytes; empty if none was published: then that of the first fetch is recorded and must
            match afterwards.
        rows: number of objects in a JSON-lines file without a published digest; 0 if unknown.
        columns: keys that each of them has.
        packed: whether it is a ``.tar.gz`` that the server packs on demand: of the same files, but perhaps with other
            bytes next time. It is read to its end before it is accepted; one that was removed may come back with
            another digest.
    """

    path: str
    address: str
    licence: str
    sha256: str = ""
    rows: int = 0
    columns: tuple[str, ...] = ()
    packed: bool = False


def github(repository: str, commit: str, path: str) -> str:
    """Return the address of a file at a commit of a public repository on GitHub."""
    return f"{RAW}/{repository}/{commit}/{path}"


def github_archive(repository: str, commit: str) -> str:
    """Return the address of all files of a public repository on GitHub at a commit, as one ``.tar.gz``."""
    return f"{PACKED}/{repository}/tar.gz/{commit}"
