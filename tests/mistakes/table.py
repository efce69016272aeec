"""Make every mistake and write docs/mistakes.md: ``python tests/mistakes/table.py``, or ``make mistakes``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))


class Rows:
    """Collects the rows that the tests leave."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.found.update(value for name, value in report.user_properties if name == "row")


def main() -> int:
    rows = Rows()
    os.environ["EVERLEARN_WRITES_MISTAKES"] = "1"  # the page that is there is not what the rows should be
    if code := pytest.main([f"{HERE / 'test_mistakes.py'}::test_mistake", *sys.argv[1:]], plugins=[rows]):
        return int(code)
    from mistakes.page import PAGE, page

    PAGE.write_text(page(rows.found), encoding="utf-8")
    print(f"Wrote {PAGE}: {len(rows.found)} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
