"""One piece of a method's state, and how the pieces that a class declares are saved, loaded and checked."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch import nn

from everlearn.methods.state.memory import Memory, MemoryReader

T = TypeVar("T")


class StatePiece(Generic[T]):
    """Base class of the pieces: a descriptor that is used like any other attribute.

    A subclass defines :meth:`save` and :meth:`load`, and where needed :meth:`check` and :meth:`fit`.

    Args:
        key: the key of one fact or tensor, or the prefix of the keys of several.
        empty: returns the initial value, which is not saved.
        at: path of attributes to the value, such as ``_queue.texts``; by default the attribute itself.
        beside: name of another piece: both are present or neither is.
        rows: name of another piece that has an item for each row of this one.
    """

    has_prefix = False
    """Whether `key` is a prefix."""
    file = "safetensors"
    """Suffix of the file that holds it."""

    def __init__(self, key: str, empty: Callable[[], T], *, at: str = "", beside: str = "", rows: str = "") -> None:
        self.key, self.empty, self.at, self.beside, self.rows = key, empty, at, beside, rows
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.at = name, self.at or name

    def __get__(self, method: Any, owner: type | None = None) -> T:
        """Return the empty value at the first use; from then on the method has an attribute of that name."""
        value: Any = self if method is None else method.__dict__.setdefault(self.name, self.empty())
        return value

    @property
    def keys(self) -> str:
        """Its key or pattern of keys, for error messages."""
        return f"{self.key}*" if self.has_prefix else self.key

    def value(self, method: object) -> T:
        """Return the current value."""
        value: T = functools.reduce(getattr, self.at.split("."), method)  # type: ignore[assignment]
        return value

    def set(self, method: object, value: T) -> None:
        """Set a loaded value."""
        *path, last = self.at.split(".")
        setattr(functools.reduce(getattr, path, method), last, value)

    def holds(self, value: T) -> bool:
        """Return whether there is something to save."""
        return bool(value)

    def save(self, value: T, memory: Memory) -> None:
        """Write the value into a memory."""
        raise NotImplementedError

    def load(self, reader: MemoryReader) -> T:
        """Take the value out of a memory; return the initial value if it is missing."""
        raise NotImplementedError

    def check(self, values: dict[str, Any], reader: MemoryReader) -> None:
        """Refuse a value that is inconsistent with those of other pieces, once all are loaded."""
        if self.rows and self.holds(values[self.name]):
            expected = len(values[self.rows])
            for key, rows in self.parts(values[self.name]):
                if len(rows) != expected:
                    reader.refuse(key, f"must have {expected} rows (got {len(rows)})", self.file)

    def parts(self, value: Any) -> list[tuple[str, Any]]:
        """Return the parts of a value that have rows, with their keys."""
        return [(self.key, value)]

    def fit(self, value: T, model: nn.Module, reader: MemoryReader) -> None:
        """Refuse a value that belongs to another model than the one about to be trained."""


def declared(cls: type) -> dict[str, StatePiece[Any]]:
    """Return the pieces of a class by attribute, in the order of loading: single keys, then long prefixes first."""
    pieces: dict[str, StatePiece[Any]] = {}
    for base in reversed(cls.__mro__):
        pieces |= {name: piece for name, piece in vars(base).items() if isinstance(piece, StatePiece)}
    return dict(sorted(pieces.items(), key=lambda item: (item[1].has_prefix, -len(item[1].key))))


def save_state(method: object) -> Memory:
    """Return the current state of a method as a memory."""
    memory, pieces = Memory(), declared(type(method))
    values = {name: piece.value(method) for name, piece in pieces.items()}
    present = {name for name, piece in pieces.items() if piece.holds(values[name])}
    for name, piece in pieces.items():
        if name in present or piece.beside in present:
            piece.save(values[name], memory)
    return memory


def load_state(method: object, label: str, memory: Memory) -> None:
    """Restore the state of a method; nothing is set before everything is checked.

    Raises:
        MethodError: the memory does not match what the class declares; the message names the file and the key.
    """
    pieces, reader = declared(type(method)), MemoryReader(memory, label)
    values = {name: piece.load(reader) for name, piece in pieces.items()}
    for file, unread in (("safetensors", reader.tensors), ("json", reader.facts)):
        for key in unread:
            reader.refuse(key, "is not part of this method's state", file)
    present = {name for name, piece in pieces.items() if piece.key in memory.facts or piece.holds(values[name])}
    for name, piece in pieces.items():
        if piece.beside and (name in present) != (piece.beside in present):
            missing, other = (pieces[piece.beside], piece) if name in present else (piece, pieces[piece.beside])
            reader.refuse(missing.keys, f"is missing, although '{other.keys}' is present", missing.file)
        piece.check(values, reader)
    for name, piece in pieces.items():
        piece.set(method, values[name])


def fit_state(method: object, label: str, model: nn.Module) -> None:
    """Refuse a state that belongs to another model than the one about to be trained.

    Raises:
        MethodError: as in :func:`load_state`.
    """
    for piece in declared(type(method)).values():
        piece.fit(piece.value(method), model, MemoryReader(Memory(), label))
