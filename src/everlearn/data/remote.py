"""Files at a URL (https, s3, gs, …): fetched once into the user's cache, by `fsspec`."""

from __future__ import annotations

import functools
import glob
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from everlearn.data.blocks import hash_of
from everlearn.errors import DataError, did_you_mean, first_line
from everlearn.files import new_folder, user_cache


def is_remote(path: str) -> bool:
    """Return whether a path is a URL."""
    return "://" in path


def without_query(url: str) -> str:
    """Return a URL without its query, which may contain a secret token."""
    return url.partition("?")[0]


def cache() -> Path:
    """Return the folder of downloaded files."""
    return user_cache() / "remote"


@functools.cache
def fetched(url: str, key: str, known: Callable[[Path], str | None]) -> Path | tuple[Path, ...]:
    """Download a file, the files that match a pattern, or a folder; unchanged files are not downloaded again.

    The result is cached for the process, so that all parts of a run read the same files.

    Args:
        url: `https://…`, `s3://…`, or another address that `fsspec` reads.
        key: the recipe's key, for errors.
        known: the suffix of a file's format; None where it is not known, and the file of a folder is left out.

    Returns:
        The local file, the files of a pattern, or the local folder.

    Raises:
        DataError: nothing is there, or it cannot be read.
    """
    import fsspec

    protocol = url.partition("://")[0]
    if protocol not in (protocols := fsspec.available_protocols()):
        raise DataError(f"`{key}: {url}`: there is no protocol '{protocol}://'.{did_you_mean(protocol, protocols)}")
    try:
        system, root = fsspec.url_to_fs(url)
        many = glob.has_magic(root) and protocol not in ("http", "https")
        folder = not many and system.isdir(root) and not known(Path(without_query(root)))
        names = sorted(system.glob(root) if many else system.find(root) if folder else [root])
        names = [name for name in names if not folder or known(Path(name))]
        described = {name: _version(system.info(name)) for name in names}
        if not names:
            raise DataError(f"`{key}: {url}` {'matches no file' if many else 'holds no file of a known format'}.")
        place = cache() / hash_of(url, *described.items())
        if not place.is_dir():
            with new_folder(place, sealed=False, replace=False) as download_folder:
                for name in names:
                    target = download_folder / _local(name, root if folder else None)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    system.get_file(name, str(target))
    except DataError:
        raise
    except Exception as error:  # each protocol raises its own errors, and asks for its package by an ImportError
        what = "is not there" if isinstance(error, FileNotFoundError) else f"cannot be read: {first_line(error)}"
        raise DataError(f"`{key}: {url}` {what.rstrip('.')}.") from error
    if folder:
        return place
    files = tuple(place / _local(name, None) for name in names)
    return files if many else files[0]


def _local(name: str, root: str | None) -> Path:
    """Return where a file is kept: by its path inside the folder, or by a name that its whole path makes unique."""
    if root is not None:
        inside = PurePosixPath(name).relative_to(PurePosixPath(root))
        if ".." in inside.parts:  # an archive or a bucket may name its files so
            raise DataError(f"'{name}' would be kept outside of its folder. Name the files to read.")
        return Path(*inside.parts)
    path = PurePosixPath(without_query(name))
    return Path(hash_of(str(path.parent))[:8]) / path.name


def _version(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what identifies a version of a file: its size, modification time or digest, as far as they are known."""
    kept = ("size", "etag", "lastmodified", "last-modified", "mtime", "created", "content-md5", "digest", "generation")
    return sorted((name, str(value)) for name, value in info.items() if name.lower() in kept)
