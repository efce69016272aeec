"""Make every mistake and write build/mistakes.md, a page of the site: ``python tests/mistakes/table.py``."""

from __future__ import annotations

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
    if code := pytest.main([f"{HERE / 'test_mistakes.py'}::test_mistake", *sys.argv[1:]], plugins=[rows]):
        return int(code)
    from mistakes.page import PAGE, page

    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(rows.found), encoding="utf-8")
    print(f"Wrote {PAGE}: {len(rows.found)} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
