"""The order of the tests when several workers share them."""

from __future__ import annotations

import itertools

import pytest

LONG = (
    "tests/integration/test_distributed.py",
    "tests/conformance/test_order.py",
    "tests/conformance/test_conformance.py",
    "tests/integration/test_resume.py",
)
"""Files that take minutes, the longest first."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each of several workers its share of the long files first, so that the last tests of all are short ones.

    A worker begins with its part of the list, and steals from the end of another's when it has done its own
    (`--dist worksteal`).
    """
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    of_file = {name: [item for item in items if item.nodeid.startswith(f"{name}::")] for name in LONG}
    dealt = [[*itertools.chain(*list(of_file.values())[worker::workers])] for worker in range(workers)]
    others = iter([item for item in items if item.nodeid.partition("::")[0] not in LONG])
    left, ordered = len(items), []
    for number, long in enumerate(dealt):
        part = left // (workers - number)
        ordered += [*long, *itertools.islice(others, max(0, part - len(long)))]
        left -= part
    items[:] = [*ordered, *others]
