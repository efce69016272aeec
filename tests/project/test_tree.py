"""What lies in the root of the repository was put there on purpose."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_names_in_the_root_are_words():
    # A command to which `-` was no standard output once left a file of that name.
    assert [path.name for path in ROOT.iterdir() if not path.name.lstrip(".")[:1].isalpha()] == []
