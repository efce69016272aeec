"""Read and write YAML with the rules of a recipe: text, numbers, lists, and mappings with unique string keys.

Surprising rules of YAML 1.1 are replaced: ``1e-4`` is a number, a date or ``12:30`` is text, tags create no other
objects, and a file whose aliases would expand to a huge structure is refused before it does.
"""

from __future__ import annotations

import copy
import functools
import re
from pathlib import Path
from typing import Any

import yaml

from everlearn.errors import RecipeError, did_you_mean

LARGEST, DEEPEST, MOST, DIGITS = 2**20, 40, 200_000, 100
"""Limits: bytes of a file, levels of nesting, values with aliases expanded, and characters of a number."""
_POWER = re.compile(r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+")
"""Numbers that YAML 1.1 reads as a string, because a point or a sign is missing."""
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map", "merge")}
_INT, _FLOAT, _TEXT = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "str"))


class _Loader(yaml.SafeLoader):
    def fetch_flow_collection_start(self, *kind: Any) -> None:
        if self.flow_level > DEEPEST:  # the time that PyYAML takes grows with its square
            raise _Mistake(f"it is nested more than {DEEPEST} levels deep")
        super().fetch_flow_collection_start(*kind)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            line = key.start_mark.line + 1
            if key.tag != _TEXT:
                shown = f"`{key.value}`" if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
                raise _Mistake(f"line {line}: {shown} is no key: YAML does not read it as a word. Keys are words")
            if key.value in seen:
                raise _Mistake(f"line {line}: the key `{key.value}` occurs a second time. Remove one of them")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes YAML that :class:`_Loader` reads back as the same value."""


class _Mistake(Exception):
    """A mistake in a text, worded as the end of a sentence."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, expression) for tag, expression in rules if tag in _TAGS]
    for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver(_FLOAT, _POWER, list("-+0123456789"))


def read_yaml(path: Path, what: str = "recipe") -> dict[str, Any]:
    """Read the mapping in a YAML file.

    Args:
        path: the file.
        what: a description of the file, for error messages.

    Raises:
        RecipeError: the file cannot be read, is not valid YAML, or repeats a key; the message names the line.
    """
    raw = read_yaml_file(path, what)
    if not isinstance(raw, dict):
        there = "is empty" if raw is None else "holds no keys"
        raise RecipeError(f"'{path}' {there}: a {what} is a mapping of keys, such as `model`, to values.")
    return raw


def read_yaml_file(path: Path, what: str) -> Any:
    """Read a YAML file, whatever its value is; arguments and errors as of :func:`read_yaml`."""
    if not path.exists():
        near = did_you_mean(path.name, [p.name for p in path.parent.glob("*.y*ml")]) if path.parent.is_dir() else ""
        raise RecipeError(f"There is no {what} '{path}'.{near}")
    if path.is_dir():
        raise RecipeError(f"'{path}' is a folder; the {what} must be a YAML file.")
    if not path.is_file():
        raise RecipeError(f"'{path}' is not a file but a pipe or a device; the {what} must be a YAML file.")
    try:
        if (size := path.stat().st_size) > LARGEST:
            raise RecipeError(f"'{path}' has {size:,} bytes, too many for a {what}, which has {LARGEST:,} at most.")
        content = path.read_bytes()
    except OSError as error:
        raise RecipeError(f"The {what} '{path}' cannot be read: {error.strerror}.") from None
    try:
        return _parse(content)
    except _Mistake as error:
        advice = "" if path.suffix.lower() in (".yaml", ".yml") else f" The {what} must be a YAML file."
        raise RecipeError(f"'{path}' is not valid YAML: {error}.{advice}") from None


def read_value(text: str, key: str) -> Any:
    """Parse a value from the command line as YAML.

    Raises:
        RecipeError: it is not valid YAML.
    """
    try:
        return _parse(text)
    except _Mistake as error:
        raise RecipeError(f"The value of `{key}` is not valid YAML: {error} (got '{text[:80]}').") from None


def read_saved(text: str) -> Any:
    """Return the content of the recipe in a run folder, for a report; None if it is damaged: reports do without."""
    try:
        return _parse(text)
    except _Mistake:
        return None


def written(value: Any) -> str:
    """Return a value as YAML that :func:`read_yaml` reads back as the same value."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def _parse(content: str | bytes) -> Any:
    return copy.deepcopy(_parsed(content))


@functools.lru_cache(maxsize=8)
def _parsed(content: str | bytes) -> Any:
    """Parse a text; a command reads its recipe several times, and PyYAML takes 10 ms each time."""
    try:
        loader = _Loader(content)
        node = loader.get_single_node()
        _check(node)
        return None if node is None else loader.construct_document(node)
    except yaml.reader.ReaderError as error:
        raise _Mistake(f"byte {error.position} is not text ({error.reason})") from None
    except yaml.MarkedYAMLError as error:
        raise _Mistake(_place(error)) from None
    except RecursionError:
        raise _Mistake(f"it is nested more than {DEEPEST} levels deep") from None
    except (ValueError, OverflowError) as error:
        raise _Mistake(f"it holds a number that cannot be read ({error})") from None


def _place(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = str(error.problem or error.context)
    if "another document" in problem:
        return f"{where}a second document (`---`) begins here; there must be one"
    if "'\\t'" in problem:
        return f"{where}a tab; indent with spaces"
    return f"{where}{problem}"


def _check(node: Any) -> None:
    """Check every value, with aliases expanded, before any is constructed."""
    left = MOST
    stack = [(node, 0)] if node is not None else []
    while stack:
        at, depth = stack.pop()
        left -= 1
        if depth > DEEPEST:
            raise _Mistake(f"it is nested more than {DEEPEST} levels deep")
        if left < 0:
            raise _Mistake(f"it unfolds to more than {MOST:,} values")
        if at.tag not in _TAGS:
            raise _Mistake(
                f"line {at.start_mark.line + 1}: the tag {at.tag.replace('tag:yaml.org,2002:', '!!')} is unknown"
            )
        if at.tag in (_INT, _FLOAT):
            _check_number(at)
        if isinstance(at, yaml.MappingNode):
            stack += [(part, depth + 1) for pair in at.value for part in pair]
        elif isinstance(at, yaml.SequenceNode):
            stack += [(part, depth + 1) for part in at.value]


def _check_number(node: Any) -> None:
    """Read ``12:30``, in YAML 1.1 a number of base 60, as text; refuse a number that is too long."""
    if ":" in node.value:
        node.tag = _TEXT
    elif len(node.value) > DIGITS:
        raise _Mistake(
            f"line {node.start_mark.line + 1}: a number of {len(node.value):,} characters ({node.value[:20]}…); the "
            f"most is {DIGITS}"
        )
