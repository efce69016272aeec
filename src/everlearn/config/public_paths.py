"""Remove folder names from published files: only the last part of an absolute path is shown.

Paths stay complete in recipe.yaml and environment.json of a run, where they are needed, and where runs are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from everlearn.config.reading import read_saved, written

_ROOT = r"(?:file://)?(?:~[\w-]*(?=[/\\])|[A-Za-z]:(?=[/\\]))?"
_WHOLE = re.compile(rf"{_ROOT}[/\\].*")
_INSIDE = re.compile(rf"(?<![\w.:/\\~<-]){_ROOT}(?:[/\\][^\s/\\:*?\"'<>|,;()\[\]{{}}`]+){{2,}}[/\\]?")
_MOST = 4
"""Largest number of path components that are shown to distinguish two paths."""


def without_folders(value: Any, known: Iterable[str] = (), parts: int = 1) -> Any:
    """Return a JSON value with every absolute path in its strings shortened to its last parts.

    Args:
        value: a string, or a structure that contains strings.
        known: paths that may occur inside a sentence and contain spaces.
        parts: number of path components to keep.
    """
    known = sorted(known, key=len, reverse=True)
    spaced = {str(folder) for path in known for folder in PurePath(path).parents if " " in str(folder)}
    folders = sorted(spaced, key=len, reverse=True)

    def shortened(value: Any) -> Any:
        if isinstance(value, str):
            if _WHOLE.fullmatch(value.strip()):
                return _last(value, parts)
            for path in known:
                value = value.replace(path, _last(path, parts))
            for folder in folders:
                value = value.replace(f"{folder}/", "")
            return _INSIDE.sub(lambda path: _last(path.group(), parts), value)
        if isinstance(value, Mapping):
            return {key: shortened(each) for key, each in value.items()}
        return [shortened(each) for each in value] if isinstance(value, list | tuple) else value

    return shortened(value)


def recipe_without_folders(text: str) -> str:
    """Return the YAML of a recipe without the folders of its files; unchanged if it names none."""
    raw = read_saved(text)
    if raw is None:
        return str(without_folders(text))
    shown = without_folders(raw)
    return text if shown == raw else written(shown)


def paths_of(recipe: str | None) -> list[str]:
    """Return every absolute path that a recipe names."""
    return [text for text in _strings(read_saved(recipe or "")) if _WHOLE.fullmatch(text)]


def local_model(model: str) -> str:
    """Return the name of a base model in results: ``./name`` for a folder, which cannot be an id of the hub."""
    return f"./{_last(model, 1)}" if _WHOLE.fullmatch(model.strip()) else model


def still_different(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values of one setting in several runs, with as much of each path as distinguishes them."""
    for parts in range(1, _MOST + 1):
        shown = tuple(str(without_folders(value, parts=parts)) for value in values)
        if len(set(shown)) == len(set(values)):
            return shown
    places = {value: number for number, value in enumerate(dict.fromkeys(values), 1)}
    return tuple(f"{without_folders(value)} ({places[value]})" for value in values)


def _last(path: str, parts: int) -> str:
    names = [name for name in re.split(r"[/\\]", path.removeprefix("file://").strip()) if name]
    return "/".join(names[-parts:])


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
