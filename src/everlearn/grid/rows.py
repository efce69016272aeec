"""Define the rows of a table: a method, or another arrangement of plain training."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from everlearn.errors import MethodError, did_you_mean, plain_name
from everlearn.grid import arrangements
from everlearn.grid.arrangements import BASE, Made
from everlearn.grid.runs import Job, RunFactory
from everlearn.grid.template import GridTemplate
from everlearn.methods import build, names
from everlearn.methods.sequential import PLAIN


@dataclass(frozen=True)
class RowSpec:
    """A row of the table.

    Attributes:
        name: name of the row; a method's or variant's name.
        title: title in tables.
        paper: URL, or "".
        make: function that measures one cell in a folder.
        methods: the methods, in the form of a recipe.
        ordered: whether the order of the domains makes a difference.
        seeded: whether the seed of training makes a difference.
        needs_base: whether it includes scores of the base model.
        changes: dotted keys of the recipe that differ from other rows.
        old_data: whether text of earlier domains is read again, whatever the methods do.
        optional: whether it is left out, rather than refused, if the base model does not support it: a group named it,
            and not the user.
    """

    name: str
    title: str
    paper: str
    make: Callable[[RunFactory, Job, Path], Made]
    methods: tuple[dict[str, Any], ...] = ({"name": PLAIN},)
    ordered: bool = True
    seeded: bool = True
    needs_base: bool = True
    changes: Mapping[str, Any] = field(default_factory=dict)
    old_data: bool = False
    optional: bool = False


ARRANGEMENTS = {
    entry.name: entry
    for entry in (
        RowSpec(
            "constant", "Most frequent label", "", arrangements.constant, ordered=False, seeded=False, needs_base=False
        ),
        RowSpec(BASE, "No adaptation", "", arrangements.none, ordered=False, seeded=False),
        RowSpec(
            "separate", "One model per domain", "https://arxiv.org/abs/2004.10964", arrangements.separate, ordered=False
        ),
        RowSpec("pool", "Pool", "", arrangements.pool, ordered=False),
        RowSpec("cumulative", "Each domain with all before it", "", arrangements.cumulative, old_data=True),
        RowSpec(
            "merged",
            "One model per domain, averaged",
            "https://arxiv.org/abs/2203.05482",
            arrangements.merged,
            ordered=False,
        ),
        RowSpec("per_task", "One model per task (PerTaskFT)", "", arrangements.separate, ordered=False),
        RowSpec("mtl", "All tasks at once (MTL)", "", arrangements.pool, ordered=False),
    )
}
"""Rows that are not methods, by name; :mod:`everlearn.grid.arrangements` describes each.

If domains are tasks, `separate` and `pool` are known as per-task fine-tuning and multi-task learning.
"""


def resolve(row_names: Iterable[str], template: GridTemplate, option: str = "--methods") -> list[RowSpec]:
    """Return rows by our names or the paper's, each once; case, hyphens and underscores are ignored.

    Args:
        row_names: the names.
        template: the template, which has the paper's names and the groups.
        option: option of the command line, for the message.

    Raises:
        MethodError: there is no such row.
    """
    rows: dict[str, RowSpec] = {}
    for word in row_names:
        group = template.groups.get(word.strip().lower())
        for name in group or (word,):
            ours = our_name(name, template)
            if ours is None:
                known = {*names(), *ARRANGEMENTS, *template.systems, *template.groups, *template.paper_names}
                raise MethodError(
                    f"`{option}` names '{name.strip()}', which is neither a method nor one of the arrangements "
                    f"{', '.join(ARRANGEMENTS)}.{did_you_mean(name.strip().lower(), known)}"
                )
            if group is None or ours not in rows:
                rows[ours] = replace(entry_of(ours, template), optional=group is not None)
    return list(rows.values())


def our_name(name: str, template: GridTemplate) -> str | None:
    """Return everlearn's name of a row, which may have another name in the paper; None if there is no such row."""
    ours = {plain_name(name): name for name in (*names(), *ARRANGEMENTS, *template.systems)}
    return ours.get(plain_name(template.paper_names.get(plain_name(name), name)))


def in_order(entries: Iterable[str], template: GridTemplate) -> list[str]:
    """Return rows in the order of tables: that of the template's groups, followed by the others by name."""
    names = dict.fromkeys(our_name(name, template) for name in itertools.chain(*template.groups.values()))
    listed = {name: place for place, name in enumerate(names)}
    return sorted(entries, key=lambda entry: (listed.get(entry, len(listed)), entry))


def entry_of(name: str, template: GridTemplate) -> RowSpec:
    """Return the row of a method, an arrangement or one of the template's systems, by its name in everlearn."""
    if (system := template.systems.get(name)) is not None:
        methods = tuple(dict(each) for each in system.methods)
        make, own = system.make or arrangements.stream, system.make is None
        return RowSpec(name, system.title, system.paper, make, methods, needs_base=own, changes=system.changes)
    if name in ARRANGEMENTS:
        return ARRANGEMENTS[name]
    method = build(name)
    return RowSpec(name, method.title, method.paper, arrangements.stream, ({"name": name},))
