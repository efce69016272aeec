"""Files that are one document each: source code, notebooks, web pages and PDF."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from everlearn.data.rows import Reader, Row
from everlearn.data.text_files import Limits, text_of, too_long
from everlearn.errors import DataError, first_line

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


def notebook_text(path: Path, limits: Limits) -> str:
    """Return the cells of a Jupyter notebook: prose and code, without what the code printed."""
    try:
        notebook = json.loads(text_of(path, limits))
        old = "worksheets" in notebook  # before version 4 of the format, of 2015
        cells = [cell for sheet in notebook["worksheets"] for cell in sheet["cells"]] if old else notebook["cells"]
        sources = [
            _source(cell["input" if old and cell["cell_type"] == "code" else "source"])
            for cell in cells
            if cell["cell_type"] != "raw"
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} is no notebook that can be read: {first_line(error) or type(error).__name__}."
        ) from None
    return "\n\n".join(source for source in sources if source.strip())


def _source(value: Any) -> str:
    """Return the text of a cell, which is one text or a list of lines."""
    return value if isinstance(value, str) else "".join(value)


def html_text(path: Path, limits: Limits) -> str:
    """Return the visible text of a web page, without scripts and styles."""
    try:
        from lxml import etree
    except ImportError:
        raise DataError(f"{path}: web pages are read by lxml, which is not installed: {INSTALL}.") from None
    # Unlike Python's own, its parser takes linear time for any page.
    parser = etree.HTMLParser(encoding="utf-8", huge_tree=True)
    try:
        page = etree.fromstring(text_of(path, limits).encode(), parser)
    except etree.XMLSyntaxError:  # nothing is in it
        page = None
    if any(error.type == etree.ErrorTypes.ERR_RESOURCE_LIMIT for error in parser.error_log):
        raise DataError(f"{path} is no web page that can be read: its elements are nested too deeply.")
    return "" if page is None else _visible(page)


def _visible(page: Any) -> str:
    """Return the text in lines, which end with block elements, and inside of <pre> where the source's lines end."""
    from lxml import etree

    parts: list[str] = []
    hidden = preformatted = 0

    def add(text: str | None) -> None:
        if not text or hidden:
            return
        if not preformatted:
            text = re.sub(r"[ \t\r\n\f]+", " ", text)
            text = text.removeprefix(" ") if not parts or parts[-1].endswith((" ", "\n")) else text
        if text:
            parts.append(text)

    for event, node in etree.iterwalk(page, events=("start", "end", "comment", "pi")):
        if event == "start":
            hidden += node.tag in HIDDEN
            if node.tag not in INLINE and not hidden:
                parts.append("\n")
            preformatted += node.tag == "pre"
            add(node.text)
            continue
        if event == "end":
            preformatted -= node.tag == "pre"
            if node.tag not in INLINE and not hidden:
                parts.append("\n")
            hidden -= node.tag in HIDDEN
        if node is not page:
            add(node.tail)
    return "\n".join(line.rstrip() for line in "".join(parts).splitlines() if line.strip())


def pdf_text(path: Path, limits: Limits) -> str:
    """Return the text layer of a PDF file, page by page; a file without a text layer has no text."""
    try:
        from pypdf import PdfReader
        from pypdf.errors import DependencyError, FileNotDecryptedError
    except ImportError:
        raise DataError(f"{path}: PDF files are read by pypdf, which is not installed: {INSTALL}.") from None
    pages, size = [], 0
    try:
        for page in PdfReader(path).pages:
            pages.append(page.extract_text())
            size += len(pages[-1])
            if size > limits.row_bytes:
                break
    except (FileNotDecryptedError, DependencyError):  # pypdf needs another package for the newer forms of encryption
        raise DataError(
            f"{path} is encrypted, so its text cannot be read. Save it without encryption (`qpdf --decrypt "
            "--password=PASSWORD IN.pdf OUT.pdf`; without a password if it opens without one), or take it out."
        ) from None
    except Exception as error:  # pypdf raises its own errors, and Python's, for whatever is damaged
        raise DataError(f"{path} cannot be read as PDF: {first_line(error).rstrip('.')}.") from error
    if size > limits.row_bytes:
        raise too_long(f"{path}, which is one document,", limits)
    return "\n".join(pages)


def advice_on_empty(where: str) -> str:
    """Return what to do about a file without text; "" if it is no PDF."""
    if not where.lower().endswith(".pdf"):
        return ""
    return f" {where} has no text layer, like scanned pages: text recognition adds one (`ocrmypdf IN.pdf OUT.pdf`)."


def _as_one_row(text: Callable[[Path, Limits], str]) -> Reader:
    """Return the reader of a format in which a file is one row with the one column ``text``."""

    def read(path: Path, columns: Sequence[str], row: int, offset: int, limits: Limits) -> Iterator[Row]:
        if row == 0:
            yield Row({"text": text(path, limits)}, str(path), 1, 0)

    return read


read_whole = _as_one_row(text_of)
"""Reads the text of a file as it is."""
WHOLE: dict[str, Reader] = {
    **dict.fromkeys(CODE, read_whole),
    ".ipynb": _as_one_row(notebook_text),
    **dict.fromkeys((".html", ".htm", ".xhtml"), _as_one_row(html_text)),
    ".pdf": _as_one_row(pdf_text),
}
"""Suffix → reader of a format in which a file is one document."""
