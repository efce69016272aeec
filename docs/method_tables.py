"""Write what follows from the registry of methods: tables of docs/methods.md, and types of what the package gives.

    python docs/method_tables.py

What was measured is in docs/results/overhead-5m.json, which `benchmarks/overhead.py` wrote; the other columns of the
table of costs are written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import everlearn
from everlearn import plugins
from everlearn.methods import REGISTRY, build
from everlearn.methods.base import KINDS, Method
from everlearn.methods.sequential import PLAIN

PAGE = Path(__file__).with_name("methods.md")
TYPES = Path(everlearn.__file__).with_name("__init__.pyi")
MEASURED = Path(__file__).with_name("results") / "overhead-5m.json"
METHODS = "| name | what it does |"
BY_KIND = "| kind | | methods |"
COSTS = "| method | changes |"
NEEDS = {
    "old_data": "old data",
    "domain_id_test": "domain at test",
    "importance_pass": "passes between domains",
    "extra_parameters": "extra parameters",
}
"""Columns of the table of methods: field of `Needs` → heading."""
COLUMNS = {"times_processor_seconds_per_step": "time", "times_peak_bytes": "peak memory"}
MISSING = "–"
WIDTH = 6
"""Columns of the table of costs that are written by hand."""


def page(text: str, by_title: dict[str, dict[str, Any]]) -> str:
    """Return the page with all tables written again.

    Args:
        text: the page as it is.
        by_title: what was measured of the methods.
    """
    with plugins.hidden():
        places = sections()
        rows = [_row([f"[`{name}`]({places[name]})", *_facts(cls)]) for name, cls in _in_families()]
        text = _with_table(text, METHODS, rows)
        text = _with_table(text, BY_KIND, _by_kind())
    head, rule, *lines = _table(text, COSTS)
    own = [_cells(line) for line in lines]
    written = [_row([*cells, *_costs(cells[0], by_title)]) for cells in own]
    text = text.replace("\n".join([head, rule]), "\n".join([_row([*_cells(head), *COLUMNS.values()]), _rule()]))
    return _with_table(text, COSTS, written)


def sections() -> dict[str, str]:
    """Return where each method is explained: the heading of its section names it."""
    pages = [PAGE, *sorted(PAGE.with_suffix("").glob("*.md")), PAGE.with_name("baselines.md")]
    anchors: dict[str, str] = {}
    for file in pages:
        page = file.relative_to(PAGE.parent).as_posix() if file != PAGE else ""
        for heading in re.findall(r"^## (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE):
            anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            for name in re.findall(r"\w+", heading.partition(":")[0]):
                anchors.setdefault(name, f"{page}#{anchor}")
    return anchors


def _table(text: str, head: str) -> list[str]:
    return (head + text.split(head, 1)[1]).split("\n\n", 1)[0].splitlines()


def _with_table(text: str, head: str, rows: Iterable[str]) -> str:
    """Return the page with other rows in the table that begins with `head`."""
    heading, rule, *_ = old = _table(text, head)
    return text.replace("\n".join(old), "\n".join([heading, rule, *rows]))


def _in_families() -> list[tuple[str, type[Method]]]:
    """Return every method; plain training first, then those of one folder together."""
    return sorted(REGISTRY.items(), key=lambda item: (item[0] != PLAIN, item[1].__module__.rpartition(".")[0], item[0]))


def _facts(cls: type[Method]) -> list[str]:
    also = ", ".join(f"`{variant.name}`" for variant in cls.variants)
    needs = [_needed(cls, field) for field in NEEDS]
    arxiv = cls.paper.partition("arxiv.org/abs/")[2]
    paper = f"[{arxiv or 'paper'}]({cls.paper})" if cls.paper else ""
    return [cls.summary + (f"; also {also}" if also else ""), *needs, paper]


def _needed(cls: type[Method], field: str) -> str:
    """Return whether a method needs something, and which of its variants differ in that."""
    needed = bool(getattr(build(cls.name).needs, field))
    others = [each.name for each in cls.variants if bool(getattr(build(each.name).needs, field)) != needed]
    listed = ", ".join(f"`{name}`" for name in others)
    if needed:
        return f"yes, except {listed}" if others else "yes"
    return f"only {listed}" if others else MISSING


def _by_kind() -> Iterable[str]:
    for kind, meaning in KINDS.items():
        names = sorted(name for name, cls in REGISTRY.items() if kind in cls.kinds)
        yield _row([f"**{kind}**", meaning, ", ".join(f"`{name}`" for name in names) or MISSING])


def types() -> str:
    """Return the types of the names that the package gives: those that it lists, and the class of each method."""
    with plugins.hidden():
        classes = {cls.__name__: cls.__module__ for cls in REGISTRY.values()}
    imports = sorted((module, name) for name, module in (everlearn.PUBLIC | classes).items())
    lines = [f"from {module} import {name} as {name}" for module, name in imports]
    lines += ["", "PUBLIC: dict[str, str]", "__all__: list[str]", "__version__: str", ""]
    return "\n".join(["# Written by `python docs/method_tables.py`.", *lines])


# -- what was measured --------------------------------------------------------------------------------------------


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")[:WIDTH]]


def _costs(first: str, by_title: dict[str, dict[str, Any]]) -> list[str]:
    # A row of several methods has a number for each; one with words of its own is of options nobody measured.
    names = re.findall(r"`(\w+)`", first) if re.fullmatch(r"`\w+`(, `\w+`)*", first) else []
    rows = [by_title.get(build(name).title) for name in names]
    return [_numbers(rows, column) for column in COLUMNS]


def _numbers(rows: list[dict[str, Any] | None], column: str) -> str:
    if not any(rows):
        return MISSING
    return ", ".join(MISSING if numbers is None else f"{numbers[column]:.2f}" for numbers in rows)


def _rule() -> str:
    return "|---" * (WIDTH + len(COLUMNS)) + "|"


def _row(cells: Iterable[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def measured() -> dict[str, dict[str, Any]]:
    """Return every method that was measured, by title."""
    methods: dict[str, dict[str, Any]] = json.loads(MEASURED.read_text(encoding="utf-8"))["methods"]
    return methods


if __name__ == "__main__":
    TYPES.write_text(types(), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), measured()), encoding="utf-8")
