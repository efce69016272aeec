"""The base class of every group of options, checks of names and paths, and messages for values that are not allowed."""

from __future__ import annotations

import inspect
import os
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from everlearn.errors import RecipeError, did_you_mean

LONGEST_NAME, LONGEST_PATH, LONGEST_PART = 100, 4095, 255
"""Limits: characters of a name (it becomes part of file names), bytes of a path, bytes of each part of a path."""
TAKEN = frozenset({"base", "mean"})
"""Reserved names: every table has a row and a column called so."""
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Options(BaseModel):
    """Base class of all option groups: immutable, with unknown keys refused and all numbers finite."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )

    def __init_subclass__(cls, **options: Any) -> None:
        """Say where the class is written: pydantic would look for it in all loaded modules, to read the docstrings."""
        super().__init_subclass__(**options)
        module = sys.modules.get(cls.__module__)
        if module is not None and hasattr(module, "__file__"):
            inspect.modulesbyfile[inspect.getabsfile(module)] = cls.__module__

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a boolean where a number is expected; pydantic would read true as 1."""
        if isinstance(value, bool):
            kinds = _kinds(cls.model_fields[str(info.field_name)].annotation)
            if kinds & {int, float} and bool not in kinds:
                raise ValueError("must be a number, not true or false")
        return value


def _kinds(annotation: Any) -> set[Any]:
    """Return the types in a union, looking through ``Annotated`` and into the values of literals."""
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return {type(part) for part in parts}
    if hasattr(annotation, "__metadata__"):
        return _kinds(parts[0])
    if not parts or typing.get_origin(annotation) in (tuple, list, dict):
        return {annotation}
    return set().union(*map(_kinds, parts))


def slug(value: str, what: str) -> str:
    """Return a name if it is valid as a part of a file name on every system.

    Args:
        value: the name.
        what: the subject of the error message, such as "a domain's name".

    Raises:
        ValueError: the name is not valid.
    """
    if not _SLUG.fullmatch(value):
        raise ValueError(f"{what} is made of letters, digits, '.', '-' and '_' and starts with a letter or digit")
    if len(value) > LONGEST_NAME:
        raise ValueError(f"{what} has at most {LONGEST_NAME} characters; this one has {len(value)}")
    return value


def path_or_id(text: str | Path, key: str) -> str:
    """Return the local path that a text names, with ``~`` expanded, or else the text as it is (a hub id, a URL).

    Args:
        text: the user's text.
        key: the option or recipe key, for the error message.

    Raises:
        RecipeError: the text is empty.
    """
    local = home(text, key)
    return str(local) if local.exists() or str(text).startswith("~") else str(text)


def home(path: str | Path, key: str) -> Path:
    """Return a path with ``~`` expanded to the home folder.

    Args:
        path: the path in a recipe or on the command line.
        key: the option or recipe key, for the error message.

    Raises:
        RecipeError: the path is empty or too long for any file system, or there is no such user.
    """
    if not str(path).strip():
        raise RecipeError(f"`{key}` is empty. Name a path, or leave the key out.")
    try:
        expanded = Path(path).expanduser()
    except RuntimeError:
        raise RecipeError(f"`{key}` is '{path}', but there is no user '{Path(path).parts[0][1:]}' here.") from None
    parts = [len(os.fsencode(part)) for part in expanded.parts]
    if sum(parts) + len(parts) > LONGEST_PATH or max(parts, default=0) > LONGEST_PART:
        raise RecipeError(
            f"`{key}` is '{str(path)[:40]}…', a path of {len(str(path)):,} characters. No file system takes more than "
            f"{LONGEST_PATH:,} bytes, and {LONGEST_PART} in each part."
        )
    return expanded


WORDS = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "is too large a number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "model_type": "must be a mapping of keys",
    "model_attributes_type": "must be a mapping of keys",
    "dict_type": "must be a mapping of keys",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be {le} or less",
    "literal_error": "must be {expected}",
    "missing": "is missing",
    "too_short": "needs at least {min_length}",
    "string_too_short": "must not be empty",
}
"""Pydantic's types of errors → our wording."""


_NO_KEY = re.compile(r"function-.*|(literal|list)\[.*\]|(constrained-)?(str|int|float|bool)|[A-Z][A-Za-z]+")


