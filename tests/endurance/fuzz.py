"""Every fuzzer of tests/fuzz, as many cases as wanted.

    make fuzz COUNT=10000 SEED=0 MINUTES=60

COUNT is the number of cases of the quickest; others do fewer, in the proportion in which they run with every test.
MINUTES are shared out evenly.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

import fuzz
from endurance.record import Record, asked


class Shares:
    """Give each test its share of the minutes."""

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        os.environ["EVERLEARN_FUZZ_MINUTES"] = str(self.minutes / max(1, len(session.items)))


def main() -> int:
    """Run them by pytest, which makes what they need."""
    options = asked(__doc__, 10_000)
    record = Record(options)
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found"
        os.environ |= {
            "EVERLEARN_FUZZ": str(options.count),
            "EVERLEARN_FUZZ_SEED": str(options.seed),
            "EVERLEARN_FUZZ_FOUND": str(found),
        }
        arguments = ["-q", "-p", "no:cacheprovider", "--basetemp", f"{folder}/pytest", str(fuzz.__path__[0])]
        ended = pytest.main(arguments, [Shares(options.minutes)])
        lines = found.read_text(encoding="utf-8").splitlines() if found.is_file() else []
    for line in lines:
        name, count, failed = json.loads(line)
        record.cases[name] += count
        record.failed += [f"{name}: {each}" for each in failed]
    if ended and not record.failed:
        record.failed.append(f"pytest ended with {int(ended)}")
    return record.finish()


if __name__ == "__main__":
    raise SystemExit(main())
