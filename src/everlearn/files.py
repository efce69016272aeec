"""Atomic file operations, and seals that hold the digest of every file. No pickle is read or written.

A *seal* (``seal.json``) lists files of its folder with their digests. A folder that is written in one step
(:func:`new_folder`) is complete if every file matches its digest (:func:`damage`). In a folder to which files are added
later, each is listed after it was written (argument `sealed` of the writing functions); a file that is not listed yet,
because the process was killed in between, is accepted. Every file that is read here is checked against the seal of its
folder or of the folder above.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from everlearn.errors import GO_ON, RunError

try:
    import fcntl
except ImportError:  # Windows has no flock, which is only needed here
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:  # torch is loaded by those who save tensors only
    import torch

SEAL = "seal.json"
PARTIAL = ".partial."
"""Prefix of the names of unfinished files and folders."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_JUST_MADE, _LONG_AGO = 60, 7 * 24 * 3600
"""Ages in seconds. An unfinished file younger than the first may not be locked yet; one older than the second is
abandoned, even on a file system without locks."""


# -- what the system refuses --------------------------------------------------------------------------------------


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a full disk or a path that is not writable into an error message; other exceptions pass.

    Raises:
        RunError: the system refused to write at `path` or beside it.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        code, name = _code(error), getattr(error, "filename", None)
        if code in _FULL:
            raise RunError(
                f"The disk is full: {path} could not be written. Nothing was lost: what was saved before is complete. "
                f"Free some space (or lower `train.save_total_limit`), and {GO_ON}"
            ) from error
        if code is None or (name is not None and not Path(os.fsdecode(name)).is_relative_to(path.parent)):
            raise
        raise RunError(
            f"{path} could not be written: {os.strerror(code)}. Nothing was lost: what was saved before is complete. "
            f"Make sure that its folder exists and is writable, and {GO_ON}"
        ) from error


def _code(error: BaseException) -> int | None:
    """Return the errno of an exception, or None.

    Some exceptions have none: safetensors names it in the message, torch.save only notices that its archive is too
    short.
    """
    if (code := getattr(error, "errno", None)) is not None:
        return int(code)
    if match := re.search(r"os error (\d+)", str(error)):
        return int(match[1])
    words = ("No space left", "inline_container", "PytorchStreamWriter")
    return errno.ENOSPC if any(word in str(error) for word in words) else None


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn a missing, damaged or unreadable file into an error message.

    Raises:
        RunError: the file cannot be read; the message names it.
    """
    try:
        yield
    except FileNotFoundError:
        raise RunError(f"{path} is missing.") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError, SafetensorError) as error:
        raise RunError(f"{path} is damaged: {str(error).rstrip('.')}.") from error


# -- writing ------------------------------------------------------------------------------------------------------


def write_text(path: Path, text: str, sealed: bool = False) -> None:
    """Replace a text file atomically: a reader sees the old file or the new one, never a part.

    Args:
        path: the file.
        text: its new content.
        sealed: whether to list the file in the seal of its folder.
    """
    write_bytes(path, text.replace("\n", os.linesep).encode(), sealed)


def write_bytes(path: Path, content: bytes, sealed: bool = False) -> None:
    """Replace a file atomically; `sealed` as in :func:`write_text`."""
    with _replaced(path, sealed) as temporary, temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: Any, sealed: bool = False) -> None:
    """Replace a JSON file atomically; `sealed` as in :func:`write_text`."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n", sealed)


def save_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None, sealed: bool = False
) -> None:
    """Replace a safetensors file atomically; `sealed` as in :func:`write_text`."""
    from safetensors.torch import save_file

    with _replaced(path, sealed) as temporary:
        mode = temporary.stat().st_mode
        save_file(_apart(tensors), temporary, metadata=dict(metadata or {}))
        temporary.chmod(mode)  # safetensors creates a file that only its owner may read