def key_of(error: Mapping[str, Any]) -> list[int | str]:
    """Return the location of an error, without pydantic's names for validators and for the members of a union."""
    unknown = error["loc"][-1:] if error["type"] == "extra_forbidden" else ()  # as the user wrote it
    parts = error["loc"][: len(error["loc"]) - len(unknown)]
    return [*(part for part in parts if isinstance(part, int) or not _NO_KEY.fullmatch(part)), *unknown]


def wrong_key(of: type[BaseModel], error: ValidationError, inside: Sequence[str] = (), where: str = "") -> str:
    """Word the first error in a mapping of keys as one sentence, which begins with the key.

    Args:
        of: the class of the mapping.
        error: what pydantic raised.
        inside: keys above the mapping.
        where: words that follow the key, such as " in the settings".
    """
    first, others = _first(error)
    key = ".".join(map(str, (*inside, *key_of(first))))
    if first["type"] == "extra_forbidden":
        *parents, last = key_of(first)
        return f"Unknown key `{key}`{where}.{did_you_mean(str(last), _fields_at(of, parents))}"
    if first["type"] == "missing":
        return f"The recipe needs `{key}`{where}."
    message = wrong_value(first, *others)
    colon = "" if first["type"] in WORDS else ":"
    sentence = f"`{key}`{where}{colon} {message}" if key else f"{message}{where}"
    sentence = f"{sentence[0].upper()}{sentence[1:]}"
    return sentence if sentence.endswith("?") else f"{sentence}."


def _first(error: ValidationError) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """Return the first error, and those for the other types that the same value may have."""
    here = key_of(error.errors()[0])
    # Of the members of a union, the one with errors inside its parts is the one that was meant.
    same = [each for each in error.errors() if key_of(each)[: len(here)] == here]
    first, *more = sorted(same, key=lambda each: -len(key_of(each)))
    return first, [each for each in more if len(each["loc"]) > len(key_of(each)) and key_of(each) == key_of(first)]


def _fields_at(place: type[BaseModel], parts: Sequence[str | int]) -> Iterable[str]:
    """Return the names that are allowed at the place of an unknown key."""
    for part in parts:
        if part in place.model_fields:
            place = next(_groups_in(place.model_fields[str(part)].annotation), place)
    return place.model_fields


def _groups_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the groups of options that a key may hold."""
    if typing.get_origin(annotation) is None and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _groups_in(inner)


def wrong_option(of: str, options: type[BaseModel], error: ValidationError) -> str:
    """Word the first error in some options as one sentence.

    Args:
        of: what has these options, such as "Method 'ewc'".
        options: their class.
        error: what pydantic raised.
    """
    first, others = _first(error)
    key = ".".join(str(part) for part in key_of(first))
    if first["type"] == "extra_forbidden":
        return f"{of} has no option '{key}'.{did_you_mean(key, options.model_fields)}"
    if not key:  # a constraint on several options
        return f"{of}, {first['msg'].removeprefix('Value error, ')}."
    return f"{of}, option '{key}': {wrong_value(first, *others)}."


def wrong_value(error: Mapping[str, Any], *others: Mapping[str, Any]) -> str:
    """Describe what is wrong with a value, and quote the value: ``must be above 0 (got -1)``.

    Args:
        error: one of ``ValidationError.errors()``.
        others: the errors for the other types that the value may have.
    """
    message = ", or ".join([_words(error), *(_words(other).removeprefix("must be ") for other in others)])
    value = error.get("input")
    if isinstance(value, Mapping | list | tuple | BaseModel) and value:
        return message
    shown = _shown(value)
    if error["type"] == "string_type" and isinstance(value, bool):
        return f"{message} (got {shown}; YAML reads yes, no, on and off so: write it in quotes)"
    if error["type"] == "string_type" and isinstance(value, int | float):
        return f"{message} (got {shown}; write it in quotes)"
    return f"{message} (got {shown})"


def _shown(value: Any) -> str:
    try:
        shown = repr(value)
    except ValueError:  # Python prints no number of more than 4,300 digits
        return "a number of more than 4,300 digits"
    return shown if len(shown) <= 80 else f"{shown[:40]}…"


def _words(error: Mapping[str, Any]) -> str:
    if error["type"] in WORDS:
        return WORDS[error["type"]].format(**error.get("ctx", {}))
    return str(error["msg"]).removeprefix("Value error, ")
