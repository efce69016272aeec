"""The suite `six-domains` for recipes, grids and pages, and the addresses of its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from everlearn.errors import RecipeError, did_you_mean
from everlearn_bench.suites.base import Suite, register_suite
from everlearn_bench.suites.six_domains import corpora, proxy_corpora, tasks
from everlearn_bench.suites.six_domains.cache import data_folder
from everlearn_bench.suites.six_domains.claims import DAS_PAPER
from everlearn_bench.suites.six_domains.corpora import GENERAL_SOURCES, PROXIES
from everlearn_bench.suites.six_domains.published import GROUPS, PAPER_NAMES, PUBLISHED
from everlearn_bench.suites.six_domains.sources import BY_HAND, SOURCES

ORDERS = {
    0: ("restaurant", "acl", "ai", "phone", "pubmed", "camera"),
    1: ("phone", "ai", "pubmed", "camera", "restaurant", "acl"),
    2: ("pubmed", "camera", "acl", "restaurant", "ai", "phone"),
    3: ("camera", "acl", "phone", "restaurant", "pubmed", "ai"),
    4: ("ai", "pubmed", "camera", "phone", "acl", "restaurant"),
}
"""The orders that the paper averages over, by the released code's numbers; 0 is that of its main table. Its others
are no orders of the six: 5 is `acl` alone, 12 learns WikiText-103 before them."""


@register_suite
class SixDomains(Suite):
    """The benchmark of DAS (arXiv 2302.03241)."""

    name = "six-domains"
    orders = ORDERS
    published = PUBLISHED
    claims = DAS_PAPER
    groups = GROUPS
    paper_names = PAPER_NAMES
    sources = SOURCES
    by_hand = BY_HAND

    def make(self, folder: Path, known: Mapping[str, Mapping[str, Any]], say: Callable[[str], None]) -> list[str]:
        """Build the corpora whose sources were fetched."""
        return proxy_corpora.make(folder, known, say)

    def locate(self, inside: str) -> Path:
        """Return the file of a corpus or of an end task."""
        return locate(inside, self.data)

    def finish(self, raw: dict[str, Any]) -> None:
        """Set notes on the corpora that are proxies, and on those that differ from the committed results."""
        proxies = [item["name"] for item in raw["domains"] if _ours(item)]
        built = {f"Proxy corpus '{name}'": [f"domains/{PROXIES[name].corpus}"] for name in proxies}
        if _ours(raw["general"] or {}):
            built["General text"] = [f"D0/{source}" for source in GENERAL_SOURCES]
        raw["run"]["notes"] = [
            *(f"Proxy corpus '{name}': {PROXIES[name].sentence}." for name in proxies),
            *(
                f"{title}: {proxy_corpora.NOTE}."
                for title, folders in built.items()
                if any(proxy_corpora.made_here(data_folder(self.data) / folder) for folder in folders)
            ),
        ]


def _ours(corpus: Mapping[str, Any]) -> bool:
    """Return whether a corpus is the suite's own and not the user's."""
    return str(corpus.get("path")).startswith("suite:")


def addresses() -> list[str]:
    """Return all addresses below ``suite:six-domains/``."""
    paths = [f"{name}/{part}.jsonl" for name in (*corpora.PROXIES, corpora.GENERAL) for part in corpora.PARTS]
    return paths + [f"tasks/{name}/{part}.jsonl" for name in tasks.TASKS for part in tasks.PARTS]


def locate(inside: str, data: Path | None = None) -> Path:
    """Return the file at an address, built on demand.

    Args:
        inside: the address after ``suite:six-domains/``.
        data: the data folder; by default that of the environment variable, or the fetched data.

    Raises:
        RecipeError: there is no such address.
        DataError: the data that it is built from is missing.
    """
    if inside not in addresses():
        raise RecipeError(f"The suite 'six-domains' has no '{inside}'.{did_you_mean(inside, addresses())}")
    *kind, name, part = inside.removesuffix(".jsonl").split("/")
    if kind:
        return tasks.task_file(name, part, data_folder(data))
    if name == corpora.GENERAL:
        return corpora.general_file(part, data_folder(data))
    return corpora.proxy_file(name, part, data_folder(data))
