"""Register analyses by name, for ``everlearn analyse KIND RUN``.

An analysis is a function that takes a learner with a finished run, and options. It returns a section of the page, or
several sections and data (:class:`Findings`). Its parameters after the learner become options of the command, and its
docstring the command's help.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import typer

from everlearn.learner import ContinualLearner
from everlearn.plugins import Registry
from everlearn.report.sections import Section

Blocks = Annotated[int, typer.Option(min=1, metavar="BLOCKS", help="Blocks of each held-out set to read.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="STAGE", help="The earlier stage: its domain, or `base`; default: the one before --to."
    ),
]
Until = Annotated[str | None, typer.Option("--to", metavar="STAGE", help="The later stage; default: the last one.")]


@dataclass(frozen=True)
class Findings:
    """The result of an analysis.

    Attributes:
        sections: parts of the page; their tables are also shown on a terminal.
        data: for ``--json``: names → values.
        note: why there is nothing to show, in a sentence.
    """

    sections: list[Section]
    data: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Analysis:
    """An analysis as it is registered.

    Attributes:
        name: the KIND of the command.
        analyse: the function.
        recorded: whether it only reads what the run recorded. ``everlearn analyse RUN`` without a KIND shows these, so
            it must work without options.
    """

    name: str
    analyse: Callable[..., Section | Findings]
    recorded: bool

    def __call__(self, learner: ContinualLearner, **options: Any) -> Findings:
        """Analyse a run; if the result is a single section, its tables are the data."""
        findings = self.analyse(learner, **options)
        return findings if isinstance(findings, Findings) else Findings([findings], {self.name: as_data(findings)})


ANALYSES: Registry[Analysis] = Registry("analyses")
"""Analyses by name: those of :mod:`everlearn.diagnostics.analyses`, and of plugins."""
_Analysis = TypeVar("_Analysis", bound=Callable[..., Section | Findings])


def analysis(name: str, recorded: bool = False) -> Callable[[_Analysis], _Analysis]:
    """Register an analysis; the arguments are the attributes of :class:`Analysis`."""

    def register(analyse: _Analysis) -> _Analysis:
        ANALYSES.add(name, Analysis(name, analyse, recorded))
        return analyse

    return register


def as_data(section: Section) -> dict[str, list[dict[str, str]]]:
    """Return a section's tables as plain data: by title, rows that map headings to texts."""
    return {
        table.title: [
            dict(zip(table.header, (name, *(cell.text for cell in cells)), strict=True)) for name, cells in table.rows
        ]
        for table in section.tables
    }
