"""A pytest plugin that says where processor time goes: `make test-times`, or `pytest -p times …`; Linux only.

It counts what this process and everything that it started used, so neither a busy machine nor a second worker changes
the figures much. A fixture's time is a part of the test that asked for it first.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SLOWEST = 40
TICKS = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=Path, help="write processor seconds of everything to FOLDER/times.json")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Times(config), "processor times")


def used() -> float:
    """Return processor seconds of this process and its descendants, those that have ended included.

    Processes that others start from a server (`forkserver`) are the server's children, so `os.times` misses them.
    """
    own = os.times()
    return sum(own[:4]) + sum(_of(child) for child in _descendants(os.getpid()))


def _descendants(process: int) -> Iterator[int]:
    for tasks in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = [int(word) for word in tasks.read_text().split()]
        except OSError:  # ended meanwhile
            continue
        for child in children:
            yield child
            yield from _descendants(child)


def _of(process: int) -> float:
    try:
        after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, after_name[11:15])) / TICKS


class Times:
    """What each test, each fixture and the collection used.

    Attributes:
        tests: seconds by test, its fixtures included.
        fixtures: seconds by name of a fixture that is shared by several tests, those that it asks for included.
        others: seconds by what is no test.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.tests: Counter[str] = Counter()
        self.fixtures: Counter[str] = Counter()
        self.others: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        begin = used()
        result = yield
        self.tests[item.nodeid] += used() - begin
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        begin = used()
        result = yield
        self.fixtures[f"{fixturedef.baseid or 'plugin'}::{fixturedef.argname}"] += used() - begin
        return result

    def pytest_collection_finish(self) -> None:
        if not hasattr(self.config, "workerinput") and self.config.getoption("numprocesses", None):
            return
        self.others["start and collection, all workers"] = sum(os.times()[:4])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workerinput"):
            self.config.workeroutput["times"] = [dict(each) for each in (self.tests, self.fixtures, self.others)]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", {})  # none where a worker broke down
        for own, theirs in zip((self.tests, self.fixtures, self.others), output.get("times", ({},) * 3), strict=True):
            own.update(theirs)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        folders: Counter[str] = Counter()
        files: Counter[str] = Counter()
        for name, seconds in self.tests.items():
            file = name.partition("::")[0]
            files[file] += seconds
            folders[os.path.dirname(file)] += seconds
        tables = {
            "folders": folders,
            "files": files,
            "tests": self.tests,
            "shared fixtures": self.fixtures,
            "no tests": self.others,
        }
        for title, table in tables.items():
            terminalreporter.section(f"processor seconds: {title}")
            for name, seconds in table.most_common(SLOWEST):
                terminalreporter.line(f"{seconds:9.2f}  {name}")
        folder = self.config.getoption("times")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(tables, indent=1)
            (folder / "times.json").write_text(text, encoding="utf-8")
