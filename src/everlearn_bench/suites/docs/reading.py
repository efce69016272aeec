"""Docstrings and long comments of installed libraries, read from their source files.

Nothing is imported or executed. The files are split into strings and comments by one regular expression instead of
:mod:`ast`: it finds the same docstrings (the tests compare the two) in a quarter of the time, and it also finds what a
syntax tree leaves out: comments, docstrings of attributes, Cython and files in a newer syntax.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import os
import platform
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from everlearn.errors import DataError

Split = Literal["test", "validation", "train"]


@dataclass(frozen=True, slots=True)
class Doc:
    """One document."""

    text: str
    subpackage: str
    """Subpackage of the library (``core``, ``algorithms.flow``); empty if unknown or not a docstring."""
    split: Split
    key: str
    """Hash of its letters and digits: decides split and order, and finds duplicates."""


STANDARD_LIBRARY = "python"
"""Stands for the standard library among the names of libraries."""

SHORTEST = 80
"""Characters below which a docstring is a label rather than a document."""
_SHORTEST_COMMENT = 160

_DISTRIBUTION = {"PIL": "pillow", "yaml": "pyyaml", "dateutil": "python-dateutil", "markdown_it": "markdown-it-py"}
_SUFFIXES = (".py", ".pyx", ".pxi")
_PRUNED = frozenset({"tests", "test", "idle_test", "lib2to3", "site-packages", "__pycache__", "_vendor", "vendored"})
# Each alternative begins with a fixed character and never backtracks, which keeps the scan fast.
_PIECES = re.compile(
    r"""
    (?P<comment>\#[^\n]*+(?:\n[ \t]*+\#[^\n]*+)*+)
    | \"{3} (?P<double>(?:[^"\\]++|\\.|"(?!""))*+) \"{3}
    | '{3} (?P<single>(?:[^'\\]++|\\.|'(?!''))*+) '{3}
    | "(?:[^"\\\n]++|\\.)*+"
    | '(?:[^'\\\n]++|\\.)*+'
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_MARK = re.compile(r"^[ \t]*#[:!#]*[ ]?", re.MULTILINE)
_NOT_PROSE = re.compile(r"copyright|licen[sc]e|warrant|noqa|coding[:=]|auto-?generated", re.IGNORECASE)
_NOT_LETTERS = re.compile(r"[\W\d_]+")
_LONG_RULE = re.compile(r"([-=~*#_^+.])\1{7,}")
_BLANK_LINES = re.compile(r"\n\s*\n\s*\n+")


@dataclass(frozen=True, slots=True)
class Passage:
    """One docstring or one block of comments."""

    text: str
    module: tuple[str, ...]
    """Components of the module's path below the library; empty for the library's own ``__init__``."""
    is_docstring: bool


@functools.cache
def version(library: str) -> str | None:
    """Return the installed version of a library (of Python for the standard library), or None if it is absent."""
    if library == STANDARD_LIBRARY:
        return platform.python_version()
    try:
        return metadata.version(_DISTRIBUTION.get(library, library))
    except metadata.PackageNotFoundError:
        return None


def place(library: str) -> Path:
    """Return the folder or file of an installed library, without importing it.

    Raises:
        DataError: it is not installed.
    """
    if library == STANDARD_LIBRARY:
        return Path(sysconfig.get_path("stdlib"))
    spec = importlib.util.find_spec(library)
    if spec is None or not spec.origin:
        raise DataError(
            f"The suite `docs` reads the documentation of '{library}', which is not installed: "
            f"`pip install {_DISTRIBUTION.get(library, library)}`."
        )
    origin = Path(spec.origin)
    return origin.parent if origin.name.startswith("__init__.") else origin


def passages(library: str) -> Iterator[Passage]:
    """Yield every docstring and long block of comments of a library, in the order of the file names.

    Files whose name contains ``docs`` document compiled functions (``torch/_torch_docs.py``): there every triple-quoted
    string counts, and the module is the package that the file is in.

    Raises:
        DataError: the library is not installed.
    """
    root = place(library)
    seen: set[str] = set()
    for path in _files(root):
        source = path.read_text(encoding="utf-8", errors="replace")
        parts = path.relative_to(root).with_suffix("").parts if path != root else ()
        holds_docs = "docs" in path.stem
        module = parts[:-1] if parts and (holds_docs or parts[-1] == "__init__") else parts
        for raw, is_docstring in _texts(source, everywhere=holds_docs):
            # Generated code repeats itself: skip cleaning of repeated texts.
            if raw not in seen:
                seen.add(raw)
                text = clean(raw)
                if len(text) >= SHORTEST and (is_docstring or _is_prose(text)):
                    yield Passage(text, module, is_docstring)
    topics = root / "pydoc_data" / "topics.py"
    if library == STANDARD_LIBRARY and topics.is_file():
        # The language reference, as `help("assert")` shows it: one dict of strings joined over many lines.
        for node in ast.walk(ast.parse(topics.read_bytes())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) >= SHORTEST:
                yield Passage(clean(node.value), ("pydoc_data", "topics"), is_docstring=False)


def clean(text: str) -> str:
    """Remove the common indentation, long rules and runs of blank lines."""
    text = _LONG_RULE.sub(lambda rule: rule[1] * 8, inspect.cleandoc(text))
    return _BLANK_LINES.sub("\n\n", "\n".join(line.rstrip() for line in text.split("\n"))).strip()


def _files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _PRUNED)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(_SUFFIXES))


def _texts(source: str, everywhere: bool) -> Iterator[tuple[str, bool]]:
    """Yield the long docstrings (True) and blocks of comments (False) of one file, uncleaned."""
    for piece in _PIECES.finditer(source):
        if piece["comment"]:
            if len(piece["comment"]) >= _SHORTEST_COMMENT and not _NOT_PROSE.search(piece["comment"]):
                yield _COMMENT_MARK.sub("", piece["comment"]), False
            continue
        body = piece["double"] or piece["single"] or ""
        if len(body) < SHORTEST:
            continue
        line_start = source.rfind("\n", 0, piece.start()) + 1
        prefix = source[line_start : piece.start()].strip().lower()
        before = source[max(0, line_start - 400) : line_start].rstrip()[-1:]
        # What stands before a docstring ends a `def`, a `class`, a comment or another statement; what stands before
        # an argument or a value is an opening bracket, a comma or an equals sign.
        statement = prefix in ("", "r", "u") and (not before or before not in "=(,[{")
        if statement or (everywhere and not prefix.endswith("f")):
            yield _unescaped(body, raw=prefix.endswith("r")), True


def _unescaped(body: str, raw: bool) -> str:
    r"""Return the value of a string literal: ``\\alpha`` has one backslash in the document."""
    if raw or "\\" not in body:
        return body
    try:
        return str(ast.literal_eval('"""' + body.replace('"""', '\\"\\"\\"') + '"""'))
    except (SyntaxError, ValueError):
        return body


def _is_prose(comment: str) -> bool:
    """Return whether a block of comments is text rather than disabled code: nearly all letters and spaces."""
    signs = sum(len(run) for run in _NOT_LETTERS.findall(comment)) - comment.count(" ")
    return len(comment) >= _SHORTEST_COMMENT and signs < 0.15 * len(comment)
