"""What stands in a row of the table: a method, or an arrangement of plain training that is no continual method."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from everlearn.benchmarking import making
from everlearn.errors import MethodError, did_you_mean
from everlearn.methods import base, build, names

if TYPE_CHECKING:
    from everlearn.benchmarking.cells import Measured
    from everlearn.benchmarking.grid import Grid, GridCell


@dataclass(frozen=True)
class Entry:
    """A row of the table.

    Attributes:
        name: the word for it; a method's or variant's name.
        title: as tables write it.
        paper: URL, or "".
        make: measures one cell in a folder of its own.
        method: what trains, by its name in a recipe.
        ordered: whether the order of the domains changes anything.
        seeded: whether the seed of training changes anything.
        needs_base: whether the scores of the base model are a part of it.
    """

    name: str
    title: str
    paper: str
    make: Callable[[Grid, GridCell, Path], Measured]
    method: str = "sequential"
    ordered: bool = True
    seeded: bool = True
    needs_base: bool = True


ARRANGEMENTS = {
    entry.name: entry
    for entry in (
        Entry("constant", "Most frequent label", "", making.constant, ordered=False, seeded=False, needs_base=False),
        Entry("none", "No adaptation", "", making.none, ordered=False, seeded=False),
        Entry("separate", "One model per domain", "https://arxiv.org/abs/2004.10964", making.separate, ordered=False),
        Entry("pool", "Pool", "", making.pool, ordered=False),
    )
}
"""No model, but one answer to everything; the base model as it is; one model trained on each domain from the base; one
training on all domains shuffled together, with as many steps as all of them."""
PAPER_NAMES = base.PAPER_NAMES | {"roberta": "none", "daproberta": "separate"}
"""Names of the DAS paper where they are not ours."""
GROUPS = {
    "all": ("constant", "RoBERTa", "Pool", "DAP-RoBERTa", "DAP-Adapter", "DAP-Prompt", "NCL", "NCL-Adapter", "DEMIX",
            "B-CL", "CLASSIC", "KD", "EWC", "DER++", "HAT", "HAT-All", "HAT-Adapter", "DAS"),
    "ablations": ("das_without_initialisation", "das_without_soft_mask", "das_random", "das_without_contrast",
                  "das_domain_specific", "das_wiki_mlm", "das_wiki_kl"),
    "relatives": ("CPT", "DGA", "AdapterCL", "ELLE"),
}  # fmt: skip
"""Words for several entries: what no model is needed for and the systems of the DAS paper's main table; its ablations;
what its authors' other papers and its related work have beside them. Tables list entries in this order."""


def resolve(wanted: Iterable[str], option: str = "--methods") -> list[Entry]:
    """Entries by our names or the paper's, each once; case, hyphens and underscores do not matter.

    Args:
        wanted: the names.
        option: where they were given, for the error.

    Raises:
        MethodError: there is no such entry.
    """
    found: dict[str, Entry] = {}
    for word in wanted:
        for name in GROUPS.get(word.strip().lower(), (word,)):
            ours = our_name(name)
            if ours is None:
                known = [*names(), *ARRANGEMENTS, *GROUPS, *PAPER_NAMES]
                raise MethodError(
                    f"`{option}` names '{name.strip()}', which is no method and none of the arrangements "
                    f"{', '.join(ARRANGEMENTS)}.{did_you_mean(name.strip().lower(), known)}"
                )
            found.setdefault(ours, ARRANGEMENTS.get(ours) or of_method(ours))
    return list(found.values())


def our_name(name: str) -> str | None:
    """Our name for an entry that may be called as in the paper; None where there is no such entry."""
    ours = {base.plain_name(name): name for name in (*names(), *ARRANGEMENTS)}
    return ours.get(PAPER_NAMES.get(base.plain_name(name), base.plain_name(name)))


def place_in_tables(entry: str) -> tuple[int, str]:
    """What tables sort entries by: the place in :data:`GROUPS`; behind them the others by name."""
    return _places().get(entry, len(_places())), entry


@functools.cache
def _places() -> dict[str | None, int]:
    return {our_name(name): place for place, name in enumerate(itertools.chain(*GROUPS.values()))}


def of_method(name: str) -> Entry:
    """The entry of a method or variant."""
    method = build(name)
    return Entry(name, method.title, method.paper, making.stream, method=name)
