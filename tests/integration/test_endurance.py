"""A short part of what `make faults` and `make soak` do, and the page of what they found."""

from __future__ import annotations

from pathlib import Path

import pytest

import prepared
from endurance import page, soak

TESTS = Path(__file__).parents[1]


def test_a_few_faults() -> None:
    code = "import sys; from endurance.faults import main; sys.exit(main())"
    done = prepared.run(code, "--count", "3", "--seed", "0", paths=(TESTS,))
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])


@pytest.mark.parametrize("name", ["ewc", "replay"])
def test_a_few_stages(name: str) -> None:
    found = soak.stream(name, 5)
    assert found is not None
    assert 0 < found["kept"][1] <= found["declared"][1]
    assert found["open files"] > 0


def test_the_page_says_what_was_found() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page()
