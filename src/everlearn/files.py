"""Files that are whole or absent: atomic replacement, sealed folders, no pickle."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from everlearn.errors import RunError

SEAL = "seal.json"
PARTIAL = ".partial."
"""Begins the name of whatever is still being written."""


@contextlib.contextmanager
def full_disk_is_an_error(path: Path) -> Iterator[None]:
    """Turn "no space left" into a sentence; everything else passes."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        # safetensors words the system's error itself; torch.save only notices that its archive came out too short.
        words = ("No space left", "os error 28", "inline_container", "PytorchStreamWriter")
        coded = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if not coded and not any(word in str(error) for word in words):
            raise
        raise RunError(
            f"The disk is full: {path} could not be written. Nothing was lost: what was saved before is whole. "
            "Free some space (or lower `train.save_total_limit`) and run `everlearn resume`."
        ) from error


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically: a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with full_disk_is_an_error(path):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{PARTIAL}{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        RunError: the file is missing or damaged; the sentence names it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is damaged: {error}.") from error


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Replace a safetensors file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{PARTIAL}{path.name}.{os.getpid()}")
    with full_disk_is_an_error(path):
        try:
            save_file(_apart(tensors), temporary, metadata=dict(metadata or {}))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors on the CPU, each with memory of its own: safetensors refuses two names for one memory."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        if own.untyped_storage().data_ptr() in seen:
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        result[name] = own
    return result


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read a safetensors file.

    Raises:
        RunError: the file is missing or damaged; the sentence names it.
    """
    try:
        return load_file(path)
    except FileNotFoundError:
        raise RunError(f"{path} is missing.") from None
    except SafetensorError as error:
        raise RunError(f"{path} is damaged: {error}.") from error


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Build a folder beside its place, then seal it and move it there in one step.

    Yields:
        The folder to write into. If the block raises, nothing appears at `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f"{PARTIAL}{path.name}."))
    with full_disk_is_an_error(path):
        try:
            yield temporary
            temporary.chmod(0o755)
            seal(temporary)
            if path.exists():
                # A folder cannot replace a folder in one step: set the old one aside first.
                aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f"{PARTIAL}{path.name}.old."))
                os.replace(path, aside / "old")
                os.replace(temporary, path)
                shutil.rmtree(aside, ignore_errors=True)
            else:
                os.replace(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def digest(path: Path) -> str:
    """BLAKE2b of a file's bytes, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def seal(folder: Path) -> None:
    """Write down every file's digest: the folder is complete from here on."""
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and p.name != SEAL)
    write_json(folder / SEAL, {name: digest(folder / name) for name in names})


def damage(folder: Path) -> str | None:
    """What is wrong with a sealed folder, or None when every file is as it was sealed."""
    if not (folder / SEAL).is_file():
        return f"{folder} is incomplete: it has no {SEAL}"
    try:
        listed = read_json(folder / SEAL)
    except RunError as error:
        return str(error)
    for name, expected in listed.items():
        if not (folder / name).is_file():
            return f"{folder / name} is missing"
        if digest(folder / name) != expected:
            return f"{folder / name} is damaged: its content is not what was saved"
    return None


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed process was still writing, in a folder and everything below it."""
    for path in list(folder.rglob(f"{PARTIAL}*")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
