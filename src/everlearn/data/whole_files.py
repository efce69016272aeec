"""Files that are one document each: source code, notebooks, web pages and PDF."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everlearn.data.opening import Limits, lines, too_long
from everlearn.data.rows import Reader, Row
from everlearn.errors import DataError, first_line

if TYPE_CHECKING:
    from bs4 import BeautifulSoup

INSTALL = "pip install 'everlearn[documents]'"
# fmt: off
CODE = (
    ".py", ".pyi", ".pyx", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".cu", ".cuh", ".cs", ".java", ".kt", ".kts",
    ".scala", ".groovy", ".js", ".jsx", ".mjs", ".ts", ".tsx", ".vue", ".go", ".rs", ".swift", ".m", ".mm", ".rb",
    ".php", ".pl", ".pm", ".lua", ".r", ".jl", ".hs", ".ml", ".mli", ".ex", ".exs", ".erl", ".clj", ".lisp", ".el",
    ".f90", ".f95", ".for", ".sh", ".bash", ".zsh", ".ps1", ".sql", ".css", ".scss", ".cmake", ".gradle", ".proto",
    ".tf", ".v", ".sv", ".vhd", ".asm", ".s", ".tex",
)
# fmt: on
"""Suffixes of source code."""
# fmt: off
INLINE = frozenset((
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "img",
    "ins", "kbd", "label", "mark", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt",
    "u", "var", "wbr",
))
# fmt: on
"""Elements of a web page inside of a line."""
HIDDEN = frozenset({"script", "style", "template", "noscript"})
"""Elements of a web page whose text is not seen."""


def read_whole(path: Path, columns: Sequence[str], row: int, offset: int, limits: Limits) -> Iterator[Row]:
    """Read a whole file as one row with the one column ``text``."""
    if row == 0:
        yield Row({"text": _text_of(path, limits)}, str(path), 1, 0)


def read_notebook(path: Path, columns: Sequence[str], row: int, offset: int, limits: Limits) -> Iterator[Row]:
    """Read the cells of a Jupyter notebook as one document: prose and code, without what the code printed."""
    if row:
        return
    try:
        cells = json.loads(_text_of(path, limits))["cells"]
        sources = [_source(cell["source"]) for cell in cells if cell["cell_type"] != "raw"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} is no notebook that can be read: {first_line(error) or type(error).__name__}."
        ) from None
    yield Row({"text": "\n\n".join(source for source in sources if source.strip())}, str(path), 1, 0)


def _source(value: Any) -> str:
    """Return the text of a cell, which is one text or a list of lines."""
    return value if isinstance(value, str) else "".join(value)


def read_html(path: Path, columns: Sequence[str], row: int, offset: int, limits: Limits) -> Iterator[Row]:
    """Read the visible text of a web page, without scripts and styles."""
    if row:
        return
    try:
        from bs4 import BeautifulSoup
    except ImportError:
        raise DataError(f"{path}: web pages are read by Beautiful Soup, which is not installed: {INSTALL}.") from None
    yield Row({"text": _visible(BeautifulSoup(_text_of(path, limits), "html.parser"))}, str(path), 1, 0)


def _visible(page: BeautifulSoup) -> str:
    """Return the text in lines: they end where blocks do, and inside of <pre> where the source has them."""
    from bs4 import CData, NavigableString, Tag

    parts: list[str] = []
    waiting: list[tuple[object, bool]] = [(page, False)]
    while waiting:
        node, as_it_is = waiting.pop()
        if isinstance(node, Tag):
            if node.name in HIDDEN:
                continue
            as_it_is = as_it_is or node.name == "pre"
            around = [] if node.name in INLINE else [("\n", True)]
            waiting += [*around, *((child, as_it_is) for child in reversed(node.contents)), *around]
        elif type(node) in (str, NavigableString, CData):  # others are comments and declarations
            text = str(node) if as_it_is else re.sub(r"[ \t\r\n\f]+", " ", str(node))
            behind_space = not as_it_is and (not parts or parts[-1].endswith((" ", "\n")))
            if text := text.removeprefix(" ") if behind_space else text:
                parts.append(text)
    return "\n".join(line.rstrip() for line in "".join(parts).splitlines() if line.strip())


def read_pdf(path: Path, columns: Sequence[str], row: int, offset: int, limits: Limits) -> Iterator[Row]:
    """Read the text layer of a PDF file, page by page; a file without a text layer has no text."""
    if row:
        return
    try:
        from pypdf import PdfReader
    except ImportError:
        raise DataError(f"{path}: PDF files are read by pypdf, which is not installed: {INSTALL}.") from None
    pages, size = [], 0
    try:
        for page in PdfReader(path).pages:
            pages.append(page.extract_text())
            size += len(pages[-1])
            if size > limits.row_bytes:
                break
    except Exception as error:  # pypdf raises its own errors, and Python's, for whatever is damaged
        raise DataError(f"{path} cannot be read as PDF: {first_line(error).rstrip('.')}.") from error
    if size > limits.row_bytes:
        raise too_long(f"{path}, which is one document,", limits)
    yield Row({"text": "\n".join(pages)}, str(path), 1, 0)


def _text_of(path: Path, limits: Limits) -> str:
    parts = []
    for text, _, behind in lines(path, 0, 0, limits):
        if behind > limits.row_bytes:
            raise too_long(f"{path}, which is one document,", limits)
        parts.append(text)
    return "".join(parts)


WHOLE: dict[str, Reader] = {
    **dict.fromkeys(CODE, read_whole),
    ".ipynb": read_notebook,
    **dict.fromkeys((".html", ".htm", ".xhtml"), read_html),
    ".pdf": read_pdf,
}
"""Suffix → reader of a format in which a file is one document."""
