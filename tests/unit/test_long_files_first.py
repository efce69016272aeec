"""Workers begin with the long files, one each, and all tests run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from long_files_first import LONG, pytest_collection_modifyitems


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_worker_begins_with_long_files_of_its_own(workers: int) -> None:
    counts = {"tests/cli/test_a.py": 50, **dict.fromkeys(LONG, 10), "tests/unit/test_b.py": 141}
    items: list[Any] = [
        SimpleNamespace(nodeid=f"{name}::test_{i}") for name, count in counts.items() for i in range(count)
    ]
    ordered = list(items)
    config: Any = SimpleNamespace(workerinput={"workercount": workers})
    pytest_collection_modifyitems(config, ordered)
    assert sorted(map(id, ordered)) == sorted(map(id, items))
    begin = 0
    for worker in range(workers):  # as pytest-xdist parts them
        part = [
            item.nodeid.partition("::")[0]
            for item in ordered[begin : begin + (len(items) - begin) // (workers - worker)]
        ]
        own = list(LONG[worker::workers])
        assert list(dict.fromkeys(part))[: len(own)] == own
        assert set(part[10 * len(own) :]).isdisjoint(LONG)
        begin += len(part)
