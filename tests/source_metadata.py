"""The metadata of a checkout, through which everlearn finds the plugins of its own distribution.

An installation has them. A checkout that is not installed (``PYTHONPATH=src``), or whose ``pyproject.toml`` has other
entry points than when it was, gets an ``everlearn.egg-info`` beside its code, which Git ignores. Importing this module
writes it where it is needed, and so does ``python tests/source_metadata.py``.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "pyproject.toml"
WRITE = "import setuptools; setuptools.setup()"
Entries = set[tuple[str, str, str]]


def declared() -> Entries:
    """Return (group, name, value) of each plugin that ``pyproject.toml`` declares."""
    groups = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]
    return {(group, name, value) for group, own in groups.items() for name, value in own.items()}


def found() -> Entries:
    """Return those that Python finds."""
    try:
        entries = metadata.distribution("everlearn").entry_points
    except metadata.PackageNotFoundError:
        return set()
    return {(each.group, each.name, each.value) for each in entries if each.group.startswith("everlearn.")}


def refresh() -> None:
    """Write the metadata beside the code, unless Python finds what is declared."""
    if found() != declared():
        subprocess.run([sys.executable, "-c", WRITE, "--quiet", "egg_info"], cwd=ROOT, check=True, capture_output=True)


refresh()