@contextlib.contextmanager
def _replaced(path: Path, sealed: bool) -> Iterator[Path]:
    """Yield an empty file beside `path`, with permissions by the umask, that replaces `path` in the end."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _partial(path)
        try:
            temporary.open("x").close()
            with _held(temporary):
                yield temporary
                if sealed:
                    unlist(path)
                os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    if sealed:
        enlist(path)


def _partial(path: Path) -> Path:
    return path.with_name(f"{PARTIAL}{path.name}.{secrets.token_hex(4)}")


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies of the tensors on the CPU that share no memory: safetensors refuses two names for one memory."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        if own.untyped_storage().data_ptr() in seen:
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        result[name] = own
    return result


@contextlib.contextmanager
def new_folder(path: Path, sealed: bool = True, replace: bool = True) -> Iterator[Path]:
    """Build a folder at a temporary path, seal it if `sealed`, and move it to `path` in one step.

    Partial folders that killed processes left beside it are removed.

    Args:
        path: the folder.
        sealed: whether to seal it.
        replace: whether to replace a folder that another process has created at `path` in the meantime.

    Yields:
        The folder to write into. If the block raises, nothing appears at `path`.
    """
    temporary = _partial(path)
    with writing(path), contextlib.ExitStack() as stack:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path.parent)
        temporary.mkdir()
        stack.callback(_remove, temporary)
        stack.enter_context(_held(temporary))
        yield temporary
        if sealed:
            seal(temporary)
        _move(temporary, path, replace)


def _move(folder: Path, path: Path, replace: bool) -> None:
    """Move a folder to `path`, replacing what is there if `replace` and it differs.

    Another process may be doing the same, and a third may be reading what one of them has made.
    """
    while True:
        try:
            os.replace(folder, path)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
                raise
        if not replace or _same(folder, path):
            return
        # A folder cannot replace a folder in one step: set the old one aside first.
        aside = _partial(path)
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, aside)
        _remove(aside)


def _same(folder: Path, other: Path) -> bool:
    """Return whether two sealed folders have the same content."""
    seals = [each / SEAL for each in (folder, other)]
    if not all(seal.is_file() for seal in seals) or seals[0].read_bytes() != seals[1].read_bytes():
        return False
    return damage(other, exactly=True) is None


# -- reading ------------------------------------------------------------------------------------------------------


def read_text(path: Path) -> str:
    """Read a text file.

    Raises:
        RunError: the file is missing, damaged or unreadable; the message names it.
    """
    check(path)
    with reading(path):
        return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        RunError: the file is missing, damaged or unreadable; the message names it.
    """
    text = read_text(path)
    with reading(path):
        return json.loads(text)


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read a safetensors file.

    Raises:
        RunError: the file is missing, damaged or unreadable; the message names it.
    """
    from safetensors.torch import load_file

    check(path)
    with reading(path):
        return load_file(path)


# -- seals --------------------------------------------------------------------------------------------------------


def digest(path: Path) -> str:
    """Return the BLAKE2b digest of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def seal(folder: Path) -> None:
    """Write the digests of all files in a folder, which is complete from then on.

    The files get the read and write permissions of the folder.
    """
    mode = folder.stat().st_mode & 0o666
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / SEAL)
    for path in paths:
        if path.stat().st_mode & 0o777 != mode:
            path.chmod(mode)
    write_json(folder / SEAL, {path.relative_to(folder).as_posix(): digest(path) for path in paths})


