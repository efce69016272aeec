"""Code for training: the documented functions of installed libraries, each in the form of a HumanEval problem.

A proxy for the instructions of MIGU's setting (Magicoder-Evol-Instruct-110K), which cannot be shipped; name it, or any
other code, as `domains.code.path`. Nothing is imported or executed. The same versions give the same files.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from everlearn.data.blocks import hash_of
from everlearn.errors import DataError
from everlearn.files import damage, digest, new_folder, write_text
from everlearn_bench.suites.cache import cache_folder
from everlearn_bench.suites.docs.reading import STANDARD_LIBRARY, place, version

LIBRARIES = (STANDARD_LIBRARY, "networkx", "sympy", "scipy", "pandas", "matplotlib")
PARTS = ("train", "validation")
SHORTEST, LONGEST = 150, 4000
"""Characters of a function."""
MOST = 20_000_000
"""Characters of training text at most: the functions that come first in the order of their hashes."""
HELD_OUT = 5
"""Percent of the files whose functions are held out."""
_PRUNED = frozenset({"tests", "test", "testing", "idle_test", "lib2to3", "site-packages", "__pycache__", "_vendor"})


def functions(source: str) -> Iterator[str]:
    """Yield each documented function of a module, or method of a class, without decorators and indentation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from the parsed code
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return
    lines = source.splitlines()
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    for node in (node for body in bodies for node in body):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and len(node.body) > 1:
            text = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])) + "\n"
            if SHORTEST <= len(text) <= LONGEST:
                yield text


def build(libraries: Sequence[str] = LIBRARIES) -> Path:
    """Return the folder with ``train.jsonl`` and ``validation.jsonl``, built if it is missing for these versions.

    No function occurs twice, and no file has functions in both parts.

    Args:
        libraries: names of installed libraries, or ``python`` for the standard library.

    Raises:
        DataError: a library is not installed.
    """
    versions = {library: version(library) for library in libraries}
    folder = cache_folder("code") / f"functions-{hash_of(digest(Path(__file__)), *sorted(versions.items()))[:12]}"
    if folder.is_dir() and damage(folder) is None:
        return folder
    texts: dict[str, dict[str, str]] = {part: {} for part in PARTS}
    for library in libraries:
        if versions[library] is None:
            raise DataError(f"The suite `code` reads the functions of '{library}', which is not installed.")
        root = place(library)
        for path in _files(root):
            name = f"{library}/{path.relative_to(root).as_posix()}"
            part = PARTS[int(_hash(name)[:8], 16) % 100 < HELD_OUT]
            for text in functions(path.read_text(encoding="utf-8", errors="replace")):
                texts[part].setdefault(_hash("".join(text.split())), text)
    known = texts["validation"].keys()
    texts["train"] = {key: text for key, text in texts["train"].items() if key not in known}
    with new_folder(folder) as new:
        for part, functions_of_part in texts.items():
            rows, size = [], 0
            for key in sorted(functions_of_part):
                size += len(functions_of_part[key])
                if size > MOST:
                    break
                rows.append(json.dumps({"text": functions_of_part[key]}, ensure_ascii=False) + "\n")
            write_text(new / f"{part}.jsonl", "".join(rows))
    return folder


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _PRUNED)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()
