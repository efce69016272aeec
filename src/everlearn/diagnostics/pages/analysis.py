"""Show an analysis as a page and as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from everlearn.diagnostics.registry import Findings
from everlearn.files import write_text
from everlearn.report.html import render
from everlearn.report.sections import Section
from everlearn.report.tables import terminal_table
from everlearn.version import __version__


def write_page(output: Path, title: str, sections: Sequence[Section]) -> Path:
    """Write the page to a file, atomically; return the file."""
    page = render("analysis.html.jinja", title=title, kicker="Analysis", version=__version__, sections=sections)
    write_text(output, page)
    return output


def terminal(sections: Sequence[Section]) -> RenderableType:
    """Return the tables for a terminal."""
    return Group(*_parts(sections))


def joined_data(found: Iterable[Findings]) -> dict[str, Any]:
    """Return the data of several analyses as one mapping; lists of one name are joined."""
    data: dict[str, Any] = {}
    for each in found:
        for key, value in each.data.items():
            data[key] = [*data[key], *value] if isinstance(data.get(key), list) else value
    return data


def _parts(sections: Sequence[Section]) -> Iterator[RenderableType]:
    for section in sections:
        for table in section.tables:
            yield from (terminal_table(table), Text(""))
        yield from _parts(section.parts)
