"""What a method remembers: pieces of state that one rule saves, loads and checks (:mod:`everlearn.methods.state`)."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.options import key_of, wrong_value

T = TypeVar("T")
Kind = Literal["float", "int", "any"]


@dataclass
class Memory:
    """What a method carries from one stage to the next: named tensors and JSON facts."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    path: str = field(default="", compare=False)
    """Of its files, without their endings; for error messages."""

    def __bool__(self) -> bool:
        return bool(self.tensors or self.facts)


@dataclass
class Loading(Memory):
    """A memory while it is loaded: every piece takes what is its own, and nothing may be left."""

    label: str = ""
    """Of the method, for error messages."""

    def refuse(self, key: str, rule: str, file: str = "safetensors") -> NoReturn:
        """Raise ``MethodError`` with a sentence about one key of one of its files."""
        place = f" {self.path}.{file}" if self.path else ""
        raise MethodError(
            f"Method '{self.label}' cannot load its memory{place}: '{key}' {rule}. "
            "Restore it from a copy, or learn the domain again."
        )

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Take the tensors whose keys begin with a prefix, and remove it."""
        keys = [key for key in self.tensors if key.startswith(prefix)]
        return {key.removeprefix(prefix): self.tensors.pop(key) for key in keys}

    def check(self, key: str, value: Tensor, kind: Kind, dims: int | None = None) -> Tensor:
        """Refuse a tensor with another kind of number or other dimensions, or with NaN or infinity in it."""
        if value.is_complex() or (kind != "any" and (kind == "float") != value.is_floating_point()):
            words = {"float": "floating-point", "int": "whole", "any": "real"}[kind]
            self.refuse(key, f"must hold {words} numbers (got {value.dtype})")
        if dims is not None and value.dim() != dims:
            self.refuse(key, f"must have {dims} dimensions (got shape {tuple(value.shape)})")
        # Smallest and largest: unlike `isfinite` this makes no tensor of the same size.
        if value.is_floating_point() and value.numel() and not all(end.isfinite() for end in value.aminmax()):
            self.refuse(key, "must hold finite numbers (got NaN or infinity)")
        return value

    def fact(self, key: str, kind: TypeAdapter[T]) -> T:
        """Take a fact of a type, strictly: neither text nor a flag stands for a number."""
        if key not in self.facts:
            self.refuse(key, "is missing", "json")
        try:
            return kind.validate_json(json.dumps(self.facts.pop(key), allow_nan=False), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            self.refuse(".".join(str(part) for part in (key, *key_of(first)) if part != ""), wrong_value(first), "json")
        except ValueError:
            self.refuse(key, "must hold finite numbers (got NaN or infinity)", "json")

    def same_names(self, found: Iterable[str], expected: Iterable[str], prefix: str = "") -> None:
        """Refuse names that are missing or too many."""
        found, expected = dict.fromkeys(found), dict.fromkeys(expected)
        for name in expected.keys() - found.keys():
            self.refuse(f"{prefix}{name}", "is missing")
        for name in found.keys() - expected.keys():
            self.refuse(f"{prefix}{name}", "is not expected")


class StatePiece(Generic[T]):
    """One piece of what a method remembers. Declare it in the class; it is then used like any other attribute.

    Args:
        key: the whole key of a fact or tensor, or the beginning of the keys of several.
        empty: makes the value of a method that remembers nothing, which is not saved.
        at: where the value is, seen from the method (``_queue.texts``); by default the attribute itself.
        beside: another piece, without which this one is not there, nor that one without this.
        rows: another piece, with an item for each row or item of this one.
    """

    has_prefix = False
    """Whether `key` is the beginning of several keys."""
    file = "safetensors"
    """Where it is kept."""

    def __init__(self, key: str, empty: Callable[[], T], *, at: str = "", beside: str = "", rows: str = "") -> None:
        self.key, self.empty, self.at, self.beside, self.rows = key, empty, at, beside, rows
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.at = name, self.at or name

    def __get__(self, method: Any, owner: type | None = None) -> T:
        """Return the empty value at the first use; from then on the method has an attribute of that name."""
        value: Any = self if method is None else method.__dict__.setdefault(self.name, self.empty())
        return value

    def value(self, method: object) -> T:
        """Return what the method has now."""
        value: T = functools.reduce(getattr, self.at.split("."), method)  # type: ignore[assignment]
        return value

    def set(self, method: object, value: T) -> None:
        """Put a loaded value in its place."""
        *path, last = self.at.split(".")
        setattr(functools.reduce(getattr, path, method), last, value)

    def holds(self, value: T) -> bool:
        """Return whether there is something to save."""
        return bool(value)

    def save(self, value: T, memory: Memory) -> None:
        """Write the value into a memory."""
        raise NotImplementedError

    def load(self, given: Loading) -> T:
        """Take the value out of a memory, which may have none."""
        raise NotImplementedError

    def check(self, values: dict[str, Any], given: Loading) -> None:
        """Refuse what does not agree with the values of other pieces, all of which are loaded."""
        if self.rows and self.holds(values[self.name]):
            expected = len(values[self.rows])
            for key, rows in self.parts(values[self.name]):
                if len(rows) != expected:
                    given.refuse(key, f"must have {expected} rows (got {len(rows)})", self.file)

    def parts(self, value: Any) -> list[tuple[str, Any]]:
        """Return all that has rows, by key."""
        return [(self.key, value)]

    def fit(self, value: T, model: nn.Module, given: Loading) -> None:
        """Refuse what is of another model than the one that is about to be trained."""


def pieces(cls: type) -> dict[str, StatePiece[Any]]:
    """Return what a class declares, by attribute: first what has whole keys, then the longest prefixes."""
    found: dict[str, StatePiece[Any]] = {}
    for base in reversed(cls.__mro__):
        found |= {name: piece for name, piece in vars(base).items() if isinstance(piece, StatePiece)}
    return dict(sorted(found.items(), key=lambda item: (item[1].has_prefix, -len(item[1].key))))


def save_state(method: object) -> Memory:
    """Return what a method remembers now."""
    memory, declared = Memory(), pieces(type(method))
    values = {name: piece.value(method) for name, piece in declared.items()}
    holding = {name for name, piece in declared.items() if piece.holds(values[name])}
    for name, piece in declared.items():
        if name in holding or piece.beside in holding:
            piece.save(values[name], memory)
    return memory


def load_state(method: object, label: str, memory: Memory) -> None:
    """Give a method what it remembered.

    Raises:
        MethodError: it is not what the method declares; the sentence names the file and the key.
    """
    declared = pieces(type(method))
    given = Loading(dict(memory.tensors), dict(memory.facts), memory.path, label)
    values = {name: piece.load(given) for name, piece in declared.items()}
    for file, left in (("safetensors", given.tensors), ("json", given.facts)):
        for key in left:
            given.refuse(key, "is nothing that this method remembers", file)

    def there(name: str) -> bool:
        return declared[name].key in memory.facts or declared[name].holds(values[name])

    for name, piece in declared.items():
        if piece.beside and there(name) != there(piece.beside):
            missing, other = (declared[piece.beside], piece)[:: 1 if there(name) else -1]
            given.refuse(missing.key, f"is missing, and '{other.key}' is there", missing.file)
        piece.check(values, given)
    for name, piece in declared.items():
        piece.set(method, values[name])


def fit_state(method: object, label: str, model: nn.Module) -> None:
    """Refuse a method's state that is of another model than the one that is about to be trained.

    Raises:
        MethodError: as :func:`load_state`.
    """
    for piece in pieces(type(method)).values():
        piece.fit(piece.value(method), model, Loading(label=label))