def user_cache() -> Path:
    """Return everlearn's folder in the user's cache (``XDG_CACHE_HOME``, ``~/.cache``)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "everlearn"


def damage(folder: Path, exactly: bool = False) -> str | None:
    """Describe the damage of a sealed folder; return None if every file is unchanged.

    Args:
        folder: the folder.
        exactly: whether a file that is not in the seal counts as damage too.
    """
    if not (folder / SEAL).is_file():
        return f"{folder} is incomplete: it has no {SEAL}"
    try:
        known = dict(listed(folder))
        for name, expected in known.items():
            if not (folder / name).is_file():
                return f"{folder / name} is missing"
            with reading(folder / name):
                if digest(folder / name) != expected:
                    return f"{folder / name} is damaged: its content is not what was saved"
    except RunError as error:
        return str(error).removesuffix(".")
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()} if exactly else {}
    if more := sorted(set(there) - known.keys() - {SEAL}):
        return f"{folder / more[0]} was not there when the folder was sealed"
    return None


def listed(folder: Path) -> Mapping[str, str]:
    """Return the seal of a folder, digests by relative path; empty if there is none.

    Raises:
        RunError: the seal is damaged.
    """
    path = folder / SEAL
    try:
        status = path.stat()
    except OSError:
        return {}
    return _listed(path, status.st_mtime_ns, status.st_size, status.st_ino)


@functools.lru_cache(maxsize=256)
def _listed(path: Path, *version: int) -> Mapping[str, str]:
    """Read a seal; cached, so that it is read once for all files of a folder."""
    try:
        with reading(path):
            content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not all(isinstance(mark, str) for mark in content.values()):
            raise RunError(f"{path} is damaged: it must list files with their digests.")
    except RunError as error:
        raise RunError(
            f"{error} Restore it from a copy. Without any seal the files beside it are taken as they are."
        ) from None
    return content


def fault(path: Path) -> str | None:
    """Describe how a file differs from its seal, in its folder or the one above; None if it does not, or none lists it.

    Raises:
        RunError: the seal beside it is damaged.
    """
    expected = listed(path.parent).get(path.name)
    if expected is None:
        above = path.parent.parent
        with contextlib.suppress(RunError):  # another folder's seal may be damaged
            expected = listed(above).get(path.relative_to(above).as_posix())
    if expected is None or not path.exists():
        return None
    with reading(path):
        return None if digest(path) == expected else f"{path} is damaged: its content is not what was saved"


def check(path: Path) -> None:
    """Check a file against its seal.

    Raises:
        RunError: the file is not as it was saved.
    """
    if (wrong := fault(path)) is not None:
        raise RunError(
            f"{wrong}. Restore it from a copy. If the change is your own, remove its line from the {SEAL} that lists "
            "it, and it is taken as it is."
        )


def enlist(path: Path) -> None:
    """Add a file, as it is now, to the seal of its folder."""
    write_json(path.parent / SEAL, {**listed(path.parent), path.name: digest(path)})


def unlist(path: Path) -> None:
    """Remove a file that is about to change from the seal of its folder."""
    known = listed(path.parent)
    if path.name in known:
        write_json(path.parent / SEAL, {name: mark for name, mark in known.items() if name != path.name})


# -- what killed processes leave ----------------------------------------------------------------------------------


def remove_leftovers(folder: Path) -> None:
    """Delete partial files of killed processes in a folder and all below it; no other process may write there."""
    for path in list(folder.rglob(f"{PARTIAL}*")):
        _remove(path)


def remove_abandoned(folder: Path) -> None:
    """Delete partial files of killed processes in a folder, and leave those that running processes are writing."""
    for path in folder.glob(f"{PARTIAL}*"):
        with contextlib.suppress(OSError):  # removed by another process
            if _abandoned(path):
                _remove(path)


def _abandoned(path: Path) -> bool:
    age = time.time() - max(each.lstat().st_mtime for each in (path, *path.rglob("*")))
    if age <= _JUST_MADE:
        return False
    try:
        with _held(path) as held:
            return held or age > _LONG_AGO
    except BlockingIOError:
        return False


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Hold the lock of a file or folder until the block or the process ends; yield False if it cannot be locked.

    Some file systems have no locks, and a link is not followed.

    Raises:
        BlockingIOError: another process holds it.
    """
    if fcntl is None or path.is_symlink():
        yield False
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        held = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            held = False
        yield held
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    """Remove a folder with its content, a file, or a link itself; ignore what is missing or cannot be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
